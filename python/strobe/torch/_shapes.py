# SPDX-License-Identifier: BSD-3-Clause
"""What the operators' fake kernels refuse of shapes, with the sentences that the real ones have, so that a mistake is told where a
program is traced. Extents may be symbols: they are compared by what PyTorch keeps as a condition of the traced program."""

from typing import Any

import torch
from torch import Tensor


def _text(shape: Any) -> str:
    return f"({', '.join('*' if extent is None else str(extent) for extent in shape)}{',' if len(shape) == 1 else ''})"


def _expect(name: str, x: Tensor, wanted: tuple) -> None:
    """wanted: an extent each, None: any."""

    def sentence() -> str:
        return f"{name}.shape is {_text(x.shape)}; {_text(wanted)} is accepted"

    if x.dim() != len(wanted):
        raise ValueError(sentence())
    for extent, of in zip(x.shape, wanted, strict=True):
        if of is not None:
            torch._check_value(extent == of, sentence)


def _expect_axes(name: str, x: Tensor, packed: bool, total: str) -> None:
    if x.dim() != (3 if packed else 4):
        accepted = f"({total}, heads, dim), with {total.replace('total', 'cu_seqlens')}," if packed else "(batch, seq, heads, dim)"
        raise ValueError(f"{name}.shape is {_text(x.shape)}; {accepted} is accepted")


def _expect_over_scores(name: str, x: Tensor | None, extents: tuple) -> None:
    """Axes from the last one on; only the last must not be 1 in place of more. Symbols are left to the call."""
    if x is None:
        return
    fits = 1 <= x.dim() <= 4
    for axis, (extent, of) in enumerate(zip(reversed(x.shape), reversed(extents), strict=False)):
        known = isinstance(extent, int) and isinstance(of, int)
        fits = fits and (not known or extent == of or (extent == 1 and axis > 0))
    if not fits:
        raise ValueError(
            f"{name}.shape is {_text(x.shape)}; {_text(extents)}, or 1 or nothing in place of any but the last axis, is accepted"
        )


def check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    page_table: Tensor | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> tuple:
    """Refuses what cannot be an attention, and returns its batch, query heads, rows and keys; None: not known."""
    packed_q, packed_k = cu_seqlens_q is not None, cu_seqlens_k is not None
    _expect_axes("q", q, packed_q, "total_q")
    _expect_axes("k", k, packed_k, "total_k")
    batch = cu_seqlens_q.shape[0] - 1 if packed_q else q.shape[0]
    of_k = () if packed_k else (None if page_table is not None else batch,)
    _expect("k", k, (*of_k, None, None, q.shape[-1]))
    _expect("v", v, (*k.shape[:-1], None))
    if packed_k:
        _expect("cu_seqlens_k", cu_seqlens_k, (batch + 1,))
    if page_table is not None:
        _expect("page_table", page_table, (batch, None))
    heads_q, heads_kv = q.shape[-2], k.shape[-2]
    if type(heads_kv) is int and heads_kv == 0:
        raise ValueError(f"k.shape is {_text(k.shape)}; 1 head and 1 dim, or more, is accepted")
    torch._check_value(
        heads_q % heads_kv == 0, lambda: f"heads_kv is {heads_kv}; a divisor of heads_q, {heads_q}, is accepted"
    )
    if sinks is not None:
        _expect("sinks", sinks, (heads_q,))
    if alibi_slopes is not None:
        _expect("alibi_slopes", alibi_slopes, (heads_q,) if alibi_slopes.dim() == 1 else (batch, heads_q))
    return batch, heads_q, None if packed_q else q.shape[1], None if packed_k or page_table is not None else k.shape[1]


def check_scores(given: dict[str, Tensor | None], extents: tuple) -> None:
    """extents: what check_shapes returns."""
    for name, x in given.items():
        _expect_over_scores(name, x, extents)


def check_append(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, q: Tensor | None, packed: bool, packed_q: bool
) -> None:
    _expect_axes("k_cache", k_cache, False, "")
    _expect("v_cache", v_cache, (*k_cache.shape[:-1], None))
    _expect_axes("k", k, packed, "total_new")
    tokens = k.shape[:-2]
    _expect("k", k, (*tokens, *k_cache.shape[-2:]))
    _expect("v", v, (*tokens, *v_cache.shape[-2:]))
    if q is not None:
        _expect_axes("q", q, packed_q, "total_q")
        _expect("q", q, (*q.shape[:-1], k_cache.shape[-1]))
