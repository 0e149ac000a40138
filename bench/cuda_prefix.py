#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_prefix.py: a step of decoding of many sequences that share a prefix, on a GPU: one call over all keys of each, and the
three calls of docs/serving.md, which read the prefix once, on the same page table and in one process.

    python3 bench/cuda_prefix.py LIBSTROBE [--sequences 64] [--own 256] [--prefix 1k,4k,16k,64k] [--page 16]
                                   [--together 64] [--dim 128] [--ms 20]

together: sequences whose rows are one batch entry of the call over the prefix, all by default; kernels for few rows want
fewer. bf16, 32 heads on 8; pages in random order; partial results in fp32. Calls take turns, L2 is flushed before each,
medians. Behind the times: how many times as fast the three calls are, then the error of either (2-norm over sequence 0, against
float64). Needs PyTorch with a GPU (exit 77 otherwise)."""

import argparse
import ctypes as C

from abi import Attention, Paged, Partials, Tensor, Varlen, selected
from cuda_peers import Strobe, medians_ms, number, torch

HEADS, GROUP = 8, 4
FP32, BF16 = 1, 3


class Partial(C.Structure):
    _fields_ = [("out", Tensor), ("lse", Tensor)]


def tensor(x, *stride, dtype=0):
    return Tensor(x.data_ptr(), (C.c_int64 * 3)(*(stride or (0, 0, 0))), dtype, 0)


class Step:
    """Rows, cache and descriptors of a step; whole() and shared() do it."""

    def __init__(self, strobe, sequences, prefix, own, page, together, dim):
        self.strobe, self.sequences, self.dim = strobe, sequences, dim
        prefix_pages, own_pages = prefix // page, own // page
        pages = prefix_pages + sequences * own_pages
        order = torch.randperm(pages, device="cuda").to(torch.int32)
        self.table = torch.cat(
            [order[:prefix_pages].expand(sequences, -1), order[prefix_pages:].view(sequences, -1)], 1
        ).contiguous()
        self.q = torch.randn(sequences, HEADS * GROUP, dim, device="cuda", dtype=torch.bfloat16)
        self.k, self.v = torch.randn(2, pages, page, HEADS, dim, device="cuda", dtype=torch.bfloat16)
        self.out, self.merged = (torch.full_like(self.q, torch.nan) for _ in "ab")
        self.part = torch.full((2, *self.q.shape), torch.nan, device="cuda")
        self.lse = torch.full((2, sequences * HEADS * GROUP), torch.nan, device="cuda")
        lengths = torch.full((2, sequences), prefix + own, dtype=torch.int32, device="cuda")
        lengths[1] = own
        self.keep = [lengths]
        # Structures that descriptors point at.
        self.varlen = [Varlen(struct_size=C.sizeof(Varlen), used_k=x.data_ptr()) for x in lengths]
        stride = self.table.shape[1]
        first = self.table.data_ptr()
        self.paged = [
            Paged(C.sizeof(Paged), at, step, page, pages)
            for at, step in ((first, stride), (first + 4 * prefix_pages, stride), (first, stride * together))
        ]
        self.one = self.attention(sequences, 1, prefix + own, self.out, self.varlen[0], self.paged[0])
        self.over_prefix = self.attention(sequences // together, together, prefix, self.part[0], None, self.paged[2], self.lse[0])
        self.over_own = self.attention(sequences, 1, own, self.part[1], self.varlen[1], self.paged[1], self.lse[1])
        self.parts = (Partial * 2)(
            *(Partial(tensor(part), tensor(lse)) for part, lse in zip(self.part, self.lse, strict=True))
        )
        self.partials = Partials(
            struct_size=C.sizeof(Partials),
            batch=sequences,
            seq_q=1,
            heads_q=HEADS * GROUP,
            dim_v=dim,
            count=2,
            parts=C.cast(self.parts, C.c_void_p).value,
            out=tensor(self.merged, dtype=BF16),
            device=1,
        )
        self.work = [strobe.workspace(a) for a in (self.one, self.over_prefix, self.over_own)]

    def attention(self, batch, rows, keys, out, varlen, paged, lse=None):
        a = Attention(
            struct_size=C.sizeof(Attention),
            batch=batch,
            seq_q=rows,
            seq_k=keys,
            heads_q=HEADS * GROUP,
            heads_kv=HEADS,
            dim=self.dim,
            dtype=BF16,
            device=1,
        )
        a.q, a.k, a.v = tensor(self.q), tensor(self.k), tensor(self.v)
        a.out = tensor(out, dtype=FP32 if lse is not None else BF16)
        a.varlen, a.paged = varlen and C.addressof(varlen), C.addressof(paged)
        if lse is not None:  # [sequences][HEADS * GROUP]
            a.lse = tensor(lse, rows * HEADS * GROUP, HEADS * GROUP, 1)
        return a

    def whole(self):
        self.strobe.forward(self.one, self.work[0])

    def prefix(self):
        self.strobe.forward(self.over_prefix, self.work[1])

    def own(self):
        self.strobe.forward(self.over_own, self.work[2])

    def merge(self):
        self.strobe.check(
            self.strobe.lib.strobe_merge(C.byref(self.partials), C.c_void_p(torch.cuda.current_stream().cuda_stream))
        )

    def shared(self):
        self.prefix(), self.own(), self.merge()

    def errors(self):
        """Of sequence 0, one call's and the three calls'."""
        k, v = (x[self.table[0].long()].flatten(0, 1).double().repeat_interleave(GROUP, 1) for x in (self.k, self.v))
        p = (torch.einsum("hd,khd->hk", self.q[0].double(), k) / self.dim**0.5).softmax(-1)
        right = torch.einsum("hk,khd->hd", p, v)
        return [((x[0].double() - right).norm() / right.norm()).item() for x in (self.out, self.merged)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--own", type=number, default=256)
    parser.add_argument("--prefix", default="1k,4k,16k,64k", type=lambda text: list(map(number, text.split(","))))
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--together", type=int)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--ms", type=float, default=20)
    o = parser.parse_args()
    strobe = Strobe(o.library, None)
    torch.manual_seed(0)
    print(
        f"{o.sequences} sequences, {o.own} keys of their own, pages of {o.page}: us of one call, of three (prefix, own, merge)"
    )
    for prefix in o.prefix:
        step = Step(strobe, o.sequences, prefix, o.own, o.page, o.together or o.sequences, o.dim)
        times = [1e3 * t for t in medians_ms([step.whole, step.shared, step.prefix, step.own, step.merge], o.ms)]
        errors = step.errors()
        parts = ", ".join(f"{t:.0f}" for t in times[2:])
        names = [selected(strobe.lib, a) for a in (step.one, step.over_prefix, step.over_own)]
        print(
            f"prefix {prefix}: {times[0]:.0f}, {times[1]:.0f} ({parts}), {times[0] / times[1]:.2f} times; "
            f"errors {errors[0]:.2e}, {errors[1]:.2e}; {', '.join(names)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
