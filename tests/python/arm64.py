# SPDX-License-Identifier: BSD-3-Clause
"""arm64.py: what is run of the wheel for 64-bit ARM, under qemu, by Debian's CPython of that architecture with NumPy:
the extension loads, threads and kernels run, and results and gradients are those of NumPy in float64.
tests/builds/release.sh runs it."""

import platform

import numpy as np
import strobe

assert platform.machine() == "aarch64", platform.machine()
random = np.random.default_rng(0)
q, k, v, dout = (random.standard_normal((2, n, h, 16), dtype=np.float32) for n, h in ((33, 4), (40, 2), (40, 2), (33, 4)))
out, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
dq, dk, dv = strobe.attention_backward(dout, q, k, v, out, lse, causal=True)[:3]

q64, k64, v64, dout64 = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, dout))
k64, v64 = k64.repeat(2, axis=1), v64.repeat(2, axis=1)
seen = np.arange(40)[None, :] <= np.arange(33)[:, None] + 7
scores = np.where(seen, q64 @ k64.transpose(0, 1, 3, 2) / 4, -np.inf)
p = np.exp(scores - scores.max(-1, keepdims=True))
p /= p.sum(-1, keepdims=True)
expected = p @ v64
dp = dout64 @ v64.transpose(0, 1, 3, 2)
ds = p * (dp - (dout64 * expected).sum(-1, keepdims=True)) / 4
pair = lambda x: x.reshape(2, 2, 2, 40, 16).sum(2)  # noqa: E731 - query heads that share a key head
for name, found, wanted in (
    ("out", out, expected),
    ("dq", dq, ds @ k64),
    ("dk", dk, pair(ds.transpose(0, 1, 3, 2) @ q64)),
    ("dv", dv, pair(p.transpose(0, 1, 3, 2) @ dout64)),
):
    error = np.abs(found.astype(np.float64).transpose(0, 2, 1, 3) - wanted).max()
    assert error < 1e-5 * max(1, np.abs(wanted).max()), (name, error)
chosen = [line for line in strobe.explain(q, k, v, causal=True).splitlines() if "chosen" in line and "neon" in line]
assert chosen, strobe.explain(q, k, v, causal=True)
print("the wheel for ARM computes,", chosen[0])
