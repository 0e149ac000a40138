# SPDX-License-Identifier: BSD-3-Clause
"""What is refused, with the sentence: the argument, the value it had, what is accepted. Nothing is written on refusal."""

import numpy as np
import pytest
import strobe
import torch

Q = np.zeros((2, 5, 4, 8), np.float32)
K = np.zeros((2, 7, 2, 8), np.float32)
T = torch.from_numpy

REFUSED = [
    # arguments, what differs from attention(Q, K, K), exception, sentence
    ((None, K, K), {}, TypeError, "q is a <class 'NoneType'>; a tensor of NumPy, PyTorch, JAX or another framework"),
    (([1.0], K, K), {}, TypeError, "q is a <class 'list'>; a tensor"),
    ((Q[0], K, K), {}, ValueError, r"q.shape is (5, 4, 8); (batch, seq, heads, dim) is accepted"),
    ((Q, K[:1], K), {}, ValueError, r"k.shape is (1, 7, 2, 8); (2, *, *, 8) is accepted"),
    ((Q, K, K[:, :6]), {}, ValueError, r"v.shape is (2, 6, 2, 8); (2, 7, 2, *) is accepted"),
    ((Q, K[..., :4], K), {}, ValueError, r"k.shape is (2, 7, 2, 4); (2, *, *, 8) is accepted"),
    ((Q[:, :, :3], K, K), {}, ValueError, "heads_kv is 2; a divisor of heads_q, 3, is accepted"),
    ((Q, K.astype(np.float16), K), {}, NotImplementedError, "k and v differ in dtype"),
    (
        (Q.astype(int), K, K),
        {},
        ValueError,
        "q.dtype is int64; float32, float16, bfloat16, float64 or, with scales, float8_e4m3fn or int8 is accepted",
    ),
    ((Q.astype(">f4"), K, K), {}, ValueError, "q.dtype is >f4; float32"),
    ((Q.astype(complex), K, K), {}, ValueError, "q.dtype is complex128; float32"),
    ((Q.astype("M8[s]"), K, K), {}, ValueError, "q.dtype is datetime64[s]; float32, or another dtype of numbers that have one"),
    ((T(Q).to(torch.complex64), T(K), T(K)), {}, ValueError, "q.dtype is torch.complex64; float32"),
    ((Q[..., ::2], K[..., ::2], K), {}, ValueError, "q.strides[3] is 2 elements; 1, a contiguous last axis, is accepted"),
    ((np.zeros((1, 1, 1, 577), "f"),) * 3, {}, ValueError, "dim is 577; 1 to 576 is accepted"),
    ((Q[None, None, None, None, None], K, K), {}, ValueError, "q has 9 axes; at most 8 are accepted"),
    ((Q, K, K), {"scale": 0}, ValueError, "scale is 0; None, for 1/sqrt(dim), or a number of a magnitude from 1e-30 to 1e30 is accepted"),
    ((Q, K, K), {"scale": float("nan")}, ValueError, "scale is nan; a number of a magnitude from 1e-30 to 1e30 is accepted"),
    ((Q, K, K), {"softcap": -1}, ValueError, "softcap is -1; 0 (none) or a number from 1e-30 to 1e30 is accepted"),
    ((Q, K, K), {"window": 3}, TypeError, "window is 3; a pair (left, right) is accepted"),
    ((Q, K, K), {"window": (-2, 0)}, ValueError, "window_left is -2;"),
    ((Q, K, K), {"diagonal": "top"}, ValueError, 'diagonal is \'top\'; "bottom_right" or "top_left" is accepted'),
    ((Q, K, K), {"dropout": 0.1}, ValueError, "seed is None with dropout 0.1; an integer in [0, 2**64) is accepted"),
    ((Q, K, K), {"dropout": 1.0, "seed": 1}, ValueError, "dropout.p is 1; at least 0 and below 1 is accepted"),
    ((Q, K, K), {"seed": -1}, ValueError, "seed is -1; an integer in [0, 2**64) is accepted"),
    ((Q, K, K), {"threads": 0}, ValueError, "threads is 0; 1 to 1024 is accepted"),
    ((Q, K, K), {"threads": 1025}, ValueError, "threads is 1025; 1 to 1024 is accepted"),
    ((Q, K, K), {"threads": -(2**63)}, ValueError, "threads is -9223372036854775808; 1 to 1024 is accepted"),
    ((Q, K, K), {"threads": "many"}, TypeError, "threads is 'many'; an integer of 64 bits is accepted"),
    ((Q, K, K), {"kernel": "fastest"}, ValueError, 'kernel is "fastest"; the name of a kernel'),
    ((Q, K, K), {"kernel": "x\0y"}, ValueError, "kernel is 'x\\x00y'; a text without the character of code 0 is accepted"),
    ((Q, K, K), {"visible": "j\0 < i"}, ValueError, "visible is 'j\\x00 < i'; a text without the character of code 0"),
    ((Q, K, K), {"visible": "j < n", "scalars": {"n": "x"}}, TypeError, "n of scalars is 'x'; a number is accepted"),
    ((Q, K, K), {"visible": "j < n", "scalars": {"n": None}}, TypeError, "n of scalars is None; a number is accepted"),
    ((Q, K, K), {"visible": "j < n", "scalars": {"n": 2**2000}}, TypeError, "a number is accepted"),
    ((Q, K, K), {"bias": np.zeros((5, 6), "f")}, ValueError, "bias.shape is (5, 6); (2, 4, 5, 7), or 1 or nothing in place"),
    ((Q, K, K), {"bias": np.zeros((5, 1), "f")}, ValueError, "bias.shape is (5, 1); (2, 4, 5, 7)"),
    ((Q, K, K), {"bias": np.zeros((5, 7), bool)}, ValueError, "bias.dtype is bool; a floating-point dtype is accepted"),
    ((Q, K, K), {"mask": np.zeros((5, 7), "f")}, ValueError, "mask.dtype is float32; bool (True: visible) is accepted"),
    ((Q, K, K), {"mask": np.zeros((7, 5), bool).T}, ValueError, "mask.strides[1] is 5 elements; 1, a contiguous last axis"),
    ((Q, K, K), {"block_mask": np.zeros((1, 1), bool)}, TypeError, "block_size is None; a tuple (rows, keys)"),
    ((Q, K, K), {"alibi_slopes": np.zeros(4)}, ValueError, "alibi_slopes.dtype is float64; float32 is accepted"),
    ((Q, K, K), {"alibi_slopes": np.zeros(3, "f")}, ValueError, "alibi_slopes.shape is (3,); (4,) is accepted"),
    ((Q, K, K), {"alibi_slopes": np.zeros(8, "f")[::2]}, ValueError, "alibi_slopes.strides[0] is 2 elements; 1, a contiguous"),
    ((Q, K, K), {"sinks": np.zeros(8, "f")[::2]}, ValueError, "sinks.strides[0] is 2 elements; 1, a contiguous axis, is"),
    ((Q, K, K), {"used_k": np.zeros(4, int)[::2]}, ValueError, "used_k.strides[0] is 2 elements; 1, a contiguous axis, is"),
    ((Q, K, K), {"sinks": np.zeros(3, "f")}, ValueError, "sinks.shape is (3,); (4,) is accepted"),
    ((Q, K, K), {"max_seqlen_q": 5}, ValueError, "max_seqlen_q is given without cu_seqlens; both or none is accepted"),
    ((Q, K, K), {"cu_seqlens_q": np.array([0, 5])}, ValueError, "q.shape is (2, 5, 4, 8); (total_q, heads, dim), with"),
    ((Q[0], K[:1], K[:1]), {"cu_seqlens_q": np.array([0, 6])}, ValueError, "cu_seqlens_q ends at 6; at most total_q, 5"),
    (
        (Q[0], K[:1], K[:1]),
        {"cu_seqlens_q": np.array([0.0, 5])},
        ValueError,
        "cu_seqlens_q.dtype is float64; int32 or int64",
    ),
    ((Q[0, :0], K[:1], K[:1]), {"cu_seqlens_q": np.array([0, 5])}, ValueError, "cu_seqlens_q ends at 5; the rows of q, 0"),
    ((Q, K, K), {"used_k": np.array([8, 1])}, ValueError, "used_k[0] is 8; 0 to 7 is accepted"),
    ((Q, K, K), {"used_k": np.array([1])}, ValueError, "used_k.shape is (1,); (2,) is accepted"),
    ((Q, K, K), {"out": np.zeros((2, 5, 4, 9), "f")}, ValueError, "out.shape is (2, 5, 4, 9); (2, 5, 4, 8) is accepted"),
    ((Q, K, K), {"out": np.zeros(Q.shape)}, ValueError, "out.dtype is float64; float32 is accepted"),
    ((Q, K, K), {"out": Q}, ValueError, "out is the memory of q; memory of its own is accepted"),
    ((Q, K, K), {"out": np.broadcast_to(np.zeros(8, "f"), Q.shape)}, ValueError, "out is read-only; a tensor that can be"),
    ((Q, K, K), {"out": np.zeros((2, 5, 4, 16), "f")[..., ::2]}, ValueError, "out.strides[3] is 2 elements; 1"),
    ((T(Q).requires_grad_(), T(K), T(K)), {}, ValueError, "q requires a gradient, which is not recorded here; strobe.torch"),
    (
        (torch._neg_view(T(Q)), T(K), T(K)),
        {},
        ValueError,
        "q is a view with its negative bit set; q.resolve_neg() is accepted",
    ),
    ((T(Q).to("meta"), T(K), T(K)), {}, ValueError, "q is a tensor on meta, torch.strided, whose data cannot be read; a"),
    ((T(Q), T(K).to_sparse(), T(K)), {}, ValueError, "k is a tensor on cpu, torch.sparse_coo, whose data cannot be read"),
]


