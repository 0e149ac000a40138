# SPDX-License-Identifier: BSD-3-Clause
"""MultiheadAttention: torch.nn's module, its parameters and its meaning, and what newer models add."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe._attention import sides
from strobe.torch._attention import attention_with_zeros


def rotated(x: Tensor, base: float) -> Tensor:
    """Rotary embedding of (batch, seq, heads, dim) at positions 0, 1, ...: the two halves of dim are the pairs' parts."""
    half = x.shape[-1] // 2
    turns = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None, None] * turns
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class MultiheadAttention(torch.nn.MultiheadAttention):
    """As ``torch.nn.MultiheadAttention``: its arguments, parameters, state_dict and results, computed by Strobe.

    A state_dict of either loads into the other with ``strict=True``, where none of the arguments below is given that PyTorch's
    module lacks.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As PyTorch's. A row that sees no key is 0, where PyTorch gives NaN.
    num_kv_heads : int, optional
        Fewer heads of K and V, each read by num_heads // num_kv_heads heads of Q. The weights are then separate
        (q_proj_weight, k_proj_weight, v_proj_weight), as PyTorch's are with a kdim.
    rotary_base : float, optional
        Rotary position embedding of Q and K, by halves of a head's dims, positions from 0; usual is 10000.
    sinks : bool
        A learned logit a head, the parameter ``sinks``, that joins the softmax and has no value; begins as 0.
    window : (left, right), optional
        Query i sees keys i - left to i + right; -1 is unbounded.

    Forward takes PyTorch's arguments. ``need_weights=True``, PyTorch's default, asks for the matrix that Strobe never makes:
    PyTorch's own path computes it, and the additions above are refused with it. Nested tensors are refused.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        num_kv_heads: int | None = None,
        rotary_base: float | None = None,
        sinks: bool = False,
        window: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        heads = num_heads if num_kv_heads is None else num_kv_heads
        if heads < 1 or num_heads % heads:
            raise ValueError(f"num_kv_heads is {heads}; a divisor of num_heads, {num_heads}, is accepted")
        if rotary_base is not None and self.head_dim % 2:
            raise ValueError(f"rotary_base is given with {self.head_dim} dims a head; an even number is accepted")
        extra = [name for name, given in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)) if given]
        additions = {
            "num_kv_heads": heads != num_heads, "rotary_base": rotary_base is not None, "sinks": sinks,
            "window": window is not None,
        }  # fmt: skip
        self._additions = [name for name, given in additions.items() if given]
        if extra and self._additions and self._additions != ["sinks"]:
            raise ValueError(f"{extra[0]} is True with {self._additions[0]}; one of them is accepted")
        self.num_kv_heads, self.rotary_base, self.window = heads, rotary_base, None if window is None else sides(window)
        if heads != num_heads:
            self._separate_weights(bias, device, dtype)
        own = torch.nn.Parameter(torch.zeros(num_heads, device=device, dtype=torch.float32)) if sinks else None
        self.register_parameter("sinks", own)
        if self._additions:
            # nn.TransformerEncoderLayer reads the weights past forward() where it believes that they are all there is.
            self._qkv_same_embed_dim = False

    def _separate_weights(self, bias: bool, device: Any, dtype: Any) -> None:
        rows = self.num_kv_heads * self.head_dim
        self.register_parameter("in_proj_weight", None)
        for name, shape in (
            ("q_proj_weight", (self.embed_dim, self.embed_dim)),
            ("k_proj_weight", (rows, self.kdim)),
            ("v_proj_weight", (rows, self.vdim)),
        ):
            weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            torch.nn.init.xavier_uniform_(weight)
            self.register_parameter(name, weight)
        if bias:
            length = self.embed_dim + 2 * rows
            self.in_proj_bias = torch.nn.Parameter(torch.zeros(length, device=device, dtype=dtype))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if need_weights:
            if self._additions:
                raise NotImplementedError(
                    f"need_weights is True in a module with {self._additions[0]}; need_weights=False is accepted"
                )
            return super().forward(query, key, value, key_padding_mask, True, attn_mask, average_attn_weights, is_causal)
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.is_nested:
                raise NotImplementedError(f"{name} is a nested tensor; one with a key_padding_mask is accepted")
            if x.dim() != query.dim() or x.dim() not in (2, 3):
                raise ValueError(f"{name} has {x.dim()} axes; 3, or 2 without a batch, are accepted, as many as query has")
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is True without attn_mask; it says what attn_mask is, and both are accepted")
        if is_causal and (self.bias_k is not None or self.add_zero_attn):
            raise NotImplementedError("is_causal is True in a module that adds keys; attn_mask alone is accepted")
        one = query.dim() == 2
        q, k, v = self._projected(query, key, value)
        options = self._masks(q.shape[0], q.shape[1], k.shape[1], key_padding_mask, None if is_causal else attn_mask)
        if self.rotary_base is not None:
            q, k = rotated(q, self.rotary_base), rotated(k, self.rotary_base)
        k, v, options = self._with_added_keys(k, v, options)
        sinks = self.sinks
        if sinks is not None:  # of a module in 16 bits, which the library takes as float32
            sinks = sinks.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
        out = attention_with_zeros(
            q, k, v, causal=is_causal, window=self.window, diagonal="top_left", sinks=sinks,
            dropout=self.dropout if self.training else 0.0, **options,
        )  # fmt: skip
        out = self.out_proj(out.flatten(2))
        if one:
            return out[0], None
        return (out if self.batch_first else out.transpose(0, 1)), None

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """(batch, seq, heads, dim) of each."""
        rows = self.num_kv_heads * self.head_dim
        parts = [self.embed_dim, rows, rows]
        if self.in_proj_weight is not None and query is key is value:
            split = F.linear(query, self.in_proj_weight, self.in_proj_bias).split(parts, -1)
        else:
            if self.in_proj_weight is not None:
                weights = self.in_proj_weight.split(parts)
            else:
                weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(parts)
            split = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
        heads = [x.unflatten(-1, (-1, self.head_dim)) for x in split]
        if query.dim() == 2:
            return [x.unsqueeze(0) for x in heads]
        return heads if self.batch_first else [x.transpose(0, 1) for x in heads]

    def _masks(self, batch: int, rows: int, keys: int, padding: Tensor | None, scores: Tensor | None) -> dict[str, Any]:
        """mask and bias of the two masks, whose True hides a key."""
        options: dict[str, Any] = {}
        if padding is not None:
            if padding.dim() == 1:
                padding = padding.unsqueeze(0)
            if padding.shape != (batch, keys):
                raise ValueError(f"key_padding_mask.shape is {tuple(padding.shape)}; {(batch, keys)} is accepted")
            padding = padding[:, None, None]
        if scores is not None:
            of_all = (batch * self.num_heads, rows, keys)
            if scores.shape not in (of_all[1:], of_all):
                raise ValueError(f"attn_mask.shape is {tuple(scores.shape)}; {of_all[1:]} or {of_all} is accepted")
            scores = scores if scores.dim() == 2 else scores.unflatten(0, (batch, self.num_heads))
        for name, x in (("key_padding_mask", padding), ("attn_mask", scores)):
            if x is None:
                continue
            if x.dtype == torch.bool:
                options["mask"] = ~x & options["mask"] if "mask" in options else ~x
            elif x.is_floating_point():
                options["bias"] = x + options["bias"] if "bias" in options else x
            else:
                raise ValueError(f"{name}.dtype is {x.dtype}; torch.bool or a floating-point dtype is accepted")
        return options

    def _with_added_keys(self, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """With the keys that add_bias_kv and add_zero_attn append, which every row sees."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            shape = (k.shape[0], 1, self.num_heads, self.head_dim)
            k = torch.cat([k, self.bias_k.to(k.dtype).view(1, 1, *shape[2:]).expand(shape)], 1)
            v = torch.cat([v, self.bias_v.to(v.dtype).view(1, 1, *shape[2:]).expand(shape)], 1)
            added += 1
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 0, 0, 1)), F.pad(v, (0, 0, 0, 0, 0, 1))
            added += 1
        if added:
            options = {name: F.pad(x, (0, added), value=name == "mask") for name, x in options.items()}
        return k, v, options
