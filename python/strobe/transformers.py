# SPDX-License-Identifier: BSD-3-Clause
"""Strobe in Hugging Face transformers::

    import strobe.transformers

    strobe.transformers.register()
    model = AutoModel.from_pretrained(name, attn_implementation="strobe")

Padding, causal and sliding-window masks come as transformers makes them for SDPA; grouped heads are read without repeating them;
softcap (Gemma), sinks (gpt-oss) and position biases (T5) are taken, which SDPA leaves to slower code or refuses.

Continuous batching, ``model.generate_batch(prompts)``, runs on Strobe too: sequences of any lengths in one packed call, K and V
read where they lie in the pages of transformers' cache (5.23), or as the model has gathered them from there (5.24).
"""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from strobe.torch import attention
from strobe.torch._cache import cache_attention

NAME = "strobe"


def register(name: str = NAME) -> None:
    """Make ``attn_implementation=name`` known to transformers, and to its continuous batching. May be called again.

    The mask function is registered under the same name: without one, transformers would hand every model None for a mask.
    Continuous batching asks no registry, it knows names; where the version has it (5.23, 5.24), it is made to take this one too.

    Raises
    ------
    ImportError
        transformers has no registry of mask functions: 4.53 or newer is needed.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    except ImportError as error:
        raise ImportError("strobe.transformers needs transformers 4.53 or newer, with AttentionMaskInterface") from error
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    _names.add(name)
    _join_continuous_batching()


_names: set[str] = set()  # of what is registered


@functools.cache
def _join_continuous_batching() -> None:
    try:
        from transformers.generation.continuous_batching import ContinuousBatchingManager as Manager
    except ImportError:
        return
    switch = getattr(Manager, "switch_to_cb_friendly_attn", None)
    if switch is None:
        return

    @functools.wraps(switch)
    def switch_unless_ours(self, model, *arguments, **options):
        return None if model.config._attn_implementation in _names else switch(self, model, *arguments, **options)

    Manager.switch_to_cb_friendly_attn = switch_unless_ours


def _read_pages(allocator: Any, layer: int, read: Tensor, cu_k: Tensor, longest: int) -> dict[str, Tensor]:
    """A layer's pages as they lie, and the numbers of those that each sequence has: read has a place for every key."""
    k, v = allocator.get_cache_for_block_table(layer)
    size = k.shape[1]
    firsts = cu_k[:-1, None] + torch.arange(0, max(longest, 1), size, device=cu_k.device)
    table = read[firsts.clamp(max=len(read) - 1)] // size
    return {"k": k, "v": v, "page_table": table.to(torch.int32), "used_k": cu_k.diff()}


def _over_paged_cache(
    layer: int, query: Tensor, key: Tensor, value: Tensor, cache: Any, options: dict[str, Any], **same: Any
) -> Tensor:
    """Attention of continuous batching: (1, heads, tokens, dim) of all sequences, new keys and values to be written first."""
    allocator = cache.layer_to_allocator[layer]
    read, write = (options[name][allocator.index] for name in ("read_index", "write_index"))
    cu_k, longest = (options[name][allocator.layer_type] for name in ("cu_seq_lens_k", "max_length_k"))
    same |= {"cu_seqlens_q": options["cu_seq_lens_q"], "max_seqlen_q": options["max_length_q"], "max_seqlen_k": longest}
    q, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    in_place = allocator.supports_block_table and len(read) > 0
    key, value = allocator.update(key, value, layer, read[:0] if in_place else read, write)
    if in_place:
        out = cache_attention(q, **_read_pages(allocator, layer, read, cu_k, longest), **same)[0]
    else:
        out = attention(q, key, value, cu_seqlens_k=cu_k, **same)
    return out[None]


def _over_gathered_cache(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], **same: Any) -> Tensor:
    """The same from transformers 5.24 on, where the model has written to the cache, and K and V are those of all sequences."""
    if options.get("block_table") is not None:
        raise NotImplementedError("block_table is given; continuous batching with max_blocks_per_request = 0 is accepted")
    same |= {"cu_seqlens_q": options["cu_seq_lens_q"], "max_seqlen_q": options["max_length_q"]}
    same |= {"cu_seqlens_k": options["cu_seq_lens_k"], "max_seqlen_k": options["max_length_k"]}
    return attention(*(x[0].transpose(0, 1) for x in (query, key, value)), **same)[None]


def attention_forward(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **options,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls, also from continuous batching, with `write_index` among the options.

    Parameters
    ----------
    query : Tensor, (batch, heads, seq_q, dim)
    key, value : Tensor, (batch, heads_kv, seq_k, dim)
    attention_mask : Tensor, (batch or 1, heads or 1, seq_q, seq_k), optional
        bool, or added to the scores. None with a causal module: causal, unless there is one query only.
    s_aux : Tensor, (heads,), optional
        Attention sinks.
    position_bias : Tensor, as attention_mask, optional
        Added to the scores.

    Returns
    -------
    (out, None)
        out is (batch, seq_q, heads, dim); the weights are never stored.
    """
    sinks = None if s_aux is None else s_aux.float()
    if options.get("write_index") is not None:  # continuous batching
        window, cache = options.get("sliding_window"), options.get("cache")
        same = {"causal": True, "softcap": softcap, "sinks": sinks, "scale": scaling}
        same["window"] = (-1, -1) if window is None else (window - 1, 0)
        if cache is None:
            return _over_gathered_cache(query, key, value, options, **same), None
        return _over_paged_cache(module.layer_idx, query, key, value, cache, options, **same), None
    if options.get("output_attentions"):
        warnings.warn('strobe stores no attention weights; attn_implementation="eager" returns them', stacklevel=2)
    if attention_mask is not None and attention_mask.shape[-1] > key.shape[2]:
        attention_mask = attention_mask[..., : key.shape[2]]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    boolean = attention_mask is not None and attention_mask.dtype.is_floating_point is False
    bias = position_bias
    if attention_mask is not None and not boolean:
        bias = attention_mask if bias is None else bias + attention_mask
    out = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        causal=bool(causal) and attention_mask is None and query.shape[2] > 1,
        diagonal="top_left",
        mask=attention_mask if boolean else None,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        scale=scaling,
    )
    return out, None
