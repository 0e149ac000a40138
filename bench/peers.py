# SPDX-License-Identifier: BSD-3-Clause
"""Strobe beside PyTorch's scaled_dot_product_attention, in one process, taking turns.

    python bench/peers.py                                   the CPU's grid: about two minutes
    python bench/peers.py --device cuda --plot peers.png    FlashAttention-2 and cuDNN beside the CUDA kernels
    python bench/peers.py --lengths 1024 --dims 64 --operations forward --json -

Each row is checked first: a contestant whose result is not as near to float64 as plain attention in the same dtype allows gets
no time. Times are medians, with the spread; a ratio is of times of the same round, with its 95 % interval; and a difference is
called one only where it is larger than that of a contestant to itself (bench/timing.py).
"""

import argparse
import io
import json
import os
import platform
import sys
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import strobe
import timing
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FLOP_UNITS = {"cpu": (1e9, "GFLOP/s"), "cuda": (1e12, "TFLOP/s")}
CHECK_LENGTH = 512  # rows and keys at which a contestant is checked; the same kernels, dtype, heads and mask


@dataclass(frozen=True)
class Row:
    """A problem of the grid."""

    operation: str  # forward, backward, decode
    batch: int
    seq_q: int
    seq_k: int
    heads: int
    heads_kv: int
    dim: int
    causal: bool
    dtype: str

    def __str__(self):
        heads = f"{self.heads}" if self.heads == self.heads_kv else f"{self.heads}/{self.heads_kv}"
        mask = " causal" if self.causal else ""
        return f"{self.operation} b={self.batch} h={heads} s={self.seq_k} d={self.dim}{mask} {self.dtype}"

    def work(self, device: str) -> tuple[float, str]:
        """Work of a call, in the unit of its rate: products, or, in a decode step, bytes of K and V."""
        if self.operation == "decode":
            size = torch.finfo(getattr(torch, self.dtype)).bits // 8
            return 2.0 * self.batch * self.seq_k * self.heads_kv * self.dim * size / 1e9, "GB/s"
        flop = 4.0 * self.batch * self.heads * self.seq_q * self.seq_k * self.dim * (0.5 if self.causal else 1)
        scale, unit = FLOP_UNITS[device]
        return flop * (2.5 if self.operation == "backward" else 1) / scale, unit


