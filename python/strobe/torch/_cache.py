# SPDX-License-Identifier: BSD-3-Clause
"""For serving: attention over a K/V cache, and new K and V into it, two operators without a gradient beside those of _ops.py.

A cache is one tensor of all sequences, contiguous or in pages; lengths are tensors on its device, so that a step of decoding is
the same graph whatever the lengths.
"""

from typing import Any

import torch
from torch import Tensor

from strobe import _strobe
from strobe.torch._ops import define, lse_shape, refuse_forward_derivatives, usable
from strobe.torch._run import PLAIN, observed
from strobe.torch._shapes import check_append, check_shapes
from strobe.torch._sharded import refuse_shards

# The arguments of the operators: names of strobe.attention and strobe.append, and the types of schemas.
_ATTENTION = {
    "q": "Tensor",
    "k": "Tensor",
    "v": "Tensor",
    "page_table": "Tensor?",
    "cu_seqlens_q": "Tensor?",
    "used_q": "Tensor?",
    "used_k": "Tensor?",
    "leftpad_k": "Tensor?",
    "alibi_slopes": "Tensor?",
    "sinks": "Tensor?",
    "q_scale": "Tensor?",
    "k_scale": "Tensor?",
    "v_scale": "Tensor?",
    "max_seqlen_q": "SymInt?",
    "max_seqlen_k": "SymInt?",
    "split_keys": "SymInt?",
    "scale_block": "int[]?",
    "causal": "bool?",
    "window": "int[]?",
    "softcap": "float?",
    "scale": "float?",
}
_APPEND = {
    "k_cache": "Tensor(a!)",
    "v_cache": "Tensor(b!)",
    "k": "Tensor",
    "v": "Tensor",
    "q": "Tensor?",
    "lengths": "Tensor?",
    "used_k": "Tensor?",
    "page_table": "Tensor?",
    "slots": "Tensor?",
    "rotary": "Tensor[]?",  # cos and sin
    "rotary_base": "float?",
    "rotary_dim": "SymInt?",
    "interleaved": "bool?",
    "positions": "Tensor?",
    "q_at_length": "bool?",
    "hadamard": "bool?",
    "seed": "int?",
    "k_scale": "Tensor(c!)?",
    "v_scale": "Tensor(d!)?",
    "scale_block": "int[]?",
    "cu_seqlens_new": "Tensor?",
    "max_seqlen_new": "SymInt?",
    "used_new": "Tensor?",
    "cu_seqlens_q": "Tensor?",
    "max_seqlen_q": "SymInt?",
    "used_q": "Tensor?",
    "max_seqlen_k": "SymInt?",
    "q_start": "SymInt?",
    "k_start": "SymInt?",
}

_COPIED = ("q", "alibi_slopes", "sinks")  # where the library does not take their strides


def _run_attention(*given) -> tuple[Tensor, Tensor]:
    options = dict(zip(_ATTENTION, given, strict=True))
    for name in _COPIED:
        options[name] = usable(options[name])
    with torch.no_grad():
        return _strobe.attention(**options, return_lse=True)


def _fake_attention(q, k, v, page_table, cu_seqlens_q, used_q, used_k, leftpad_k, alibi_slopes, sinks, *rest):
    check_shapes(q, k, v, cu_seqlens_q, page_table=page_table, sinks=sinks, alibi_slopes=alibi_slopes)
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    return out, q.new_empty(lse_shape(q, cu_seqlens_q), dtype=torch.float32)


def _run_append(*given) -> Tensor:
    options = dict(zip(_APPEND, given, strict=True))
    base = options.pop("rotary_base")
    if base is not None:
        options["rotary"] = base
    for name in ("k", "v", "q"):
        options[name] = usable(options[name])
    with torch.no_grad():
        q = _strobe.append(**options)
        return options["k"].new_empty(0) if q is None else q


