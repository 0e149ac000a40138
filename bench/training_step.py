#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""training_step.py: a whole training step on a GPU, by the attention that it calls.

    python3 bench/training_step.py [--rounds 20] [--dtype bfloat16|float32] [--json FILE]

The model is a decoder of six layers (LayerNorm, projections, causal attention, an MLP four times as wide with GELU); a step is
forward, backward and fused AdamW, in eager mode. The ways are PyTorch's attention by cuDNN, by its FlashAttention, or of float32 by its
memory-efficient attention, which is all that takes it; strobe.torch's scaled_dot_product_attention; and PyTorch's call after
strobe.torch.activate(). They take turns in one process; a figure is the
median of the rounds, each some steps back to back with one synchronisation, so that it is the slower of host and GPU. "host" is
the time until the last launch of such a round. The loss of the first step stands beside it: all ways begin with the same
weights."""

import argparse
import contextlib
import json
import statistics
import sys
import time

import strobe.torch as st
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# width, heads, batch, tokens
PROBLEMS = ((512, 8, 4, 256), (768, 12, 8, 1024), (1024, 16, 4, 2048), (2048, 16, 2, 8192))
LAYERS, STEPS, WORDS = 6, 4, 512


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x, attention):
        batch, tokens, width = x.shape
        q, k, v = self.projections(self.before(x)).view(batch, tokens, 3, self.heads, -1).unbind(2)
        y = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.between(x))


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, words, attention):
        x = self.words(words)
        for block in self.blocks:
            x = block(x, attention)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), words.flatten())


@contextlib.contextmanager
def activated():
    st.activate()
    try:
        yield
    finally:
        st.deactivate()


def ways_of(dtype):
    """Each way's call, and what it is called within."""
    backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    if dtype == torch.float32:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    ways = {
        f"PyTorch, {name}": (F.scaled_dot_product_attention, lambda b=backend: sdpa_kernel(b)) for name, backend in backends.items()
    }
    ways["strobe.torch"] = (st.scaled_dot_product_attention, contextlib.nullcontext)
    ways["PyTorch, activate()"] = (F.scaled_dot_product_attention, activated)
    return ways


def measure(width, heads, batch, tokens, rounds, dtype):
    """Milliseconds of a step and of its host's part, and the first loss, of each way."""
    runs, ways = {}, ways_of(dtype)
    words = torch.randint(WORDS, (batch, tokens), device="cuda")
    for name in ways:
        torch.manual_seed(0)
        model = Model(width, heads).to("cuda", dtype)
        runs[name] = (model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), [], [], [])

    def step(model, optimiser, attention):
        loss = model(words, attention)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    for n in range(rounds + 1):
        for name, (attention, way) in ways.items():
            model, optimiser, total, host, losses = runs[name]
            with way():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(STEPS):
                    loss = step(model, optimiser, attention)
                    if n == 0 and not losses:
                        losses.append(loss.item())
                launched = time.perf_counter()
                torch.cuda.synchronize()
                end = time.perf_counter()
            if n > 0:
                total.append((end - start) / STEPS * 1000)
                host.append((launched - start) / STEPS * 1000)
    return {
        name: {"ms": statistics.median(total), "host_ms": statistics.median(host), "loss": losses[0]}
        for name, (_, _, total, host, losses) in runs.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--json", metavar="FILE", help="write the numbers too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("training_step: there is no GPU here that PyTorch can use")
        return 77
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {LAYERS} layers, {options.dtype}")
    results = {}
    for width, heads, batch, tokens in PROBLEMS:
        problem = f"{width} wide, {heads} heads, {batch} x {tokens} tokens"
        results[problem] = measure(width, heads, batch, tokens, options.rounds, getattr(torch, options.dtype))
        print(f"\n{problem:<44}{'step':>10}{'host':>10}{'loss':>10}")
        for name, row in results[problem].items():
            print(f"{name:<44}{row['ms']:>7.2f} ms{row['host_ms']:>7.2f} ms{row['loss']:>10.5f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
