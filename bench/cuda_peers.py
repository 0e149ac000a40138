#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cuda_peers.py: Strobe's CUDA kernels beside PyTorch's FlashAttention-2 and cuDNN, in one process and on the same tensors.

    python3 bench/cuda_peers.py LIBSTROBE [fwd] [bwd] [decode] [graph] [--kernel NAME] [--seq 512,2k,8k] [--dim 64,128,256]
                                  [--ms 40] [--deterministic] [--fa3 LIB]

Grid: bf16, 16384 tokens, hidden size 2048; TFLOP/s by the formula of publications. Needs PyTorch
with a GPU (exit 77 otherwise). Every result is compared with PyTorch's before it is timed; calls take turns, L2 is flushed
before each, medians. Beside each speed the relative error (2-norm over two heads of a batch entry, against float64) of O, or of dQ,
dK and dV, of all three. For a backward pass also the device memory (MiB) that a call takes beyond its inputs and gradients;
with --deterministic, gradients in a fixed order too. --fa3 has FlashAttention-3 take its turns as well, from a library that flash3.py
describes; a cell in which it differs from cuDNN by more than rounding is not timed."""
import argparse
import ctypes as C
import math
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit(77)

from abi import Attention, Gradients, MaskLists, Tensor, Tuning, check, load
from flash3 import Flash3

DETERMINISTIC = 1
PEERS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
NAMES = ("FA2", "cuDNN")  # of the peers
BESIDE_FA3 = (("Strobe", "FA3"), ("fixed order", "FA3 fixed order"))  # whose speed is compared with whose


def view(x, heads_first):
    """x is [batch, heads, seq, dim] in memory of any order; strides are batch, sequence, head."""
    s = x.stride()
    return Tensor(x.data_ptr(), (C.c_int64 * 3)(s[0], s[2], s[1]) if heads_first else (C.c_int64 * 3)(*s[:3]), 0, 0)


class Strobe:
    def __init__(self, path, kernel):
        self.lib = load(path)
        self.tuning = Tuning(C.sizeof(Tuning), kernel.encode(), 0) if kernel else None

    def check(self, status):
        check(self.lib, status)

    def prepare(self, q, k, v, out, lse, causal, backward=False):
        a = Attention(struct_size=C.sizeof(Attention), batch=q.shape[0], heads_q=q.shape[1], seq_q=q.shape[2],
                      heads_kv=k.shape[1], seq_k=k.shape[2], dim=q.shape[3], dim_v=v.shape[3], device=1,
                      dtype={torch.bfloat16: 3, torch.float16: 2, torch.float32: 1}[q.dtype], mask=2 if causal else 0)
        a.q, a.k, a.v, a.out = (view(x, True) for x in (q, k, v, out))
        if self.tuning and not backward and b"forward" in self.tuning.kernel:
            a.tuning = C.pointer(self.tuning)
        a.lse = Tensor(lse.data_ptr(), (C.c_int64 * 3)(0, 0, 0), 0, 0)
        return a

    def workspace(self, a, g=None):
        need = C.c_size_t()
        self.check(self.lib.strobe_workspace(C.byref(a), C.byref(g) if g else None, C.byref(need)))
        return torch.empty(max(need.value, 64), dtype=torch.uint8, device="cuda")

    def make_lists(self, a):
        """Lists of what the call's masks hide, which the call then brings; their memory, to be kept."""
        lists = MaskLists(struct_size=C.sizeof(MaskLists))
        need = C.c_size_t()
        self.check(self.lib.strobe_mask_lists_bytes(C.byref(a), C.byref(lists), C.byref(need)))
        memory = torch.full((max(need.value, 64),), 0xFF, dtype=torch.uint8, device="cuda")
        lists.data, lists.bytes = memory.data_ptr(), need.value
        self.check(self.lib.strobe_mask_lists_make(C.byref(a), C.byref(lists), torch.cuda.current_stream().cuda_stream))
        a.mask_lists = C.cast(C.pointer(lists), C.c_void_p)
        return lists, memory

    def forward(self, a, work):
        self.check(self.lib.strobe_forward(C.byref(a), work.data_ptr(), work.numel(), torch.cuda.current_stream().cuda_stream))

    def backward(self, a, g, work):
        self.check(self.lib.strobe_backward(C.byref(a), C.byref(g), work.data_ptr(), work.numel(),
                                            torch.cuda.current_stream().cuda_stream))


FLUSH = None
HEAD_START = 600_000  # clocks that the device waits, so that what the host does for a call is not in its time


def flush_l2():
    global FLUSH
    if FLUSH is None:
        FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    FLUSH.zero_()


