# SPDX-License-Identifier: BSD-3-Clause
"""strobe.jax.attention: what the other signature is written in."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from strobe._attention import sides
from strobe.jax import _operator, _varying

_FLOAT = ("q", "k", "v", "bias", "sinks")  # with a gradient, in the order of the backward's results
_WITHOUT_GRADIENT = ("leftpad_k", "page_table", "q_scale", "k_scale", "v_scale")
_OF_FORWARD = ("kernel", "split_keys", "scale_block")


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    diagonal: str = "bottom_right",
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    block_mask: jax.Array | None = None,
    block_size: tuple[int, int] | None = None,
    alibi_slopes: jax.Array | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    offset: int = 0,
    scale: float | None = None,
    cu_seqlens_q: jax.Array | None = None,
    cu_seqlens_k: jax.Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    used_q: jax.Array | None = None,
    used_k: jax.Array | None = None,
    q_start: int = 0,
    k_start: int = 0,
    kernel: str | None = None,
    split_keys: int | None = None,
    threads: int | None = None,
    score: str | None = None,
    visible: str | None = None,
    arrays: dict[str, jax.Array] | None = None,
    scalars: dict[str, float] | None = None,
    leftpad_k: jax.Array | None = None,
    page_table: jax.Array | None = None,
    q_scale: jax.Array | None = None,
    k_scale: jax.Array | None = None,
    v_scale: jax.Array | None = None,
    scale_block: tuple[int, int] = (1, 1),
    return_lse: bool = False,
) -> Any:
    """Return softmax(scale * Q K^T) V, differentiable in q, k, v, bias, sinks and arrays, through out and lse.

    Parameters
    ----------
    q : Array, (batch, seq_q, heads_q, dim), or (total_q, heads_q, dim) with cu_seqlens_q
    k : Array, (batch, seq_k, heads_kv, dim), or (total_k, heads_kv, dim) with cu_seqlens_k
    v : Array, (batch, seq_k, heads_kv, dim_v), or (total_k, heads_kv, dim_v)
    seed : int, a key of jax.random, or uint32 Array of two entries, optional
        Of dropout. A key or an array may be traced, so that each step of a compiled program has its own.
    kernel, split_keys : optional
        Of the forward on the CPU; the gradient's kernel is the library's choice.
    score, visible, arrays, scalars : optional
        A function of a score; the arrays may be traced and are differentiable, where `score` reads them.
    others
        As in :func:`strobe.attention`. The arrays among them may be traced; the numbers are constants of the traced function.

    Under jax.vmap the axis becomes a part of the batch; with dropout, packed sequences, pages, scales, sinks of their own,
    functions that read b or arrays, and for the gradient with any sinks, it is one call after the other.

    Returns
    -------
    out : Array, as q with dim_v
    lse : Array, (batch, heads_q, seq_q) or (heads_q, total_q)
        With return_lse.

    Raises
    ------
    ValueError, NotImplementedError, TypeError
        As :func:`strobe.attention` of arrays of the CPU, while the call is traced. What only the arrays' elements show, such as
        offsets that decrease, and what a GPU's kernels refuse, is an error of JAX's runtime with a sentence.
    """
    left, right = (int(_constant("window", x)) for x in sides(window))
    numbers = {
        "causal": bool(_constant("causal", causal)), "window": (left, right), "diagonal": diagonal,
        "block_size": tuple(block_size) if isinstance(block_size, list) else block_size,
        "softcap": softcap, "dropout": dropout, "offset": offset, "scale": scale, "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k, "q_start": q_start, "k_start": k_start, "kernel": kernel, "split_keys": split_keys,
        "threads": threads, "scale_block": tuple(scale_block),
    }  # fmt: skip
    numbers = {name: _constant(name, x) for name, x in numbers.items()}
    arrays = _dictionary(arrays, "arrays")
    function = _operator.Function(score, visible, tuple(arrays), _scalars(_dictionary(scalars, "scalars")))
    given = {
        "q": q, "k": k, "v": v, "bias": bias, "mask": mask, "block_mask": block_mask, "alibi_slopes": alibi_slopes,
        "sinks": sinks, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "used_q": used_q, "used_k": used_k,
        "leftpad_k": leftpad_k, "page_table": page_table, "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale,
        "seed": _halves(seed) if dropout else None,
    }  # fmt: skip
    given |= zip(_operator.array_names(len(arrays)), arrays.values(), strict=True)
    given = _varying.alike({name: _array(name, x) for name, x in given.items() if x is not None})
    out, lse = _attention((tuple(numbers.items()), function), given)
    return (out, lse) if return_lse else out


def _array(name: str, x: Any) -> jax.Array:
    """x as an array of JAX whose sizes are numbers and whose elements are no keys."""
    array = jnp.asarray(x)
    if not all(isinstance(n, int) for n in array.shape):
        raise TypeError(f"{name}.shape is {array.shape}; sizes that are known when the function is traced are accepted")
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"{name}.dtype is {array.dtype}; numbers are accepted")
    return array


def _constant(name: str, x: Any) -> Any:
    """A number of Python's for an array of one element."""
    if isinstance(x, jax.core.Tracer):
        instead = "; q may be multiplied by what is traced" if name == "scale" else ""
        raise TypeError(f"{name} is traced; a number that is known when the function is traced is accepted{instead}")
    return x.item() if isinstance(x, (jax.Array, np.ndarray, np.generic)) and x.size == 1 else x


