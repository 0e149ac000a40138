# SPDX-License-Identifier: BSD-3-Clause
"""The GPT of train_gpt.py, trained with every sequence over the processes of torchrun: context parallelism, on the CPU by gloo
or on GPUs by NCCL.

    pip install torch==2.13.0 && pip install .
    torchrun --nproc-per-node 4 examples/train_gpt_ranks.py                 and without torchrun: one process
    torchrun --nproc-per-node 4 examples/train_gpt_ranks.py --device cuda   a GPU a process; strobe built with CUDA

Each process has a part of the positions of every sequence (zigzag), all of the weights, and the gradient of its part of the loss;
gradients are summed over the processes. The first process then trains alone on the same batches, and the two loss curves are
compared: what differs is rounding.
"""

import argparse
import os
import sys
import time
from functools import partial

import gpt
import options
import strobe.torch as st
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


def over_ranks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of (batch, heads, rows, dim), of which this process has its rows."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return st.context_parallel_attention(q, k, v, causal=True).transpose(1, 2)


def train(attention, ids: Tensor, characters: int, steps: int, cut: bool) -> list[float]:
    """Loss of each step. cut: this process has its rows of each sequence."""
    size = gpt.SIZE["cpu"]
    torch.manual_seed(0)
    model = gpt.GPT(characters, size, attention).to(ids.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.rate, weight_decay=0.01)
    places = (st.shard_positions(size.context) if cut else torch.arange(size.context)).to(ids.device)
    losses = []
    for batch in gpt.batches(ids, size, steps):
        text, labels = batch[:, places], batch[:, places + 1]
        logits = model(text, places)
        # Of the mean over all characters, this process's share.
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (size.batch * size.context)
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        if cut:
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            dist.all_reduce(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=options.count, default=60)
    parser.add_argument("--tolerance", type=float, default=0.01, help="of the loss of each step")
    parser.add_argument("--device", type=options.device, metavar="cpu|cuda", default="cpu")
    a = parser.parse_args()
    backend = {"cpu": "gloo", "cuda": "nccl"}[a.device]
    if a.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    source = gpt.text()
    alphabet = sorted(set(source))
    ids = torch.tensor([alphabet.index(c) for c in source], device=a.device)
    start = time.perf_counter()
    losses = train(over_ranks, ids, len(alphabet), a.steps, cut=True)
    seconds, ranks, rank = time.perf_counter() - start, dist.get_world_size(), dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    if rank > 0:
        return 0
    alone = train(partial(st.scaled_dot_product_attention, is_causal=True), ids, len(alphabet), a.steps, cut=False)
    worst = max(abs(x - y) for x, y in zip(losses, alone, strict=True))
    for step in sorted({*range(0, a.steps, 10), a.steps - 1}):
        print(f"step {step:4d}  loss {losses[step]:.6f} over {ranks} processes, {alone[step]:.6f} in one")
    print(f"{ranks} processes, {a.steps} steps in {seconds:.1f} s; the losses differ by {worst:.1e} at most")
    return 0 if worst < a.tolerance and abs(losses[0] - alone[0]) < (1e-5 if a.device == "cpu" else 1e-4) else 1


if __name__ == "__main__":
    sys.exit(main())
