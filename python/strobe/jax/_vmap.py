# SPDX-License-Identifier: BSD-3-Clause
"""jax.vmap of the custom calls: the axis that is mapped over becomes a part of the batch. Where that would give other results
than one call after the other, or is not to be said in one call, it is one after the other."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_OVER_SCORES = ("bias", "mask", "block_mask")
_OF_A_BATCH = ("q", "k", "v", "used_q", "used_k", "leftpad_k", "out", "lse", "dout", "dlse")


def _one_by_one(operator: Callable, is_mapped: list[bool], arrays: tuple) -> tuple:
    """The calls one after the other; their results with the mapped axis first."""
    mapped = [x for x, of_each in zip(arrays, is_mapped, strict=True) if of_each]

    def one(parts):
        own = iter(parts)
        return operator(*(next(own) if of_each else x for x, of_each in zip(arrays, is_mapped, strict=True)))

    results = jax.lax.map(one, mapped)
    return results, (True,) * len(results)


class _Folded:
    """The arrays of one call by their names, and the extent of the axis that is mapped over."""

    def __init__(self, names: tuple[str, ...], arrays: tuple, is_mapped: list[bool], extent: int):
        self.extent = extent
        self.given = dict(zip(names, arrays, strict=True))
        self.is_mapped = dict(zip(names, is_mapped, strict=True))
        self.batch = self.given["q"].shape[1 if self.is_mapped["q"] else 0]

    def is_foldable(self, function: Any) -> bool:
        if any(text and re.search(r"\bb\b", text) for text in (function.score, function.visible)):
            return False
        known = {*_OF_A_BATCH, *_OVER_SCORES, "alibi_slopes", "sinks"}
        return self.given.keys() <= known and not self.is_mapped.get("sinks", False)

    def each(self, name: str) -> jax.Array:
        """With the mapped axis first, repeated where the array has none."""
        x = self.given[name]
        return x if self.is_mapped[name] else jnp.broadcast_to(x, (self.extent, *x.shape))

    def over_scores(self, name: str, own_batch: bool) -> jax.Array:
        """An array over scores. own_batch: even if it would do for all as it is."""
        if not self.is_mapped[name] and not own_batch and (self.given[name].ndim < 4 or self.given[name].shape[0] == 1):
            return self.given[name]
        x = self.each(name)
        x = x.reshape(self.extent, *[1] * (5 - x.ndim), *x.shape[1:])
        return self.as_batch(jnp.broadcast_to(x, (self.extent, self.batch, *x.shape[2:])))

    def slopes(self) -> jax.Array:
        if not self.is_mapped["alibi_slopes"] and self.given["alibi_slopes"].ndim == 1:
            return self.given["alibi_slopes"]
        x = self.each("alibi_slopes")
        x = x if x.ndim == 3 else jnp.broadcast_to(x[:, None], (self.extent, self.batch, x.shape[-1]))
        return self.as_batch(x)

    def as_batch(self, x: jax.Array) -> jax.Array:
        return x.reshape(math.prod(x.shape[:2]), *x.shape[2:])

    def unfolded(self, x: jax.Array) -> jax.Array:
        return x.reshape(self.extent, self.batch, *x.shape[1:])

    def arrays(self, with_own_batch: tuple[str, ...] = ()) -> list[jax.Array]:
        folded: dict[str, Any] = {}
        for name, x in self.given.items():
            if name in _OF_A_BATCH:
                folded[name] = self.as_batch(self.each(name))
            elif name in _OVER_SCORES:
                folded[name] = self.over_scores(name, name in with_own_batch)
            else:
                folded[name] = self.slopes() if name == "alibi_slopes" else x
        return list(folded.values())


def forward_rule(operator: Callable, names: tuple[str, ...], function: Any) -> Callable:
    def rule(extent, is_mapped, *arrays):
        folded = _Folded(names, arrays, is_mapped, extent)
        if not folded.is_foldable(function):
            return _one_by_one(operator, is_mapped, arrays)
        results = tuple(folded.unfolded(x) for x in operator(*folded.arrays()))
        return results, (True,) * len(results)

    return rule


def backward_rule(operator: Callable, names: tuple[str, ...], function: Any, bias_gradient: bool) -> Callable:
    def rule(extent, is_mapped, *arrays):
        folded = _Folded(names, arrays, is_mapped, extent)
        if not folded.is_foldable(function) or "sinks" in folded.given:  # their gradients would be one sum
            return _one_by_one(operator, is_mapped, arrays)
        dq, dk, dv, *dbias = operator(*folded.arrays(("bias",) if bias_gradient else ()))
        results = [folded.unfolded(x) for x in (dq, dk, dv)]
        for x in dbias:
            shape = folded.each("bias").shape
            x = folded.unfolded(x)  # (extent, batch, heads, rows, keys), some of them 1
            repeated = len(shape) < 5 or shape[1] == 1
            results.append((x.sum(1) if repeated else x).reshape(shape))
        return tuple(results), (True,) * len(results)

    return rule
