# SPDX-License-Identifier: BSD-3-Clause
"""The functions of the flash-attn package (version 2), with its signatures and meanings: causal and window_size are measured
from the bottom-right corner, softcap 0 is none, softmax_scale None is 1 / sqrt(dim).

Here they take float32 and any head dim up to 512 too. ``return_attn_probs`` returns ``(out, softmax_lse, None)``: the weights
themselves, which flash-attn offers for its own tests, are never stored.
"""

from typing import Any

from torch import Tensor

from strobe._attention import sides
from strobe.torch._attention import attention
from strobe.torch._cache import cache_attention


def _call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, probs, **varlen):
    result = attention(
        q,
        k,
        v,
        causal=causal,
        window=window_size,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        dropout=dropout_p,
        scale=softmax_scale,
        deterministic=deterministic,
        return_lse=probs,
        **varlen,
    )
    return (*result, None) if probs else result


def _parts(name: str, x: Tensor, count: int, layout: str) -> tuple[Tensor, ...]:
    """The parts of a packed tensor, along the axis where its layout has their number."""
    axes = layout.split(", ")
    if x.dim() != len(axes) or x.shape[axes.index(str(count))] != count:
        raise ValueError(f"{name}.shape is {tuple(x.shape)}; ({layout}) is accepted")
    return x.unbind(axes.index(str(count)))


def one_of(name: str, x: Any, other: str, y: Any) -> Any:
    """The value of an argument that two versions name differently."""
    if x is not None and y is not None:
        raise ValueError(f"{name} and {other} are given; one of them, which mean the same, is accepted")
    return y if x is None else x


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """Attention of q (batch, seq_q, heads_q, dim) over k, v (batch, seq_k, heads_kv, dim); returns out, of q's shape.

    With return_attn_probs: ``(out, softmax_lse (batch, heads_q, seq_q), None)``.
    """
    return _call(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """As :func:`flash_attn_func` with kv (batch, seq_k, 2, heads_kv, dim), read where it lies."""
    k, v = _parts("kv", kv, 2, "batch, seq_k, 2, heads_kv, dim")
    return _call(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """As :func:`flash_attn_func` with qkv (batch, seq, 3, heads, dim), read where it lies."""
    q, k, v = _parts("qkv", qkv, 3, "batch, seq, 3, heads, dim")
    return _call(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    page_table: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
):
    """Attention within packed sequences: q (total_q, heads_q, dim), k, v (total_k, heads_kv, dim).

    cu_seqlens_q and cu_seqlens_k are int32, (batch + 1,). seqused_q and seqused_k, int32, (batch,), say how many first rows of
    each sequence count. With return_attn_probs: ``(out, softmax_lse (heads_q, total_q), None)``.

    With block_table (or page_table, version 3's name), int32, (batch, pages a sequence), k and v are a cache in pages, (pages,
    page_size, heads_kv, dim) of any page size and strides: chunked prefill, and batches that mix it with decoding. Lengths of
    the keys are then seqused_k, or the differences of cu_seqlens_k, which may be None. No dropout and no gradient.
    """
    table = one_of("block_table", block_table, "page_table", page_table)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "used_q": seqused_q}
    if table is None:
        return _call(
            q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
            cu_seqlens_k=cu_seqlens_k, used_k=seqused_k, **lengths,
        )  # fmt: skip
    if dropout_p != 0:
        raise NotImplementedError(f"dropout_p is {dropout_p} beside pages; 0 is accepted")
    if seqused_k is None:
        if cu_seqlens_k is None:
            raise ValueError("seqused_k and cu_seqlens_k are None; with pages, one of them is accepted")
        seqused_k = cu_seqlens_k.diff()
    out, lse = cache_attention(
        q, k, v, page_table=table, used_k=seqused_k, causal=causal, window=sides(window_size), softcap=softcap or None,
        alibi_slopes=alibi_slopes, scale=softmax_scale, **lengths,
    )  # fmt: skip
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """As :func:`flash_attn_varlen_func` with qkv (total, 3, heads, dim), read where it lies."""
    q, k, v = _parts("qkv", qkv, 3, "total, 3, heads, dim")
    return _call(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=max_seqlen, max_seqlen_k=max_seqlen,
    )  # fmt: skip
