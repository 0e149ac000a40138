# SPDX-License-Identifier: BSD-3-Clause
"""Custom calls of XLA: the extension reads and checks a call while JAX traces it, and what it has read, frozen, becomes an
attribute of the compiled program, whose handler needs no Python (python/src/frozen.h)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.custom_batching
import jax.ffi
import numpy as np

from strobe import _strobe
from strobe._compiler import name_compiler
from strobe.jax import _varying
from strobe.jax._vmap import backward_rule, forward_rule

_FORWARD, _BACKWARD = "strobe_attention", "strobe_attention_backward"
_OFFSETS = {"cu_seqlens_q": "q", "cu_seqlens_k": "k"}


class Function(NamedTuple):
    """A function of a score: its texts, the names of its arrays, and its scalars: name, value, whether it is an integer."""

    score: str | None
    visible: str | None
    arrays: tuple[str, ...]
    scalars: tuple[tuple[str, float, bool], ...]

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The extension's arguments, with arrays of the names that operands have."""
        if self == (None, None, (), ()):
            return {}
        scalars = {name: int(x) if is_integer else x for name, x, is_integer in self.scalars}
        arrays = {name: given[operand] for name, operand in zip(self.arrays, array_names(len(self.arrays)), strict=True)}
        return {"score": self.score, "visible": self.visible, "arrays": arrays, "scalars": scalars}

    def differentiable(self, given: dict[str, Any]) -> set[str]:
        """The operands that score changes with; the gradient of the other arrays is 0."""
        operands = array_names(len(self.arrays))
        declared = [
            (name, given[operand].ndim, not jax.numpy.issubdtype(given[operand].dtype, jax.numpy.floating))
            for name, operand in zip(self.arrays, operands, strict=True)
        ]
        found = _strobe.score_gradients(self.score, declared, [(name, integer) for name, _, integer in self.scalars])
        return {operand for operand, has in zip(operands, found, strict=True) if has}


def array_names(count: int) -> tuple[str, ...]:
    """As operands a function's arrays are called by their numbers."""
    return tuple(f"array_{n}" for n in range(count))


@functools.cache
def _register() -> None:
    name_compiler(jax.__file__)
    for target in (_FORWARD, _BACKWARD):
        jax.ffi.register_ffi_target(target, _strobe.xla_handler(False), platform="cpu")
        jax.ffi.register_ffi_target(target, _strobe.xla_handler(True), platform="CUDA")


def _stand_in(name: str, given: dict[str, Any]) -> Any:
    """An array of NumPy of the same shape and dtype, whose memory nobody touches; offsets of one sequence with all rows."""
    x = given[name]
    if name == "seed":
        return 0
    if name in _OFFSETS:
        rows = given[_OFFSETS[name]].shape[0]
        return np.where(np.arange(x.shape[0]) == 0, 0, rows).astype(x.dtype)
    return (np.zeros if np.issubdtype(x.dtype, np.integer) else np.empty)(x.shape, x.dtype)


def _bind(target: str, results: dict[str, Any], given: dict[str, Any], frozen: tuple) -> tuple:
    """The results that the frozen call has, in its order."""
    _register()
    blob, operands, names = frozen
    call = jax.ffi.ffi_call(target, tuple(results[name] for name in names))
    given = _varying.alike(given)
    axes = _varying.axes_of(given["q"])  # JAX takes results of a custom call for the same on all devices
    made = call(*(given[name] for name in operands), frozen=np.frombuffer(blob, np.int64))
    return tuple(_varying.cast(x, axes) for x in made)


def _forward_results(given: dict[str, Any]) -> dict[str, Any]:
    q, v = given["q"], given["v"]
    lse = (q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (q.shape[1], q.shape[0])
    out_dtype = jax.numpy.bfloat16 if q.dtype == jax.numpy.float8_e4m3fn else q.dtype
    return {
        "out": jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), out_dtype),
        "lse": jax.ShapeDtypeStruct(lse, np.float64 if q.dtype == np.float64 else np.float32),
    }


def _without_arrays(given: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in given.items() if not name.startswith("array_")}


# One function for each set of names and numbers, so that JAX sees the same function again.
@functools.lru_cache(maxsize=1024)
def forward(names: tuple[str, ...], numbers: tuple, function: Function) -> Callable:
    """Attention of the arrays of these names, with options as pairs: (out, lse)."""

    @jax.custom_batching.custom_vmap
    def attention(*arrays):
        given = dict(zip(names, arrays, strict=True))
        stand_ins = {name: _stand_in(name, given) for name in names}
        options = dict(numbers) | function.options(stand_ins)
        frozen = _strobe.freeze_attention(**_without_arrays(stand_ins), **options)
        return _bind(_FORWARD, _forward_results(given), given, frozen)

    attention.def_vmap(forward_rule(attention, names, function))
    return attention


@functools.lru_cache(maxsize=1024)
def backward(
    names: tuple[str, ...], numbers: tuple, function: Function, bias_gradient: bool, of_arrays: tuple[str, ...]
) -> Callable:
    """The gradients of the arrays of these names, out, lse, dout and dlse among them: (dq, dk, dv, dbias, dsinks), those of
    the last two that are there, and behind them those of the function's arrays that are asked for."""

    @jax.custom_batching.custom_vmap
    def attention_backward(*arrays):
        given = dict(zip(names, arrays, strict=True))
        stand_ins = {name: _stand_in(name, given) for name in names if name not in ("out", "lse", "dout")}
        options = dict(numbers) | function.options(stand_ins)
        if of_arrays:
            called = dict(zip(array_names(len(function.arrays)), function.arrays, strict=True))
            options["array_gradients"] = {called[name]: np.empty_like(stand_ins[name]) for name in of_arrays}
        frozen = _strobe.freeze_attention_backward(**_without_arrays(stand_ins), **options, bias_gradient=bias_gradient)
        results = {"d" + name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in given.items()}
        return _bind(_BACKWARD, results, given, frozen)

    attention_backward.def_vmap(backward_rule(attention_backward, names, function, bias_gradient))
    return attention_backward
