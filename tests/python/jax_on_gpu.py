# SPDX-License-Identifier: BSD-3-Clause
"""strobe.jax on a GPU, in a process of its own, since those of the tests have JAX on the CPU: run by test_jax.py and
tools/gpu_check.sh. Prints "ok", or why it is skipped with exit code 77."""

import os
import sys
from functools import partial

os.environ["JAX_PLATFORMS"] = "cuda,cpu"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import strobe
import strobe.jax as sj


def missing() -> str:
    try:
        jax.devices("cuda")
    except RuntimeError:
        return "JAX has no GPU here"
    usable = any(kernel.device == "cuda" and not kernel.unavailable for kernel in strobe.kernels())
    return "" if usable else "a build without CUDA kernels for this device"


def arrays(*shapes, dtype=jnp.bfloat16):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal(shape, dtype=np.float32)).astype(dtype) for shape in shapes]


def on_cpu(call, *given):
    """The same call on the CPU, in float32."""
    with jax.default_device(jax.devices("cpu")[0]):
        as_float = [np.asarray(x, np.float32) if jnp.issubdtype(x.dtype, jnp.floating) else np.asarray(x) for x in given]
        return jax.tree.map(np.asarray, call(*[jnp.asarray(x) for x in as_float]))


def close(got, expected, allowed=0.03):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape, (a.shape, b.shape)
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        finite = np.isfinite(b)
        assert np.array_equal(finite, np.isfinite(a))
        difference = np.abs(a[finite] - b[finite]).max() if finite.any() else 0
        assert difference <= allowed * max(1, np.abs(b[finite]).max() if finite.any() else 1), difference


def both(call, wanted=(0, 1, 2)):
    """A function that gives out, lse and the gradients."""

    def loss(*given):
        out, lse = call(*given, return_lse=True)
        weight = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        lse = jnp.where(jnp.isfinite(lse), lse, 0)
        return (out.astype(jnp.float32) * weight).sum() + 0.1 * lse.sum(), (out, lse)

    return jax.jit(jax.value_and_grad(loss, wanted, has_aux=True))


def compare(call, *given, wanted=(0, 1, 2)):
    (_, got), gradients = both(call, wanted)(*given)
    assert all(next(iter(x.devices())).platform == "gpu" for x in (*got, *gradients))
    (_, expected), expected_gradients = on_cpu(both(call, wanted), *given)
    close((got, gradients), (expected, expected_gradients))


def features():
    q, k, v = arrays((2, 150, 4, 64), (2, 200, 2, 64), (2, 200, 2, 64))
    compare(sj.attention, q, k, v)
    compare(partial(sj.attention, causal=True), q, k, v)
    compare(partial(sj.attention, window=(20, 5), softcap=20.0), q, k, v)
    compare(sj.attention, *arrays((1, 64, 2, 64), (1, 64, 2, 64), (1, 64, 2, 64), dtype=jnp.float32))
    (bias,) = arrays((2, 4, 150, 200))
    compare(lambda q, k, v, bias, **o: sj.attention(q, k, v, bias=bias, **o), q, k, v, bias, wanted=(0, 1, 2, 3))
    (sinks,) = arrays((4,), dtype=jnp.float32)
    compare(lambda q, k, v, sinks, **o: sj.attention(q, k, v, sinks=sinks, **o), q, k, v, sinks, wanted=(0, 1, 2, 3))
    used = jnp.array([150, 70], jnp.int32)
    compare(lambda q, k, v, **o: sj.attention(q, k, v, used_q=used, used_k=used, **o), q, k, v)


def functions():
    """Of a score: `visible` is a pass before the kernel, `score` is compiled by NVRTC and has a gradient of its array."""
    q, k, v = arrays((2, 150, 4, 64), (2, 200, 2, 64), (2, 200, 2, 64))
    documents = {"doc": (jnp.arange(200) // 64).astype(jnp.int32)}
    compare(lambda q, k, v, **o: sj.attention(q, k, v, visible="doc[i] == doc[j]", arrays=documents, **o), q, k, v)
    (table,) = arrays((4, 349), dtype=jnp.float32)

    def relative(q, k, v, table, **options):
        return sj.attention(
            q, k, v, score="w * score + table[h][i - j + 199]", arrays={"table": table}, scalars={"w": 0.5}, **options
        )

    compare(relative, q, k, v, table, wanted=(0, 1, 2, 3))


def dropout():
    """What is dropped is the CPU's choice; keys of the program, one a step."""
    q, k, v = arrays((2, 150, 4, 64), (2, 200, 2, 64), (2, 200, 2, 64))
    compare(partial(sj.attention, dropout=0.3, seed=2**40 + 7), q, k, v)

    def steps(q, keys):
        return jax.lax.scan(lambda x, key: (sj.attention(x, k, v, dropout=0.3, seed=key), None), q, keys)[0]

    keys = jax.random.split(jax.random.key(5), 3)
    expected = q
    for low, high in np.asarray(jax.random.key_data(keys)).tolist():
        expected = sj.attention(expected, k, v, dropout=0.3, seed=high << 32 | low)
    close(jax.jit(steps)(q, keys), expected, 1e-6)


def packed():
    q, k, v = arrays((210, 4, 64), (210, 2, 64), (210, 2, 64))
    cu = jnp.array([0, 5, 69, 200], jnp.int32)  # ten rows of no sequence
    compare(lambda q, k, v, **o: sj.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, **o), q, k, v)


def transforms():
    q, k, v = arrays((3, 2, 64, 2, 64), (3, 2, 64, 2, 64), (3, 2, 64, 2, 64))
    mapped = jax.jit(jax.vmap(sj.attention))(q, k, v)
    for n in range(3):
        close(mapped[n], sj.attention(q[n], k[n], v[n]))

    def body(x, _):
        return sj.attention(x, k[0], v[0]), None

    scanned, _ = jax.jit(lambda x: jax.lax.scan(body, x, None, length=4))(q[0])
    x = q[0]
    for _ in range(4):
        x = sj.attention(x, k[0], v[0])
    close(scanned, x)
    out = sj.dot_product_attention(q[0], k[0], v[0], is_causal=True)
    close(out, jax.nn.dot_product_attention(q[0], k[0], v[0], is_causal=True))


def decoding():
    """Few rows and many keys: the split of keys has a workspace."""
    q, k, v = arrays((2, 1, 8, 128), (2, 5000, 2, 128), (2, 5000, 2, 128))
    close(jax.jit(sj.attention)(q, k, v), on_cpu(jax.jit(sj.attention), q, k, v))


def refusals():
    q, k, v = arrays((1, 16, 2, 64), (1, 16, 2, 64), (1, 16, 2, 64))
    for call, sentence in (
        (lambda: sj.attention(q, k, v, kernel="cpu_forward_avx2"), "cpu_forward_avx2"),
        (lambda: sj.attention(*(x.astype(jnp.float32)[..., :63] for x in (q, k, v)), softcap=1e-3), ""),
    ):
        try:
            jax.block_until_ready(jax.jit(call)())
        except Exception as refusal:
            assert sentence in str(refusal), refusal
        else:
            assert not sentence, "nothing was refused"


def main() -> int:
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 77
    for part in (features, functions, dropout, packed, transforms, decoding, refusals):
        try:
            part()
        except Exception:
            print(f"in {part.__name__}:", file=sys.stderr)
            raise
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
