# SPDX-License-Identifier: BSD-3-Clause
"""Strobe: exact attention, softmax(scale * Q K^T) V, and its gradients, by the FlashAttention algorithms.

Works on the tensors of NumPy, PyTorch, JAX and any framework with DLPack, without a copy, and returns tensors of the same
framework. No framework is required or imported; those that have more to offer have a module of their own::

    import strobe                    # attention, attention_backward, append, quantise, merge, explain, ...
    import strobe.torch              # differentiable; scaled_dot_product_attention, flash_attn_func, ...
    import strobe.transformers       # register(): attn_implementation="strobe"
    import strobe.jax                # differentiable, under jit

Shapes are flash-attn's, ``(batch, seq, heads, dim)``. See docs/python.md.
"""

from strobe._append import append
from strobe._attention import Gradients, MaskLists, attention, attention_backward, explain, mask_lists, merge
from strobe._info import Device, Kernel, build_info, devices, get_num_threads, kernels, set_num_threads, version
from strobe._quantise import Quantised, quantise
from strobe._strobe import Error

__version__ = version()

__all__ = [
    "Device",
    "Error",
    "Gradients",
    "Kernel",
    "MaskLists",
    "Quantised",
    "append",
    "attention",
    "attention_backward",
    "build_info",
    "devices",
    "explain",
    "get_num_threads",
    "kernels",
    "mask_lists",
    "merge",
    "quantise",
    "set_num_threads",
    "version",
]
