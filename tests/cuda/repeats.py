#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""repeats.py LIBSTROBE [REPEATS]: the backward pass with STROBE_DETERMINISTIC gives the same bits 1000 times over, while another
stream keeps the GPU busy with products of changing sizes, so that blocks of threads start in ever new orders and places; and a
tenth as often two such passes at once, each of which has a part of the GPU. Results and workspace are poisoned before every
call. Full, causal, and with a block mask that hides most, whose tiles wait for fewer others. Then, without that flag, calls whose tiles fill the GPU several times,
in which only the first tile of a block of rows has its turn: dK and dV have the same bits, and dQ the same numbers but for the order of sums. Exit code 1 where
they have not, 77 without PyTorch or a GPU."""
import ctypes as C
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from abi import BlockMask, Gradients  # noqa: E402
from cuda_peers import DETERMINISTIC, Strobe, torch, view  # noqa: E402  exits with 77 without PyTorch

# batch, query heads, K/V heads, rows, keys, dim: some fill the GPU several times, some once
SHAPES = ((1, 6, 6, 8192, 8192, 64), (1, 4, 4, 8192, 8192, 128), (1, 2, 2, 8192, 8192, 256), (2, 8, 2, 1999, 2333, 128),
          (3, 3, 3, 1024, 777, 64), (1, 8, 4, 1500, 1500, 192), (16, 16, 16, 512, 512, 128))

ANY_ORDER = ((32, 16, 16, 512, 512, 128), (9, 80, 80, 200, 300, 64), (16, 8, 8, 1024, 1024, 256), (4, 16, 16, 2048, 2048, 128),
             (7, 24, 24, 777, 777, 192))


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


def hide_most(a, rows, keys):
    """Gives a call a block mask, the same for all heads, that shows a third of its blocks; returns what has to be kept."""
    blocks = (torch.rand(-(-rows // 128), -(-keys // 128), device="cuda") < 0.3).to(torch.uint8)
    mask = BlockMask(C.sizeof(BlockMask), blocks.data_ptr(), 128, 128, (C.c_int64 * 3)(0, 0, blocks.stride(0)))
    a.block_mask = C.cast(C.pointer(mask), C.c_void_p)
    return blocks, mask


def descriptors(strobe, shape, sees, flags):
    batch, heads, heads_kv, rows, keys, dim = shape
    q, dout, out = (torch.randn(batch, rows, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in "qdo")
    k, v = (torch.randn(batch, keys, heads_kv, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in "kv")
    lse, results = torch.empty(batch, heads, rows, device="cuda"), [torch.empty_like(x) for x in (q, k, v)]
    a = strobe.prepare(q, k, v, out, lse, sees == "causal")
    masks = hide_most(a, rows, keys) if sees == "masked" else ()
    strobe.forward(a, strobe.workspace(a))
    a.flags = flags
    g = Gradients(struct_size=C.sizeof(Gradients))
    g.dout, g.dq, g.dk, g.dv = (view(x, True) for x in (dout, *results))
    return a, g, results, (q, k, v, dout, out, lse, *masks)


class Backward:
    """A problem's backward pass on the current stream, whose results are compared with those of its first call."""

    def __init__(self, strobe, shape, sees, flags=DETERMINISTIC):
        self.strobe, self.shape, self.in_order = strobe, shape, flags == DETERMINISTIC
        self.a, self.g, self.results, self.kept = descriptors(strobe, shape, sees, flags)
        self.workspace, self.first = strobe.workspace(self.a, self.g), None
        self.different = torch.zeros((), device="cuda", dtype=torch.int64)

    def call(self):
        self.workspace.fill_(255)
        for x in self.results:
            x.fill_(float("nan"))
        self.strobe.backward(self.a, self.g, self.workspace)
        if self.first is None:
            self.first = [x.clone() for x in self.results]
            assert all(x.isfinite().all() for x in self.first), self.shape
        same = [self.same(x, y, n == 0 and not self.in_order) for n, (x, y) in enumerate(zip(self.first, self.results))]
        self.different += ~torch.stack(same).all()

    @staticmethod
    def same(x, y, in_any_order):
        """Whether all bits are the same; of sums in any order all numbers, but for two roundings and what is lost where terms cancel."""
        return ((x - y).abs() <= x.abs() / 128 + x.float().std() / 1000 if in_any_order else x == y).all()


def differences(strobe, neighbour, shape, sees, repeats, flags=DETERMINISTIC):
    """How many of the calls gave other bits than the first."""
    backward = Backward(strobe, shape, sees, flags)
    for _ in range(repeats):
        neighbour.work()
        backward.call()
    torch.cuda.synchronize()
    return backward.different.item()


def twins(strobe, neighbour, shape, sees, repeats):
    """The same of two passes at a time, on streams of their own: neither has all multiprocessors, and blocks of threads that
    wait for a turn must not keep those away that they wait for."""
    pair = [Backward(strobe, shape, sees) for _ in "ab"]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in pair]
    for _ in range(repeats):
        neighbour.work()
        for stream, backward in zip(streams, pair):
            with torch.cuda.stream(stream):
                backward.call()
    torch.cuda.synchronize()
    return sum(backward.different.item() for backward in pair)


def main():
    if not torch.cuda.is_available():
        sys.exit(77)
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    torch.manual_seed(5)
    strobe, neighbour = Strobe(sys.argv[1], None), Neighbour()
    failed = 0
    for shape in SHAPES:
        for sees in ("full", "causal", "masked"):
            for run, calls in ((differences, repeats), (twins, max(repeats // 10, 1))):
                different = run(strobe, neighbour, shape, sees, calls)
                failed += different > 0
                name = f"{'x'.join(map(str, shape))} {sees}{' twice at once' * (run is twins)}"
                print(f"{name}: {different} of {calls} calls differ", flush=True)
    for shape in ANY_ORDER:
        for sees in ("full", "causal"):
            different = differences(strobe, neighbour, shape, sees, repeats, 0)
            failed += different > 0
            print(f"{'x'.join(map(str, shape))} {sees}, dQ in any order: {different} of {repeats} calls differ", flush=True)
    sys.exit(failed > 0)


main()
