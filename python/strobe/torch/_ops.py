# SPDX-License-Identifier: BSD-3-Clause
"""The custom operators: real kernels, fake ones for tracing, autograd, vmap.

An operator's schema knows tensors and numbers only, and returns tensors always: a gradient that nobody asked for is an empty
tensor. The seed of dropout is a tensor, so that drawing it is part of a traced graph. The bounds of lengths may be symbols of a
traced graph, so that another length needs no other graph.

Attention and its gradient are two operators, and two more for dropout. A CUDA graph would keep the seed that it was recorded
with and drop the same weights at each replay, so torch.compile leaves the latter out of its CUDA graphs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from strobe import _strobe
from strobe.torch._shapes import check_scores, check_shapes
from strobe.torch._vmap import backward_rule, forward_rule

# The arguments of both operators: the names of strobe.attention, and the types of schemas. Tensors come first.
SHARED = {
    "q": "Tensor",
    "k": "Tensor",
    "v": "Tensor",
    "bias": "Tensor?",
    "mask": "Tensor?",
    "alibi_slopes": "Tensor?",
    "sinks": "Tensor?",
    "cu_seqlens_q": "Tensor?",
    "cu_seqlens_k": "Tensor?",
    "used_q": "Tensor?",
    "used_k": "Tensor?",
    "block_mask": "Tensor?",
    "seed": "Tensor?",
    "max_seqlen_q": "SymInt?",
    "max_seqlen_k": "SymInt?",
    "q_start": "SymInt",
    "k_start": "SymInt",
    "block_size": "int[]?",
    "offset": "int",
    "kernel": "str?",
    "causal": "bool",
    "window": "int[]",
    "diagonal": "str",
    "softcap": "float?",
    "dropout": "float",
    "scale": "float?",
    "deterministic": "bool",
    "tf32x3": "bool",
    "mask_lists": "Tensor[]?",  # the memory, and the bytes of what it was made for as a tensor of the CPU
}
DEFAULTS = {
    "q_start": 0, "k_start": 0, "offset": 0, "causal": False, "window": (-1, -1), "diagonal": "bottom_right", "dropout": 0.0,
    "deterministic": False, "tf32x3": False,
}  # fmt: skip
SCHEMA = ", ".join(f"{kind} {name}" for name, kind in SHARED.items())
TENSORS = sum(kind in ("Tensor", "Tensor?") for kind in SHARED.values())
_BIAS, _SINKS, _SEED = (list(SHARED).index(name) for name in ("bias", "sinks", "seed"))
_OTHERWISE = {"block_size", "mask_lists", "seed"}
READ_IN_PLACE = ("q", "k", "v", "bias", "mask", "block_mask", "alibi_slopes", "sinks")


def usable(x: Tensor | None) -> Tensor | None:
    """A tensor as the library takes it: the last axis contiguous, and not one row repeated everywhere."""
    if x is None or x.numel() == 0 or x.layout is not torch.strided:  # the extension refuses a sparse one with a sentence
        return x
    if x.is_neg():
        x = x.resolve_neg()
    if x.is_contiguous():
        return x
    stride = x.stride()
    return x if stride[-1] == 1 and (x.dim() == 1 or any(stride[:-1])) else x.contiguous()


def adapt(options: dict[str, Any]) -> dict[str, Any]:
    """The same where a schema has another form than the extension; options itself where there is nothing of that."""
    if _OTHERWISE.isdisjoint(options):
        return options
    options = dict(options)
    if "block_size" in options:
        options["block_size"] = tuple(options["block_size"])
    if "mask_lists" in options:
        memory, made_for = options["mask_lists"]
        options["mask_lists"] = (memory, bytes(made_for.tolist()))
    if "seed" in options:
        options["seed"] = options["seed"].item() & (2**64 - 1)
    return options


def options(shared: tuple) -> dict[str, Any]:
    """The extension's arguments from the operators'."""
    given = {name: x for name, x in zip(SHARED, shared, strict=True) if x is not None}
    for name in READ_IN_PLACE:
        if name in given:
            given[name] = usable(given[name])
    return adapt(given)


def lse_shape(q: Tensor, cu_seqlens_q: Tensor | None) -> tuple:
    return (q.shape[0], q.shape[2], q.shape[1]) if cu_seqlens_q is None else (q.shape[1], q.shape[0])


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _attention(*shared):
    with torch.no_grad():
        return _strobe.attention(**options(shared), return_lse=True)


def _check_devices(shared: tuple) -> None:
    """As the library does where there is data; only the seed, and what lists were made for, are the CPU's always."""
    for name, x in zip(list(SHARED)[:_SEED], shared, strict=False):
        if x is not None and x.device != shared[0].device:
            raise ValueError(f"{name} is on {x.device}; q's device, {shared[0].device}, is accepted")


