# SPDX-License-Identifier: BSD-3-Clause
"""strobe.jax: the bits of strobe.attention from compiled programs, JAX's own arithmetic and its own attention beside it, and
each of JAX's transformations."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import strobe

jax = pytest.importorskip("jax")
jnp = jax.numpy

import strobe.jax as sj  # noqa: E402

P = jax.sharding.PartitionSpec


def plain(q, k, v, bias=None, mask=None, sinks=None):
    group = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, group, 2), jnp.repeat(v, group, 2)
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    if sinks is not None:
        column = jnp.broadcast_to(sinks.reshape(1, -1, 1, 1), (*scores.shape[:-1], 1))
        return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(jnp.concatenate([scores, column], -1))[..., :-1], v)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores), v)


def problem():
    """q, k, v, bias and sinks; of NumPy's random numbers, since JAX's take seconds to compile."""
    random = np.random.default_rng(0)
    shapes = ((2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16), (1, 4, 9, 11), (4,))
    return [jnp.asarray(random.standard_normal(shape, dtype=np.float32)) for shape in shapes]


RANDOM = np.random.default_rng(0)
PACKED = {"cu_seqlens_q": np.int32([0, 4, 4, 13]), "cu_seqlens_k": np.int32([0, 9, 12, 15])}
# What each case gives beside q, k and v: (2, 9, 4, 16), (2, 11, 2, 16), or packed (18, 4, 16), (22, 2, 16).
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "top left": {"causal": True, "diagonal": "top_left"},
    "window, softcap, scale": {"window": (3, 1), "softcap": 5.0, "scale": 0.3},
    "bias": {"bias": RANDOM.standard_normal((1, 4, 9, 11), dtype=np.float32)},
    "mask": {"mask": RANDOM.random((2, 1, 9, 11)) < 0.6},
    "block mask": {"block_mask": RANDOM.random((4, 3, 3)) < 0.7, "block_size": (4, 4)},
    "ALiBi, starts": {"alibi_slopes": np.float32([0.5, 0.25, 0.1, 0.0]), "causal": True, "q_start": 4, "k_start": 1},
    "sinks": {"sinks": np.float32([0.5, -1, 2, 0])},
    "dropout": {"dropout": 0.4, "seed": 2**40 + 7, "offset": 3},
    "used": {"used_q": np.int32([9, 4]), "used_k": np.int32([3, 0])},
    "packed": PACKED,
    "packed, bounds": PACKED | {"max_seqlen_q": 9, "max_seqlen_k": 9, "causal": True},
    "one thread": {"threads": 1},
}


def inputs(given, dtype=np.float32):
    random = np.random.default_rng(1)
    shapes = [(2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16)]
    if "cu_seqlens_q" in given:
        shapes = [(x[0] * x[1], *x[2:]) for x in shapes]
    return [random.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


def same_bits(x, y):
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, np.float32) for name in CASES), ("sinks", jnp.bfloat16), ("packed", jnp.bfloat16)]
)
def test_the_bits_of_strobe_attention(name, dtype):
    """Forward and backward from one compiled program, beside the same calls on NumPy's arrays."""
    given = CASES[name]
    tensors = inputs(given, dtype)
    out, lse = strobe.attention(*tensors, **given, return_lse=True)
    random = np.random.default_rng(2)
    dout = random.standard_normal(out.shape, dtype=np.float32).astype(dtype)
    dlse = random.standard_normal(lse.shape, dtype=np.float32)
    with_bias = "bias" in given
    arrays = {name: jnp.asarray(x) for name, x in given.items() if isinstance(x, np.ndarray)}
    numbers = {name: x for name, x in given.items() if name not in arrays}

    def ours(tensors, arrays):
        return sj.attention(*tensors, **arrays, **numbers, return_lse=True)

    @jax.jit
    def run(tensors, arrays, dout, dlse):
        own = {name: x for name, x in arrays.items() if name in ("bias", "sinks")}
        results, back = jax.vjp(lambda tensors, own: ours(tensors, arrays | own), tensors, own)
        return results, back((dout, dlse))

    results, (gradients, others) = run(tensors, arrays, dout, dlse)
    assert same_bits(results[0], out)
    assert same_bits(results[1], lse)
    expected = strobe.attention_backward(dout, *tensors, np.asarray(out), lse, dlse=dlse, bias_gradient=with_bias, **given)
    for x, y in zip(gradients, expected[:3], strict=True):
        assert same_bits(x, y)
    for name, y in zip(("bias", "sinks"), expected[3:], strict=True):
        assert (name not in others) if y is None else same_bits(others[name], y)


