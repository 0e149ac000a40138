#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_latent.py: decoding of multi-head latent attention on a GPU: Strobe's kernel for it beside its general forward, in one
process and on the same tensors.

    python3 bench/cuda_latent.py LIBSTROBE... [--ms 40] [--only WORDS] [--kernels cuda_latent_sm90,cuda_forward_sm80]

bf16, dim 576, V the first 512 columns of K, one K/V head, which is stored in bf16, or in int8 or e4m3 with a scale a key. Slots past a
length hold NaN. TFLOP/s of all query heads, and TB/s of K, of each kernel of each library. Calls take turns, L2 is flushed before each, medians. Error: 2-norm of the difference to float64, over some sequences and heads,
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

from abi import Paged, Scales, Tuning, Varlen
from cuda_peers import Strobe, medians_ms, view

DIM, DIM_V = 576, 512
STORED = {"bf16": (torch.bfloat16, 0, 1), "e4m3": (torch.float8_e4m3fn, 5, 448), "int8": (torch.int8, 6, 127)}


def cases():
    """Name, lengths, query heads, tokens, slots of a page or 0, and what is not usual: stored, softcap, split_keys."""
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
    for stored in ("e4m3", "int8"):
        for batch, heads in itertools.product((1, 16, 64), (128, 16)):
            yield f"{batch} x 8192, {heads} heads, {stored}", [8192] * batch, heads, 1, 64, {"stored": stored}
    for heads in (128, 16):
        yield f"64 x 8192, {heads} heads, softcap", [8192] * 64, heads, 1, 64, {"softcap": 30}
        for batch in (4, 64):
            yield f"{batch} x 8192, {heads} heads, splits of 1024", [8192] * batch, heads, 1, 64, {"split": 1024}


def quantise(x, stored):
    """Rows as they are stored, and their scales."""
    dtype, _, largest = STORED[stored]
    if stored == "bf16":
        return x, torch.ones(len(x), 1, device=x.device)
    scale = x.float().abs().amax(-1, keepdim=True) / largest
    return (x / scale).round().to(dtype) if stored == "int8" else (x / scale).to(dtype), scale


