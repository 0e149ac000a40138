#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_features.py: what each feature costs on a GPU, beside cuDNN and FlexAttention where they have it, in one process and on the
same tensors, with each one's error.

    python3 bench/cuda_features.py LIBSTROBE [LIBSTROBE ...] [--what fwd,bwd] [--dim 128] [--seq 4k] [--ms 40]
                                   [--only softcap,bias] [--flex] [--cudnn]

bf16, batch 4, 16 heads; TFLOP/s, of the share that a causal mask shows, and the share of plain speed. Calls take turns, L2 is
flushed before each, medians. The error is that of one head against float64 (2-norm over its tensor): O's, in a backward the
largest of dQ's, dK's and dV's. --flex compiles FlexAttention, which takes a minute. Needs PyTorch with a GPU (exit 77 otherwise)."""
import argparse
import ctypes as C
import math

from abi import BoolMask, Gradients, Varlen
from cuda_peers import F, SDPBackend, Strobe, attempt, medians_ms, number, sdpa_kernel, torch, view

BATCH, HEADS = 4, 16
WINDOW_TOP_LEFT = 3
CAP, P_DROP, SEED, OFFSET = 50.0, 0.1, 0x1234567890ABCDEF, 77


class Bias(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("data", C.c_void_p), ("stride", C.c_int64 * 3), ("dtype", C.c_int32),
                ("reserved", C.c_int32)]


class Alibi(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("slopes", C.c_void_p), ("stride_batch", C.c_int64)]


class Sinks(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("data", C.c_void_p), ("dtype", C.c_int32), ("reserved", C.c_int32)]


class Dropout(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("p", C.c_double), ("seed", C.c_uint64), ("offset", C.c_uint64),
                ("shape", C.c_int64 * 7)]


class Case:
    """A feature. `scores` changes one head's scores in float64, `keep` its weights, for the reference; `seen` is the share of the
    pairs that see each other, half under a causal mask if not said otherwise."""

    def __init__(self, name, causal=False, kv_heads=HEADS, scores=None, sink=None, keep=None, flex=None, mask=None, seen=None,
                 window=0, **fields):
        self.name, self.causal, self.kv_heads, self.fields = name, causal, kv_heads, fields
        self.scores, self.sink, self.keep, self.flex, self.mask = scores, sink, keep, flex, mask
        self.window, self.seen = window, seen or (0.5 if causal else 1)


class Call:
    def __init__(self, strobe, tensors, case, what):
        q, k, v, dout = tensors
        self.strobe, self.what, self.keep = strobe, what, [tensors, case]
        self.out, self.lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
        a = self.a = strobe.prepare(q, k, v, self.out, self.lse, case.causal)
        if case.window:
            a.mask, a.window_left, a.window_right = WINDOW_TOP_LEFT, case.window, case.window
        for name, value in case.fields.items():
            if isinstance(value, C.Structure):
                self.keep.append(value)
                value = C.cast(C.pointer(value), C.c_void_p)
            setattr(a, name, value)
        self.work = strobe.workspace(a)
        self.strobe.forward(a, self.work)
        if what == "bwd":
            self.gradients = [torch.empty_like(x) for x in (q, k, v)]
            self.g = Gradients(struct_size=C.sizeof(Gradients))
            self.g.dout, self.g.dq, self.g.dk, self.g.dv = (view(x, True) for x in (dout, *self.gradients))
            if case.sink is not None:
                self.dsinks = torch.empty(HEADS, device="cuda")
                self.keep.append(Sinks(C.sizeof(Sinks), self.dsinks.data_ptr()))
                self.g.dsinks = C.cast(C.pointer(self.keep[-1]), C.c_void_p)
            self.work = strobe.workspace(a, self.g)

    def __call__(self):
        if self.what == "fwd":
            self.strobe.forward(self.a, self.work)
        else:
            self.strobe.backward(self.a, self.g, self.work)

    def results(self):
        self()
        return [self.out] if self.what == "fwd" else self.gradients


def strides(x):
    return (C.c_int64 * 3)(*[0 if n == 1 else step for n, step in zip(x.shape[:3], x.stride()[:3], strict=True)])


def multiply(a, factor):
    """The upper and lower words of a product of 32 bits."""
    low, high = a * (factor & 0xFFFF), a * (factor >> 16)
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & 0xFFFFFFFF


