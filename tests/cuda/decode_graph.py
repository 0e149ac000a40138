#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""decode_graph.py: one captured graph for all steps of decoding: each call is captured once, its lengths change in device
memory, and every replay has the bits of a call that is launched; neither the workspace nor what was counted in it is cleared.

    python3 tests/cuda/decode_graph.py LIBSTROBE [--replays 20]

Needs PyTorch with a GPU (exit 77 otherwise)."""

import argparse
import ctypes as C
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from abi import Tuning, Varlen  # noqa: E402
from cuda_peers import Strobe, torch  # noqa: E402  exits with 77 without PyTorch

CASES = (  # kernel, batch, rows, query heads, K/V heads, dim, dim_v, keys at most
    ("cuda_decode_sm90", 1, 1, 32, 8, 128, 128, 3000),
    ("cuda_decode_sm80", 16, 1, 32, 8, 128, 128, 3000),
    ("cuda_decode_sm80", 3, 4, 8, 2, 128, 128, 9000),
    ("cuda_forward_sm90", 1, 64, 8, 2, 128, 128, 9000),
    ("cuda_latent_sm90", 9, 2, 16, 1, 576, 512, 3000),
)


def replays_differ(strobe, kernel, batch, rows, heads, heads_kv, dim, dim_v, most, count):
    """Of `count` replays, each with other lengths, those whose bits are not those of a launched call."""
    q = torch.randn(batch, heads, rows, dim, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, heads_kv, most, dim, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k) if dim == dim_v else k[..., :dim_v]
    outs = [torch.empty(batch, heads, rows, dim_v, device="cuda", dtype=torch.bfloat16) for _ in "ab"]
    lses = [torch.empty(batch, heads, rows, device="cuda") for _ in "ab"]
    used = torch.full((batch,), most, dtype=torch.int32, device="cuda")
    varlen, tuning = Varlen(struct_size=C.sizeof(Varlen), used_k=used.data_ptr()), Tuning(C.sizeof(Tuning), kernel.encode(), 0)
    calls = []
    for out, lse in zip(outs, lses, strict=True):
        a = strobe.prepare(q, k, v, out, lse, False)
        a.varlen, a.tuning = C.cast(C.pointer(varlen), C.c_void_p), C.pointer(tuning)
        work = strobe.workspace(a)
        work.fill_(0xFF)
        calls.append(lambda a=a, work=work: strobe.forward(a, work))
    calls[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls[0]()
    differ = 0
    for _ in range(count):
        used.copy_(torch.randint(0, most + 1, (batch,)))
        for out, lse in zip(outs, lses, strict=True):
            out.fill_(math.nan), lse.fill_(math.nan)
        graph.replay()
        calls[1]()
        differ += not (torch.equal(*outs) and torch.equal(*lses))
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--replays", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        sys.exit(77)
    torch.manual_seed(1)
    strobe, failed = Strobe(options.library, None), 0
    for case in CASES:
        differ = replays_differ(strobe, *case, options.replays)
        failed += differ > 0
        print(f"{case[0]} {case[1:]}: {differ} of {options.replays} replays differ", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
