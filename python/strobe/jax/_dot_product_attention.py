# SPDX-License-Identifier: BSD-3-Clause
"""dot_product_attention with the signature and meaning of jax.nn's."""

from typing import Any

import jax
import jax.numpy as jnp

from strobe.jax._attention import attention


def _over_keys(x: jax.Array | None, keys: int) -> jax.Array | None:
    """Scores whose last axis is not repeated: the library reads along it."""
    if x is None:
        return None
    x = jnp.asarray(x)
    return x if x.shape[-1] == keys else jnp.broadcast_to(x, (*x.shape[:-1], keys))


def _with_a_column(x: jax.Array) -> jax.Array:
    """Of zeros, where x has none."""
    return jnp.zeros((*x.shape[:-1], 1), x.dtype)


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """As ``jax.nn.dot_product_attention``, and interchangeable with it.

    Parameters
    ----------
    query : Array, (batch, seq_q, heads_q, dim) or (seq_q, heads_q, dim)
    key, value : Array, (batch, seq_k, heads_kv, dim) or (seq_k, heads_kv, dim)
        heads_q is a multiple of heads_kv.
    bias : Array, broadcasts to (batch, heads_q, seq_q, seq_k), optional
        Added to the scores.
    mask : bool Array, broadcasts as bias, optional
        True takes part.
    scale : float, optional
        Default 1 / sqrt(dim). With 0 every product of q and k counts as 0.
    is_causal : bool
        Query i sees keys 0 to i (top-left).
    query_seq_lengths, key_value_seq_lengths : int32 Array, (batch,), optional
        Rows past them are zero in the result, keys past them are not seen.
    local_window_size : int or (left, right), optional
        Query i sees keys i - left to i + right.
    implementation : None
        Other values name implementations of jax.nn's, and are refused.
    return_residual : bool
        Return ``(out, lse)``, lse of shape (batch, seq_q, heads_q) or (seq_q, heads_q) in key's dtype, without a gradient.

    Returns
    -------
    Array, as query
        A row that sees no key is 0, where jax.nn gives the mean of all values.
    """
    if implementation is not None:
        raise ValueError(f"implementation is {implementation!r}; None is accepted")
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    one = query.ndim == 3
    if one:
        query, key, value = query[None], key[None], value[None]
    if isinstance(local_window_size, int):
        local_window_size = (local_window_size, local_window_size)
    if query.shape[2:3] == (0,) and key.shape[2:3] != (0,):  # no heads: nothing to compute
        out, lse = jnp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype), jnp.zeros(query.shape[:-1], key.dtype)
        out, lse = (out[0], lse[0]) if one else (out, lse)
        return (out, lse) if return_residual else out
    if not isinstance(scale, jax.core.Tracer) and scale is not None and scale == 0:  # attention() refuses it
        query, scale = query * 0, 1.0
    without_columns = query.shape[-1] == key.shape[-1] == value.shape[-1] == 0
    if without_columns:
        query, key, value, scale = *(_with_a_column(x) for x in (query, key, value)), 1.0
    keys = key.shape[1] if key.ndim == 4 else 0
    out, lse = attention(
        query,
        key,
        value,
        causal=is_causal,
        window=local_window_size,
        diagonal="top_left",
        bias=_over_keys(bias, keys),
        mask=_over_keys(mask, keys),
        scale=scale,
        used_q=query_seq_lengths,
        used_k=key_value_seq_lengths,
        return_lse=True,
    )
    if without_columns:
        out = out[..., :0]
    lse = jax.lax.stop_gradient(lse.transpose(0, 2, 1).astype(key.dtype))
    if one:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out