def kept(batch, head, seq):
    """Which weights of a head dropout keeps: Philox4x32-10, four keys a counter."""
    quads = (seq + 3) // 4
    row = (batch * HEADS + head) * seq + torch.arange(seq, device="cuda")
    counter = row[:, None] * quads + torch.arange(quads, device="cuda")
    c = [torch.full_like(counter, OFFSET & 0xFFFFFFFF), torch.full_like(counter, OFFSET >> 32), counter & 0xFFFFFFFF, counter >> 32]
    key = [SEED & 0xFFFFFFFF, SEED >> 32]
    for _ in range(10):
        (high0, low0), (high1, low1) = multiply(c[0], 0xD2511F53), multiply(c[2], 0xCD9E8D57)
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return (torch.stack(c, -1).reshape(seq, 4 * quads)[:, :seq] >= int(P_DROP * 2**32)).double() / (1 - P_DROP)


def cases(seq, dim):
    at = torch.arange(seq, device="cuda")
    distance = (at[:, None] - at[None, :]).abs()
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], device="cuda")
    bias = torch.randn(1, HEADS, seq, seq, device="cuda").bfloat16()
    mask = torch.rand(1, 1, seq, seq, device="cuda") < 0.5
    sinks = torch.randn(HEADS, device="cuda")
    alibi = Alibi(C.sizeof(Alibi), slopes.data_ptr(), 0)
    cap = lambda s, b, h: CAP * torch.tanh(s / CAP)
    slope = lambda s, b, h: s - slopes[h].double() * distance
    biased = lambda s, b, h: s + bias[0, h].double()
    dropout = lambda: Dropout(C.sizeof(Dropout), P_DROP, SEED, OFFSET)
    bias_of = lambda x: Bias(C.sizeof(Bias), x.data_ptr(), strides(x), 3 if x.dtype == torch.bfloat16 else 1)
    keep = {"slopes": slopes, "bias": bias, "mask": mask, "sinks": sinks}
    plain = []
    for causal in (False, True):
        suffix = ", causal" if causal else ""
        plain.append(Case("plain" + suffix, causal, flex=(None, None), mask="is_causal" if causal else "none"))
        yield plain[-1]
        yield Case("softcap" + suffix, causal, scores=cap, softcap=CAP,
                   flex=(lambda s, b, h, i, j: CAP * torch.tanh(s / CAP), None))
        yield Case("ALiBi" + suffix, causal, scores=slope, alibi=alibi,
                   flex=(lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(), None))
        yield Case("bias bf16 [1, h, s, s]" + suffix, causal, scores=biased, bias=bias_of(bias),
                   flex=(lambda s, b, h, i, j: s + bias[0, h, i, j], None), mask=None if causal else bias)
        yield Case("dropout 0.1" + suffix, causal, keep=kept, dropout=dropout())
    wide = bias.float()
    yield Case("bias fp32 [1, h, s, s]", scores=biased, bias=bias_of(wide))
    yield Case("mask [1, 1, s, s], random", scores=lambda s, b, h: s.masked_fill(~mask[0, 0], -math.inf), mask=mask,
               flex=(None, lambda b, h, i, j: mask[0, 0, i, j]),
               bool_mask=BoolMask(C.sizeof(BoolMask), mask.data_ptr(), strides(mask)))
    yield Case("sinks", sink=sinks, sinks=Sinks(C.sizeof(Sinks), sinks.data_ptr()))
    yield Case("softcap, scores to 60", scores=lambda s, b, h: CAP * torch.tanh(10 * s / CAP), softcap=CAP, scale=10 / dim**0.5)
    yield Case("mask and dropout", keep=kept, dropout=dropout(),
               scores=lambda s, b, h: s.masked_fill(~mask[0, 0], -math.inf),
               bool_mask=BoolMask(C.sizeof(BoolMask), mask.data_ptr(), strides(mask)))
    yield Case("16 heads, 4 of K and V", kv_heads=4)
    for reach in (1024, 256):
        hidden = distance > reach
        yield Case(f"window of {reach} each way", scores=lambda s, b, h, hidden=hidden: s.masked_fill(hidden, -math.inf),
                   seen=1 - hidden.double().mean().item(), window=reach)
    offsets = torch.arange(0, (BATCH + 1) * seq, seq, device="cuda", dtype=torch.int32)
    keep["offsets"] = offsets
    for causal in (False, True):
        packed = Varlen(C.sizeof(Varlen), cu_seqlens_q=offsets.data_ptr(), cu_seqlens_k=offsets.data_ptr(), total_q=BATCH * seq,
                        total_k=BATCH * seq, index_bits=32)
        yield Case("packed, four sequences" + (", causal" if causal else ""), causal, varlen=packed)
    del keep


