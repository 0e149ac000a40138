#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_fp32.py: fp32 on a GPU: true fp32, three products of tf32 (STROBE_TF32X3) and PyTorch's memory-efficient attention, which
makes fp32 products of tf32 parts too, in one process and on the same tensors.

    python3 bench/cuda_fp32.py LIBSTROBE [LIBSTROBE-OF-TRUE-FP32] [--what fwd,bwd,error] [--seq 512,2k,8k] [--dim 64,128] [--ms 40]

fwd, bwd: 8192 tokens, hidden size 1024; TFLOP/s by the formula of publications, and ratios to true fp32. Calls take turns, L2 is
flushed before each, medians. error: relative error (2-norm over the tensor, against float64) of O, dQ, dK and dV, on N(0, 1) and
with one element in a thousand from N(0, 100) added, 4096 tokens, 4 heads, and the ratio to true fp32's.
Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C
import math
import sys

from abi import Gradients
from cuda_peers import Strobe, medians_ms, number, peer, relative, torch, truth, view

TF32X3 = 2


class Call:
    """Forward and backward of the library on given tensors, [batch, heads, seq, dim]."""

    def __init__(self, strobe, inputs, causal, flags):
        q, k, v, dout = inputs
        self.strobe, self.keep = strobe, inputs
        self.out, self.lse = torch.full_like(q, math.nan), torch.empty(q.shape[:3], device="cuda")
        self.gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
        self.a = strobe.prepare(q, k, v, self.out, self.lse, causal)
        self.a.flags = flags
        self.g = Gradients(struct_size=C.sizeof(Gradients))
        self.g.dout, self.g.dq, self.g.dk, self.g.dv = (view(x, True) for x in (dout, *self.gradients))
        self.work, self.back_work = strobe.workspace(self.a), strobe.workspace(self.a, self.g)
        self.forward()
        self.backward()

    def forward(self):
        self.strobe.forward(self.a, self.work)

    def backward(self):
        self.strobe.backward(self.a, self.g, self.back_work)

    def results(self):
        return [self.out, *self.gradients]


class Peer:
    """The same of PyTorch."""

    def __init__(self, inputs, causal):
        self.leaves, self.dout = [x.detach().requires_grad_() for x in inputs[:3]], inputs[3]
        self.run = peer(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION, *self.leaves, causal)
        self.out = self.run()

    def forward(self):
        with torch.no_grad():
            self.run()

    def backward(self):
        return torch.autograd.grad(self.out, self.leaves, self.dout, retain_graph=True)

    def results(self):
        return [self.out, *self.backward()]


def calls_of(libraries, inputs, causal):
    """True fp32, three products of tf32, PyTorch."""
    return Call(libraries[-1], inputs, causal, 0), Call(libraries[0], inputs, causal, TF32X3), Peer(inputs, causal)


def speeds(libraries, what, dim, seq, causal, budget):
    batch, heads = max(8192 // seq, 1), 1024 // dim
    inputs = [torch.randn(batch, seq, heads, dim, device="cuda").transpose(1, 2) for _ in range(4)]
    calls = calls_of(libraries, inputs, causal)
    flop = 4 * batch * heads * seq * seq * dim / (2 if causal else 1) * (1 if what == "fwd" else 2.5)
    rates = [flop / t / 1e9 for t in medians_ms([getattr(c, "forward" if what == "fwd" else "backward") for c in calls], budget)]
    print(f"{what} d{dim:<3} {'causal' if causal else 'full':6} {seq:6}: fp32 {rates[0]:5.1f}  tf32x3 {rates[1]:5.1f}  "
          f"PyTorch {rates[2]:5.1f}  of fp32's speed {rates[1] / rates[0]:.2f} {rates[2] / rates[0]:.2f}", flush=True)


def errors(libraries, dim, seq, causal, outliers):
    inputs = [torch.randn(max(4096 // seq, 1), seq, 4, dim, device="cuda") for _ in range(4)]
    if outliers:
        inputs = [x + 10 * torch.randn_like(x) * (torch.rand_like(x) < 1e-3) for x in inputs]
    inputs = [x.transpose(1, 2) for x in inputs]
    right = truth(*inputs, causal)
    rows = [relative(c.results(), right) for c in calls_of(libraries, inputs, causal)]
    print(f"error d{dim} {seq}{' outliers' if outliers else ''} {'causal' if causal else 'full'}: O dQ dK dV")
    for name, row in zip(("fp32", "tf32x3", "PyTorch"), rows, strict=True):
        print(f"    {name:8}" + " ".join(f"{x:.3e}" for x in row) + "   of fp32's " +
              " ".join(f"{x / y:.2f}" for x, y in zip(row, rows[0], strict=True)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--what", default="fwd,bwd,error")
    parser.add_argument("--seq", default="512,2k,8k")
    parser.add_argument("--dim", default="64,128")
    parser.add_argument("--error-seq", default="2k")
    parser.add_argument("--ms", type=float, default=40)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    libraries = [Strobe(path, None) for path in options.libraries]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for what in options.what.split(","):
        for dim in (int(d) for d in options.dim.split(",")):
            for causal in (False, True):
                if what == "error":
                    for seq in options.error_seq.split(","):
                        for outliers in (False, True):
                            errors(libraries, dim, number(seq), causal, outliers)
                    continue
                for seq in options.seq.split(","):
                    speeds(libraries, what, dim, number(seq), causal, options.ms)


if __name__ == "__main__":
    main()
