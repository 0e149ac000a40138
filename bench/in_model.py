#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""in_model.py: what a call on the CPU takes between PyTorch's own operators, beside the same call alone.

    python3 bench/in_model.py [--seconds 10] [--tokens 128,512,2048] [--dtypes bfloat16,float32] [--threads 2]
    python3 bench/in_model.py --model [--tokens 1024,4096] [--threads 1] [--dtypes bfloat16,float32]

A step is two matrix products of 512 x 1024 x 1024 and one call, 16 heads of d 64; in the last way the process sleeps 10 ms
before the call. Alone is the call again and again. "Again" is a second call right behind that of the loop: the threads are as
they were, but code and data are in the caches, so the difference is what caches cost. The ways take their turns in one
process, so that all see the same machine; a cell has the quartiles and the ninth decile of the call's time in microseconds,
and the median over the median alone. The one thread has the same two threads' products around it: a call must never be slower,
and what it takes more in the loop is not the threads'. PyTorch is its scaled_dot_product_attention. The same bytes are torch.addcmul(q, k, v), which
reads what attention reads once and writes as much, and computes next to nothing: what it takes more in the loop, any call does that has these tensors.

--model is a whole one: transformers' Llama with random weights, 2 layers, 1024 wide, 16 heads of d 64 that share 4 K/V heads. A prefill
gives the last token's logits, a training step loss and gradients. The ways, in turns: PyTorch's attention, the same call after
strobe.torch.activate(), and a call that returns q, which tells what attention takes of the others. A cell is the median of
seconds, by the clock or with --cpu of the processor, all threads together, and the share of attention. Results are compared with the same model's in float32 by
PyTorch: the relative error (2-norm) of the logits, the difference of the loss, the relative error of all gradients."""

import argparse
import contextlib
import statistics
import time

import numpy as np
import strobe
import strobe.torch as st
import torch
import torch.nn.functional as F

HEADS, DIM = 16, 64


WAYS = ("alone", "in a loop", "again", "after a sleep")


def contestants(tokens, dtype, threads):
    """Each one's call, its threads, and whether they are those of PyTorch's operators; and the products."""
    x = torch.randn(512, 1024, dtype=dtype)
    w = torch.randn(1024, 1024, dtype=dtype)
    q, k, v = torch.randn(3, 1, tokens, HEADS, DIM, dtype=dtype)
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    def strobe_call():
        st.attention(q, k, v)

    def torch_call():
        F.scaled_dot_product_attention(*heads_first)

    def products():
        return x @ w @ w

    def same_bytes():
        torch.addcmul(q, k, v)

    calls = {"Strobe": (strobe_call, threads, True), "one thread": (strobe_call, 1, True), "own workers": (strobe_call, threads, False),
             "PyTorch": (torch_call, threads, True), "same bytes": (same_bytes, threads, True)}  # fmt: skip
    return calls, products


def timed(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def measure(tokens, dtype, seconds, threads):
    calls, products = contestants(tokens, dtype, threads)
    found = {(name, way): [] for name in calls for way in WAYS}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, (call, count, shared) in calls.items():
            st.share_threads(shared)
            strobe.set_num_threads(count)
            for _ in range(3):
                call()
            found[name, "alone"] += [timed(call) for _ in range(8)]
            for _ in range(8):
                products()
                found[name, "in a loop"].append(timed(call))
                found[name, "again"].append(timed(call))
                products()
            for _ in range(4):
                products()
                time.sleep(0.01)
                found[name, "after a sleep"].append(timed(call))
    st.share_threads()
    strobe.set_num_threads(threads)
    return found


def llama(dtype):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HEADS * DIM, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=4,
        vocab_size=4096, max_position_embeddings=8192, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).train()


@contextlib.contextmanager
def attention_by(way):
    """The model's calls of scaled_dot_product_attention go to PyTorch, to Strobe, or to nobody."""
    pytorch = F.scaled_dot_product_attention
    if way == "Strobe":
        st.activate()
    if way == "none":
        F.scaled_dot_product_attention = lambda q, *rest, **named: q
    try:
        yield
    finally:
        F.scaled_dot_product_attention = pytorch
        if way == "Strobe":
            st.deactivate()


