#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_decode.py: few query rows to a cache on a GPU: the kernel that Strobe chooses, its general forward, PyTorch's FlashAttention-2
and cuDNN, in one process and on the same tensors.

    python3 bench/cuda_decode.py LIBSTROBE [--ms 40] [--only WORD] [--trees]

bf16, head dim 128, 32 query heads on 8 K/V heads if not said otherwise. TB/s of K and V; the caches of uneven lengths, in pages or
left-padded are Strobe's alone. Calls take turns, L2 is flushed before each, medians. Error: 2-norm of the difference to float64,
over some sequences, relative; outputs and workspaces are poisoned before. --trees: rows of a tree of tokens, each with the keys
before the tree and its own ancestors, by a boolean mask [batch, 1, rows, keys]; beside it the same call without the mask. Needs PyTorch with a GPU (exit 77 otherwise)."""

import argparse
import ctypes as C
import math
import random
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

from abi import BoolMask, Paged, Tuning, Varlen
from cuda_peers import PEERS, Strobe, medians_ms, peer

KERNELS = (None, b"cuda_forward_sm80")  # the one that is chosen, and one by name


def cases():
    """Name, lengths, rows, query heads, K/V heads, dim, slots of a page or 0."""
    for batch, keys in ((1, 1024), (1, 8192), (1, 131072), (16, 8192), (64, 8192), (128, 4096)):
        yield f"{batch} x {keys}", [keys] * batch, 1, 32, 8, 128, 0
    draw = random.Random(7)
    drawn = [draw.randint(1, 16384) for _ in range(64)]
    for name, lengths in (("16k + 63 x 1k", [16384] + [1024] * 63), ("64 of 1..16k", drawn)):
        yield name, lengths, 1, 32, 8, 128, 0
        yield f"{name}: as even", [sum(lengths) // 64] * 64, 1, 32, 8, 128, 0
    for size in (256, 64, 16, 1):
        yield f"64 x 8192, pages of {size}", [8192] * 64, 1, 32, 8, 128, size
    yield "16k + 63 x 1k, pages of 16", [16384] + [1024] * 63, 1, 32, 8, 128, 16
    for rows in (2, 4, 8, 16):
        yield f"64 x 8192, {rows} rows", [8192] * 64, rows, 32, 8, 128, 0
    yield "64 x 8192, MHA", [8192] * 64, 1, 8, 8, 128, 0
    yield "64 x 8192, MQA", [8192 * 4] * 64, 1, 32, 1, 128, 0
    yield "64 x 8192, d 64", [8192] * 64, 1, 32, 8, 64, 0
    yield "64 x 8192, d 256", [4096] * 64, 1, 32, 8, 256, 0


def trees():
    """The same of trees: rows, and slots of a page or 0."""
    for name, batch, keys, rows in (("64 x 8192", 64, 8192, 8), ("64 x 8192", 64, 8192, 4), ("64 x 8192", 64, 8192, 16), ("1 x 8192", 1, 8192, 4),
                                    ("16 x 8192", 16, 8192, 8)):
        yield f"{name}, tree of {rows}", [keys] * batch, rows, 32, 8, 128, 0
    yield "64 x 8192, tree of 8, p. of 16", [8192] * 64, 8, 32, 8, 128, 16
    yield "64 of 1..16k, tree of 8", [random.Random(7).randint(32, 16384) for _ in range(64)], 8, 32, 8, 128, 0


def tree_mask(lengths, rows, device):
    """Row i is node i of a random tree, whose keys are a sequence's last `rows`; [batch, 1, rows, longest] bytes."""
    draw = random.Random(11)
    mask = torch.zeros(len(lengths), 1, rows, max(lengths), dtype=torch.uint8)
    for b, n in enumerate(lengths):
        mask[b, 0, :, : n - rows] = 1
        for i in range(rows):
            if i:
                mask[b, 0, i] |= mask[b, 0, draw.randrange(i)]
            mask[b, 0, i, n - rows + i] = 1
    return mask.to(device)


