#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_pages.py: what a cache of K and V in pages costs on a GPU beside a contiguous one, and what int8 and e4m3 save, in one
process and on the same numbers.

    python3 bench/cuda_pages.py LIBSTROBE [--kernel cuda_forward_sm80] [--ms 20] [--pages 64,16,1]
                                [--decode 1x8k,16x8k,64x8k] [--prefill 1kx8k,1kx32k] [--mla 16x8k] [--dim 128]

The kernels are those that the library chooses, or the one that is named. bf16 queries, 32 heads on 8, d 128 if not said otherwise; pages in random
order. decode: one row a sequence, TB/s of the K and V that are stored, without scales. prefill: rows x keys of one sequence,
causal, TFLOP/s of what the mask shows. mla: one row of 128 heads a sequence, d 576, V the first 512 columns of K. Calls take
turns, L2 is flushed before each, medians; behind each its share of the contiguous bf16 call's speed, and the largest
difference of its results from that call's. Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C

from cuda_peers import Strobe, medians_ms, number, torch, view


class Paged(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("page_table", C.c_void_p), ("table_stride", C.c_int64),
                ("page_size", C.c_int64), ("pages", C.c_int64)]


class Scales(C.Structure):
    _fields_ = [("struct_size", C.c_size_t)] + [(name, C.c_void_p) for name in "qkv"] + [
        (f"stride_{name}", C.c_int64 * 3) for name in "qkv"] + [("block_q", C.c_int64), ("block_k", C.c_int64)]


INT8, FP8 = 6, 5


def quantised(x, dtype):
    """[..., dim] in a byte a number, with a scale a row."""
    largest = 127 if dtype == INT8 else 448
    scale = x.float().abs().amax(-1) / largest
    y = x.float() / scale[..., None]
    return (y.round().to(torch.int8) if dtype == INT8 else y.to(torch.float8_e4m3fn)), scale


class Call:
    """A forward of one library over q [batch, heads, rows, dim] and k, v [batch, keys, heads_kv, dim]."""

    def __init__(self, strobe, q, k, v, causal, page=0, dtype=0):
        self.strobe, self.keep = strobe, [q]
        batch, keys = k.shape[:2]
        in_k = v.data_ptr() == k.data_ptr()
        columns = v.shape[-1]
        self.out = torch.full((*q.shape[:3], columns), torch.nan, device="cuda", dtype=q.dtype)
        lse = torch.empty(q.shape[:3], device="cuda")
        a = self.a = strobe.prepare(q, k.transpose(1, 2), v.transpose(1, 2), self.out, lse, causal)
        scales = []
        if dtype:
            (k, k_scale), (v, v_scale) = quantised(k, dtype), quantised(v, dtype)
            scales = [k_scale, k_scale if in_k else v_scale]
        if page:
            each = -(-keys // page)
            table = torch.randperm(batch * each, device="cuda").to(torch.int32)
            paged = Paged(C.sizeof(Paged), table.data_ptr(), each, page, batch * each)
            a.paged = C.cast(C.pointer(paged), C.c_void_p)
            scales = [self.in_pages(x, table, page) for x in scales]
            k, v = self.in_pages(k, table, page), None if in_k else self.in_pages(v, table, page)
            self.keep += [table, paged]
        if in_k:
            v = k[..., :columns]
        a.k, a.v = view(k, False), view(v, False)
        if dtype:
            a.k.dtype = a.v.dtype = dtype
            of = Scales(C.sizeof(Scales), None, *[x.data_ptr() for x in scales], block_k=1)
            of.stride_k, of.stride_v = ((C.c_int64 * 3)(*x.stride()) for x in scales)
            a.scales = C.cast(C.pointer(of), C.c_void_p)
            self.keep.append(of)
        self.keep += [k, v, lse, *scales]
        self.bytes = sum(x.numel() * x.element_size() for x in (k, None if in_k else v) if x is not None)
        self.work = strobe.workspace(a)
        self()

    @staticmethod
    def in_pages(x, table, page):
        """Sequences [batch, keys, ...] in the pages of their table, NaN or the like where nothing is."""
        each = table.numel() // x.shape[0]
        whole = torch.zeros((x.shape[0], each * page, *x.shape[2:]), device="cuda", dtype=torch.uint8 if x.element_size() == 1 else x.dtype)
        whole[:, : x.shape[1]] = x.view(torch.uint8) if x.element_size() == 1 else x
        pages = torch.empty_like(whole).view(-1, page, *x.shape[2:])
        pages[table.long()] = whole.view(-1, page, *x.shape[2:])
        return pages.view(x.dtype)

    def __call__(self):
        self.strobe.forward(self.a, self.work)


def row(name, strobe, q, k, v, causal, rate, options):
    """rate: of a call, from its milliseconds."""
    kinds = [("contiguous", 0, 0)] + [(f"pages of {p}", p, 0) for p in options.pages] + [
        ("int8", 0, INT8), ("e4m3", 0, FP8), ("int8, pages of 16", 16, INT8), ("e4m3, pages of 16", 16, FP8)]
    calls = [(kind, Call(strobe, q, k, v, causal, page, dtype)) for kind, page, dtype in kinds]
    times = medians_ms([c for _, c in calls], options.ms)
    base = calls[0][1].out.float()
    parts = [f"{kind} {rate(c, t):.2f} ({times[0] / t:.3f}) {(c.out.float() - base).abs().max().item():.1e}"
             for (kind, c), t in zip(calls, times, strict=True)]
    print(f"{name}: {times[0] * 1e3:.0f} us; " + "; ".join(parts), flush=True)


def sizes(text):
    return [tuple(map(number, size.split("x"))) for size in text.split(",") if size]


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--kernel")
    parser.add_argument("--ms", type=float, default=20)
    parser.add_argument("--pages", default="64,16,1", type=lambda text: list(map(int, text.split(","))))
    parser.add_argument("--decode", default="1x8k,16x8k,64x8k", type=sizes)
    parser.add_argument("--prefill", default="1kx8k,1kx32k", type=sizes)
    parser.add_argument("--mla", default="16x8k", type=sizes)
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    strobe = Strobe(options.library, options.kernel)
    torch.manual_seed(0)
    print("rate (speed beside contiguous) largest difference from its results")
    for batch, keys in options.decode:
        q, k, v = random(batch, 32, 1, options.dim), random(batch, keys, 8, options.dim), random(batch, keys, 8, options.dim)
        row(f"decode {batch} x {keys}, TB/s", strobe, q, k, v, False, lambda c, t: c.bytes / t / 1e9, options)
    for rows, keys in options.prefill:
        q, k, v = random(1, 32, rows, options.dim), random(1, keys, 8, options.dim), random(1, keys, 8, options.dim)
        flop = 4 * 32 * options.dim * rows * (keys - rows / 2)
        row(f"prefill {rows} x {keys}, TFLOP/s", strobe, q, k, v, True, lambda c, t, flop=flop: flop / t / 1e9, options)
    for batch, keys in options.mla:
        q, k = random(batch, 128, 1, 576), random(batch, keys, 1, 576)
        flop = 2 * 128 * (576 + 512) * keys * batch
        row(f"mla {batch} x {keys}, TFLOP/s", strobe, q, k, k[..., :512], False, lambda c, t, flop=flop: flop / t / 1e9, options)


if __name__ == "__main__":
    main()
