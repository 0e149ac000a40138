#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""dist_peers.py: attention of one sequence over the GPUs of a host, forward and backward in bf16, beside PyTorch's own.

    PYTHONPATH=build/package torchrun --nproc-per-node 4 bench/dist_peers.py [--rounds 15] [--only WORD] [--schemes ring,ulysses]

For each row of the table, in turns in one process a GPU: strobe.torch.context_parallel_attention by each scheme; Ulysses by
all_to_all_single around PyTorch's cuDNN attention, where heads divide; PyTorch's context_parallel; and each library's own
attention of the whole on one GPU. A share is the time of one GPU for the whole, over the number of GPUs times theirs: 1 is
ideal. Every time is the slowest process's, from a barrier to the end of its stream, the L2 cache flushed before; medians.
With --graphs ours, our one GPU's and PyTorch's Ulysses once more, forward and backward captured in a CUDA graph that is launched again and
again, which takes nearly all of the host's time away. Behind it stand the errors of out, dq, dk and dv over those of our kernels on one GPU: root mean squares of the differences
from float64, of the first K/V head and its query heads. Of sequences above --exact tokens they are relative differences from
our one GPU's."""

import argparse
import contextlib
import os
import statistics
import time
from dataclasses import dataclass, field

import strobe.torch as st
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

ORDERED = "ordered"
# name, query heads, K/V heads, tokens, window (keys before a row), packed documents: as they are drawn, or in the order that
# strobe.torch.order_documents gives them
ROWS = [
    *((f"32/8 causal {n}k", 32, 8, n << 10, None, False) for n in (8, 16, 64, 256)),
    *((f"32/32 causal {n}k", 32, 32, n << 10, None, False) for n in (8, 16, 64)),
    ("32/8 documents 64k", 32, 8, 64 << 10, None, True),
    ("32/8 ordered documents 64k", 32, 8, 64 << 10, None, ORDERED),
    ("32/8 window 4k 64k", 32, 8, 64 << 10, 4 << 10, False),
    ("8/1 causal 64k", 8, 1, 64 << 10, None, False),
]
DIM = 128
NAMES = ("out", "dq", "dk", "dv")


def documents(tokens, packed=True):
    """Offsets of documents of 128 to 16k tokens, the same on every process."""
    generator = torch.Generator().manual_seed(11)
    ends = [0]
    while ends[-1] < tokens:
        length = int(2 ** (7 + 7 * torch.rand((), generator=generator).item()))
        ends.append(min(ends[-1] + length, tokens))
    ends = torch.tensor(ends, dtype=torch.int32)
    if packed == ORDERED:
        order, _, _ = st.order_documents(ends.diff(), layout="contiguous")
        ends[1:] = ends.diff()[order].cumsum(0)
    return ends


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
        cu = documents(row[3], packed)
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


def flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = functional.scaled_dot_product_attention(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), is_causal=True)
    return out.transpose(1, 2)


def torch_context_parallel(tokens):
    """A context in which attention of PyTorch's is that of shards, forward and backward; they lie in zigzag. It wants a tensor
    to cut, and gets one that nobody reads."""
    from torch.distributed.tensor.experimental import context_parallel

    mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    return lambda: context_parallel(mesh, buffers=[torch.empty(tokens, device="cuda")], buffer_seq_dims=[0])


@dataclass
class Way:
    """One of those compared. layout: of its shards, None for the whole on one GPU. of: whose time on one GPU is the ideal."""

    name: str
    function: object
    layout: str | None
    of: str
    context: object = contextlib.nullcontext
    graph: bool = False
    replay: object = None  # launches it, once it has been captured
    times: list = field(default_factory=list)
    errors: list | None = None
    refusal: str | None = None


def tensors_of(way, whole, dim):
    if way.layout is None:
        return whole
    return [st.shard(x, dim, layout=way.layout).contiguous() for x in whole]


