#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The CPU's kernels beside PyTorch's scaled_dot_product_attention and the machine's own peaks, in one process, taking turns.

    python bench/cpu_peers.py --library build/libstrobe.so            one thread; needs torch and a C compiler
    python bench/cpu_peers.py --operation backward

bench/peers.py compares wall times and checks results; this one says what share of the peak a kernel reaches. Times are CPU time of
the one thread, so that a machine that others use too still gives figures: a round is a peak (bench/cpu_peaks.c), ours, PyTorch's;
shares and ratios are of times of the same round, medians of all rounds. In fp32 standard attention on OpenBLAS takes its turn too
(bench/standard_peer.c). Decoding is measured against reading K and V, in both memory orders.
"""

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
from ctypes import byref, c_double, c_int64, c_size_t, c_void_p
from pathlib import Path

import torch
import torch.nn.functional as F
from abi import Attention, Gradients, Parallel, Tensor, check, load, selected
from torch.nn.attention import SDPBackend, sdpa_kernel

# A round counts where products of numbers ran at this share of products of zeros before, between and after the two calls: elsewhere
# the processor held them back (cpu_peaks.c). Where nearly all rounds are such, the last fifth of them counts nevertheless.
CALM = 0.7

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


def load_peaks() -> ctypes.CDLL:
    source, folder = Path(__file__).with_name("cpu_peaks.c"), tempfile.mkdtemp()
    options = ["-O3", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, str(source), "-o", f"{folder}/peaks.so"], check=True)
    peaks = ctypes.CDLL(f"{folder}/peaks.so")
    for name in ("cpu_seconds", "peak_bf16", "peak_bf16_numbers", "peak_fma", "peak_fma_of_8", "peak_read"):
        getattr(peaks, name).restype = c_double
    peaks.peak_read.argtypes = [c_void_p, c_size_t]
    return peaks


def load_standard() -> ctypes.CDLL | None:
    """Standard attention on OpenBLAS; None where there is none to be had."""
    source, folder = Path(__file__).with_name("standard_peer.c"), tempfile.mkdtemp()
    options = ["-O3", "-march=native", "-ffast-math", "-fopenmp-simd", "-shared", "-fPIC"]
    command = ["cc", *options, str(source), "-o", f"{folder}/standard.so", "-lopenblas", "-lm"]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        print("No OpenBLAS (libopenblas-dev): that column stays empty", file=sys.stderr)
        return None
    return ctypes.CDLL(f"{folder}/standard.so")


def tensor_of(x):
    """A [batch, seq, heads, dim] view as the library's."""
    return Tensor(x.data_ptr(), (c_int64 * 3)(*x.stride()[:3]))


def ours(library, q, k, v, out, causal):
    """The call, and its descriptor. Tensors are [batch, seq, heads, dim] views."""
    parallel = Parallel(ctypes.sizeof(Parallel), 1)
    a = Attention(struct_size=ctypes.sizeof(Attention), batch=q.shape[0], seq_q=q.shape[1], seq_k=k.shape[1], dtype=DTYPES[q.dtype])
    a.heads_q, a.heads_kv, a.dim, a.mask, a.parallel = q.shape[2], k.shape[2], q.shape[3], 1 if causal else 0, ctypes.pointer(parallel)
    a.q, a.k, a.v, a.out = (tensor_of(x) for x in (q, k, v, out))
    return lambda: check(library, library.strobe_forward(byref(a), None, 0, None)), a


def backward_call(library, a, dout, gradients):
    """The call after the forward of descriptor a. Tensors are [batch, heads, seq, dim]."""
    g = Gradients(struct_size=ctypes.sizeof(Gradients))
    g.dout, g.dq, g.dk, g.dv = (tensor_of(x.transpose(1, 2)) for x in (dout, *gradients))
    call = lambda: check(library, library.strobe_backward(byref(a), byref(g), None, 0, None))  # noqa: E731
    call.descriptor = g
    return call


