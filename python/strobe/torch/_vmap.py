# SPDX-License-Identifier: BSD-3-Clause
"""torch.func.vmap of the operators: the axis that is mapped over becomes a part of the batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_OVER_SCORES = ("bias", "mask", "block_mask")


class _Folded:
    """The arguments of one call by their names, and the extent of the axis that is mapped over."""

    def __init__(self, names: list[str], arguments: tuple, in_dims: tuple, extent: int):
        self.extent = extent
        self.given = dict(zip(names, arguments, strict=True))
        self.axis = dict(zip(names, in_dims, strict=True))
        self.batch = self.given["q"].shape[0 if self.axis["q"] != 0 else 1]

    def each(self, name: str) -> Tensor:
        """With the mapped axis first, repeated where the argument has none."""
        x, axis = self.given[name], self.axis[name]
        return x.expand(self.extent, *x.shape) if axis is None else x.movedim(axis, 0)

    def tensor(self, name: str) -> Tensor:
        """(batch, ...) of each, as one batch."""
        return self.each(name).flatten(0, 1)

    def over_scores(self, name: str, own_batch: bool) -> Tensor:
        """A tensor over scores, which may have fewer axes. own_batch: even if it would do for all as it is."""
        x = self.each(name)
        if self.axis[name] is None and not own_batch and (x.dim() < 5 or x.shape[1] == 1):
            return self.given[name]
        x = x.reshape(self.extent, *[1] * (5 - x.dim()), *x.shape[1:])
        return x.expand(-1, self.batch, -1, -1, -1).flatten(0, 1)

    def slopes(self) -> Tensor:
        if self.axis["alibi_slopes"] is None and self.given["alibi_slopes"].dim() == 1:
            return self.given["alibi_slopes"]
        x = self.each("alibi_slopes")
        x = x if x.dim() == 3 else x.unsqueeze(1).expand(-1, self.batch, -1)
        return x.flatten(0, 1)

    def unfolded(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.extent, self.batch))


def _refuse(name: str, accepted: str) -> None:
    raise NotImplementedError(f"torch.func.vmap maps over a call with {name}; {accepted} is accepted")


def _fold(info: Any, names: list[str], in_dims: tuple, arguments: tuple) -> _Folded:
    folded = _Folded(names, arguments, in_dims, info.batch_size)
    given = folded.given
    given["mask_lists"] = None  # they are of another batch, and each call can do without
    if given["cu_seqlens_q"] is not None or given["cu_seqlens_k"] is not None:
        _refuse("packed sequences", "one of a tensor a sequence, with used_q and used_k,")
    if given["seed"] is not None and (info.randomness != "different" or folded.axis["seed"] is not None):
        _refuse("dropout", 'randomness="different" beside a seed, the same for all,')
    if folded.axis["sinks"] is not None:
        _refuse("sinks of their own", "sinks that are the same for all")
    for name in ("q", "k", "v"):
        given[name] = folded.tensor(name)
    for name in ("used_q", "used_k"):
        if given[name] is not None:
            given[name] = folded.tensor(name)
    if given["alibi_slopes"] is not None:
        given["alibi_slopes"] = folded.slopes()
    return folded


def forward_rule(operator: Callable, names: list[str]) -> Callable:
    def rule(info, in_dims, *arguments):
        folded = _fold(info, names, in_dims, arguments)
        for name in _OVER_SCORES:
            if folded.given[name] is not None:
                folded.given[name] = folded.over_scores(name, False)
        results = operator(*folded.given.values())
        return tuple(folded.unfolded(x) for x in results), (0, 0)

    return rule


def backward_rule(operator: Callable, names: list[str]) -> Callable:
    def rule(info, in_dims, *arguments):
        bias = arguments[names.index("bias")]
        folded = _fold(info, names, in_dims, arguments)
        given = folded.given
        if given["sinks"] is not None:
            _refuse("sinks and a gradient", "one of them")
        shape = None if bias is None else folded.each("bias").shape[1:]
        for name in _OVER_SCORES:
            if given[name] is not None:
                given[name] = folded.over_scores(name, name == "bias" and given["bias_gradient"])
        for name in ("dout", "dlse", "out", "lse"):
            if given[name] is not None:
                given[name] = folded.tensor(name)
        dq, dk, dv, dbias, dsinks = operator(*given.values())
        results = [folded.unfolded(x) for x in (dq, dk, dv)]
        if given["bias_gradient"]:
            dbias = folded.unfolded(dbias)  # (extent, batch, heads, rows, keys), some of them 1
            parts = [x.sum_to_size(shape) for x in dbias]
            dbias = torch.stack(parts) if parts else dbias.new_empty((0, *shape))
        return (*results, dbias, dsinks), (0, 0, 0, 0 if given["bias_gradient"] else None, None)

    return rule
