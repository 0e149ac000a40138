# SPDX-License-Identifier: BSD-3-Clause
"""A small GPT trained from scratch, forward and backward through Strobe's attention and through PyTorch's.

    pip install torch==2.13.0 && pip install matplotlib .
    python examples/train_gpt.py --plot train_gpt.png                       about three minutes on two cores
    python examples/train_gpt.py --device cuda --steps 200                  a larger one in bf16, a minute on an H200

A character model of the repository's own text, the library's manual (include/strobe/strobe.h) and a page of Pride and Prejudice.
All runs start from the same weights and read the same batches; they differ in the attention alone. Rounding makes any two
correct implementations drift apart, so a third run, with another of PyTorch's own backends, shows how far that is.
"""

import argparse
import itertools
import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

import strobe.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).resolve().parent.parent


class Size(NamedTuple):
    context: int
    width: int
    heads: int
    layers: int
    batch: int
    rate: float  # of learning, at its peak
    dtype: torch.dtype  # of the products; weights, norms and the loss stay in float32


SIZE = {
    "cpu": Size(128, 128, 4, 4, 8, 2e-3, torch.float32),
    "cuda": Size(1024, 512, 4, 6, 16, 1e-3, torch.bfloat16),
}


def with_backend(backend: SDPBackend):
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attention


ATTENTION = {
    "strobe": lambda q, k, v: strobe.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
    "torch flash": with_backend(SDPBackend.FLASH_ATTENTION),
    "torch math": with_backend(SDPBackend.MATH),
}


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual path."""

    def __init__(self, width: int, heads: int, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, width]
        b, s, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)  # views
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, width))
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    """Characters in, logits of the next ones out."""

    def __init__(self, characters: int, size: Size, attention):
        super().__init__()
        self.context = size.context
        self.embed, self.place = nn.Embedding(characters, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads, attention) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, characters, bias=False)

    def forward(self, ids: Tensor, places: Tensor | None = None) -> Tensor:  # [batch, seq] -> [batch, seq, characters]
        place = self.place.weight[: ids.shape[1]] if places is None else self.place(places)  # positions [seq]
        return self.head(self.norm(self.blocks(self.embed(ids) + place)))


def text() -> str:
    files = ("include/strobe/strobe.h", "examples/data/text.txt")
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in files)


def train(name: str, ids: Tensor, characters: int, steps: int) -> tuple[list[float], float, GPT]:
    """Loss of each step, seconds, and the model, which is as large as the device of ids allows."""
    device = ids.device.type
    size = SIZE[device]
    torch.manual_seed(0)
    model = GPT(characters, size, ATTENTION[name]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.rate, total_steps=steps)
    generator = torch.Generator().manual_seed(1)
    losses, start = [], time.perf_counter()
    for step in range(steps):
        at = torch.randint(len(ids) - size.context - 1, (size.batch,), generator=generator)
        batch = torch.stack([ids[n : n + size.context + 1] for n in at])
        with torch.autocast(device, size.dtype, enabled=size.dtype != torch.float32):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0 or step + 1 == steps:
            print(f"{name:<12} step {step:4d}  loss {losses[-1]:.4f}  {time.perf_counter() - start:6.1f} s", flush=True)
    return losses, time.perf_counter() - start, model


@torch.inference_mode()
def write(model: GPT, ids: Tensor, count: int) -> Tensor:
    """The characters that the model goes on with, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            logits = model(ids[None, -model.context :])[0, -1]
        weights = F.softmax(logits.float().cpu() / 0.7, dim=-1)
        ids = torch.cat([ids, torch.multinomial(weights, 1, generator=generator).to(ids.device)])
    return ids


def save(model: GPT, alphabet: list[str], path: str) -> None:
    """The weights as generate.py and generate.c read them, and beside them the characters and the number of heads."""
    from safetensors.torch import save_file

    numbers = {"alphabet": [ord(c) for c in alphabet], "heads": [model.blocks[0].heads]}
    tensors = {name: x.float().contiguous().cpu() for name, x in model.state_dict().items()}
    save_file(tensors | {name: torch.tensor(x, dtype=torch.int32) for name, x in numbers.items()}, path)