def measure(library, peaks, standard, dtype, seq, heads, dim, causal, seconds):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (  # PyTorch's own layout, [batch, heads, seq, dim], contiguous
        torch.randn(1, heads, seq, dim, generator=generator).to(dtype) for _ in range(3)
    )
    out = torch.empty_like(q)
    call, a = ours(library, *(x.transpose(1, 2) for x in (q, k, v, out)), causal)
    kernel = selected(library, a)

    def pytorch():
        with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def openblas():
        data = [c_void_p(x.data_ptr()) for x in (q, k, v, by_openblas, scores)]
        standard.standard_forward(*data, heads, seq, seq, dim, int(causal))

    call()
    agree(pytorch(), out)
    with_openblas = standard is not None and dtype == torch.float32
    if with_openblas:
        by_openblas, scores = torch.empty_like(q), torch.empty(seq, seq)
        openblas()
        agree(by_openblas, out)
    work = 4.0 * heads * seq * seq * dim * (0.5 if causal else 1)
    shares, rates, ratios, of_openblas, of_numbers, spent = [], [], [], [], [], 0.0
    while spent < 5 * seconds and (spent < seconds or len(rates) < 5):
        peak = peaks.peak_fma() if dtype == torch.float32 else peaks.peak_bf16()
        mine, theirs, numbers, calm = take_turns(peaks, call, pytorch)
        spent += mine + theirs
        if not calm and spent < 4 * seconds:
            continue
        rates.append(work / mine), shares.append(work / mine / peak if peak else 0), ratios.append(theirs / mine)
        of_numbers.append(work / mine / numbers if numbers else 0)
        if with_openblas:
            of_openblas.append(timed(peaks, openblas) / mine)
    unit = f"GFLOP/s, {100 * statistics.median(of_numbers):.0f} % of products of numbers"
    return report(dtype, seq, seq, heads, heads, dim, causal, kernel, unit, rates, shares, ratios, of_openblas)


def agree(theirs, out):
    apart = (theirs.float() - out.float()).abs().max().item()
    assert apart < 0.05, f"results differ by {apart}"