def grid(a: argparse.Namespace) -> list[Row]:
    """The grid of the FlashAttention papers: tokens a call and hidden size fixed, over lengths, head dims and masks."""
    rows = []
    for operation in a.operations:
        if operation == "decode":
            steps = (
                [(1, 8192), (16, 1024)]
                if a.device == "cpu"
                else [(1, 8192), (1, 131072), (16, 8192), (64, 8192), (128, 4096)]
            )
            rows += [Row("decode", b, 1, s, 32, 8, 128, False, a.dtype) for b, s in steps]
            continue
        for dim in a.dims:
            for causal in (False, True):
                for s in a.lengths:
                    rows.append(
                        Row(operation, max(a.tokens // s, 1), s, s, a.hidden // dim, a.hidden // dim, dim, causal, a.dtype)
                    )
    return rows


def tensors(row: Row, device: str) -> tuple[torch.Tensor, ...]:
    """q, k, v and dout, [batch, seq, heads, dim], standard normal."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = [(row.seq_q, row.heads), (row.seq_k, row.heads_kv), (row.seq_k, row.heads_kv), (row.seq_q, row.heads)]
    return tuple(
        torch.randn(row.batch, s, h, row.dim, generator=generator, device=device).to(getattr(torch, row.dtype))
        for s, h in shapes
    )


def ours(row: Row, q, k, v, dout):
    """The call to be timed, which returns a tuple of results."""
    if row.operation != "backward":
        return lambda: (strobe.attention(q, k, v, causal=row.causal),)
    out, lse = strobe.attention(q, k, v, causal=row.causal, return_lse=True)
    return lambda: strobe.attention_backward(dout, q, k, v, out, lse, causal=row.causal)[:3]


def pytorch(backend: SDPBackend, row: Row, q, k, v, dout):
    """The same by one backend of PyTorch's, in its layout: views of the same memory."""
    q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
    options = {"is_causal": row.causal, "enable_gqa": row.heads != row.heads_kv}

    def forward(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, **options)

    if row.operation != "backward":

        def call():
            with torch.no_grad():
                return (forward(q, k, v).transpose(1, 2),)

        return call
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = forward(*leaves)
    return lambda: tuple(x.transpose(1, 2) for x in torch.autograd.grad(out, leaves, dout, retain_graph=True))


def contestants(device: str) -> dict:
    if device == "cpu":
        return {"strobe": ours, "torch flash": partial(pytorch, SDPBackend.FLASH_ATTENTION)}
    return {
        "strobe": ours,
        "torch flash": partial(pytorch, SDPBackend.FLASH_ATTENTION),
        "torch cudnn": partial(pytorch, SDPBackend.CUDNN_ATTENTION),
    }


def rounding(name: str, right: torch.Tensor, q, k, v, dout) -> float:
    """One rounding of a result, in q's dtype, and of the terms that cancel in a gradient: softmax(s) (dout v - dout out), where
    out has been rounded, times what it is multiplied with (tests/python/reference.py has the same)."""
    eps = torch.finfo(q.dtype).eps
    q, k, v, dout = (x.double().abs().max().item() for x in (q, k, v, dout.sum(-1)))
    cancelling = eps * dout * v / right.shape[-1] ** 0.5
    terms = {"out": 0.0, "dq": cancelling * k, "dk": cancelling * q, "dv": eps * dout}
    return eps * right.abs().max().item() + terms[name]


def wrong(row: Row, make, device: str) -> str | None:
    """Why a contestant gets no time: it refuses, or is further from float64 than twice what plain attention in the dtype is."""
    short = Row(**asdict(row) | {"batch": 1, "seq_q": min(row.seq_q, CHECK_LENGTH), "seq_k": min(row.seq_k, CHECK_LENGTH)})
    given = tensors(short, device)
    try:
        results = make(short, *given)()
        make(row, *tensors(row, device))  # that it takes the row itself, too
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"refuses: {str(error).splitlines()[0]}"
    truth = pytorch(SDPBackend.MATH, short, *(x.double() for x in given))()
    plain = pytorch(SDPBackend.MATH, short, *given)()
    names = ("out",) if len(results) == 1 else ("dq", "dk", "dv")
    for name, got, right, theirs in zip(names, results, truth, plain, strict=True):
        error = (got.double() - right).abs().max().item()
        bound = 2 * (theirs.double() - right).abs().max().item() + 2 * rounding(name, right, *given)
        if not error <= bound:
            return f"wrong: {name} is off by {error:.1e}, {bound:.1e} is accepted"
    return None


def cuda_clock(call, count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def measure(row: Row, a: argparse.Namespace) -> dict:
    """A row's entry in the answer: for each contestant its time and rate or why it has none, and the ratios."""
    makers, refused = {}, {}
    for name, make in contestants(a.device).items():
        reason = wrong(row, make, a.device)
        if reason:
            refused[name] = reason
        else:
            makers[name] = make
    entry = {"problem": str(row), **asdict(row), "refused": refused, "contestants": {}}
    if not makers:
        return entry
    given = tensors(row, a.device)
    calls = {name: make(row, *given) for name, make in makers.items()}
    clock = timing.wall_clock if a.device == "cpu" else cuda_clock
    contest = timing.contest(calls, a.seconds, clock, pause=0.003 if a.device == "cpu" else 0.0)
    work, unit = row.work(a.device)
    for name in calls:
        ms = contest.median(name) * 1e3
        entry["contestants"][name] = {"ms": ms, "spread": contest.spread(name), "rate": work / ms * 1e3, "unit": unit}
        if name != "strobe" and "strobe" in calls:
            ratio, low, high = contest.ratio(name)
            entry["contestants"][name] |= {"ratio": ratio, "low": low, "high": high, "strobe_is": contest.verdict(name)}
    entry["rounds"], entry["noise"] = len(contest.again), contest.noise()
    return entry


def peak(device: str) -> float:
    """Rate of a matrix product, in the device's unit: before and after, whether the machine stayed as it was."""
    n = 1536 if device == "cpu" else 8192
    x = torch.randn(n, n, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    contest = timing.contest({"x": lambda: x @ x}, 0.3, timing.wall_clock if device == "cpu" else cuda_clock)
    return 2 * n**3 / contest.median("x") / FLOP_UNITS[device][0]


def machine(a: argparse.Namespace) -> dict:
    device = strobe.devices()[0]
    about = {"strobe": strobe.build_info(), "torch": torch.__version__, "python": platform.python_version()}
    if a.device == "cpu":
        return about | {"device": device.name, "level": device.level, "threads": a.threads, "load": os.getloadavg()[0]}
    about["device"] = torch.cuda.get_device_name()
    try:
        about["clock_mhz"] = torch.cuda.clock_rate()
    except Exception:  # needs a package of NVIDIA's
        about["clock_mhz"] = None
    return about


def line(entry: dict) -> str:
    cells = [f"{entry['problem']:<48}"]
    for name, c in entry["contestants"].items():
        cell = f"{name} {c['ms']:9.3f} ms +-{100 * c['spread']:3.0f}% {c['rate']:8.1f} {c['unit']}"
        if "ratio" in c:
            word = {"faster": "strobe faster", "slower": "strobe slower", "same": "within noise"}[c["strobe_is"]]
            cell += f" {c['ratio']:5.2f}x [{c['low']:.2f}, {c['high']:.2f}] {word}"
        cells.append(cell)
    cells += [f"{name} {reason}" for name, reason in entry["refused"].items()]
    return " | ".join(cells)


def plot(answer: dict, path: str) -> None:
    """A panel for each operation, head dim and mask: the rate over the length, with the spread."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "strobe"  # the same numbers give the same bytes

    rows = [row for row in answer["rows"] if row["operation"] != "decode" and row["contestants"]]
    panels = sorted({(r["operation"], r["dim"], r["causal"]) for r in rows}, key=lambda p: (p[0] != "forward", p[1], p[2]))
    columns = 2 if len(panels) == 4 else min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.6 * columns, 3.0 * lines), squeeze=False, sharex=True)
    for panel, axis in zip(panels, axes.flat, strict=False):
        chosen = [r for r in rows if (r["operation"], r["dim"], r["causal"]) == panel]
        for name in dict.fromkeys(n for r in chosen for n in r["contestants"]):
            points = [(r["seq_k"], r["contestants"][name]) for r in chosen if name in r["contestants"]]
            rates = [c["rate"] for _, c in points]
            axis.errorbar(
                [s for s, _ in points],
                rates,
                [c["rate"] * c["spread"] for _, c in points],
                marker="o",
                capsize=3,
                label=name,
            )
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.set_title(f"{panel[0]}, head dim {panel[1]}, {'causal' if panel[2] else 'full'}", fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel(next(iter(rows[0]["contestants"].values()))["unit"])
    for axis in axes[-1]:
        axis.set_xlabel("sequence length")
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    axes[0][0].legend(fontsize=8)
    about = answer["machine"]
    figure.suptitle(f"{about['device']}, {answer['rows'][0]['dtype']}, PyTorch {about['torch']}", fontsize=10)
    figure.tight_layout()
    if not str(path).endswith(".svg"):
        figure.savefig(path, dpi=110)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    lines = (line.rstrip() for line in text.getvalue().splitlines())
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    def words(kind):
        return lambda text: [kind(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--operations", type=words(str), default=["forward", "backward", "decode"], help="some of these, by commas"
    )
    parser.add_argument("--lengths", type=words(int), help="default: 256,1024,4096 on the CPU, 512 to 16384 on CUDA")
    parser.add_argument("--dims", type=words(int), help="default: 64,128 on the CPU, 64,128,256 on CUDA")
    parser.add_argument("--dtype", help="default: float32 on the CPU, bfloat16 on CUDA")
    parser.add_argument("--tokens", type=int, help="a call: default 4096 on the CPU, 16384 on CUDA")
    parser.add_argument("--hidden", type=int, help="heads times head dim: default 512 on the CPU, 2048 on CUDA")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a row, beyond the nine rounds that each takes")
    parser.add_argument("--threads", type=int, default=strobe.get_num_threads(), help="of both, on the CPU")
    parser.add_argument("--json", metavar="FILE", help="write all numbers; - instead of the table")
    parser.add_argument("--plot", metavar="FILE", help="write a chart, as SVG or PNG by the name's end")
    parser.add_argument("--draw", metavar="JSON", help="measure nothing, and plot what an earlier call has written")
    a = parser.parse_args()
    cpu = a.device == "cpu"
    a.lengths = a.lengths or ([256, 1024, 4096] if cpu else [512, 1024, 2048, 4096, 8192, 16384])
    a.dims = a.dims or ([64, 128] if cpu else [64, 128, 256])
    a.dtype = a.dtype or ("float32" if cpu else "bfloat16")
    a.tokens, a.hidden = a.tokens or (4096 if cpu else 16384), a.hidden or (512 if cpu else 2048)
    return a


def main() -> int:
    a = arguments()
    if a.draw:
        plot(json.loads(Path(a.draw).read_text(encoding="utf-8")), a.plot)
        return 0
    if a.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here")
        return 77
    warnings.filterwarnings("ignore", module="torch")
    torch.set_num_threads(a.threads)
    strobe.set_num_threads(a.threads)
    table = a.json != "-"
    answer = {"machine": machine(a), "peak": [peak(a.device)], "rows": []}
    if table:
        print(" ".join(f"{key}={value!r}" for key, value in answer["machine"].items()))
        print(f"matrix product before: {answer['peak'][0]:.0f} {FLOP_UNITS[a.device][1]}")
    for row in grid(a):
        answer["rows"].append(measure(row, a))
        if table:
            print(line(answer["rows"][-1]), flush=True)
    answer["peak"].append(peak(a.device))
    drift = abs(answer["peak"][1] / answer["peak"][0] - 1)
    if table:
        print(f"matrix product after: {answer['peak'][1]:.0f} {FLOP_UNITS[a.device][1]}")
    if drift > 0.1:
        print(f"the machine's speed changed by {100 * drift:.0f} % meanwhile: compare within rows only", file=sys.stderr)
    if a.json:
        with sys.stdout if a.json == "-" else open(a.json, "w", encoding="utf-8") as file:
            print(json.dumps(answer, indent=1), file=file)
    if a.plot:
        plot(answer, a.plot)
    return 1 if any("wrong" in reason for row in answer["rows"] for reason in row["refused"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