def fake_attention(*shared):
    _check_devices(shared)
    q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, *_ = shared
    extents = check_shapes(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks=sinks, alibi_slopes=alibi_slopes)
    check_scores({"bias": bias, "mask": mask}, extents)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(lse_shape(q, cu_seqlens_q), dtype=_lse_dtype(q))


def _attention_backward(dout, dlse, out, lse, bias_gradient, q, *shared):
    given = options((q, *shared))
    given.pop("kernel", None)  # the forward's
    with torch.no_grad():
        dq, dk, dv, dbias, dsinks = _strobe.attention_backward(
            **given, out=out, dout=usable(dout), lse=lse, dlse=usable(dlse), bias_gradient=bias_gradient
        )
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias, q.new_empty(0) if dsinks is None else dsinks


def _fake_attention_backward(dout, dlse, out, lse, bias_gradient, *shared):
    _check_devices(shared)
    q, k, v, bias, mask, alibi_slopes, sinks, *_ = shared
    dbias = bias.new_empty(bias.shape) if bias_gradient else q.new_empty(0)
    dsinks = q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias, dsinks


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*output, *inputs[:TENSORS])
    ctx.numbers = inputs[TENSORS:]
    ctx.set_materialize_grads(False)


def gradients(ctx, dout, dlse, backward):
    out, lse, *tensors = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    wants_bias, wants_sinks = ctx.needs_input_grad[_BIAS], ctx.needs_input_grad[_SINKS]
    dq, dk, dv, dbias, dsinks = backward(dout, dlse, out, lse, wants_bias, *tensors, *ctx.numbers)
    given = (dq, dk, dv, dbias if wants_bias else None, None, None, dsinks if wants_sinks else None)
    return given + (None,) * (len(ctx.needs_input_grad) - len(given))


def refuse_second(ctx, *gradients):
    raise NotImplementedError(
        "strobe.torch has no second derivatives of attention; gradients without create_graph=True are accepted"
    )


def refuse_forward_derivatives(*given):
    """Refuses a tensor with a tangent, which the results would not have: an operator that needs no gradient drops it."""
    if torch.compiler.is_compiling() or getattr(forward_ad, "_current_level", 0) < 0:
        return
    for x in given:
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            refuse_tangents()


def refuse_tangents(*given):
    raise NotImplementedError("strobe.torch has no forward derivatives of attention; gradients by backward are accepted")


def define(name, schema, tags, kernel, fake):
    # Not torch.library.custom_op, which does the same and asks on every call whether the results are new tensors: they are.
    torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    torch.library.impl(name, "default", kernel)
    torch.library.register_fake(name, fake)


def _names(operator) -> list[str]:
    return [argument.name for argument in operator._schema.arguments]


def _operators(name, tags=()):
    """Define strobe::name and strobe::name_backward; return both."""
    forward, backward = f"strobe::{name}", f"strobe::{name}_backward"
    given = "Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool bias_gradient"
    define(forward, f"({SCHEMA}) -> (Tensor, Tensor)", tags, _attention, fake_attention)
    five = ", ".join(["Tensor"] * 5)
    define(backward, f"({given}, {SCHEMA}) -> ({five})", tags, _attention_backward, _fake_attention_backward)
    called = [getattr(torch.ops.strobe, operator).default for operator in (name, f"{name}_backward")]
    torch.library.register_autograd(
        forward, lambda ctx, dout, dlse: gradients(ctx, dout, dlse, called[1]), setup_context=setup_context
    )
    torch.library.register_autograd(backward, refuse_second)
    for operator, rule in zip(called, (forward_rule, backward_rule), strict=True):
        torch.library.register_vmap(operator, rule(operator, _names(operator)))
    return called


# Versions of PyTorch without the tag record a CUDA graph around an operator or do not, as a whole.
_NO_CUDA_GRAPH = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []

attention, attention_backward = _operators("attention")
attention_dropout, attention_dropout_backward = _operators("attention_dropout", _NO_CUDA_GRAPH)


class _TransformedBackward(torch.autograd.Function):
    """attention_backward for the transforms of torch.func, which do not work with an operator's autograd in Python."""

    @staticmethod
    def forward(*arguments):
        return _attention_backward(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(refuse_second)
    jvp = staticmethod(refuse_second)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        rule = backward_rule(_TransformedBackward.apply, _names(attention_backward))
        return rule(info, in_dims, *arguments)


class Transformed(torch.autograd.Function):
    """Attention for the transforms of torch.func."""

    @staticmethod
    def forward(*shared):
        return _attention(*shared)

    setup_context = staticmethod(setup_context)
    jvp = staticmethod(refuse_tangents)

    @staticmethod
    def backward(ctx, dout, dlse):
        return gradients(ctx, dout, dlse, _TransformedBackward.apply)

    @staticmethod
    def vmap(info, in_dims, *shared):
        return forward_rule(Transformed.apply, list(SHARED))(info, in_dims, *shared)
