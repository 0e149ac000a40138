# SPDX-License-Identifier: BSD-3-Clause
"""Attention of one sequence over 2 and 3 processes of gloo's, against one process: out, lse, gradients, errors on every rank."""

import traceback

import pytest
import strobe.torch as st
import strobe.torch._context_parallel as parallel
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LAYOUTS = ("contiguous", "zigzag", "striped")


def tensors(seq_q, seq_k, heads=(4, 2), dims=(16, 8), batch=2, dtype=torch.float32, packed=False):
    """q, k, v and dout of the whole, the same on every process."""
    generator = torch.Generator().manual_seed(3)

    def normal(rows, h, d):
        shape = (rows, h, d) if packed else (batch, rows, h, d)
        return torch.randn(shape, generator=generator).to(dtype)

    return (
        normal(seq_q, heads[0], dims[0]),
        normal(seq_k, heads[1], dims[0]),
        normal(seq_k, heads[1], dims[1]),
        normal(seq_q, heads[0], dims[1]),
    )


def compare(
    q, k, v, dout, *, layout, scheme="automatic", group_size=0, tolerance=2e-5, bias=None, sinks=None, total=None, **options
):
    """The same call over the processes and in this one alone; dlse is the sum of all lse."""
    packed = "cu_seqlens_q" in options
    dim, lse_dim = (0, 1) if packed else (1, 2)
    whole = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    extra = {"sinks": sinks.clone().requires_grad_()} if sinks is not None else {}
    if bias is not None:
        extra["bias"] = bias.clone().requires_grad_()
    alone = dict(options)
    if packed and q.is_cuda:  # one process has the offsets where its tensors are
        lengths = options["cu_seqlens_q"].cuda()
        alone |= {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": q.shape[0], "max_seqlen_k": k.shape[0]}
    out, lse = st.attention(*whole, return_lse=True, **extra, **alone)
    (out * dout).sum().add(lse[lse.isfinite()].sum()).backward()

    parts = [st.shard(x, dim, layout=layout).requires_grad_() for x in (q, k, v)]
    mine = {"sinks": sinks.clone().requires_grad_()} if sinks is not None else {}
    if bias is not None:
        mine["bias"] = st.shard(bias, -2, layout=layout).requires_grad_()
    own, own_lse = st.context_parallel_attention(
        *parts, layout=layout, scheme=scheme, group_size=group_size, return_lse=True, total=total, **mine, **options
    )
    (own * st.shard(dout, dim, layout=layout)).sum().add(own_lse[own_lse.isfinite()].sum()).backward()
    near = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(st.unshard(own.detach(), dim, layout=layout), out.detach(), **near)
    torch.testing.assert_close(st.unshard(own_lse.detach(), lse_dim, layout=layout), lse.detach(), **near)
    for part, x in zip(parts, whole, strict=True):
        torch.testing.assert_close(st.unshard(part.grad, dim, layout=layout), x.grad, **near)
    if sinks is not None:
        dist.all_reduce(mine["sinks"].grad)
        torch.testing.assert_close(mine["sinks"].grad, extra["sinks"].grad, **near)
    if bias is not None:
        torch.testing.assert_close(st.unshard(mine["bias"].grad, -2, layout=layout), extra["bias"].grad, **near)


def results(rank, size):
    square = tensors(41, 41)
    for layout in LAYOUTS:
        compare(*square, layout=layout, causal=True)
        compare(*square, layout=layout, scheme="ring", window=(7, 2), softcap=9.0)
    compare(*tensors(29, 37), layout="zigzag", scheme="all_gather", causal=True, diagonal="top_left")
    compare(*tensors(29, 37), layout="zigzag", total=(29, 37))
    compare(*square, layout="zigzag", sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]), causal=True)
    compare(*square, layout="contiguous", dropout=0.3, seed=11, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.05]))
    generator = torch.Generator().manual_seed(5)
    compare(*square, layout="zigzag", bias=torch.randn(41, 41, generator=generator), causal=True)
    compare(*tensors(size + 1, 9), layout="contiguous", bias=torch.randn(size + 1, 9, generator=generator))  # the last has one row
    compare(*square, layout="zigzag", mask=None, scale=0.3, q_start=3, causal=True, diagonal="top_left")
    compare(*tensors(2, 5), layout="zigzag", causal=True)  # some processes have no row
    lengths = torch.tensor([0, 9, 9, 30, 41], dtype=torch.int32)
    packed = tensors(41, 41, packed=True)
    compare(*packed, layout="zigzag", causal=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    compare(*tensors(33, 33, dtype=torch.bfloat16), layout="zigzag", causal=True, tolerance=3e-2)
    if size == 2:
        compare(*square, layout="striped", scheme="ulysses", causal=True)
        compare(*square, layout="zigzag", scheme="two_levels", group_size=2, causal=True)
    mask = torch.rand(41, 41, generator=generator) > 0.3
    parts = [st.shard(x, 1) for x in square[:3]]
    out = st.context_parallel_attention(*parts, mask=st.shard(mask, 0))
    torch.testing.assert_close(st.unshard(out), st.attention(*square[:3], mask=mask), rtol=2e-5, atol=2e-5)


def helpers(rank, size):
    x = torch.arange(2 * 23 * 3, dtype=torch.float64).view(2, 23, 3)
    for layout in LAYOUTS:
        own = st.shard(x, layout=layout)
        assert torch.equal(own, x[:, st.shard_positions(23, layout=layout)])
        assert torch.equal(st.unshard(own, layout=layout), x)
        assert torch.equal(st.unshard(st.shard(x, 0, layout=layout), 0, layout=layout), x)
    with pytest.raises(ValueError, match="layout is 'zig'; 'contiguous', 'zigzag', 'striped' is accepted"):
        st.shard(x, layout="zig")
    for cut in (st.shard, st.unshard):
        with pytest.raises(ValueError, match="dim is 3; -3 to 2, an axis of x, is accepted"):
            cut(x, 3)
        with pytest.raises(ValueError, match="dim is 0; x has no axis to cut"):
            cut(torch.tensor(1.0), 0)
        with pytest.raises(TypeError, match=r"x is a <class 'list'>; a torch\.Tensor is accepted"):
            cut([1.0], 0)
    with pytest.raises(ValueError, match="seq is -1; 0 and more is accepted"):
        st.shard_positions(-1)
    with pytest.raises(TypeError, match=r"seq is 2\.5; an integer is accepted"):
        st.shard_positions(2.5)


def refusals(rank, size):
    """Whatever is wrong on one process is an error on all, and the group goes on working."""
    q, k, v, _ = (st.shard(x) for x in tensors(31, 31))

    def call(**changed):
        return st.context_parallel_attention(**({"q": q, "k": k, "v": v} | changed))

    last = size - 1
    with pytest.raises(
        ValueError,
        match=r"seed is None with dropout 0\.5" if rank == last else rf"rank {last}: seed is None with dropout 0\.5",
    ):
        call(dropout=0.5 if rank == last else 0.0)
    with pytest.raises(ValueError, match=r"k\.shape is" if rank == 0 else r"rank 0: k\.shape is"):
        call(k=k[..., :4] if rank == 0 else k)
    with pytest.raises(ValueError, match="the same on every rank is accepted"):
        call(causal=rank == 0)
    with pytest.raises(
        NotImplementedError, match=r"score|scheme ulysses does not take heads_q, 4, which is no multiple of 3"
    ):
        if size == 3:
            call(scheme="ulysses")
        else:
            raise NotImplementedError("score")
    with pytest.raises(TypeError if rank == 0 else ValueError, match="accepted"):
        call(v="v" if rank == 0 else v)
    with pytest.raises(ValueError, match="rank 0: rows_q is"):
        call(q=q[:, 1:] if rank == 0 else torch.cat((q, q[:, :1]), 1))
    with pytest.raises(ValueError, match="layout is 'spiral'"):
        call(layout="spiral")
    with pytest.raises(NotImplementedError, match=r"dtype is 4"):
        call(q=q.double(), k=k.double(), v=v.double())
    call(causal=True)


def run(rank, size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    try:
        for check in (helpers, results, refusals):
            check(rank, size)
    except BaseException:
        (folder / f"error{rank}").write_text(traceback.format_exc())
        raise
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.full), 3])
def test_over_processes(size, tmp_path):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    mp.spawn(run, args=(size, tmp_path), nprocs=size)


