# SPDX-License-Identifier: BSD-3-Clause
"""strobe.append: where keys go and what is done on the way, from each framework; all else in a cache keeps its bytes."""

import cache
import numpy as np
import pytest
import strobe
import torch
from test_flash_attn_cache import turned

LENGTHS = [30, 0, 17]


def new(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_numpy_in_pages_of_any_size():
    k, v = new(2, 3, 5, 2, 16)
    for size in (1, 7, 64):
        table = cache.page_table([40] * 3, size).numpy()
        k_cache, v_cache = np.full((2, 3 * 40 + 2, size, 2, 16), np.nan, np.float32)
        wanted = k_cache.copy()
        strobe.append(k_cache, v_cache, k, v, page_table=table, lengths=np.array(LENGTHS, np.int32))
        for b, length in enumerate(LENGTHS):
            for i in range(5):
                page, slot = divmod(length + i, size)
                wanted[table[b, page], slot] = k[b, i]
                assert np.array_equal(v_cache[table[b, page], slot], v[b, i])
        assert np.array_equal(k_cache, wanted, equal_nan=True)


def test_lengths_before_or_after_and_the_end_of_a_cache():
    k, v = torch.from_numpy(new(2, 3, 5, 2, 16))
    caches = [torch.zeros(2, 3, 40, 2, 16) for _ in range(3)]
    strobe.append(*caches[0], k, v, lengths=cache.used(LENGTHS))
    strobe.append(*caches[1], k, v, used_k=cache.used(LENGTHS) + 5)
    strobe.append(*caches[2], k, v)
    assert torch.equal(caches[0], caches[1])
    assert torch.equal(caches[2][0, :, 35:], k) and caches[2][:, :, :35].eq(0).all()


def test_slots_and_tokens_that_do_not_exist():
    k, v = torch.from_numpy(new(2, 6, 2, 16))
    k_cache, v_cache = torch.zeros(2, 4, 8, 2, 16)
    table = torch.zeros(1, 4, dtype=torch.int32)
    slots = torch.tensor([31, 0, -1, 9, 8, 17])
    cu = cache.cumulative([6])
    strobe.append(k_cache, v_cache, k, v, page_table=table, cu_seqlens_new=cu, slots=slots, lengths=cache.used([0]))
    for token, slot in enumerate(slots.tolist()):
        assert slot < 0 or torch.equal(k_cache.flatten(0, 1)[slot], k[token])
    assert v_cache.flatten(0, 1).any(-1).any(-1).nonzero().flatten().tolist() == [0, 8, 9, 17, 31]
    two = torch.zeros(2, 2, 9, 2, 16)
    strobe.append(*two, k.view(2, 3, 2, 16), v.view(2, 3, 2, 16), lengths=cache.used([0, 4]), used_new=cache.used([2, 1]))
    assert two[0].any(-1).any(-1).nonzero().tolist() == [[0, 0], [0, 1], [1, 4]]


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_by_tables_and_by_its_base(interleaved):
    q, k = torch.randn(2, 3, 4, 32, dtype=torch.float64).float(), torch.randn(2, 3, 2, 32)
    lengths, turn = [30, 4], torch.arange(40)[:, None] * 10000.0 ** -(torch.arange(8) / 8)
    tables = (turn.double().cos().float(), turn.double().sin().float())
    results = []
    for rotary in ({"rotary": tables}, {"rotary": 10000.0, "rotary_dim": 16}):
        k_cache, v_cache = torch.zeros(2, 2, 40, 2, 32)
        out = strobe.append(k_cache, v_cache, k, k, q=q, lengths=cache.used(lengths), interleaved=interleaved, **rotary)
        for b, length in enumerate(lengths):
            positions = length + torch.arange(3)
            torch.testing.assert_close(out[b], turned(q[b], positions, tables, interleaved), rtol=0, atol=1e-5)
            torch.testing.assert_close(
                k_cache[b, positions], turned(k[b], positions, tables, interleaved), rtol=0, atol=1e-5
            )
            assert torch.equal(v_cache[b, positions], k[b])
        results.append(out)
    in_place = q.clone()
    again = strobe.append(
        k_cache, v_cache, k, k, q=in_place, out=in_place, lengths=cache.used(lengths), interleaved=interleaved, **rotary
    )
    assert again is in_place and torch.equal(again, results[1])


def test_an_int8_cache_with_its_scales_written_beside():
    q, k, v = (torch.randn(2, n, h, 64) for n, h in ((1, 4), (21, 2), (21, 2)))
    table = cache.page_table([21, 21], 16)
    k_cache, v_cache = torch.zeros(2, 6, 16, 2, 64, dtype=torch.int8)
    scales = {"k_scale": torch.zeros(6, 16, 2), "v_scale": torch.zeros(6, 16, 2)}
    for at in (0, 20):  # a prompt, then a token
        part = slice(at, 20 if at == 0 else 21)
        q_turned = strobe.append(
            k_cache,
            v_cache,
            k[:, part],
            v[:, part],
            q=q,
            hadamard=True,
            seed=3,
            page_table=table,
            used_k=cache.used([part.stop] * 2),
            **scales,
        )
    out = strobe.attention(q_turned, k_cache, v_cache, page_table=table, used_k=cache.used([21, 21]), **scales)
    true = strobe.attention(q.double(), k.double(), v.double())
    assert (out - true).abs().max() < 0.03
    assert all((x != 0).sum() == 2 * 21 * 2 for x in scales.values())


def test_jax_arrays_are_read_and_never_written():
    jnp = pytest.importorskip("jax").numpy
    k_cache, v_cache = np.zeros((2, 1, 8, 2, 16), np.float32)
    k = jnp.ones((1, 1, 2, 16))
    strobe.append(k_cache, v_cache, k, k)
    assert k_cache[0, 7].all() and not k_cache[0, :7].any()
    theirs = jnp.zeros((1, 8, 2, 16))
    for caches, name in (((theirs, v_cache), "k_cache"), ((k_cache, theirs), "v_cache")):
        before = k_cache.copy()
        with pytest.raises(ValueError, match=f"{name} is an array of JAX, which never changes"):
            strobe.append(*caches, 2 * k, 2 * k)
        assert not theirs.any() and np.array_equal(k_cache, before)


def read_only():
    x = np.zeros((1, 8, 2, 16), np.float32)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"k_cache": read_only()}, ValueError, "k_cache.* read"),
        ({"k_cache": None}, TypeError, "k_cache"),
        ({"v": new(1, 2, 2, 16)}, ValueError, r"v.shape is \(1, 2, 2, 16\); \(1, 1, 2, \*?\d*\)"),
        ({"lengths": np.array([8], np.int32)}, ValueError, "lengths"),
        ({"lengths": np.array([1, 2], np.int32)}, ValueError, r"lengths.shape is \(2,\); \(1,\) is accepted"),
        ({"lengths": np.array([1.0])}, ValueError, "lengths.dtype is float64; int32 or int64 is accepted"),
        ({"positions": np.array([1])}, ValueError, "positions.dtype is int64; int32, as in the lengths before it,"),
        ({"slots": np.array([[1]], np.int32)}, ValueError, "slots.dtype is int32; int64 is accepted"),
        ({"rotary": "10000"}, TypeError, "rotary is '10000'; a pair of tables"),
        ({"rotary": (np.ones((9, 9), "f"), np.ones((9, 9), "f"))}, ValueError, "rotary.dim is 18"),
        ({"k_cache": np.zeros((1, 8, 2, 16), np.int8), "v_cache": np.zeros((1, 8, 2, 16), np.int8)}, ValueError, "scales"),
        ({"max_seqlen_new": 3}, ValueError, "max_seqlen_new is given without cu_seqlens"),
        ({"page_table": np.zeros((1, 1), np.int64)}, ValueError, "page_table.dtype is int64; int32 is accepted"),
        ({"threads": 0}, ValueError, "threads is 0"),
    ],
)
def test_bad_arguments_are_refused(changes, kind, sentence):
    k_cache, v_cache = np.zeros((2, 1, 8, 2, 16), np.float32)
    given = {"k_cache": k_cache, "v_cache": v_cache, "k": new(1, 1, 2, 16), "v": new(1, 1, 2, 16)}
    with pytest.raises(kind, match=sentence):
        strobe.append(**given | {"lengths": np.array([3], np.int32)} | changes)
    assert not k_cache.any() and not v_cache.any()


def test_what_requires_a_gradient_is_refused():
    x = torch.zeros(1, 1, 2, 16, requires_grad=True)
    with pytest.raises(ValueError, match="v requires a gradient"):
        strobe.append(*torch.zeros(2, 1, 8, 2, 16), x.detach(), x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="offsets on a GPU, whose longest sequence the host cannot read")
def test_a_missing_bound_has_the_name_that_the_caller_knows():
    k_cache, v_cache = torch.zeros(2, 2, 8, 2, 16, device="cuda")
    new = torch.zeros(3, 2, 16, device="cuda")
    cu = torch.tensor([0, 1, 3], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match=r"^max_seqlen_new is None; the longest"):
        strobe.append(k_cache, v_cache, new, new, cu_seqlens_new=cu)


def test_offsets_have_the_name_that_the_caller_knows():
    k_cache, v_cache = torch.zeros(2, 2, 8, 2, 16)
    new = torch.zeros(3, 2, 16)
    with pytest.raises(ValueError, match=r"^cu_seqlens_new.dtype is float32; int32 or int64 is accepted"):
        strobe.append(k_cache, v_cache, new, new, cu_seqlens_new=torch.tensor([0.0, 1.0, 3.0]))
