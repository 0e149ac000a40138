# SPDX-License-Identifier: BSD-3-Clause
"""Tensors with nothing in them: no batch, no queries, no keys, alone and together, with every feature, through every function,
forward and backward. A result has its shape; a row that sees no key is 0 with an lse of -inf; gradients are 0."""

import itertools

import numpy as np
import pytest
import strobe
import strobe.torch as st
import torch

SIZES = [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 0, 0), (0, 0, 5), (0, 3, 0), (0, 0, 0)]  # batch, seq_q, seq_k
HEADS, HEADS_KV, DIM, DIM_V = 4, 2, 16, 8


def features(batch, rows, keys):
    """Each feature alone, as keywords with NumPy arrays in them."""
    used_q, used_k = (np.full(batch, n, np.int32) for n in (rows, keys))
    yield "plain", {}
    yield "causal", {"causal": True}
    yield "window", {"window": (2, 1), "diagonal": "top_left"}
    yield "bias", {"bias": np.zeros((batch, HEADS, rows, keys), np.float32)}
    yield "one bias for all", {"bias": np.zeros((1, 1, 1, keys), np.float32)}
    yield "mask", {"mask": np.ones((batch, 1, rows, keys), bool)}
    yield "alibi", {"alibi_slopes": np.ones(HEADS, np.float32)}
    yield "softcap", {"softcap": 3.0}
    yield "sinks", {"sinks": np.full(HEADS, 0.5, np.float32)}
    yield "dropout", {"dropout": 0.3, "seed": 7}
    yield "used lengths", {"used_q": used_q, "used_k": used_k}


CASES = [(sizes, name) for sizes in SIZES for name, _ in features(*sizes)]


def check(out, lse, gradients, shapes, sizes, sinks):
    batch, rows, _ = sizes
    assert tuple(out.shape) == (batch, rows, HEADS, DIM_V) and (out == 0).all()
    assert tuple(lse.shape) == (batch, HEADS, rows) and (lse == (0.5 if sinks else -float("inf"))).all()
    for gradient, shape in zip(gradients, shapes, strict=True):
        assert tuple(gradient.shape) == tuple(shape) and (gradient == 0).all()


