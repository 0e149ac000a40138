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


BEFORE = [200, 33, 0, 5, 64]  # what lies in the cache
CAPACITY = 256


def angles(count, columns):
    """cos and sin, (count, columns / 2)."""
    turn = torch.arange(count)[:, None] * 100.0 ** -torch.linspace(0, 1, columns // 2)
    return turn.cos(), turn.sin()


def turned(x, positions, tables, interleaved):
    """Rotary embedding of (rows, heads, dim) in float64, in x's dtype."""
    if tables is None:
        return x
    cos, sin = (table.double()[positions][:, None] for table in tables)
    half = cos.shape[-1]
    y, columns = x.double(), torch.arange(half)
    first, second = (2 * columns, 2 * columns + 1) if interleaved else (columns, columns + half)
    a, b = y[..., first], y[..., second]
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y.to(x.dtype)


def a_cache(layout, dtype):
    """K and V of sequences of BEFORE tokens with room for CAPACITY, and the arguments that say where they lie."""
    k = cache.sequences(BEFORE, HEADS_KV, DIM, dtype=dtype, seed=1)
    v = cache.sequences(BEFORE, HEADS_KV, DIM_V, dtype=dtype, seed=2)
    if isinstance(layout, int):
        table = cache.page_table([CAPACITY] * len(BEFORE), layout)
        pages = [cache.in_pages(x, layout, table, heads_outside=layout == 16) for x in (k, v)]
        return k, v, pages, {"page_table": table}, table
    entries = torch.tensor([3, 0, 6, 1, 4]) if layout == "entries" else torch.arange(len(BEFORE))
    pages = [cache.empty(entries.max() + 1, CAPACITY, HEADS_KV, x[0].shape[-1], dtype=dtype) for x in (k, v)]
    for x, of_x in zip((k, v), pages, strict=True):
        cache.fill(of_x, entries[:, None], x)
    given = {"cache_batch_idx": entries.to(torch.int32)} if layout == "entries" else {}
    return k, v, pages, given, entries[:, None]


def same_bits(x, y):
    return torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


def test_a_cache_with_more_entries_than_sequences():
    """The first entries are those of the sequences; the others are neither read nor written."""
    q, k, v = torch.randn(2, 3, 4, DIM), torch.randn(2, 3, HEADS_KV, DIM), torch.randn(2, 3, HEADS_KV, DIM_V)
    caches = [torch.randn(4, 20, HEADS_KV, d) for d in (DIM, DIM_V)]
    caches[0][2:] = caches[1][2:] = torch.nan
    before = [x.clone() for x in caches]
    alone = [x[:2].clone() for x in caches]
    lengths = torch.tensor([5, 0], dtype=torch.int32)
    out = st.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=lengths, causal=True)
    assert torch.equal(out, st.flash_attn_with_kvcache(q, *alone, k, v, cache_seqlens=lengths, causal=True))
    for x, of_two, old in zip(caches, alone, before, strict=True):
        assert torch.equal(x[:2], of_two) and same_bits(x[2:], old[2:])


