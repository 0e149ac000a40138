#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cpu_ragged.py: batches of short and ragged sequences on the CPU, packed (cu_seqlens), beside dense batches and PyTorch's ways.

    python3 bench/cpu_ragged.py [--dtype bfloat16] [--dim 64] [--threads 1] [--rounds 5] [--cpu] [--no-peers] [--only "96 of 128"]

16 heads. "Dense alike" is what dense batches take for as many full tiles: each sequence costs what one of its length, rounded
up to 64 rows, costs in a batch of that length alone and of as many tokens; so above 1 is possible, where short ends cost less than
full ones. PyTorch: a call of scaled_dot_product_attention for each sequence; one call on sequences padded to the longest, with a
mask where they differ; one on nested tensors, once (jagged; it takes no causal mask here). Calls take turns; medians. "Dense /
packed" is the median of the ratios of a round, with their quartiles, since a machine's speed changes from round to round. --cpu: the
processor's time, all threads together, for a machine that others use."""

import argparse
import time

import numpy as np
import strobe
import strobe.torch as st
import torch
import torch.nn.functional as F

HEADS, TILE = 16, 64


def batches(rng):
    return {
        "96 of 128": [128] * 96,
        "48 of 1 to 512": rng.integers(1, 513, 48).tolist(),
        "256 of 1 to 64": rng.integers(1, 65, 256).tolist(),
    }


def dense(lengths, dim, dtype, causal):
    """A call for each length rounded up, its sequences, and how many of them the batch has."""
    full = [-(-n // TILE) * TILE for n in lengths]
    calls = {}
    for length in sorted(set(full)):
        sequences = max(2, sum(lengths) // length)
        q, k, v = torch.randn(3, sequences, length, HEADS, dim, dtype=dtype)
        call = lambda q=q, k=k, v=v: st.attention(q, k, v, causal=causal)  # noqa: E731
        calls[f"dense {length}"] = (call, full.count(length) / sequences)
    return calls


def pytorch(lengths, q, k, v, causal):
    parts = [x.split(lengths) for x in (q, k, v)]
    each = [tuple(x.transpose(0, 1)[None] for x in qkv) for qkv in zip(*parts, strict=True)]
    padded = [torch.nn.utils.rnn.pad_sequence(list(x), batch_first=True).transpose(1, 2) for x in parts]
    longest, mask = max(lengths), None
    if min(lengths) < longest:
        mask = (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None, :]
        if causal:
            mask = mask & torch.ones(longest, longest, dtype=torch.bool).tril()
    calls = {
        "a call each": lambda: [F.scaled_dot_product_attention(*x, is_causal=causal) for x in each],
        "padded": lambda: F.scaled_dot_product_attention(*padded, attn_mask=mask, is_causal=causal and mask is None),
    }
    if not causal:
        nested = [torch.nested.nested_tensor(list(x), layout=torch.jagged).transpose(1, 2) for x in parts]
        calls["nested"] = lambda: F.scaled_dot_product_attention(*nested)
    return calls


def measure(lengths, dim, dtype, causal, rounds, clock, with_peers):
    """Milliseconds of the packed call, of dense batches for as many tiles, the ratios of both, and of PyTorch's ways."""
    q, k, v = torch.randn(3, sum(lengths), HEADS, dim, dtype=dtype)
    cu, longest = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32), max(lengths)
    limits = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    tiles = dense(lengths, dim, dtype, causal)
    peers = pytorch(lengths, q, k, v, causal) if with_peers else {}
    calls = {"packed": lambda: st.attention(q, k, v, causal=causal, **limits)}
    calls |= {name: call for name, (call, _) in tiles.items()} | peers
    times = {name: [] for name in calls}
    for turn in range(rounds + 1):  # the first warms up
        for name, call in calls.items():
            if name == "nested" and turn > 1:
                continue
            start = clock()
            call()
            if turn > 0:
                times[name].append((clock() - start) * 1e3)
    median = {name: float(np.median(x)) for name, x in times.items()}
    alike = sum(np.array(times[name]) * share for name, (_, share) in tiles.items())
    ratios = np.percentile(alike / np.array(times["packed"]), (25, 50, 75))
    return median["packed"], float(np.median(alike)), ratios, {name: median[name] for name in peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="the processor's time")
    parser.add_argument("--no-peers", action="store_true", help="without PyTorch's ways")
    parser.add_argument("--only", help="of the batches, one")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    torch.set_num_threads(options.threads)
    strobe.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {strobe.build_info()}, {options.threads} threads, {options.dtype}, d {options.dim}\n")
    print("| sequences | | packed, ms | thousand tokens a second | dense alike, ms | dense / packed | PyTorch, ms, and over packed |")
    print("|---|---|---|---|---|---|---|")
    for name, lengths in batches(np.random.default_rng(1)).items():
        if options.only not in (None, name):
            continue
        for causal in (False, True):
            dtype = getattr(torch, options.dtype)
            packed, alike, ratios, peers = measure(lengths, options.dim, dtype, causal, options.rounds, clock, not options.no_peers)
            quartiles = f"{ratios[1]:.3f} ({ratios[0]:.3f} to {ratios[2]:.3f})"
            others = ", ".join(f"{peer} {ms:.1f} ({ms / packed:.1f})" for peer, ms in peers.items())
            print(
                f"| {name} | {'causal' if causal else 'full'} | {packed:.2f} | {sum(lengths) / packed:.0f} | {alike:.2f} "
                f"| {quartiles} | {others} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