def wrong(q, k, v, out, lengths, mask=None):
    """Of some sequences: relative 2-norm of the difference to float64. k and v: lists of [keys, heads_kv, dim]."""
    above = below = 0.0
    for b in sorted({0, len(lengths) // 2, len(lengths) - 1}):
        group = q.shape[2] // k[b].shape[1]
        for h in range(0, q.shape[2], 5):
            keys, values = k[b][:, h // group].double(), v[b][:, h // group].double()
            scores = q[b, :, h].double() @ keys.T / math.sqrt(q.shape[3])
            if mask is not None:
                scores = scores.masked_fill(mask[b, 0, :, : lengths[b]] == 0, -math.inf)
            right = scores.softmax(-1) @ values
            above += (out[b, :, h].double() - right).square().sum().item()
            below += right.square().sum().item()
    return math.sqrt(above / below)


def run(strobe, name, lengths, rows, heads, heads_kv, dim, page, budget, tree=False):
    batch, longest, device = len(lengths), max(lengths), "cuda"
    q = torch.randn(batch, rows, heads, dim, device=device, dtype=torch.bfloat16)
    out, lse = torch.empty_like(q), torch.empty(batch, heads, rows, device=device)
    even = min(lengths) == longest
    keep = []
    if page:  # pages in a random order; slots past a length hold NaN
        counts = [-(-n // page) for n in lengths]
        order = torch.randperm(sum(counts), device=device)
        table = torch.full((batch, max(counts)), 2**30, dtype=torch.int32, device=device)
        k, v = (torch.full((sum(counts), page, heads_kv, dim), math.nan, device=device, dtype=torch.bfloat16) for _ in "kv")
        keys, values, first = [], [], 0
        for b, (n, count) in enumerate(zip(lengths, counts, strict=True)):
            mine = order[first : first + count]
            first += count
            table[b, :count] = mine.int()
            for cache, parts in ((k, keys), (v, values)):
                part = torch.randn(n, heads_kv, dim, device=device, dtype=torch.bfloat16)
                whole = torch.full((count * page, heads_kv, dim), math.nan, device=device, dtype=torch.bfloat16)
                whole[:n] = part
                cache[mine] = whole.view(count, page, heads_kv, dim)
                parts.append(part)
        keep.append(table)
    else:
        k, v = (torch.randn(batch, longest, heads_kv, dim, device=device, dtype=torch.bfloat16) for _ in "kv")
        for b, n in enumerate(lengths):
            k[b, n:], v[b, n:] = math.nan, math.nan
        keys, values = ([x[b, :n] for b, n in enumerate(lengths)] for x in (k, v))
    contiguous = [
        x if not page else torch.empty(batch, longest, heads_kv, dim, device="meta", dtype=torch.bfloat16) for x in (k, v)
    ]
    a = strobe.prepare(
        q.transpose(1, 2), contiguous[0].transpose(1, 2), contiguous[1].transpose(1, 2), out.transpose(1, 2), lse, False
    )
    if page:
        for to, x in ((a.k, k), (a.v, v)):
            to.data, to.stride = x.data_ptr(), (C.c_int64 * 3)(*x.stride()[:3])
        paged = Paged(C.sizeof(Paged), table.data_ptr(), table.shape[1], page, k.shape[0])
        a.paged = C.cast(C.pointer(paged), C.c_void_p)
        keep.append(paged)
    if page or not even:
        used = torch.tensor(lengths, dtype=torch.int32, device=device)
        varlen = Varlen(struct_size=C.sizeof(Varlen), used_k=used.data_ptr())
        a.varlen = C.cast(C.pointer(varlen), C.c_void_p)
        keep += [used, varlen]
    mask = tree_mask(lengths, rows, device) if tree else None
    masked = BoolMask(C.sizeof(BoolMask), mask.data_ptr(), (C.c_int64 * 3)(mask.stride(0), 0, mask.stride(2))) if tree else None
    calls, errors = [], []
    for kernel, shown in ((None, mask), (None, None), (KERNELS[1], mask)) if tree else ((kernel, None) for kernel in KERNELS):
        a.bool_mask = C.cast(C.pointer(masked), C.c_void_p) if shown is not None else None
        tuning = Tuning(C.sizeof(Tuning), kernel, 0)
        a.tuning = C.pointer(tuning)
        try:
            work = strobe.workspace(a)
            work.fill_(0xFF)
            out.fill_(math.nan)
            strobe.forward(a, work)
        except RuntimeError as refusal:
            print("  refused:", str(refusal)[:100])
            calls.append(None)
            errors.append(math.nan)
            continue
        errors.append(wrong(q, keys, values, out, lengths, shown))
        here = type(a).from_buffer_copy(a)
        here.tuning = C.pointer(tuning)
        keep += [tuning, here, work, masked, mask]
        calls.append(lambda here=here, work=work: strobe.forward(here, work))
    if even and not page and not tree:
        calls += [peer(backend, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), False) for backend in PEERS]
    times = medians_ms([call for call in calls if call], budget)
    times = [times.pop(0) if call else math.nan for call in calls]
    gigabytes = 2 * sum(lengths) * heads_kv * dim * 2 / 1e9
    rates = [gigabytes / t for t in times] + [math.nan] * (4 - len(times))
    columns = ("decode", "no mask", "forward") if tree else ("decode", "forward", "FA2", "cuDNN")
    print(
        f"{name:30} {1e3 * times[0]:9.1f} us ",
        *(f" {column} {rate:5.2f}" for column, rate in zip(columns, rates, strict=False)),
        " TB/s  error ",
        *(f"{error:.2e}" for error in errors),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--trees", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        sys.exit(77)
    torch.manual_seed(1)
    strobe = Strobe(options.library, None)
    for name, *case in trees() if options.trees else cases():
        if options.only in name:
            run(strobe, name, *case, options.ms, options.trees)


if __name__ == "__main__":
    main()