TABLE = np.random.default_rng(4).standard_normal((4, 19), dtype=np.float32)
# A function of a score and its arrays: of floats, with gradients, and of integers and truths, without.
FUNCTIONS = {
    "a table": {"score": "score + table[h][i - j + 10]", "arrays": {"table": TABLE}},
    "scalars, documents": {
        "score": "cap * tanh(score / cap) + slope[h] * min(i, n)", "visible": "doc[b][j] == doc[b][i] || open[j]",
        "arrays": {
            "slope": TABLE[:, 0].copy(), "doc": np.arange(22, dtype=np.uint8).reshape(2, 11) // 4, "open": np.arange(11) % 5 == 0,
        },
        "scalars": {"cap": 3, "n": 4},
    },
    "visible alone, causal": {"visible": "abs(i - j) % step < 3", "scalars": {"step": 5}, "causal": True},
    "used": {"score": "score * table[0][j]", "arrays": {"table": TABLE}, "used_q": np.int32([9, 4]), "used_k": np.int32([3, 0])},
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_score_have_the_bits_of_strobe_attention(name):
    given = dict(FUNCTIONS[name])
    arrays = given.pop("arrays", {})
    floats = {n: x for n, x in arrays.items() if x.dtype == np.float32}
    tensors = inputs({})
    out, lse = strobe.attention(*tensors, **given, arrays=arrays, return_lse=True)
    dout = np.random.default_rng(2).standard_normal(out.shape, dtype=np.float32)
    expected = {n: np.empty_like(x) for n, x in floats.items()}
    gradients = strobe.attention_backward(dout, *tensors, out, lse, **given, arrays=arrays, array_gradients=expected)

    @jax.jit
    def run(tensors, arrays, dout):
        def ours(tensors, own):
            return sj.attention(*tensors, **given, arrays=arrays | own, return_lse=True)

        own = {n: arrays[n] for n in floats}
        results, back = jax.vjp(ours, tensors, own)
        return results, back((dout, jnp.zeros_like(results[1])))

    results, (of_tensors, of_arrays) = run(tensors, arrays, dout)
    assert same_bits(results[0], out) and same_bits(results[1], lse)
    for x, y in zip(of_tensors, gradients, strict=False):
        assert same_bits(x, y)
    assert of_arrays.keys() == expected.keys()
    for n, y in expected.items():
        assert same_bits(of_arrays[n], y)


def test_arrays_that_only_choose_have_a_gradient_of_0():
    q, k, v = (jnp.asarray(x) for x in inputs({}))
    rng = np.random.default_rng(1)
    arrays = {name: jnp.float32(rng.standard_normal(k.shape[1])) for name in ("moved", "compared", "shown", "unread")}
    text = {"score": "score + (compared[j] > 0 ? moved[j] : 0)", "visible": "shown[j] > -1 || j == 0"}
    found = jax.jit(jax.grad(lambda own: (sj.attention(q, k, v, arrays=own, **text) ** 2).sum()))(arrays)
    assert not any(found[name].any() for name in ("compared", "shown", "unread"))
    bias = lambda moved: jnp.where(arrays["compared"] > 0, moved, 0).reshape(1, 1, 1, -1)  # noqa: E731
    shown = ((arrays["shown"] > -1) | (jnp.arange(k.shape[1]) == 0)).reshape(1, 1, 1, -1)
    expected = jax.grad(lambda moved: (plain(q, k, v, bias(moved), shown) ** 2).sum())(arrays["moved"])
    np.testing.assert_allclose(found["moved"], expected, atol=1e-4)


def test_functions_of_a_score_under_vmap_and_refused():
    q, k, v = (jnp.stack([x, 2 * x, -x]) for x in inputs({}))
    rows = jnp.float32([[0, 1], [2, 3], [4, 5]])
    for text, arrays, axes in (
        ("score - 0.5 * abs(i - j)", {}, {}),
        ("score + row[b] * i", {"row": rows}, {"row": 0}),
        ("score + row[b] * i", {"row": rows[1]}, {"row": None}),
    ):

        def one(q, k, v, arrays, text=text):
            def loss(q, arrays):
                return (sj.attention(q, k, v, score=text, arrays=arrays) ** 2).sum()

            return jax.value_and_grad(loss, (0, 1))(q, arrays)

        got, single = jax.jit(jax.vmap(one, (0, 0, 0, axes)))(q, k, v, arrays), jax.jit(one)
        for n in range(3):
            own = {name: x if axes[name] is None else x[n] for name, x in arrays.items()}
            for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(single(q[n], k[n], v[n], own)), strict=True):
                np.testing.assert_allclose(x[n], y, rtol=1e-5, atol=1e-4)
    q, k, v = q[0], k[0], v[0]
    with pytest.raises(ValueError, match='score has "tabel" at column 9'):
        jax.jit(partial(sj.attention, score="score + tabel[i]"))(q, k, v)
    with pytest.raises(ValueError, match="arrays or scalars are given without score and visible"):
        sj.attention(q, k, v, scalars={"x": 1})
    with pytest.raises(TypeError, match="arrays is 3; a dictionary from names is accepted"):
        sj.attention(q, k, v, score="score", arrays=3)
    with pytest.raises(TypeError, match=r"scalars\['x'\] is .*; a number is accepted, and what is traced in arrays"):
        jax.jit(lambda x: sj.attention(q, k, v, score="x * score", scalars={"x": x}))(2.0)
    for name in ("scale", "softcap", "dropout", "q_start", "window", "causal"):
        refused = f"{name} is traced; a number that is known when the function is traced is accepted"
        with pytest.raises(TypeError, match=refused):
            jax.jit(lambda x, name=name: sj.attention(q, k, v, **{name: (x, x) if name == "window" else x}))(1)
    (rows,) = jax.export.symbolic_shape("rows")
    with pytest.raises(TypeError, match=r"q\.shape is \(rows, 4, 16\); sizes that are known when the function is traced are accepted"):
        jax.export.export(jax.jit(sj.attention))(*[jax.ShapeDtypeStruct((rows, 4, 16), np.float32)] * 3)
    with pytest.raises(TypeError, match=r"k\.dtype is key<fry>; numbers are accepted"):
        sj.attention(q, jax.random.key(0), v)
    for scale in (np.float32(0.5), np.array(0.5), jnp.float32(0.5)):
        np.testing.assert_array_equal(sj.attention(q, k, v, scale=scale), sj.attention(q, k, v, scale=0.5))
    integer, number = (sj.attention(q, k, v, score="score * (x / 2)", scalars={"x": x}) for x in (1, 1.0))
    assert not np.array_equal(integer, number)


