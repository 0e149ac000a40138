#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The CPU's kernels at each level of vector instructions beside PyTorch's attention held to the same instructions, one thread.

    python bench/cpu_levels.py --library build/libstrobe.so
    python bench/cpu_levels.py --levels avx512 --dtypes float32 --operations forward --before build-before/libstrobe.so

A level is a process of its own, with STROBE_ISA for Strobe and ONEDNN_MAX_CPU_ISA, ATEN_CPU_CAPABILITY and MKL_ENABLE_INSTRUCTIONS
for PyTorch. There a round is the peak, Strobe, the library of before if there is one, PyTorch; times are CPU time of the one thread, and
a cell is the median over all rounds of a share of the peak, or of a ratio of times. The peak is the rate of fp32 FMA at the level
(bench/cpu_peaks.c), of products of bf16 pairs for bf16 where the level has them, and of reading K and V for decoding.
"""

import argparse
import os
import statistics
import subprocess
import sys

LEVELS = {  # the environment that holds PyTorch to a level
    "avx512bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
DECODE_KEYS = 8192


def calls(libraries, operation, dtype, tokens, heads, dim, causal):
    """The calls of the libraries and PyTorch's, which have the same inputs, and the bytes of K. Results are compared."""
    import cpu_peers
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    generator = torch.Generator().manual_seed(0)
    rows = 1 if operation == "decode" else tokens
    q, k, v, dout = (torch.randn(1, heads, n, dim, generator=generator).to(dtype) for n in (rows, tokens, tokens, rows))
    leaves = [x.detach().requires_grad_(operation == "backward") for x in (q, k, v)]

    def forward():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*leaves, is_causal=causal)

    theirs_out = forward()
    found, results = [], []
    for library in libraries:
        out, gradients = torch.empty_like(q), [torch.empty_like(x) for x in (q, k, v)]
        call, a = cpu_peers.ours(library, *(x.transpose(1, 2) for x in (q, k, v, out)), causal)
        if operation == "backward":
            lse = torch.empty(1, heads, rows)
            a.lse.data = lse.data_ptr()
            call()
            call = cpu_peers.backward_call(library, a, dout, gradients)
        call.kept = (out, gradients, a)
        call()
        found.append(call)
        results.append(gradients if operation == "backward" else [out])
    if operation == "backward":
        found.append(lambda: torch.autograd.grad(theirs_out, leaves, dout, retain_graph=True))
        theirs = found[-1]()
    else:
        found.append(forward)
        theirs = [theirs_out]
    for result in results:
        for x, y in zip(theirs, result, strict=True):
            apart = (x.float() - y.float()).abs().max().item() / x.float().abs().max().item()
            assert apart < 0.05, f"results differ by {apart} of the maximum"
    return found, (k, v)


def row(peaks, libraries, operation, level, dtype, tokens, heads, dim, causal, seconds):
    import cpu_peers

    found, (k, v) = calls(libraries, operation, dtype, tokens, heads, dim, causal)
    work = {"forward": 4.0, "backward": 10.0}.get(operation, 0) * heads * tokens * tokens * dim * (0.5 if causal else 1)
    times, shares, spent = [], [], 0.0
    while spent < seconds or len(times) < 5:
        if operation == "decode":
            size = k.nbytes // 256 * 256 - 256
            peak = 2 / sum(1 / peaks.peak_read(x.data_ptr() + -x.data_ptr() % 64, size) for x in (k, v))
        elif level == "avx512bf16" and str(dtype) == "torch.bfloat16":
            peak = peaks.peak_bf16()
        else:
            peak = peaks.peak_fma() if level != "avx2" else peaks.peak_fma_of_8()
        times.append([cpu_peers.timed(peaks, call) for call in found])
        spent += sum(times[-1])
        shares.append((work or k.nbytes + v.nbytes) / times[-1][0] / peak)
    of_ours = [statistics.median(t[n] / t[0] for t in times) for n in range(len(found))]
    rate = statistics.median((work or k.nbytes + v.nbytes) / t[0] for t in times) / 1e9
    shape = f"{tokens}{' causal' if causal else ''}"
    name = f"{level} | {str(dtype)[6:]} | {operation} | {shape} | {dim}"
    before = "".join(f"| {x:.3f} " for x in of_ours[1:-1])
    print(f"| {name} | {rate:.0f} | {100 * statistics.median(shares):.0f} % {before}| {of_ours[-1]:.2f} |", flush=True)


def run_level(level, a):
    import cpu_peers
    import torch

    torch.set_num_threads(1)
    libraries = [cpu_peers.load(x) for x in (a.library, *a.before)]
    peaks = cpu_peers.load_peaks()
    for operation in a.operations.split(","):
        for dtype in a.dtypes.split(","):
            if level == "avx512bf16" and (dtype != "bfloat16" or operation == "decode"):
                continue  # these kernels are those of avx512
            for causal in [x == "causal" for x in a.masks.split(",")]:
                for dim in map(int, a.dims.split(",")):
                    for tokens in map(int, a.tokens.split(",")) if operation != "decode" else (DECODE_KEYS,):
                        heads = 8 if operation == "decode" else max(1, 8192 * 64 // (tokens * max(dim, 64)))
                        if causal and operation == "decode":
                            continue
                        row(peaks, libraries, operation, level, getattr(torch, dtype), tokens, heads, dim, causal, a.seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libstrobe.so")
    parser.add_argument("--before", action="append", default=[], help="a libstrobe.so that takes its turn too")
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--operations", default="forward,backward,decode")
    parser.add_argument("--dtypes", default="float32,float16,bfloat16")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--tokens", default="512,2048,8192")
    parser.add_argument("--masks", default="full", help="full,causal")
    parser.add_argument("--seconds", type=float, default=1.0, help="of work for each row")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.inside:
        run_level(a.inside, a)
        return
    before = "".join(f"| time of {x} / now " for x in a.before)
    columns = f"level | dtype | operation | tokens | d | GFLOP/s, GB/s | of the peak {before}| PyTorch's time / ours"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}", flush=True)
    for level in a.levels.split(","):
        environment = {**os.environ, **LEVELS[level], "STROBE_ISA": level}
        subprocess.run([sys.executable, *sys.argv, "--inside", level], env=environment, check=True)


if __name__ == "__main__":
    main()