def prefill(model, words):
    with torch.inference_mode():
        return [model(words, logits_to_keep=1).logits]


def training_step(model, words):
    model.zero_grad(set_to_none=True)
    loss = model(words, labels=words).loss
    loss.backward()
    return [loss.detach(), torch.cat([x.grad.flatten().float() for x in model.parameters() if x.grad is not None])]


def errors(found, right):
    """Of logits, or of the loss and the gradients."""
    of = [((x.float() - y).norm() / y.norm()).item() for x, y in zip(found, right, strict=True)]
    return " / ".join(f"{x:.1e}" for x in of)


def measure_model(dtype, tokens, rounds, clock, steps):
    model, exact = llama(dtype), llama(torch.float32)
    exact.load_state_dict(model.state_dict())
    words = torch.randint(4096, (1, tokens))
    for step in (prefill, training_step):
        if step.__name__ not in steps:
            continue
        right, wrong, seconds = step(exact, words), {}, {"PyTorch": [], "Strobe": [], "none": []}
        for number in range(rounds + 1):  # the first warms up
            for way, times in seconds.items():
                with attention_by(way):
                    start = clock()
                    result = step(model, words)
                    times.append(clock() - start)
                if number == 0 and way != "none":
                    wrong[way] = errors(result, right)
        median = {way: statistics.median(times[1:]) for way, times in seconds.items()}
        share = {way: 100 * (1 - median["none"] / median[way]) for way in wrong}
        attention = (median["PyTorch"] - median["none"]) / max(median["Strobe"] - median["none"], 1e-9)
        print(
            f"| {str(dtype)[6:]} | {step.__name__.replace('_', ' ')} | {tokens} | {median['PyTorch']:.3f}, {share['PyTorch']:.0f} % "
            f"| {median['Strobe']:.3f}, {share['Strobe']:.0f} % | {median['PyTorch'] / median['Strobe']:.2f} | {attention:.2f} "
            f"| {wrong['PyTorch']} | {wrong['Strobe']} |", flush=True,
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="for each length")
    parser.add_argument("--tokens")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--rounds", type=int, default=5, help="of the model")
    parser.add_argument("--steps", default="prefill,training_step", help="of the model")
    parser.add_argument("--threads", type=int, default=strobe.get_num_threads())
    parser.add_argument("--cpu", action="store_true", help="the model's processor time: for a machine that others use")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    torch.set_num_threads(options.threads)
    strobe.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {strobe.build_info()}, {options.threads} threads\n")
    if options.model:
        print("| dtype | step | tokens | PyTorch, s | Strobe, s | ratio | of attention alone | errors, PyTorch | errors, Strobe |")
        print("|---|---|---|---|---|---|---|---|---|")
        for dtype in options.dtypes.split(","):
            for tokens in map(int, (options.tokens or "1024,4096").split(",")):
                measure_model(getattr(torch, dtype), tokens, options.rounds, clock, options.steps.split(","))
        return
    print("| dtype | tokens | | alone | in a loop | over alone | again | over alone | after a sleep | over alone |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for dtype in options.dtypes.split(","):
        for tokens in map(int, (options.tokens or "128,512,2048").split(",")):
            found = measure(tokens, getattr(torch, dtype), options.seconds, options.threads)
            for name in dict.fromkeys(name for name, _ in found):
                marks = {way: np.percentile(found[name, way], (25, 50, 75, 90)) for way in WAYS}
                cells = [" / ".join(f"{x:.0f}" for x in marks[way]) for way in WAYS]
                over = [f"{marks[way][1] / marks['alone'][1]:.2f}" for way in WAYS]
                rest = " | ".join(f"{cells[n]} | {over[n]}" for n in (1, 2, 3))
                print(f"| {dtype} | {tokens} | {name} | {cells[0]} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