def cache(lengths, page, stored):
    """Slots and their scales with their table, and each sequence's keys; without pages the table is None."""
    longest, device, dtype = max(lengths), "cuda", STORED[stored][0]
    rows = [quantise(torch.randn(n, DIM, device=device, dtype=torch.bfloat16), stored) for n in lengths]
    keys = [x.float() * scale for x, scale in rows]
    nothing = 0 if stored == "int8" else math.nan
    if not page:
        slots = torch.full((len(lengths), longest, 1, DIM), nothing, device=device).to(dtype)
        scales = torch.full((len(lengths), longest, 1), math.nan, device=device)
        for b, (x, scale) in enumerate(rows):
            slots[b, : len(x), 0], scales[b, : len(x)] = x, scale
        return slots, scales, None, keys
    counts = [-(-n // page) for n in lengths]
    order = torch.randperm(sum(counts), device=device)
    table = torch.full((len(lengths), max(counts)), 2**30, dtype=torch.int32, device=device)
    slots = torch.empty(sum(counts), page, 1, DIM, device=device, dtype=dtype)
    scales = torch.empty(sum(counts), page, 1, device=device)
    first = 0
    for b, ((x, scale), count) in enumerate(zip(rows, counts, strict=True)):
        mine = order[first : first + count]
        first += count
        table[b, :count] = mine.int()
        whole = torch.full((count * page, DIM), nothing, device=device).to(dtype)
        whole_scales = torch.full((count * page, 1), math.nan, device=device)
        whole[: len(x)], whole_scales[: len(x)] = x, scale
        slots.view(torch.uint8)[mine, :, 0] = whole.view(torch.uint8).view(count, page, -1)
        scales[mine] = whole_scales.view(count, page, 1)
    return slots, scales, table, keys


def wrong(q, keys, out, causal, softcap):
    """Of some sequences and heads: relative 2-norm of the difference to float64. q, out: [batch, heads, tokens, columns]."""
    above = below = 0.0
    tokens = q.shape[2]
    for b in sorted({0, len(keys) // 2, len(keys) - 1}):
        k = keys[b].double()
        for h in range(0, q.shape[1], 7):
            scores = q[b, h].double() @ k.T / math.sqrt(DIM)
            if softcap:
                scores = softcap * (scores / softcap).tanh()
            if causal:
                rows, columns = torch.arange(tokens, device="cuda")[:, None], torch.arange(len(k), device="cuda")
                scores = scores.masked_fill(columns > rows + len(k) - tokens, -math.inf)
            right = scores.softmax(-1) @ k[:, :DIM_V]
            above += (out[b, h].double() - right).square().sum().item()
            below += right.square().sum().item()
    return math.sqrt(above / below)


def run(libraries, name, lengths, heads, tokens, page, options, stored="bf16", softcap=0, split=0):
    batch, device = len(lengths), "cuda"
    q = torch.randn(batch, heads, tokens, DIM, device=device, dtype=torch.bfloat16)
    out = torch.empty(batch, tokens, heads, DIM_V, device=device, dtype=torch.bfloat16).transpose(1, 2)
    lse = torch.empty(batch, heads, tokens, device=device)
    slots, scales, table, keys = cache(lengths, page, stored)
    like = torch.empty(batch, 1, max(lengths), DIM, device="meta", dtype=torch.bfloat16)
    a = libraries[0].prepare(q, like, like[..., :DIM_V], out, lse, tokens > 1)
    a.k = a.v = view(slots, False)
    a.k.dtype = a.v.dtype = STORED[stored][1]
    a.softcap = softcap
    used = torch.tensor(lengths, dtype=torch.int32, device=device)
    varlen = Varlen(struct_size=C.sizeof(Varlen), used_k=used.data_ptr())
    a.varlen = C.cast(C.pointer(varlen), C.c_void_p)
    keep = [used, varlen, slots, table, scales]
    if stored != "bf16":
        of = Scales(struct_size=C.sizeof(Scales), k=scales.data_ptr(), v=scales.data_ptr(), block_k=1)
        of.stride_k = of.stride_v = (C.c_int64 * 3)(*scales.stride())
        a.scales = C.cast(C.pointer(of), C.c_void_p)
        keep.append(of)
    if page:
        paged = Paged(C.sizeof(Paged), table.data_ptr(), table.shape[1], page, slots.shape[0])
        a.paged = C.cast(C.pointer(paged), C.c_void_p)
        keep.append(paged)
    calls, errors = [], []
    for strobe, kernel in itertools.product(libraries, options.kernels.split(",")):
        tuning = Tuning(C.sizeof(Tuning), kernel.encode(), split)
        a.tuning = C.pointer(tuning)
        try:
            work = strobe.workspace(a)
        except RuntimeError as refusal:
            print(f"{name:36} refused: {refusal}"[:200])
            continue
        work.fill_(0xFF)
        out.fill_(math.nan)
        strobe.forward(a, work)
        errors.append(wrong(q, keys, out, tokens > 1, softcap))
        here = type(a).from_buffer_copy(a)
        here.tuning = C.pointer(tuning)
        keep += [tuning, here, work]
        calls.append(lambda strobe=strobe, here=here, work=work: strobe.forward(here, work))
    times = medians_ms(calls, options.ms)
    flop, size = 2 * sum(lengths) * heads * tokens * (DIM + DIM_V), slots.element_size() * sum(lengths) * DIM
    parts = [f"{1e3 * t:8.1f} us {flop / t / 1e9:6.1f} TFLOP/s {size / t / 1e9:5.2f} TB/s error {e:.2e}"
             for t, e in zip(times, errors, strict=True)]
    print(f"{name:36} " + " | ".join(parts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--only", default="", help="words of names, with | between: cases whose names have one")
    parser.add_argument("--kernels", default="cuda_latent_sm90,cuda_forward_sm80")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        sys.exit(77)
    torch.manual_seed(1)
    libraries = [Strobe(path, None) for path in options.library]
    for name, *case in cases():
        if any(words in name for words in options.only.split("|")):
            unusual = case.pop() if isinstance(case[-1], dict) else {}
            run(libraries, name, *case, options, **unusual)


if __name__ == "__main__":
    main()
