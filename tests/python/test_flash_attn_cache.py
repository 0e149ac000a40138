# SPDX-License-Identifier: BSD-3-Clause
"""flash-attn's functions over a cache: as attention over the same keys one after the other, in float64."""

import cache
import pytest
import strobe.torch as st
import torch

import reference

KEYS = [300, 33, 20, 5, 0]
ROWS = [64, 1, 20, 0, 3]  # a chunk of a prompt, a token, a whole prompt, nothing, rows without a key
HEADS_KV, DIM, DIM_V = 2, 32, 48


def assert_as_contiguous(out, lse, q, k, v, **options):
    """out and lse of each sequence, against float64 and the plain implementation in the tensors' dtype."""
    for b, (rows, keys, values) in enumerate(zip(q, k, v, strict=True)):
        tensors = [x[None] for x in (rows, keys, values)]
        truth, truth_lse = reference.attention(*tensors, **options)
        plain, plain_lse = reference.attention(*tensors, **options, dtype=rows.dtype)
        reference.assert_close(out[b][None], truth, plain, 3, f"out of {b}")
        reference.assert_close(lse[b][None], truth_lse, plain_lse, 3, f"lse of {b}")


CASES = [
    {},
    {"causal": True},
    {"window_size": (40, 0)},
    {"causal": True, "softcap": 2.0},
    {"causal": True, "alibi_slopes": 1, "softmax_scale": 0.3},
]


def meant(case, heads):
    """flash-attn's arguments, and the same as the reference has them."""
    case = case | ({"alibi_slopes": torch.linspace(0.1, 0.5, heads)} if "alibi_slopes" in case else {})
    names = {"window_size": "window", "softmax_scale": "scale"}
    return case, {names.get(name, name): x for name, x in case.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size", [1, 16, 256])
@pytest.mark.parametrize(("heads", "dtype"), [(2, torch.float32), (8, torch.bfloat16), (6, torch.float16)])
def test_chunks_of_prompts_and_tokens_in_one_call(case, size, heads, dtype):
    case, same = meant(case, heads)
    q = cache.sequences(ROWS, heads, DIM, dtype=dtype)
    k = cache.sequences(KEYS, HEADS_KV, DIM, dtype=dtype, seed=1)
    v = cache.sequences(KEYS, HEADS_KV, DIM_V, dtype=dtype, seed=2)
    table = cache.page_table(KEYS, size)
    k_pages, v_pages = cache.in_pages(k, size, table, heads_outside=size == 16), cache.in_pages(v, size, table)
    cu, lengths = cache.cumulative(ROWS), {"max_seqlen_q": 64, "max_seqlen_k": 300}
    flat = torch.cat(q)
    out, lse, weights = st.flash_attn_varlen_func(
        flat,
        k_pages,
        v_pages,
        cu,
        None,
        **lengths,
        **case,
        block_table=table,
        seqused_k=cache.used(KEYS),
        return_attn_probs=True,
    )
    assert weights is None and lse.shape == (heads, sum(ROWS))
    assert_as_contiguous(out.split(ROWS), [x for x in lse.split(ROWS, 1)], q, k, v, **same)
    by_offsets = st.flash_attn_varlen_func(
        flat, k_pages, v_pages, cu, cache.cumulative(KEYS), **lengths, **case, page_table=table
    )
    assert torch.equal(by_offsets, out)


def test_used_rows_of_packed_sequences():
    q, k, v = (torch.randn(30, 2, 16) for _ in range(3))
    cu = cache.cumulative([10, 15, 5])
    out = st.flash_attn_varlen_func(
        q, k, v, cu, cu, 15, 15, seqused_q=cache.used([4, 15, 0]), seqused_k=cache.used([7, 3, 5])
    )
    for rows, keys in ((slice(0, 4), slice(0, 7)), (slice(10, 25), slice(10, 13))):
        truth = reference.attention(*(x[None] for x in (q[rows], k[keys], v[keys])))[0][0]
        torch.testing.assert_close(out[rows].double(), truth, rtol=1e-5, atol=1e-5)
    assert out[4:10].eq(0).all() and out[25:].eq(0).all()


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"dropout_p": 0.1}, NotImplementedError, "dropout_p is 0.1 beside pages; 0 is accepted"),
        ({"seqused_k": None}, ValueError, "seqused_k and cu_seqlens_k are None; with pages, one of them is accepted"),
        (
            {"page_table": torch.zeros(2, 2, dtype=torch.int32)},
            ValueError,
            "block_table and page_table are given; one of them",
        ),
        ({"block_table": torch.zeros(2, 2)}, ValueError, "page_table.dtype is float32; int32 is accepted"),
        (
            {"q": torch.randn(3, 4, 16, requires_grad=True)},
            ValueError,
            "q requires a gradient; attention over a cache has none",
        ),
        ({"seqused_k": cache.used([3, 33])}, ValueError, r"used_k\[1\] is 33"),
        ({"max_seqlen_k": 99}, ValueError, "paged.table_stride is 2; 7, for seq_k of 99 in pages of 16, or more"),
    ],
)
def test_bad_arguments_are_refused(changes, kind, sentence):
    pages = torch.randn(4, 16, 2, 16)
    arguments = {
        "q": torch.randn(3, 4, 16), "k": pages, "v": pages, "cu_seqlens_q": cache.cumulative([1, 2]), "cu_seqlens_k": None,
        "max_seqlen_q": 2, "max_seqlen_k": 32, "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "seqused_k": cache.used([3, 20]),
    }  # fmt: skip
    with pytest.raises(kind, match=sentence):
        st.flash_attn_varlen_func(**arguments | changes)


def test_the_operator():
    q = torch.randn(3, 4, 16)
    k, v = torch.randn(2, 4, 16, 2, 16)
    table, cu = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32), cache.cumulative([1, 2])
    given = {"q": q, "k": k, "v": v, "page_table": table, "cu_seqlens_q": cu, "used_k": cache.used([3, 20])}
    given |= {"max_seqlen_q": 2, "max_seqlen_k": 32, "scale_block": (1, 1), "causal": True, "window": (-1, -1)}
    operator = torch.ops.strobe.cache_attention.default
    torch.library.opcheck(operator, [given.get(x.name) for x in operator._schema.arguments])