def test_pages_and_quantised_caches():
    random = np.random.default_rng(3)
    q = random.standard_normal((2, 1, 4, 16), dtype=np.float32)
    cache = random.integers(-127, 128, (2, 5, 4, 2, 16), dtype=np.int8)  # k and v: 5 pages of 4 slots
    scales = random.random((2, 5, 4, 2), dtype=np.float32)
    given = {
        "page_table": np.int32([[4, 1], [0, 3]]), "used_k": np.int32([7, 3]), "k_scale": scales[0], "v_scale": scales[1],
    }  # fmt: skip
    out = jax.jit(lambda given: sj.attention(q, *cache, **given, split_keys=4))(given)
    assert same_bits(out, strobe.attention(q, *cache, **given, split_keys=4))
    with pytest.raises(NotImplementedError, match="page_table is given and a gradient asked for"):
        jax.grad(lambda q: sj.attention(q, *cache, **given).sum())(q)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values_and_gradients(wrap):
    q, k, v, bias, sinks = problem()
    mask = np.arange(11) < 8

    def ours(q, k, v, bias, sinks):
        return (sj.attention(q, k, v, bias=bias, mask=mask, sinks=sinks) ** 2).sum()

    def theirs(q, k, v, bias, sinks):
        return (plain(q, k, v, bias, mask, sinks) ** 2).sum()

    arguments = (q, k, v, bias, sinks)
    numbers = tuple(range(5))
    got = wrap(jax.value_and_grad(ours, numbers))(*arguments)
    expected = jax.jit(jax.value_and_grad(theirs, numbers))(*arguments)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


