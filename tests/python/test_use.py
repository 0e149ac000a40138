# SPDX-License-Identifier: BSD-3-Clause
"""strobe.torch as models use it, on each device: part of the inputs with gradients, gradients of any strides, autocast,
checkpoints, copies, modes without gradients; and what is refused there."""

import copy
import io

import pytest
import strobe
import strobe.torch as st
import torch
from torch.utils.checkpoint import checkpoint


def tensors(device, dtype=torch.float32, rows=20, heads=4):
    torch.manual_seed(0)
    return [torch.randn(2, rows, heads, 64).to(device, dtype) for _ in range(4)]


def call(*inputs, **options):
    return st.attention(*inputs, causal=True, deterministic=True, **options)


def test_gradients_of_some_inputs_only(device):
    q, k, v, dout = tensors(device)
    bias, sinks = torch.randn(4, 20, 20, device=device), torch.randn(4, device=device)
    every = dict(zip("qkvbs", [x.clone().requires_grad_() for x in (q, k, v, bias, sinks)], strict=True))
    out = call(every["q"], every["k"], every["v"], bias=every["b"], sinks=every["s"])
    expected = dict(zip(every, torch.autograd.grad(out, list(every.values()), dout), strict=True))
    for wanted in ("q", "k", "v", "b", "s", "kv", "qs"):
        some = {n: x.detach().clone().requires_grad_(n in wanted) for n, x in every.items()}
        call(some["q"], some["k"], some["v"], bias=some["b"], sinks=some["s"]).backward(dout)
        for name, x in some.items():
            assert (x.grad is not None) == (name in wanted)
            assert x.grad is None or torch.equal(x.grad, expected[name])


@pytest.mark.parametrize("kind", ["transposed", "every other element", "one number", "one row", "negative bit"])
def test_gradients_of_any_strides(device, kind):
    q, k, v, dout = tensors(device)
    dout = {
        "transposed": dout.transpose(1, 2).contiguous().transpose(1, 2),
        "every other element": torch.stack([dout, dout], -1)[..., 0],
        "one number": torch.ones((), device=device).expand(q.shape),
        "one row": dout[:1, :1, :1].expand(q.shape),
        "negative bit": torch._neg_view(dout),
    }[kind]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = call(*leaves)
    first = torch.autograd.grad(out, leaves, dout, retain_graph=True)
    second = torch.autograd.grad(out, leaves, dout.clone(memory_format=torch.contiguous_format))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_a_gradient_through_lse_alone(device):
    leaves = [x.requires_grad_() for x in tensors(device)[:3]]
    _, lse = call(*leaves, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), leaves)
    assert (dv == 0).all() and (dq != 0).any() and (dk != 0).any()


def test_autocast(device):
    dtype = torch.bfloat16
    leaves = [x.requires_grad_() for x in tensors(device)[:3]]
    with torch.autocast(device, dtype=dtype):
        out = call(*leaves)
        sdpa = st.scaled_dot_product_attention(*(x.transpose(1, 2) for x in leaves))
    assert out.dtype == sdpa.dtype == dtype
    out.sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in leaves)


def test_without_gradients(device):
    q, k, v, _ = tensors(device)
    leaf = q.clone().requires_grad_()
    with torch.no_grad():
        assert not call(leaf, k, v).requires_grad
    with torch.inference_mode():
        out = call(leaf, k, v)
    assert out.is_inference() and torch.equal(out, call(q, k, v))
    assert not call(q, k, v).requires_grad and call(leaf, k, v).requires_grad


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(device, reentrant):
    """The forward runs again in backward and draws the same dropout."""
    q, k, v, dout = tensors(device)
    gradients = []
    for run in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=reentrant)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(7)
        run(lambda *x: call(*x, dropout=0.3), *leaves).backward(dout)
        gradients.append([x.grad for x in leaves])
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


def test_results_are_copied_saved_and_resized(device):
    out = call(*tensors(device)[:3])
    file = io.BytesIO()
    torch.save(out, file)
    file.seek(0)
    assert torch.equal(copy.deepcopy(out), out) and torch.equal(torch.load(file), out)
    assert out.clone().resize_(2, 40, 4, 64).shape == (2, 40, 4, 64)
    assert out.resize_(4).shape == (4,) and out.resize_(2, 99, 4, 64).numel() == 2 * 99 * 4 * 64


