# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention with PyTorch's signature and meaning."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe import _strobe
from strobe.torch import _run
from strobe.torch._attention import attention_with_zeros
from strobe.torch._nested import nested_attention
from strobe.torch._run import compiled, heads_first, is_plain


def _one_batch(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(..., heads, seq, dim) to (batch, seq, heads, dim): a view wherever a reshape of the leading axes is one."""
    x = x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:]) if x.dim() != 4 or x.shape[:1] != lead else x
    return x.transpose(1, 2)


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    heads, heads_kv = query.size(-3), key.size(-3)
    if heads != heads_kv and heads_kv != 1 and not enable_gqa:
        raise ValueError(f"key has {heads_kv} heads, query {heads}; enable_gqa=True, or as many of both, is accepted")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As ``torch.nn.functional.scaled_dot_product_attention``, and interchangeable with it.

    Parameters
    ----------
    query : Tensor, (..., heads_q, seq_q, dim)
        All three may be nested, of layout torch.jagged, with a ragged seq: then without attn_mask, and each sequence is causal
        from its own top-left corner.
    key : Tensor, (..., heads_kv, seq_k, dim)
    value : Tensor, (..., heads_kv, seq_k, dim_v)
    attn_mask : Tensor, broadcasts to (..., heads_q, seq_q, seq_k), optional
        bool (True takes part), or floating-point (added to the scores, differentiable).
    dropout_p : float
        Applied whenever it is above 0, as PyTorch does; 1 drops everything.
    is_causal : bool
        Query i sees keys 0 to i (top-left). Not together with attn_mask.
    scale : float, optional
        Default 1 / sqrt(dim). With 0 every product of q and k counts as 0.
    enable_gqa : bool
        Allow heads_kv to be a divisor of heads_q.

    Returns
    -------
    Tensor, (..., heads_q, seq_q, dim_v)
        A row that sees no key is 0, where PyTorch's paths give 0 or NaN.
    """
    if attn_mask is None and dropout_p == 0 and _run.may_be_plain():
        out = _strobe.sdpa_plain(query, key, value, is_causal, scale, enable_gqa, _run._efficient, _run._flash)
        if out is not None:
            return out
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask is given with is_causal=True; one of the two is accepted")
    plain = is_plain(query, key, value)
    if not plain or query.is_nested:
        for name, x in (("query", query), ("key", key), ("value", value)):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name} is a {type(x)}; a torch.Tensor is accepted")
        if query.is_nested or key.is_nested or value.is_nested:
            _check_heads(query, key, enable_gqa)
            return nested_attention(query, key, value, attn_mask, causal=is_causal, dropout=dropout_p, scale=scale)
    if dropout_p == 0 and plain:
        of_query, of_key = query.shape, key.shape
        if len(of_query) == len(of_key) == 4 and of_query[0] == of_key[0] and (of_query[1] == of_key[1] or enable_gqa):
            out = compiled(query, key, value, attn_mask, is_causal, scale)
            if (
                out is None and attn_mask is None and value.dim() == 4 and value.shape[0] == of_key[0]
                and scale != 0 and of_query[1] and of_query[3] and value.shape[3]
            ):  # fmt: skip
                out = heads_first(query, key, value, is_causal, scale)
            if out is not None:
                return out
    added = 0
    while query.dim() < 3:  # (seq, dim) is one head
        query, key, value, added = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), added + 1
    _check_heads(query, key, enable_gqa)
    if query.shape[-3] == 0:  # PyTorch's own knows which shapes go together, and there is nothing to compute
        grouped = {"enable_gqa": True} if enable_gqa else {}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **grouped)
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask is a {type(attn_mask)}; a torch.Tensor is accepted")
    lead = query.shape[:-3]
    if not lead == key.shape[:-3] == value.shape[:-3]:
        lead = torch.broadcast_shapes(lead, key.shape[:-3], value.shape[:-3])
    if attn_mask is not None and attn_mask.dim() > 3 and query.dim() != 4:
        attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:]).reshape(math.prod(lead), *attn_mask.shape[-3:])
    is_bool = attn_mask is not None and attn_mask.dtype == torch.bool
    if attn_mask is not None and not is_bool and not attn_mask.is_floating_point():
        raise ValueError(f"attn_mask.dtype is {attn_mask.dtype}; torch.bool or a floating-point dtype is accepted")
    out = attention_with_zeros(
        _one_batch(query, lead),
        _one_batch(key, lead),
        _one_batch(value, lead),
        causal=is_causal,
        diagonal="top_left",
        mask=attn_mask if is_bool else None,
        bias=None if is_bool else attn_mask,
        dropout=dropout_p,
        scale=scale,
    ).transpose(1, 2)
    if len(lead) != 1:
        out = out.reshape(*lead, *out.shape[1:])
    return out.reshape(out.shape[added:]) if added else out