def test_lse_is_differentiable():
    q, k, v, *_ = problem()
    gradient = jax.jit(jax.grad(lambda q: sj.attention(q, k, v, return_lse=True)[1].sum()))(q)

    def scores(q):
        return jnp.einsum("bihd,bjhd->bhij", q, jnp.repeat(k, 2, 2)) / 4

    expected = jax.jit(jax.grad(lambda q: jax.nn.logsumexp(scores(q), axis=-1).sum()))(q)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_programs_hold_no_callback():
    q, k, v, *_ = problem()
    text = jax.jit(jax.grad(lambda q: sj.attention(q, k, v).sum())).lower(q).as_text()
    assert "strobe_attention_backward" in text
    assert "callback" not in text


# What of a case has an axis that is mapped over, three entries long: how much each is scaled in an entry.
MAPPED = {
    "bias of each": {"bias": True},
    "bias for all": {"bias": False},
    "mask": {"mask": True},
    "sinks": {"sinks": True},
    "sinks for all": {"sinks": False},
    "ALiBi, starts": {"alibi_slopes": True},
    "block mask": {"block_mask": False},
    "used": {"used_q": False, "used_k": False},
    "packed": {"cu_seqlens_q": False, "cu_seqlens_k": False},
    "dropout": {},
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_is_one_call_after_the_other(name):
    given = dict(CASES[name.removesuffix(" of each").removesuffix(" for all")])
    tensors = [jnp.stack([x * factor for factor in (1.0, 0.5, -1.0)]) for x in inputs(given)]
    tensors[1] = tensors[1][0]  # k is the same for all
    arrays = {n: jnp.asarray(x) for n, x in given.items() if isinstance(x, np.ndarray)}
    numbers = {n: x for n, x in given.items() if n not in arrays}
    for n, of_each in MAPPED[name].items():
        if of_each:
            rolled = [jnp.roll(arrays[n], m, -1) for m in range(3)]
            arrays[n] = jnp.stack(rolled)
    floats = [n for n in ("bias", "sinks") if n in arrays]

    def loss(q, k, v, arrays):
        out, lse = sj.attention(q, k, v, **arrays, **numbers, return_lse=True)
        return (out**2).sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum(), (out, lse)

    def one(q, k, v, arrays):
        own = {n: arrays[n] for n in floats}
        return jax.value_and_grad(lambda q, k, v, own: loss(q, k, v, arrays | own), (0, 1, 2, 3), has_aux=True)(q, k, v, own)

    axes = {n: 0 if MAPPED[name].get(n) else None for n in arrays}
    got = jax.jit(jax.vmap(one, (0, None, 0, axes)))(*tensors, arrays)
    single = jax.jit(one)
    each = [
        single(tensors[0][m], tensors[1], tensors[2][m], {n: x[m] if axes[n] == 0 else x for n, x in arrays.items()})
        for m in range(3)
    ]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *each)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_vmap_twice_and_in_bfloat16():
    q, k, v, *_ = problem()
    mapped = jax.vmap(jax.vmap(lambda q, k, v: sj.attention(*(x[None, None, None] for x in (q, k, v)))[0, 0, 0]))
    out = mapped(*(x[:, :2, 0] for x in (q, k, v)))
    assert out.shape == (2, 2, 16)
    np.testing.assert_allclose(out, v[:, :2, 0], rtol=1e-6)  # the only key's value
    half = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    assert jax.vmap(lambda *x: sj.attention(*(y[None] for y in x))[0])(*half).dtype == jnp.bfloat16


