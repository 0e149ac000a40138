# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of the calls beside their tensors: one table of names, types and defaults.

Type checkers read it by ``Unpack``, :func:`takes` makes the signatures that ``help()`` shows from it, and tests hold the others
against it: the extension's table (python/src/arguments.h), and the arguments of ``strobe.torch`` and ``strobe.jax``. What each
means stands at :func:`strobe.attention`.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

Window = tuple[int, int]
Rotary = tuple[Any, Any] | float
Function = TypeVar("Function", bound=Callable)


class Options(TypedDict, total=False):
    """Of every call: name, type, default."""

    causal: Annotated[bool, False]
    window: Annotated[Window | None, None]
    diagonal: Annotated[str, "bottom_right"]
    bias: Annotated[Any, None]
    mask: Annotated[Any, None]
    block_mask: Annotated[Any, None]
    block_size: Annotated[tuple[int, int] | None, None]
    mask_lists: Annotated[Any, None]
    alibi_slopes: Annotated[Any, None]
    softcap: Annotated[float | None, None]
    sinks: Annotated[Any, None]
    dropout: Annotated[float, 0.0]
    seed: Annotated[int | None, None]
    offset: Annotated[int, 0]
    scale: Annotated[float | None, None]
    cu_seqlens_q: Annotated[Any, None]
    cu_seqlens_k: Annotated[Any, None]
    max_seqlen_q: Annotated[int | None, None]
    max_seqlen_k: Annotated[int | None, None]
    used_q: Annotated[Any, None]
    used_k: Annotated[Any, None]
    q_start: Annotated[int, 0]
    k_start: Annotated[int, 0]
    deterministic: Annotated[bool, False]
    tf32x3: Annotated[bool, False]
    kernel: Annotated[str | None, None]
    threads: Annotated[int | None, None]
    score: Annotated[str | None, None]
    visible: Annotated[str | None, None]
    arrays: Annotated[dict[str, Any] | None, None]
    scalars: Annotated[dict[str, float] | None, None]


class Scaled(Options, total=False):
    leftpad_k: Annotated[Any, None]
    page_table: Annotated[Any, None]
    q_scale: Annotated[Any, None]
    k_scale: Annotated[Any, None]
    v_scale: Annotated[Any, None]
    scale_block: Annotated[tuple[int, int], (1, 1)]
    split_keys: Annotated[int | None, None]


class Forward(Scaled, total=False):
    """Of :func:`strobe.attention`."""

    return_lse: Annotated[bool, False]
    out: Annotated[Any, None]


class Backward(Options, total=False):
    """Of :func:`strobe.attention_backward`."""

    dlse: Annotated[Any, None]
    bias_gradient: Annotated[bool, False]
    dq: Annotated[Any, None]
    dk: Annotated[Any, None]
    dv: Annotated[Any, None]
    array_gradients: Annotated[dict[str, Any] | None, None]


class Explain(Scaled, total=False):
    """Of :func:`strobe.explain`."""

    backward: Annotated[bool, False]


class Quantise(TypedDict, total=False):
    """Of :func:`strobe.quantise`."""

    dtype: Annotated[str, "float8_e4m3fn"]
    scale_block: Annotated[tuple[int, int], (128, 128)]
    hadamard: Annotated[bool, False]
    seed: Annotated[int, 0]
    rotary: Annotated[Rotary | None, None]
    rotary_dim: Annotated[int | None, None]
    interleaved: Annotated[bool, False]
    subtract_mean: Annotated[bool, False]
    scale: Annotated[float | None, None]
    cu_seqlens_q: Annotated[Any, None]
    cu_seqlens_k: Annotated[Any, None]
    max_seqlen_q: Annotated[int | None, None]
    max_seqlen_k: Annotated[int | None, None]
    used_q: Annotated[Any, None]
    used_k: Annotated[Any, None]
    q_start: Annotated[int, 0]
    k_start: Annotated[int, 0]
    threads: Annotated[int | None, None]


class Append(TypedDict, total=False):
    """Of :func:`strobe.append`."""

    q: Annotated[Any, None]
    lengths: Annotated[Any, None]
    used_k: Annotated[Any, None]
    page_table: Annotated[Any, None]
    slots: Annotated[Any, None]
    rotary: Annotated[Rotary | None, None]
    rotary_dim: Annotated[int | None, None]
    interleaved: Annotated[bool, False]
    positions: Annotated[Any, None]
    q_at_length: Annotated[bool, False]
    hadamard: Annotated[bool, False]
    seed: Annotated[int, 0]
    k_scale: Annotated[Any, None]
    v_scale: Annotated[Any, None]
    scale_block: Annotated[tuple[int, int], (1, 1)]
    cu_seqlens_new: Annotated[Any, None]
    max_seqlen_new: Annotated[int | None, None]
    used_new: Annotated[Any, None]
    cu_seqlens_q: Annotated[Any, None]
    max_seqlen_q: Annotated[int | None, None]
    used_q: Annotated[Any, None]
    cu_seqlens_k: Annotated[Any, None]
    max_seqlen_k: Annotated[int | None, None]
    q_start: Annotated[int, 0]
    k_start: Annotated[int, 0]
    out: Annotated[Any, None]
    threads: Annotated[int | None, None]


class Lists(TypedDict, total=False):
    """Of :func:`strobe.mask_lists`."""

    mask: Annotated[Any, None]
    block_mask: Annotated[Any, None]
    block_size: Annotated[tuple[int, int] | None, None]
    cu_seqlens_q: Annotated[Any, None]
    cu_seqlens_k: Annotated[Any, None]
    max_seqlen_q: Annotated[int | None, None]
    max_seqlen_k: Annotated[int | None, None]
    backward: Annotated[bool, True]


def takes(options: type) -> Callable[[Function], Function]:
    """Give a function ``f(tensors, **options)`` the signature that says which options there are."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        tensors = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=hint.__metadata__[0], annotation=hint.__origin__)
            for name, hint in get_type_hints(options, include_extras=True).items()
        ]
        function.__signature__ = signature.replace(parameters=tensors + named)
        return function

    return decorate
