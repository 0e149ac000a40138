#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""repeats.py LIBSTROBE [REPEATS]: the backward pass with STROBE_DETERMINISTIC gives the same bits 1000 times over, while another
stream keeps the GPU busy with products of changing sizes, so that blocks of threads start in ever new orders and places. Results
and workspace are poisoned before every call. Exit code 1 where a bit differs, 77 without PyTorch or a GPU."""
import ctypes as C
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from abi import Gradients  # noqa: E402
from cuda_peers import DETERMINISTIC, Strobe, torch, view  # noqa: E402  exits with 77 without PyTorch

# batch, query heads, K/V heads, rows, keys, dim: some fill the GPU twice, some once
SHAPES = ((1, 6, 6, 8192, 8192, 64), (1, 4, 4, 8192, 8192, 128), (1, 2, 2, 8192, 8192, 256), (2, 8, 2, 1999, 2333, 128),
          (3, 3, 3, 1024, 777, 64), (1, 8, 4, 1500, 1500, 192))


class Neighbour:
    """A stream of its own, with work of changing length."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.matrices = [torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for n in (256, 512, 1024, 2048)]

    def work(self):
        with torch.cuda.stream(self.stream):
            for _ in range(random.randint(0, 3)):
                matrix = random.choice(self.matrices)
                matrix @ matrix


def descriptors(strobe, shape, causal):
    batch, heads, heads_kv, rows, keys, dim = shape
    q, dout, out = (torch.randn(batch, rows, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in "qdo")
    k, v = (torch.randn(batch, keys, heads_kv, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in "kv")
    lse, results = torch.empty(batch, heads, rows, device="cuda"), [torch.empty_like(x) for x in (q, k, v)]
    a = strobe.prepare(q, k, v, out, lse, causal)
    strobe.forward(a, strobe.workspace(a))
    a.flags = DETERMINISTIC
    g = Gradients(struct_size=C.sizeof(Gradients))
    g.dout, g.dq, g.dk, g.dv = (view(x, True) for x in (dout, *results))
    return a, g, results, (q, k, v, dout, out, lse)


def differences(strobe, neighbour, shape, causal, repeats):
    """How many of the calls gave other bits than the first."""
    a, g, results, _kept = descriptors(strobe, shape, causal)
    workspace, first = strobe.workspace(a, g), None
    different = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(repeats):
        workspace.fill_(255)
        for x in results:
            x.fill_(float("nan"))
        neighbour.work()
        strobe.backward(a, g, workspace)
        if first is None:
            first = [x.clone() for x in results]
            assert all(x.isfinite().all() for x in first), shape
        different += ~torch.stack([(x == y).all() for x, y in zip(first, results)]).all()
    torch.cuda.synchronize()
    return different.item()


def main():
    if not torch.cuda.is_available():
        sys.exit(77)
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    torch.manual_seed(5)
    strobe, neighbour = Strobe(sys.argv[1], None), Neighbour()
    failed = 0
    for shape in SHAPES:
        for causal in (False, True):
            different = differences(strobe, neighbour, shape, causal, repeats)
            failed += different > 0
            print(f"{'x'.join(map(str, shape))} {'causal' if causal else 'full'}: {different} of {repeats} calls differ", flush=True)
    sys.exit(failed > 0)


main()
