# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of nested tensors: packed sequences, which is what a jagged one's memory is."""

from typing import Any

import torch
from torch import Tensor

from strobe.torch._attention import attention_with_zeros


def _packed(name: str, x: Tensor) -> tuple[Tensor, Tensor, int | None]:
    """(total, heads, dim), where sequences begin, and the longest one's length, of (batch, heads, any number, dim)."""
    if not x.is_nested or x.layout is not torch.jagged or x.dim() != 4 or getattr(x, "_ragged_idx", 2) != 2:
        raise NotImplementedError(
            f"{name} is {f'a nested tensor of {x.dim()} axes and layout {x.layout}' if x.is_nested else 'not nested'}; beside a "
            "nested tensor each of layout torch.jagged, (batch, heads, any number, dim), is accepted"
        )
    x = x.transpose(1, 2)
    if x.lengths() is not None:  # with rows between the sequences
        x = x.contiguous()
    longest = x._get_max_seqlen() if x.is_cuda else None  # elsewhere the library finds it out
    return x.values(), x.offsets(), longest


def nested_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any) -> Tensor:
    """A nested tensor as query, with the columns of value."""
    if attn_mask is not None:
        raise NotImplementedError("attn_mask is given beside nested tensors; is_causal is accepted")
    q, of_q, longest_q = _packed("query", query)
    k, of_k, longest_k = _packed("key", key)
    v, of_v, _ = _packed("value", value)
    if of_v is not of_k and not torch.equal(of_v, of_k):
        raise ValueError("key and value have sequences of other lengths than each other; the same ones are accepted")
    packed = {"cu_seqlens_q": of_q, "cu_seqlens_k": of_k, "max_seqlen_q": longest_q, "max_seqlen_k": longest_k}
    out = attention_with_zeros(q, k, v, **packed, diagonal="top_left", **options)
    return torch.nested.nested_tensor_from_jagged(out, of_q).transpose(1, 2)
