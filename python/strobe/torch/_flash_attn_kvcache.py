# SPDX-License-Identifier: BSD-3-Clause
"""flash_attn_with_kvcache: new K and V into a cache, and attention over it, in two calls of the library."""

from typing import Any

import torch
from torch import Tensor

from strobe._attention import sides
from strobe.torch._cache import append, cache_attention, check_attention, refuse_gradient
from strobe.torch._flash_attn import one_of

# Query rows of a K/V head up to which the kernels that split keys take a call.
_DECODING_ROWS = 16


def _refuse(**given: Any) -> None:
    for name, x in given.items():
        if x is not None:
            raise NotImplementedError(f"{name} is given; without it the call is accepted")


def _lengths(cache_seqlens: int | Tensor | None, q: Tensor, batch: int) -> Tensor | None:
    if cache_seqlens is None or isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)


def _table(page_table: Tensor | None, cache_batch_idx: Tensor | None) -> Tensor | None:
    """A contiguous cache is one whose pages hold a whole sequence each: the table then says which entry a sequence has."""
    if cache_batch_idx is None:
        return page_table
    if page_table is not None:
        raise NotImplementedError("cache_batch_idx is given beside page_table; one of them is accepted")
    return cache_batch_idx.to(torch.int32).unsqueeze(1)


def _tables(cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor, Tensor] | None:
    if (cos is None) != (sin is None):
        raise ValueError("rotary_cos or rotary_sin is None; both or none of them are accepted")
    return None if cos is None or sin is None else (cos.float().contiguous(), sin.float().contiguous())


def _scales(q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None, group: int, packed: bool) -> dict:
    """(batch, heads_kv), of a whole sequence each, as the library has them."""
    if q_descale is k_descale is v_descale is None:
        return {}
    scales: dict[str, Any] = {"scale_block": (0, 0)}
    if q_descale is not None:
        of_heads = q_descale.repeat_interleave(group, 1)
        scales["q_scale"] = of_heads if packed else of_heads.unsqueeze(1)
    for name, x in (("k_scale", k_descale), ("v_scale", v_descale)):
        if x is not None:
            scales[name] = x.unsqueeze(1)
    return scales


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    *,
    block_table: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
) -> Any:
    """Attention of q over a cache to which k and v are appended first, in place; flash-attn's, version 3, with version 2's names.

    Parameters
    ----------
    q : Tensor, (batch, seq_q, heads_q, dim), or (total_q, heads_q, dim) with cu_seqlens_q
    k_cache, v_cache : Tensor, (batch or more, slots, heads_kv, dim or dim_v)
        With page_table (or block_table), (pages, page_size, heads_kv, dim or dim_v), of any page size and strides.
    k, v : Tensor, (batch, seq_new, heads_kv, dim or dim_v), or packed, with cu_seqlens_k_new, optional
        Written to the cache behind cache_seqlens, which must have room.
    rotary_cos, rotary_sin : Tensor, (positions, rotary_dim / 2), optional
        k is turned, key i of the new ones as at position cache_seqlens + i, or rotary_seqlens + i; q too, all rows as at the
        first of these positions where there is neither causal nor a window. float32 tables save a conversion.
    rotary_interleaved : bool
        Column 2 c is turned with 2 c + 1; otherwise c with c + rotary_dim / 2.
    cache_seqlens : int or int32 Tensor, (batch,), optional
        Lengths before the call; None: all slots are in use, and nothing is appended.
    cache_batch_idx : int32 Tensor, (batch,), optional
        Which entry of a contiguous cache each sequence has; different ones where something is appended.
    cache_leftpad : int32 Tensor, (batch,), optional
        How many first slots of each sequence are padding, which cache_seqlens counts.
    page_table, block_table : int32 Tensor, (batch, pages a sequence), optional
    q_descale, k_descale, v_descale : float32 Tensor, (batch, heads_kv), optional
        What float8_e4m3fn tensors, or an int8 cache, are multiplied with. What is appended is divided by them.
    causal, window_size, softcap, softmax_scale, alibi_slopes
        As in :func:`flash_attn_func`.
    num_splits : int
        For up to 16 query rows a K/V head, into how many parts the cache's keys are split; 0: as the library likes. Where it is
        given, a row's bits do not depend on the batch; on the CPU it is refused beside softcap and alibi_slopes.
    scheduler_metadata, pack_gqa, sm_margin
        Tune flash-attn's kernels, and change nothing here.

    qv and attention_chunk are refused. There is no gradient. A refusal
    leaves the cache as it was; only under torch.compile may the attention refuse what has been appended.

    Returns
    -------
    out : Tensor, as q with dim_v
    softmax_lse : Tensor, (batch, heads_q, seq_q), or (heads_q, total_q)
        With return_softmax_lse.
    """
    _refuse(qv=qv, attention_chunk=attention_chunk or None)
    refuse_gradient("attention over a cache", q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    table = _table(one_of("page_table", page_table, "block_table", block_table), cache_batch_idx)
    if table is None and k_cache.shape[0] > batch:  # the first entries are those of the sequences
        k_cache, v_cache = k_cache[:batch], v_cache[:batch]
    group = q.shape[-2] // max(k_cache.shape[2], 1)
    scales = _scales(q_descale, k_descale, v_descale, group, cu_seqlens_q is not None)
    used_k = _lengths(cache_seqlens, q, batch)
    window = sides(window_size)
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if k is None else 'v'} is None; both k and v, or none of them, are accepted")
    rotary = _tables(rotary_cos, rotary_sin)
    if rotary and k is None:
        raise ValueError("rotary_cos is given without k and v; beside them it is accepted")
    if k is not None and used_k is None:
        raise ValueError("cache_seqlens is None beside k and v; the lengths before them are accepted")
    before = used_k
    if k is not None and used_k is not None:
        used_k = used_k + (k.shape[1] if cu_seqlens_k_new is None else cu_seqlens_k_new.diff())
    slots = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    rows = q.shape[1] if cu_seqlens_q is None else max_seqlen_q
    split = num_splits > 0 and rows is not None and rows * group <= _DECODING_ROWS
    options = {
        "page_table": table, "cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q, "used_k": used_k,
        "leftpad_k": cache_leftpad, "alibi_slopes": alibi_slopes, "split_keys": -(-slots // num_splits) if split else None,
        "causal": causal, "window": window, "softcap": softcap, "scale": softmax_scale, **scales,
    }  # fmt: skip
    if k is not None and v is not None:
        assert used_k is not None
        longest_new = None
        if cu_seqlens_k_new is not None and k.is_cuda:  # which the host cannot read there
            longest_new = max_seqlen_q if cu_seqlens_k_new is cu_seqlens_q else k.shape[0]
        # append refuses lengths for which the cache has no room, in its own words
        check_attention(q, k_cache, v_cache, **options | {"used_k": used_k.clamp(max=slots)})
        turned = append(
            k_cache, v_cache, k, v, q=q if rotary else None, lengths=before, page_table=table, positions=rotary_seqlens,
            cu_seqlens_new=cu_seqlens_k_new, max_seqlen_new=longest_new, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
            rotary=rotary, interleaved=rotary_interleaved, q_at_length=not causal and window == (-1, -1),
            **{name: x for name, x in scales.items() if name != "q_scale"},
        )  # fmt: skip
        q = q if turned is None else turned
    out, lse = cache_attention(q, k_cache, v_cache, **options)
    return (out, lse) if return_softmax_lse else out