@pytest.mark.parametrize("rotary", [None, (DIM, True), (DIM // 2, False)])
@pytest.mark.parametrize("case", [*CASES, {"causal": True, "num_splits": 3}], ids=str)
@pytest.mark.parametrize(
    ("layout", "rows", "dtype"),
    [("contiguous", 1, torch.float32), ("entries", 7, torch.bfloat16), (16, 1, torch.bfloat16), (1, 3, torch.float16)],
)
def test_append_and_attend(layout, rows, dtype, case, rotary):
    torch.manual_seed(0)  # else the tests before it would choose the numbers
    case, same = meant(case, 4)
    same.pop("num_splits", None)
    k, v, (k_cache, v_cache), where, table = a_cache(layout, dtype)
    batch = len(BEFORE)
    q, k_new, v_new = (torch.randn(batch, rows, h, d).to(dtype) for h, d in ((4, DIM), (HEADS_KV, DIM), (HEADS_KV, DIM_V)))
    tables = angles(CAPACITY, rotary[0]) if rotary else None
    given = {"rotary_cos": tables[0], "rotary_sin": tables[1], "rotary_interleaved": rotary[1]} if rotary else {}
    at_length = not case.get("causal") and "window_size" not in case
    q_turned, wanted_k = [], k_cache.clone()
    wanted_v = v_cache.clone()
    for b, length in enumerate(BEFORE):
        positions = length + torch.arange(rows)
        q_turned.append(
            turned(q[b], positions * 0 + length if at_length else positions, tables, given.get("rotary_interleaved"))
        )
        k[b] = torch.cat([k[b], turned(k_new[b], positions, tables, given.get("rotary_interleaved"))])
        v[b] = torch.cat([v[b], v_new[b]])
    cache.fill(wanted_k, table, k)
    cache.fill(wanted_v, table, v)
    out, lse = st.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k_new,
        v_new,
        cache_seqlens=cache.used(BEFORE),
        **where,
        **case,
        **given,
        return_softmax_lse=True,
    )
    assert_as_contiguous(out, lse, q_turned, k, v, **same)
    assert same_bits(v_cache, wanted_v)
    if rotary is None:
        assert same_bits(k_cache, wanted_k)
    else:
        torch.testing.assert_close(k_cache, wanted_k, rtol=0, atol=2 * reference.rounding(torch.cat(k)), equal_nan=True)


def test_ragged_chunks_behind_different_lengths():
    """New tokens and queries packed: a chunk of a prompt, a token, nothing."""
    new = [40, 1, 20, 0, 3]
    k, v, (k_cache, v_cache), where, _ = a_cache(16, torch.float32)
    q, k_new, v_new = (
        cache.sequences(new, h, d, seed=n) for n, (h, d) in enumerate(((4, DIM), (HEADS_KV, DIM), (HEADS_KV, DIM_V)), 5)
    )
    tables, cu = angles(CAPACITY, DIM), cache.cumulative(new)
    out, lse = st.flash_attn_with_kvcache(
        torch.cat(q), k_cache, v_cache, torch.cat(k_new), torch.cat(v_new), rotary_cos=tables[0], rotary_sin=tables[1],
        rotary_interleaved=False, cache_seqlens=cache.used(BEFORE), block_table=where["page_table"], cu_seqlens_q=cu,
        cu_seqlens_k_new=cu, max_seqlen_q=40, rotary_seqlens=cache.used([7] * 5), causal=True, return_softmax_lse=True,
    )  # fmt: skip
    q = [turned(x, 7 + torch.arange(len(x)), tables, False) for x in q]
    k = [torch.cat([x, turned(y, 7 + torch.arange(len(y)), tables, False)]) for x, y in zip(k, k_new, strict=True)]
    v = [torch.cat(both) for both in zip(v, v_new, strict=True)]
    assert_as_contiguous(out.split(new), lse.split(new, 1), q, k, v, causal=True)


@pytest.mark.parametrize("layout", ["contiguous", "entries", 16])
@pytest.mark.parametrize("rows", [1, 9])
def test_left_padding(layout, rows):
    padding = [7, 33, 0, 2, 1]
    k, v, (k_cache, v_cache), where, table = a_cache(layout, torch.float32)
    for b, n in enumerate(padding):
        cache.fill(k_cache, table[b:][:1], [torch.full_like(k[b][:n], torch.nan)])
        cache.fill(v_cache, table[b:][:1], [torch.full_like(v[b][:n], torch.nan)])
    q, k_new, v_new = (torch.randn(len(BEFORE), rows, h, d) for h, d in ((4, DIM), (HEADS_KV, DIM), (HEADS_KV, DIM_V)))
    out, lse = st.flash_attn_with_kvcache(
        q, k_cache, v_cache, k_new, v_new, cache_seqlens=cache.used(BEFORE), cache_leftpad=cache.used(padding), causal=True,
        return_softmax_lse=True, **where,
    )  # fmt: skip
    k = [torch.cat([x[n:], y]) for x, n, y in zip(k, padding, k_new, strict=True)]
    v = [torch.cat([x[n:], y]) for x, n, y in zip(v, padding, v_new, strict=True)]
    assert_as_contiguous(out, lse, q, k, v, causal=True)


@pytest.mark.parametrize(("heads", "dtype"), [(4, torch.float32), (16, torch.bfloat16), (128, torch.bfloat16)])
def test_latent_attention(heads, dtype):
    """One K/V head, V the first columns of K, in pages."""
    lengths = [300, 5, 64]
    k = cache.sequences(lengths, 1, 576, dtype=dtype, seed=1)
    table = cache.page_table(lengths, 16)
    pages = cache.in_pages(k, 16, table)
    q = torch.randn(3, 2, heads, 576).to(dtype)
    options = {"cache_seqlens": cache.used(lengths), "page_table": table, "causal": True, "return_softmax_lse": True}
    out, lse = st.flash_attn_with_kvcache(q, pages, pages[..., :512], **options)
    assert_as_contiguous(out, lse, q, k, [x[..., :512] for x in k], causal=True)


def test_one_length_for_all_and_the_whole_cache():
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    whole = st.flash_attn_with_kvcache(q, k, v)
    assert torch.equal(whole, st.flash_attn_func(q, k, v)) and torch.equal(
        whole, st.flash_attn_with_kvcache(q, k, v, cache_seqlens=9)
    )
    torch.testing.assert_close(
        st.flash_attn_with_kvcache(q, k, v, cache_seqlens=4), st.flash_attn_func(q, k[:, :4], v[:, :4])
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_quantised_cache_with_given_scales(dtype):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 16)
    k_cache, v_cache = torch.zeros(2, 2, 32, 2, 16).to(dtype)
    scales = {"k_descale": torch.rand(2, 2) * 0.02 + 0.03, "v_descale": torch.rand(2, 2) * 0.02 + 0.03}
    out = st.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=0, **scales)
    true = [
        x[:, :20].double() * scale[:, None, :, None] for x, scale in zip((k_cache, v_cache), scales.values(), strict=True)
    ]
    torch.testing.assert_close(out.double(), reference.attention(q, *true)[0], rtol=1e-5, atol=1e-5)
    assert (true[0] - k).abs().max() < 0.2


def test_a_row_does_not_depend_on_the_batch_where_splits_are_given():
    _, _, (k_cache, v_cache), where, table = a_cache(16, torch.bfloat16)
    q = torch.randn(5, 1, 8, DIM).bfloat16()
    options = {"num_splits": 1, "return_softmax_lse": True}
    out, lse = st.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=cache.used(BEFORE), **where, **options)
    for b, length in enumerate(BEFORE):
        alone = st.flash_attn_with_kvcache(
            q[b:][:1], k_cache, v_cache, cache_seqlens=length, page_table=table[b:][:1], **options
        )
        assert torch.equal(alone[0][0], out[b]) and torch.equal(alone[1][0], lse[b])


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        (
            {"cache_leftpad": cache.used([1, 9])},
            ValueError,
            r"varlen.leftpad_k\[1\] is 9; 0 to the sequence's length, 8, is",
        ),
        ({"alibi_slopes": torch.ones(3)}, ValueError, r"alibi_slopes.shape is \(3,\)"),
        ({"softcap": -1.0}, ValueError, "softcap is -1"),
        ({"window_size": (-7, 0)}, ValueError, "window_left is -7"),
        ({"qv": torch.randn(2, 1, 4, 16)}, NotImplementedError, "qv is given; without it"),
        ({"attention_chunk": 64}, NotImplementedError, "attention_chunk is given; without it"),
        ({"v": None}, ValueError, "v is None; both k and v, or none of them, are accepted"),
        (
            {"k": None, "v": None, "rotary_cos": torch.ones(9, 4), "rotary_sin": torch.ones(9, 4)},
            ValueError,
            "rotary_cos is given without k",
        ),
        ({"rotary_cos": torch.ones(9, 4)}, ValueError, "rotary_cos or rotary_sin is None; both or none"),
        ({"cache_seqlens": None}, ValueError, "cache_seqlens is None beside k and v; the lengths before them are accepted"),
        ({"cache_seqlens": cache.used([3, 8])}, ValueError, "lengths.*8"),
        (
            {"cache_batch_idx": cache.used([1, 0]), "page_table": torch.zeros(2, 1, dtype=torch.int32)},
            NotImplementedError,
            "cache_batch_idx is given beside",
        ),
        (
            {"block_table": torch.zeros(2, 1, dtype=torch.int32), "page_table": torch.zeros(2, 1, dtype=torch.int32)},
            ValueError,
            "one of them",
        ),
        ({"k": torch.randn(2, 1, 3, 16)}, ValueError, r"k.shape is \(2, 1, 3, 16\); \(2, \*, 2, 16\) is accepted"),
        ({"q": torch.randn(2, 1, 4, 16, requires_grad=True)}, ValueError, "q requires a gradient"),
        (
            {"k": torch.randn(2, 1, 2, 16, requires_grad=True)},
            ValueError,
            "k requires a gradient; attention over a cache has",
        ),
    ],
)
def test_bad_arguments_change_no_cache(changes, kind, sentence):
    k_cache, v_cache = torch.zeros(2, 2, 8, 2, 16)
    arguments = {
        "q": torch.randn(2, 1, 4, 16), "k_cache": k_cache, "v_cache": v_cache, "k": torch.randn(2, 1, 2, 16),
        "v": torch.randn(2, 1, 2, 16), "cache_seqlens": cache.used([3, 7]),
    }  # fmt: skip
    with pytest.raises(kind, match=sentence):
        st.flash_attn_with_kvcache(**arguments | changes)
    assert k_cache.eq(0).all() and v_cache.eq(0).all()


