# SPDX-License-Identifier: BSD-3-Clause
"""Attention in FP8 of tensors that are not: quantised on the way, differentiable."""

from typing import Any

import torch
from torch import Tensor

from strobe import _strobe
from strobe._quantise import quantise
from strobe.torch._ops import usable


class _Quantised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, options: dict[str, Any], subtract_mean: bool, q: Tensor, k: Tensor, v: Tensor):
        q, k, v = (usable(x.detach()) for x in (q, k, v))
        lengths = {name: options[name] for name in _LENGTHS if options.get(name) is not None}
        packed = "cu_seqlens_k" in lengths
        z = quantise(
            q, k, v, hadamard=True, subtract_mean=subtract_mean, scale_block=(128, 0 if packed else 128),
            scale=options.get("scale"), **lengths,
        )  # fmt: skip
        out = q.new_empty((*q.shape[:-1], v.shape[-1])) if q.dtype == torch.float16 else None
        out, lse = _strobe.attention(z.q, z.k, z.v, return_lse=True, out=out, **z.scales, **options)
        out = out.to(q.dtype)
        if subtract_mean:
            lse += z.lse_shift
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv, _, _ = _strobe.attention_backward(
            q, k, v, dout=torch.zeros_like(out) if dout is None else usable(dout), out=out, lse=lse, dlse=usable(dlse),
            **{name: x for name, x in ctx.options.items() if name != "kernel"},
        )  # fmt: skip
        return None, None, dq, dk, dv


_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "used_q", "used_k", "q_start", "k_start")


@torch.compiler.disable
def quantised_attention(q: Tensor, k: Tensor, v: Tensor, quantise: str, **options: Any) -> tuple[Tensor, Tensor]:
    """Out, of q's dtype, and lse. options: as strobe.attention's, tensors without a gradient."""
    if quantise != "e4m3":
        raise ValueError(f'quantise is {quantise!r}; "e4m3" is accepted')
    return _Quantised.apply(options, options.get("softcap") is None, q, k, v)
