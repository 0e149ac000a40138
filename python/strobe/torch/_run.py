# SPDX-License-Identifier: BSD-3-Clause
"""Which way a call takes. Where something looks at operators, such as a compiler or a mode, it is the operator (_ops.py).
Elsewhere a call goes past it: the dispatcher and an operator's autograd in Python cost several times what a small call of the
library takes. There each step counts: what is not given is not passed on, and tensors are looked at when the library has refused
one."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from strobe import _strobe
from strobe.torch import _ops
from strobe.torch._compiled import efficient as _efficient
from strobe.torch._compiled import flash as _flash

PLAIN = (Tensor, torch.nn.Parameter)

_NAMES = tuple(_ops.SHARED)
_TENSOR_NAMES, _NUMBER_NAMES = _NAMES[: _ops.TENSORS], _NAMES[_ops.TENSORS :]
_SEED = _NAMES.index("seed")
_READ_IN_PLACE = (*_ops.READ_IN_PLACE, "dout", "dlse")
_GRADIENTS = ("q", "k", "v", "bias", "sinks")  # as attention_backward returns them


_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled

try:
    # What PyTorch's own functions ask of it, each of which would be a call more.
    _interpreter, _trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
    _dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
    _profiles, _casts = torch.autograd._profiler_enabled, torch._C._is_any_autocast_enabled
    _KNOWN = isinstance(forward_ad._current_level, int)
    _strobe.ask_before_plain(PLAIN, (_function_modes, _profiles, _interpreter), (_trace, _dispatch_modes, _casts))
except AttributeError:  # another version of PyTorch
    _KNOWN = False


def _transformed() -> bool:
    return _KNOWN and _interpreter() is not None


def observed() -> bool:
    """Whether something looks at operators: a compiler, a mode, forward derivatives, a profiler."""
    return (
        not _KNOWN
        or _is_compiling()
        or _trace() is not None
        or _dispatch_modes() > 0
        or _function_modes() > 0
        or forward_ad._current_level >= 0
        or _profiles()
    )


def _is_operator_now() -> bool:
    """Whether a gradient is an operator's: as a part of a graph (create_graph=True), which refuses when it is asked for its
    derivative, or where a mode looks at operators that did not at the forward's."""
    return _is_grad_enabled() or (_KNOWN and _dispatch_modes() > 0)


def may_be_plain() -> bool:
    """What the extension does not ask of itself: whether a compiler or forward derivatives look at a call."""
    return not _is_compiling() and forward_ad._current_level < 0


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these are tensors of PyTorch's own, and nothing but autograd looks at a call."""
    return not _is_compiling() and _strobe.is_plain(q, k, v) and forward_ad._current_level < 0


def _call(function: Any, options: dict[str, Any]) -> tuple:
    options = _ops.adapt(options)
    try:
        return function(**options)
    except ValueError:  # a layout that the library does not take; or an argument that it refuses again below
        pass
    return function(**{name: _ops.usable(x) if name in _READ_IN_PLACE else x for name, x in options.items()})


class _Eager(torch.autograd.Function):
    """The operators' derivative without the operators. names: of the tensors that are given."""

    @staticmethod
    def forward(ctx, names, numbers, *given):
        tensors = dict(zip(names, given, strict=True))
        out, lse = _call(_strobe.attention, {**tensors, **numbers, "return_lse": True})
        ctx.save_for_backward(out, lse, *given)
        ctx.names, ctx.numbers = names, numbers
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        out, lse, *given = ctx.saved_tensors
        names, wanted = ctx.names, ctx.needs_input_grad
        wants_bias = "bias" in names and wanted[2 + names.index("bias")]
        if dout is None:
            dout = torch.zeros_like(out)
        numbers = ctx.numbers
        if "kernel" in numbers:  # the forward's
            numbers = {name: x for name, x in numbers.items() if name != "kernel"}
        tensors = dict(zip(names, given, strict=True))
        if _is_operator_now():
            given = {**_ops.DEFAULTS, **tensors, **numbers}
            shared = [given.get(name) for name in _NAMES]
            results = _ops.attention_backward(dout, dlse, out, lse, wants_bias, *shared)
        else:
            saved = {"dout": dout, "dlse": dlse, "out": out, "lse": lse, "bias_gradient": wants_bias}
            results = _call(_strobe.attention_backward, {**tensors, **numbers, **saved})
        gradients = dict(zip(_GRADIENTS, results, strict=True))
        return None, None, *(gradients.get(name) if wants else None for name, wants in zip(names, wanted[2:], strict=True))