def test_without_a_group():
    q = torch.zeros(1, 4, 2, 8)
    with pytest.raises(ValueError, match=r"torch\.distributed has no process group"):
        st.context_parallel_attention(q, q, q)


def most_work(lengths, ranks, layout, window):
    """The most pairs of a process over the mean, each row's counted by itself."""
    left, right = window
    pairs = []
    for length in lengths:
        rows = torch.arange(length)
        last = (rows + right if right >= 0 else torch.full_like(rows, length)).clamp(max=length - 1)
        first = (rows - left if left >= 0 else torch.zeros_like(rows)).clamp(min=0)
        pairs.append(last - first + 1)
    pairs = torch.cat(pairs).double()
    loads = [pairs[parallel._positions(len(pairs), ranks, rank, layout)].sum() for rank in range(ranks)]
    return (max(loads) / pairs.sum() * ranks).item()


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(
    "given, window",
    [({}, (-1, 0)), ({"causal": False, "window": (50, 20)}, (50, 20)), ({"window": (9, 9)}, (9, 0))],
)
def test_an_order_of_documents(layout, given, window):
    lengths = [26, 135, 1528, 28, 217, 370, 216, 23, 205, 1137, 47, 570, 47, 121, 529, 146, 21, 511, 631, 1]
    order, before, after = st.order_documents(lengths, ranks=4, layout=layout, **given)
    assert sorted(order.tolist()) == list(range(len(lengths))) and order.dtype == torch.int64
    assert before == pytest.approx(most_work(lengths, 4, layout, window))
    assert after == pytest.approx(most_work([lengths[n] for n in order], 4, layout, window))
    assert after <= min(before, 1.05)
    again = st.order_documents(torch.tensor(lengths), ranks=4, layout=layout, **given)
    assert again[0].tolist() == order.tolist()


