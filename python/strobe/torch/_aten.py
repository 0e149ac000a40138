# SPDX-License-Identifier: BSD-3-Clause
"""Functions in the place of aten's attention operators, by Strobe. What they refuse is an exception, and PyTorch's kernel runs
(_activate.py). Forward and backward are interchangeable with PyTorch's, since both libraries' lse is the natural logarithm
of the row's sum."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from strobe import _strobe
from strobe._attention import sides
from strobe.torch._ops import usable

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Refused(NotImplementedError):
    """What Strobe leaves to PyTorch, as a sentence."""


def _forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Attention of (batch, seq, heads, dim), or of packed tensors, into out; (out, lse)."""
    if q.dtype not in _DTYPES:
        raise Refused(f"query.dtype is {q.dtype}; torch.float32, torch.float16 or torch.bfloat16 is accepted")
    with torch.no_grad():
        return _strobe.attention(usable(q), usable(k), usable(v), out=out, return_lse=True, **options)


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, laid out as forward's tensors."""
    if q.dtype not in _DTYPES:
        raise Refused(f"query.dtype is {q.dtype}; torch.float32, torch.float16 or torch.bfloat16 is accepted")
    with torch.no_grad():
        gradients = _strobe.attention_backward(
            q=usable(q), k=usable(k), v=usable(v), out=usable(out), dout=usable(dout), lse=usable(lse),
            deterministic=torch.are_deterministic_algorithms_enabled(), **options,
        )  # fmt: skip
    return gradients[0], gradients[1], gradients[2]


def no_dropout(dropout_p: float) -> None:
    if dropout_p > 0:
        raise Refused(f"dropout_p is {dropout_p}; 0 is accepted, since PyTorch's generator chooses what is dropped")


def _no_debug_mask(return_debug_mask: bool) -> None:
    if return_debug_mask:
        raise Refused("return_debug_mask is True; False is accepted")


# ---- (batch, heads, seq, dim): what scaled_dot_product_attention calls


