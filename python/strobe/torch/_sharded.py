# SPDX-License-Identifier: BSD-3-Clause
"""Attention of DTensors whose batch or heads lie over the processes of a mesh: each process computes its own part.

Not by a sharding strategy of the operators, which PyTorch takes by an experimental interface alone: the call becomes one of local
tensors, by DTensor's own methods, and takes the short way of plain ones.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_BATCH, _HEADS = "batch", "heads"
_OVER_SCORES = ("bias", "mask", "block_mask")  # (batch, heads, rows, keys), from the right, each 1 or missing


def is_sharded(x: Any) -> bool:
    """Whether x is a DTensor; nothing is imported for it."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def refuse_shards(what: str, **given: Any) -> None:
    for name, x in given.items():
        if is_sharded(x):
            raise NotImplementedError(f"{name} of {what} is a DTensor; a local tensor, DTensor.to_local()'s, is accepted")


def _axes(name: str, x: Tensor, packed: bool) -> dict[str, int]:
    """Which axis of a tensor is of the batch, and which of heads; one that it lacks, or repeats, is not there."""
    if name in ("q", "k", "v"):
        return {_HEADS: 1} if packed else {_BATCH: 0, _HEADS: 2}
    if name in _OVER_SCORES:
        found = {_BATCH: x.dim() - 4, _HEADS: x.dim() - 3}
        return {what: axis for what, axis in found.items() if axis >= 0 and x.shape[axis] != 1}
    if name == "alibi_slopes":
        return {_HEADS: 0} if x.dim() == 1 else {_BATCH: 0, _HEADS: 1}
    return {"sinks": {_HEADS: 0}, "used_q": {_BATCH: 0}, "used_k": {_BATCH: 0}}.get(name, {})


def _cuts(q: Any, k: Any, packed: bool) -> list[str | None]:
    """What each axis of q's mesh cuts."""
    from torch.distributed.tensor import Shard

    names = {axis: what for what, axis in _axes("q", q, packed).items()}
    found: list[str | None] = []
    parts = 1
    for axis, placement in enumerate(q.placements):
        what = names.get(placement.dim % q.dim()) if type(placement) is Shard else None
        if what is None and not (placement.is_replicate() or placement.is_partial()):
            accepted = "the axis of heads" if packed else "the axis of the batch or of heads"
            raise NotImplementedError(
                f"q is sharded as {placement}; {accepted} is accepted, and context_parallel_attention takes "
                "shards of a sequence"
            )
        found.append(what)
        if what == _HEADS:
            parts *= q.device_mesh.size(axis)
    for name, heads in (("heads_q", q.shape[-2]), ("heads_kv", k.shape[-2])):
        if heads % parts:
            raise NotImplementedError(
                f"{name} is {heads} over {parts} shards of q's heads; a multiple of {parts} is accepted"
            )
    return found


def _check_extents(name: str, x: Tensor, cuts: list[str | None], extents: dict[str, int], packed: bool) -> None:
    """Refuses what is cut otherwise than q: its parts could go together by chance, or be taken as what all have once."""
    for what, axis in _axes(name, x, packed).items():
        if what in cuts and (axis >= x.dim() or x.shape[axis] != extents[what]):
            raise ValueError(f"{name}.shape is {tuple(x.shape)}; {extents[what]} for axis {axis}, the {what}, is accepted")


def _local(name: str, x: Any, mesh: Any, cuts: list[str | None], packed: bool) -> Tensor:
    """This process' part of a tensor, whose gradient is of the tensor again, a sum over the parts of what it has once for all."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if not is_sharded(x):
        raise TypeError(f"{name} is a {type(x)} beside a DTensor; a DTensor, one of Replicate() among them, is accepted")
    if x.device_mesh != mesh:
        raise ValueError(f"{name} is on {x.device_mesh}; q's mesh, {mesh}, is accepted")
    axes = _axes(name, x, packed)
    for placement in x.placements if name in ("k", "v") else ():
        if placement.is_shard() and placement.dim % x.dim() not in axes.values():
            raise NotImplementedError(f"{name} is sharded as {placement}; q's placements, or Replicate(), are accepted")
    placements = [Replicate() if what not in axes else Shard(axes[what]) for what in cuts]
    gradient = [
        Partial() if what is not None and placement.is_replicate() else placement
        for what, placement in zip(cuts, placements, strict=True)
    ]
    return x.redistribute(placements=placements).to_local(grad_placements=gradient)


def _whole(x: Tensor, shape: tuple, mesh: Any, cuts: list[str | None], axes: dict[str, int]) -> Any:
    """The DTensor whose part in this process is x."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placements = [Replicate() if what is None else Shard(axes[what]) for what in cuts]
    stride = [1]
    for extent in shape[:0:-1]:
        stride.insert(0, stride[0] * max(extent, 1))
    return DTensor.from_local(
        x.contiguous(), mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )


def attention_of_shards(call: Callable, tensors: dict[str, Any], refused: dict[str, Any], **options: Any) -> Any:
    """call, which is attention(), of DTensors. tensors: by name, q first, some None; refused: what is not taken beside them."""
    for name, x in refused.items():
        if x:
            raise NotImplementedError(f"{name} is given beside DTensors; local tensors, DTensor.to_local()'s, are accepted")
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    mesh, packed = q.device_mesh, tensors["cu_seqlens_q"] is not None
    if mesh.get_coordinate() is None:
        raise ValueError(f"q is on {mesh}, which this process is not of; a process of the mesh is accepted")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != (3 if packed else 4):
            raise ValueError(f"{name}.shape is {tuple(x.shape)}; {3 if packed else 4} axes are accepted")
    cuts = _cuts(q, k, packed)
    if options["dropout"] and (options["seed"] is None or any(cuts)):
        raise NotImplementedError(
            "dropout is given beside DTensors that are sharded, or without a seed; DTensors that are replicated, and a seed that "
            "is the same in each process, are accepted"
        )
    for name, x in tensors.items():
        if x is not None:
            heads = (k if name in ("k", "v") else q).shape[-2]
            _check_extents(name, x, cuts, {_BATCH: q.shape[0], _HEADS: heads}, packed)
    local = {name: None if x is None else _local(name, x, mesh, cuts, packed) for name, x in tensors.items()}
    results = call(**local, **options)
    out, lse = results if options["return_lse"] else (results, None)
    out = _whole(out, (*q.shape[:-1], v.shape[-1]), mesh, cuts, _axes("q", q, packed))
    if lse is None:
        return out
    shape = (q.shape[1], q.shape[0]) if packed else (q.shape[0], q.shape[2], q.shape[1])
    return out, _whole(lse, shape, mesh, cuts, {_HEADS: 0} if packed else {_BATCH: 0, _HEADS: 1})