def test_orders_that_are_refused():
    with pytest.raises(NotImplementedError, match="layout is striped; contiguous and zigzag have orders"):
        st.order_documents([3, 4], ranks=2, layout="striped")
    with pytest.raises(ValueError, match=r"lengths\[1\] is -4; 0 and more"):
        st.order_documents([3, -4], ranks=2)
    for number in (2**70, 2**63, 2**61 + 1):
        with pytest.raises(ValueError, match=rf"lengths\[0\] is {number}; 0 and more, and 2\^61 in all, is accepted"):
            st.order_documents([number, 3], ranks=2)
    with pytest.raises(ValueError, match=r"lengths\[1\] is \d+; 0 and more, and 2\^61 in all"):
        st.order_documents([2**60, 2**60, 2**60], ranks=2)
    for bad, said in (([3, 1.5], r"\[1\] is 1\.5"), (["4"], r"\[0\] is '4'"), (torch.tensor([2.0]), r"\[0\] is 2\.0")):
        with pytest.raises(TypeError, match=rf"lengths{said}; an integer is accepted"):
            st.order_documents(bad, ranks=2)
    with pytest.raises(ValueError, match="transport.size is 0; 1 to 65536 is accepted"):
        st.order_documents([3, 4], ranks=0)
    with pytest.raises(ValueError, match="ranks is 65537; 1 to 65536 is accepted"):
        st.order_documents([3, 4], ranks=65537)
    with pytest.raises(TypeError, match=r"ranks is 1\.5; an integer is accepted"):
        st.order_documents([3, 4], ranks=1.5)
    with pytest.raises(ValueError, match=r"torch\.distributed has no process group"):
        st.order_documents([3, 4])


def test_a_group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        compare(*tensors(19, 19), layout="zigzag", causal=True)
    finally:
        dist.destroy_process_group()


def on_gpu(*tensors):
    return tuple(x.cuda() for x in tensors)


