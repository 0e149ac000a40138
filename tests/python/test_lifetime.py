# SPDX-License-Identifier: BSD-3-Clause
"""References, memory, threads, fork, and the end of the interpreter."""

import gc
import os
import resource
import sys
import threading
import time

import numpy as np
import pytest
import strobe
import torch

NUMPY = np.random.default_rng(0).standard_normal((3, 1, 8, 2, 16), dtype=np.float32)


def kinds():
    yield "numpy", list(NUMPY)
    yield "torch", [torch.from_numpy(x) for x in NUMPY]
    yield "torch bfloat16", [torch.from_numpy(x).bfloat16() for x in NUMPY]
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        yield "numpy bfloat16", list(NUMPY.astype(ml_dtypes.bfloat16))  # each is read through a view that NumPy makes
    try:
        import jax.numpy as jnp
    except ImportError:
        return
    yield "jax", [jnp.asarray(x) for x in NUMPY]


def every_call(q, k, v):
    """Each call, and each way to fail with tensors open."""
    out, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
    strobe.attention_backward(out, q, k, v, out, lse, causal=True)
    strobe.merge([out, out], [lse, lse])
    strobe.explain(q, k, v)
    for refused in ({"softcap": -1}, {"window": 3}, {"sinks": q}, {"out": q}):
        try:
            strobe.attention(q, k, v, **refused)
        except (ValueError, TypeError):
            continue
        raise AssertionError(refused)
    try:
        strobe.attention_backward(out, q, k, v, out, out)
    except ValueError:
        return
    raise AssertionError("lse")


@pytest.fixture(autouse=True)
def what_is_here_stays():
    gc.freeze()


@pytest.mark.parametrize(("kind", "tensors"), list(kinds()), ids=lambda x: x if isinstance(x, str) else "")
def test_references(kind, tensors):
    every_call(*tensors)
    gc.collect()
    held = [*tensors, None, type(tensors[0]), np.dtype(np.float32), "bottom_right", (1, 2)]
    before = [sys.getrefcount(x) for x in held]
    for _ in range(50):
        every_call(*tensors)
    gc.collect()
    after = [sys.getrefcount(x) for x in held]
    assert all(abs(a - b) < 20 for a, b in zip(after, before, strict=True)), (before, after)


@pytest.mark.parametrize(("kind", "tensors"), list(kinds()), ids=lambda x: x if isinstance(x, str) else "")
def test_objects(kind, tensors):
    """An object that each round leaves behind, a view, a tuple, a result, is seen: rounds beside each other, the least growth."""
    if kind == "jax":
        pytest.skip("JAX keeps objects of its own")
    rounds, growth = 60, []
    for _ in range(4):
        every_call(*tensors)
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(rounds):
            every_call(*tensors)
        gc.collect()
        growth.append(sys.getallocatedblocks() - before)
    assert min(growth) < rounds // 2, growth


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(("kind", "tensors"), list(kinds()), ids=lambda x: x if isinstance(x, str) else "")
def test_ten_thousand_calls_leave_memory_flat(kind, tensors):
    rounds = 10_000 if kind != "jax" else 2_500  # a call through from_dlpack takes longer; each round is eight calls
    for _ in range(rounds // 10):
        every_call(*tensors)
    gc.collect()
    before = resident()
    for _ in range(rounds // 4):
        every_call(*tensors)
    gc.collect()
    assert resident() - before < 2_000_000


def test_sixteen_threads_at_once():
    q, k, v = np.random.default_rng(1).standard_normal((3, 2, 160, 4, 32), dtype=np.float32)
    truth, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
    gradients = strobe.attention_backward(truth, q, k, v, truth, lse, causal=True)
    wrong = []

    def work():
        for _ in range(10):
            out = strobe.attention(q, k, v, causal=True, threads=4)
            back = strobe.attention_backward(truth, q, k, v, truth, lse, causal=True, threads=3)
            if not (np.array_equal(out, truth) and all(map(np.array_equal, back[:3], gradients[:3]))):
                wrong.append(threading.get_ident())
            try:
                strobe.attention(q, k[:, :1], v)
            except ValueError as error:
                if "v.shape is (2, 160, 4, 32)" not in str(error):  # not another thread's sentence
                    wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_other_threads_run_meanwhile():
    """The GIL is released: a counter goes on while a long call runs."""
    q = np.random.default_rng(0).standard_normal((1, 4096, 4, 64), dtype=np.float32)
    count, stop = [0], threading.Event()

    def counter():
        while not stop.is_set():
            count[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=counter)
    thread.start()
    before = count[0]
    strobe.attention(q, q, q, threads=1, kernel="cpu_forward_baseline")
    during = count[0] - before
    stop.set()
    thread.join()
    assert during > 5


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_fork():
    """A child forked from a process with workers at work has threads of its own, and the same results."""
    q, k, v = np.random.default_rng(1).standard_normal((3, 2, 160, 4, 32), dtype=np.float32)
    truth = strobe.attention(q, k, v, threads=4)
    busy = threading.Thread(target=lambda: [strobe.attention(q, k, v, threads=4) for _ in range(200)])
    busy.start()
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            same = all(np.array_equal(strobe.attention(q, k, v, threads=4), truth) for _ in range(3))
            os._exit(0 if same else 1)
        children.append(child)
    end = time.monotonic() + 60
    codes = {}
    while len(codes) < len(children) and time.monotonic() < end:
        for child in children:
            if child not in codes and (done := os.waitpid(child, os.WNOHANG))[0]:
                codes[child] = os.waitstatus_to_exitcode(done[1])
        time.sleep(0.01)
    for child in set(children) - set(codes):
        os.kill(child, 9)
        os.waitpid(child, 0)
    busy.join()
    assert list(codes.values()) == [0] * 5


def test_interpreter_shutdown(python):
    """Calls in daemon threads, live results and module teardown at exit: no crash, no message."""
    program = """
import threading, numpy as np, strobe
q = np.zeros((1, 64, 4, 32), np.float32)
def work():
    while True: strobe.attention(q, q, q, threads=3)
for _ in range(4): threading.Thread(target=work, daemon=True).start()
class Late:
    def __del__(self): strobe.attention(q, q, q)
late, kept = Late(), strobe.attention(q, q, q, threads=2)
import time; time.sleep(0.3)
print("done")
"""
    for _ in range(3):
        assert python(program) == "done\n"


def test_results_outlive_everything(python):
    program = """
import sys, numpy as np, strobe
q = np.ones((1, 4, 1, 8), np.float32)
out = strobe.attention(q, q, q)
for name in [n for n in sys.modules if n.startswith("strobe")]: del sys.modules[name]
del strobe
import gc; gc.collect()
print(float(out.sum()))
import strobe
print(float(strobe.attention(q, q, q).sum()))
"""
    assert python(program) == "32.0\n32.0\n"


def test_import_brings_no_framework(python):
    assert python("import strobe, sys; print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules])") == "[]\n"