def test_an_input_that_was_changed_has_no_gradient(device):
    q, k, v, dout = tensors(device)
    leaf = q.clone().requires_grad_()
    out = call(leaf, k, v)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward(dout)


def test_second_derivatives_are_refused(device):
    leaves = [x.requires_grad_() for x in tensors(device)[:3]]
    (gradient,) = torch.autograd.grad(call(*leaves).sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        gradient.sum().backward()


def test_tensors_without_data():
    """On PyTorch's meta device results have shapes alone; the library's own call has nothing to read."""
    q, k, v = (x.requires_grad_() for x in tensors("meta")[:3])
    out, lse = call(q, k, v, return_lse=True)
    assert out.device.type == lse.device.type == "meta" and out.shape == q.shape and lse.shape == (2, 4, 20)
    out.sum().backward()
    assert q.grad.shape == q.shape and q.grad.device.type == "meta"
    with pytest.raises(ValueError, match=r"q is a tensor on meta, torch.strided, whose data cannot be read"):
        strobe.attention(q.detach(), k.detach(), v.detach())
    with pytest.raises(ValueError, match="v is on cpu; q's device, meta, is accepted"):
        call(q, k, torch.zeros(v.shape))
    with pytest.raises(ValueError, match="mask is on cpu; q's device, meta, is accepted"):
        call(q, k, v, mask=torch.ones(20, 20, dtype=torch.bool))


@pytest.mark.parametrize("function", [strobe.attention, call])
def test_tensors_on_different_devices(device_or_skip, function):
    device_or_skip("cuda")
    q, k, v, _ = tensors("cuda")
    with pytest.raises((ValueError, NotImplementedError), match="k is on the CPU 0; q's, CUDA device 0, is accepted"):
        function(q, k.cpu(), v)
    with pytest.raises((ValueError, NotImplementedError), match="v is on CUDA device 0; q's, the CPU 0, is accepted"):
        function(q.cpu(), k.cpu(), v)
    with pytest.raises(ValueError, match="sinks is on the CPU 0; q's, CUDA device 0, is accepted"):
        function(q, k, v, sinks=torch.zeros(4))


def test_float64_on_cuda_is_refused(device_or_skip):
    device_or_skip("cuda")
    q, k, v, _ = tensors("cuda", torch.float64)
    with pytest.raises((ValueError, NotImplementedError), match=r"fp64|float64"):
        strobe.attention(q, k, v)


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1])
def test_seeds_of_64_bits(device, seed):
    """All bits count, as an int, as NumPy's uint64, and as the bits of an int64 tensor; every framework and kernel drops the
    same weights, which are seen by v = identity."""
    numpy = pytest.importorskip("numpy")
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 32, 4, 32)
    v = torch.eye(32).reshape(1, 32, 1, 32).expand(2, 32, 4, 32).contiguous()
    arrays, (q, k, v) = [x.numpy() for x in (q, k, v)], (x.to(device) for x in (q, k, v))
    for offset in ({"offset": 2**64 - 1}, {}):
        options = {"dropout": 0.5, **offset}
        dropped = strobe.attention(*arrays, seed=seed, **options, kernel="reference_forward") == 0
        assert 0.4 < dropped.mean() < 0.6
        for given in (seed, numpy.uint64(seed)):
            assert numpy.array_equal(strobe.attention(*arrays, seed=given, **options) == 0, dropped)
            assert numpy.array_equal((strobe.attention(q, k, v, seed=given, **options) == 0).cpu(), dropped)
        for other in (seed ^ 2**63, seed ^ 1):
            assert not numpy.array_equal((strobe.attention(q, k, v, seed=other, **options) == 0).cpu(), dropped)
    bits = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
    for given in (seed, numpy.uint64(seed), bits):
        assert numpy.array_equal((st.attention(q, k, v, dropout=0.5, seed=given) == 0).cpu(), dropped)
