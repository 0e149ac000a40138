#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_latent.py: decoding of multi-head latent attention on a GPU: Strobe's kernel for it beside its general forward, in one
process and on the same tensors.

    python3 bench/cuda_latent.py LIBSTROBE... [--ms 40] [--only WORD] [--kernels cuda_latent_sm90,cuda_forward_sm80]

bf16, dim 576, V the first 512 columns of K, one K/V head. Slots past a length hold NaN. TFLOP/s of all query heads, and TB/s of K,
of each kernel of each library. Calls take turns, L2 is flushed before each, medians. Error: 2-norm of the difference to float64, over some sequences and heads,
relative; outputs and workspaces are poisoned before. Needs PyTorch with a GPU (exit 77 otherwise)."""

import argparse
import ctypes as C
import itertools
import math
import random
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

from abi import Paged, Tuning, Varlen
from cuda_peers import Strobe, medians_ms, view

DIM, DIM_V = 576, 512


def cases():
    """Name, lengths, query heads, tokens, slots of a page or 0."""
    draw = random.Random(7)
    drawn = [draw.randint(1024, 16384) for _ in range(64)]
    yield "64 x 8192, 128 heads", [8192] * 64, 128, 1, 64
    yield "64 x 8192, 16 heads", [8192] * 64, 16, 1, 64
    for batch in (1, 16):
        yield f"{batch} x 8192, 128 heads", [8192] * batch, 128, 1, 64
        yield f"{batch} x 8192, 16 heads", [8192] * batch, 16, 1, 64
    yield "64 of 1k..16k, 128 heads", drawn, 128, 1, 64
    yield "64 of 1k..16k, 16 heads", drawn, 16, 1, 64
    yield "64 x 8192, 128 heads, contiguous", [8192] * 64, 128, 1, 0
    yield "64 x 8192, 128 heads, pages of 16", [8192] * 64, 128, 1, 16
    yield "64 x 8192, 128 heads, 2 tokens", [8192] * 64, 128, 2, 64
    yield "64 x 8192, 64 heads", [8192] * 64, 64, 1, 64


def cache(lengths, page):
    """Slots with their table, and each sequence's keys; without pages the table is None."""
    longest, device, dtype = max(lengths), "cuda", torch.bfloat16
    keys = [torch.randn(n, DIM, device=device, dtype=dtype) for n in lengths]
    if not page:
        slots = torch.full((len(lengths), longest, 1, DIM), math.nan, device=device, dtype=dtype)
        for b, x in enumerate(keys):
            slots[b, : len(x), 0] = x
        return slots, None, keys
    counts = [-(-n // page) for n in lengths]
    order = torch.randperm(sum(counts), device=device)
    table = torch.full((len(lengths), max(counts)), 2**30, dtype=torch.int32, device=device)
    slots = torch.full((sum(counts), page, 1, DIM), math.nan, device=device, dtype=dtype)
    first = 0
    for b, (x, count) in enumerate(zip(keys, counts, strict=True)):
        mine = order[first : first + count]
        first += count
        table[b, :count] = mine.int()
        whole = torch.full((count * page, DIM), math.nan, device=device, dtype=dtype)
        whole[: len(x)] = x
        slots[mine, :, 0] = whole.view(count, page, DIM)
    return slots, table, keys


def wrong(q, keys, out, causal):
    """Of some sequences and heads: relative 2-norm of the difference to float64. q, out: [batch, heads, tokens, columns]."""
    above = below = 0.0
    tokens = q.shape[2]
    for b in sorted({0, len(keys) // 2, len(keys) - 1}):
        k = keys[b].double()
        for h in range(0, q.shape[1], 7):
            scores = q[b, h].double() @ k.T / math.sqrt(DIM)
            if causal:
                rows, columns = torch.arange(tokens, device="cuda")[:, None], torch.arange(len(k), device="cuda")
                scores = scores.masked_fill(columns > rows + len(k) - tokens, -math.inf)
            right = scores.softmax(-1) @ k[:, :DIM_V]
            above += (out[b, h].double() - right).square().sum().item()
            below += right.square().sum().item()
    return math.sqrt(above / below)


def run(libraries, name, lengths, heads, tokens, page, options):
    batch, device = len(lengths), "cuda"
    q = torch.randn(batch, heads, tokens, DIM, device=device, dtype=torch.bfloat16)
    out = torch.empty(batch, tokens, heads, DIM_V, device=device, dtype=torch.bfloat16).transpose(1, 2)
    lse = torch.empty(batch, heads, tokens, device=device)
    slots, table, keys = cache(lengths, page)
    like = torch.empty(batch, 1, max(lengths), DIM, device="meta", dtype=torch.bfloat16)
    a = libraries[0].prepare(q, like, like[..., :DIM_V], out, lse, tokens > 1)
    a.k = a.v = view(slots, False)
    used = torch.tensor(lengths, dtype=torch.int32, device=device)
    varlen = Varlen(struct_size=C.sizeof(Varlen), used_k=used.data_ptr())
    a.varlen = C.cast(C.pointer(varlen), C.c_void_p)
    keep = [used, varlen, slots, table]
    if page:
        paged = Paged(C.sizeof(Paged), table.data_ptr(), table.shape[1], page, slots.shape[0])
        a.paged = C.cast(C.pointer(paged), C.c_void_p)
        keep.append(paged)
    calls, errors = [], []
    for strobe, kernel in itertools.product(libraries, options.kernels.split(",")):
        tuning = Tuning(C.sizeof(Tuning), kernel.encode(), 0)
        a.tuning = C.pointer(tuning)
        work = strobe.workspace(a)
        work.fill_(0xFF)
        out.fill_(math.nan)
        strobe.forward(a, work)
        errors.append(wrong(q, keys, out, tokens > 1))
        here = type(a).from_buffer_copy(a)
        here.tuning = C.pointer(tuning)
        keep += [tuning, here, work]
        calls.append(lambda strobe=strobe, here=here, work=work: strobe.forward(here, work))
    times = medians_ms(calls, options.ms)
    flop, size = 2 * sum(lengths) * heads * tokens * (DIM + DIM_V), 2 * sum(lengths) * DIM
    parts = [f"{1e3 * t:8.1f} us {flop / t / 1e9:6.1f} TFLOP/s {size / t / 1e9:5.2f} TB/s error {e:.2e}"
             for t, e in zip(times, errors, strict=True)]
    print(f"{name:36} " + " | ".join(parts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--kernels", default="cuda_latent_sm90,cuda_forward_sm80")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        sys.exit(77)
    torch.manual_seed(1)
    libraries = [Strobe(path, None) for path in options.library]
    for name, *case in cases():
        if options.only in name:
            run(libraries, name, *case, options)


if __name__ == "__main__":
    main()
