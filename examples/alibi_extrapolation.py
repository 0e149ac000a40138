# SPDX-License-Identifier: BSD-3-Clause
"""Train short, test long (Press et al., 2022): two language models of characters see 128 characters in training and up to 2048 in
a test. One has ALiBi, by which a key loses with distance; the other adds sines of the position to its input.

    python examples/alibi_extrapolation.py --plot alibi_extrapolation.png        about a minute on two cores
"""

import argparse
import math
from pathlib import Path

import options
import strobe.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 128, 96, 6, 3, 16
SLOPES = torch.tensor([2 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])


def sines(length: int) -> Tensor:
    """[length, WIDTH]: what Vaswani et al. (2017) add to the input."""
    angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Block(nn.Module):
    def __init__(self, slopes: Tensor | None):
        super().__init__()
        self.slopes = slopes
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, width]
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).unbind(2)  # views [batch, seq, heads, dim]
        x = x + self.out(strobe.torch.attention(q, k, v, causal=True, alibi_slopes=self.slopes).flatten(2))
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self, characters: int, alibi: bool):
        super().__init__()
        self.alibi, self.embed = alibi, nn.Embedding(characters, WIDTH)
        self.blocks = nn.Sequential(*(Block(SLOPES if alibi else None) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(self.norm(self.blocks(x if self.alibi else x + sines(ids.shape[1]))))


def text() -> str:
    files = [*sorted((ROOT / "include/strobe").glob("*.h")), *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def train(model: Model, ids: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        at = torch.randint(len(ids) - CONTEXT, (BATCH,), generator=generator)
        batch = torch.stack([ids[n : n + CONTEXT + 1] for n in at])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step + 1 == steps:
            print(f"{'alibi' if model.alibi else 'sines'}: step {step}, loss {loss.item():.3f}", flush=True)


@torch.inference_mode()
def test(model: Model, ids: Tensor, length: int) -> float:
    """The loss of a character in the unseen text, read in pieces of a length."""
    pieces = ids[: (len(ids) - 1) // length * length]
    losses = []
    for at in range(0, len(pieces), length):
        logits = model(pieces[None, at : at + length])[0]
        losses.append(F.cross_entropy(logits, ids[at + 1 : at + length + 1]).item())
    return sum(losses) / len(losses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=options.count, default=400)
    parser.add_argument("--lengths", type=options.count, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--plot", type=options.written, metavar="FILE", help="write a PNG of the losses")
    a = parser.parse_args()
    source = text()
    alphabet = sorted(set(source))
    ids = torch.tensor([alphabet.index(c) for c in source])
    unseen = len(ids) - 8 * max(a.lengths)
    if unseen < len(ids) // 4:
        parser.error(f"argument --lengths: {max(a.lengths)} is given; 1 to {3 * len(ids) // 32} is accepted, of a text this long")
    losses = {}
    for name in ("alibi", "sines"):
        torch.manual_seed(0)
        model = Model(len(alphabet), name == "alibi")
        train(model, ids[:unseen], a.steps)
        losses[name] = [test(model, ids[unseen:], length) for length in a.lengths]
    print("length " + "".join(f"{n:>8}" for n in a.lengths))
    for name, values in losses.items():
        print(f"{name:<7}" + "".join(f"{x:8.3f}" for x in values))
    if a.plot:
        import matplotlib.pyplot as plt

        for name, values in losses.items():
            plt.semilogx(a.lengths, values, "o-", base=2, label=name)
        plt.axvline(CONTEXT, color="0.5", linestyle=":", label="length in training")
        plt.gca().set(xlabel="characters at once", ylabel="loss of a character (nats)", title="Train short, test long")
        plt.legend()
        plt.savefig(a.plot, dpi=110)
    return (
        0 if a.steps < 100 or (math.isfinite(losses["sines"][-1]) and losses["alibi"][-1] < losses["alibi"][0] + 0.05) else 1
    )


if __name__ == "__main__":
    raise SystemExit(main())