def capture(way, tensors):
    """What launches a graph of the forward with its gradient. Other threads, such as NCCL's, may call the driver meanwhile."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            torch.autograd.grad(way.function(*leaves), leaves, tensors[3])
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = torch.autograd.grad(way.function(*leaves), leaves, tensors[3])
    return lambda: (graph.replay(), results)


def time_once(way, tensors, flushed):
    """Seconds of the forward with its gradient; of the slowest process."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    if way.graph and not way.replay:
        way.replay = capture(way, tensors)
    with way.context():
        flushed.zero_()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        if way.graph:
            way.replay()
        else:
            way.function(*leaves).backward(tensors[3])
        torch.cuda.synchronize()
        took = time.perf_counter() - start
    slowest = torch.tensor(took, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def results_of(way, whole, dim, heads):
    """out, dq, dk, dv of the first K/V head and its query heads, put together, in float64; poisoned memory beforehand."""
    tensors = tensors_of(way, whole, dim)
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    with way.context():
        out = way.function(*leaves)
        out.backward(tensors[3])
    parts = [x.detach().narrow(-2, 0, n) for x, n in zip((out, *(x.grad for x in leaves)), (heads, heads, 1, 1), strict=True)]
    if way.layout is not None:
        parts = [st.unshard(x.contiguous(), dim, layout=way.layout) for x in parts]
    return [x.reshape(-1, x.shape[-2], DIM).double() for x in parts]


def right_results(row, whole):
    """The same in float64, a block of rows at a time."""
    _, heads, heads_kv, tokens, window, packed = row
    group, step, scale = heads // heads_kv, 1024, DIM**-0.5
    q, k, v, dout = (x.reshape(tokens, -1, DIM)[:, : group if n in (0, 3) else 1].double() for n, x in enumerate(whole))
    begins = torch.zeros(tokens, dtype=torch.int64, device="cuda")  # the first key of a row
    at = torch.arange(tokens, device="cuda")
    if packed:
        ends = documents(tokens, packed).long().cuda()
        begins = ends[torch.searchsorted(ends, at, right=True) - 1]
    if window:
        begins = torch.maximum(begins, at - window + 1)
    out, dq, dk, dv = torch.empty_like(q), torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for begin in range(0, tokens, step):
        first, end = int(begins[begin]), begin + step
        keys, values, positions = k[first:end, 0], v[first:end, 0], at[first:end]
        hidden = (positions > at[begin:end, None]) | (positions < begins[begin:end, None])
        for head in range(group):
            rows, grad = q[begin:end, head], dout[begin:end, head]
            weights = (rows @ keys.T).mul_(scale).masked_fill_(hidden, -torch.inf).softmax(1)
            out[begin:end, head] = weights @ values
            dv[first:end, 0] += weights.T @ grad
            slope = (grad @ values.T).sub_((grad * out[begin:end, head]).sum(1, keepdim=True)).mul_(weights).mul_(scale)
            dq[begin:end, head] = slope @ keys
            dk[first:end, 0] += slope.T @ rows
    return [out, dq, dk, dv]


GRAPH = ", graph"


def in_graphs(ways):
    """The same ways, captured; PyTorch's context_parallel is none that can be."""
    for way in ways:
        if "context_parallel" not in way.name:
            yield Way(way.name + GRAPH, way.function, way.layout, way.of + GRAPH, graph=True)


def ways_of(row, schemes, peers):
    _, heads, heads_kv, _, window, packed = row
    size = dist.get_world_size()
    layouts = ("contiguous", "zigzag") if packed is True else ("contiguous",) if window or packed else ("zigzag",)
    ways = [Way("strobe, one GPU", on_one_gpu(row), None, "strobe, one GPU")]
    for scheme in schemes:
        for layout in layouts:
            name = f"strobe {scheme}" + (f" {layout}" if len(layouts) > 1 else "")
            ways.append(Way(name, ours(row, scheme, layout), layout, "strobe, one GPU"))
    if window or packed or not peers:
        return ways
    ways.append(Way("cuDNN, one GPU", cudnn, None, "cuDNN, one GPU"))
    if heads_kv % size == 0:
        ways.append(Way("torch Ulysses on cuDNN", torch_ulysses, "contiguous", "cuDNN, one GPU"))
    if heads == heads_kv:
        ways.append(Way("torch context_parallel", flash, "zigzag", "cuDNN, one GPU", torch_context_parallel(row[3])))
    return ways


def compare(ways, row, whole, dim, exact):
    """Fills in errors; a way that is refused, on every process alike, says why."""
    group, right, own = row[1] // row[2], None, None
    if row[3] <= exact:
        right = right_results(row, whole)
    for way in ways:
        try:
            got = results_of(way, whole, dim, group)
        except Exception as caught:
            way.refusal = str(caught).strip().splitlines()[0][:150] if str(caught).strip() else repr(caught)
            continue
        if right is None:
            right = got
        far = [((x - y).square().mean().sqrt()).item() for x, y in zip(got, right, strict=True)]
        if own is None:
            own = far if row[3] <= exact else [x.square().mean().sqrt().item() for x in got]
        way.errors = [x / y for x, y in zip(far, own, strict=True)]


def measure(row, schemes, rounds, seconds, exact, peers, graphs=False):
    dim, whole = 0 if row[5] else 1, make(row)
    flushed = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    ways = ways_of(row, schemes, peers)
    ways += list(in_graphs(ways)) if graphs else []
    compare(ways, row, whole, dim, exact)
    ways = [way for way in ways if not way.refusal] + [way for way in ways if way.refusal]
    tensors = {layout: tensors_of(Way("", None, layout, ""), whole, dim) for layout in {way.layout for way in ways}}
    spent = 0
    for n in range(rounds + 1):
        for way in ways:
            if not way.refusal:
                way.times.append(time_once(way, tensors[way.layout], flushed))
                spent += way.times[-1]
        if n > 1 and spent > seconds:
            break
    took = {way.name: statistics.median(way.times[1:]) for way in ways if not way.refusal}
    for way in ways if dist.get_rank() == 0 else ():
        text = f"left out: {way.refusal}"
        if not way.refusal:
            share = took[way.of] / took[way.name] / (1 if way.layout is None else dist.get_world_size())
            errors = " ".join(f"{name} {x:.3g}" for name, x in zip(NAMES, way.errors, strict=True))
            text = f"{took[way.name] * 1e3:9.3f} ms  share {share:.3f}  errors {errors}  ({len(way.times) - 1})"
        print(f"{row[0]:20} {way.name:28} {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="times of which the median is taken (15)")
    parser.add_argument("--seconds", type=float, default=10, help="of a row after which two times are enough (10)")
    parser.add_argument("--only", default="", help="rows whose name has this word; several with commas")
    parser.add_argument("--schemes", default="automatic,ring,all_gather,ulysses", help="comma-separated")
    parser.add_argument("--exact", type=int, default=64 << 10, help="the most tokens that are compared with float64 (64k)")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--tokens", type=int, help="in place of a row's own, to try the program")
    parser.add_argument("--graphs", action="store_true", help="in CUDA graphs, too")
    given = parser.parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, bf16, d {DIM}, fwd + bwd")
    for row in ROWS:
        if any(word in row[0] for word in given.only.split(",")):
            cut = (*row[:3], given.tokens, *row[4:]) if given.tokens else row
            measure(cut, given.schemes.split(","), given.rounds, given.seconds, given.exact, not given.no_peers, given.graphs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
