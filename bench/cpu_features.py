#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What each feature costs on the CPU: its time over the plain call's, of one or several builds of the library and of PyTorch's
scaled_dot_product_attention where that has the feature, in one process, taking turns.

    python bench/cpu_features.py --library build/libstrobe.so --dtype float32          needs torch
    python bench/cpu_features.py --library before.so after.so --operation backward --kernel cpu_backward_avx2

Every round runs the plain call before and after each feature; ratios are of times of the same round, medians of all rounds. On one
thread times are its CPU time, so that a machine that others use too still gives figures; on more they are wall times. A padding mask
and hidden blocks are compared with PyTorch's call with the same mask; the row "half the keys" is plain attention to what the padding
mask leaves.

The error is that of the last library's first head against float64, as the 2-norm of the difference over that of the result; in the
backward the largest of dQ's, dK's and dV's.
"""

import argparse
import ctypes
import math
import statistics
import time
from ctypes import byref, c_double, c_int64, c_uint64, c_void_p

import torch
import torch.nn.functional as F
from abi import Attention, Gradients, Parallel, Tensor, Tuning, check, load

DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class Strided(ctypes.Structure):  # strobe_bool_mask; strobe_bias with its dtype
    _fields_ = [("struct_size", ctypes.c_size_t), ("data", c_void_p), ("stride", c_int64 * 3), ("dtype", ctypes.c_int32)]


class BlockMask(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("data", c_void_p), ("block", c_int64 * 2), ("stride", c_int64 * 3)]


class Alibi(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("slopes", c_void_p), ("stride_batch", c_int64)]


class Dropout(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("p", c_double), ("seed", c_uint64), ("offset", c_uint64), ("shape", c_int64 * 7)]


def strided(x, dtype=None):
    """A mask or a bias [batch, heads, rows, keys] with 1 where it is broadcast."""
    steps = [0 if n == 1 else step for n, step in zip(x.shape[:3], x.stride()[:3], strict=True)]
    bytes_ = ctypes.sizeof(Strided) if dtype else Strided.dtype.offset
    return Strided(bytes_, x.data_ptr(), (c_int64 * 3)(*steps), dtype or 0)


class Problem:
    """One feature on tensors [batch, heads, seq, dim]; whatever the descriptor points to is kept alive here."""

    def __init__(self, sizes, dtype, feature, threads):
        self.b, self.h, self.s, self.d = sizes
        self.keys, self.feature, self.mask, self.seen, self.refs = self.s, feature, None, None, []
        self.a = Attention(struct_size=ctypes.sizeof(Attention), batch=self.b, heads_q=self.h, heads_kv=self.h, dim=self.d)
        self.a.dtype, self.a.parallel = DTYPES[dtype], ctypes.pointer(Parallel(ctypes.sizeof(Parallel), threads))
        self.generator = torch.Generator().manual_seed(0)
        self.features(dtype)
        self.a.seq_q, self.a.seq_k = self.s, self.keys
        self.q, self.dout = (self.random(self.s).to(dtype) for _ in range(2))
        self.k, self.v = (self.random(self.keys).to(dtype) for _ in range(2))
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (self.q, self.q, self.k, self.v))
        self.lse = torch.empty(self.b, self.h, self.s)
        self.a.q, self.a.k, self.a.v, self.a.out = (self.tensor(x) for x in (self.q, self.k, self.v, self.out))
        self.a.lse.data = self.lse.data_ptr()
        self.g = Gradients(struct_size=ctypes.sizeof(Gradients))
        self.g.dout, self.g.dq, self.g.dk, self.g.dv = (self.tensor(x) for x in (self.dout, self.dq, self.dk, self.dv))

    def random(self, length):
        return torch.randn(self.b, self.h, length, self.d, generator=self.generator)

    @staticmethod
    def tensor(x):
        return Tensor(x.data_ptr(), (c_int64 * 3)(x.stride(0), x.stride(2), x.stride(1)))

    def point(self, field, structure, *alive):
        self.refs += [structure, *alive]
        setattr(self.a, field, ctypes.addressof(structure))

    def features(self, dtype):
        s, kind = self.s, self.feature
        if kind == "half the keys":
            self.keys = s // 2
        elif kind == "padding mask":
            self.mask = (torch.arange(s) < s // 2).expand(self.b, 1, 1, s).contiguous()
        elif kind == "random mask":
            self.mask = torch.rand(1, 1, s, s, generator=self.generator) < 0.5
        elif kind == "eight documents":
            document = torch.arange(s) * 8 // s
            self.mask = (document[:, None] == document[None, :])[None, None].contiguous()
        elif kind == "bias":
            self.mask = torch.randn(1, self.h, s, s, generator=self.generator).to(dtype)
            self.point("bias", strided(self.mask, DTYPES[dtype]), self.mask)
        elif kind == "softcap":
            self.a.softcap = 30.0
        elif kind == "ALiBi":
            slopes = torch.tensor([2.0 ** (-8 * (h + 1) / self.h) for h in range(self.h)])
            self.point("alibi", Alibi(ctypes.sizeof(Alibi), slopes.data_ptr(), 0), slopes)
        elif kind == "dropout":
            self.point("dropout", Dropout(ctypes.sizeof(Dropout), 0.1, 1))
        elif kind == "90 % of blocks hidden":
            n = s // 128
            order = torch.rand(self.h, n * n, generator=self.generator).argsort()
            blocks = order < round(0.1 * n * n)
            self.seen = blocks.view(1, self.h, n, n).repeat_interleave(128, 2).repeat_interleave(128, 3)
            self.point("block_mask", BlockMask(ctypes.sizeof(BlockMask), blocks.data_ptr(), (128, 128), (0, n * n, n)), blocks)
        if self.mask is not None and self.mask.dtype == torch.bool:
            self.point("bool_mask", strided(self.mask), self.mask)

    def call(self, library, backward, kernel):
        tuning = ctypes.pointer(Tuning(ctypes.sizeof(Tuning), kernel.encode())) if kernel else None

        def forward():
            self.a.tuning = tuning
            check(library, library.strobe_forward(byref(self.a), None, 0, None))

        def gradients():
            self.a.tuning = tuning
            check(library, library.strobe_backward(byref(self.a), byref(self.g), None, 0, None))

        return gradients if backward else forward

    def by_pytorch(self, backward):
        """PyTorch's call, None where it has none for the feature."""
        if self.feature in ("softcap", "ALiBi", "90 % of blocks hidden"):
            return None
        rate = 0.1 if self.feature == "dropout" else 0.0
        if not backward:
            return lambda: F.scaled_dot_product_attention(self.q, self.k, self.v, self.mask, rate)
        leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        out = F.scaled_dot_product_attention(*leaves, self.mask, rate)
        return lambda: torch.autograd.grad(out, leaves, self.dout, retain_graph=True)


    def keep_factors(self, rate):
        """Dropout's factors of the first head, whose counters are those of the whole problem: Philox4x32-10 with seed 1."""
        quads = (self.keys + 3) // 4
        counter = torch.arange(self.s * quads)
        c, key = [torch.zeros_like(counter), torch.zeros_like(counter), counter & 0xFFFFFFFF, counter >> 32], [1, 0]

        def multiply(a, b):  # the high and the low half of a product of 32-bit numbers
            low, high = a * (b & 0xFFFF), a * (b >> 16)
            middle = high + (low >> 16)
            return middle >> 16, (middle & 0xFFFF) << 16 | low & 0xFFFF

        for _ in range(10):
            (high0, low0), (high1, low1) = multiply(c[0], 0xD2511F53), multiply(c[2], 0xCD9E8D57)
            c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
            key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
        words = torch.stack(c, -1).view(self.s, 4 * quads)[:, : self.keys]
        return (words >= math.ceil(rate * 2**32)).double() / (1 - rate)

    def in_float64(self, backward):
        """The first head's out, or its dQ, dK and dV."""
        q, k, v, dout = (x[0, 0].double().requires_grad_(backward) for x in (self.q, self.k, self.v, self.dout))
        scores = q @ k.T / math.sqrt(self.d)
        if self.feature == "softcap":
            scores = self.a.softcap * torch.tanh(scores / self.a.softcap)
        elif self.feature == "ALiBi":
            steps = torch.arange(self.s)[:, None] - torch.arange(self.keys)
            scores = scores - 2.0 ** (-8 / self.h) * steps.abs()
        elif self.feature == "bias":
            scores = scores + self.mask[0, 0]
        seen = self.mask if self.mask is not None and self.mask.dtype == torch.bool else self.seen
        if seen is not None:
            scores = scores.masked_fill(~seen[0, 0], -1e30)
        p = torch.softmax(scores, -1)
        if seen is not None:
            p = p * seen[0, 0]  # a row that sees nothing
        if self.feature == "dropout":
            p = p * self.keep_factors(0.1)
        out = p @ v
        return torch.autograd.grad(out, (q, k, v), dout) if backward else (out,)

    def error(self, backward):
        ours = (self.dq, self.dk, self.dv) if backward else (self.out,)
        exact = self.in_float64(backward)
        return max(float((x[0, 0].double() - y).norm() / y.norm()) for x, y in zip(ours, exact, strict=True))


