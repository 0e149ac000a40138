#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_prefill.py: chunked prefill: some rows at the end of a long sequence, K and V in pages, beside the same call on contiguous K
and V, in one process.

    python3 bench/cuda_prefill.py LIBSTROBE [--rows 512,2k,4k] [--keys 8k,32k,128k] [--pages 16,64,256] [--dim 128] [--heads 32/8]
                                [--layout slots|heads] [--full] [--kernel NAME] [--ms 40]

bf16, one sequence, causal (bottom-right) but for --full; pages lie in memory in a random order. The length is that of used_k, 51
below the bound, and in pages every slot past it holds NaN. TFLOP/s of the contiguous call, and of each page size the share of that
speed: medians, calls take turns, L2 flushed before each. Behind it the relative error (2-norm, against float64) of the last 64 rows
of one head, contiguous and, of all page sizes, the largest; bits: whether all results of pages are the contiguous one's, bit for bit.
--layout: [pages, slots, heads, dim] or [pages, heads, slots, dim]. Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C
import math
import sys

from abi import Paged, Varlen
from cuda_peers import Strobe, medians_ms, number, torch

UNUSED = 51


class Call:
    """One call: `page` 0 is contiguous."""

    def __init__(self, strobe, q, k, v, used, causal, page=0, by_heads=False):
        self.strobe, self.out, lse = strobe, torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
        self.lengths = torch.full((1,), used, dtype=torch.int32, device="cuda")
        self.varlen = Varlen(struct_size=C.sizeof(Varlen), used_k=self.lengths.data_ptr(), index_bits=32)
        count = -(-k.shape[2] // page) if page else 0
        order = torch.randperm(count, device="cuda") if page else None
        in_pages = [paged(x, used, page, order, by_heads) for x in (k, v)] if page else [k, v]
        self.keep = [q, lse, *in_pages]
        self.a = strobe.prepare(q, *in_pages, self.out, lse, causal)
        self.a.seq_k = k.shape[2]
        self.a.varlen = C.cast(C.pointer(self.varlen), C.c_void_p)
        if page:
            self.table = order.to(torch.int32)
            self.pages = Paged(C.sizeof(Paged), self.table.data_ptr(), count, page, count)
            self.a.paged = C.cast(C.pointer(self.pages), C.c_void_p)
        self.work = strobe.workspace(self.a)

    def __call__(self):
        self.strobe.forward(self.a, self.work)


def paged(x, used, page, order, by_heads):
    """[1, heads, keys, dim] as [pages, heads, slots, dim] by strides, NaN past the length."""
    count, heads, dim = len(order), x.shape[1], x.shape[3]
    rows = torch.full((count * page, heads, dim), math.nan, device="cuda", dtype=x.dtype)
    rows[:used] = x[0].transpose(0, 1)[:used]
    shape = (count, heads, page, dim) if by_heads else (count, page, heads, dim)
    to = torch.empty(shape, device="cuda", dtype=x.dtype)
    to = to if by_heads else to.transpose(1, 2)
    to[order] = rows.view(count, page, heads, dim).transpose(1, 2)
    return to


def error(call, q, k, v, used, causal):
    """Of the last 64 rows of the last head."""
    rows, seq = 64, q.shape[2]
    head, group = q.shape[1] - 1, q.shape[1] // k.shape[1]
    x, y, z = q[0, head, -rows:].double(), k[0, head // group, :used].double(), v[0, head // group, :used].double()
    s = x @ y.T / math.sqrt(q.shape[3])
    if causal:
        i = torch.arange(seq - rows, seq, device="cuda")[:, None]
        s = s.masked_fill(torch.arange(used, device="cuda") > i + used - seq, -math.inf)
    right = s.softmax(-1) @ z
    return ((call.out[0, head, -rows:].double() - right).norm() / right.norm()).item()


def row(strobe, options, rows, keys, dim):
    heads, kv_heads = map(int, options.heads.split("/"))
    used, causal = keys - UNUSED, not options.full
    q, k, v = (torch.randn(1, n, h, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
               for n, h in ((rows, heads), (keys, kv_heads), (keys, kv_heads)))
    sizes = [int(size) for size in options.pages.split(",")]
    calls = [Call(strobe, q, k, v, used, causal, page, options.layout == "heads") for page in [0, *sizes]]
    for call in calls:
        call.out.fill_(math.nan)
        call()
    same = all(torch.equal(call.out, calls[0].out) for call in calls[1:])
    errors = [error(call, q, k, v, used, causal) for call in calls]
    times = medians_ms(calls, options.ms)
    flop = 4 * heads * dim * rows * (used - (rows - 1) / 2 if causal else used)
    print(f"d{dim:<3} {rows:5} x {keys:6}: {flop / times[0] / 1e9:6.1f}  " +
          "  ".join(f"pages of {size}: {times[0] / t:.3f}" for size, t in zip(sizes, times[1:], strict=True)) +
          f"  error {errors[0]:.3e} {max(errors[1:]):.3e}  bits {'equal' if same else 'differ'}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--rows", default="512,2k,4k")
    parser.add_argument("--keys", default="8k,32k,128k")
    parser.add_argument("--pages", default="16,64,256")
    parser.add_argument("--dim", default="128")
    parser.add_argument("--heads", default="32/8")
    parser.add_argument("--layout", default="slots", choices=("slots", "heads"))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--kernel")
    parser.add_argument("--ms", type=float, default=40)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    strobe = Strobe(options.library, options.kernel)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for dim in options.dim.split(","):
        for rows in options.rows.split(","):
            for keys in options.keys.split(","):
                row(strobe, options, number(rows), number(keys), int(dim))


if __name__ == "__main__":
    main()