@pytest.fixture
def nccl(tmp_path):
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        pytest.skip("there is no GPU here, or this PyTorch has no NCCL")
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_gpu(nccl):
    lengths = torch.tensor([0, 90, 90, 300, 410], dtype=torch.int32)
    for total in (None, (410, 410)):
        near = {"tolerance": 3e-2, "total": total, "causal": True}
        compare(*on_gpu(*tensors(410, 410, dims=(64, 64), dtype=torch.bfloat16)), layout="zigzag", **near)
        compare(*on_gpu(*tensors(410, 410, dims=(128, 64), dtype=torch.float16)), layout="striped", scheme="ring", **near)
    packed = on_gpu(*tensors(410, 410, dims=(64, 64), dtype=torch.bfloat16, packed=True))
    parts = [st.shard(x, 0).requires_grad_() for x in packed[:3]]
    whole = [x.detach().clone().requires_grad_() for x in packed[:3]]
    out = st.context_parallel_attention(*parts, causal=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    cu = lengths.cuda()
    right = st.attention(*whole, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=210, max_seqlen_k=210)
    torch.testing.assert_close(out, right, rtol=2e-2, atol=2e-2)
    out.backward(packed[3]), right.backward(packed[3])
    for part, x in zip(parts, whole, strict=True):
        torch.testing.assert_close(part.grad, x.grad, rtol=3e-2, atol=3e-2)


def test_what_a_group_of_nccl_does_not_move(nccl):
    q, k, v, _ = tensors(33, 33)
    with pytest.raises(TypeError, match=r"q is on cpu; a torch\.Tensor on a GPU is accepted"):
        st.context_parallel_attention(q, k, v)


def test_a_captured_graph(nccl):
    q, k, v, _ = on_gpu(*tensors(300, 300, dims=(64, 64), dtype=torch.bfloat16))
    right = st.context_parallel_attention(q, k, v, causal=True, total=(300, 300))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = st.context_parallel_attention(q, k, v, causal=True, total=(300, 300))
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, right)


def on_gpus(rank, size, folder):
    """A process a GPU, the group made by NCCL: the library's own transport where PyTorch tells the communicator, and PyTorch's
    functions otherwise; the ranks compare their calls, or do not."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{folder}/group", rank=rank, world_size=size, device_id=device)
    try:
        for movers in (parallel._nccl, lambda group, device: None):
            parallel._nccl = movers
            bf16 = on_gpu(*tensors(411, 411, heads=(8, 4), dims=(128, 128), dtype=torch.bfloat16))
            packed = on_gpu(*tensors(411, 411, heads=(8, 4), dims=(64, 64), dtype=torch.bfloat16, packed=True))
            lengths = torch.tensor([0, 90, 90, 300, 411], dtype=torch.int32)
            for total in (None, (411, 411)):
                near = {"tolerance": 3e-2, "total": total}
                for layout in LAYOUTS:
                    compare(*bf16, layout=layout, scheme="ring", causal=True, **near)
                    compare(*bf16, layout=layout, scheme="all_gather", window=(70, 20), softcap=20.0, **near)
                    compare(*bf16, layout=layout, scheme="ulysses", causal=True, **near)
                sinks = torch.linspace(-1, 2, 8, device=device)
                compare(*bf16, layout="zigzag", sinks=sinks, causal=True, **near)
                compare(*bf16, layout="contiguous", dropout=0.3, seed=11, alibi_slopes=sinks.abs(), **near)
                compare(*packed, layout="zigzag", causal=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths, **near)
            fp32 = on_gpu(*tensors(70, 83, dtype=torch.float32))
            compare(*fp32, layout="zigzag", causal=True, total=(70, 83), tolerance=1e-3)
            q, k, v, _ = (st.shard(x) for x in bf16)
            with pytest.raises(ValueError, match="the same on every rank is accepted"):
                st.context_parallel_attention(q, k, v, causal=rank == 0)
    except BaseException:
        (folder / f"error{rank}").write_text(traceback.format_exc())
        raise
    dist.destroy_process_group()


def test_over_gpus(tmp_path):
    if torch.cuda.device_count() < 2 or not dist.is_nccl_available():
        pytest.skip("there are no two GPUs here, or this PyTorch has no NCCL")
    mp.spawn(on_gpus, args=(torch.cuda.device_count(), tmp_path), nprocs=torch.cuda.device_count())
