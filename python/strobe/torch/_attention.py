# SPDX-License-Identifier: BSD-3-Clause
"""strobe.torch.attention: what the other signatures are written in."""

import operator
from typing import Any

import torch
from torch import Tensor

from strobe._attention import MaskLists, sides
from strobe.torch._fp8 import quantised_attention
from strobe.torch._ops import refuse_forward_derivatives
from strobe.torch._run import PLAIN, heads_last, run
from strobe.torch._score import scored_attention
from strobe.torch._sharded import attention_of_shards, is_sharded


def under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one device as autocast has them: of its dtype, but for float64, which it leaves alone."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x if x.dtype is torch.float64 else x.to(dtype) for x in tensors)


def _unrepeated(x: Tensor) -> Tensor:
    """A view of extent 1 along the axes that x repeats by a stride of 0: read as before, its gradient summed once."""
    for axis in range(x.dim() - 1):
        if x.shape[axis] > 1 and x.stride(axis) == 0:
            x = x.narrow(axis, 0, 1)
    return x


def _over_keys(x: Tensor | None, keys: int | None) -> Tensor | None:
    """Scores whose last axis is not repeated: the library reads along it."""
    if x is None:
        return None
    x = _unrepeated(x) if x.dim() > 0 else x.expand(1)
    return x if keys is None or x.shape[-1] != 1 else x.expand(*x.shape[:-1], keys)


def _refuse_beside(what: str, **given: Any) -> None:
    for name, x in given.items():
        if x is not None:
            raise NotImplementedError(f"{name} is given beside {what}; one of them is accepted")