@pytest.mark.parametrize(("tensors", "options", "exception", "sentence"), REFUSED)
def test_refused(tensors, options, exception, sentence):
    with pytest.raises(exception) as caught:
        strobe.attention(*tensors, **options)
    assert sentence in str(caught.value)


def test_no_array_of_jax_is_written():
    jnp = pytest.importorskip("jax").numpy
    q, k = jnp.asarray(Q), jnp.asarray(K)
    out, lse = strobe.attention(q, k, k, return_lse=True)
    parts, sums = [out, out], [lse, lse]
    zeros = jnp.zeros(Q.shape)
    calls = {
        "out": (lambda: strobe.attention(q, k, k, out=zeros), lambda: strobe.merge(parts, sums, out=zeros)),
        "dq": (lambda: strobe.attention_backward(out, q, k, k, out, lse, dq=zeros),),
    }
    for name in calls:
        for call in calls[name]:
            with pytest.raises(ValueError, match=f"{name} is an array of JAX, which never changes; a tensor that can be"):
                call()
    assert not zeros.any()


def test_nothing_is_written_on_refusal():
    out = np.full(Q.shape, 7, np.float32)
    with pytest.raises(ValueError):
        strobe.attention(Q, K, K, out=out, softcap=-1)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lse": np.zeros((2, 4, 6), "f")}, "lse.shape is (2, 4, 6); (2, 4, 5) is accepted"),
        ({"lse": np.zeros((2, 4, 5))}, "lse.dtype is float64; float32 is accepted"),
        ({"dout": np.zeros((2, 5, 4, 7), "f")}, "dout.shape is (2, 5, 4, 7); (2, 5, 4, 8) is accepted"),
        ({"bias_gradient": True}, "bias_gradient is True without a bias; both or none is accepted"),
        ({"dq": K}, "dq.shape is (2, 7, 2, 8); (2, 5, 4, 8) is accepted"),
    ],
)
def test_refused_in_backward(change, sentence):
    out, lse = strobe.attention(Q, K, K, return_lse=True)
    arguments = {"dout": out, "q": Q, "k": K, "v": K, "out": out, "lse": lse} | change
    with pytest.raises(ValueError) as caught:
        strobe.attention_backward(**arguments)
    assert sentence in str(caught.value)


