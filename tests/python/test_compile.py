# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile in its three modes, forward and backward, with lengths that change: "reduce-overhead" and "max-autotune" put
calls into CUDA graphs, which hold only memory of PyTorch's own allocator. On the CPU the default mode."""

import itertools

import pytest
import strobe.torch as st
import torch

MODES = ["default", "reduce-overhead", "max-autotune"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=[("cpu", "default"), *(("cuda", mode) for mode in MODES)], ids="-".join)
def place(request, device_or_skip):
    """A device, its dtype, and how to compile there."""
    device, mode = request.param
    device_or_skip(device)
    return (
        device,
        torch.float32 if device == "cpu" else torch.bfloat16,
        lambda f: torch.compile(f, mode=mode, fullgraph=True),
    )


def repeated(call, times=3):
    """The results of the last of a few calls: a CUDA graph is recorded on the second, replayed on the third."""
    for _ in range(times):
        torch.compiler.cudagraph_mark_step_begin()
        results = [x.clone() for x in call()]
    return results


def test_forward_and_backward(place):
    device, dtype, compiled = place

    def step(q, k, v):
        return st.attention(q * 2, k, v, causal=True, deterministic=True) * 0.5  # exact, so that results can be equal

    fast = compiled(step)

    def call(function, leaves, dout):
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, leaves, dout)]

    for rows in (64, 96, 33, 96, 1, 200, 64):
        leaves = [torch.randn(2, rows, h, 64, device=device, dtype=dtype, requires_grad=True) for h in (4, 2, 2)]
        dout = torch.randn(2, rows, 4, 64, device=device, dtype=dtype)
        expected = call(step, leaves, dout)
        got = repeated(lambda: call(fast, leaves, dout))
        assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True)), rows


def test_forward_alone(place):
    device, dtype, compiled = place

    def step(q, k, v, mask):
        out = st.scaled_dot_product_attention(q * 2, k, v, mask, enable_gqa=True)
        more, lse, _ = st.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, return_attn_probs=True)
        return out, more, lse

    fast = compiled(step)
    with torch.inference_mode():
        for rows in (64, 40, 64, 129):
            tensors = [torch.randn(2, h, rows, 64, device=device, dtype=dtype) for h in (4, 2, 2)]
            tensors.append(torch.rand(rows, rows, device=device) < 0.8)
            got = repeated(lambda: fast(*tensors))
            assert all(torch.equal(x, y) for x, y in zip(got, step(*tensors), strict=True)), rows


def test_packed_sequences(place):
    """Bounds that differ in every call, more of them than PyTorch compiles one function for."""
    device, dtype, compiled = place

    def step(q, k, v, cu, longest):
        return st.flash_attn_varlen_func(q, k, v, cu, cu, longest, longest, causal=True, deterministic=True)

    fast = compiled(step)
    for longest in range(20, 32):
        lengths = [longest, 5, longest - 3]
        cu = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
        leaves = [torch.randn(sum(lengths), 4, 64, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        expected, got = step(*leaves, cu, longest), fast(*leaves, cu, longest)
        assert torch.equal(got, expected)
        for x, y in zip(*(torch.autograd.grad(o.sum(), leaves) for o in (got, expected)), strict=True):
            assert torch.equal(x, y)


def test_steps_over_a_cache():
    """A prompt, then tokens: one graph a shape, and the caches are written as they are without it. On the CPU."""
    k_cache, v_cache = torch.zeros(2, 8, 16, 2, 64)
    table = torch.tensor([[5, 1, 2], [0, 7, 3]], dtype=torch.int32)
    cos, sin = torch.randn(2, 48, 32)

    def step(q, k, v, k_cache, v_cache, lengths):
        out = st.flash_attn_with_kvcache(
            q * 2,
            k_cache,
            v_cache,
            k,
            v,
            rotary_cos=cos,
            rotary_sin=sin,
            cache_seqlens=lengths,
            page_table=table,
            causal=True,
        )
        return out + 1

    fast = torch.compile(step, fullgraph=True)
    lengths = torch.tensor([0, 3], dtype=torch.int32)
    caches = [(k_cache.clone(), v_cache.clone()) for _ in range(2)]
    for rows in (20, 1, 1, 1):
        new = [torch.randn(2, rows, h, 64) for h in (4, 2, 2)]
        out, expected = (call(*new, *own, lengths) for call, own in zip((fast, step), caches, strict=True))
        assert torch.equal(out, expected)
        assert all(torch.equal(x, y) and x.any() for x, y in zip(*caches, strict=True))
        lengths = lengths + rows


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this version of PyTorch has no such tag")
@pytest.mark.parametrize("name", ["attention_dropout", "attention_dropout_backward"])
def test_no_cuda_graph_keeps_a_seed(name):
    assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.strobe, name).default.tags
    assert torch.Tag.cudagraph_unsafe not in torch.ops.strobe.attention.default.tags


def test_dropout_is_drawn_anew(place):
    device, dtype, compiled = place
    fast = compiled(lambda q: st.attention(q, q, q, dropout=0.5))
    q = torch.randn(1, 16, 2, 64, device=device, dtype=dtype)
    first = fast(q).clone()
    for _ in range(3):
        assert not torch.equal(fast(q), first)
