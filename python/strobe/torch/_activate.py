# SPDX-License-Identifier: BSD-3-Clause
"""activate: PyTorch's own attention operators run on Strobe.

``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``varlen_attn`` end in a few
operators of aten. Strobe's functions take their place in the dispatcher, below autograd, so autocast, torch.compile,
checkpointing and PyTorch's compiled derivative formulas stay as they are. What a function refuses goes on to the kernel that it
has replaced; forward and backward are interchangeable, since both libraries' lse is the natural logarithm of the row's sum.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention as _torch_attention

from strobe import _strobe
from strobe._attention import sides
from strobe._strobe import Error
from strobe.torch._ops import _usable

_REFUSALS = (ValueError, TypeError, NotImplementedError, Error)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_replaced: dict[tuple[str, str], Any] = {}  # (operator, dispatch key): PyTorch's kernel
_library: torch.library.Library | None = None


class _Refused(NotImplementedError):
    """What Strobe leaves to PyTorch, as a sentence."""


def _forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Attention of (batch, seq, heads, dim), or of packed tensors, into out; (out, lse)."""
    if q.dtype not in _DTYPES:
        raise _Refused(f"query.dtype is {q.dtype}; torch.float32, torch.float16 or torch.bfloat16 is accepted")
    with torch.no_grad():
        return _strobe.attention(_usable(q), _usable(k), _usable(v), out=out, return_lse=True, **options)


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, laid out as forward's tensors."""
    if q.dtype not in _DTYPES:
        raise _Refused(f"query.dtype is {q.dtype}; torch.float32, torch.float16 or torch.bfloat16 is accepted")
    with torch.no_grad():
        gradients = _strobe.attention_backward(
            q=_usable(q), k=_usable(k), v=_usable(v), out=_usable(out), dout=_usable(dout), lse=_usable(lse),
            deterministic=torch.are_deterministic_algorithms_enabled(), **options,
        )  # fmt: skip
    return gradients[0], gradients[1], gradients[2]


def _no_dropout(dropout_p: float) -> None:
    if dropout_p > 0:
        raise _Refused(
            f"dropout_p is {dropout_p}; 0 is accepted, since PyTorch's generator on the GPU chooses what it drops"
        )


def _no_debug_mask(return_debug_mask: bool) -> None:
    if return_debug_mask:
        raise _Refused("return_debug_mask is True; False is accepted")


# ---- (batch, heads, seq, dim): what scaled_dot_product_attention calls


def _swapped(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in tensors]


def _dense_options(is_causal: bool, bias: Tensor | None, scale: float | None, keys: int) -> dict[str, Any]:
    options: dict[str, Any] = {"causal": is_causal, "diagonal": "top_left", "scale": scale}
    if bias is not None:
        over_keys = bias if bias.shape[-1] == keys else bias.expand(*bias.shape[:-1], keys)
        options["mask" if bias.dtype == torch.bool else "bias"] = _usable(over_keys)
    return options


def _dense(query, key, value, bias, dropout_p, is_causal, scale) -> tuple[Tensor, Tensor]:
    """out, laid out as query is, and lse (batch, heads, seq)."""
    _no_dropout(dropout_p)
    same = query.shape[-1] == value.shape[-1]
    out = torch.empty_like(query) if same else query.new_empty((*query.shape[:-1], value.shape[-1]))
    options = _dense_options(is_causal, bias, scale, key.shape[2])
    return out, _forward(*_swapped(query, key, value, out), **options)[1]


def _dense_backward(grad_out, query, key, value, out, lse, bias, dropout_p, is_causal, scale):
    _no_dropout(dropout_p)
    options = _dense_options(is_causal, bias, scale, key.shape[2])
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
    return _dense_backward(grad_out, query, key, value, out, lse, None, dropout_p, is_causal, scale)


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
    return _dense_backward(grad_out, query, key, value, out, lse.squeeze(-1), attn_bias, dropout_p, is_causal, scale)


def _efficient(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    out, lse = _dense(query, key, value, attn_bias, dropout_p, is_causal, scale)
    rows = query.shape[2]  # PyTorch's own kernel makes them whole 32s
    lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=math.inf) if compute_log_sumexp else lse.new_empty(0)
    return out, lse, *_no_random_numbers(query, torch.int64)