def test_scan_checkpoint_and_keys():
    """Layers in a scan, made again for the gradient, each with dropout of a key of its own."""
    q, k, v, *_ = problem()
    keys = jax.random.split(jax.random.key(5), 3)

    def layer(x, key):
        return x + sj.attention(x, k, v, dropout=0.3, seed=key), None

    def loss(q, layer):
        return (jax.lax.scan(layer, q, keys)[0] ** 2).sum()

    expected, gradient = jax.jit(jax.value_and_grad(partial(loss, layer=layer)))(q)
    again = jax.jit(jax.value_and_grad(partial(loss, layer=jax.checkpoint(layer))))(q)
    np.testing.assert_allclose(again[0], expected, rtol=1e-6)
    np.testing.assert_allclose(again[1], gradient, rtol=1e-5, atol=1e-5)
    x = np.asarray(q)
    for key in keys:
        low, high = (int(half) for half in jax.random.key_data(key))
        x = x + strobe.attention(x, np.asarray(k), np.asarray(v), dropout=0.3, seed=high << 32 | low)
    np.testing.assert_allclose((x**2).sum(), expected, rtol=1e-5)


def test_shard_map():
    """Sequences of two devices, which share sinks; conftest.py asks XLA for two devices on the host."""
    if len(jax.devices()) < 2:
        pytest.skip("one device")
    q, k, v, _, sinks = problem()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))

    def loss(attention, *arrays):
        return (attention(*arrays) ** 2).sum()

    def ours(q, k, v, sinks):
        return sj.attention(q, k, v, sinks=sinks, causal=True)

    sharded = jax.shard_map(ours, mesh=mesh, in_specs=(P("data"), P("data"), P("data"), P()), out_specs=P("data"))
    results = [
        jax.jit(jax.value_and_grad(partial(loss, attention), (0, 1, 2, 3)))(q, k, v, sinks) for attention in (sharded, ours)
    ]
    got, expected = results
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"is_causal": True, "scale": 0.2},
        {"local_window_size": (3, 2)},
        {"local_window_size": 4, "is_causal": True},
        {"bias": RANDOM.standard_normal((1, 4, 1, 11), dtype=np.float32)},
        {"bias": RANDOM.standard_normal((2, 1, 9, 1), dtype=np.float32)},
        {"mask": np.arange(99).reshape(1, 1, 9, 11) % 3 > 0},
        {"query_seq_lengths": np.int32([9, 4]), "key_value_seq_lengths": np.int32([11, 5])},
    ],
    ids=lambda given: " ".join(given) or "plain",
)
def test_dot_product_attention_is_that_of_jax(given):
    q, k, v, *_ = problem()

    def loss(attention, q, k, v, bias):
        options = given if bias is None else given | {"bias": bias}
        out, lse = attention(q, k, v, **options, return_residual=True)
        return (out**2).sum(), (out, None if "query_seq_lengths" in given else lse)  # their padded rows are not empty

    results = [
        jax.jit(jax.value_and_grad(partial(loss, attention), (0, 1, 2, 3), has_aux=True))(q, k, v, given.get("bias"))
        for attention in (sj.dot_product_attention, jax.nn.dot_product_attention)
    ]
    for x, y in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("heads", "dim", "given"),
    [(4, 8, {"scale": 0}), (4, 8, {"scale": 0.0, "is_causal": True}), (0, 8, {}), (4, 0, {"scale": 2.0})],
)
def test_dot_product_attention_of_nothing_is_that_of_jax(heads, dim, given, wrap):
    """A scale of 0, no query heads, no columns."""
    arrays = [jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate([(2, 5, heads, dim), *[(2, 6, 2, dim)] * 2])]

    def run(function):
        results = wrap(lambda *a: function(*a, **given, return_residual=True))(*arrays)
        return *results, *wrap(jax.grad(lambda *a: function(*a, **given).sum(), (0, 1, 2)))(*arrays)

    for x, y in zip(run(sj.dot_product_attention), run(jax.nn.dot_product_attention), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_dot_product_attention_of_one_sequence():
    q, k, v = (x[0] for x in problem()[:3])
    out, lse = sj.dot_product_attention(q, k, v, return_residual=True)
    assert out.shape == q.shape
    assert lse.shape == q.shape[:2]
    np.testing.assert_allclose(out, jax.nn.dot_product_attention(q, k, v), rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match="implementation is 'cudnn'; None is accepted"):
        sj.dot_product_attention(q, k, v, implementation="cudnn")


def test_numbers_in_arrays_and_lists():
    q, k, v, *_ = problem()
    mask = jnp.ones((1, 1, 1, 1), bool)
    got = sj.attention(q, k, v, scale=jnp.float32(0.5), causal=jnp.bool_(True), block_mask=mask, block_size=[64, 64])
    assert jnp.array_equal(got, sj.attention(q, k, v, scale=0.5, causal=True, block_mask=mask, block_size=(64, 64)))


def test_refusals():
    q, k, v, *_ = problem()
    with pytest.raises(TypeError, match="window is 3; a pair"):
        sj.attention(q, k, v, window=3)
    with pytest.raises(ValueError, match=r"k.shape is \(2, 11, 2, 8\); \(2, \*, \*, 16\) is accepted"):
        jax.jit(sj.attention)(q, k[..., :8], v)
    with pytest.raises(ValueError, match=r"seed is None with dropout 0\.5"):
        sj.attention(q, k, v, dropout=0.5)
    with pytest.raises(ValueError, match=r"seed.shape is \(3,\)"):
        sj.attention(q, k, v, dropout=0.5, seed=jnp.zeros(3, jnp.uint32))
    with pytest.raises(ValueError, match="seed is -1"):
        sj.attention(q, k, v, dropout=0.5, seed=-1)
    with pytest.raises(ValueError, match=r'tuning\.kernel is "none"'):
        sj.attention(q, k, v, kernel="none")
    with pytest.raises(Exception, match="cu_seqlens_q"):
        jax.block_until_ready(sj.attention(q[0], k[0], v[0], cu_seqlens_q=jnp.array([0, 8, 3]),
                                           cu_seqlens_k=jnp.array([0, 5, 11])))  # fmt: skip


def test_empty():
    q, k, v, *_ = problem()
    out, lse = jax.jit(partial(sj.attention, return_lse=True))(q, k[:, :0], v[:, :0])
    assert not out.any() and jnp.isneginf(lse).all()
    assert jax.jit(sj.attention)(q[:, :0], k, v).shape == (2, 0, 4, 16)
    gradient = jax.jit(jax.grad(lambda k: sj.attention(q[:0], k, v[:0]).sum()))(k[:0])
    assert gradient.shape == (0, 11, 2, 16)


LAYOUTS = {
    "xla_extension": ("XLA_FFI_Extension_Base", "type next"),
    "xla_version": ("XLA_FFI_Api_Version", "major:major_version minor:minor_version"),
    "xla_metadata": ("XLA_FFI_Metadata", "version:api_version traits"),
    "xla_metadata_extension": ("XLA_FFI_Metadata_Extension", "base:extension_base metadata"),
    "xla_error_arguments": ("XLA_FFI_Error_Create_Args", "extensions:extension_start message code:errc"),
    "xla_api": (
        "XLA_FFI_Api",
        "version:api_version internal:internal_api error_create:XLA_FFI_Error_Create stream_get:XLA_FFI_Stream_Get "
        "memory_allocate:XLA_FFI_DeviceMemory_Allocate memory_free:XLA_FFI_DeviceMemory_Free "
        "device_get:XLA_FFI_DeviceOrdinal_Get",
    ),
    "xla_stream_arguments": ("XLA_FFI_Stream_Get_Args", "context:ctx stream"),
    "xla_allocate_arguments": ("XLA_FFI_DeviceMemory_Allocate_Args", "context:ctx size alignment data"),
    "xla_free_arguments": ("XLA_FFI_DeviceMemory_Free_Args", "context:ctx size data"),
    "xla_device_arguments": ("XLA_FFI_DeviceOrdinal_Get_Args", "context:ctx index:device_ordinal"),
    "xla_buffer": ("XLA_FFI_Buffer", "dtype data rank dims"),
    "xla_array": ("XLA_FFI_Array", "dtype size data"),
    "xla_text": ("XLA_FFI_ByteSpan", "start:ptr length:len"),
    "xla_buffers": ("XLA_FFI_Args", "size types buffers:args"),
    "xla_attributes": ("XLA_FFI_Attrs", "size types names values:attrs"),
    "xla_call": ("XLA_FFI_CallFrame", "api context:ctx stage arguments:args results:rets attributes:attrs"),
}
VALUES = {
    "XLA_INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT", "XLA_RESOURCE_EXHAUSTED": "Error_Code_RESOURCE_EXHAUSTED",
    "XLA_UNIMPLEMENTED": "Error_Code_UNIMPLEMENTED", "XLA_INTERNAL": "Error_Code_INTERNAL",
    "XLA_EXTENSION_METADATA": "Extension_Metadata", "XLA_STAGE_EXECUTE": "ExecutionStage_EXECUTE",
    "XLA_ATTRIBUTE_ARRAY": "AttrType_ARRAY", "XLA_BUFFER": "ArgType_BUFFER", "XLA_BOOL": "DataType_PRED",
    "XLA_INT8": "DataType_S8", "XLA_INT32": "DataType_S32", "XLA_INT64": "DataType_S64", "XLA_UINT8": "DataType_U8",
    "XLA_UINT32": "DataType_U32",
    "XLA_FLOAT16": "DataType_F16", "XLA_FLOAT32": "DataType_F32", "XLA_FLOAT64": "DataType_F64",
    "XLA_BFLOAT16": "DataType_BF16", "XLA_FLOAT8_E4M3FN": "DataType_F8E4M3FN", "XLA_MAJOR": "API_MAJOR",
}  # fmt: skip


def test_layouts_are_those_of_the_installed_header(tmp_path):
    """xla_ffi.h beside the header that jaxlib brings, by the C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not here")
    lines = [f'#include "{Path(__file__).parents[2]}/python/src/xla_ffi.h"', "#include <xla/ffi/api/c_api.h>"]
    for ours, (theirs, fields) in LAYOUTS.items():
        for field in fields.split():
            a, _, b = field.partition(":")
            lines.append(f'_Static_assert(offsetof(struct {ours}, {a}) == offsetof({theirs}, {b or a}), "{ours}.{a}");')
            sizes = f"sizeof(((struct {ours} *)0)->{a}) == sizeof((({theirs} *)0)->{b or a})"
            lines.append(f'_Static_assert({sizes}, "{ours}.{a}");')
    lines += [f'_Static_assert({ours} == XLA_FFI_{theirs}, "{ours}");' for ours, theirs in VALUES.items()]
    lines.append('_Static_assert(XLA_NEWEST_MINOR >= XLA_FFI_API_MINOR, "a newer interface: look at what is new");')
    source = tmp_path / "layouts.c"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", f"-I{jax.ffi.include_dir()}", str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_on_a_gpu():
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("jax_on_gpu.py"))], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