FEATURES = (
    "plain",
    "half the keys",
    "padding mask",
    "softcap",
    "ALiBi",
    "bias",
    "random mask",
    "dropout",
    "eight documents",
    "90 % of blocks hidden",
)


def median_ratio(over, under):
    return statistics.median(x / y for x, y in zip(over, under, strict=True))


def measure(libraries, sizes, dtype, feature, a):
    """Prints a row: each library's time over its own plain call's, its plain time, PyTorch's time over the last library's."""
    backward = a.operation == "backward"
    plain, problem = (Problem(sizes, dtype, f, a.threads) for f in (None, feature))
    calls = {}
    for n, library in enumerate(libraries):
        for p, name in ((plain, "plain"), (problem, "feature")):
            p.call(library, False, None)()
            calls[name, n] = p.call(library, backward, a.kernel)
    theirs = None if a.no_torch else problem.by_pytorch(backward)
    if theirs:
        calls["theirs"] = theirs
    clock = time.thread_time if a.threads == 1 else time.perf_counter
    seconds = {key: [] for key in calls}
    end = time.perf_counter() + a.seconds
    while len(seconds["plain", 0]) < 5 or time.perf_counter() < end:
        for key, call in calls.items():
            start = clock()
            call()
            seconds[key].append(clock() - start)
    last = len(libraries) - 1
    calls["feature", last]()
    error = "" if a.no_error else f"{problem.error(backward):.1e}"
    ratios = [f"{median_ratio(seconds['feature', n], seconds['plain', n]):.2f}" for n in range(len(libraries))]
    times = [f"{1e3 * statistics.median(seconds['plain', n]):.2f}" for n in range(len(libraries))]
    other = f"{median_ratio(seconds['theirs'], seconds['feature', last]):.2f}" if theirs else ""
    rounds = len(seconds["plain", 0])
    print(f"| {feature} | {' | '.join(ratios)} | {' | '.join(times)} | {other} | {error} | {rounds} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", nargs="+", default=["build/libstrobe.so"])
    parser.add_argument("--operation", choices=("forward", "backward"), default="forward")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kernel", help="of both operations' plain call and features; the library's choice without it")
    parser.add_argument("--sizes", default="1,4,2048,64", help="batch, heads, tokens, head dim")
    parser.add_argument("--features", help=f"of {FEATURES}, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row")
    parser.add_argument("--no-error", action="store_true", help="do not compare with float64")
    parser.add_argument("--no-torch", action="store_true", help="do not call PyTorch's attention")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    libraries = [load(path) for path in a.library]
    sizes, dtype = tuple(map(int, a.sizes.split(","))), getattr(torch, a.dtype)
    names = " | ".join(f"{n}" for n in range(len(libraries)))
    print(f"{a.operation} {a.dtype} {a.sizes} {a.kernel or ''} {a.threads} thread(s)")
    print(f"| over plain | {names} | plain ms {names} | PyTorch's time / ours | error | rounds |")
    print(f"|{'---|' * (2 * len(libraries) + 4)}")
    for feature in a.features.split(",") if a.features else FEATURES:
        measure(libraries, sizes, dtype, feature, a)


if __name__ == "__main__":
    main()
