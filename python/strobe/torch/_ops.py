# SPDX-License-Identifier: BSD-3-Clause
"""The two custom operators: real kernels, fake ones for tracing, autograd, and a clear word to vmap.

An operator's schema knows tensors and numbers only, and returns tensors always: a gradient that nobody asked for is an empty
tensor. The seed of dropout is a tensor, so that drawing it is part of a traced graph.
"""

import torch
from torch import Tensor

from strobe import _strobe

# The arguments that both operators take, in the order of _arguments.
_SHARED = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, Tensor? alibi_slopes, Tensor? sinks, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? used_q, Tensor? used_k, Tensor? seed, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, bool causal, int window_left, int window_right, bool top_left, "
    "float softcap, float dropout, float? scale, bool deterministic"
)
_TENSORS = _SHARED.count("Tensor")  # the first so many of them


def _usable(x: Tensor | None) -> Tensor | None:
    """A tensor as the library takes it: the last axis contiguous, and not one row repeated everywhere."""
    if x is None or x.numel() == 0:
        return x
    x = x.resolve_neg()
    stride = x.stride()
    return x if stride[-1] == 1 and (x.dim() == 1 or any(stride[:-1])) else x.contiguous()


def _arguments(
    q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, used_q, used_k, seed, max_seqlen_q, max_seqlen_k,
    causal, window_left, window_right, top_left, softcap, dropout, scale, deterministic,
):  # fmt: skip
    """The extension's common arguments (enum argument in python/src/arguments.h)."""
    return (
        _usable(q), _usable(k), _usable(v), causal, (window_left, window_right), "top_left" if top_left else "bottom_right",
        _usable(bias), _usable(mask), None, None, alibi_slopes, softcap, sinks, dropout,
        None if seed is None else seed.item() & (2**64 - 1), 0, scale, cu_seqlens_q, cu_seqlens_k,
        max_seqlen_q or None, max_seqlen_k or None, used_q, used_k, 0, 0, deterministic, None, None, None, None,
    )  # fmt: skip


def _lse_shape(q: Tensor, cu_seqlens_q: Tensor | None) -> tuple:
    return (q.shape[0], q.shape[2], q.shape[1]) if cu_seqlens_q is None else (q.shape[1], q.shape[0])


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


@torch.library.custom_op("strobe::attention", mutates_args=(), schema=f"({_SHARED}) -> (Tensor, Tensor)")
def attention(*shared):
    with torch.no_grad():
        return _strobe.attention(*_arguments(*shared), True, None, None)


@attention.register_fake
def _(q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, *rest):
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(_lse_shape(q, cu_seqlens_q), dtype=_lse_dtype(q))


@torch.library.custom_op(
    "strobe::attention_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool bias_gradient, {_SHARED}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def attention_backward(dout, dlse, out, lse, bias_gradient, q, *shared):
    with torch.no_grad():
        dq, dk, dv, dbias, dsinks = _strobe.attention_backward(
            *_arguments(q, *shared), _usable(dout), out, lse, _usable(dlse), None, None, None, bias_gradient
        )
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias, q.new_empty(0) if dsinks is None else dsinks


@attention_backward.register_fake
def _(dout, dlse, out, lse, bias_gradient, q, k, v, bias, mask, alibi_slopes, sinks, *rest):
    dbias = bias.new_empty(bias.shape) if bias_gradient else q.new_empty(0)
    dsinks = q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias, dsinks


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*output, *inputs[:_TENSORS])
    ctx.numbers = inputs[_TENSORS:]
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, dlse):
    out, lse, *tensors = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    wants_bias, wants_sinks = ctx.needs_input_grad[3], ctx.needs_input_grad[6]
    dq, dk, dv, dbias, dsinks = attention_backward(dout, dlse, out, lse, wants_bias, *tensors, *ctx.numbers)
    given = (dq, dk, dv, dbias if wants_bias else None, None, None, dsinks if wants_sinks else None)
    return given + (None,) * (len(ctx.needs_input_grad) - len(given))


attention.register_autograd(_backward, setup_context=_setup_context)


def _refuse_vmap(info, in_dims, *args):
    raise NotImplementedError(
        "strobe.torch has no rule for torch.func.vmap; the axis to map over is accepted as part of the batch, the first axis "
        "of q, k and v"
    )


attention.register_vmap(_refuse_vmap)
attention_backward.register_vmap(_refuse_vmap)