class _HeadsFirst(torch.autograd.Function):
    """Attention of (batch, heads, seq, dim) as one node of the graph: the views are the extension's."""

    @staticmethod
    def forward(ctx, options, q, k, v):
        # In memory (batch, seq, heads, dim), as PyTorch's own; no view, so that it may be changed in place.
        shape = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
        out = torch.empty_permuted(shape, (0, 2, 1, 3), dtype=q.dtype, device=q.device)
        _, lse = _call(_strobe.attention, {"q": q, "k": k, "v": v, **options, "out": out, "return_lse": True})
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        if _is_operator_now():
            numbers = {name: x for name, x in ctx.options.items() if name != "heads_first"}
            numbers = {**_ops.DEFAULTS, **numbers}
            q, k, v, out, dout = (x.transpose(1, 2) for x in (q, k, v, out, dout))
            shared = [{"q": q, "k": k, "v": v}.get(name, numbers.get(name)) for name in _NAMES]
            results = _ops.attention_backward(dout, None, out, lse, False, *shared)
            return None, *(x.transpose(1, 2) for x in results[:3])
        given = {"q": q, "k": k, "v": v, **ctx.options, "dout": dout, "out": out, "lse": lse}
        return None, *_call(_strobe.attention_backward, given)[:3]


def compiled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor | None:
    """Attention of plain tensors (batch, heads, seq, dim), causal from the top-left corner, by a compiled kernel; None where
    there is none for them. mask: added to scores or, of bool, hides; one with a gradient is another way's."""
    if mask is not None and (type(mask) not in PLAIN or mask.device != q.device or mask.requires_grad):
        return None
    try:
        if q.is_cuda:
            return None if _flash is None else _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)[0]
        if _efficient is None or not q.is_cpu or q.dtype is not k.dtype:
            return None
        return _efficient(q, k, v, mask, _is_grad_enabled(), 0.0, causal, scale=scale)[0]
    except (RuntimeError, TypeError):  # not for this kernel; what is wrong is said by another way
        return None


def heads_last(q: Tensor, k: Tensor, v: Tensor, causal: bool, diagonal: str, scale: float | None) -> Tensor | None:
    """Attention of tensors (batch, seq, heads, dim) with no other argument; None where it is another way's."""
    if _is_compiling() or forward_ad._current_level >= 0:
        return None
    out = _strobe.attention_plain(q, k, v, causal, diagonal, scale)
    if out is not None or not _strobe.is_plain(q, k, v):
        return out
    for x in (q, k, v):
        if x.dim() != 4 or not (x.is_cpu or x.is_cuda):
            return None
    if _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        if causal and diagonal != "top_left" and q.shape[1] != k.shape[1]:
            return None
        out = compiled(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, causal, scale)
        return None if out is None else out.transpose(1, 2)
    options: dict[str, Any] = {"q": q, "k": k, "v": v}
    if causal:
        options |= {"causal": True, "diagonal": diagonal}
    if scale is not None:
        options["scale"] = scale
    return _call(_strobe.attention, options)


def heads_first(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor | None:
    """Attention of plain tensors (batch, heads, seq, dim), causal from the top-left corner; None where it is another way's."""
    for x in (q, k, v):
        if not (x.is_cpu or x.is_cuda):
            return None
    options: dict[str, Any] = {"heads_first": True}
    if causal:
        options |= {"causal": True, "diagonal": "top_left"}
    if scale is not None:
        options["scale"] = scale
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _HeadsFirst.apply(options, q, k, v)
    return _call(_strobe.attention, {"q": q, "k": k, "v": v, **options})


def run(*shared: Any, with_lse: bool = True) -> tuple[Tensor, Tensor | None]:
    """Out and lse of the operators' arguments, in their order. Without lse it is None where nothing has to be saved."""
    if not _is_compiling() and _transformed():
        return _ops.Transformed.apply(*shared)
    tensors = {name: x for name, x in zip(_TENSOR_NAMES, shared, strict=False) if x is not None}
    plain = True
    recorded = False
    for x in tensors.values():
        plain = plain and type(x) in PLAIN and (x.is_cpu or x.is_cuda)
        recorded = recorded or x.requires_grad
    if not plain or observed():
        return (_ops.attention if shared[_SEED] is None else _ops.attention_dropout)(*shared)
    numbers = {
        name: x
        for name, x in zip(_NUMBER_NAMES, shared[_ops.TENSORS :], strict=True)
        if x is not None and x != _ops.DEFAULTS.get(name)
    }
    if recorded and torch.is_grad_enabled():
        return _Eager.apply(tuple(tensors), numbers, *tensors.values())
    if with_lse:
        return _call(_strobe.attention, {**tensors, **numbers, "return_lse": True})
    return _call(_strobe.attention, {**tensors, **numbers}), None
