#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""masks.py LIBSTROBE [--forward] [--bf16] [--dim 128] [--kernel NAME]: boolean masks and block masks on a GPU, as `strobe check` does not ask for them: masks that
hide whole units of 128 x 128 scores, rows that see nothing, NaN in hidden keys, every broadcast, rows of any alignment, and a
graph that is replayed with another mask; in any dQ order, in a fixed one and with lists made before, which must give the same bits
twice. Compared with float64. Exit code 77 without PyTorch or a GPU."""
import ctypes as C
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from abi import Attention, BlockMask, BoolMask, Gradients  # noqa: E402
from cuda_peers import Strobe, torch, view  # noqa: E402  exits with 77 without PyTorch

UNIT = 128


def option(name, kind, default):
    """The values of an option, or what it is without it."""
    return [kind(sys.argv[sys.argv.index(name) + 1])] if name in sys.argv else default


def bool_mask(mask):
    """mask: [batch or 1, heads or 1, rows or 1, keys], of one byte."""
    s = [0 if n == 1 else step for n, step in zip(mask.shape[:3], mask.stride()[:3], strict=True)]
    return BoolMask(C.sizeof(BoolMask), mask.data_ptr(), (C.c_int64 * 3)(*s))


def block_mask(mask, block_q, block_k):
    s = [0 if n == 1 else step for n, step in zip(mask.shape[:3], mask.stride()[:3], strict=True)]
    return BlockMask(C.sizeof(BlockMask), mask.data_ptr(), block_q, block_k, (C.c_int64 * 3)(*s))


class Problem:
    def __init__(self, strobe, batch, heads, rows, keys, dim, dtype=torch.bfloat16, causal=False):
        self.strobe, self.causal = strobe, causal
        make = lambda n: torch.randn(batch, n, heads, dim, device="cuda", dtype=dtype).transpose(1, 2)
        self.q, self.k, self.v, self.dout = make(rows), make(keys), make(keys), make(rows)
        self.out, self.lse = torch.empty_like(self.q), torch.empty(batch, heads, rows, device="cuda")
        self.gradients = [torch.empty_like(x) for x in (self.q, self.k, self.v)]

    def prepare(self, mask=None, blocks=None):
        """blocks: (mask, block_q, block_k)."""
        a = self.strobe.prepare(self.q, self.k, self.v, self.out, self.lse, self.causal)
        self.keep = [bool_mask(mask) if mask is not None else None, block_mask(*blocks) if blocks else None]
        if mask is not None:
            a.bool_mask = C.cast(C.pointer(self.keep[0]), C.c_void_p)
        if blocks:
            a.block_mask = C.cast(C.pointer(self.keep[1]), C.c_void_p)
        g = Gradients(struct_size=C.sizeof(Gradients))
        g.dout, g.dq, g.dk, g.dv = (view(x, True) for x in (self.dout, *self.gradients))
        return a, g

    def for_backward(self, a):
        """A forward's descriptor with the kernel that --kernel names for the backward, if it names one."""
        a, tuning = Attention.from_buffer_copy(a), self.strobe.tuning
        a.tuning = C.pointer(tuning) if tuning and b"backward" in tuning.kernel else None
        return a

    def poison(self):
        for x in (self.out, self.lse, *self.gradients):
            x.fill_(float("nan"))

    def run(self, mask=None, blocks=None, backward=True, fixed=False, lists=False):
        self.poison()
        a, g = self.prepare(mask, blocks)
        a.flags = fixed
        kept = self.strobe.make_lists(a) if lists else None
        work = self.strobe.workspace(a)
        work.fill_(0xFF)
        self.strobe.forward(a, work)
        if backward:
            a = self.for_backward(a)
            work = self.strobe.workspace(a, g)
            work.fill_(0xFF)
            self.strobe.backward(a, g, work)
        torch.cuda.synchronize()
        del kept
        return [x.clone() for x in ([self.out, self.lse, *self.gradients] if backward else [self.out, self.lse])]

    def shown(self, mask=None, blocks=None):
        """Who sees whom, [batch, heads, rows, keys]."""
        rows, keys = self.q.shape[2], self.k.shape[2]
        shown = torch.ones(*self.q.shape[:2], rows, keys, dtype=torch.bool, device="cuda")
        if self.causal:
            shown &= torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril(keys - rows)
        if mask is not None:
            shown &= mask.bool()
        if blocks:
            b = blocks[0].bool().repeat_interleave(blocks[1], 2).repeat_interleave(blocks[2], 3)
            shown &= b[:, :, :rows, :keys]
        return shown

    def truth(self, shown):
        """O, lse, dQ, dK, dV in float64, of keys that nobody sees whatever they hold."""
        leaves = [x.double().nan_to_num(0, 0, 0).requires_grad_() for x in (self.q, self.k, self.v)]
        s = leaves[0] @ leaves[1].transpose(-1, -2) / math.sqrt(self.q.shape[-1])
        lse = s.detach().masked_fill(~shown, -math.inf).logsumexp(-1)
        out = (s.masked_fill(~shown, -1e300).softmax(-1) * shown) @ leaves[2]
        return [out.detach(), lse, *torch.autograd.grad(out, leaves, self.dout.double())]


def error(a, b):
    a, b = a.double(), b.double()
    if a.isnan().any():
        return math.inf
    return ((a - b).norm() / b.norm().clamp(min=1e-3)).item()


