# SPDX-License-Identifier: BSD-3-Clause
"""Attention with a function of a score, as text: differentiable in q, k, v and in the arrays that the text reads."""

import functools
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strobe import _strobe
from strobe.torch._ops import usable


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, options: dict[str, Any], names: tuple[str, ...], q: Tensor, k: Tensor, v: Tensor, *arrays: Tensor):
        q, k, v = usable(q), usable(k), usable(v)
        given = dict(zip(names, (x.detach() for x in arrays), strict=True))
        out, lse = _strobe.attention(q.detach(), k.detach(), v.detach(), return_lse=True, arrays=given, **options)
        ctx.save_for_backward(q, k, v, out, lse, *arrays)
        ctx.options, ctx.names = options, names
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, out, lse, *arrays = (x.detach() for x in ctx.saved_tensors)
        if dout is None:
            dout = torch.zeros_like(out)
        wanted = ctx.needs_input_grad[5:]
        gradients = [
            torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else None
            for x, want in zip(arrays, wanted, strict=True)
        ]
        options = {name: x for name, x in ctx.options.items() if name != "kernel"}  # the forward's
        dq, dk, dv, _, _ = _strobe.attention_backward(
            q, k, v, dout=usable(dout), out=out, lse=lse, dlse=None if dlse is None else dlse.contiguous(),
            arrays=dict(zip(ctx.names, arrays, strict=True)),
            array_gradients={name: x for name, x in zip(ctx.names, gradients, strict=True) if x is not None}, **options,
        )  # fmt: skip
        return None, None, dq, dk, dv, *gradients


@functools.cache
def _name_compiler() -> None:
    """Tell the library where NVRTC is, which compiles functions of a score for GPUs: PyTorch comes with it."""
    if "STROBE_NVRTC" in os.environ:
        return
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        for folder in sorted(Path(torch.__file__).parents[1].glob("nvidia/*/lib")):
            if (folder / name).exists():
                os.environ["STROBE_NVRTC"] = str(folder / name)
                return


@torch.compiler.disable
def scored_attention(
    q: Tensor, k: Tensor, v: Tensor, arrays: dict[str, Tensor] | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Out and lse. options: as strobe.attention's, tensors without a gradient."""
    arrays = arrays or {}
    if q.is_cuda:
        _name_compiler()
    for name, x in arrays.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"arrays[{name!r}] is a {type(x)}; a torch.Tensor is accepted")
    return _Scored.apply(options, tuple(arrays), q, k, v, *arrays.values())