def time_ms(call):
    """Of one call by CUDA events, L2 flushed before it; NaN where it is not offered."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    flush_l2()
    torch.cuda._sleep(HEAD_START)
    try:
        start.record(), call(), end.record(), end.synchronize()
    except RuntimeError:
        return math.nan
    return start.elapsed_time(end)


def medians_ms(calls, budget_ms):
    """Of each call's times. The calls take turns, so that a clock that moves moves all of them. Each round another one begins, and
    every second round goes backwards: a call that heats the GPU does so for more than one other."""
    for call in calls:
        time_ms(call)
    times, spent = [[] for _ in calls], 0.0
    for first in range(100):
        turns = [(first + n) % len(calls) for n in range(len(calls))]
        for which in reversed(turns) if first % 2 else turns:
            times[which].append(time_ms(calls[which]))
        spent += max((t[-1] for t in times if not math.isnan(t[-1])), default=budget_ms)
        if first >= 4 and spent > budget_ms:
            break
    return [sorted(t)[len(t) // 2] for t in times]


def attempt(make, *arguments):
    """A call, or None where it cannot be made."""
    try:
        call = make(*arguments)
        call()
        torch.cuda.synchronize()
        return call
    except Exception as error:  # noqa: BLE001: a peer that fails is left out
        print(f"  left out: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        return None


def number(text):
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def peer(backend, q, k, v, causal):
    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return call


def extra_mib(call, results):
    """Device memory that a call takes at its peak, beyond the `results` bytes that it leaves, in MiB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before - results) / 2**20


def truth(q, k, v, dout, causal):
    """O, dQ, dK, dV in float64, a head at a time."""
    results = [torch.empty(x.shape, device="cuda", dtype=torch.float64) for x in (q, q, k, v)]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            leaves = [x[b, h].double().requires_grad_() for x in (q, k, v)]
            s = leaves[0] @ leaves[1].T / math.sqrt(q.shape[-1])
            if causal:
                s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
            out = s.softmax(-1) @ leaves[2]
            parts = [out.detach(), *torch.autograd.grad(out, leaves, dout[b, h].double())]
            for whole, part in zip(results, parts, strict=True):
                whole[b, h] = part
    return results


def relative(results, right):
    return [((x.double() - y).norm() / y.norm()).item() for x, y in zip(results, right, strict=True)]


def print_errors(q, k, v, dout, causal, results):
    """Under a row: the errors of Strobe, FlashAttention-2, cuDNN and, where it is measured, FlashAttention-3; and Strobe's over
    FlashAttention-2's. results: of each, O or dQ, dK and dV. Returns the greatest of these ratios."""
    def part(x):
        return x[:1, :2]
    right = truth(*(part(x) for x in (q, k, v, dout)), causal)
    right, names = (right[:1], ("O",)) if len(results[0]) == 1 else (right[1:], ("dQ", "dK", "dV"))
    errors = [relative([part(x) for x in result], right) for result in results]
    ratios = [ours / flash for ours, flash in zip(errors[0], errors[1], strict=True)]
    print("    error  " + "  ".join(f"{name} " + " ".join(f"{e[n]:.3e}" for e in errors) + f" ({ratios[n]:.3f} of FA2's)"
                                    for n, name in enumerate(names)), flush=True)
    return max(ratios)


def flash3_calls(flash3, q, k, v, causal, dout, deterministic, right):
    """FlashAttention-3's calls by name, and its results: O, or dQ, dK and dV where dout is given. Neither where they are not `right`."""
    problem = flash3.problem(q, k, v, causal, dout)
    if dout is None:
        calls, results = {"FA3": problem.forward}, [problem.out]
    else:
        calls, results = {"FA3": problem.backward}, problem.gradients
        if deterministic and q.shape[-1] < 256:  # it has no fixed order at d 256
            calls["FA3 fixed order"] = lambda: problem.backward(True)
    for name, call in reversed(calls.items()):  # the free order last: its gradients are the results
        for x in results:
            x.fill_(math.nan)
        call()
        distances = relative(results, [x.double() for x in right])
        if not all(x < 1e-2 for x in distances):  # rounding to bf16 is 0.3 %
            print(f"  {name} is not timed: its distance to cuDNN is {distances}", flush=True)
            return {}, []
    return calls, [results]