def compare(name, problem, mask=None, blocks=None, backward=True):
    want = problem.truth(problem.shown(mask, blocks))
    fixed = problem.run(mask, blocks, backward, fixed=True)
    again = problem.run(mask, blocks, backward, fixed=True, lists=True)
    for x, y in zip(fixed, again, strict=True):
        assert torch.equal(x.view(torch.uint8), y.view(torch.uint8)), (name, "other bits with lists made before")
    for results, how in ((fixed, "fixed order"), (problem.run(mask, blocks, backward), "")):
        judge(f"{name} {how}", problem, want, results, backward)


def judge(name, problem, want, got, backward):
    out, lse, *gradients = got
    assert torch.equal(lse.isinf(), want[1].isinf()), (name, "rows that see nothing")
    seen = ~want[1].isinf()
    errors = [error(out, want[0]), error(lse[seen], want[1][seen])]
    assert (out.transpose(-1, -2).masked_select(~seen[:, :, None]) == 0).all(), (name, "O of such rows")
    if backward:
        errors += [error(x, y) for x, y in zip(gradients, want[2:], strict=True)]
    limits = [4e-3, 1e-4] + 3 * [8e-3]
    print(f"{name:60} " + " ".join(f"{e:.2e}" for e in errors), flush=True)
    assert all(e <= limit for e, limit in zip(errors, limits)), name


def documents(rows, keys, length, shift=0):
    at = lambda n: (torch.arange(n, device="cuda") + shift) // length
    return (at(rows)[:, None] == at(keys)[None, :])[None, None].to(torch.uint8)


def units(shape, density, rows, keys, block=UNIT):
    up = lambda n: -(-n // block)
    return (torch.rand(*shape, up(rows), up(keys), device="cuda") < density).to(torch.uint8)


def cases(strobe, backward):
    for dtype in (torch.bfloat16,) if "--bf16" in sys.argv else (torch.bfloat16, torch.float16):
        for dim in option("--dim", int, (64, 96, 128, 192, 256)):
            for rows, keys, causal in ((512, 512, False), (333, 700, False), (700, 700, True), (1100, 1100, False)):
                p = Problem(strobe, 2, 2, rows, keys, dim, dtype, causal)
                name = f"{str(dtype)[6:]} d{dim} {rows} x {keys}{' causal' if causal else ''}"
                run = lambda what, mask=None, blocks=None: compare(f"{name} {what}", p, mask, blocks, backward)
                run("documents", documents(rows, keys, 128))
                run("documents, shifted", documents(rows, keys, 200, 77))
                run("random", (torch.rand(1, 1, rows, keys, device="cuda") < 0.5).to(torch.uint8))
                run("random [b, h]", (torch.rand(2, 2, rows, keys, device="cuda") < 0.1).to(torch.uint8) * 255)
                run("padding", (torch.arange(keys, device="cuda") < keys - 100).expand(2, 1, 1, keys).to(torch.uint8))
                wide = (torch.rand(2, 1, rows, keys + 37, device="cuda") < 0.5).to(torch.uint8)
                run("of any alignment", wide[..., 5 : 5 + keys])
                run("hides everything", torch.zeros(1, 1, 1, keys, device="cuda", dtype=torch.uint8))
                run("blocks", None, (units((2, 2), 0.3, rows, keys), UNIT, UNIT))
                run("blocks of 256 x 384", None, ((torch.rand(1, 2, 5, 3, device="cuda") < 0.5).to(torch.uint8), 256, 384))
                run("blocks of 64", None, (units((1, 2), 0.3, rows, keys, 64), 64, 64))
                run("both", documents(rows, keys, 200), (units((2, 2), 0.5, rows, keys), UNIT, UNIT))
                run("both, of 64", documents(rows, keys, 200), (units((2, 1), 0.5, rows, keys, 64), 64, 64))
    p = Problem(strobe, 1, 2, 4096, 4096, 128)
    compare("4k documents", p, documents(4096, 4096, 512), None, backward)
    compare("4k blocks", p, None, (units((1, 2), 0.1, 4096, 4096), UNIT, UNIT), backward)


def hidden_nan(strobe, backward):
    """Keys that no row sees, in units that are skipped and in such that are not, may hold anything."""
    for dim in option("--dim", int, (64, 128, 256)):
        p = Problem(strobe, 1, 2, 700, 700, dim)
        mask = documents(700, 700, 200)
        mask[..., 130:140] = 0
        mask[..., 256:400] = 0
        p.k[:, :, 256:400], p.v[:, :, 130:140] = float("nan"), float("inf")
        p.v[:, :, 300] = float("nan")
        compare(f"NaN in hidden keys, d{dim}", p, mask, None, backward)


def graph(strobe, backward):
    """A graph reads the mask that is there when it runs."""
    p = Problem(strobe, 2, 2, 700, 700, 128)
    mask = documents(700, 700, 200)
    a, g = p.prepare(mask)
    work, back = strobe.workspace(a), p.for_backward(a)
    back_work = strobe.workspace(back, g) if backward else None
    strobe.forward(a, work)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        strobe.forward(a, work)
        if backward:
            strobe.backward(back, g, back_work)
    for length in (64, 300, 128):
        mask.copy_(documents(700, 700, length))
        p.poison()
        captured.replay()
        torch.cuda.synchronize()
        want = p.truth(p.shown(mask))
        got = [p.out, p.lse, *p.gradients] if backward else [p.out, p.lse]
        assert all(error(x, y) < 1e-2 for x, y in zip(got, want)), length
    print("graph: replayed with three masks")


def main():
    strobe, backward = Strobe(sys.argv[1], option("--kernel", str, [None])[0]), "--forward" not in sys.argv
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(0)
    cases(strobe, backward)
    hidden_nan(strobe, backward)
    graph(strobe, backward)
    print("masks: all as they should be")


main()
