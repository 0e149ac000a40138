#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_fp8.py: the FP8 forward and its quantiser on a GPU: speed beside cuDNN's and Strobe's own bf16, in one process and on the
same numbers; bandwidth of the quantiser beside a copy's; and accuracy against float64.

    python3 bench/cuda_fp8.py LIBSTROBE [accuracy] [quantise] [fwd] [--bf16 LIBSTROBE] [--int8 LIBSTROBE] [--before LIBSTROBE]
                              [--seq 512,8k] [--dim 64,256] [--ms 30]

Grid: 16384 tokens, hidden size 2048, e4m3 with a scale for each block of 128 rows and head, Hadamard, bf16 out. TFLOP/s by the
formula of publications; medians, L2 is flushed before each call. --before: another build's e4m3 forward, and quantiser, beside. Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C
import math
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit(77)

from abi import Attention, Quantiser, Rotary, Scales, Tensor, check, load

E4M3, BF16, CAUSAL = 5, 3, 2
DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 6}


def view(x):
    """x is [batch, heads, seq, dim] in memory of any order."""
    s = x.stride()
    return Tensor(x.data_ptr(), (C.c_int64 * 3)(s[0], s[2], s[1]), DTYPES.get(x.dtype, E4M3), 0)


class Quantised:
    """q, k, v [batch, heads, seq, dim] in e4m3, or q and k in int8, and the call that reads them."""

    def __init__(self, lib, q, k, v, block=128, hadamard=True, mean=False, rotary=None, causal=False, int8=False):
        self.lib, self.keep = lib, (q, k, v)
        of_scores = torch.int8 if int8 else torch.uint8
        self.bytes = [torch.empty_like(x, dtype=y) for x, y in ((q, of_scores), (k, of_scores), (v, torch.uint8))]
        self.scales = [torch.ones(x.shape[0], -(-x.shape[2] // block) if block else 1, x.shape[1], device="cuda") for x in (q, k, v)]
        s = self.s = Scales(struct_size=C.sizeof(Scales), block_q=block, block_k=block)
        for name, x in zip("qkv", self.scales):
            setattr(s, name, x.data_ptr())
            setattr(s, "stride_" + name, (C.c_int64 * 3)(*x.stride()))
        self.out = torch.empty(*q.shape[:3], v.shape[3], dtype=torch.bfloat16, device="cuda")
        self.lse = torch.empty(*q.shape[:3], device="cuda")
        self.mean = torch.zeros(k.shape[0], k.shape[1], k.shape[3], device="cuda")
        self.shift = torch.zeros(*q.shape[:3], device="cuda")
        a = self.a = Attention(struct_size=C.sizeof(Attention), batch=q.shape[0], heads_q=q.shape[1], seq_q=q.shape[2],
                               heads_kv=k.shape[1], seq_k=k.shape[2], dim=q.shape[3], dim_v=v.shape[3], device=1, dtype=E4M3,
                               mask=CAUSAL if causal else 0)
        a.q, a.k, a.v = (view(x) for x in self.bytes)
        a.out, a.lse = view(self.out), Tensor(self.lse.data_ptr(), (C.c_int64 * 3)(0, 0, 0), 0, 0)
        a.scales = C.addressof(s)
        z = self.z = Quantiser(struct_size=C.sizeof(Quantiser), dtype=DTYPES[q.dtype], hadamard=int(hadamard), seed=5)
        z.q, z.k, z.v = view(q), view(k), view(v)
        if mean:
            z.k_mean = self.mean.data_ptr()
            z.lse_shift = Tensor(self.shift.data_ptr(), (C.c_int64 * 3)(0, 0, 0), 0, 0)
        if rotary:
            self.rotary = Rotary(C.sizeof(Rotary), rotary[0].data_ptr(), rotary[1].data_ptr(), rotary[0].shape[0], 0, 0, 0)
            z.rotary = C.addressof(self.rotary)
        self.work = None

    def stream(self):
        return torch.cuda.current_stream().cuda_stream

    def quantise(self):
        check(self.lib, self.lib.strobe_quantise(C.byref(self.a), C.byref(self.z), self.stream()))

    def forward(self):
        if self.work is None:
            need = C.c_size_t()
            check(self.lib, self.lib.strobe_workspace(C.byref(self.a), None, C.byref(need)))
            self.work = torch.empty(max(need.value, 64), dtype=torch.uint8, device="cuda")
        check(self.lib, self.lib.strobe_forward(C.byref(self.a), self.work.data_ptr(), self.work.numel(), self.stream()))
        return self.out


class Plain:
    def __init__(self, lib, q, k, v, causal):
        self.lib, self.keep = lib, (q, k, v)
        self.out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device="cuda")
        self.lse = torch.empty(*q.shape[:3], device="cuda")
        a = self.a = Attention(struct_size=C.sizeof(Attention), batch=q.shape[0], heads_q=q.shape[1], seq_q=q.shape[2],
                               heads_kv=k.shape[1], seq_k=k.shape[2], dim=q.shape[3], dim_v=v.shape[3], device=1,
                               dtype=DTYPES[q.dtype], mask=CAUSAL if causal else 0)
        a.q, a.k, a.v, a.out = view(q), view(k), view(v), view(self.out)
        a.lse = Tensor(self.lse.data_ptr(), (C.c_int64 * 3)(0, 0, 0), 0, 0)
        need = C.c_size_t()
        check(lib, lib.strobe_workspace(C.byref(a), None, C.byref(need)))
        self.work = torch.empty(max(need.value, 64), dtype=torch.uint8, device="cuda")

    def forward(self):
        stream = torch.cuda.current_stream().cuda_stream
        check(self.lib, self.lib.strobe_forward(C.byref(self.a), self.work.data_ptr(), self.work.numel(), stream))
        return self.out


def exact(q, k, v, causal=False):
    s = (q.double() @ k.double().transpose(-1, -2)) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(s.shape[-1] - s.shape[-2]).logical_not(), -math.inf)
    return s.softmax(-1) @ v.double(), s.logsumexp(-1)


def median_ms(calls, ms):
    """Medians of several calls that take turns, by events, with L2 flushed before each."""
    flush = torch.empty(96 << 20, dtype=torch.uint8, device="cuda")
    times = [[] for _ in calls]
    for call in calls:
        call()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    spent = 0
    while spent < ms * len(calls) or len(times[0]) < 5:
        for call, to in zip(calls, times):
            flush.zero_()
            torch.cuda._sleep(200_000)  # the host has issued the call before the clock starts, on a slow one too
            start.record()
            call()
            end.record()
            end.synchronize()
            to.append(start.elapsed_time(end))
            spent += to[-1]
    return [sorted(t)[len(t) // 2] for t in times]


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def accuracy(lib, dim, int8):
    torch.manual_seed(1)
    name_of = f"d{dim}" + (" int8 q, k" if int8 else "")

    def error(x, right):
        return ((x.double() - right) ** 2).mean().sqrt().item()

    def cosine(x, right):
        return F.cosine_similarity(x.double().flatten(), right.flatten(), 0).item()

    def outliers(*shape):
        return normal(*shape, dtype=torch.float32) + 10 * normal(*shape, dtype=torch.float32) * (torch.rand(*shape, device="cuda") < 0.001)

    ways = {"blocks, Hadamard": {}, "blocks": dict(hadamard=False), "a scale a head, Hadamard": dict(block=0),
            "a scale a head": dict(block=0, hadamard=False)}
    squares = {name: [] for name in ways}
    for _ in range(8):  # outliers are few: one draw says little
        q, k, v = (outliers(4, 1, n, dim) for n in (1024, 4096, 4096))
        right, lse = exact(q, k, v)
        for name, choices in ways.items():
            t = Quantised(lib, q, k, v, int8=int8, **choices)
            t.quantise()
            squares[name].append(error(t.forward(), right) ** 2)
    for name, x in squares.items():
        print(f"accuracy: {name_of} RMSE on N(0,1) + N(0,100) Bernoulli(0.001), {name}: {math.sqrt(sum(x) / len(x)):.3g}, "
              f"of 8 draws {math.sqrt(min(x)):.3g} to {math.sqrt(max(x)):.3g}")
    for n in (1, 2, 127, 128, 129, 130, 255, 256, 257, 1000, 16384, 131072):
        q, k, v = normal(1, 2, 192, dim), normal(1, 2, n, dim), torch.ones(1, 2, n, dim, device="cuda", dtype=torch.bfloat16)
        t = Quantised(lib, 3 * q, k, v, int8=int8)
        t.quantise()
        if not bool((t.forward() == 1).all()):
            print(f"accuracy: {name_of} V = ones, {n} keys: FAILED, {t.out.min().item()} to {t.out.max().item()}")
    line = []
    for n in (126, 127, 128, 129, 130, 254, 255, 256, 257, 258):
        q, k, v = normal(8, 4, 256, dim), normal(8, 4, n, dim), normal(8, 4, n, dim)
        t = Quantised(lib, q, k, v, int8=int8)
        t.quantise()
        line.append(f"{n}: {error(t.forward(), exact(q, k, v)[0]) / exact(q, k, v)[0].pow(2).mean().sqrt().item():.4f}")
    print(f"accuracy: {name_of} relative error by keys,", ", ".join(line))
    q, k, v = normal(2, 4, 512, dim), normal(2, 4, 2048, dim), normal(2, 4, 2048, dim)
    k10 = (k.float() + 10 * torch.randn(1, 4, 1, dim, device="cuda").sign()).bfloat16()
    for mean in (False, True):
        t = Quantised(lib, q, k10, v, mean=mean, int8=int8)
        t.quantise()
        right, lse = exact(q, k10, v)
        print(f"accuracy: {name_of} a mean of 10 sigma in K, mean subtracted {mean}: cosine {cosine(t.forward(), right):.6f}, lse off by "
              f"{(t.lse + t.shift - lse).abs().max().item():.3g}")
    t = Quantised(lib, q, k, v, int8=int8)
    t.quantise()
    print(f"accuracy: {name_of} N(0,1): cosine {cosine(t.forward(), exact(q, k, v)[0]):.6f}")
    v = torch.rand(1, 1, 131072, dim, device="cuda").bfloat16()
    q, k = normal(1, 1, 128, dim), normal(1, 1, 131072, dim)
    t = Quantised(lib, q, k, v, int8=int8)
    t.quantise()
    right = exact(q, k, v)[0]
    print(f"accuracy: {name_of} sums over 128k keys of positive V: relative error {((t.forward().double() - right) / right).abs().max().item():.2e}")
    found = [0, 0]
    for seed in range(5):
        for place in range(10):
            torch.manual_seed(100 * seed + place)
            n, rows = 131072, 64
            at = n * (2 * place + 1) // 20
            k, v, q = normal(1, 1, n, dim), torch.zeros(1, 1, n, dim, device="cuda").bfloat16(), normal(1, 1, rows, dim)
            codes = torch.randn(64, dim, device="cuda")
            v.copy_(codes[torch.randint(64, (1, 1, n), device="cuda")].bfloat16())
            wanted = torch.randint(64, (rows,), device="cuda")
            k[0, 0, at:at + rows] = (q[0, 0].float() * 0.82 * math.sqrt(128 / dim)).bfloat16()  # a score of about 9.3, of weight one ninth of all others
            v[0, 0, at:at + rows] = codes[wanted].bfloat16()
            t, plain = Quantised(lib, q, k, v, int8=int8), F.scaled_dot_product_attention(q, k, v)
            t.quantise()
            for n_, out in enumerate((t.forward(), plain)):
                found[n_] += (out[0, 0].float() @ codes.T).argmax(-1).eq(wanted).sum().item()
    print(f"accuracy: {name_of} needles among 128k keys, of 3200: FP8 finds {found[0]}, bf16 {found[1]}")


def quantise(lib, before, ms):
    for dim, heads in ((64, 32), (128, 16), (256, 8), (96, 21), (192, 10), (80, 25)):
        q, k, v = (normal(2, 8192, heads, dim).transpose(1, 2) for _ in range(3))
        angles = torch.rand(8192, dim // 2, device="cuda") * 6
        tables = (angles.cos().contiguous(), angles.sin().contiguous())
        to = torch.empty(2 * 8192 * heads * dim * 3, dtype=torch.uint8, device="cuda")
        source = torch.empty_like(to)
        ways = {"blocks": dict(hadamard=False), "blocks, Hadamard": {}, "blocks, rotary, Hadamard": dict(rotary=tables),
                "rows, Hadamard": dict(block=1), "a head, Hadamard": dict(block=0), "mean, blocks, Hadamard": dict(mean=True),
                "int8 q and k, blocks": dict(hadamard=False, int8=True), "int8 q and k, blocks, Hadamard": dict(int8=True),
                "int8 q and k, blocks, rotary, Hadamard": dict(rotary=tables, int8=True),
                "int8 q and k, mean, blocks, Hadamard": dict(mean=True, int8=True)}
        tensors = [Quantised(x, q, k, v, **choices) for x in (lib, before) if x for choices in ways.values()]
        names = list(ways) + [f"{name}, before" for name in ways]
        times = median_ms([lambda: to.copy_(source)] + [t.quantise for t in tensors], ms)
        traffic = to.numel() * 3
        copied = 2 * to.numel() / times[0] / 1e6
        for name, t in zip(names, times[1:], strict=False):
            print(f"quantise: d{dim} {name}: {t:.3f} ms, {traffic / t / 1e6:.0f} GB/s, {traffic / t / 1e6 / copied:.2f} of a copy's {copied:.0f}", flush=True)


def forward(lib, bf16, int8, before, seqs, dims, ms):
    for dim in dims:
        for causal in (False, True):
            for seq in seqs:
                torch.manual_seed(seq)
                batch, heads = max(1, 16384 // seq), 2048 // dim
                q, k, v = (normal(batch, seq, heads, dim).transpose(1, 2) for _ in range(3))
                t, plain = Quantised(lib, q, k, v, causal=causal), Plain(bf16, q, k, v, causal)
                t8 = Quantised(int8, q, k, v, causal=causal, int8=True)
                told = Quantised(before or lib, q, k, v, causal=causal)
                t.quantise(), t8.quantise(), told.quantise()

                def cudnn():
                    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                def both(t):
                    t.quantise()
                    t.forward()

                cos = [F.cosine_similarity(x.forward().float().flatten(), plain.forward().float().flatten(), 0).item() for x in (t, t8)]
                flops = 4 * batch * heads * seq * seq * dim * (0.5 if causal else 1)
                times = median_ms([t.forward, t8.forward, lambda: both(t), plain.forward, cudnn, lambda: both(t8), told.forward][:7 if before else 6], ms)
                rates = [flops / x / 1e9 for x in times]
                print(f"fwd: d{dim} {'causal' if causal else 'full'} {seq}: fp8 {rates[0]:.0f}, int8 q, k {rates[1]:.0f}, with quantiser "
                      f"{rates[2]:.0f}, bf16 {rates[3]:.0f}, cuDNN bf16 {rates[4]:.0f}, int8 with quantiser {rates[5]:.0f}"
                      f"{f', fp8 before {rates[6]:.0f}' if before else ''} TFLOP/s; cosine {cos[0]:.5f}, {cos[1]:.5f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("what", nargs="*", default=["accuracy", "quantise", "fwd"])
    parser.add_argument("--bf16")
    parser.add_argument("--int8")
    parser.add_argument("--before")
    parser.add_argument("--seq", default="512,1k,2k,4k,8k,16k")
    parser.add_argument("--dim", default="64,128,192,256")
    parser.add_argument("--ms", type=float, default=30)
    o = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    lib = load(o.library)
    bf16, int8 = (load(x) if x else lib for x in (o.bf16, o.int8))
    before = load(o.before) if o.before else None
    dims = [int(x) for x in o.dim.split(",")]
    seqs = [int(x[:-1]) * 1024 if x.endswith("k") else int(x) for x in o.seq.split(",")]
    if "accuracy" in o.what:
        for dim in dims:
            accuracy(lib, dim, False)
            accuracy(int8, dim, True)
    if "quantise" in o.what:
        quantise(lib, before, o.ms)
    if "fwd" in o.what:
        forward(lib, bf16, int8, before, seqs, dims, o.ms)


if __name__ == "__main__":
    main()
