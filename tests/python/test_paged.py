# SPDX-License-Identifier: BSD-3-Clause
"""K and V in pages: as where the same keys lie one after the other."""

import numpy as np
import pytest
import strobe
import torch

import reference

BATCH, LONGEST, HEADS, DIM = 3, 90, 2, 32


def cache(size, heads_outside=False, seed=0):
    """k and v, their pages, and the table."""
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(BATCH, LONGEST, HEADS, DIM, generator=generator) for _ in range(2))
    each = -(-LONGEST // size)
    table = torch.randperm(BATCH * each + 2, generator=generator)[: BATCH * each].view(BATCH, each).to(torch.int32)
    pages = []
    for x in (k, v):
        shape = (BATCH * each + 2, HEADS, size, DIM) if heads_outside else (BATCH * each + 2, size, HEADS, DIM)
        of_x = torch.full(shape, torch.nan)
        of_x = of_x.transpose(1, 2) if heads_outside else of_x
        for b in range(BATCH):
            for j in range(LONGEST):
                of_x[table[b, j // size], j % size] = x[b, j]
        pages.append(of_x)
    return k, v, pages, table


@pytest.mark.parametrize("size", [1, 16, 64, 100])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("heads_outside", [False, True])
def test_pages(size, rows, heads_outside):
    k, v, (k_pages, v_pages), table = cache(size, heads_outside)
    q = torch.randn(BATCH, rows, 4, DIM)
    used = torch.tensor([90, 45, 77], dtype=torch.int32)
    options = {"causal": True, "return_lse": True, "used_k": used}
    expected = strobe.attention(q, k, v, **options)
    paged = strobe.attention(q, k_pages, v_pages, page_table=table, max_seqlen_k=90, **options)
    for x, y in zip(paged, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def test_numpy_and_a_whole_table():
    k, v, (k_pages, v_pages), table = cache(30)  # 3 pages of 30: every slot is in use
    q = torch.randn(BATCH, 5, HEADS, DIM)
    true = reference.attention(*(x.double() for x in (q, k, v)))[0].numpy()
    got = strobe.attention(q.numpy(), k_pages.numpy(), v_pages.numpy(), page_table=table.numpy())
    assert np.abs(got - true).max() < 1e-5
    assert "chosen" in strobe.explain(q, k_pages, v_pages, page_table=table)


def test_packed_queries_and_int8_with_a_scale_a_slot():
    k, v, (k_pages, v_pages), table = cache(16)
    z = strobe.quantise(k_pages.nan_to_num(), k_pages.nan_to_num(), v_pages.nan_to_num(), dtype="int8", scale_block=(1, 1))
    q = torch.randn(12, 4, DIM)
    cu, used = torch.tensor([0, 3, 4, 12], dtype=torch.int32), torch.tensor([90, 45, 77], dtype=torch.int32)
    lengths = {"cu_seqlens_q": cu, "max_seqlen_q": 8, "used_k": used, "causal": True}
    out = strobe.attention(q, z.k, z.v, page_table=table, **z.cache_scales, **lengths)
    for b in range(BATCH):
        rows, keys = slice(cu[b], cu[b + 1]), slice(0, used[b])
        true = reference.attention(*(x.double().unsqueeze(0) for x in (q[rows], k[b, keys], v[b, keys])), causal=True)[0][0]
        assert (out[rows].double() - true).abs().max() < 0.03


def test_split_keys_makes_a_row_independent_of_the_batch():
    _, _, (k_pages, v_pages), table = cache(16)
    q, used = torch.randn(BATCH, 1, 4, DIM), torch.tensor([90, 45, 77], dtype=torch.int32)
    options = {"split_keys": 32, "max_seqlen_k": 90, "return_lse": True}
    out, lse = strobe.attention(q, k_pages, v_pages, page_table=table, used_k=used, **options)
    for b in range(BATCH):
        alone = strobe.attention(q[b:][:1], k_pages, v_pages, page_table=table[b:][:1], used_k=used[b:][:1], **options)
        assert torch.equal(alone[0][0], out[b]) and torch.equal(alone[1][0], lse[b])
    with pytest.raises(ValueError, match=r"tuning\.split_keys is -1"):
        strobe.attention(q, k_pages, v_pages, page_table=table, split_keys=-1)
    with pytest.raises(NotImplementedError, match="is 80; 0 to 16 is taken"):
        strobe.attention(torch.randn(BATCH, 40, 4, DIM), k_pages, v_pages, page_table=table, split_keys=32)


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"page_table": torch.zeros(3, 6)}, ValueError, "page_table.dtype is float32; int32 is accepted"),
        ({"page_table": torch.zeros(3, dtype=torch.int32)}, ValueError, r"page_table.shape is \(3,\)"),
        (
            {"page_table": torch.zeros(2, 6, dtype=torch.int32)},
            ValueError,
            r"page_table.shape is \(2, 6\); \(3, \*\) is accepted",
        ),
        ({"max_seqlen_k": 97}, ValueError, "paged.table_stride is 6; 7, for seq_k of 97 in pages of 16, or more"),
        ({"cu_seqlens_k": torch.zeros(4, dtype=torch.int32)}, ValueError, "k.shape"),
    ],
)
def test_bad_arguments_are_refused(changes, kind, sentence):
    _, _, (k, v), table = cache(16)
    with pytest.raises(kind, match=sentence):
        strobe.attention(torch.randn(BATCH, 1, 4, DIM), k, v, **{"page_table": table, "max_seqlen_k": 90} | changes)


@pytest.mark.parametrize("together", [64, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_prefix_in_three_calls(device, dtype, together):
    """docs/serving.md: the rows of all sequences over the prefix, each over its own keys, merged; as the one call over all. Or
    those of some at a time, for kernels of few rows."""
    torch.manual_seed(0)
    q = torch.randn(64, 1, 4, 64).to(device, dtype)
    k, v = torch.randn(2, 200, 16, 2, 64).to(device, dtype)
    order = torch.randperm(200).int().to(device)
    table = torch.cat([order[:50].expand(64, -1), order[50:178].view(64, 2)], 1).contiguous()
    own = torch.randint(0, 33, (64,)).int().to(device)
    whole, lse = strobe.attention(q, k, v, page_table=table, used_k=800 + own, return_lse=True, max_seqlen_k=832)
    over_prefix = strobe.attention(
        q.view(-1, together, 4, 64), k, v, page_table=table[::together, :50].contiguous(), return_lse=True
    )
    over_own = strobe.attention(q, k, v, page_table=table[:, 50:].contiguous(), used_k=own, max_seqlen_k=32, return_lse=True)
    lses = over_prefix[1].transpose(1, 2).reshape(64, 4, 1), over_own[1]
    out, merged = strobe.merge((over_prefix[0].view(64, 1, 4, 64), over_own[0]), lses)
    assert out.device == q.device and (own == 0).any()
    allowed = 4 * torch.finfo(dtype).eps * whole.abs().max().item()  # of the parts' roundings, and the result's
    torch.testing.assert_close(out.float(), whole.float(), rtol=0, atol=max(allowed, 1e-6))
    torch.testing.assert_close(merged, lse, rtol=0, atol=1e-4)
