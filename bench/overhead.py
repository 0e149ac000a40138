# SPDX-License-Identifier: BSD-3-Clause
"""What strobe.attention costs above the library's own call, on small tensors: reading arguments, tensors in, result out.

    python bench/overhead.py [--device cuda] [--json FILE]

The library's call alone is timed inside the extension, which can repeat it (the difference of many and one). Each figure is the
least of many rounds that take turns: what disturbs a call only ever adds to it. Beside it stands the same in empty calls of the
extension, a unit that other machines share.

A second table has scaled_dot_product_attention, PyTorch's own, strobe.torch's, and PyTorch's after strobe.torch.activate(), of
one head of 16, 64 and 128 rows, 64 wide, in fp32 and bf16, on one thread: forward, and forward with backward. With --device cuda
that table alone, of 16, 128 and 1024 rows, with strobe.torch.attention too: what a call costs the host, the GPU being faster.
"""

import argparse
import json
import sys
import time

import numpy as np
import strobe
from strobe import _strobe

LIMITS = {"numpy": 3.0, "torch": 5.0}  # microseconds: what the project promises
REPEAT = 200


def frameworks() -> dict:
    """Small q, k, v of each framework that is installed: one head of 16 rows, 16 wide."""
    arrays = np.random.default_rng(0).standard_normal((3, 1, 16, 1, 16), dtype=np.float32)
    found = {"numpy": tuple(arrays)}
    try:
        import torch

        found["torch"] = tuple(torch.from_numpy(x) for x in arrays)
    except ImportError:
        pass
    try:
        import jax.numpy as jnp

        found["jax"] = tuple(jnp.asarray(x) for x in arrays)
    except ImportError:
        pass
    return found


def extension(tensors: tuple, repeat: int):
    """The call of the extension as strobe.attention makes it, with the library's call repeated."""
    return lambda: _strobe.attention(*tensors, repeat=repeat)


def microseconds(call, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - start) / count / 1000


def measure(rounds: int) -> dict:
    """Least microseconds of each call over the rounds."""
    calls = {"nothing": (_strobe.nothing, 2000), "python call": (lambda: None, 2000)}
    for name, tensors in frameworks().items():
        calls[name] = (lambda t=tensors: strobe.attention(*t), 200)
        if name != "jax":  # whose arrays are not to be written
            out = strobe.attention(*tensors)
            calls[name + " into out"] = (lambda t=tensors, o=out: strobe.attention(*t, out=o), 200)
    small = frameworks()["numpy"]
    calls["once"], calls["many"] = (extension(small, 1), 200), (extension(small, REPEAT + 1), 5)
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, (call, count) in calls.items():
            least[name] = min(least[name], microseconds(call, count))
    return least


def callers(device: str, dtype: str, rows: int, rounds: int) -> dict:
    """Least microseconds of scaled_dot_product_attention by each way, forward, and forward with backward."""
    import strobe.torch as st
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    options = {"dtype": getattr(torch, dtype), "device": device, "requires_grad": True}
    heads_first = [torch.randn(1, 1, rows, 64, **options) for _ in range(3)]
    heads_last = [torch.randn(1, rows, 1, 64, **options) for _ in range(3)]

    def both(attention, tensors, dout):
        torch.autograd.grad(attention(*tensors), tensors, dout)

    ways = {
        "PyTorch": (F.scaled_dot_product_attention, heads_first, False),
        "strobe.torch": (st.scaled_dot_product_attention, heads_first, False),
        "strobe.torch.attention": (st.attention, heads_last, False),
        "PyTorch, activate()": (F.scaled_dot_product_attention, heads_first, True),
    }
    least = {name: [float("inf")] * 2 for name in ways}
    for _ in range(rounds):
        for name, (attention, tensors, active) in ways.items():
            dout = torch.ones_like(tensors[0])
            if active:
                st.activate()
            with torch.no_grad():
                forward = microseconds(lambda a=attention, t=tensors: a(*t), 30)
            backward = microseconds(lambda a=attention, t=tensors, d=dout: both(a, t, d), 15)
            if device != "cpu":
                torch.cuda.synchronize()
            st.deactivate()
            least[name] = [min(x) for x in zip(least[name], (forward, backward), strict=True)]
    return least


def print_callers(tables: dict) -> None:
    for problem, ways in tables.items():
        print(f"{'scaled_dot_product_attention, ' + problem:<48}{'forward':>10}{'and backward':>15}")
        for name, (forward, both) in ways.items():
            print(f"{name:<48}{forward:>7.2f} us{both:>12.2f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the numbers; - instead of the table")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=60, help="of all calls in turn (60)")
    a = parser.parse_args()
    strobe.set_num_threads(1)
    try:
        ways = {
            f"{dtype}, {n} rows": callers(a.device, dtype, n, a.rounds)
            for dtype in ("float32", "bfloat16")
            for n in ((16, 64, 128) if a.device == "cpu" else (16, 128, 1024))
        }
    except ImportError:
        ways = {}
    if a.device == "cuda":
        print_callers(ways)
        return 0
    least = measure(a.rounds)
    library = (least["many"] - least["once"]) / REPEAT
    rows = {
        name: {
            "total_us": us,
            "overhead_us": us - library,
            "empty_calls": (us - library) / least["nothing"],
            "limit_us": LIMITS.get(name),
        }
        for name, us in least.items()
        if name not in ("nothing", "python call", "once", "many")
    }
    answer = {"callers_us": ways, "empty_call_us": least["nothing"], "library_us": library, "rows": rows}
    if a.json == "-":
        json.dump(answer, sys.stdout, indent=1)
    else:
        print(f"the library's call: {library:.3f} us; an empty call of the extension: {least['nothing']:.3f} us")
        print(f"{'strobe.attention on':<22}{'total':>10}{'overhead':>12}{'empty calls':>14}   promised")
        for name, row in rows.items():
            promise = (
                ""
                if row["limit_us"] is None
                else f"below {row['limit_us']:g} us: {'yes' if row['overhead_us'] < row['limit_us'] else 'NO'}"
            )
            print(
                f"{name:<22}{row['total_us']:>7.2f} us{row['overhead_us']:>9.2f} us{row['empty_calls']:>14.0f}   {promise}"
            )
        print_callers(ways)
    if a.json and a.json != "-":
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump(answer, file, indent=1)
    late = [name for name, row in rows.items() if row["limit_us"] is not None and row["overhead_us"] >= row["limit_us"]]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