def difference(losses: list[float], others: list[float]) -> list[float]:
    return [abs(x - y) for x, y in zip(losses, others, strict=True)]


def plot(losses: dict[str, list[float]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, height_ratios=(3, 2))
    styles = {
        "strobe": ("tab:blue", "-", 3.5),
        "torch flash": ("tab:orange", "--", 1.6),
        "torch math": ("tab:green", ":", 1.6),
    }
    for name, values in losses.items():
        colour, dash, width = styles[name]
        upper.plot(values, dash, color=colour, linewidth=width, label=name, alpha=0.9)
    upper.set_ylabel("loss (nats a character)")
    upper.set_title("A small GPT trained from scratch: the attention differs, all else is the same")
    for name in ("strobe", "torch math"):
        largest = list(itertools.accumulate(difference(losses[name], losses["torch flash"]), max))
        lower.semilogy(
            [x or math.nan for x in largest], color=styles[name][0], linewidth=1.6, label=f"|{name} - torch flash|"
        )
    lower.axhline(2**-22, color="0.5", linewidth=0.8, linestyle=":", label="one rounding of a loss of 2 to 4 in float32")
    lower.set_ylim(1e-8, 1)
    lower.set_ylabel("largest difference so far")
    lower.set_xlabel("step")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SIZE), default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", metavar="FILE", help="write the loss curves as a PNG")
    parser.add_argument("--save", metavar="FILE", help="write the weights of strobe's run as safetensors, for generate.py")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of the mean loss over the last tenth of the steps")
    a = parser.parse_args()

    source = text()
    alphabet = sorted(set(source))
    ids = torch.tensor([alphabet.index(c) for c in source], device=a.device)
    runs = {name: train(name, ids, len(alphabet), a.steps) for name in ATTENTION}
    losses = {name: run[0] for name, run in runs.items()}

    last = max(a.steps // 10, 1)
    print(
        f"\n{len(source)} characters, {sum(p.numel() for p in runs['strobe'][2].parameters())} parameters, {a.steps} steps"
    )
    print(
        f"{'attention':<14}{'first loss':>12}{'last losses':>13}{'seconds':>9}"
        "   differences from torch flash: loss of step 1, largest loss, mean of the last losses, largest weight"
    )
    means = {name: sum(values[-last:]) / last for name, values in losses.items()}
    for name, values in losses.items():
        away = difference(values, losses["torch flash"])
        weights = zip(runs[name][2].parameters(), runs["torch flash"][2].parameters(), strict=True)
        furthest = max((x - y).abs().max().item() for x, y in weights)
        gap = abs(means[name] - means["torch flash"])
        print(
            f"{name:<14}{values[0]:>12.6f}{means[name]:>13.4f}{runs[name][1]:>9.1f}"
            f"   {away[0]:.1e}  {max(away):.1e}  {gap:.1e}  {furthest:.1e}"
        )
    if a.plot:
        plot(losses, a.plot)
    if a.save:
        save(runs["strobe"][2], alphabet, a.save)
    written = write(runs["strobe"][2], ids[:40], 160 if a.steps >= 100 else 20)
    print("\nwritten by the model:", repr("".join(alphabet[n] for n in written)))
    gap = abs(means["strobe"] - means["torch flash"])
    first = abs(losses["strobe"][0] - losses["torch flash"][0])
    size = SIZE[a.device]
    rounding = torch.finfo(size.dtype).eps / math.sqrt(size.batch * size.context)  # each character's, which average out
    learnt = a.steps < 100 or means["strobe"] < 0.6 * math.log(len(alphabet))
    return 0 if gap < a.tolerance and first < max(1e-5, rounding) and learnt else 1


if __name__ == "__main__":
    sys.exit(main())