@pytest.mark.parametrize(("sizes", "name"), CASES)
@pytest.mark.parametrize("kind", ["numpy", "cpu", "cuda"])
def test_the_calls(kind, sizes, name, device_or_skip):
    batch, rows, keys = sizes
    options = dict(features(*sizes))[name]
    arrays = [
        np.zeros(s, np.float32) for s in ((batch, rows, HEADS, DIM), *((batch, keys, HEADS_KV, d) for d in (DIM, DIM_V)))
    ]
    if kind != "numpy":
        device_or_skip(kind)
        arrays = [torch.from_numpy(x).to(kind) for x in arrays]
        options = {n: torch.from_numpy(x).to(kind) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    out, lse = strobe.attention(*arrays, **options, return_lse=True)
    wanted = [n for n in ("bias", "sinks") if n in options]
    found = strobe.attention_backward(out, *arrays, out, lse, **options, bias_gradient="bias" in options)
    gradients = [x for x in found if x is not None]
    check(out, lse, gradients, [x.shape for x in (*arrays, *(options[n] for n in wanted))], sizes, "sinks" in options)
    assert "chosen" in strobe.explain(*arrays, **options)


@pytest.mark.parametrize(("sizes", "name"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autograd(device, dtype, sizes, name):
    """The gradient of a sum is one number repeated, by strides of 0, also when it is repeated no times."""
    batch, rows, keys = sizes
    leaves = [
        torch.zeros(batch, rows, HEADS, DIM),
        torch.zeros(batch, keys, HEADS_KV, DIM),
        torch.zeros(batch, keys, HEADS_KV, DIM_V),
    ]
    leaves = [x.to(device, dtype).requires_grad_() for x in leaves]
    options = {
        n: torch.from_numpy(x).to(device) if isinstance(x, np.ndarray) else x
        for n, x in dict(features(*sizes))[name].items()
    }
    wanted = [options[n].requires_grad_() for n in ("bias", "sinks") if n in options]
    out, lse = st.attention(*leaves, **options, return_lse=True)
    (out.sum() + (lse.sum() if "sinks" not in options else 0)).backward()
    check(out, lse, [x.grad for x in leaves + wanted], [x.shape for x in leaves + wanted], sizes, "sinks" in options)


@pytest.mark.parametrize(("batch", "rows", "keys"), SIZES)
def test_other_signatures(device, batch, rows, keys):
    def leaf(*shape):
        return torch.zeros(*shape, device=device, dtype=torch.float16, requires_grad=True)

    q, k, v = leaf(batch, HEADS, rows, DIM), leaf(batch, HEADS_KV, keys, DIM), leaf(batch, HEADS_KV, keys, DIM)
    kv, qkv = leaf(batch, keys, 2, HEADS_KV, DIM), leaf(batch, rows, 3, HEADS, DIM)
    calls = [
        (st.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (q, k, v)),
        (st.scaled_dot_product_attention(q, k, v, leaf(rows, keys), enable_gqa=True), (q, k, v)),
        (st.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True), (q, k, v)),
        (st.flash_attn_kvpacked_func(q.transpose(1, 2), kv), (q, kv)),
    ]
    if rows == 0 or batch == 0:
        calls.append((st.flash_attn_qkvpacked_func(qkv, window_size=(1, 1)), (qkv,)))
    for out, leaves in calls:
        assert out.shape[0] == batch and (out == 0).all()
        for leaf_, gradient in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
            assert gradient.shape == leaf_.shape and (gradient == 0).all()


LENGTHS = [[], [0], [0, 0, 0], [3, 0, 2], [0, 4, 0]]


@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"), [x for x in itertools.product(LENGTHS, LENGTHS) if len(x[0]) == len(x[1])]
)
@pytest.mark.parametrize("bound", [0, 6])
def test_packed(device, lengths_q, lengths_k, bound):
    """max_seqlen is an upper bound: one above 0 is legal also where no sequence has a row."""

    def cu(lengths):
        return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)

    q = torch.randn(sum(lengths_q), HEADS, DIM, device=device, requires_grad=True)
    k, v = (torch.randn(sum(lengths_k), HEADS_KV, DIM, device=device, requires_grad=True) for _ in range(2))
    longest = [max([bound, *lengths]) for lengths in (lengths_q, lengths_k)]
    out, lse, _ = st.flash_attn_varlen_func(
        q, k, v, cu(lengths_q), cu(lengths_k), *longest, causal=True, return_attn_probs=True
    )
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert out.shape == q.shape and lse.shape == (HEADS, q.shape[0])
    assert all(g.shape == x.shape for g, x in zip(gradients, (q, k, v), strict=True))
    start = 0
    for rows, keys in zip(lengths_q, lengths_k, strict=True):
        if keys == 0:
            assert (out[start : start + rows] == 0).all() and (lse[:, start : start + rows] == -torch.inf).all()
            assert (gradients[0][start : start + rows] == 0).all()
        start += rows
    if lengths_q == lengths_k and bound == 0:
        qkv = torch.randn(sum(lengths_q), 3, HEADS, DIM, device=device, requires_grad=True)
        out = st.flash_attn_varlen_qkvpacked_func(qkv, cu(lengths_q), longest[0], causal=True)
        assert torch.autograd.grad(out.sum(), qkv)[0].shape == qkv.shape


@pytest.mark.parametrize("where", ["packed", "pages"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_an_empty_quantised_cache(device, dtype, where):
    """There is nothing to scale, and an empty tensor of scales has no memory."""
    slots = (0,) if where == "packed" else (0, 8)
    k, v = (torch.zeros(*slots, HEADS_KV, DIM, device=device).to(dtype) for _ in "kv")
    scales = torch.ones(*slots, HEADS_KV, device=device)
    options = {"k_scale": scales, "v_scale": scales, "scale_block": (1, 1), "return_lse": True}
    if where == "packed":
        options |= {"cu_seqlens_k": torch.zeros(3, dtype=torch.int32, device=device), "max_seqlen_k": 5}
    else:
        options |= {"page_table": torch.zeros(2, 1, dtype=torch.int32, device=device)}
        options |= {"used_k": torch.zeros(2, dtype=torch.int32, device=device)}
    out, lse = strobe.attention(torch.randn(2, 3, HEADS, DIM, device=device), k, v, **options)
    assert out.shape == (2, 3, HEADS, DIM) and (out == 0).all() and (lse == -torch.inf).all()
