# SPDX-License-Identifier: BSD-3-Clause
"""Calls on the threads of PyTorch's operators, and on Strobe's own workers: the same bits, from any thread, after a fork."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import strobe
import strobe.torch as st
import torch


@pytest.fixture(autouse=True)
def shared_again():
    before = strobe.get_num_threads(), torch.get_num_threads()
    strobe.set_num_threads(2)
    torch.set_num_threads(2)
    yield
    strobe.set_num_threads(before[0])
    torch.set_num_threads(before[1])
    st.share_threads()


def gradients():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 150, 4, 32, requires_grad=True) for _ in range(3))
    out = st.attention(q, k, v, causal=True)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))]


def test_the_same_bits():
    assert not st.share_threads(False)
    own = gradients()
    assert st.share_threads()
    torch.randn(500, 500) @ torch.randn(500, 500)  # the team is there
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(gradients(), own, strict=True))
    torch.set_num_threads(1)  # a team of another size is left alone
    assert all(torch.equal(a, b) for a, b in zip(gradients(), own, strict=True))


def test_other_threads():
    own = gradients()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: st.attention(*[torch.ones(1, 200, 2, 16)] * 3), range(12)):
            assert torch.equal(found, torch.ones(1, 200, 2, 16))
    assert all(torch.equal(a, b) for a, b in zip(gradients(), own, strict=True))


FORKED = """
import os, torch, strobe, strobe.torch as st
strobe.set_num_threads(2), torch.set_num_threads(2)
q = torch.ones(1, 300, 4, 32)
torch.randn(500, 500) @ torch.randn(500, 500)
assert torch.equal(st.attention(q, q, q), q)
child = os.fork()
if child == 0:
    out = st.attention(q, q, q).numpy()  # an operator of PyTorch's may wait for the team that is gone
    os._exit(0 if (out == 1).all() else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(st.attention(q, q, q), q)
"""


def test_after_a_fork():
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=120, env=os.environ)


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError):
        strobe._strobe.share_threads(3)
