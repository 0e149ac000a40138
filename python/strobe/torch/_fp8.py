# SPDX-License-Identifier: BSD-3-Clause
"""Attention in FP8 of tensors that are not: an operator that quantises on the way, differentiable."""

import torch
from torch import Tensor

from strobe import _strobe
from strobe._quantise import quantise
from strobe.torch import _ops

_LENGTHS = (
    "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "used_q", "used_k", "q_start", "k_start", "scale",
)  # fmt: skip


def _padded(x):
    """x, and columns of zeros up to a multiple of sixteen, of which a GPU's rows of bytes have to be."""
    missing = -x.shape[-1] % 16 if x.is_cuda else 0
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def _quantised(dtype, *shared):
    with torch.no_grad():
        given = _ops.options(shared)
        q, k, v = (given.pop(name) for name in ("q", "k", "v"))
        dim_v = v.shape[-1]
        if q.is_cuda and given.get("scale") is None and q.shape[-1] > 0:
            given["scale"] = q.shape[-1] ** -0.5
        q, k, v = _padded(q), _padded(k), _padded(v)
        lengths = {name: given[name] for name in _LENGTHS if name in given}
        subtract_mean = given.get("softcap") is None
        block = (128, 0 if "cu_seqlens_k" in lengths else 128)
        z = quantise(q, k, v, hadamard=True, subtract_mean=subtract_mean, scale_block=block, dtype=dtype, **lengths)
        out = q.new_empty((*q.shape[:-1], v.shape[-1])) if q.dtype == torch.float16 else None
        out, lse = _strobe.attention(z.q, z.k, z.v, return_lse=True, out=out, **z.scales, **given)
        if subtract_mean:
            lse += z.lse_shift
        return out[..., :dim_v].to(q.dtype).contiguous(), lse


def _operator(name: str, dtype: str):
    """Define strobe::attention_NAME, whose q and k become of dtype; return it."""

    def kernel(*shared):
        return _quantised(dtype, *shared)

    operator = f"strobe::attention_{name}"
    _ops.define(operator, f"({_ops.SCHEMA}) -> (Tensor, Tensor)", (), kernel, _ops.fake_attention)
    torch.library.register_autograd(
        operator,
        lambda ctx, dout, dlse: _ops.gradients(ctx, dout, dlse, _ops.attention_backward),
        setup_context=_ops.setup_context,
    )
    return getattr(torch.ops.strobe, f"attention_{name}")


_OPERATORS = {"e4m3": _operator("e4m3", "float8_e4m3fn"), "int8": _operator("int8", "int8_float8_e4m3fn")}


def quantised_attention(shared: tuple, quantise: str) -> tuple[Tensor, Tensor]:
    """Out, of q's dtype, and lse. shared: the arguments of the operators, in their order."""
    if quantise not in _OPERATORS:
        raise ValueError(f'quantise is {quantise!r}; "e4m3" or "int8" is accepted')
    return _OPERATORS[quantise](*shared)
