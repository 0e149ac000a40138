# SPDX-License-Identifier: BSD-3-Clause
"""Strobe for JAX: attention with its gradient, under jit, grad, vmap, scan and shard_map, on the CPU and on CUDA.

======================  =========================================================================================
attention               as :func:`strobe.attention`, shapes (batch, seq, heads, dim)
dot_product_attention   as ``jax.nn.dot_product_attention``
======================  =========================================================================================

A program that JAX compiles calls the library itself, by XLA's foreign function interface: no callback, no Python.
"""

from strobe.jax._attention import attention
from strobe.jax._dot_product_attention import dot_product_attention

__all__ = ["attention", "dot_product_attention"]
