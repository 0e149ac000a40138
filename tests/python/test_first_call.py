# SPDX-License-Identifier: BSD-3-Clause
"""A call may come from any host thread, also one that has never touched the device, with any device current: it runs on the
tensors' device, on the stream that is current there, and leaves the current device as it was. Each case is the first work of a
thread, so each has a process of its own."""

import pytest
import torch

# q, k, v and dout on DEVICE; same() compares results with those of the main thread, which calls last.
PRELUDE = """
import threading
import torch, strobe, strobe.torch as st
DEVICE, CURRENT = torch.device("cuda", {device}), {current}
torch.cuda.set_device(CURRENT)
torch.manual_seed(0)
q, k, v, dout = (torch.randn(2, {rows}, 4, 64, device=DEVICE).to(torch.{dtype}) for _ in range(4))
found = dict()

def same(name, *expected):
    for x, y in zip(found[name], expected, strict=True):
        assert x.device == DEVICE, (name, x.device)
        assert torch.equal(x, y), name
    assert torch.cuda.current_device() == CURRENT

def in_thread(function):
    def run():
        before = torch.cuda.current_device()
        function()
        assert torch.cuda.current_device() == before
    failures = []
    threading.excepthook = lambda failed: failures.append(failed.exc_value)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]

def forward(): found["forward"] = strobe.attention(q, k, v, causal=True, return_lse=True)
def backward(): found["backward"] = strobe.attention_backward(dout, q, k, v, *saved, causal=True, deterministic=True)[:3]
def merge(): found["merge"] = strobe.merge([saved[0], saved[0]], [saved[1], saved[1]])
"""

FIRST = {
    "forward in a thread": """
in_thread(forward)
same("forward", *strobe.attention(q, k, v, causal=True, return_lse=True))
""",
    "backward in a thread": """
saved = strobe.attention(q, k, v, causal=True, return_lse=True)
in_thread(backward)
same("backward", *strobe.attention_backward(dout, q, k, v, *saved, causal=True, deterministic=True)[:3])
""",
    "merge in a thread": """
saved = strobe.attention(q, k, v, causal=True, return_lse=True)
in_thread(merge)
same("merge", *strobe.merge([saved[0], saved[0]], [saved[1], saved[1]]))
""",
    "autograd's thread": """
saved = strobe.attention(q, k, v, causal=True, return_lse=True)
leaves = [x.requires_grad_() for x in (q, k, v)]
out = st.attention(*leaves, causal=True, deterministic=True)
found["backward"] = torch.autograd.grad(out, leaves, dout)
same("backward", *strobe.attention_backward(dout, *(x.detach() for x in leaves), *saved, causal=True, deterministic=True)[:3])
""",
    "a thread's own backward()": """
leaves = [x.requires_grad_() for x in (q, k, v)]
def train(): st.attention(*leaves, causal=True, deterministic=True).backward(dout)
in_thread(train)
found["train"] = [x.grad.clone() for x in leaves]
for x in leaves: x.grad = None
train()
same("train", *(x.grad for x in leaves))
""",
}


def run(python, name, device=0, current=0, dtype="bfloat16", rows=300):
    python(PRELUDE.format(device=device, current=current, dtype=dtype, rows=rows) + FIRST[name])


@pytest.mark.parametrize("name", FIRST)
def test_first_work_of_a_thread(python, device_or_skip, name):
    device_or_skip("cuda")
    run(python, name)


@pytest.mark.parametrize(
    ("name", "dtype", "rows"), [("autograd's thread", "float32", 70), ("forward in a thread", "float16", 1)]
)
def test_other_kernels(python, device_or_skip, name, dtype, rows):
    device_or_skip("cuda")
    run(python, name, dtype=dtype, rows=rows)


@pytest.mark.parametrize(("device", "current"), [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("name", FIRST)
def test_two_devices(python, device_or_skip, name, device, current):
    device_or_skip("cuda")
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device: two are needed")
    run(python, name, device=device, current=current)


STREAMS = """
import threading
import torch, strobe
torch.cuda.set_device({current})
torch.manual_seed(0)
wrong = []

def work(number):
    # Inputs arrive late on a stream of this thread's own; what is freed meanwhile is filled with NaN, on this stream and another.
    torch.cuda.set_device({current})
    stream, other = torch.cuda.Stream("cuda:{device}"), torch.cuda.Stream("cuda:{device}")
    generator = torch.Generator("cuda:{device}").manual_seed(number)
    def draw(): return torch.randn(1, 384, 4, 64, device="cuda:{device}", generator=generator).bfloat16()
    q, k, v, dout = (draw() for _ in range(4))
    out, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
    expected = [out, *strobe.attention_backward(dout, q, k, v, out, lse, causal=True, deterministic=True)[:3]]
    torch.cuda.synchronize("cuda:{device}")
    torch.cuda.set_stream(stream)
    torch.cuda.set_device({current})
    for turn in range(6):
        late = torch.full_like(q, float("nan"))
        with torch.cuda.device({device}):
            torch.cuda._sleep(20_000_000)
        late.copy_(q)
        out, lse = strobe.attention(late, k, v, causal=True, return_lse=True)
        got = [out, *strobe.attention_backward(dout, late, k, v, out, lse, causal=True, deterministic=True)[:3]]
        with torch.cuda.stream(other):
            rubbish = [torch.full((1 << n,), float("nan"), device="cuda:{device}") for n in range(10, 22)]
        del late, rubbish
        if torch.cuda.current_device() != {current}: wrong.append("the current device changed")
        stream.synchronize()
        for x, y in zip(got, expected):
            if not torch.equal(x, y): wrong.append((number, turn))

def guarded(number):
    try:
        work(number)
    except BaseException as error:
        wrong.append(repr(error))

threads = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""


@pytest.mark.parametrize(("device", "current"), [(0, 0), (0, 1), (1, 0)])
def test_streams_of_many_threads(python, device_or_skip, device, current):
    """A call runs on the stream that is current on the tensors' device, and its workspace is not another stream's too early."""
    device_or_skip("cuda")
    if max(device, current) >= torch.cuda.device_count():
        pytest.skip("one CUDA device: two are needed")
    assert python(STREAMS.format(device=device, current=current)) == "[]\n"