def _fake_append(*given):
    options = dict(zip(_APPEND, given, strict=True))
    k_cache, v_cache, k, v, q = given[:5]
    check_append(k_cache, v_cache, k, v, q, options["cu_seqlens_new"] is not None, options["cu_seqlens_q"] is not None)
    return k.new_empty(0) if q is None else q.new_empty(q.shape)


def _schema(arguments: dict[str, str], results: str) -> str:
    return f"({', '.join(f'{kind} {name}' for name, kind in arguments.items())}) -> {results}"


define("strobe::cache_attention", _schema(_ATTENTION, "(Tensor, Tensor)"), (), _run_attention, _fake_attention)
define("strobe::append", _schema(_APPEND, "Tensor"), (), _run_append, _fake_append)


def refuse_gradient(what: str, **tensors: Tensor | None) -> None:
    refuse_forward_derivatives(*tensors.values())
    if not torch.is_grad_enabled():
        return
    for name, x in tensors.items():
        if x is not None and x.requires_grad:
            raise ValueError(f"{name} requires a gradient; {what} has none, {name}.detach() is accepted")


def _is_operator(*given: Any) -> bool:
    """Whether something looks at operators, or a tensor is not a plain one."""
    return observed() or any(
        isinstance(x, Tensor) and (type(x) not in PLAIN or x.device.type not in ("cpu", "cuda")) for x in given
    )


def check_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    """Refuses what cache_attention would refuse, before something is written. Where operators are looked at, it does nothing."""
    if not _is_operator(q, k, v, *options.values()):
        given = {name: usable(x) if name in _COPIED else x for name, x in ({"q": q} | options).items()}
        _strobe.check(k=k, v=v, **given)


def cache_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Out and lse of queries over a cache. options: as strobe.attention's; q may be packed, k and v lie as they are read."""
    refuse_gradient("attention over a cache", q=q, k_cache=k, v_cache=v)
    named = {"q": q, "k": k, "v": v} | options
    given = [named.pop(name, None) for name in _ATTENTION]
    assert not named, named
    if not _is_operator(*given):
        return _run_attention(*given)
    refuse_shards("attention over a cache", q=q, k_cache=k, v_cache=v)
    return torch.ops.strobe.cache_attention(*given)


def append(
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q: Tensor | None = None,
    lengths: Tensor | None = None,
    used_k: Tensor | None = None,
    page_table: Tensor | None = None,
    slots: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | float | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    positions: Tensor | None = None,
    q_at_length: bool = False,
    hadamard: bool = False,
    seed: int = 0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    scale_block: tuple[int, int] = (1, 1),
    cu_seqlens_new: Tensor | None = None,
    max_seqlen_new: int | None = None,
    used_new: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    used_q: Tensor | None = None,
    max_seqlen_k: int | None = None,
    q_start: int = 0,
    k_start: int = 0,
) -> Tensor | None:
    """Write the K and V of new tokens into a cache, in place, also under torch.compile: :func:`strobe.append` has the meanings.

    Returns q, turned and transformed; None without q.
    """
    refuse_gradient("a cache", k_cache=k_cache, v_cache=v_cache, k=k, v=v, q=q)
    is_base = isinstance(rotary, (int, float))
    given = (
        k_cache, v_cache, k, v, q, lengths, used_k, page_table, slots, None if is_base else rotary,
        rotary if is_base else None, rotary_dim, interleaved, positions, q_at_length, hadamard, seed, k_scale, v_scale,
        scale_block, cu_seqlens_new, max_seqlen_new, used_new, cu_seqlens_q, max_seqlen_q, used_q, max_seqlen_k, q_start,
        k_start,
    )  # fmt: skip
    if _is_operator(*given):
        refuse_shards("a cache", k_cache=k_cache, v_cache=v_cache, k=k, v=v, q=q)
        turned = torch.ops.strobe.append(*given)
    else:
        turned = _run_append(*given)
        if torch.is_grad_enabled():  # as PyTorch does for what an operator writes
            torch.autograd.graph.increment_version([k_cache, v_cache])
    return None if q is None else turned
