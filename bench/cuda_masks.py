#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_masks.py: what a mask saves: boolean masks, block masks, documents and windows on a GPU, beside FlexAttention and cuDNN
in one process and on the same tensors.

    python3 bench/cuda_masks.py LIBSTROBE [LIBSTROBE ...] [--what fwd,bwd,fixed] [--dim 128] [--seq 4k] [--ms 40] [--lists] [--flex]
                                [--cudnn] [--kernel NAME]

bf16, batch 4, 16 heads. Milliseconds, and the plain call's time over them; calls take turns, L2 is flushed before each, medians.
fixed: the backward with STROBE_DETERMINISTIC. The time of the pass that looks at a mask is part of a call's; with --lists there is
a call too that brings lists, made before. --flex compiles FlexAttention, which takes a minute.
Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C

from abi import BlockMask, BoolMask, Gradients
from cuda_peers import F, SDPBackend, Strobe, attempt, medians_ms, number, sdpa_kernel, torch, view

BATCH, HEADS, UNIT = 4, 16, 128


def steps(mask):
    return (C.c_int64 * 3)(*[0 if n == 1 else step for n, step in zip(mask.shape[:3], mask.stride()[:3], strict=True)])


class Case:
    """A mask: as a boolean tensor, or as one of blocks, or as a window; and as FlexAttention's function."""

    def __init__(self, name, mask=None, blocks=None, window=None, flex=None):
        self.name, self.mask, self.blocks, self.window, self.flex = name, mask, blocks, window, flex


class Call:
    def __init__(self, strobe, tensors, case, what, lists=False):
        q, k, v, dout = tensors
        self.strobe, self.what = strobe, what
        self.out, self.lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
        a = self.a = strobe.prepare(q, k, v, self.out, self.lse, False)
        self.keep = [tensors, case]
        if case.mask is not None:
            m = BoolMask(C.sizeof(BoolMask), case.mask.data_ptr(), steps(case.mask))
            self.keep.append(m)
            a.bool_mask = C.cast(C.pointer(m), C.c_void_p)
        if case.blocks is not None:
            m = BlockMask(C.sizeof(BlockMask), case.blocks.data_ptr(), UNIT, UNIT, steps(case.blocks))
            self.keep.append(m)
            a.block_mask = C.cast(C.pointer(m), C.c_void_p)
        if case.window:
            a.mask, a.window_left, a.window_right = 4, case.window, 0
        a.flags = what == "fixed"
        if lists:
            self.keep.append(strobe.make_lists(a))
        self.work = strobe.workspace(a)
        self.strobe.forward(a, self.work)
        if what != "fwd":
            if strobe.tuning:
                a.tuning = C.pointer(strobe.tuning) if b"backward" in strobe.tuning.kernel else None
            self.gradients = [torch.empty_like(x) for x in (q, k, v)]
            self.g = Gradients(struct_size=C.sizeof(Gradients))
            self.g.dout, self.g.dq, self.g.dk, self.g.dv = (view(x, True) for x in (dout, *self.gradients))
            self.work = strobe.workspace(a, self.g)

    def __call__(self):
        if self.what == "fwd":
            self.strobe.forward(self.a, self.work)
        else:
            self.strobe.backward(self.a, self.g, self.work)


def cases(seq):
    at = torch.arange(seq, device="cuda")
    document = at // (seq // 8)
    same = (document[:, None] == document[None, :])[None, None]
    units = torch.rand(BATCH, HEADS, seq // UNIT, seq // UNIT, device="cuda") < 0.1
    random = torch.rand(1, 1, seq, seq, device="cuda") < 0.5
    starts = torch.tensor([0, 0.06, 0.2, 0.23, 0.45, 0.5, 0.71, 0.9], device="cuda") * seq
    uneven = torch.searchsorted(starts.int(), at.int(), right=True)
    ragged = (uneven[:, None] == uneven[None, :])[None, None]
    byte = lambda mask: mask.to(torch.uint8).contiguous()
    yield Case("plain")
    yield Case("8 documents, mask [1, 1, s, s]", byte(same), flex=lambda b, h, i, j: document[i] == document[j])
    yield Case("8 documents, mask [b, 1, s, s]", byte(same.expand(BATCH, 1, seq, seq)))
    yield Case("8 documents of unequal length", byte(ragged), flex=lambda b, h, i, j: uneven[i] == uneven[j])
    yield Case("causal, as a mask", byte((at[:, None] >= at[None, :])[None, None]), flex=lambda b, h, i, j: i >= j)
    yield Case("90 % of 128 x 128 blocks hidden", blocks=byte(units),
               flex=lambda b, h, i, j: units[b, h, i // UNIT, j // UNIT])
    yield Case("causal window of 1024", window=1024, flex=lambda b, h, i, j: (i >= j) & (i - j <= 1024))
    yield Case("random mask [1, 1, s, s]", byte(random), flex=lambda b, h, i, j: random[0, 0, i, j])
    yield Case("padding [b, 1, 1, s], 3/4", byte((at < seq * 3 // 4).expand(BATCH, 1, 1, seq)))


def flex_call(case, tensors, what, seq):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q, k, v, dout = tensors
    mask = create_block_mask(case.flex, BATCH, HEADS, seq, seq, device="cuda", _compile=True) if case.flex else None
    compiled = torch.compile(flex_attention, dynamic=False)
    if what == "fwd":
        return lambda: compiled(q, k, v, block_mask=mask)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = compiled(*leaves, block_mask=mask)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def cudnn_call(case, tensors, what):
    q, k, v, dout = tensors
    mask = None if case.mask is None else case.mask.bool().expand(BATCH, 1, q.shape[2], q.shape[2])
    def forward(*x):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*x, attn_mask=mask)
    if what == "fwd":
        return lambda: forward(q, k, v)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = forward(*leaves)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+")
    parser.add_argument("--what", default="fwd,bwd")
    parser.add_argument("--dim", default="128")
    parser.add_argument("--seq", default="4k")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--kernel")
    parser.add_argument("--lists", action="store_true")
    parser.add_argument("--flex", action="store_true")
    parser.add_argument("--cudnn", action="store_true")
    options = parser.parse_args()
    libraries = [Strobe(path, options.kernel) for path in options.library]
    torch.manual_seed(0)
    for dim in map(int, options.dim.split(",")):
        for seq in map(number, options.seq.split(",")):
            shape = (BATCH, seq, HEADS, dim)
            tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)]
            for what in options.what.split(","):
                plain = None
                for case in cases(seq):
                    calls = [Call(s, tensors, case, what) for s in libraries]
                    names = [f"strobe {n + 1}" for n in range(len(calls))]
                    if options.lists and (case.mask is not None or case.blocks is not None):
                        calls.append(Call(libraries[0], tensors, case, what, True)), names.append("lists")
                    if options.flex and (case.flex or case.name == "plain"):
                        calls.append(attempt(flex_call, case, tensors, what, seq)), names.append("flex")
                    if options.cudnn and case.blocks is None and not case.window:
                        calls.append(attempt(cudnn_call, case, tensors, what)), names.append("cudnn")
                    pairs = [(n, c) for n, c in zip(names, calls, strict=True) if c]
                    times = medians_ms([c for _, c in pairs], options.ms)
                    plain = plain or times[0]
                    print(f"{what} d{dim} {seq} {case.name:34} " +
                          "  ".join(f"{n} {t:.3f} ms ({plain / t:.2f}x)" for (n, _), t in zip(pairs, times, strict=True)), flush=True)


main()
