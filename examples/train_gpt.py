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
from functools import partial
from statistics import fmean

import options
import strobe.torch
import torch
import torch.nn.functional as F
from gpt import GPT, SIZE, batches, save, text, write
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def pytorch(*tensors: Tensor, backend: SDPBackend) -> Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*tensors, is_causal=True)


ATTENTION = {
    "strobe": partial(strobe.torch.scaled_dot_product_attention, is_causal=True),
    "torch flash": partial(pytorch, backend=SDPBackend.FLASH_ATTENTION),
    "torch math": partial(pytorch, backend=SDPBackend.MATH),
}


def train(name: str, ids: Tensor, characters: int, steps: int) -> tuple[list[float], float, GPT]:
    """Loss of each step, seconds, and the model, which is as large as the device of ids allows."""
    device, size = ids.device.type, SIZE[ids.device.type]
    torch.manual_seed(0)
    model = GPT(characters, size, ATTENTION[name]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, size.rate, total_steps=steps)
    losses, start = [], time.perf_counter()
    for step, batch in enumerate(batches(ids, size, steps)):
        with torch.autocast(device, size.dtype, enabled=size.dtype != torch.float32):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"{name:<12} step {step:4d}  loss {losses[-1]:.4f}  {time.perf_counter() - start:6.1f} s", flush=True)
    return losses, time.perf_counter() - start, model


def plot(losses: dict[str, list[float]], path: str) -> None:
    import matplotlib.pyplot as plt

    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 7), sharex=True, height_ratios=(3, 2))
    for (name, values), style, width in zip(losses.items(), ("C0-", "C1--", "C2:"), (3.5, 1.6, 1.6), strict=True):
        upper.plot(values, style, linewidth=width, label=name, alpha=0.9)
        if name != "torch flash":
            off = (abs(x - y) for x, y in zip(values, losses["torch flash"], strict=True))
            lower.semilogy(
                [x or math.nan for x in itertools.accumulate(off, max)], style[:2], label=f"|{name} - torch flash|"
            )
    lower.axhline(2**-22, color="0.5", linewidth=0.8, linestyle=":", label="one rounding of a loss of 2 to 4 in float32")
    upper.set(title="A small GPT: the attention differs, all else is the same", ylabel="loss (nats a character)")
    lower.set(ylim=(1e-8, 1), ylabel="largest difference so far", xlabel="step")
    for axis in (upper, lower):
        axis.legend()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=options.device, metavar="cpu|cuda", default="cpu")
    parser.add_argument("--steps", type=options.count, default=300)
    parser.add_argument("--plot", type=options.written, metavar="FILE", help="write the loss curves as a PNG")
    parser.add_argument("--save", type=options.written, metavar="FILE", help="write the weights of strobe's run as safetensors, for generate.py")
    a = parser.parse_args()
    source = text()
    alphabet = sorted(set(source))
    ids = torch.tensor([alphabet.index(c) for c in source], device=a.device)
    runs = {name: train(name, ids, len(alphabet), a.steps) for name in ATTENTION}
    (theirs, _, their_model), (_, _, model) = runs["torch flash"], runs["strobe"]
    print(f"\n{len(source)} characters, {sum(p.numel() for p in model.parameters())} parameters, {a.steps} steps")
    print("differences from torch flash: loss of step 1, largest loss, mean of the last losses, largest weight")
    print(f"{'attention':<14}{'first loss':>12}{'last losses':>13}{'seconds':>9}   differences")
    found = {}
    for name, (losses, seconds, own) in runs.items():
        off, last = [abs(x - y) for x, y in zip(losses, theirs, strict=True)], -max(a.steps // 10, 1)
        mean, gap = fmean(losses[last:]), abs(fmean(losses[last:]) - fmean(theirs[last:]))
        weight = max((x - y).abs().max().item() for x, y in zip(own.parameters(), their_model.parameters(), strict=True))
        numbers = "  ".join(f"{x:.1e}" for x in (off[0], max(off), gap, weight))
        print(f"{name:<14}{losses[0]:>12.6f}{mean:>13.4f}{seconds:>9.1f}   {numbers}")
        found[name] = off[0], gap, mean
    if a.plot:
        plot({name: run[0] for name, run in runs.items()}, a.plot)
    if a.save:
        save(model, alphabet, a.save)
    written = write(model, ids[:40], 160 if a.steps >= 100 else 20)
    print("\nwritten by the model:", repr("".join(alphabet[n] for n in written)))
    size, (first, gap, mean) = SIZE[a.device], found["strobe"]
    rounding = torch.finfo(size.dtype).eps / math.sqrt(size.batch * size.context)  # each character's, which average out
    same = gap < 0.02 and first < max(1e-5, rounding)
    return 0 if same and (a.steps < 100 or mean < 0.6 * math.log(len(alphabet))) else 1


if __name__ == "__main__":
    sys.exit(main())
