# SPDX-License-Identifier: BSD-3-Clause
"""strobe.jax.dot_product_attention beside jax.nn's, both compiled by jax.jit, on this CPU, or on a GPU beside jax.nn's by cuDNN.

    python bench/jax_peers.py [--device cuda] [--rounds 9] [--json FILE]

Each figure is the least of rounds in which the two take turns; JAX's threads are its own choice, Strobe's are as many as JAX has.
On a GPU a round is twenty calls before the program waits. The largest difference of the results stands beside the times.
"""

import argparse
import json
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import strobe
import strobe.jax

# batch, heads of q, heads of k and v, tokens, dim
SHAPES = ((1, 1, 1, 16, 64), (1, 8, 8, 128, 64), (4, 8, 8, 512, 64), (1, 16, 4, 2048, 128))
DTYPES = (jnp.float32, jnp.bfloat16)
CUDA_SHAPES = ((1, 8, 8, 128, 64), (8, 12, 12, 1024, 64), (2, 16, 4, 4096, 128), (1, 16, 16, 16384, 128))


def milliseconds(call, arguments, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        result = call(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter_ns() - start) / count / 1e6


def row(shape: tuple, dtype, causal: bool, rounds: int, device: str) -> dict:
    batch, heads, heads_kv, tokens, dim = shape
    random = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(random.standard_normal((batch, tokens, n, dim), dtype=np.float32)).astype(dtype)
        for n in (heads, heads_kv, heads_kv)
    )
    calls = {}
    peer = jax.nn.dot_product_attention
    if device == "cuda":
        peer = partial(peer, implementation="cudnn")
    for name, attention in (("strobe", strobe.jax.dot_product_attention), ("jax.nn", peer)):

        def forward(q, k, v, attention=attention):
            return attention(q, k, v, is_causal=causal)

        def loss(q, k, v, forward=forward):
            return forward(q, k, v).astype(jnp.float32).sum()

        calls[name, "forward"] = jax.jit(forward)
        calls[name, "and backward"] = jax.jit(jax.grad(loss, (0, 1, 2)))
    results = {key: jax.block_until_ready(call(q, k, v)) for key, call in calls.items()}
    difference = float(
        jnp.abs(results["strobe", "forward"].astype(jnp.float32) - results["jax.nn", "forward"].astype(jnp.float32)).max()
    )
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, call in calls.items():
            count = 20 if device == "cuda" else 1
            least[key] = min(least[key], *(milliseconds(call, (q, k, v), count) for _ in range(3)))
    return {
        "shape": shape,
        "dtype": jnp.dtype(dtype).name,
        "causal": causal,
        "difference": difference,
        "ms": {f"{name}, {what}": ms for (name, what), ms in least.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="write the numbers; - instead of the table")
    a = parser.parse_args()
    jax.config.update("jax_platforms", "cuda,cpu" if a.device == "cuda" else "cpu")
    shapes, dtypes = (CUDA_SHAPES, DTYPES[1:]) if a.device == "cuda" else (SHAPES, DTYPES)
    rows = []
    if a.json != "-":
        print(
            f"JAX {jax.__version__}, {jax.devices()[0]}, {strobe.get_num_threads()} threads; ms of Strobe / jax.nn, "
            "and jax.nn's over Strobe's"
        )
        print(f"{'batch heads kv tokens dim':<27}{'':>16}{'forward':>22}{'':>8}{'and backward':>22}{'':>8}   difference")
    for shape in shapes:
        for dtype in dtypes:
            for causal in (False, True):
                made = row(shape, dtype, causal, a.rounds, a.device)
                rows.append(made)
                if a.json == "-":
                    continue
                text = f"{' '.join(map(str, shape)):<27}{made['dtype'] + (' causal' if causal else ''):>16}"
                for what in ("forward", "and backward"):
                    ours, theirs = made["ms"][f"strobe, {what}"], made["ms"][f"jax.nn, {what}"]
                    text += f"{f'{ours:.3f} / {theirs:.3f}':>22}{theirs / ours:>7.1f}x"
                print(text + f"{made['difference']:>13.1e}", flush=True)
    if a.json == "-":
        json.dump(rows, sys.stdout, indent=1)
    elif a.json:
        with open(a.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
