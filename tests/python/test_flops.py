# SPDX-License-Identifier: BSD-3-Clause
"""What PyTorch's FlopCounterMode counts for calls of strobe.torch: as much as for PyTorch's own operators, which are asked on the meta
device."""

import pytest
import strobe.torch as st
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

flop_counter = pytest.importorskip("torch.utils.flop_counter")
ATEN = torch.ops.aten


def counted(call):
    """The operators' names and counts."""
    with flop_counter.FlopCounterMode(display=False) as mode:
        call()
    return {str(name): count for name, count in mode.get_flop_counts().get("Global", {}).items()}


def dense(batch, heads, rows, keys, dim):
    """PyTorch's counts of an attention and its gradient."""
    q, dout = (torch.empty(batch, heads, rows, dim, device="meta", dtype=torch.float16) for _ in range(2))
    k, v = (torch.empty(batch, heads, keys, dim, device="meta", dtype=torch.float16) for _ in range(2))
    (forward,) = counted(lambda: ATEN._scaled_dot_product_flash_attention(q, k, v)).values()
    out, lse, cum_q, cum_k, most_q, most_k, seed, offset, _ = ATEN._scaled_dot_product_flash_attention(q, k, v)
    (backward,) = counted(
        lambda: ATEN._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, cum_q, cum_k, most_q, most_k, 0.0, False, seed, offset
        )
    ).values()
    return forward, backward


def leaf(*shape, **options):
    return torch.randn(*shape, requires_grad=True, **options)


CALLS = {
    "plain": ("attention", lambda *qkv: st.scaled_dot_product_attention(*qkv)),
    "causal": ("attention", lambda *qkv: st.scaled_dot_product_attention(*qkv, is_causal=True)),
    "bias": ("attention", lambda *qkv: st.scaled_dot_product_attention(*qkv, leaf(7, 9, device=qkv[0].device))),
    "dropout": ("attention_dropout", lambda *qkv: st.scaled_dot_product_attention(*qkv, dropout_p=0.5)),
    "score": ("attention_scored", lambda *qkv: st.flex_attention(*qkv, lambda score, b, h, i, j: score + i - j)),
    "fp8": ("attention_e4m3", lambda *qkv: st.attention(*(x.transpose(1, 2) for x in qkv), quantise="e4m3")),
    "int8": ("attention_int8", lambda *qkv: st.attention(*(x.transpose(1, 2) for x in qkv), quantise="int8")),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", CALLS)
def test_dense_calls_count_as_pytorchs(name, device):
    operator, call = CALLS[name]
    qkv = leaf(2, 3, 7, 8, device=device), leaf(2, 3, 9, 8, device=device), leaf(2, 3, 9, 8, device=device)
    of_gradient = operator if operator in ("attention", "attention_dropout", "attention_scored") else "attention"
    forward, backward = dense(2, 3, 7, 9, 8)
    expected = {f"strobe.{operator}": forward, f"strobe.{of_gradient}_backward": backward}
    assert counted(lambda: call(*qkv).sum().backward()) == expected
    out = call(*qkv)  # not seen
    assert sum(counted(lambda: out.sum().backward()).values()) == backward


def test_grouped_heads_and_another_dim_of_v():
    q, k, v = leaf(2, 4, 7, 8), leaf(2, 2, 9, 8), leaf(2, 2, 9, 24)
    scores = 2 * 4 * 7 * 9
    counts = counted(lambda: st.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum().backward())
    assert list(counts.values()) == [2 * scores * (8 + 24), 2 * scores * (3 * 8 + 2 * 24)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_packed_sequences_count_as_pytorchs(device):
    """By their lengths; where those have no values, as if all were the longest."""
    offsets = torch.tensor([0, 4, 10, 10, 20], dtype=torch.int32, device=device)
    q, k, v = (leaf(20, 3, 8, device=device) for _ in range(3))
    half = [torch.empty(20, 3, 8, device="meta", dtype=torch.float16) for _ in range(3)]
    formulas = flop_counter.flop_registry
    given = (*half, offsets, offsets, 10, 10)
    forward = formulas[ATEN._flash_attention_forward](*given)
    backward = formulas[ATEN._flash_attention_backward](half[0], *half, half[0], None, *given[3:])
    counts = counted(lambda: st.flash_attn_varlen_func(q, k, v, offsets, offsets, 10, 10).sum().backward())
    assert counts == {"strobe.attention": forward, "strobe.attention_backward": backward}
    sequences = [4, 6, 0, 10] if device == "cpu" else [10] * 4
    assert forward == sum(2 * 3 * n * n * (8 + 8) for n in sequences)
    unbounded = counted(lambda: st.attention(q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets))
    assert unbounded["strobe.attention"] == (forward if device == "cpu" else 2 * 3 * 20 * 20 * (8 + 8))


def test_one_side_packed():
    offsets = torch.tensor([0, 4, 10], dtype=torch.int32)
    counts = counted(lambda: st.attention(leaf(10, 3, 8), leaf(2, 5, 3, 8), leaf(2, 5, 3, 8), cu_seqlens_q=offsets))
    assert list(counts.values()) == [2 * 3 * (4 * 5 + 6 * 5) * (8 + 8)]


def test_pages_count_by_the_table_or_the_bound():
    cache, table = torch.zeros(8, 16, 2, 8), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    used = torch.tensor([3, 5], dtype=torch.int32)
    q = torch.randn(2, 1, 4, 8)
    counts = counted(lambda: st.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=used, block_table=table))
    assert counts == {"strobe.cache_attention": 2 * 2 * 4 * 32 * (8 + 8)}
    packed = torch.randn(2, 4, 8)
    each = torch.tensor([0, 1, 2], dtype=torch.int32)
    pages = {"seqused_k": used, "block_table": table}
    counts = counted(lambda: st.flash_attn_varlen_func(packed, cache, cache, each, None, 1, 20, **pages))
    assert counts == {"strobe.cache_attention": 2 * 2 * 4 * 20 * (8 + 8)}


def test_fake_tensors():
    forward, backward = dense(2, 3, 7, 7, 8)
    expected = {"strobe.attention": forward, "strobe.attention_backward": backward}
    with FakeTensorMode():
        q = leaf(2, 3, 7, 8)
        assert counted(lambda: st.scaled_dot_product_attention(q, q, q).sum().backward()) == expected


def test_without_the_counter(python):
    """Neither a PyTorch without it nor one that gives shapes alone keeps the package from being imported."""
    for program in (
        "import sys, torch; sys.modules['torch.utils.flop_counter'] = None",
        "import torch, torch.utils.flop_counter as f; f.register_flop_formula = lambda targets: None",
    ):
        python(f"{program}\nimport strobe.torch as st; q = torch.randn(1, 2, 4, 8); st.scaled_dot_product_attention(q, q, q)")


def test_nothing_is_said_on_import(python):
    """The counter complains where a PyTorch with CUDA has no Triton."""
    python(
        "import logging, sys, torch; torch.version.cuda = '13.0'; sys.modules['triton'] = None; said = []\n"
        "handler = logging.Handler(); handler.emit = said.append; logging.getLogger().addHandler(handler)\n"
        "logging.getLogger('torch').addHandler(handler); import strobe.torch; assert not said, said\n"
        "import torch.utils.flop_counter as f; assert torch.ops.strobe.attention in f.flop_registry"
    )
