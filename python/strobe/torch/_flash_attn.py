# SPDX-License-Identifier: BSD-3-Clause
"""The functions of the flash-attn package (version 2), with its signatures and meanings: causal and window_size are measured
from the bottom-right corner, softcap 0 is none, softmax_scale None is 1 / sqrt(dim).

Here they take float32 and any head dim up to 512 too. ``return_attn_probs`` returns ``(out, softmax_lse, None)``: the weights
themselves, which flash-attn offers for its own tests, are never stored.
"""

from torch import Tensor

from strobe.torch._attention import attention


def _call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, probs, **varlen):
    out, lse = attention(
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
        return_lse=True,
        **varlen,
    )
    return (out, lse, None) if probs else out


def _parts(name: str, x: Tensor, count: int, layout: str) -> tuple[Tensor, ...]:
    """The parts of a packed tensor, along the axis where its layout has their number."""
    axes = layout.split(", ")
    if x.dim() != len(axes) or x.shape[axes.index(str(count))] != count:
        raise ValueError(f"{name}.shape is {tuple(x.shape)}; ({layout}) is accepted")
    return x.unbind(axes.index(str(count)))


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
    cu_seqlens_k: Tensor,
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
):
    """Attention within packed sequences: q (total_q, heads_q, dim), k, v (total_k, heads_kv, dim).

    cu_seqlens_q and cu_seqlens_k are int32, (batch + 1,). With return_attn_probs: ``(out, softmax_lse (heads_q, total_q),
    None)``. A block_table (paged K and V) is refused; strobe.attention has page_table.
    """
    if block_table is not None:
        raise NotImplementedError(
            "block_table is given; contiguous K and V are accepted, and pages by strobe.attention, as page_table"
        )
    return _call(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
    )  # fmt: skip


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
