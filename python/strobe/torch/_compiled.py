# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of operators of aten that are compiled (python/src/aten.c): whether this PyTorch takes them, and what they need in
Python.

PyTorch's derivative formulas are compiled too, so that neither forward nor backward runs Python. The kernels come in by
PyTorch's stable C ABI. Where a version lacks it, or its operators have other arguments, everything goes the way through
Python, as it does with the environment variable STROBE_TORCH_ABI=0.
"""

import os
from pathlib import Path
from typing import Any

import torch

from strobe import _strobe
from strobe.torch import _ops

_PRODUCT = "_scaled_dot_product_"
_FOR_CPU = f"{_PRODUCT}flash_attention_for_cpu"
_FLASH = f"{_PRODUCT}flash_attention"
_CUDNN = f"{_PRODUCT}cudnn_attention"
_EFFICIENT = f"{_PRODUCT}efficient_attention"

# The arguments that the kernels read, in their order, and how many results there are.
_EXPECTED = {
    _FOR_CPU: ("query key value dropout_p is_causal attn_mask scale", 2),
    f"{_FOR_CPU}_backward": ("grad_out query key value out logsumexp dropout_p is_causal attn_mask scale", 3),
    _FLASH: ("query key value dropout_p is_causal return_debug_mask scale", 9),
    f"{_FLASH}_backward": (
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed philox_offset "
        "scale",
        3,
    ),
    _CUDNN: ("query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale", 9),
    f"{_CUDNN}_backward": (
        "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p "
        "is_causal scale",
        3,
    ),
    _EFFICIENT: ("query key value attn_bias compute_log_sumexp dropout_p is_causal scale", 4),
    f"{_EFFICIENT}_backward": (
        "grad_out_ query key value attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask is_causal scale",
        4,
    ),
}

_libraries: list[torch.library.Library] = []  # what is registered lives as long as they do


def _schema(operator: str) -> Any:
    packet = getattr(torch.ops.aten, operator, None)
    return None if packet is None else packet.default._schema


def _is_expected(operator: str) -> bool:
    schema, (names, results) = _schema(operator), _EXPECTED[operator]
    return (
        schema is not None
        and [argument.name for argument in schema.arguments] == names.split()
        and len(schema.returns) == results
    )


def _has_kernel(operator: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key)


def define_like(operator: str, name: str) -> torch.library.Library:
    """Define the operator strobe::name with the arguments and results of one of aten's. Kernels are registered by what is
    returned."""
    library = torch.library.Library("strobe", "FRAGMENT")
    library.define(str(_schema(operator)).replace(f"aten::{operator}", name))
    _libraries.append(library)
    return library


_SIZES = "SymInt max_q, SymInt max_k, "


def define_handed_on(operator: str, key: str, function: Any) -> None:
    """Define the operator that a replacing kernel hands a call on to: strobe's of the same name, by a function that is given the
    dispatch keys and the arguments. It has tensors as results alone: where PyTorch's has the longest lengths between them, 2.10
    and 2.11 do not convert results of several types, and the kernel knows them."""
    library = torch.library.Library("strobe", "FRAGMENT")
    arguments, _, results = str(_schema(operator)).replace(f"aten::{operator}", operator).rpartition(" -> ")
    has_sizes = _SIZES in results
    library.define(f"{arguments} -> {results.replace(_SIZES, '')}")

    def call(keys, *args, **kwargs):
        made = function(keys, *args, **kwargs)
        return (*made[:4], *made[6:]) if has_sizes else made

    library.impl(operator, call, key, with_keyset=True)
    _libraries.append(library)


def _graph_backward(dout, q, k, v, mask, out, lse, is_causal, scale):
    """The gradient as a part of a graph: by an operator, which refuses when it is asked for its derivative."""
    dout, q, k, v, out = (x.transpose(1, 2) for x in (dout, q, k, v, out))
    given = {"q": q, "k": k, "v": v, "causal": is_causal, "diagonal": "top_left", "scale": scale}
    if mask is not None:
        given["mask" if mask.dtype == torch.bool else "bias"] = mask
    shared = [given.get(name, _ops.DEFAULTS.get(name)) for name in _ops.SHARED]
    dq, dk, dv, _, _ = _ops.attention_backward(dout, None, out, lse, False, *shared)
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _efficient_backward(
    grad_out, q, k, v, attn_bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
):  # fmt: skip
    return *_graph_backward(grad_out, q, k, v, attn_bias, out, lse, is_causal, scale), None


def _flash_backward(grad_out, q, k, v, out, lse, dropout_p, is_causal, *, attn_mask=None, scale=None):
    return _graph_backward(grad_out, q, k, v, attn_mask, out, lse, is_causal, scale)


def _fake_gradients(grad_out, q, k, v, *others, **scale):
    return tuple(torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype, device=x.device) for x in (q, k, v))


def _fake_efficient_gradients(*arguments, **scale):
    return *_fake_gradients(*arguments, **scale), None


def _offer(operator: str, key: str, name: str, graph: Any, fake: Any) -> Any:
    """Register a kernel for CPU or CUDA of an operator that has none there, and what the derivative of its gradient needs;
    PyTorch's function, or None where there is one already."""
    if not all(_is_expected(name) and not _has_kernel(name, key) for name in (operator, f"{operator}_backward")):
        return None
    if not hasattr(torch, operator):
        return None
    library = define_like(f"{operator}_backward", name)
    library.impl(name, graph, "CompositeImplicitAutograd")
    library = define_like(f"{operator}_backward", f"{name}_below")
    library.impl(f"{name}_below", torch.library.fallthrough_kernel, f"Autograd{key}")
    torch.library.register_fake(f"strobe::{name}_below", fake, lib=library)
    _strobe.aten_register(f"offered {key}")
    return getattr(torch, operator)


def _open() -> bool:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return os.environ.get("STROBE_TORCH_ABI") != "0" and _strobe.aten_open(str(library))


def _open_cuda() -> bool:
    """Where the functions that calls on a GPU need are found, and answer as PyTorch does."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    if not OPEN or torch.version.cuda is None or not _strobe.aten_open_cuda(str(library)):
        return False
    return _strobe.aten_deterministic() is torch.are_deterministic_algorithms_enabled()


def _replaced(*operators: str) -> tuple[str, ...]:
    both = tuple(f"{operator}{part}" for operator in operators for part in ("", "_backward"))
    return both if all(_is_expected(operator) for operator in both) else ()


OPEN = _open()
OPEN_CUDA = _open_cuda()

REPLACED = {
    "CPU": _replaced(_FOR_CPU) if OPEN else (),
    "CUDA": _replaced(_FLASH, _CUDNN, _EFFICIENT) if OPEN_CUDA else (),
}
"""The operators whose kernels are compiled while activate() is in force, by dispatch key."""

efficient = (
    _offer(_EFFICIENT, "CPU", "_efficient_backward", _efficient_backward, _fake_efficient_gradients) if OPEN else None
)
"""(query, key, value, attn_bias, compute_log_sumexp, 0.0, is_causal, scale=scale) of (batch, heads, seq, dim) on the CPU, its
derivative compiled; a RuntimeError for what the kernel does not take. None where there is none."""

flash = _offer(_FOR_CPU, "CUDA", "_flash_backward", _flash_backward, _fake_gradients) if OPEN_CUDA else None
"""(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale) likewise on CUDA."""
