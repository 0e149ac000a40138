# SPDX-License-Identifier: BSD-3-Clause
"""strobe.jax: values and gradients beside JAX's own arithmetic, in and out of jit."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import strobe.jax as sj  # noqa: E402


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
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = ((2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16), (1, 4, 9, 11), (4,))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def test_a_window_is_a_pair():
    q, k, v, _, _ = problem()
    with pytest.raises(TypeError, match="window is 3; a pair"):
        sj.attention(q, k, v, window=3)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values_and_gradients(wrap):
    q, k, v, bias, sinks = problem()
    mask = jnp.arange(11) < 8

    def ours(q, k, v, bias, sinks):
        return (sj.attention(q, k, v, bias=bias, mask=mask, sinks=sinks) ** 2).sum()

    def theirs(q, k, v, bias, sinks):
        return (plain(q, k, v, bias, mask, sinks) ** 2).sum()

    arguments = (q, k, v, bias, sinks)
    numbers = tuple(range(5))
    got = wrap(jax.value_and_grad(ours, numbers))(*arguments)
    expected = jax.value_and_grad(theirs, numbers)(*arguments)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


def test_lse_is_differentiable():
    q, k, v, *_ = problem()
    gradient = jax.grad(lambda q: sj.attention(q, k, v, return_lse=True)[1].sum())(q)
    expected = jax.grad(
        lambda q: jax.nn.logsumexp(jnp.einsum("bihd,bjhd->bhij", q, jnp.repeat(k, 2, 2)) / 4, axis=-1).sum()
    )(q)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_vmap_and_bfloat16():
    q, k, v, *_ = problem()
    mapped = jax.vmap(lambda q, k, v: sj.attention(q[None], k[None], v[None])[0])(q, k, v)
    np.testing.assert_allclose(mapped, sj.attention(q, k, v), rtol=1e-6)
    half = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    assert jax.jit(lambda *x: sj.attention(*x, causal=True))(*half).dtype == jnp.bfloat16


def test_a_large_callback_does_not_wait_for_itself():
    q = jax.random.normal(jax.random.key(0), (1, 1024, 8, 64))
    step = jax.jit(jax.grad(lambda q: sj.attention(q * 2, q, q, causal=True).sum()))
    assert bool(jnp.isfinite(step(q)).all())