def _dictionary(given: Any, name: str) -> dict[str, Any]:
    if given is not None and not isinstance(given, dict):
        raise TypeError(f"{name} is {given!r}; a dictionary from names is accepted")
    return given or {}


def _scalars(given: dict[str, Any]) -> tuple[tuple[str, float, bool], ...]:
    """Name, value, and whether it is an integer, which 1 and 1.0 do not tell where they are compared."""
    for name, x in given.items():
        if not isinstance(x, (int, float, np.number)):
            raise TypeError(f"scalars[{name!r}] is {x!r}; a number is accepted, and what is traced in arrays")
    return tuple((name, float(x), isinstance(x, (int, np.integer))) for name, x in given.items())


def _halves(seed: Any) -> Any:
    """A seed as two 32-bit halves, the lower one first; None stays None, and is refused with the other arguments."""
    if seed is None:
        return None
    if isinstance(seed, (int, np.integer)):
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed}; an integer in [0, 2**64), a key, or two of uint32 are accepted")
        return np.array([int(seed) % 2**32, int(seed) >> 32], np.uint32)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if seed.shape != (2,) or seed.dtype != jnp.uint32:
        raise ValueError(
            f"seed.shape is {seed.shape} and seed.dtype {seed.dtype}; an integer, a key of 64 bits, or a uint32 array of shape "
            "(2,) is accepted"
        )
    return seed


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(constants: tuple, given: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return _operator.forward(tuple(given), *constants)(*given.values())


def _forward(constants: tuple, given: dict[str, Any]) -> tuple:
    arrays = {name: x.value for name, x in given.items()}
    out, lse = _differentiable(constants, arrays)
    # Which arrays have a gradient is a part of the structure, since a residual's leaves are arrays.
    wanted = {name: () for name, x in given.items() if x.perturbed}
    return (out, lse), (arrays, out, lse, wanted)


def _backward(constants: tuple, saved: tuple, cotangents: tuple) -> tuple:
    arrays, out, lse, wanted = saved
    for name in _WITHOUT_GRADIENT:
        if name in arrays:
            raise NotImplementedError(f"{name} is given and a gradient asked for; without it the call is accepted")
    dout, dlse = cotangents
    if isinstance(dout, jax.custom_derivatives.SymbolicZero):
        dout = jnp.zeros(out.shape, out.dtype)
    given = arrays | {"out": out, "lse": lse, "dout": dout}
    if not isinstance(dlse, jax.custom_derivatives.SymbolicZero):
        given["dlse"] = dlse
    numbers, function = constants
    numbers = tuple((name, x) for name, x in numbers if name not in _OF_FORWARD)
    with_bias = "bias" in wanted
    asked = wanted.keys() & function.differentiable(arrays)
    of_arrays = tuple(name for name in _operator.array_names(len(function.arrays)) if name in asked)
    results = iter(_operator.backward(tuple(given), numbers, function, with_bias, of_arrays)(*given.values()))
    gradients = {name: next(results) for name in _FLOAT if name in arrays and (name != "bias" or with_bias)}
    gradients |= zip(of_arrays, results, strict=True)
    return ({name: gradients.get(name) for name in arrays},)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)

# Compiled once for each set of options and shapes, so that a call outside of jit costs one dispatch.
_attention = jax.jit(_differentiable, static_argnums=0)