def test_a_repeated_bias_has_no_gradient_of_its_own():
    out, lse = strobe.attention(Q, K, K, return_lse=True)
    bias = np.broadcast_to(np.zeros((5, 7), "f"), (4, 5, 7))
    with pytest.raises(ValueError, match="bias repeats along axis 0 by a stride of 0"):
        strobe.attention_backward(out, Q, K, K, out, lse, bias=bias, bias_gradient=True)


def test_refused_by_merge():
    out, lse = strobe.attention(Q, K, K, return_lse=True)
    for outs, lses, sentence in (
        ([], [], "outs has 0 parts and lses has 0; as many of both, at least 1, are accepted"),
        ([out, out], [lse], "outs has 2 parts and lses has 1"),
        ([out, out[:, :3]], [lse, lse], "outs[].shape is (2, 3, 4, 8); (2, 5, 4, 8) is accepted"),
        ([out], [lse.astype(np.float64)], "lse.dtype is fp64; accepted are fp32"),
    ):
        with pytest.raises(ValueError) as caught:
            strobe.merge(outs, lses)
        assert sentence in str(caught.value)
    with pytest.raises(TypeError, match="lses is 3; a sequence of tensors is accepted"):
        strobe.merge([out], 3)


def test_no_gradient_is_wanted_in_no_grad():
    with torch.no_grad():
        strobe.attention(T(Q).requires_grad_(), T(K), T(K))


def test_unknown_arguments_are_python_errors():
    with pytest.raises(TypeError, match="casual"):
        strobe.attention(Q, K, K, casual=True)
    with pytest.raises(ValueError, match="threads is 0; 1 to 1024 is accepted"):
        strobe.set_num_threads(0)