def _efficient_backward(
    grad_out, query, key, value, attn_bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *,
    scale=None,
):  # fmt: skip
    if grad_input_mask[3]:
        raise _Refused("the gradient of attn_mask is asked for; without it the call is accepted")
    lse = lse[..., : query.shape[2]]
    return *_dense_backward(grad_out, query, key, value, out, lse, attn_bias, dropout_p, is_causal, scale), None


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
    _no_dropout(dropout_p)
    _no_debug_mask(return_debug_mask)
    for name, value in (("block_table", block_table), ("num_splits", num_splits)):
        if value is not None:
            raise _Refused(f"{name} is given; without it the call is accepted")
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
    _no_dropout(dropout_p)
    options = _flash_options(cum_seq_q, cum_seq_k, max_q, max_k, is_causal, scale, window_size_left, window_size_right)
    return _backward(grad_out, query, key, value, out, logsumexp, **options)


_OPERATORS: dict[tuple[str, str], Callable] = {
    ("_scaled_dot_product_flash_attention_for_cpu", "CPU"): _cpu,
    ("_scaled_dot_product_flash_attention_for_cpu_backward", "CPU"): _cpu_backward,
    ("_scaled_dot_product_flash_attention", "CUDA"): _cuda,
    ("_scaled_dot_product_flash_attention_backward", "CUDA"): _cuda_backward,
    ("_scaled_dot_product_cudnn_attention", "CUDA"): _cudnn,
    ("_scaled_dot_product_cudnn_attention_backward", "CUDA"): _cudnn_backward,
    ("_scaled_dot_product_efficient_attention", "CUDA"): _efficient,
    ("_scaled_dot_product_efficient_attention_backward", "CUDA"): _efficient_backward,
    ("_flash_attention_forward", "CUDA"): _flash_forward,
    ("_flash_attention_backward", "CUDA"): _flash_backward,
}


def _or_replaced(operator: str, key: str, function: Callable) -> Callable:
    """The function, and PyTorch's kernel for what it refuses."""
    kernel = _replaced[operator, key]

    def call(keys, *args, **kwargs):
        try:
            return function(*args, **kwargs)
        except _REFUSALS as refusal:
            warnings.warn(f"PyTorch's own kernel runs instead of Strobe's: {refusal}", stacklevel=2)
            return kernel.call_boxed(keys, *args, **kwargs)

    return call


def _has_kernel(operator: str, key: str) -> bool:
    return hasattr(torch.ops.aten, operator) and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key)


class _Handle:
    """What PyTorch's registry of attention implementations keeps while Strobe is active."""

    def remove(self) -> None:
        global _library
        if _library is not None:
            _library._destroy()
        _library = None


def _take_places() -> _Handle:
    global _library
    if not hasattr(torch.library, "get_kernel"):
        raise NotImplementedError(
            f"this is PyTorch {torch.__version__}; one with torch.library.get_kernel is accepted, so that what Strobe refuses "
            "finds PyTorch's own kernel"
        )
    present = [place for place in _OPERATORS if _has_kernel(*place)]
    for operator, key in present:
        if (operator, key) not in _replaced:
            _replaced[operator, key] = torch.library.get_kernel(f"aten::{operator}", key)
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says of each operator that it is overridden
        for operator, key in present:
            function = _or_replaced(operator, key, _OPERATORS[operator, key])
            _library.impl(operator, function, key, with_keyset=True)
    return _Handle()


_IN_REGISTRY = hasattr(_torch_attention, "register_flash_attention_impl")
if _IN_REGISTRY:
    _torch_attention.register_flash_attention_impl("strobe", register_fn=_take_places)


def activate() -> None:
    """Let PyTorch's own attention run on Strobe, in this process, until :func:`deactivate`.

    From then on these need no changed line: ``torch.nn.functional.scaled_dot_product_attention``, and what is built on it, such
    as ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and most models of transformers, on the CPU and on CUDA; and
    ``torch.nn.attention.varlen.varlen_attn`` on CUDA. They stay differentiable, and work under autocast, torch.compile and
    checkpointing. Calls that PyTorch computes without a fused kernel, its "math" path, stay there.

    What Strobe refuses, such as dropout, float64 and head dims above 512, runs on PyTorch's kernel, after a warning that says
    why. Code that torch.compile has compiled calls whichever kernels are active when it runs.
    ``torch.nn.attention.activate_flash_attention_impl("strobe")`` is the same call where PyTorch has it.

    Raises
    ------
    NotImplementedError
        PyTorch is older than ``torch.library.get_kernel``.
    """
    if _library is not None:
        return
    if _IN_REGISTRY:
        _torch_attention.activate_flash_attention_impl("strobe")
    else:
        _take_places()


def deactivate() -> None:
    """Undo :func:`activate`: PyTorch's own kernels run again. Without an activate() before, nothing happens."""
    if _library is None:
        return
    if _IN_REGISTRY:
        _torch_attention.restore_flash_attention_impl()
    else:
        _Handle().remove()
