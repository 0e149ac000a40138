#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_scores.py: functions of a score on a GPU, beside the plain call, the built-in feature and FlexAttention, in one process
and on the same tensors.

    python3 bench/cuda_scores.py [--what fwd,bwd] [--dim 128] [--seq 4096] [--ms 40] [--flex] [--only NAME]

bf16, batch 4, 16 heads, by strobe.torch. Milliseconds by CUDA events, calls take turns, L2 is flushed before each, medians; over
is the time of what a function is compared with over the function's. First: seconds of the first call, which compiles the
kernel unless it is on disk (STROBE_DISK_CACHE=0 forgets the disk), and of FlexAttention's. O is compared with FlexAttention's.
--flex compiles FlexAttention, some ten seconds a row. Needs PyTorch with a GPU (exit 77 otherwise)."""

import argparse
import functools
import time

import cuda_peers
import strobe.torch as st
from cuda_peers import medians_ms, torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS = 4, 16
cuda_peers.HEAD_START = 3_000_000  # a backward through Python's operators takes the host most of a millisecond


class Function:
    """texts: of strobe.torch.attention. beside: options of the built-in feature, or of what it is compared with."""

    def __init__(self, name, texts=None, beside=None, score_mod=None, mask_mod=None):
        self.name, self.texts, self.beside = name, texts or {}, beside or {}
        self.score_mod, self.mask_mod = score_mod, mask_mod


def functions(seq):
    table = torch.randn(HEADS, 2 * seq - 1, device="cuda")
    slope = torch.exp2(-8 * torch.arange(1, HEADS + 1, device="cuda") / HEADS)
    document = (torch.arange(seq, device="cuda") // (seq // 8)).to(torch.int32)
    yield Function("plain")
    yield Function(
        "relative positions", {"score": f"score + table[h][i - j + {seq - 1}]", "arrays": {"table": table}},
        score_mod=lambda s, b, h, i, j: s + table[h, i - j + seq - 1],
    )  # fmt: skip
    yield Function("affine", {"score": "score - 0.5*abs(i - j)"}, score_mod=lambda s, b, h, i, j: s - 0.5 * (i - j).abs())
    yield Function(
        "ALiBi", {"score": "score - slope[h] * abs(i - j)", "arrays": {"slope": slope}}, {"alibi_slopes": slope},
        score_mod=lambda s, b, h, i, j: s - slope[h] * (i - j).abs(),
    )  # fmt: skip
    yield Function(
        "softcap", {"score": "20 * tanh(score / 20)"}, {"softcap": 20.0},
        score_mod=lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    )  # fmt: skip
    yield Function("causal", {"visible": "j <= i"}, {"causal": True}, mask_mod=lambda b, h, i, j: i >= j)
    yield Function(
        "sliding window", {"visible": "j <= i && i - j <= 1024"}, {"causal": True, "window": (1024, 0)},
        mask_mod=lambda b, h, i, j: (i >= j) & (i - j <= 1024),
    )  # fmt: skip
    yield Function(
        "documents", {"visible": "doc[i] == doc[j]", "arrays": {"doc": document}},
        {"mask": (document[:, None] == document[None, :])[None, None]},
        mask_mod=lambda b, h, i, j: document[i] == document[j],
    )  # fmt: skip
    yield Function(
        "prefix-LM", {"visible": "j <= i || j < 512"}, {"causal": True}, mask_mod=lambda b, h, i, j: (i >= j) | (j < 512)
    )


def call_of(forward, tensors, what):
    """Of a forward or a backward, after its first call; the seconds that this took; and O."""
    q, k, v, dout = tensors
    torch.cuda.synchronize()
    start = time.perf_counter()
    if what == "fwd":
        out = forward(q, k, v)
        call = functools.partial(forward, q, k, v)
    else:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = forward(*leaves)
        call = functools.partial(torch.autograd.grad, out, leaves, dout, retain_graph=True)
        call()
    torch.cuda.synchronize()
    return call, time.perf_counter() - start, out.detach()


def flex_forward(function, seq):
    mask = None
    if function.mask_mod:
        mask = create_block_mask(function.mask_mod, None, None, seq, seq, device="cuda", _compile=True)
    compiled = torch.compile(flex_attention, dynamic=False)

    def forward(q, k, v):
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return compiled(*heads_first, score_mod=function.score_mod, block_mask=mask).transpose(1, 2)

    return forward


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="fwd,bwd")
    parser.add_argument("--dim", default="128")
    parser.add_argument("--seq", default="4096")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--flex", action="store_true")
    parser.add_argument("--only")
    options = parser.parse_args()
    torch.manual_seed(0)
    for dim in map(int, options.dim.split(",")):
        for seq in map(int, options.seq.split(",")):
            tensors = [torch.randn(BATCH, seq, HEADS, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
            for what in options.what.split(","):
                print(f"\n{what}, d {dim}, {seq} tokens")
                print("| | ms | compared with, ms | over | first, s | FlexAttention, ms | over | first, s | O differs by |")
                print("|---|---|---|---|---|---|---|---|---|")
                for function in functions(seq):
                    if options.only and function.name not in ("plain", options.only):
                        continue
                    torch._dynamo.reset()
                    forward = functools.partial(st.attention, **function.texts)
                    call, first, out = call_of(forward, tensors, what)
                    calls = [call, call_of(functools.partial(st.attention, **function.beside), tensors, what)[0]]
                    flex_first = other = None
                    if options.flex:
                        flex, flex_first, other = call_of(flex_forward(function, seq), tensors, what)
                        calls.append(flex)
                    times = medians_ms(calls, options.ms)
                    cells = [f"{times[0]:.3f}", f"{times[1]:.3f}", f"{times[1] / times[0]:.2f}", f"{first:.2f}"]
                    if options.flex:
                        differs = ((out.float() - other.float()).norm() / other.float().norm()).item()
                        cells += [f"{times[2]:.3f}", f"{times[2] / times[0]:.2f}", f"{flex_first:.1f}", f"{differs:.1e}"]
                    print(f"| {function.name} | " + " | ".join(cells) + " |", flush=True)


main()
