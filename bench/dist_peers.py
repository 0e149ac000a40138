#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""dist_peers.py: attention of one sequence over the GPUs of a host, forward and backward in bf16, beside PyTorch's own.

    PYTHONPATH=build/package torchrun --nproc-per-node 4 bench/dist_peers.py [--rounds 15] [--only WORD] [--schemes ring,ulysses]

For each row of the table, in turns in one process a GPU: strobe.torch.context_parallel_attention by each scheme; Ulysses by
all_to_all_single around PyTorch's cuDNN attention, where heads divide; PyTorch's context_parallel; and each library's own
attention of the whole on one GPU. A share is the time of one GPU for the whole, over the number of GPUs times theirs: 1 is
ideal. Every time is the slowest process's, from a barrier to the end of its stream; medians. Before its times each way is
compared with the whole on one GPU: the largest difference of out stands in the last column."""

import argparse
import os
import statistics
import time

import strobe.torch as st
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# name, query heads, K/V heads, tokens, window (keys before a row), packed documents
ROWS = [
    *((f"32/8 causal {n}k", 32, 8, n << 10, None, False) for n in (8, 16, 64, 256)),
    *((f"32/32 causal {n}k", 32, 32, n << 10, None, False) for n in (8, 16, 64)),
    ("32/8 documents 64k", 32, 8, 64 << 10, None, True),
    ("32/8 window 4k 64k", 32, 8, 64 << 10, 4 << 10, False),
    ("8/1 causal 64k", 8, 1, 64 << 10, None, False),
]
DIM = 128


def documents(tokens):
    """Lengths from 128 to 16k, the same on every process."""
    generator = torch.Generator().manual_seed(11)
    ends = [0]
    while ends[-1] < tokens:
        length = int(2 ** (7 + 7 * torch.rand((), generator=generator).item()))
        ends.append(min(ends[-1] + length, tokens))
    return torch.tensor(ends, dtype=torch.int32)


def make(row):
    """q, k, v and dout of the whole, the same on every process."""
    _, heads, heads_kv, tokens, _, packed = row
    generator = torch.Generator("cuda").manual_seed(3)
    shape = (tokens,) if packed else (1, tokens)
    return [
        torch.randn(*shape, h, DIM, generator=generator, device="cuda", dtype=torch.bfloat16)
        for h in (heads, heads_kv, heads_kv, heads)
    ]


def options(row):
    _, _, _, _, window, packed = row
    given = {"window": (window - 1, 0)} if window else {"causal": True}
    if packed:
        cu = documents(row[3])
        given |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    return given


def on_one_gpu(row):
    """The whole by our kernels."""
    given = options(row)
    if "cu_seqlens_q" in given:
        longest = int(given["cu_seqlens_q"].diff().max())
        cu = given.pop("cu_seqlens_q").cuda()
        given |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    return lambda q, k, v: st.attention(q, k, v, **given)


def ours(row, scheme, layout):
    tokens, given = row[3], options(row)
    return lambda q, k, v: st.context_parallel_attention(
        q, k, v, scheme=scheme, layout=layout, total=(tokens, tokens), group_size=2 if scheme == "two_levels" else 0, **given
    )


def cudnn(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)


class Exchange(torch.autograd.Function):
    """All heads of a part of the rows to a part of the heads of all rows, or back."""

    @staticmethod
    def forward(ctx, x, to_heads):
        ctx.to_heads = to_heads
        n = dist.get_world_size()
        if to_heads:  # [1, rows, heads, dim] -> [1, n rows, heads / n, dim]
            parts = torch.stack(x[0].chunk(n, 1)).contiguous()
        else:
            parts = torch.stack(x[0].chunk(n, 0)).contiguous()
        landed = torch.empty_like(parts)
        dist.all_to_all_single(landed, parts)
        return torch.cat(tuple(landed), 0 if to_heads else 1)[None]

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad.contiguous(), not ctx.to_heads), None


def torch_ulysses(q, k, v):
    return Exchange.apply(cudnn(*(Exchange.apply(x, True) for x in (q, k, v))).contiguous(), False)


def torch_context_parallel(mesh):
    from torch.distributed.tensor.experimental import context_parallel

    def run(q, k, v):
        heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        with context_parallel(mesh, buffers=heads_first, buffer_seq_dims=[2, 2, 2]), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)

    return run


def seconds(function, tensors, dout, rounds):
    """Medians of the forward with its gradient; of the slowest process."""
    times = []
    for n in range(rounds + 3):
        leaves = [x.detach().requires_grad_() for x in tensors]
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        function(*leaves).backward(dout)
        torch.cuda.synchronize()
        slowest = torch.tensor(time.perf_counter() - start, device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if n >= 3:
            times.append(slowest.item())
    return statistics.median(times)


def measure(row, schemes, rounds, mesh):
    name, heads, heads_kv, tokens, window, packed = row
    size, dim = dist.get_world_size(), 0 if packed else 1
    whole = make(row)
    one = on_one_gpu(row)
    right = one(*whole[:3])
    alone = seconds(one, whole[:3], whole[3], rounds)
    rows, usual = [("strobe, one GPU", alone, alone / alone, 0.0)], not window and not packed

    def add(way, function, tensors, dout, of, part):
        try:
            far = (function(*tensors).float() - part.float()).abs().max()
            dist.all_reduce(far, dist.ReduceOp.MAX)
            took = seconds(function, tensors, dout, rounds)
        except Exception as caught:  # what a library does not take, it says on every process alike
            rows.append((way, None, None, str(caught).splitlines()[0][:80]))
            return
        rows.append((way, took, of / (size * took), far.item()))

    for scheme in schemes:
        layout = "contiguous" if window or packed else "zigzag"
        parts = [st.shard(x, dim, layout=layout).contiguous() for x in whole]
        add(f"strobe {scheme}", ours(row, scheme, layout), parts[:3], parts[3], alone, st.shard(right, dim, layout=layout))
    if usual:
        theirs = seconds(cudnn, whole[:3], whole[3], rounds)
        rows.append(("cuDNN, one GPU", theirs, 1.0, (cudnn(*whole[:3]) - right).abs().max().item()))
        parts = [st.shard(x, dim, layout="contiguous").contiguous() for x in whole]
        part = st.shard(right, dim, layout="contiguous")
        if heads_kv % size == 0:
            add("torch Ulysses on cuDNN", torch_ulysses, parts[:3], parts[3], theirs, part)
        if heads == heads_kv:
            add("torch context_parallel", torch_context_parallel(mesh), parts[:3], parts[3], theirs, part)
    for way, took, share, far in rows if dist.get_rank() == 0 else ():
        text = f"{took * 1e3:9.3f} ms  share {share:.3f}  differs by {far:.3g}" if took else f"left out: {far}"
        print(f"{name:20} {way:24} {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="times of which the median is taken (15)")
    parser.add_argument("--only", default="", help="rows whose name has this word")
    parser.add_argument("--schemes", default="automatic,ring,all_gather,ulysses", help="comma-separated")
    parser.add_argument("--tokens", type=int, help="in place of a row's own, to try the program")
    given = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl")
    mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, bf16, d {DIM}, fwd + bwd"
        )
    for row in ROWS:
        if given.only in row[0]:
            measure(
                (*row[:3], given.tokens, *row[4:]) if given.tokens else row, given.schemes.split(","), given.rounds, mesh
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