def row(strobe, backward, dim, seq, causal, budget, deterministic=False, flash3=None):
    """A line of the table; the head dim, TFLOP/s by name, and the greatest error beside FlashAttention-2's."""
    batch, heads = 16384 // seq, 2048 // dim
    q, k, v, dout = (torch.randn(batch, seq, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(4))
    out, lse = torch.empty_like(q), torch.empty(batch, heads, seq, device="cuda")
    a = strobe.prepare(q, k, v, out, lse, causal, backward)
    work = strobe.workspace(a)
    strobe.forward(a, work)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        right = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    error = (out.float() - right.float()).abs().max().item()
    flop = 4 * batch * heads * seq * seq * dim / (2 if causal else 1)
    if not backward:
        calls = {"Strobe": lambda: strobe.forward(a, work)}
        calls |= {name: peer(b, q, k, v, causal) for name, b in zip(NAMES, PEERS, strict=True)}
        results = [[out], [right], [calls["cuDNN"]()]]
    else:
        flop *= 2.5
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        g = Gradients(struct_size=C.sizeof(Gradients))
        g.dout, g.dq, g.dk, g.dv = (view(x, True) for x in (dout, dq, dk, dv))
        if strobe.tuning and b"backward" in strobe.tuning.kernel:
            a.tuning = C.pointer(strobe.tuning)
        work = strobe.workspace(a, g)

        def fixed_order():
            a.flags = DETERMINISTIC
            strobe.backward(a, g, fixed_work)
            a.flags = 0
        if deterministic:
            a.flags = DETERMINISTIC
            fixed_work = strobe.workspace(a, g)
            fixed_order()
        strobe.backward(a, g, work)
        calls, error = {"Strobe": lambda: strobe.backward(a, g, work)}, 0.0
        memory, size = [work.numel() / 2**20], sum(x.numel() * x.element_size() for x in (q, k, v))
        results = [[dq, dk, dv]]
        for name, b in zip(NAMES, PEERS, strict=True):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            result = peer(b, *leaves, causal)()
            grads = torch.autograd.grad(result, leaves, dout, retain_graph=True)
            results.append(grads)
            if b == SDPBackend.FLASH_ATTENTION:
                error = max((x.float() - y.float()).abs().max().item() for x, y in zip((dq, dk, dv), grads, strict=True))

            def gradients(result=result, leaves=leaves):
                torch.autograd.grad(result, leaves, dout, retain_graph=True)
            calls[name] = gradients
            memory.append(extra_mib(gradients, size))
        if deterministic:
            calls["fixed order"] = fixed_order
    if flash3:
        its_calls, its_results = flash3_calls(flash3, q, k, v, causal, dout if backward else None, deterministic, results[2])
        calls, results = calls | its_calls, results + its_results
    speeds = {name: flop / t / 1e9 for name, t in zip(calls, medians_ms(list(calls.values()), budget), strict=True)}
    ours = speeds["Strobe"]
    print(f"{'bwd' if backward else 'fwd'} d{dim:<3} {'causal' if causal else 'full':6} {seq:6}: strobe {ours:6.1f}  "
          f"FA2 {speeds['FA2']:6.1f}  cuDNN {speeds['cuDNN']:6.1f}  ratios {ours / speeds['FA2']:.3f} {ours / speeds['cuDNN']:.3f}  "
          f"max diff {error:.4f}" + (f"  MiB {memory[0]:.0f} {memory[1]:.0f} {memory[2]:.0f}" if backward else "") +
          (f"  fixed order {speeds['fixed order']:.1f}, {speeds['fixed order'] / ours:.3f}" if "fixed order" in speeds else "") +
          "".join(f"  {name} {speeds[name]:.1f}, {speeds[mine] / speeds[name]:.3f} of it" for mine, name in BESIDE_FA3
                  if name in speeds), flush=True)
    return dim, speeds, print_errors(q, k, v, dout, causal, results)


def ratio_of(rows, mine, other):
    """Geometric mean of one speed over the other in the rows that have both, the least, and in how many it is below 1."""
    ratios = [speeds[mine] / speeds[other] for _, speeds, _ in rows if mine in speeds and other in speeds]
    ratios = [r for r in ratios if not math.isnan(r)]
    if not ratios:
        return ""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.3f} x {other} (least {min(ratios):.3f}, below it in {sum(r < 1 for r in ratios)} of {len(ratios)})"


def summary(what, rows):
    """Of each head dim and of all: the ratios to each peer, and the greatest error beside FlashAttention-2's."""
    dims = sorted({d for d, _, _ in rows})
    for name, dims in [(f"d{d}", [d]) for d in dims] + ([("all", dims)] if len(dims) > 1 else []):
        part = [x for x in rows if x[0] in dims]
        ratios = [ratio_of(part, "Strobe", other) for other in ("FA2", "cuDNN", "FA3")]
        ratios += ["in a fixed order " + r for r in (ratio_of(part, "fixed order", "Strobe"),
                                                    ratio_of(part, "fixed order", "FA3 fixed order")) if r]
        print(f"{what} {name}: geometric means " + ", ".join(r for r in ratios if r) +
              f"; error at most {max(ratio for _, _, ratio in part):.3f} of FlashAttention-2's")


