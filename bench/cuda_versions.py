#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_versions.py: several builds of the library beside each other, in one process and on the same tensors: whether a change
made a call faster or slower, and what it did to the error.

    python3 bench/cuda_versions.py BEFORE/libstrobe.so AFTER/libstrobe.so ... [--what fwd,bwd,error] [--seq 512,2k,8k]
                                   [--dim 64,128,256] [--heads 32/8,8/1] [--ms 40] [--error-seq 2k] [--data FILE]

fwd, bwd: bf16, 16384 tokens, hidden size 2048, as cuda_peers.py, or with --heads one sequence of so many query and K/V heads; TFLOP/s of each library and its ratio to the first; calls take
turns, L2 is flushed before each, medians. bwd*: in a fixed order. Last the geometric means and the least ratio.
error: relative error (2-norm over the tensor, against float64) of O, dQ, dK and dV of each library and of PyTorch's
FlashAttention-2 and cuDNN, on N(0, 1) and with one element in a thousand from N(0, 100) added, 4096 tokens, 8 heads.
Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C
import json
import math
import sys

from abi import Gradients
from cuda_peers import DETERMINISTIC, PEERS, Strobe, medians_ms, number, peer, relative, torch, truth, view


class Call:
    """Forward and backward of one library on given tensors, [batch, heads, seq, dim]."""

    def __init__(self, strobe, q, k, v, dout, causal, flags=0):
        self.strobe = strobe
        self.out, self.lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
        self.a = strobe.prepare(q, k, v, self.out, self.lse, causal)
        self.gradients = [torch.empty_like(x) for x in (q, k, v)]
        self.g = Gradients(struct_size=C.sizeof(Gradients))
        self.g.dout, self.g.dq, self.g.dk, self.g.dv = (view(x, True) for x in (dout, *self.gradients))
        self.work = strobe.workspace(self.a)
        self.a.flags = flags
        self.back_work = strobe.workspace(self.a, self.g)
        self.keep = (q, k, v, dout)
        self.forward()

    def forward(self):
        self.strobe.forward(self.a, self.work)

    def backward(self):
        self.strobe.backward(self.a, self.g, self.back_work)


def speeds(libraries, what, dim, seq, causal, budget, grouped=""):
    """A row: TFLOP/s of each library, and ratios to the first. grouped: heads of q and of K and V, such as "32/8"."""
    batch, heads, heads_kv = (1, *map(int, grouped.split("/"))) if grouped else (16384 // seq, 2048 // dim, 2048 // dim)
    inputs = [torch.randn(batch, seq, h, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
              for h in (heads, heads_kv, heads_kv, heads)]
    calls = [Call(s, *inputs, causal, DETERMINISTIC if what == "bwd*" else 0) for s in libraries]
    flop = 4 * batch * heads * seq * seq * dim / (2 if causal else 1) * (1 if what == "fwd" else 2.5)
    rates = [flop / t / 1e9 for t in medians_ms([c.forward if what == "fwd" else c.backward for c in calls], budget)]
    print(f"{what:4} d{dim:<3} {grouped:5} {'causal' if causal else 'full':6} {seq:6}: " + "  ".join(f"{r:6.1f}" for r in rates) +
          "   ratios " + " ".join(f"{r / rates[0]:.3f}" for r in rates[1:]), flush=True)
    return [r / rates[0] for r in rates]


def summary(what, rows):
    for n in range(1, len(rows[0])):
        ratios = [r[n] for r in rows]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{what}: library {n + 1} over library 1: geometric mean {mean:.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


def normal(dim, seq, outliers):
    """q, k, v, dout: as many batch entries as make 4096 tokens, 8 heads; N(0, 1), and N(0, 100) added to one in a thousand."""
    inputs = [torch.randn(max(4096 // seq, 1), seq, 8, dim, device="cuda") for _ in range(4)]
    if outliers:
        inputs = [x + 10 * torch.randn_like(x) * (torch.rand_like(x) < 1e-3) for x in inputs]
    return [x.bfloat16().transpose(1, 2) for x in inputs]


def real(path):
    """q, k, v of both layers of examples/data/minilm_qkv.safetensors, and a random dout."""
    with open(path, "rb") as file:
        tensors = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
    for layer in ("layer0", "layer5"):
        cuts = [tensors[f"{layer}.{name}"] for name in "qkv"]
        inputs = [data[c["data_offsets"][0] // 4 : c["data_offsets"][1] // 4].view(c["shape"]).cuda() for c in cuts]
        inputs.append(torch.randn_like(inputs[0]))
        yield layer, [x.bfloat16().transpose(1, 2) for x in inputs]


def errors(libraries, inputs, causal, label):
    """Prints the errors of each library and peer, and the libraries' greatest ratio to FlashAttention-2's."""
    right = truth(*inputs, causal)
    print(f"error {label} {'causal' if causal else 'full'}: O dQ dK dV")
    rows = {}
    for backend in PEERS:
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        out = peer(backend, *leaves, causal)()
        gradients = torch.autograd.grad(out, leaves, inputs[3])
        rows[backend.name.split("_")[0].lower()] = relative([out, *gradients], right)
    for n, strobe in enumerate(libraries):
        call = Call(strobe, *inputs, causal)
        call.backward()
        rows[f"library {n + 1}"] = relative([call.out, *call.gradients], right)
    for name, row in rows.items():
        ratios = [x / y for x, y in zip(row, rows["flash"], strict=True)]
        print(f"    {name:10} " + " ".join(f"{x:.3e}" for x in row) + "   of FlashAttention-2's " +
              " ".join(f"{x:.3f}" for x in ratios), flush=True)


def all_errors(libraries, dims, seqs):
    for dim in dims:
        for seq in seqs:
            for causal, outliers in ((False, False), (True, False), (False, True), (True, True)):
                errors(libraries, normal(dim, seq, outliers), causal, f"d{dim} {seq}{' outliers' if outliers else ''}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--what", default="fwd,bwd,error")
    parser.add_argument("--seq", default="512,1k,2k,4k,8k,16k")
    parser.add_argument("--dim", default="64,128,256")
    parser.add_argument("--heads", default="", help="one sequence of so many heads of q and of K and V: 32/8,8/1")
    parser.add_argument("--error-seq", default="2k")
    parser.add_argument("--data", help="examples/data/minilm_qkv.safetensors: errors on real queries, keys and values too")
    parser.add_argument("--ms", type=float, default=40)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    libraries = [Strobe(path, None) for path in options.libraries]
    dims = [int(d) for d in options.dim.split(",")]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for what in options.what.split(","):
        if what == "error":
            all_errors(libraries, dims, [number(seq) for seq in options.error_seq.split(",")])
            for layer, inputs in real(options.data) if options.data else ():
                errors(libraries, inputs, False, f"{layer} of {options.data}")
            continue
        summary(what, [speeds(libraries, what, dim, number(seq), causal, options.ms, grouped) for dim in dims
                       for grouped in options.heads.split(",") for causal in (False, True) for seq in options.seq.split(",")])


if __name__ == "__main__":
    main()