def _swapped(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def _dense_options(is_causal: bool, bias: Tensor | None, scale: float | None, keys: int) -> dict[str, Any]:
    options: dict[str, Any] = {"causal": is_causal, "diagonal": "top_left", "scale": scale}
    if bias is not None:
        over_keys = bias if bias.shape[-1] == keys else bias.expand(*bias.shape[:-1], keys)
        options["mask" if bias.dtype == torch.bool else "bias"] = usable(over_keys)
    return options


def _dense(query, key, value, bias, dropout_p, is_causal, scale, out=None, **more: Any) -> tuple[Tensor, Tensor]:
    """out, the caller's or laid out as query is, and lse (batch, heads, seq)."""
    no_dropout(dropout_p)
    if out is None:
        same = query.shape[-1] == value.shape[-1]
        out = torch.empty_like(query) if same else query.new_empty((*query.shape[:-1], value.shape[-1]))
    options = _dense_options(is_causal, bias, scale, key.shape[2])
    return out, _forward(*_swapped(query, key, value, out), **options, **more)[1]


def _dense_backward(grad_out, query, key, value, out, lse, bias, dropout_p, is_causal, scale, gradients=None, **more: Any):
    """gradients: of query, key and value, to be written; None: new ones, in memory (batch, seq, heads, dim)."""
    if grad_out is None:  # of an output that no loss depends on
        return None, None, None
    no_dropout(dropout_p)
    options = _dense_options(is_causal, bias, scale, key.shape[2]) | more
    if gradients is not None:
        options |= dict(zip(("dq", "dk", "dv"), _swapped(*gradients), strict=True))
    return tuple(_swapped(*_backward(*_swapped(grad_out, query, key, value, out), lse, **options)))


def _no_random_numbers(query: Tensor, dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    """The state of a generator that nothing was drawn from."""
    return torch.zeros(shape, dtype=dtype, device=query.device), torch.zeros((), dtype=dtype, device=query.device)


def _cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    out, lse = _dense(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2)  # the layout that PyTorch's own kernel gives


def _cpu_backward(grad_out, query, key, value, out, lse, dropout_p, is_causal, *, attn_mask=None, scale=None):
    return _dense_backward(grad_out, query, key, value, out, lse, attn_mask, dropout_p, is_causal, scale)


def _cuda(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    _no_debug_mask(return_debug_mask)
    out, lse = _dense(query, key, value, None, dropout_p, is_causal, scale)
    state = _no_random_numbers(query, torch.uint64, 2)
    return out, lse, None, None, query.shape[2], key.shape[2], *state, query.new_empty(0)


def _cuda_backward(
    grad_out, query, key, value, out, lse, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, seed, offset, *,
    scale=None,
):  # fmt: skip
    gradients = [torch.empty_like(x) for x in (query, key, value)]  # torch.compile counts on this layout
    return _dense_backward(grad_out, query, key, value, out, lse, None, dropout_p, is_causal, scale, gradients)


def _cudnn(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):  # fmt: skip
    _no_debug_mask(return_debug_mask)
    out, lse = _dense(query, key, value, attn_bias, dropout_p, is_causal, scale)
    state = _no_random_numbers(query, torch.int64)
    return out, lse.unsqueeze(-1), None, None, query.shape[2], key.shape[2], *state, None


def _cudnn_backward(
    grad_out, query, key, value, out, lse, seed, offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    *, scale=None,
):  # fmt: skip
    gradients = [torch.empty_like(x) for x in (query, key, value)]  # torch.compile counts on this layout
    lse = lse.squeeze(-1)
    return _dense_backward(grad_out, query, key, value, out, lse, attn_bias, dropout_p, is_causal, scale, gradients)


def _few_columns(query: Tensor, value: Tensor) -> None:
    """In fp32 of more columns there are no products of tf32 parts, and PyTorch's own kernel, which has them, is faster."""
    for name, x in (("query", query), ("value", value)):
        if x.dtype == torch.float32 and x.shape[-1] > 128:
            raise Refused(f"{name} has {x.shape[-1]} columns of torch.float32; at most 128 are accepted, or 16-bit elements")


def _efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    _few_columns(query, value)
    shape = (*query.shape[:-1], value.shape[-1])
    out = torch.empty_permuted(shape, (0, 2, 1, 3), dtype=query.dtype, device=query.device)
    lse = _dense(query, key, value, attn_bias, dropout_p, is_causal, scale, out, tf32x3=True)[1]  # as PyTorch's own kernel
    rows = query.shape[2]  # PyTorch's own kernel makes them whole 32s
    lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=math.inf) if compute_log_sumexp else lse.new_empty(0)
    return out, lse, *_no_random_numbers(query, torch.int64)


def _efficient_backward(
    grad_out, query, key, value, attn_bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *,
    scale=None,
):  # fmt: skip
    _few_columns(query, value)
    if grad_input_mask[3]:
        raise Refused("the gradient of attn_mask is asked for; without it the call is accepted")
    lse = lse[..., : query.shape[2]]
    gradients = _dense_backward(grad_out, query, key, value, out, lse, attn_bias, dropout_p, is_causal, scale, tf32x3=True)
    return *gradients, None


# ---- (batch, seq, heads, dim), or packed: what varlen_attn and nested tensors call


def _flash_options(cum_seq_q, cum_seq_k, max_q, max_k, is_causal, scale, left, right, seqused_k=None) -> dict[str, Any]:
    window = [-1 if side is None else side for side in (left, right)]
    options: dict[str, Any] = {"causal": is_causal, "scale": scale, "window": sides(None if window == [-1, -1] else window)}
    if cum_seq_q is not None:
        options |= {"cu_seqlens_q": cum_seq_q, "max_seqlen_q": int(max_q)}
    if cum_seq_k is not None:
        options |= {"cu_seqlens_k": cum_seq_k, "max_seqlen_k": int(max_k)}
    if seqused_k is not None:
        options["used_k"] = seqused_k
    return options


def _flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None,
    window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None, block_table=None, num_splits=None,
):  # fmt: skip
    no_dropout(dropout_p)
    _no_debug_mask(return_debug_mask)
    for name, given in (("block_table", block_table), ("num_splits", num_splits)):
        if given is not None:
            raise Refused(f"{name} is given; without it the call is accepted")
    options = _flash_options(cum_seq_q, cum_seq_k, max_q, max_k, is_causal, scale, window_size_left, window_size_right,
                             seqused_k)  # fmt: skip
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    _, lse = _forward(query, key, value, out, **options)
    return out, lse, *_no_random_numbers(query, torch.uint64, 2), query.new_empty(0)


def _flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state, unused,
    *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    if grad_out is None:
        return None, None, None
    no_dropout(dropout_p)
    options = _flash_options(cum_seq_q, cum_seq_k, max_q, max_k, is_causal, scale, window_size_left, window_size_right)
    return _backward(grad_out, query, key, value, out, logsumexp, **options)


def _hidden(mask: Tensor, kind: int | None, rows: int) -> Tensor:
    """A mask of modules, (seq, seq), (batch, seq) or (batch, heads, seq, seq), over scores."""
    if kind == 1:
        return mask[:, None, None]
    return mask if mask.dim() == 4 else mask.expand(rows, rows)


def _multi_head(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None, need_weights=True,
    average_attn_weights=True, mask_type=None,
):  # fmt: skip
    """What nn.MultiheadAttention and nn.TransformerEncoderLayer call where no gradient is recorded: (batch, seq, embed_dim)."""
    if need_weights:
        raise Refused("need_weights is True; False is accepted, since the matrix of weights is never made")
    if not all(x is query or x.is_set_to(query) for x in (key, value)):
        raise Refused("query, key and value are three tensors; one for all is accepted")
    split = torch.nn.functional.linear(query, qkv_weight, qkv_bias).unflatten(-1, (3, num_head, -1))
    q, k, v = split.unbind(2)
    options: dict[str, Any] = {}
    if mask is not None:
        hidden = _hidden(mask, mask_type, query.shape[1])
        options = {"mask": ~hidden} if mask.dtype == torch.bool else {"bias": usable(hidden)}
    out = query.new_empty(q.shape)
    _forward(q, k, v, out, **options)
    return torch.nn.functional.linear(out.flatten(2), proj_weight, proj_bias), query.new_empty(0)


OPERATORS: dict[tuple[str, str], Callable] = {
    ("_scaled_dot_product_flash_attention_for_cpu", "CPU"): _cpu,
    ("_scaled_dot_product_flash_attention_for_cpu_backward", "CPU"): _cpu_backward,
    ("_native_multi_head_attention", "CPU"): _multi_head,
    ("_scaled_dot_product_flash_attention", "CUDA"): _cuda,
    ("_scaled_dot_product_flash_attention_backward", "CUDA"): _cuda_backward,
    ("_scaled_dot_product_cudnn_attention", "CUDA"): _cudnn,
    ("_scaled_dot_product_cudnn_attention_backward", "CUDA"): _cudnn_backward,
    ("_scaled_dot_product_efficient_attention", "CUDA"): _efficient,
    ("_scaled_dot_product_efficient_attention_backward", "CUDA"): _efficient_backward,
    ("_flash_attention_forward", "CUDA"): _flash_forward,
    ("_flash_attention_backward", "CUDA"): _flash_backward,
}
