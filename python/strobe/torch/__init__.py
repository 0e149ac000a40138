# SPDX-License-Identifier: BSD-3-Clause
"""Strobe for PyTorch: differentiable, under torch.compile, with the signatures that are in use already.

=====================================  ==========================================================================
attention                              as :func:`strobe.attention`, shapes (batch, seq, heads, dim); not int8 caches, and
                                       the choice of threads and memory
scaled_dot_product_attention           as torch.nn.functional's: (batch, heads, seq, dim), is_causal is top-left
flash_attn_func and its four siblings  as the flash-attn package's: causal is bottom-right
flash_attn_with_kvcache                as version 3's: new K and V into a cache, and attention over it
append                                 new K and V into a cache, as :func:`strobe.append`
context_parallel_attention             one sequence over many processes; shard, unshard and shard_positions beside it
flex_attention                         as torch.nn.attention.flex_attention's, its functions traced
MultiheadAttention                     as torch.nn's, with grouped heads, rotary embedding, sinks, windows
share_threads                          whether calls run on the threads of PyTorch's operators: they do
activate, deactivate                   PyTorch's own scaled_dot_product_attention, and all that calls it, runs on Strobe
=====================================  ==========================================================================

The work is done by custom operators: ``torch.ops.strobe.attention`` and ``attention_backward``, for serving ``cache_attention``
and ``append``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from strobe.torch import _flops
from strobe.torch._activate import activate, deactivate
from strobe.torch._attention import attention
from strobe.torch._cache import append
from strobe.torch._flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
)
from strobe.torch._flash_attn_kvcache import flash_attn_with_kvcache
from strobe.torch._multihead import MultiheadAttention
from strobe.torch._sdpa import scaled_dot_product_attention
from strobe.torch._threads import share_threads

if TYPE_CHECKING:
    from strobe.torch._context_parallel import (
        context_parallel_attention,
        order_documents,
        shard,
        shard_positions,
        unshard,
    )
    from strobe.torch._flex_attention import flex_attention

__all__ = [
    "MultiheadAttention",
    "activate",
    "append",
    "attention",
    "context_parallel_attention",
    "deactivate",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "flex_attention",
    "order_documents",
    "scaled_dot_product_attention",
    "shard",
    "shard_positions",
    "share_threads",
    "unshard",
]

# Modules that tell PyTorch's compiler what it cannot compile, and so import it, which takes as long as PyTorch itself: they are
# imported when they are asked for.
_LATER = {
    "context_parallel_attention": "_context_parallel",
    "order_documents": "_context_parallel",
    "shard": "_context_parallel",
    "shard_positions": "_context_parallel",
    "unshard": "_context_parallel",
    "flex_attention": "_flex_attention",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found  # asked once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


share_threads()
_flops.register()