def arguments_of(operator, given):
    return [given.get(x.name) for x in operator._schema.arguments]


def test_operators():
    q = torch.randn(3, 4, 16)
    k, v = torch.randn(2, 4, 16, 2, 16)
    table, cu = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32), cache.cumulative([1, 2])
    given = {"q": q, "k": k, "v": v, "page_table": table, "cu_seqlens_q": cu, "used_k": cache.used([3, 20])}
    given |= {"max_seqlen_q": 2, "max_seqlen_k": 32, "causal": True}
    operator = torch.ops.strobe.cache_attention.default
    torch.library.opcheck(operator, arguments_of(operator, given))
    new = {"k_cache": k, "v_cache": v, "k": torch.randn(3, 2, 16), "v": torch.randn(3, 2, 16), "cu_seqlens_new": cu}
    new |= {"max_seqlen_new": 2, "lengths": cache.used([3, 20]), "page_table": table}
    operator = torch.ops.strobe.append.default
    torch.library.opcheck(operator, arguments_of(operator, new))
    new |= {"q": q, "cu_seqlens_q": cu, "max_seqlen_q": 2, "rotary": list(angles(32, 16)), "interleaved": True}
    torch.library.opcheck(operator, arguments_of(operator, new))


def test_a_cache_that_a_derivative_needs_is_missed():
    k_cache, v_cache, x = torch.zeros(1, 8, 2, 16), torch.zeros(1, 8, 2, 16), torch.ones(16, requires_grad=True)
    product = (k_cache * x).sum()
    st.append(k_cache, v_cache, torch.randn(1, 1, 2, 16), torch.randn(1, 1, 2, 16), lengths=cache.used([0]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
