# SPDX-License-Identifier: BSD-3-Clause
"""activate: PyTorch's own attention operators run on Strobe.

``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``varlen_attn`` end in a few
operators of aten. Strobe's functions (_aten.py) take their place in the dispatcher, below autograd, so autocast, torch.compile,
checkpointing and PyTorch's compiled derivative formulas stay as they are. What a function refuses goes on to the kernel that it
has replaced.
"""

import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import attention as _torch_attention

from strobe import _strobe
from strobe._strobe import Error
from strobe.torch import _compiled
from strobe.torch._aten import OPERATORS, Refused, no_dropout

_REFUSALS = (ValueError, TypeError, NotImplementedError, Error)

_replaced: dict[tuple[str, str], Any] = {}  # (operator, dispatch key): PyTorch's kernel
_library: torch.library.Library | None = None
_kept: list[Any] = []  # compiled kernels: a call in another thread may still be in one after deactivate()
_said: set[str] = set()  # sentences that were warned with since the last activate()


_BETWEEN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(_strobe.__file__) + os.sep)


def _level_of_caller() -> int:
    """The stack level, to the function that asks, of the line that called PyTorch."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and (level < 2 or frame.f_code.co_filename.startswith(_BETWEEN)):
        frame, level = frame.f_back, level + 1
    return level


def _warn(sentence: str) -> None:
    """Once a sentence, whatever filters say: the same call is refused in each layer and step."""
    if sentence not in _said:
        _said.add(sentence)
        warnings.warn(f"PyTorch's own kernel runs instead of Strobe's: {sentence}", stacklevel=_level_of_caller())


def _or_replaced(operator: str, key: str, function: Callable) -> Callable:
    """The function, and PyTorch's kernel for what it refuses."""
    kernel = _replaced[operator, key]

    def call(keys, *args, **kwargs):
        try:
            return function(*args, **kwargs)
        except _REFUSALS as refusal:
            _warn(str(refusal))
            return kernel.call_boxed(keys, *args, **kwargs)

    return call


# What scaled_dot_product_attention ends in where PyTorch has no fused kernel: on the CPU with dropout, of which _aten.py's
# functions never hear. A composition of operators, which has to stay one: autograd's key has it too.
_UNFUSED = "_scaled_dot_product_attention_math", ("AutogradCPU", "CPU")


def _with_a_word(key: str) -> Callable:
    """PyTorch's composition, after a word on dropout."""
    kernel = _replaced[_UNFUSED[0], key]

    def call(keys, query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        try:
            no_dropout(dropout_p)
        except Refused as refusal:
            _warn(str(refusal))
        return kernel.call_boxed(keys, query, key, value, attn_mask, dropout_p, *args, **kwargs)

    return call


def _has_kernel(operator: str, key: str) -> bool:
    return hasattr(torch.ops.aten, operator) and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key)


class _Handle:
    """What PyTorch's registry of attention implementations keeps while Strobe is active."""

    def remove(self) -> None:
        global _library
        for key in _compiled.REPLACED:
            _strobe.aten_unregister(f"replaced {key}")
        if _library is not None:
            _library._destroy()
        _library = None


def _take_compiled_places(key: str) -> None:
    """The compiled kernels, which hand what they do not take on to operators in Python of the same names."""
    for operator in _compiled.REPLACED[key]:
        if not hasattr(torch.ops.strobe, operator):
            _compiled.define_handed_on(operator, key, _or_replaced(operator, key, OPERATORS[operator, key]))
    _strobe.aten_register(f"replaced {key}")
    _kept.extend(torch.library.get_kernel(f"aten::{operator}", key) for operator in _compiled.REPLACED[key])


def _take_places() -> _Handle:
    global _library
    if not hasattr(torch.library, "get_kernel"):
        raise NotImplementedError(
            f"this is PyTorch {torch.__version__}; one with torch.library.get_kernel is accepted, so that what Strobe refuses "
            "finds PyTorch's own kernel"
        )
    present = [place for place in OPERATORS if _has_kernel(*place)]
    for operator, key in present:
        if (operator, key) not in _replaced:
            _replaced[operator, key] = torch.library.get_kernel(f"aten::{operator}", key)
    _said.clear()
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says of each operator that it is overridden
        for operator, key in present:
            if operator in _compiled.REPLACED[key]:
                continue
            function = _or_replaced(operator, key, OPERATORS[operator, key])
            _library.impl(operator, function, key, with_keyset=True)
        operator, keys = _UNFUSED
        for key in keys if hasattr(torch.ops.aten, operator) else ():
            if (operator, key) not in _replaced:
                _replaced[operator, key] = torch.library.get_kernel(f"aten::{operator}", key)
            _library.impl(operator, _with_a_word(key), key, with_keyset=True)
    for key, operators in _compiled.REPLACED.items():
        if operators and set(operators) <= {operator for operator, _ in present}:
            _take_compiled_places(key)  # after one in Python, of which PyTorch has said that it overrides: it says so once
    return _Handle()


_IN_REGISTRY = hasattr(_torch_attention, "register_flash_attention_impl")
if _IN_REGISTRY:
    _torch_attention.register_flash_attention_impl("strobe", register_fn=_take_places)


def activate() -> None:
    """Let PyTorch's own attention run on Strobe, in this process, until :func:`deactivate`.

    From then on these need no changed line: ``torch.nn.functional.scaled_dot_product_attention``, and what is built on it, such
    as ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and most models of transformers, on the CPU and on CUDA; and
    ``torch.nn.attention.varlen.varlen_attn`` on CUDA. They stay differentiable, and work under autocast, torch.compile and
    checkpointing. Calls that PyTorch computes without a fused kernel, its "math" path, stay there.

    What Strobe refuses, such as dropout, float64, need_weights and head dims above 512, and on CUDA what PyTorch's kernel is faster
    at, float32 of head dims above 128, runs on PyTorch's kernel, after a warning that says why, once for each reason. Code that torch.compile has compiled calls whichever kernels are active when it
    runs.
    ``torch.nn.attention.activate_flash_attention_impl("strobe")`` is the same call where PyTorch has it.

    Raises
    ------
    NotImplementedError
        PyTorch is older than ``torch.library.get_kernel``.
    """
    if _library is not None:
        return
    if _IN_REGISTRY:
        _torch_attention.activate_flash_attention_impl("strobe")
    else:
        _take_places()


def deactivate() -> None:
    """Undo :func:`activate`: PyTorch's own kernels run again. Without an activate() before, nothing happens."""
    if _library is None:
        return
    if _IN_REGISTRY:
        _torch_attention.restore_flash_attention_impl()
    else:
        _Handle().remove()
