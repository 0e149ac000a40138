#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""sinks.py: how accurate the gradient of attention sinks is, on the CPU or a GPU, beside PyTorch's standard attention, and what it costs.

    python3 bench/sinks.py LIBSTROBE [LIBSTROBE ...] [--device cuda] [--dtype bf16,fp16] [--seq 300,1k,2k] [--dim 64,128]
                           [--kernel NAME] [--seeds 3] [--rounds 0] [--threads 0]

Eight heads, causal, q, k, v and dO N(0, 1) with and without outliers, sinks N(0, 1). An error is the 2-norm of the difference to float64
over that of the result, over the heads of all seeds. PyTorch's standard attention concatenates a head's sink to its scores, as
transformers' gpt-oss does, and autograd does the rest: "all 16" computes in the tensors' dtype, "softmax 32" has sinks and softmax
in fp32, "all 32" has everything in fp32 but the tensors and out. The sinks are fp32, of values that the tensors' dtype can hold, and
so is their gradient. With --rounds the backward is timed instead, without and with dsinks, all libraries in turns: medians; on one thread
of a CPU its own time, so that a machine that others use too still gives figures. Needs PyTorch."""

import argparse
import ctypes as C
import math
import statistics
import time

import torch
from abi import Attention, Gradients, Parallel, Tensor, Tuning, check, load, selected

HEADS, CAUSAL = 8, 2
DTYPES = {"fp32": (torch.float32, 1), "fp16": (torch.float16, 2), "bf16": (torch.bfloat16, 3)}


class Sinks(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("data", C.c_void_p), ("dtype", C.c_int32), ("reserved", C.c_int32)]


def view(x):
    return Tensor(x.data_ptr(), (C.c_int64 * 3)(x.stride(0), x.stride(2), x.stride(1)))


class Call:
    """A library's forward, and its backward without or with dsinks, on tensors [1, heads, seq, dim]."""

    def __init__(self, library, tensors, sinks, dtype, kernel, threads):
        q, k, v, dout = tensors
        self.library, self.keep = library, [tensors, sinks, Sinks(C.sizeof(Sinks), sinks.data_ptr())]
        self.out, self.lse, self.dsinks = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device), torch.empty_like(sinks)
        a = self.a = Attention(struct_size=C.sizeof(Attention), batch=1, heads_q=HEADS, heads_kv=HEADS, dim=q.shape[3])
        a.seq_q, a.seq_k, a.dtype, a.device, a.mask = q.shape[2], k.shape[2], DTYPES[dtype][1], int(q.is_cuda), CAUSAL
        a.q, a.k, a.v, a.out = (view(x) for x in (q, k, v, self.out))
        a.lse.data = self.lse.data_ptr()
        a.sinks = C.addressof(self.keep[2])
        if not q.is_cuda:
            a.parallel = C.pointer(Parallel(C.sizeof(Parallel), threads))
        self.work = {}  # by what is wanted
        self.run("forward", None)
        if kernel:
            a.tuning = C.pointer(Tuning(C.sizeof(Tuning), kernel.encode()))
        self.gradients = [torch.empty_like(x) for x in (q, k, v)]
        self.keep.append(Sinks(C.sizeof(Sinks), self.dsinks.data_ptr()))
        self.g = []
        for wanted in (False, True):
            g = Gradients(struct_size=C.sizeof(Gradients))
            g.dout, g.dq, g.dk, g.dv = (view(x) for x in (dout, *self.gradients))
            g.dsinks = C.addressof(self.keep[3]) if wanted else None
            self.g.append(g)
        self.kernel, self.clock = selected(library, a, self.g[1]), time.thread_time if threads == 1 else time.perf_counter

    def run(self, what, g):
        if id(g) not in self.work:
            bytes_ = C.c_size_t()
            check(self.library, self.library.strobe_workspace(C.byref(self.a), g and C.byref(g), C.byref(bytes_)))
            self.work[id(g)] = torch.empty(bytes_.value + 64, dtype=torch.uint8, device=self.out.device)
        work = self.work[id(g)]
        at, stream = (work.data_ptr() + 63) // 64 * 64, torch.cuda.current_stream().cuda_stream if work.is_cuda else None
        structures = [C.byref(x) for x in (self.a, g) if x]
        check(self.library, getattr(self.library, "strobe_" + what)(*structures, at, work.numel() - 64, stream))
        if work.is_cuda:
            torch.cuda.synchronize()

    def seconds(self, wanted):
        begin = self.clock()
        self.run("backward", self.g[wanted])
        return self.clock() - begin

    def result(self):
        self.run("backward", self.g[1])
        return self.dsinks.double()


def exact(q, k, v, dout, sinks):
    """dsinks in float64, a head at a time."""
    result, n = [], q.shape[2]
    hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    for h in range(HEADS):
        head = [x[0, h].double() for x in (q, k, v, dout)]
        scores = (head[0] @ head[1].T / math.sqrt(q.shape[3])).masked_fill(hidden, -math.inf)
        p = torch.cat([scores, sinks[h].double().expand(n, 1)], 1).softmax(1)
        d = (p[:, :-1] * (head[3] @ head[2].T)).sum(1)
        result.append(-(p[:, -1] * d).sum())
    return torch.stack(result)


