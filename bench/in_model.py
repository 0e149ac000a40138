#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""in_model.py: what a call on the CPU takes between PyTorch's own operators, beside the same call alone.

    python3 bench/in_model.py [--seconds 4] [--tokens 128,512,2048] [--threads 2]

A step is two matrix products of 512 x 1024 x 1024 and one call in bf16, 16 heads of d 64; in the second way the process sleeps
10 ms before the call. Alone is the call again and again. The ways take their turns in one process, so that all see the
same machine; a cell has the quartiles of the call's time in microseconds and the median over the median alone. The one
thread's time is there because a call must never be slower. PyTorch is its scaled_dot_product_attention."""

import argparse
import time

import numpy as np
import strobe
import strobe.torch as st
import torch
import torch.nn.functional as F

HEADS, DIM = 16, 64


def ways(tokens):
    x = torch.randn(512, 1024, dtype=torch.bfloat16)
    w = torch.randn(1024, 1024, dtype=torch.bfloat16)
    q, k, v = torch.randn(3, 1, tokens, HEADS, DIM, dtype=torch.bfloat16)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    def strobe_call():
        st.attention(q, k, v)

    def torch_call():
        F.scaled_dot_product_attention(*heads_first)

    def products():
        return x @ w @ w

    return {"Strobe": strobe_call, "Strobe's own workers": strobe_call, "PyTorch": torch_call}, products


def timed(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def measure(tokens, seconds, threads):
    calls, products = ways(tokens)
    found = {(name, way): [] for name in calls for way in ("alone", "one thread", "in a loop", "after a sleep")}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            st.share_threads(name == "Strobe")
            for _ in range(3):
                call()
            found[name, "alone"] += [timed(call) for _ in range(8)]
            for _ in range(8):
                products()
                found[name, "in a loop"].append(timed(call))
            for _ in range(4):
                products()
                time.sleep(0.01)
                found[name, "after a sleep"].append(timed(call))
            if name != "PyTorch":
                strobe.set_num_threads(1)
                found[name, "one thread"] += [timed(call) for _ in range(3)]
                strobe.set_num_threads(threads)
    st.share_threads()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4, help="for each length")
    parser.add_argument("--tokens", default="128,512,2048")
    parser.add_argument("--threads", type=int, default=strobe.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    strobe.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {strobe.build_info()}, {options.threads} threads\n")
    print("| tokens | | alone | one thread | in a loop | over alone | after a sleep | over alone |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens in map(int, options.tokens.split(",")):
        found = measure(tokens, options.seconds, options.threads)
        for name in dict.fromkeys(name for name, _ in found):
            quartiles = {
                way: np.percentile(found[name, way] or [np.nan], (25, 50, 75))
                for way in ("alone", "one thread", "in a loop", "after a sleep")
            }
            cells = {way: " / ".join(f"{x:.0f}" for x in q) for way, q in quartiles.items()}
            over = {way: quartiles[way][1] / quartiles["alone"][1] for way in ("in a loop", "after a sleep")}
            one = "" if name == "PyTorch" else f"{quartiles['one thread'][1]:.0f}"
            print(
                f"| {tokens} | {name} | {cells['alone']} | {one} | {cells['in a loop']} | {over['in a loop']:.2f} "
                f"| {cells['after a sleep']} | {over['after a sleep']:.2f} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
