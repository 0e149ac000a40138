# SPDX-License-Identifier: BSD-3-Clause
"""Strobe in Hugging Face transformers::

    import strobe.transformers

    strobe.transformers.register()
    model = AutoModel.from_pretrained(name, attn_implementation="strobe")

Padding, causal and sliding-window masks come as transformers makes them for SDPA; grouped heads are read without repeating them;
softcap (Gemma), sinks (gpt-oss) and position biases (T5) are taken, which SDPA leaves to slower code or refuses.
"""

import warnings

from torch import Tensor
from torch.nn import Module

from strobe.torch import attention

NAME = "strobe"


def register(name: str = NAME) -> None:
    """Make ``attn_implementation=name`` known to transformers. May be called again.

    The mask function is registered under the same name: without one, transformers would hand every model None for a mask.

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
    """The attention function that transformers calls.

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
    if options.get("cache") is not None:
        raise NotImplementedError("cache is a paged cache; contiguous keys and values are accepted")
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
        sinks=None if s_aux is None else s_aux.float(),
        dropout=dropout,
        scale=scaling,
    )
    return out, None