def measure_decode(library, peaks, dtype, seq_k, heads, heads_kv, dim, side_by_side, seconds):
    """One row on a cache of [batch, heads, seq, dim], or of [batch, seq, heads, dim], heads side by side."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, seq_k, heads_kv, dim) if side_by_side else (1, heads_kv, seq_k, dim)
    q = torch.randn(1, heads, 1, dim, generator=generator).to(dtype)
    memory = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    k, v = (x.transpose(1, 2) if side_by_side else x for x in memory)
    out = torch.empty_like(q)
    call, a = ours(library, *(x.transpose(1, 2) for x in (q, k, v, out)), False)

    def pytorch():
        with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != heads_kv)

    call()
    agree(pytorch(), out)
    bytes_read = k.nbytes + v.nbytes
    shares, rates, ratios, spent = [], [], [], 0.0
    while spent < seconds or len(rates) < 9:
        size = k.nbytes // 256 * 256 - 256  # what fits behind the next multiple of 64
        peak = 2 / sum(1 / peaks.peak_read(x.data_ptr() + -x.data_ptr() % 64, size) for x in memory)
        mine, theirs = timed(peaks, call), timed(peaks, pytorch)
        spent += mine + theirs
        rates.append(bytes_read / mine), shares.append(bytes_read / mine / peak), ratios.append(theirs / mine)
    flop_a_byte = 4.0 * heads * seq_k * dim / bytes_read
    unit = f"GB/s, {statistics.median(rates) * flop_a_byte / 1e9:.0f} GFLOP/s"
    kernel = f"{selected(library, a)}{', [b, s, h, d]' if side_by_side else ''}"
    return report(dtype, 1, seq_k, heads, heads_kv, dim, False, kernel, unit, rates, shares, ratios)


def take_turns(peaks, ours, theirs):
    """Both times, products of numbers around ours, and whether the processor held nothing back."""
    before, mine = peaks.peak_bf16_numbers(), timed(peaks, ours)
    between, others = peaks.peak_bf16_numbers(), timed(peaks, theirs)
    calm = min(before, between, peaks.peak_bf16_numbers()) >= CALM * peaks.peak_bf16()
    return mine, others, (before + between) / 2, calm


def timed(peaks, function):
    start = peaks.cpu_seconds()
    function()
    return peaks.cpu_seconds() - start


def report(dtype, seq_q, seq_k, heads, heads_kv, dim, causal, kernel, unit, rates, shares, ratios, of_openblas=(), errors=""):
    heads_text = f"{heads}" if heads == heads_kv else f"{heads}/{heads_kv}"
    name = f"{str(dtype)[6:]} h={heads_text} sq={seq_q} sk={seq_k} d={dim}{' causal' if causal else ''}"
    rate, share, ratio = (statistics.median(x) for x in (rates, shares, ratios))
    last = f"{statistics.median(of_openblas):.2f}" if of_openblas else errors
    print(f"| {name} | {kernel} | {rate / 1e9:.0f} {unit} | {100 * share:.0f} % | {ratio:.2f} | {last} |", flush=True)
    return ratio


def relative_errors(leaves, dout, causal, *results):
    """The largest of the relative errors (2-norm) of dq, dk and dv against float64, for each of the results, over two heads."""
    q, k, v = (x[:, :2].detach().double().requires_grad_() for x in leaves)
    scores = q @ k.mT / q.shape[3] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), float("-inf"))
    exact = torch.autograd.grad(scores.softmax(3) @ v, (q, k, v), dout[:, :2].double())
    worst = [max(((x[:, :2] - y).norm() / y.norm()).item() for x, y in zip(result, exact, strict=True)) for result in results]
    return ", ".join(f"{error:.1e}" for error in worst)


def measure_backward(library, peaks, dtype, seq, heads, heads_kv, dim, causal, seconds):
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(1, h, seq, dim, generator=generator).to(dtype) for h in (heads, heads_kv, heads_kv, heads))
    out, lse, dq, dk, dv = torch.empty_like(q), torch.empty(1, heads, seq), torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    call, a = ours(library, *(x.transpose(1, 2) for x in (q, k, v, out)), causal)
    a.lse.data = lse.data_ptr()
    call()
    backward = backward_call(library, a, dout, (dq, dk, dv))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs_out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=heads != heads_kv)

    def pytorch():
        return torch.autograd.grad(theirs_out, leaves, dout, retain_graph=True)

    backward()
    for name, x, y in zip(("dq", "dk", "dv"), pytorch(), (dq, dk, dv), strict=True):
        apart = (x.float() - y.float()).abs().max().item() / x.float().abs().max().item()
        assert apart < 0.05, f"{name} differs by {apart} of its maximum"
    errors = relative_errors(leaves, dout, causal, (dq, dk, dv), pytorch()) if heads == heads_kv else ""
    work = 10.0 * heads * seq * seq * dim * (0.5 if causal else 1)
    shares, rates, ratios, spent = [], [], [], 0.0
    while spent < 5 * seconds and (spent < seconds or len(rates) < 5):
        peak = peaks.peak_fma() if dtype == torch.float32 else peaks.peak_bf16()
        mine, theirs, _, calm = take_turns(peaks, backward, pytorch)
        spent += mine + theirs
        if not calm and spent < 4 * seconds:
            continue
        rates.append(work / mine), shares.append(work / mine / peak if peak else 0), ratios.append(theirs / mine)
    kernel = selected(library, a, backward.descriptor)
    return report(dtype, seq, seq, heads, heads_kv, dim, causal, kernel, "GFLOP/s", rates, shares, ratios, errors=errors)


def all_backward(library, peaks, standard, seconds):
    for dtype, lengths in ((torch.bfloat16, (512, 2048, 4096)), (torch.float16, (512, 2048)), (torch.float32, (512, 2048))):
        ratios = [
            measure_backward(library, peaks, dtype, s, 16 if s <= 2048 else 4, 16 if s <= 2048 else 4, d, causal, seconds)
            for d in (64, 128, 256)
            for causal in (False, True)
            for s in lengths
        ]
        print(f"| geometric mean | | | | {statistics.geometric_mean(ratios):.2f} | |")
    measure_backward(library, peaks, torch.bfloat16, 2048, 32, 8, 128, True, seconds)


def all_forward(library, peaks, standard, seconds):
    for dtype, lengths in ((torch.bfloat16, (512, 2048, 4096, 8192)), (torch.float16, (512, 2048)), (torch.float32, (512, 2048))):
        ratios = [
            measure(library, peaks, standard, dtype, s, 16 if s <= 4096 else 4, d, causal, seconds)
            for d in (64, 128)
            for causal in (False, True)
            for s in lengths
        ]
        print(f"| geometric mean | | | | {statistics.geometric_mean(ratios):.2f} | |")


def all_decode(library, peaks, standard, seconds):
    for heads, heads_kv, dim in ((16, 16, 128), (16, 16, 64), (32, 4, 128), (32, 8, 128)):
        for side_by_side in (False, True):
            measure_decode(library, peaks, torch.bfloat16, 8192, heads, heads_kv, dim, side_by_side, seconds)
    for dtype in (torch.float16, torch.float32):
        measure_decode(library, peaks, dtype, 8192, 16, 16, 128, False, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libstrobe.so")
    parser.add_argument("--seconds", type=float, default=1.0, help="of work for each row")
    parser.add_argument("--operation", choices=("forward", "backward", "decode"), default="forward")
    a = parser.parse_args()
    library, peaks = load(a.library), load_peaks()
    torch.set_num_threads(1)
    last = "errors, ours and PyTorch's" if a.operation == "backward" else "OpenBLAS'"
    print(f"| problem | kernel | ours | of the peak | PyTorch's time / ours | {last} |\n|---|---|---|---|---|---|")
    {"forward": all_forward, "backward": all_backward, "decode": all_decode}[a.operation](library, peaks, load_standard(), a.seconds)


if __name__ == "__main__":
    main()
