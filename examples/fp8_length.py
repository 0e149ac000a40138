# SPDX-License-Identifier: BSD-3-Clause
"""What FP8 costs by length: the relative error (2-norm, against float64) of attention in bfloat16 and in e4m3, of random tensors
as they are and with rare outliers, as the FlashAttention-3 paper draws them. On a GPU also what it gains: speed beside bfloat16.

    python examples/fp8_length.py --plot fp8_length.png [--device cuda]        about a minute on two cores
"""

import argparse
import statistics

import options
import strobe
import torch

HEADS, DIM, ROWS, TOKENS = 2, 128, 128, 16384
WAYS = {"a scale a head": {"scale_block": (0, 0)}, "Hadamard, scales by blocks": {"hadamard": True}}


def tensors(length: int, outliers: bool, rows: int = ROWS) -> list[torch.Tensor]:
    """q of some rows, k and v: N(0, 1), and with outliers + N(0, 100) Bernoulli(0.001)."""
    generator = torch.Generator().manual_seed(length)
    made = []
    for n in (rows, length, length):
        x = torch.randn(1, n, HEADS, DIM, generator=generator)
        if outliers:
            x += 10 * torch.randn(x.shape, generator=generator) * (torch.rand(x.shape, generator=generator) < 0.001)
        made.append(x.bfloat16())
    return made


def errors(length: int, outliers: bool, device: str) -> dict[str, float]:
    x = tensors(length, outliers)
    truth = strobe.attention(*(t.double() for t in x))
    x = [t.to(device) for t in x]
    results = {"bfloat16": strobe.attention(*x)}
    for way, options in WAYS.items():
        z = strobe.quantise(*x, **options)
        results[way] = strobe.attention(z.q, z.k, z.v, **z.scales)
    return {way: ((out.cpu().double() - truth).norm() / truth.norm()).item() for way, out in results.items()}


def milliseconds(call) -> float:
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def speeds(length: int) -> dict[str, float]:
    """TFLOP/s of self-attention over TOKENS tokens in sequences of a length, 16 heads."""
    q, k, v = (torch.randn(TOKENS // length, length, 16, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    z = strobe.quantise(q, k, v, hadamard=True)

    def both():
        y = strobe.quantise(q, k, v, hadamard=True)
        return strobe.attention(y.q, y.k, y.v, **y.scales)

    calls = {
        "bfloat16": lambda: strobe.attention(q, k, v),
        "e4m3": lambda: strobe.attention(z.q, z.k, z.v, **z.scales),
        "e4m3, quantised in front": both,
    }
    return {name: 4e-9 * TOKENS * length * 16 * DIM / milliseconds(call) for name, call in calls.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=options.device, metavar="cpu|cuda")
    parser.add_argument("--lengths", type=options.count, nargs="+", default=[128, 512, 2048, 8192, 32768])
    parser.add_argument("--plot", type=options.written, metavar="FILE", help="write a PNG of the errors, and of the speeds on a GPU")
    a = parser.parse_args()
    names = ["bfloat16", *WAYS]
    found = {(name, outliers): [] for outliers in (False, True) for name in names}
    print(f"{'relative error':<44}" + "".join(f"{n:>10}" for n in a.lengths))
    for (name, outliers), values in found.items():
        values.extend(errors(length, outliers, a.device)[name] for length in a.lengths)
        print(f"{name + (', outliers' if outliers else ''):<44}" + "".join(f"{x:10.2e}" for x in values), flush=True)
    lengths = [n for n in a.lengths if n >= 512 and TOKENS % n == 0] if a.device == "cuda" else []
    rates = [speeds(length) for length in lengths]
    for name in rates[0] if rates else []:
        print(f"TFLOP/s, {name:<35}" + "".join(f"{x[name]:10.0f}" for x in rates))
    if a.plot:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(1, 2 if rates else 1, figsize=(11 if rates else 6.4, 4.4), squeeze=False)
        for (name, outliers), values in found.items():
            style = "o--" if outliers else "o-"
            axes[0, 0].loglog(
                a.lengths, values, style, base=2, color=f"C{names.index(name)}", label=name + ", outliers" * outliers
            )
        axes[0, 0].set(xlabel="keys", ylabel="relative error", title="What FP8 costs")
        axes[0, 0].set_yscale("log", base=10)
        axes[0, 0].legend(fontsize="small")
        for name in rates[0] if rates else []:
            axes[0, 1].semilogx(lengths, [x[name] for x in rates], "o-", base=2, label=name)
        if rates:
            axes[0, 1].set(xlabel="length", ylabel="TFLOP/s", title="What it gains", ylim=0)
            axes[0, 1].legend(fontsize="small")
        plt.tight_layout()
        plt.savefig(a.plot, dpi=110)
    worst = max(max(values) for (name, _), values in found.items() if name == "Hadamard, scales by blocks")
    return 0 if worst < 0.1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