def standard(q, k, v, dout, sinks, inside, of_softmax):
    """dsinks of standard attention, whose products are of the dtype `inside` and whose softmax is of another."""
    leaf, n = sinks.clone().requires_grad_(), q.shape[2]
    q, k, v = (x.to(inside).requires_grad_() for x in (q, k, v))
    scores = q @ k.transpose(2, 3) * (1 / math.sqrt(q.shape[3]))
    scores = scores + torch.full((n, n), -math.inf, dtype=inside, device=q.device).triu(1)
    column = leaf.to(of_softmax).reshape(1, -1, 1, 1).expand(1, -1, n, 1)
    logits = torch.cat([scores.to(of_softmax), column], -1)
    p = torch.softmax(logits - logits.max(-1, keepdim=True).values, -1)
    out = p[..., :-1].to(inside) @ v
    out.to(dout.dtype).backward(dout)
    return leaf.grad.double()


def draw(seed, n, dim, dtype, outliers, device):
    """q, k, v, dO and sinks. Outliers: as in FlashAttention-3's paper, one element of a thousand gets N(0, 100) more."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for _ in range(4):
        x = torch.randn(1, HEADS, n, dim, generator=generator)
        if outliers:
            x += 10 * torch.randn(x.shape, generator=generator) * (torch.rand(x.shape, generator=generator) < 1e-3)
        tensors.append(x.to(dtype).to(device))
    return tensors, torch.randn(HEADS, generator=generator).to(dtype).float().to(device)


def relative(results, right):
    wrong = sum(float(((x - y) ** 2).sum()) for x, y in zip(results, right, strict=True))
    return math.sqrt(wrong / sum(float((y**2).sum()) for y in right))


def measure(libraries, dtype, n, dim, outliers, a):
    kind, found, right, kernel = DTYPES[dtype][0], {}, [], ""
    for seed in range(a.seeds):
        tensors, sinks = draw(seed, n, dim, kind, outliers, a.device)
        right.append(exact(*tensors, sinks))
        for i, library in enumerate(libraries):
            call = Call(library, tensors, sinks, dtype, a.kernel, a.threads)
            found.setdefault(i, []).append(call.result())
            kernel = call.kernel
        for name, inside, of_softmax in (("all 16", kind, kind), ("softmax 32", kind, torch.float32), ("all 32", torch.float32, torch.float32)):
            found.setdefault(name, []).append(standard(*tensors, sinks, inside, of_softmax))
    errors = [f"{relative(x, right):.1e}" for x in found.values()]
    print(f"| {dtype} | {dim} | {n} | {'outliers' if outliers else 'N(0, 1)'} | {kernel} | {' | '.join(errors)} |", flush=True)


def compare_times(libraries, dtype, n, dim, a):
    tensors, sinks = draw(0, n, dim, DTYPES[dtype][0], False, a.device)
    calls = [Call(library, tensors, sinks, dtype, a.kernel, a.threads) for library in libraries]
    turns = [(call, wanted) for call in calls for wanted in (False, True)]
    seconds = [[] for _ in turns]
    for call, wanted in turns:
        call.seconds(wanted)
    for _ in range(a.rounds):
        for i, (call, wanted) in enumerate(turns):
            seconds[i].append(call.seconds(wanted))
    ratios = [statistics.median(x / y for x, y in zip(s, seconds[0], strict=True)) for s in seconds]
    print(f"| {dtype} | {dim} | {n} | {calls[0].kernel} | {statistics.median(seconds[0]) * 1e3:.3f} | "
          f"{' | '.join(f'{r:.3f}' for r in ratios[1:])} |", flush=True)


def number(text):
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+", help="libstrobe.so, any number of them")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="bf16,fp16")
    parser.add_argument("--seq", default="300,1k,2k")
    parser.add_argument("--dim", default="64,128")
    parser.add_argument("--kernel", help="of the backward; the library's choice if not said")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="of timing; 0: errors")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU's calls; 0: all")
    a = parser.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(77)
    libraries = [load(path) for path in a.library]
    problems = [(d, number(n), int(dim)) for d in a.dtype.split(",") for dim in a.dim.split(",") for n in a.seq.split(",")]
    if a.rounds:
        others = " | ".join(f"{i + 1}: {'with' if wanted else 'without'}" for i in range(len(libraries)) for wanted in (0, 1))
        print(f"| dtype | dim | rows | kernel | ms | over that: {others.partition(' | ')[2]} |")
        for problem in problems:
            compare_times(libraries, *problem, a)
        return
    names = " | ".join(f"library {i + 1}" for i in range(len(libraries)))
    print(f"relative error of dsinks\n| dtype | dim | rows | inputs | kernel | {names} | all 16 | softmax 32 | all 32 |")
    for problem in problems:
        for outliers in (False, True):
            measure(libraries, *problem, outliers, a)


if __name__ == "__main__":
    main()