def reference(case, tensors, what, batch, head):
    """The results of one head in float64."""
    q, k, v, dout = tensors
    kv = head // (HEADS // k.shape[1])
    leaves = [x.double().detach().requires_grad_() for x in (q[batch, head], k[batch, kv], v[batch, kv])]
    s = leaves[0] @ leaves[1].T / math.sqrt(q.shape[-1])
    if case.scores:
        s = case.scores(s, batch, head)
    if case.causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    if case.sink is not None:
        s = torch.cat([s, case.sink[head].double().expand(s.shape[0], 1)], 1)
    weights = s.softmax(-1)[:, : k.shape[2]]
    if case.keep:
        weights = weights * case.keep(batch, head, q.shape[2])
    out = weights @ leaves[2]
    return [out.detach()] if what == "fwd" else torch.autograd.grad(out, leaves, dout[batch, head].double())


def error(results, right, batch, head):
    if not right:
        return math.nan
    return max(((x[batch, head].double() - y).norm() / y.norm()).item() for x, y in zip(results, right, strict=True))


def peer_call(forward, tensors, what):
    q, k, v, dout = tensors
    if what == "fwd":
        return lambda: [forward(q, k, v)]
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = forward(*leaves)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def cudnn_call(case, tensors, what):
    mask = None if isinstance(case.mask, str) else case.mask.expand(BATCH, -1, -1, -1)
    def forward(q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=case.causal)
    return peer_call(forward, tensors, what)


def flex_call(case, tensors, what):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    score, visible = case.flex
    seq = tensors[0].shape[2]
    if case.causal:
        visible = lambda b, h, i, j: i >= j
    mask = create_block_mask(visible, None, None, seq, seq, device="cuda", _compile=True) if visible else None
    compiled = torch.compile(flex_attention, dynamic=False)
    return peer_call(lambda q, k, v: compiled(q, k, v, score_mod=score, block_mask=mask), tensors, what)


def row(case, libraries, tensors, what, options, plain):
    seq, dim = tensors[0].shape[2:]
    calls = [(f"strobe {n + 1}", attempt(Call, s, tensors, case, what)) for n, s in enumerate(libraries)]
    if options.cudnn and case.mask is not None:
        calls.append(("cudnn", attempt(cudnn_call, case, tensors, what)))
    if options.flex and case.flex:
        calls.append(("flex", attempt(flex_call, case, tensors, what)))
    calls = [(n, c) for n, c in calls if c]
    batch, head = BATCH - 1, HEADS - 3
    right = reference(case, tensors, what, batch, head) if case.kv_heads == HEADS or what == "fwd" else []
    errors = [error(c.results() if isinstance(c, Call) else c(), right, batch, head) for _, c in calls]
    flop = 4 * BATCH * HEADS * seq * seq * dim * case.seen * (1 if what == "fwd" else 2.5)
    rates = [flop / t / 1e9 for t in medians_ms([c for _, c in calls], options.ms)]
    base = plain.setdefault((what, case.causal), rates)
    shown = ["" if math.isnan(e) and not right else f" {e:.2e}" for e in errors]
    text = [f"{n} {r:5.0f} ({r / base[0]:.2f}){e}" for (n, _), r, e in zip(calls, rates, shown, strict=True)]
    print(f"{what} d{dim} {seq} {case.name:32} " + "   ".join(text), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+")
    parser.add_argument("--what", default="fwd,bwd")
    parser.add_argument("--dim", default="128")
    parser.add_argument("--seq", default="4k")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--flex", action="store_true")
    parser.add_argument("--cudnn", action="store_true")
    options = parser.parse_args()
    libraries = [Strobe(path, None) for path in options.library]
    torch.manual_seed(0)
    print("TFLOP/s (share of the first library's plain call) error")
    for dim in map(int, options.dim.split(",")):
        for seq in map(number, options.seq.split(",")):
            for what in options.what.split(","):
                plain = {}
                for case in cases(seq, dim):
                    if not case.name.startswith("plain") and not any(word in case.name for word in options.only.split(",")):
                        continue
                    heads = (HEADS, case.kv_heads, case.kv_heads, HEADS)
                    tensors = [torch.randn(BATCH, seq, h, dim, device="cuda").bfloat16().transpose(1, 2) for h in heads]
                    row(case, libraries, tensors, what, options, plain)


if __name__ == "__main__":
    main()
