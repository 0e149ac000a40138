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

_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
_EFFICIENT = "_scaled_dot_product_efficient_attention"

# The arguments that the kernels read, in their order, and how many results there are.
_EXPECTED = {
    _FLASH: ("query key value dropout_p is_causal attn_mask scale", 2),
    f"{_FLASH}_backward": ("grad_out query key value out logsumexp dropout_p is_causal attn_mask scale", 3),
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


def _efficient_backward(
    grad_out, q, k, v, attn_bias, out, lse, seed, offset, dropout_p, grad_input_mask, is_causal=False, *, scale=None
):  # fmt: skip
    """The gradient as a part of a graph: by an operator, which refuses when it is asked for its derivative."""
    dout, q, k, v, out = (x.transpose(1, 2) for x in (grad_out, q, k, v, out))
    given = {"q": q, "k": k, "v": v, "causal": is_causal, "diagonal": "top_left", "scale": scale}
    if attn_bias is not None:
        given["mask" if attn_bias.dtype == torch.bool else "bias"] = attn_bias
    shared = [given.get(name, _ops.DEFAULTS.get(name)) for name in _ops.SHARED]
    dq, dk, dv, _, _ = _ops.attention_backward(dout, None, out, lse, False, *shared)
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), None


def _fake_efficient_backward(grad_out, q, k, v, *others, **scale):
    return (*(torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype, device=x.device) for x in (q, k, v)), None)


def _offer() -> bool:
    """Register a kernel for the CPU of an operator that has none there."""
    if not all(_is_expected(name) and not _has_kernel(name, "CPU") for name in (_EFFICIENT, f"{_EFFICIENT}_backward")):
        return False
    if not hasattr(torch, _EFFICIENT):
        return False
    library = define_like(f"{_EFFICIENT}_backward", "_efficient_backward")
    library.impl("_efficient_backward", _efficient_backward, "CompositeImplicitAutograd")
    library = define_like(f"{_EFFICIENT}_backward", "_efficient_backward_cpu")
    library.impl("_efficient_backward_cpu", torch.library.fallthrough_kernel, "AutogradCPU")
    torch.library.register_fake("strobe::_efficient_backward_cpu", _fake_efficient_backward, lib=library)
    _strobe.aten_offer()
    return True


def _open() -> bool:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return os.environ.get("STROBE_TORCH_ABI") != "0" and _strobe.aten_open(str(library))


OPEN = _open()
REPLACED = (_FLASH, f"{_FLASH}_backward") if OPEN and _is_expected(_FLASH) and _is_expected(f"{_FLASH}_backward") else ()
"""The operators whose kernels for the CPU are compiled while activate() is in force."""

efficient = getattr(torch, _EFFICIENT) if OPEN and _offer() else None
"""(query, key, value, attn_bias, compute_log_sumexp, 0.0, is_causal, scale=scale) of (batch, heads, seq, dim) on the CPU, its
derivative compiled; a RuntimeError for what the kernel does not take. None where there is none."""