def _as_tensors(lists: MaskLists | None) -> list[Tensor] | None:
    """Lists of masks as an operator's schema has them."""
    if lists is None:
        return None
    if not isinstance(lists, MaskLists) or not isinstance(lists.memory, Tensor):
        raise TypeError(f"mask_lists is {lists!r}; what strobe.mask_lists returned for tensors of PyTorch is accepted")
    return [lists.memory, torch.tensor(list(lists.made_for), dtype=torch.uint8, device="cpu")]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    diagonal: str = "bottom_right",
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    block_mask: Tensor | None = None,
    block_size: tuple[int, int] | None = None,
    mask_lists: MaskLists | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    offset: int = 0,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    used_q: Tensor | None = None,
    used_k: Tensor | None = None,
    q_start: int = 0,
    k_start: int = 0,
    deterministic: bool = False,
    tf32x3: bool = False,
    kernel: str | None = None,
    score: str | None = None,
    visible: str | None = None,
    arrays: dict[str, Tensor] | None = None,
    scalars: dict[str, float] | None = None,
    quantise: str | None = None,
    return_lse: bool = False,
) -> Any:
    """Return softmax(scale * Q K^T) V, differentiable in q, k, v, bias and sinks, through out and lse.

    Parameters
    ----------
    q : Tensor, (batch, seq_q, heads_q, dim), or (total_q, heads_q, dim) with cu_seqlens_q
    k : Tensor, (batch, seq_k, heads_kv, dim), or (total_k, heads_kv, dim) with cu_seqlens_k
    v : Tensor, (batch, seq_k, heads_kv, dim_v), or (total_k, heads_kv, dim_v)
        float64 goes through the reference kernels, so that torch.autograd.gradcheck applies.
    seed : int or int64 Tensor of one element on the CPU, optional
        Of dropout; None: drawn from PyTorch's default generator, so that torch.manual_seed rules.
    score, visible, arrays, scalars : optional
        As in :func:`strobe.attention`; arrays have gradients. Not beside bias, alibi_slopes, sinks and dropout.
    quantise : {"e4m3", "int8"}, optional
        Compute in FP8: q, k and v are quantised in blocks of 128 rows, after a Hadamard transform and without K's mean
        (:func:`strobe.quantise`); "int8": q and k in int8, whose scores are more exact, v in e4m3. Gradients are the backward's in q's dtype, of q, k and v as they are, with this out and
        lse. Not beside bias, sinks, dropout and functions of a score.
    kernel : str, optional
        Of the forward; the gradient's is the library's choice.
    others
        As in :func:`strobe.attention`.

    DTensors are taken whose batch or heads are sharded: all tensors are DTensors then, and so are the results.

    torch.func's transforms work, vmap by making the axis a part of the batch; not packed sequences under vmap.

    Returns
    -------
    out : Tensor, as q with dim_v
    lse : Tensor, (batch, heads_q, seq_q) or (heads_q, total_q)
        With return_lse.

    Raises
    ------
    ValueError, NotImplementedError, TypeError, strobe.Error
        As :func:`strobe.attention`.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        name, x = next((name, x) for name, x in (("q", q), ("k", k), ("v", v)) if not isinstance(x, Tensor))
        raise TypeError(f"{name} is a {type(x)}; a torch.Tensor is accepted")
    if diagonal not in ("bottom_right", "top_left"):
        raise ValueError(f'diagonal is {diagonal!r}; "bottom_right" or "top_left" is accepted')
    if (
        bias is mask is block_mask is mask_lists is alibi_slopes is sinks is cu_seqlens_q is cu_seqlens_k is used_q is None
        and used_k is max_seqlen_q is max_seqlen_k is block_size is kernel is score is visible is quantise is None
        and not (softcap or return_lse or arrays or scalars or ((deterministic or tf32x3) and q.is_cuda))
        and dropout == offset == q_start == k_start == 0
        and (window is None or (type(window) is tuple and window == (-1, -1)))
    ):
        out = heads_last(q, k, v, causal, diagonal, scale)
        if out is not None:
            return out
    if type(q) not in PLAIN and is_sharded(q):
        tensors = {
            "q": q, "k": k, "v": v, "bias": bias, "mask": mask, "block_mask": block_mask, "alibi_slopes": alibi_slopes,
            "sinks": sinks, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "used_q": used_q, "used_k": used_k,
        }  # fmt: skip
        refused = {"score": score, "visible": visible, "arrays": arrays, "scalars": scalars, "mask_lists": mask_lists}
        return attention_of_shards(
            attention, tensors, refused, causal=causal, window=window, diagonal=diagonal, block_size=block_size,
            softcap=softcap, dropout=dropout, seed=seed, offset=offset, scale=scale, max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k, q_start=q_start, k_start=k_start, deterministic=deterministic, tf32x3=tf32x3,
            kernel=kernel, quantise=quantise, return_lse=return_lse,
        )  # fmt: skip
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.is_nested:
            raise NotImplementedError(f"{name} is a nested tensor; packed sequences, with cu_seqlens_q and cu_seqlens_k, are accepted")
    refuse_forward_derivatives(q, k, v, bias, sinks, alibi_slopes, *(arrays.values() if isinstance(arrays, dict) else ()))
    q, k, v = under_autocast(q, k, v)
    if bias is not None or mask is not None:
        keys = k.shape[1] if cu_seqlens_k is None else max_seqlen_k
        bias, mask = _over_keys(bias, keys), _over_keys(mask, keys)
    scored = score is not None or visible is not None or arrays or scalars
    if scored or quantise is not None:
        _refuse_beside(
            "score or visible" if scored else "quantise",
            bias=bias,
            sinks=sinks,
            dropout=dropout or None,
            mask_lists=mask_lists,
        )
    if dropout == 0:
        seed = None
    elif seed is None:
        seed = torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device="cpu")
    elif not isinstance(seed, Tensor):
        if not hasattr(seed, "__index__") or not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed!r}; an integer in [0, 2**64), or an int64 Tensor of one element, is accepted")
        seed = operator.index(seed)  # NumPy's uint64 would overflow below
        seed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed], dtype=torch.int64, device="cpu")
    shared = (
        q, k, v, bias, mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, used_q,
        used_k, block_mask, seed, max_seqlen_q, max_seqlen_k, q_start, k_start, block_size, offset, kernel, causal,
        sides(window), diagonal, softcap, dropout, scale, deterministic, tf32x3,
        _as_tensors(mask_lists),
    )  # fmt: skip
    if scored:
        _refuse_beside("score or visible", alibi_slopes=alibi_slopes, quantise=quantise)
        out, lse = scored_attention(shared, score, visible, arrays, scalars)
    elif quantise is not None:
        out, lse = quantised_attention(shared, quantise)
    else:
        out, lse = run(*shared, with_lse=return_lse)
    return (out, lse) if return_lse else out


def attention_with_zeros(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, dropout: float = 0.0, return_lse: bool = False, **options: Any
) -> Any:
    """attention() of what PyTorch's functions take and it refuses: a scale of 0, q and k, or v, without columns, and a dropout of
    everything. Scores are 0 before anything is added to them, the result has no columns, or it is 0."""
    columns, drops_all = v.shape[-1], dropout == 1
    if scale == 0:
        q, scale = q * 0, 1.0
    if q.shape[-1] == k.shape[-1] == 0:
        q, k, scale = (*(torch.nn.functional.pad(x, (0, 1)) for x in (q, k)), 1.0)
    if columns == 0:
        v = torch.nn.functional.pad(v, (0, 1))
    results = attention(q, k, v, scale=scale, dropout=0.0 if drops_all else dropout, return_lse=return_lse, **options)
    if columns and not drops_all:
        return results
    out = results[0] if return_lse else results
    out = out * 0 if columns else out[..., :0]
    return (out, results[1]) if return_lse else out
