#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The CPU's forward beside PyTorch's scaled_dot_product_attention and the machine's own peaks, in one process, taking turns.

    python bench/cpu_peers.py --library build/libstrobe.so            one thread; needs torch and a C compiler

bench/peers.py compares wall times and checks results; this one says what share of the peak a kernel reaches. Times are CPU time of
the one thread, so that a machine that others use too still gives figures: a round is a peak (bench/cpu_peaks.c), ours, PyTorch's;
shares and ratios are of times of the same round, medians of all rounds. OpenBLAS: bench/standard_openblas.c.
"""

import argparse
import ctypes
import statistics
import subprocess
import tempfile
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("stride", c_int64 * 3), ("dtype", c_int32), ("reserved", c_int32)]


class Parallel(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("threads", c_int32), ("reserved", c_int32), ("run", c_void_p), ("self", c_void_p)]


class Attention(ctypes.Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [(name, c_int64) for name in ("batch", "seq_q", "seq_k", "heads_q", "heads_kv", "dim", "dim_v")]
        + [(name, Tensor) for name in ("q", "k", "v", "out", "lse")]
        + [(name, c_int32) for name in ("dtype", "device", "device_index", "mask")]
        + [("flags", c_uint64), ("scale", c_double), ("softcap", c_double)]
        + [(name, c_int64) for name in ("window_left", "window_right", "q_start", "k_start")]
        + [(name, c_void_p) for name in ("varlen", "paged", "bias", "bool_mask", "block_mask", "alibi", "sinks", "dropout", "scales")]
        + [("parallel", POINTER(Parallel)), ("tuning", c_void_p)]
    )


def load_peaks() -> ctypes.CDLL:
    source, folder = Path(__file__).with_name("cpu_peaks.c"), tempfile.mkdtemp()
    options = ["-O3", "-mavx512f", "-mamx-tile", "-mamx-bf16", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, str(source), "-o", f"{folder}/peaks.so"], check=True)
    peaks = ctypes.CDLL(f"{folder}/peaks.so")
    for name in ("cpu_seconds", "peak_amx", "peak_fma", "peak_read"):
        getattr(peaks, name).restype = c_double
    peaks.peak_read.argtypes = [c_void_p, c_size_t]
    return peaks


def ours(library, q, k, v, out, causal):
    """The call, and the name of the kernel that it runs. Tensors are [batch, seq, heads, dim] views."""
    parallel = Parallel(ctypes.sizeof(Parallel), 1)
    a = Attention(struct_size=ctypes.sizeof(Attention), batch=q.shape[0], seq_q=q.shape[1], seq_k=k.shape[1], dtype=DTYPES[q.dtype])
    a.heads_q, a.heads_kv, a.dim, a.mask, a.parallel = q.shape[2], k.shape[2], q.shape[3], 1 if causal else 0, ctypes.pointer(parallel)
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        setattr(a, name, Tensor(x.data_ptr(), (c_int64 * 3)(*x.stride()[:3])))

    def call():
        if library.strobe_forward(byref(a), None, 0, None):
            raise RuntimeError(library.strobe_last_error().decode())

    kernel = c_char_p()
    library.strobe_select(byref(a), None, byref(kernel))
    return call, kernel.value.decode()


def measure(library, peaks, dtype, seq_q, seq_k, heads, heads_kv, dim, causal, seconds):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (  # PyTorch's own layout, [batch, heads, seq, dim], contiguous
        torch.randn(1, h, s, dim, generator=generator).to(dtype) for h, s in ((heads, seq_q), (heads_kv, seq_k), (heads_kv, seq_k))
    )
    out = torch.empty_like(q)
    call, kernel = ours(library, *(x.transpose(1, 2) for x in (q, k, v, out)), causal)

    def pytorch():
        with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != heads_kv)

    def timed(function):
        start = peaks.cpu_seconds()
        function()
        return peaks.cpu_seconds() - start

    call()
    apart = (pytorch().float() - out.float()).abs().max().item()
    assert apart < 0.05, f"results differ by {apart}"
    decode = seq_q == 1
    work = 2.0 * heads_kv * seq_k * dim * k.element_size() if decode else 4.0 * heads * seq_q * seq_k * dim * (0.5 if causal else 1)
    shares, rates, ratios, spent = [], [], [], 0.0
    while spent < seconds or len(rates) < 5:
        if decode:
            peak = max(peaks.peak_read(k.data_ptr() + -k.data_ptr() % 64, k.nbytes // 256 * 256 - 256) for _ in range(2))
        else:
            peak = peaks.peak_fma() if dtype == torch.float32 else peaks.peak_amx()
        mine, theirs = timed(call), timed(pytorch)
        spent += mine + theirs
        rates.append(work / mine), shares.append(work / mine / peak if peak else 0), ratios.append(theirs / mine)
    unit = "GB/s" if decode else "GFLOP/s"
    heads_text = f"{heads}" if heads == heads_kv else f"{heads}/{heads_kv}"
    name = f"{str(dtype)[6:]} h={heads_text} sq={seq_q} sk={seq_k} d={dim}{' causal' if causal else ''}"
    rate, share, ratio = (statistics.median(x) for x in (rates, shares, ratios))
    print(f"| {name} | {kernel} | {rate / 1e9:.0f} {unit} | {100 * share:.0f} % | {ratio:.2f} |", flush=True)
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libstrobe.so")
    parser.add_argument("--seconds", type=float, default=1.0, help="of work for each row")
    a = parser.parse_args()
    library, peaks = ctypes.CDLL(a.library), load_peaks()
    library.strobe_last_error.restype = c_char_p
    torch.set_num_threads(1)
    print("| problem | kernel | ours | of the peak | PyTorch's time / ours |\n|---|---|---|---|---|")
    for dtype, lengths in ((torch.bfloat16, (512, 2048, 4096, 8192)), (torch.float32, (512, 2048))):
        ratios = [
            measure(library, peaks, dtype, s, s, 16 if s <= 4096 else 4, 16 if s <= 4096 else 4, d, causal, a.seconds)
            for d in (64, 128)
            for causal in (False, True)
            for s in lengths
        ]
        print(f"| geometric mean | | | | {statistics.geometric_mean(ratios):.2f} |")
    for heads, heads_kv, dim in ((16, 16, 128), (16, 16, 64), (32, 4, 128), (32, 8, 128)):
        measure(library, peaks, torch.bfloat16, 1, 8192, heads, heads_kv, dim, False, a.seconds)


if __name__ == "__main__":
    main()
