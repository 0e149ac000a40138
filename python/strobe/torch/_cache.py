# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a K/V cache, for serving: an operator without a gradient, beside those of _ops.py.

A cache is one tensor of all sequences, contiguous or in pages; lengths are tensors on its device, so that a step of decoding is
the same graph whatever the lengths.
"""

from typing import Any

import torch
from torch import Tensor

from strobe import _strobe
from strobe.torch._ops import _PLAIN, _define, _lse_shape, _observed, _usable

# The arguments of the operator: names of strobe.attention, and the types of schemas.
_SHARED = {
    "q": "Tensor",
    "k": "Tensor",
    "v": "Tensor",
    "page_table": "Tensor?",
    "cu_seqlens_q": "Tensor?",
    "used_q": "Tensor?",
    "used_k": "Tensor?",
    "alibi_slopes": "Tensor?",
    "sinks": "Tensor?",
    "q_scale": "Tensor?",
    "k_scale": "Tensor?",
    "v_scale": "Tensor?",
    "max_seqlen_q": "SymInt?",
    "max_seqlen_k": "SymInt?",
    "split_keys": "SymInt?",
    "scale_block": "int[]",
    "causal": "bool",
    "window": "int[]",
    "softcap": "float?",
    "scale": "float?",
}
_SCHEMA = ", ".join(f"{kind} {name}" for name, kind in _SHARED.items())
_DEFAULTS = {"scale_block": (1, 1), "causal": False, "window": (-1, -1)}


def _run(*shared) -> tuple[Tensor, Tensor]:
    options = dict(zip(_SHARED, shared, strict=True))
    with torch.no_grad():
        return _strobe.attention(**options | {"q": _usable(options["q"])}, return_lse=True)


def _fake(q, k, v, page_table, cu_seqlens_q, *rest):
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    return out, q.new_empty(_lse_shape(q, cu_seqlens_q), dtype=torch.float32)


_define("strobe::cache_attention", f"({_SCHEMA}) -> (Tensor, Tensor)", (), _run, _fake)


def refuse_gradient(**tensors: Tensor | None) -> None:
    if not torch.is_grad_enabled():
        return
    for name, x in tensors.items():
        if x is not None and x.requires_grad:
            raise ValueError(f"{name} requires a gradient; attention over a cache has none, {name}.detach() is accepted")


def observed(*arguments: Any) -> bool:
    """Whether something looks at operators, or a tensor is not a plain one: then a call is an operator."""
    return _observed() or any(
        isinstance(x, Tensor) and (type(x) not in _PLAIN or x.device.type not in ("cpu", "cuda")) for x in arguments
    )


def cache_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Out and lse of queries over a cache. options: as strobe.attention's; q may be packed, k and v lie as they are read."""
    refuse_gradient(q=q, k_cache=k, v_cache=v)
    given = _DEFAULTS | {"q": q, "k": k, "v": v} | options
    shared = [given.get(name) for name in _SHARED]
    return torch.ops.strobe.cache_attention(*shared) if observed(*shared) else _run(*shared)
