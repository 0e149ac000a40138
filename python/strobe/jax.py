# SPDX-License-Identifier: BSD-3-Clause
"""Strobe for JAX: attention with its gradient, in and out of jit.

Concrete arrays on the CPU go to the library as they are. Under jit, grad or vmap the call becomes a host callback; vmap runs it
once for each entry, so the batch axis of the arrays is the faster way.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import strobe
from strobe._attention import sides


class _Options(NamedTuple):
    causal: bool
    window: tuple[int, int]
    diagonal: str
    softcap: float | None
    dropout: float
    seed: int | None
    scale: float | None

    def as_arguments(self) -> dict[str, Any]:
        return self._asdict()


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
    alibi_slopes: jax.Array | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Return softmax(scale * Q K^T) V, differentiable in q, k, v, bias and sinks, through out and lse.

    Parameters
    ----------
    q : Array, (batch, seq_q, heads_q, dim)
    k : Array, (batch, seq_k, heads_kv, dim)
    v : Array, (batch, seq_k, heads_kv, dim_v)
    others
        As in :func:`strobe.attention`. The arrays among them may be traced; the numbers are constants of the traced function.

    Returns
    -------
    out : Array, (batch, seq_q, heads_q, dim_v)
    lse : Array, (batch, heads_q, seq_q)
        With return_lse.
    """
    left, right = sides(window)
    options = _Options(causal, (int(left), int(right)), diagonal, softcap, dropout, seed, scale)
    out, lse = _attention(options, (q, k, v, bias, mask, alibi_slopes, sinks))
    return (out, lse) if return_lse else out


_ARRAYS = ("bias", "mask", "alibi_slopes", "sinks")


def _call(function: Any, results: Any, arrays: tuple) -> Any:
    """function(*arrays), on the host where some of them are traced."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arrays)):
        on_host = partial(_with_numpy, function)
        return jax.pure_callback(on_host, results, *arrays, vmap_method="sequential")
    return tuple(function(*arrays))


def _with_numpy(function: Any, *arrays: Any) -> Any:
    # Nothing of JAX may run in a callback: it would wait for the very computation that waits for it.
    return tuple(function(*(None if x is None else np.asarray(x) for x in arrays)))


def _lse_of(q: jax.Array) -> jax.ShapeDtypeStruct:
    dtype = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    return jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]), dtype)


def _like(x: jax.Array, shape: tuple[int, ...] | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape if shape is None else shape, x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: _Options, arrays: tuple) -> tuple[jax.Array, jax.Array]:
    def run(q, k, v, *rest):
        arguments = dict(zip(_ARRAYS, rest, strict=True)) | options.as_arguments()
        return strobe.attention(q, k, v, return_lse=True, **arguments)

    q, _, v = arrays[:3]
    return _call(run, (_like(q, (*q.shape[:-1], v.shape[-1])), _lse_of(q)), arrays)


def _forward(options: _Options, arrays: tuple) -> tuple:
    out, lse = _attention(options, arrays)
    return (out, lse), (arrays, out, lse)


def _backward(options: _Options, saved: tuple, cotangents: tuple) -> tuple:
    arrays, out, lse = saved
    q, k, v, bias, _, _, sinks = arrays
    present = [x is not None for x in (bias, sinks)]

    def run(dout, dlse, out, lse, q, k, v, *rest):
        arguments = dict(zip(_ARRAYS, rest, strict=True)) | options.as_arguments()
        gradients = strobe.attention_backward(
            dout, q, k, v, out, lse, dlse=dlse, bias_gradient=rest[0] is not None, **arguments
        )
        return (x for x in gradients if x is not None)

    results = tuple(_like(x) for x in (q, k, v, bias, sinks) if x is not None)
    dq, dk, dv, *rest = _call(run, results, (*cotangents, out, lse, *arrays))
    dbias = rest.pop(0) if present[0] else None
    dsinks = rest.pop(0) if present[1] else None
    return ((dq, dk, dv, dbias, None, None, dsinks),)


_attention.defvjp(_forward, _backward)
