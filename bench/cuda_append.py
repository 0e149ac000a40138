#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_append.py: strobe_append on a GPU: a prompt's bytes a second beside a copy of as many bytes, and the microseconds of a
decoding step, in one process, in turns; with the largest error beside float64.

    python3 bench/cuda_append.py LIBSTROBE [--tokens 32768] [--ms 30]

bf16, 32 heads on 8, d 128, pages of 16 in any order. "moved" is what is read and written: rows, scales, and no table. Medians,
L2 is flushed before each call of a prompt; a step is one of 50 in a CUDA graph. Needs PyTorch with a GPU (exit 77 otherwise)."""

import argparse
import ctypes as C
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

from abi import Appender, Attention, Paged, Rotary, Scales, Tensor, check, load
from cuda_fp8 import median_ms, normal

DTYPES = {torch.float32: 1, torch.bfloat16: 3, torch.float8_e4m3fn: 5, torch.int8: 6}
HEADS_Q, HEADS, DIM, PAGE, STEPS = 32, 8, 128, 16, 50


def view(x):
    return Tensor(x.data_ptr(), (C.c_int64 * 3)(*x.stride()[:3]), DTYPES[x.dtype], 0)


class Append:
    """New tokens [batch, seq] into pages, behind `before` tokens each: dtype of the cache, rotary and with it q."""

    def __init__(self, lib, batch, seq, before, dtype=torch.bfloat16, rotary=None, interleaved=False, hadamard=False):
        self.lib, self.rotary, self.dtype, self.before = lib, rotary, dtype, before
        self.interleaved, self.hadamard = interleaved, hadamard
        torch.manual_seed(seq)
        pages = -(-(before + seq) // PAGE)
        self.q, self.k, self.v = (normal(batch, seq, h, DIM) for h in (HEADS_Q, HEADS, HEADS))
        self.q_to = torch.full_like(self.q, float("nan"))
        self.caches = [torch.empty(batch * pages, PAGE, HEADS, DIM, device="cuda", dtype=dtype) for _ in "kv"]
        for x in self.caches:
            x.view(torch.uint8).fill_(255)
        self.scales = [torch.full((batch * pages, PAGE, HEADS), float("nan"), device="cuda") for _ in "kv"]
        self.table = torch.randperm(batch * pages, device="cuda", dtype=torch.int32).view(batch, pages)
        self.lengths = torch.full((batch,), before, device="cuda", dtype=torch.int32)
        angles = torch.arange(before + seq, device="cuda").double()[:, None] * 10000.0 ** -(torch.arange(DIM // 2, device="cuda").double() / (DIM // 2))
        self.cos, self.sin = angles.cos().float().contiguous(), angles.sin().float().contiguous()
        self.paged = Paged(C.sizeof(Paged), self.table.data_ptr(), pages, PAGE, batch * pages)
        a = self.a = Attention(struct_size=C.sizeof(Attention), batch=batch, heads_q=HEADS_Q, heads_kv=HEADS, seq_q=seq, dim=DIM,
                               seq_k=before + seq, device=1, dtype=3)
        a.q, a.k, a.v, a.paged = view(self.q_to), view(self.caches[0]), view(self.caches[1]), C.addressof(self.paged)
        if dtype.itemsize == 1:
            s = self.s = Scales(struct_size=C.sizeof(Scales), k=self.scales[0].data_ptr(), v=self.scales[1].data_ptr(), block_k=1)
            s.stride_k = s.stride_v = (C.c_int64 * 3)(*self.scales[0].stride())
            a.scales = C.addressof(s)
        n = self.n = Appender(struct_size=C.sizeof(Appender), dtype=3, seq_new=seq, lengths=self.lengths.data_ptr(),
                              hadamard=int(hadamard), seed=5)
        n.k, n.v = view(self.k), view(self.v)
        if rotary:
            n.q = view(self.q)
            r = self.r = Rotary(struct_size=C.sizeof(Rotary), interleaved=int(interleaved))
            if rotary == "tables":
                r.cos, r.sin, r.positions = self.cos.data_ptr(), self.sin.data_ptr(), self.cos.shape[0]
            else:
                r.base = 10000.0
            n.rotary = C.addressof(r)
        rows = batch * seq * HEADS
        self.moved = 2 * rows * (DIM * (2 + dtype.itemsize) + (4 if dtype.itemsize == 1 else 0)) + (
            batch * seq * HEADS_Q * DIM * 4 if rotary else 0
        )

    def __call__(self):
        check(self.lib, self.lib.strobe_append(C.byref(self.a), C.byref(self.n), torch.cuda.current_stream().cuda_stream))

    def turned(self, x):
        if not self.rotary:
            return x.double()
        cos, sin = (t[self.before :].double()[None, :, None] for t in (self.cos, self.sin))
        a, b = (x[..., 0::2], x[..., 1::2]) if self.interleaved else x.chunk(2, -1)
        a, b = a.double(), b.double()
        turned = (a * cos - b * sin, b * cos + a * sin)
        return torch.stack(turned, -1).flatten(-2) if self.interleaved else torch.cat(turned, -1)

    def error(self):
        """The largest error of q, K and V, as a share of the row's largest number; after a transform that of K's norms."""
        self()
        positions = torch.arange(self.before, self.before + self.k.shape[1], device="cuda")
        slots = self.table[:, positions // PAGE].long() * PAGE + positions % PAGE
        pairs = [(self.q_to, self.turned(self.q))] if self.rotary else []
        for x, cache, scale in zip((self.turned(self.k), self.v.double()), self.caches, self.scales, strict=True):
            rows = cache.float().flatten(0, 1)[slots].double()
            if self.dtype.itemsize == 1:
                rows *= scale.flatten(0, 1)[slots][..., None]
            if self.hadamard and cache is self.caches[0]:
                rows, x = rows.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
            pairs.append((rows, x))
        return max(((x.double() - y).abs() / y.abs().amax(-1, keepdim=True)).max().item() for x, y in pairs)


def step_us(calls):
    """Microseconds of each, one of STEPS in a graph; medians of graphs that take turns."""
    graphs = []
    for call in calls:
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(STEPS):
                call()
        graphs.append(graph)
    times = [[] for _ in graphs]
    for _ in range(25):
        for graph, to in zip(graphs, times, strict=True):
            graph.replay()
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            to.append(start.elapsed_time(end) / STEPS * 1e3)
    return [sorted(t)[len(t) // 2] for t in times]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--ms", type=float, default=30)
    o = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    lib = load(o.library)
    e4m3 = torch.float8_e4m3fn
    ways = {
        "K, V copied": {},
        "q, K rotary from tables, V copied": dict(rotary="tables"),
        "the same, interleaved": dict(rotary="tables", interleaved=True),
        "q, K rotary computed, V copied": dict(rotary="computed"),
        "K, V to int8": dict(dtype=torch.int8),
        "K, V to e4m3": dict(dtype=e4m3),
        "q, K rotary from tables, K, V to int8": dict(rotary="tables", dtype=torch.int8),
        "q, K rotary from tables, K, V to e4m3": dict(rotary="tables", dtype=e4m3),
        "K with Hadamard, K, V to int8": dict(hadamard=True, dtype=torch.int8),
    }
    for name, choices in ways.items():
        prompt = Append(lib, 8, o.tokens // 8, 100, **choices)
        error = prompt.error()
        from_, to = torch.empty(2, prompt.moved // 2, dtype=torch.uint8, device="cuda").random_(256)
        ms, copy = median_ms([prompt, lambda: to.copy_(from_)], o.ms)
        print(f"prompt: {name}: {prompt.moved / ms / 1e6:.0f} GB/s of {prompt.moved >> 20} MiB moved, {copy / ms:.2f} of a copy's "
              f"{prompt.moved / copy / 1e6:.0f}; error {error:.2g}", flush=True)
        del prompt, from_, to
    steps = [Append(lib, 64, 1, 1000, **choices) for choices in ways.values()]
    from_, to = torch.empty(2, steps[0].moved // 2, dtype=torch.uint8, device="cuda").random_(256)
    *times, copy = step_us([*steps, lambda: to.copy_(from_)])
    for name, t in zip(ways, times, strict=True):
        print(f"step: 64 sequences, {name}: {t:.2f} us")
    print(f"step: a copy of the first one's bytes: {copy:.2f} us")


if __name__ == "__main__":
    main()
