#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_ragged.py: short and ragged sequences, and small head dims, beside problems without ends of tiles or columns, in one
process.

    python3 bench/cuda_ragged.py LIBSTROBE [LIBSTROBE ...] [--what fwd,bwd] [--dim 64,128] [--ms 40]

bf16, hidden size 2048, some 16384 tokens. Of each library the microseconds, and the time of what stands beside it over them:
- 128 tokens a sequence, packed, beside the same as a dense batch;
- packed sequences of 1 to 512 tokens, beside a dense batch of 384 tokens a sequence with as many tiles of 128 rows and 128 keys:
  lengths of 1 to 512 have 2.5 tiles of rows and 7.5 blocks on average, 5 under a causal mask, 384 tokens 3 and 9, or 6;
- a packed sequence of 8192 tokens with 64 of 1 to 256 behind it, beside one of 8192 tokens alone (--what bwd);
- head dims of 32, 40 and 48, beside as many heads of 64.
Calls take turns, L2 is flushed before each, medians. Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C
import sys

from abi import Varlen
from cuda_features import Call, Case
from cuda_peers import Strobe, medians_ms, number, torch

TOKENS, HIDDEN, LONGEST, BLOCK = 16384, 2048, 512, 128


def normal(batch, seq, heads, dim):
    return [torch.randn(batch, seq, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4)]


def packed(strobe, what, lengths, heads, dim, causal):
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()
    total = sum(lengths)
    varlen = Varlen(C.sizeof(Varlen), cu_seqlens_q=offsets.data_ptr(), cu_seqlens_k=offsets.data_ptr(), total_q=total,
                    total_k=total, index_bits=32)
    call = Call(strobe, normal(1, total, heads, dim), Case("packed", causal, batch=len(lengths), seq_q=max(lengths),
                                                           seq_k=max(lengths), varlen=varlen), what)
    call.keep.append(offsets)
    return call


def dense(strobe, what, batch, seq, heads, dim, causal):
    return Call(strobe, normal(batch, seq, heads, dim), Case("dense", causal), what)


def print_row(label, calls, beside, budget):
    """calls, beside: one of each library."""
    times = medians_ms([*calls, *beside], budget)
    n = len(calls)
    print(f"{label:34} " + "  ".join(f"{1e3 * t:7.1f} ({times[n + i] / t:.3f})" for i, t in enumerate(times[:n])), flush=True)


def blocks_of(length):
    return -(-length // BLOCK)


def rows(libraries, what, dim, causal, budget):
    heads, name = HIDDEN // dim, f"{what} d{dim} {'causal' if causal else 'full'}"
    print_row(f"{name}, 128 each", [packed(s, what, [128] * (TOKENS // 128), heads, dim, causal) for s in libraries],
              [dense(s, what, TOKENS // 128, 128, heads, dim, causal) for s in libraries], budget)
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, LONGEST + 1, (2 * TOKENS // LONGEST,), generator=draw).tolist()
    batch = round(sum(blocks_of(n) ** 2 for n in lengths) / 9)
    print_row(f"{name}, 1 to {LONGEST}", [packed(s, what, lengths, heads, dim, causal) for s in libraries],
              [dense(s, what, batch, 384, heads, dim, causal) for s in libraries], budget)
    if what == "bwd":
        mixed = [8192, *torch.randint(1, 257, (64,), generator=draw).tolist()]
        print_row(f"{name}, 8k and 64 of 1 to 256", [packed(s, what, mixed, heads, dim, causal) for s in libraries],
                  [dense(s, what, 1, 8192, heads, dim, causal) for s in libraries], budget)


def small_dims(libraries, what, causal, budget):
    heads = HIDDEN // 64
    for seq in ("512", "2k", "8k"):
        batch = TOKENS // number(seq)
        beside = [dense(s, what, batch, number(seq), heads, 64, causal) for s in libraries]
        for dim in (32, 40, 48):
            print_row(f"{what} d{dim} {'causal' if causal else 'full'} {seq}, d64",
                      [dense(s, what, batch, number(seq), heads, dim, causal) for s in libraries], beside, budget)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--what", default="fwd,bwd")
    parser.add_argument("--dim", default="64,128")
    parser.add_argument("--ms", type=float, default=40)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    libraries = [Strobe(path, None) for path in options.libraries]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for what in options.what.split(","):
        for causal in (False, True):
            for dim in options.dim.split(","):
                rows(libraries, what, int(dim), causal, options.ms)
            small_dims(libraries, what, causal, options.ms)


if __name__ == "__main__":
    main()
