# SPDX-License-Identifier: BSD-3-Clause
"""Attention with a function of a score, as text: an operator, differentiable in q, k, v and in the arrays that the text reads."""

import numbers
from typing import Any

import torch
from torch import Tensor

from strobe import _strobe
from strobe._compiler import name_compiler
from strobe.torch import _ops

# The function's arguments, behind those of attention; the last three are the scalars.
_FUNCTION = {
    "score": "str?",
    "visible": "str?",
    "names": "str[]",
    "arrays": "Tensor[]",
    "scalar_names": "str[]",
    "scalar_values": "float[]",
    "scalar_is_integer": "bool[]",
}
_SCHEMA = ", ".join(f"{kind} {name}" for name, kind in (_ops.SHARED | _FUNCTION).items())
_ARRAYS = len(_ops.SHARED) + list(_FUNCTION).index("arrays")


def _options(given: tuple) -> dict[str, Any]:
    """The extension's arguments from the operators'."""
    shared, function = given[: len(_ops.SHARED)], given[len(_ops.SHARED) :]
    score, visible, names, arrays, scalar_names, values, integers = function
    scalars = {name: int(x) if integer else x for name, x, integer in zip(scalar_names, values, integers, strict=True)}
    return _ops.options(shared) | {
        "score": score,
        "visible": visible,
        "arrays": dict(zip(names, arrays, strict=True)),
        "scalars": scalars,
    }


def _scored(*given):
    if given[0].is_cuda:
        name_compiler(torch.__file__)
    with torch.no_grad():
        return _strobe.attention(**_options(given), return_lse=True)


def _scored_backward(dout, dlse, out, lse, wanted, *given):
    options = _options(given)
    options.pop("kernel", None)  # the forward's
    arrays = options["arrays"]
    gradients = [torch.empty_like(x) if want else x.new_empty(0) for x, want in zip(arrays.values(), wanted, strict=True)]
    asked = {name: x for name, x, want in zip(arrays, gradients, wanted, strict=True) if want}
    with torch.no_grad():
        dq, dk, dv, _, _ = _strobe.attention_backward(
            **options, out=out, dout=_ops.usable(dout), lse=lse, dlse=_ops.usable(dlse), array_gradients=asked
        )
    return dq, dk, dv, gradients


def _fake_scored_backward(dout, dlse, out, lse, wanted, q, k, v, *given):
    arrays = given[_ARRAYS - 3]
    gradients = [torch.empty_like(x) if want else x.new_empty(0) for x, want in zip(arrays, wanted, strict=True)]
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), gradients


def _wanted(inputs: tuple) -> list[bool]:
    """Which arrays need a gradient that is not 0 everywhere: not those that are only compared, or that only `visible` reads."""
    arrays = inputs[_ARRAYS]
    wanted = [x.requires_grad for x in arrays]
    if not any(wanted):
        return wanted
    score, _, names, _, scalar_names, _, integers = inputs[len(_ops.SHARED) :]
    declared = [(name, x.dim(), not x.is_floating_point()) for name, x in zip(names, arrays, strict=True)]
    found = _strobe.score_gradients(score, declared, list(zip(scalar_names, integers, strict=True)))
    return [want and has for want, has in zip(wanted, found, strict=True)]


def _setup_context(ctx, inputs, output):
    arrays = inputs[_ARRAYS]
    ctx.save_for_backward(*output, *inputs[: _ops.TENSORS], *arrays)
    ctx.others = inputs[_ops.TENSORS : _ARRAYS], inputs[_ARRAYS + 1 :]
    ctx.wanted = _wanted(inputs)
    ctx.set_materialize_grads(False)


def _gradients(ctx, dout, dlse):
    out, lse, *tensors = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    before, behind = ctx.others
    shared, arrays = tensors[: _ops.TENSORS], tensors[_ops.TENSORS :]
    dq, dk, dv, darrays = torch.ops.strobe.attention_scored_backward(
        dout, dlse, out, lse, ctx.wanted, *shared, *before, arrays, *behind
    )
    darrays = [x if want else None for x, want in zip(darrays, ctx.wanted, strict=True)]
    # PyTorch takes an empty list for one of tensors, and wants its gradients.
    before, behind = ([[] if x == [] else None for x in others] for others in ctx.others)
    return dq, dk, dv, *(None,) * (_ops.TENSORS - 3), *before, darrays, *behind


_ops.define("strobe::attention_scored", f"({_SCHEMA}) -> (Tensor, Tensor)", (), _scored, _ops.fake_attention)
_ops.define(
    "strobe::attention_scored_backward",
    f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor[])",
    (),
    _scored_backward,
    _fake_scored_backward,
)
torch.library.register_autograd("strobe::attention_scored", _gradients, setup_context=_setup_context)
torch.library.register_autograd("strobe::attention_scored_backward", _ops.refuse_second)


def _is_integer(x: Any) -> bool:
    """Of Python, NumPy or PyTorch."""
    return not x.is_floating_point() if isinstance(x, Tensor) else isinstance(x, numbers.Integral)


def scored_attention(
    shared: tuple,
    score: str | None = None,
    visible: str | None = None,
    arrays: dict[str, Tensor] | None = None,
    scalars: dict[str, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Out and lse. shared: the arguments of the operators, in their order."""
    for name, given in (("arrays", arrays), ("scalars", scalars)):
        if given is not None and not isinstance(given, dict):
            raise TypeError(f"{name} is {given!r}; a dictionary from names is accepted")
    arrays, scalars = arrays or {}, scalars or {}
    for name, x in arrays.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"arrays[{name!r}] is a {type(x)}; a torch.Tensor is accepted")
    for name, x in scalars.items():
        if not isinstance(x, (numbers.Real, Tensor)):
            raise TypeError(f"{name} of scalars is {x!r}; a number is accepted")
    return torch.ops.strobe.attention_scored(
        *shared, score, visible, list(arrays), list(arrays.values()),
        list(scalars), [float(x) for x in scalars.values()], [_is_integer(x) for x in scalars.values()],
    )  # fmt: skip
