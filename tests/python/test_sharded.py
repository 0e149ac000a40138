# SPDX-License-Identifier: BSD-3-Clause
"""Attention of DTensors over processes of gloo's, against one process: out, lse, gradients, refusals."""

import traceback

import pytest
import strobe.torch as st
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

NEAR = {"rtol": 2e-5, "atol": 2e-5}


def tensors(batch=4, rows=11, keys=13, heads=(8, 4), dims=(16, 8), packed=False):
    """q, k, v and dout of the whole, the same on every process."""
    generator = torch.Generator().manual_seed(3)

    def normal(rows, h, d):
        return torch.randn((rows, h, d) if packed else (batch, rows, h, d), generator=generator)

    return (
        normal(rows, heads[0], dims[0]),
        normal(keys, heads[1], dims[0]),
        normal(keys, heads[1], dims[1]),
        normal(rows, heads[0], dims[1]),
    )


def compare(mesh, cuts, q, k, v, dout, call=st.attention, of_kv=None, placed=(), **options):
    """The same call of DTensors and of plain tensors. cuts: q's placements. placed: those of other tensors, replicated
    otherwise."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    given = {"q": q, "k": k, "v": v} | {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
    placements = {"q": cuts, "k": of_kv or cuts, "v": of_kv or cuts} | dict(placed)
    whole, parts = {}, {}
    for name, x in given.items():
        wanted = name in ("q", "k", "v", "bias", "sinks")
        whole[name] = x.clone().requires_grad_(wanted)
        at = placements.get(name, [Replicate()] * mesh.ndim)
        parts[name] = distribute_tensor(x.clone(), mesh, at).requires_grad_(wanted)
    with_lse = call is st.attention
    if with_lse:
        options["return_lse"] = True

    def results(tensors, dout):
        made = call(**(options | tensors))
        out, lse = made if with_lse else (made, None)
        total = (out * dout).sum()
        return out, lse, total if lse is None else total + lse.sum()

    out, lse, total = results(whole, dout)
    total.backward()
    own, own_lse, own_total = results(parts, distribute_tensor(dout, mesh, [Replicate()] * mesh.ndim))
    own_total.backward()
    assert isinstance(own, DTensor) and own.placements == tuple(cuts) and own.shape == out.shape
    torch.testing.assert_close(own.full_tensor(), out, **NEAR)
    if with_lse:
        torch.testing.assert_close(own_lse.full_tensor(), lse, **NEAR)
    for name, x in whole.items():
        if x.requires_grad:
            assert parts[name].grad.placements == parts[name].placements
            torch.testing.assert_close(parts[name].grad.full_tensor(), x.grad, **NEAR)


def results(mesh):
    from torch.distributed.tensor import Replicate, Shard

    generator = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    batch, heads, whole = [Shard(0)] * mesh.ndim, [Shard(2)] * mesh.ndim, [Replicate()] * mesh.ndim
    given = tensors()
    for cuts in [batch, heads, whole] + ([[Shard(0), Shard(2)], [Shard(-2), Replicate()]] if mesh.ndim == 2 else []):
        if Shard(-2) in cuts:
            cuts = [Shard(2), Replicate()]
        compare(mesh, cuts, *given)
        compare(mesh, cuts, *given, causal=True, diagonal="top_left", scale=0.3)
        compare(mesh, cuts, *given, of_kv=whole, window=(4, 3), softcap=9.0)
        compare(mesh, cuts, *given, sinks=normal(8), alibi_slopes=normal(8).abs())
        compare(mesh, cuts, *given, alibi_slopes=normal(4, 8).abs(), bias=normal(11, 13))
        for shape in ((4, 8, 11, 13), (4, 1, 11, 13), (8, 1, 13), (1, 1, 1, 13)):
            compare(mesh, cuts, *given, bias=normal(*shape), mask=normal(*shape) > -1)
        used = torch.tensor([3, 11, 0, 7], dtype=torch.int32)
        compare(mesh, cuts, *given, used_q=used, used_k=used + 2, causal=True)
        compare(mesh, cuts, *given, mask=normal(4, 8, 11, 13) > 0, placed={"mask": [Shard(3)] * mesh.ndim})
        blocks = torch.tensor([[True, False], [True, True]]).expand(4, 8, 2, 2).contiguous()
        blocks[2, 3:] = ~blocks[2, 3:]
        compare(mesh, cuts, *given, block_mask=blocks, block_size=(8, 8))
    compare(mesh, batch, *tensors(batch=3), sinks=normal(8))
    compare(mesh, batch, *tensors(batch=1), bias=normal(1, 8, 11, 13))
    lengths = {
        "cu_seqlens_q": torch.tensor([0, 5, 11], dtype=torch.int32),
        "cu_seqlens_k": torch.tensor([0, 6, 13], dtype=torch.int32),
    }
    lengths |= {"max_seqlen_q": 6, "max_seqlen_k": 7}
    compare(mesh, [Shard(1)] * mesh.ndim, *tensors(packed=True), causal=True, **lengths)
    compare(mesh, whole, *given, dropout=0.4, seed=9)


def other_signatures(mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    q, k, v, dout = (x.transpose(1, 2).contiguous() for x in tensors())
    for axis in (0, 1):
        cuts = [Shard(axis)] * mesh.ndim

        def call(q, k, v, **options):
            return st.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)

        compare(mesh, cuts, q, k, v, dout, call=call, is_causal=True)
        compare(mesh, cuts, q, k, v, dout, call=call, attn_mask=torch.ones(11, 13, dtype=torch.bool).tril(1))
        compare(mesh, [Shard(2 * axis)] * mesh.ndim, *tensors(), call=st.flash_attn_func, causal=True)
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        compare(mesh, cuts, q, k, v, dout, call=compiled, is_causal=True)
    # A product with a weight that is cut by its inputs is a sum that is not added up yet.
    x, w = (distribute_tensor(x, mesh, [Shard(at)] * mesh.ndim) for x, at in ((q, 3), (torch.eye(16), 0)))
    summed = x @ w
    assert summed.placements[0].is_partial()
    k, v = (distribute_tensor(x, mesh, [Replicate()] * mesh.ndim) for x in (k, v))
    out = call(summed, k, v)
    torch.testing.assert_close(out.full_tensor(), call(q, k.to_local(), v.to_local()), **NEAR)


def refusals(mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole = tensors()[:3]

    def placed(axis, *given):
        return [distribute_tensor(x, mesh, [Shard(axis)] * mesh.ndim) for x in given or whole]

    def refuses(error, said, q, k, v, **options):
        with pytest.raises(error, match=said):
            st.attention(q, k, v, **options)

    q, k, v = placed(0)
    refuses(NotImplementedError, r"q is sharded as S.*batch or of heads.*context_parallel_attention", *placed(1))
    refuses(NotImplementedError, r"k is sharded as S", q, *placed(1)[1:])
    refuses(NotImplementedError, "heads_kv is 1 over", *placed(2, *tensors(heads=(8, 1))[:3]))
    refuses(TypeError, "k is a .*Tensor'> beside a DTensor", q, whole[1], v)
    refuses(TypeError, "sinks is a .*Tensor'> beside a DTensor", q, k, v, sinks=torch.zeros(8))
    refuses(NotImplementedError, "dropout is given beside DTensors", q, k, v, dropout=0.3, seed=4)
    refuses(NotImplementedError, "score is given beside DTensors", q, k, v, score="score + h")
    refuses(ValueError, r"v\.shape is", q, k, v[:, :, 0])
    [mask] = placed(0, torch.ones(2, 1, 1, 13) > 0)
    refuses(ValueError, r"mask\.shape is \(2, 1, 1, 13\); 4 for axis 0, the batch", q, k, v, mask=mask)
    refuses(ValueError, r"k\.shape is", q, *placed(0, *tensors(batch=2)[1:3]))
    with pytest.raises(NotImplementedError, match="q of attention over a cache is a DTensor"):
        st.flash_attn_with_kvcache(q, k, k)
    with pytest.raises(NotImplementedError, match="k_cache of a cache is a DTensor"):
        st.append(k, k, k, k)
    q, k, v = (distribute_tensor(x, mesh, [Replicate()] * mesh.ndim) for x in whole)
    refuses(NotImplementedError, "dropout is given beside DTensors", q, k, v, dropout=0.3)


def run(rank, shape, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=torch.Size(shape).numel())
    try:
        mesh = dist.init_device_mesh("cpu", shape)
        for check in (results, other_signatures, refusals):
            check(mesh)
    except BaseException:
        (folder / f"error{rank}").write_text(traceback.format_exc())
        raise
    dist.destroy_process_group()


@pytest.mark.parametrize("shape", [(2,), pytest.param((2, 2), marks=pytest.mark.full)])
def test_over_processes(shape, tmp_path):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    pytest.importorskip("torch.distributed.tensor")
    mp.spawn(run, args=(shape, tmp_path), nprocs=torch.Size(shape).numel())
