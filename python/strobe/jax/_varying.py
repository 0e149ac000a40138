# SPDX-License-Identifier: BSD-3-Clause
"""Over which axes of shard_map's mesh an array varies. JAX checks it, and has named it in three ways: from 0.10 as a part of the
type's manual_axis_type, before as its vma, and before 0.7 not at all."""

import jax


def axes_of(x: jax.Array) -> frozenset:
    """The axes over which x is not the same on all devices; none outside of shard_map."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None
    if hasattr(kind, "manual_axis_type"):
        return kind.manual_axis_type.varying
    return getattr(kind, "vma", None) or frozenset()


def alike(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Each as varying over all axes that one of them varies over: so the gradient of one that is the same on all devices is
    summed over them."""
    own = {name: axes_of(x) for name, x in arrays.items()}
    axes = frozenset().union(*own.values())
    return {name: cast(x, axes - own[name]) for name, x in arrays.items()}


def cast(x: jax.Array, axes: frozenset) -> jax.Array:
    """x as varying over these axes, over which it does not yet."""
    if not axes:
        return x
    return jax.lax.pcast(x, tuple(axes), to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(x, tuple(axes))