def decode(strobe, batch, keys, budget):
    q = torch.randn(batch, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, keys, 8, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
    out, lse = torch.empty_like(q), torch.empty(batch, 32, 1, device="cuda")
    a = strobe.prepare(q, k, v, out, lse, False)
    work = strobe.workspace(a)
    strobe.forward(a, work)
    right = peer(SDPBackend.FLASH_ATTENTION, q, k, v, False)()
    error = (out.float() - right.float()).abs().max().item()
    times = medians_ms([lambda: strobe.forward(a, work)] + [peer(b, q, k, v, False) for b in PEERS], budget)
    rates = [(k.numel() + v.numel()) * 2 / t / 1e9 for t in times]
    print(f"decode {batch:3} x {keys:6}: strobe {rates[0]:5.2f} TB/s  FA2 {rates[1]:5.2f}  cuDNN {rates[2]:5.2f}  "
          f"max diff {error:.5f}", flush=True)


def compare(direct, replayed, flags):
    """out, lse, dQ, dK, dV: the same bits, but for dQ without STROBE_DETERMINISTIC."""
    for n, (x, y) in enumerate(zip(direct, replayed, strict=True)):
        same = torch.allclose(x.float(), y.float(), atol=1e-2, rtol=1e-2) if n == 2 and not flags else torch.equal(x, y)
        assert same, ("out", "lse", "dq", "dk", "dv")[n]


def capture(strobe):
    """Every call can be captured in a CUDA graph, and its replay gives the direct call's result: its bits with
    STROBE_DETERMINISTIC, but for dQ without."""
    cases = 0
    for batch, heads, group, rows, keys, dim in ((2, 4, 2, 300, 300, 64), (1, 8, 4, 1, 4096, 128), (1, 2, 1, 200, 131, 256)):
        for causal, flags in ((False, 0), (True, 0), (True, 1)):
            q, dout = (torch.randn(batch, rows, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in "qo")
            k, v = (torch.randn(batch, keys, heads // group, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
                    for _ in "kv")
            out, lse = torch.empty_like(q), torch.empty(batch, heads, rows, device="cuda")
            dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
            a = strobe.prepare(q, k, v, out, lse, causal)
            a.flags = flags
            g = Gradients(struct_size=C.sizeof(Gradients))
            g.dout, g.dq, g.dk, g.dv = (view(x, True) for x in (dout, dq, dk, dv))
            work, work_back = strobe.workspace(a), strobe.workspace(a, g)

            def call():
                strobe.forward(a, work)
                strobe.backward(a, g, work_back)
            call()
            torch.cuda.synchronize()
            direct = [x.clone() for x in (out, lse, dq, dk, dv)]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            for _ in range(2):  # each replay has to write everything anew
                for x in (out, lse, dq, dk, dv):
                    x.fill_(math.nan)
                graph.replay()
                torch.cuda.synchronize()
                compare(direct, (out, lse, dq, dk, dv), flags)
            cases += 1
    print(f"graph capture: {cases} cases, forward and backward, replays equal to the direct call")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("what", nargs="*", default=["fwd"])
    parser.add_argument("--kernel", help="of forward or backward, instead of the library's choice")
    parser.add_argument("--seq", default="512,1k,2k,4k,8k,16k")
    parser.add_argument("--dim", default="64,128,256")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--deterministic", action="store_true", help="gradients in a fixed order beside, in turns")
    parser.add_argument("--fa3", help="a library with FlashAttention-3, see flash3.py")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(1)
    strobe = Strobe(options.library, options.kernel)
    flash3 = Flash3(options.fa3) if options.fa3 else None
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flash3.version if flash3 else "")
    for what in options.what:
        if what == "graph":
            capture(strobe)
            continue
        if what == "decode":
            for batch, keys in ((1, 8192), (1, 131072), (16, 8192), (64, 8192), (128, 4096)):
                decode(strobe, batch, keys, options.ms)
            continue
        summary(what, [row(strobe, what == "bwd", int(dim), number(seq), causal, options.ms, options.deterministic, flash3)
                       for dim in options.dim.split(",") for causal in (False, True) for seq in options.seq.split(",")])


if __name__ == "__main__":
    main()
