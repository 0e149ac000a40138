# SPDX-License-Identifier: BSD-3-Clause
"""The compiled kernels of PyTorch's operators (python/src/aten.c): that they run, that they give the bits of the way through
Python, and that what they do not take goes that way with the same result or the same sentence."""

import re
import threading
import warnings
from pathlib import Path

import pytest
import strobe.torch as st
import torch
import torch.nn.functional as F
from strobe import _strobe
from strobe.torch import _compiled, _run
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(
    _compiled.efficient is None or not _compiled.REPLACED["CPU"], reason="a PyTorch without the stable C ABI of 2.10"
)


@pytest.fixture
def through_python(monkeypatch):
    """A function that calls another one with the compiled kernels switched off."""

    def call(function, *args):
        with monkeypatch.context() as patch:
            patch.setattr(_run, "_efficient", None)
            return function(*args)

    return call


def ran():
    """How many calls the compiled kernels have computed: forward, backward."""
    return torch.tensor(_strobe.aten_calls())


def leaves(*shapes, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes]


def with_gradients(q, k, v, dout=None, **options):
    out = st.scaled_dot_product_attention(q, k, v, **options)
    torch.manual_seed(1)
    return out, *torch.autograd.grad(out, (q, k, v), torch.randn_like(out) if dout is None else dout)


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        assert torch.equal(a, b)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "grouped": {"heads_kv": 2, "enable_gqa": True},
    "dims": {"dim_v": 24},
    "rectangle": {"keys": 13, "is_causal": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_through_python(through_python, name, dtype):
    options = dict(CASES[name])
    heads, keys, dim_v = options.pop("heads_kv", 4), options.pop("keys", 37), options.pop("dim_v", 16)
    tensors = leaves((2, 4, 37, 16), (2, heads, keys, 16), (2, heads, keys, dim_v), dtype=dtype)
    before = ran()
    got = with_gradients(*tensors, **options)
    assert (ran() - before).tolist() == [1, 1]
    with torch.no_grad():  # without lse, for which some kernels take finer exponentials
        alone = st.scaled_dot_product_attention(*tensors, **options)
        assert (ran() - before).tolist() == [2, 1]
        assert torch.equal(alone, through_python(lambda: st.scaled_dot_product_attention(*tensors, **options)))
    assert_same(got, through_python(lambda: with_gradients(*tensors, **options)))
    assert (ran() - before).tolist() == [2, 1]
    assert got[0].stride() == torch.empty_permuted(got[0].shape, (0, 2, 1, 3)).stride() and not got[0]._is_view()


MASKS = {
    "bool": lambda: torch.rand(2, 4, 9, 9) < 0.7,
    "padding": lambda: torch.rand(2, 1, 1, 9) < 0.7,
    "float": lambda: torch.randn(2, 4, 9, 9),
    "two axes": lambda: torch.randn(9, 9),
    "three axes": lambda: torch.randn(4, 1, 9),
    "expanded": lambda: torch.randn(1, 1, 1, 9).expand(2, 4, 9, 9),
    "half": lambda: torch.randn(9, 9).half(),
    "hides all": lambda: torch.zeros(9, 9, dtype=torch.bool),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(through_python, name):
    tensors, mask = leaves((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16)), MASKS[name]()
    before = ran()
    got = with_gradients(*tensors, attn_mask=mask)
    assert (ran() - before).tolist() == [1, 1]
    expected = through_python(lambda: with_gradients(*tensors, attn_mask=mask))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    (gradient,) = torch.autograd.grad(st.scaled_dot_product_attention(*tensors, mask).sum(), tensors[0], create_graph=True)
    assert torch.equal(gradient, torch.autograd.grad(st.scaled_dot_product_attention(*tensors, mask).sum(), tensors[0])[0])


def test_masks_that_go_through_python():
    tensors = leaves((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16))
    before = ran()
    bias = torch.randn(9, 9, requires_grad=True)
    st.scaled_dot_product_attention(*tensors, bias).sum().backward()
    assert bias.grad.any()
    for mask in (torch.randn(9, 1), torch.randn(9, 18)[:, ::2]):
        out = st.scaled_dot_product_attention(*tensors, mask)
        expected = F.scaled_dot_product_attention(*tensors, mask)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for mask in (torch.ones(9, 9, dtype=torch.int32), torch.randn(8, 8)):
        with pytest.raises((ValueError, RuntimeError)):
            st.scaled_dot_product_attention(*tensors, mask)
    assert (ran() - before).tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="no gradient for these tensors"):  # of attn_bias, asked of the operator itself
        torch._scaled_dot_product_efficient_attention(*tensors, bias, True)[0].sum().backward()


HEADS_LAST = {
    "attention": (lambda q, k, v: st.attention(q, k, v), [1, 1]),
    "causal": (lambda q, k, v: st.attention(q, k, v, causal=True), [1, 1]),
    "top-left": (lambda q, k, v: st.attention(q, k[:, :5], v[:, :5], causal=True, diagonal="top_left"), [1, 1]),
    "bottom-right": (lambda q, k, v: st.attention(q, k[:, :5], v[:, :5], causal=True), [0, 0]),
    "window": (lambda q, k, v: st.attention(q, k, v, window=(2, 2)), [0, 0]),
    "lse": (lambda q, k, v: st.attention(q, k, v, return_lse=True)[0], [0, 0]),
    "flash_attn_func": (lambda q, k, v: st.flash_attn_func(q, k, v, softmax_scale=0.2, causal=True), [1, 1]),
}


@pytest.mark.parametrize("name", HEADS_LAST)
def test_heads_behind_rows(through_python, name):
    """The calls on (batch, seq, heads, dim): by the kernel where the call is plain, and the same bits either way."""
    call, expected = HEADS_LAST[name]
    tensors = leaves((2, 9, 4, 16), (2, 9, 4, 16), (2, 9, 4, 16))

    def work():
        out = call(*tensors)
        return out, *torch.autograd.grad(out.square().sum(), tensors)

    before = ran()
    got = work()
    assert (ran() - before).tolist() == expected
    assert_same(got, through_python(work))
    with torch.no_grad():
        assert torch.equal(call(*tensors), got[0])


LAYOUTS = {
    "heads behind rows": lambda: torch.randn(2, 9, 4, 16).transpose(1, 2),
    "packed": lambda: torch.randn(2, 9, 3, 4, 16).unbind(2)[1].transpose(1, 2),
    "columns apart": lambda: torch.randn(2, 4, 16, 9).transpose(2, 3),
    "every second": lambda: torch.randn(2, 4, 9, 32)[..., ::2],
    "repeated heads": lambda: torch.randn(2, 1, 9, 16).expand(2, 4, 9, 16),
    "one row": lambda: torch.randn(16).expand(2, 4, 9, 16),
    "one number": lambda: torch.randn(()).expand(2, 4, 9, 16),
    "a part": lambda: torch.randn(2, 4, 12, 20)[:, :, 2:11, 3:19],
    "negative": lambda: torch.randn(2, 4, 9, 16, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(through_python, layout):
    torch.manual_seed(0)
    q, k, v = (LAYOUTS[layout]().detach().requires_grad_() for _ in range(3))
    dense = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in (q, k, v)]
    dout = LAYOUTS[layout]()
    before = ran()
    got = with_gradients(q, k, v, dout)
    assert (ran() - before).tolist() == [1, 1]
    assert_same(got, through_python(lambda: with_gradients(*dense, dout.clone(memory_format=torch.contiguous_format))))


def test_a_gradient_that_is_no_plain_tensor(through_python):
    """The dispatcher has something to do for it before a kernel: a negative bit, zeros without memory, a subclass."""

    class Subclass(torch.Tensor):
        pass

    dout = torch.randn(1, 2, 5, 8)
    zeros = torch._efficientzerotensor(dout.shape)
    for given in (torch._neg_view(dout), dout.as_subclass(Subclass), zeros, torch.ones(()).expand(dout.shape)):
        tensors = leaves((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
        got, dense = with_gradients(*tensors, given), given.clone() + 0
        for a, b in zip(got, through_python(with_gradients, *tensors, dense), strict=True):
            assert torch.equal(a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor))


class Seen(TorchDispatchMode):
    """The names of the operators that a mode is shown."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def test_a_mode_is_shown_the_gradient():
    """Without one the kernel is called past the dispatcher, with the same bits."""
    tensors = leaves((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    expected = with_gradients(*tensors)
    out = st.scaled_dot_product_attention(*tensors)
    torch.manual_seed(1)
    dout = torch.randn_like(out)
    before = ran()
    with Seen() as seen:
        gradients = torch.autograd.grad(out, tensors, dout)
    assert (ran() - before).tolist() == [0, 1]
    assert any("_efficient_backward_below" in name for name in seen.names)
    assert_same((out, *gradients), expected)


class NoGradient(torch.autograd.Function):
    """The identity, through which no gradient passes."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return None


@pytest.mark.parametrize("function", ["strobe", "replaced", "in a graph"])
def test_a_gradient_that_is_none(function):
    """Of an output that no loss depends on: the backward is called, and has nothing to compute."""
    q, k, v = leaves((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    before = ran()
    if function == "replaced":
        st.activate()
    try:
        out = (F if function == "replaced" else st).scaled_dot_product_attention(q, k, v)
        loss = NoGradient.apply(out).sum() + q.sum()
        gradients = torch.autograd.grad(loss, (q, k, v), allow_unused=True, create_graph=function == "in a graph")
    finally:
        st.deactivate()
    assert torch.equal(gradients[0], torch.ones_like(q)) and gradients[1] is None and gradients[2] is None
    assert (ran() - before).tolist() == [1, 0]


def test_small_extents(through_python):
    for shape in ((1, 1, 1, 1), (1, 1, 1, 8), (3, 1, 1, 8), (1, 3, 1, 8), (1, 1, 3, 8), (1, 1, 3, 1)):
        tensors = leaves(shape, shape, shape)
        assert_same(with_gradients(*tensors), through_python(lambda t=tensors: with_gradients(*t)))


def test_empty_tensors_go_through_python():
    before = ran()
    for rows, keys in ((0, 5), (5, 0), (0, 0)):
        q, k, v = leaves((2, 3, rows, 8), (2, 3, keys, 8), (2, 3, keys, 8))
        out, *gradients = with_gradients(q, k, v)
        assert out.shape == (2, 3, rows, 8) and not out.any()
        assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]
    assert (ran() - before).tolist() == [0, 0]


def q_of(*shape, **options):
    return torch.randn(*shape, **options)


REFUSED = [
    (q_of(1, 2, 4, 8), q_of(1, 2, 4, 9), q_of(1, 2, 4, 8), {}),
    (q_of(1, 2, 4, 8), q_of(1, 2, 4, 8), q_of(1, 2, 5, 8), {}),
    (q_of(1, 3, 4, 8), q_of(1, 2, 4, 8), q_of(1, 2, 4, 8), {"enable_gqa": True}),
    (q_of(1, 2, 4, 8), q_of(1, 2, 4, 8).half(), q_of(1, 2, 4, 8), {}),
    (q_of(1, 2, 4, 8), q_of(1, 2, 4, 8), q_of(1, 2, 4, 8), {"scale": 1e-40}),
    (q_of(1, 2, 4, 8), q_of(1, 2, 4, 8), q_of(1, 2, 4, 8), {"scale": float("nan")}),
    (q_of(1, 1, 4, 600), q_of(1, 1, 4, 600), q_of(1, 1, 4, 600), {}),
    (torch.ones(1, 2, 4, 8, dtype=torch.int32),) * 3 + ({},),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_the_same_sentences_as_through_python(through_python, case):
    *tensors, options = REFUSED[case]

    def sentence():
        with pytest.raises((ValueError, NotImplementedError, TypeError, RuntimeError)) as raised:
            st.scaled_dot_product_attention(*tensors, **options)
        return raised.type, str(raised.value)

    assert sentence() == through_python(sentence)


def test_a_part_of_the_gradients():
    for wanted in ((True, False, False), (False, True, False), (False, False, True), (True, False, True)):
        tensors = leaves((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
        complete = with_gradients(*tensors)[1:]
        some = [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]
        out = st.scaled_dot_product_attention(*some)
        torch.manual_seed(1)
        out.backward(torch.randn_like(out))
        for x, want, gradient in zip(some, wanted, complete, strict=True):
            assert torch.equal(x.grad, gradient) if want else x.grad is None


def test_second_derivatives_are_refused():
    (q,) = leaves((1, 2, 4, 8))
    (gradient,) = torch.autograd.grad(st.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
    (plain,) = torch.autograd.grad(st.scaled_dot_product_attention(q, q, q).sum(), q)
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(NotImplementedError, match="no second derivatives of attention; gradients without create_graph=True"):
        gradient.sum().backward()


def test_what_autograd_offers():
    """Modes without a gradient, retained graphs, saved tensors that are moved or changed, checkpoints, results in place."""
    q, k, v = leaves((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    call = st.scaled_dot_product_attention
    expected = with_gradients(q, k, v, torch.ones(1, 2, 5, 8))
    with torch.inference_mode():
        out = call(q, k, v)
        assert out.is_inference() and torch.equal(out, expected[0])
    with torch.no_grad():
        assert not call(q, k, v).requires_grad
    out = call(q, k, v)
    for _ in range(2):
        assert_same(torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True), expected[1:])
    with torch.autograd.graph.save_on_cpu():
        assert_same(torch.autograd.grad(call(q, k, v).sum(), (q, k, v)), expected[1:])
    out = torch.utils.checkpoint.checkpoint(call, q, k, v, use_reentrant=False)
    assert_same(torch.autograd.grad(out.sum(), (q, k, v)), expected[1:])
    out = call(q, k, v)
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(torch.autograd.grad(call(q, k, v).sum(), (q, k, v)), expected[1:])
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_compiled_backward():
    """PyTorch's compiled autograd traces the operators of a backward whose forward was eager."""
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    tensors = leaves((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    expected = with_gradients(*tensors, torch.ones(1, 2, 9, 16))[1:]
    out = st.scaled_dot_product_attention(*tensors)
    with compiled_autograd._enable(torch.compile(backend="aot_eager")):
        out.sum().backward()
    assert all(torch.equal(x.grad, gradient) for x, gradient in zip(tensors, expected, strict=True))


def test_threads():
    tensors = leaves((2, 3, 70, 64), (2, 3, 70, 64), (2, 3, 70, 64))
    expected, wrong = with_gradients(*tensors), []

    def work():
        for _ in range(20):
            own = [x.detach().clone().requires_grad_() for x in tensors]
            out = st.scaled_dot_product_attention(*own)
            torch.autograd.backward(out.sum())
            if not torch.equal(out, expected[0]) or any(x.grad is None for x in own):
                wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- in the place of PyTorch's own kernels


@pytest.fixture
def active():
    st.activate()
    yield
    st.deactivate()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_pytorchs_operator(active, layout):
    """Whichever way a layout goes, results and their strides are as PyTorch says: compiled graphs count on them."""
    torch.manual_seed(0)
    q, k, v = (LAYOUTS[layout]().detach().requires_grad_() for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some layouts go to PyTorch's kernel
        before = ran()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        by_kernel = (ran() - before).tolist() == [1, 1]
    assert by_kernel or layout not in ("heads behind rows", "packed", "a part")
    st.deactivate()
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for a, b in zip((out, *gradients), (expected, *torch.autograd.grad(expected.sum(), (q, k, v))), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    if by_kernel:
        assert out.stride() == torch.empty_like(q).stride()
        assert [x.stride() for x in gradients] == [torch.empty_permuted(q.shape, (0, 2, 1, 3)).stride()] * 3


@pytest.mark.parametrize("shape", [(9, 9), (1, 9), (1, 1, 9, 9), (2, 1, 1, 9), (2, 4, 9, 9), (1, 4, 9, 9)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_pytorchs_operator(active, shape, dtype):
    q, k, v = leaves((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16))
    mask = torch.rand(shape) < 0.7 if dtype == torch.bool else torch.randn(shape)
    mask[..., 0] = True if dtype == torch.bool else 0.5
    before = ran()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert (ran() - before).tolist() == [1, 1]
    st.deactivate()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    for a, b in zip((out, *gradients), (expected, *torch.autograd.grad(expected.sum(), (q, k, v))), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_forward_and_backward_of_either_library():
    """activate() or deactivate() between a forward and its backward: both keep the same lse."""
    tensors = leaves((2, 3, 40, 16), (2, 3, 40, 16), (2, 3, 40, 16))
    results = []
    for first, second in ((False, False), (True, False), (False, True)):
        (st.activate if first else st.deactivate)()
        out = F.scaled_dot_product_attention(*tensors)
        (st.activate if second else st.deactivate)()
        results.append(torch.autograd.grad(out.square().sum(), tensors))
        st.deactivate()
    for got in results[1:]:
        for a, b in zip(got, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_deactivate_in_the_middle_of_a_backward(active):
    q, k, v = leaves((2, 3, 40, 16), (2, 3, 40, 16), (2, 3, 40, 16))
    before = ran()
    first = F.scaled_dot_product_attention(q, k, v)
    second = F.scaled_dot_product_attention(first, k, v)
    first.register_hook(lambda gradient: st.deactivate())
    second.sum().backward()
    assert (ran() - before).tolist() == [2, 1]
    expected = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    F.scaled_dot_product_attention(F.scaled_dot_product_attention(q, k, v), k, v).sum().backward()
    for a, x in zip(expected, (q, k, v), strict=True):
        torch.testing.assert_close(a, x.grad, rtol=1e-4, atol=1e-5)


def test_activate_while_others_call():
    """A call is one library's or the other's, also while the kernels change places under it."""
    tensors = leaves((1, 2, 40, 16), (1, 2, 40, 16), (1, 2, 40, 16))
    expected = torch.autograd.grad(F.scaled_dot_product_attention(*tensors).sum(), tensors)
    done, wrong = threading.Event(), []

    def work():
        while not done.is_set():
            got = torch.autograd.grad(F.scaled_dot_product_attention(*tensors).sum(), tensors)
            if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, expected, strict=True)):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        st.activate()
        st.deactivate()
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_of_pytorchs_kernel(active):
    """It comes through the kernel that has handed the call on, with its sentence where PyTorch tells."""
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.5)


def test_other_ways_to_call_it(active):
    """vmap, functional gradients and meta tensors come by the same operators."""
    q, k, v = (x.detach() for x in leaves((3, 2, 4, 9, 16), (3, 2, 4, 9, 16), (3, 2, 4, 9, 16)))
    mapped = torch.func.vmap(F.scaled_dot_product_attention)(q, k, v)
    torch.testing.assert_close(mapped[1], F.scaled_dot_product_attention(q[1], k[1], v[1]), rtol=1e-4, atol=1e-5)
    gradient = torch.func.grad(lambda x: F.scaled_dot_product_attention(x, k[0], v[0]).sum())(q[0])
    x = q[0].clone().requires_grad_()
    F.scaled_dot_product_attention(x, k[0], v[0]).sum().backward()
    torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-5)
    meta = q[0].to("meta")
    assert F.scaled_dot_product_attention(meta, meta, meta).shape == meta.shape


# ---- without the kernels

WITHOUT = """
import os
os.environ["STROBE_TORCH_ABI"] = "0"
import torch, torch.nn.functional as F
import strobe.torch as st
from strobe import _strobe
from strobe.torch import _compiled, _run
assert not _compiled.OPEN and _compiled.efficient is None and _compiled.REPLACED == {"CPU": (), "CUDA": ()}
q = torch.randn(1, 2, 9, 16, requires_grad=True)
expected = F.scaled_dot_product_attention(q, q, q, is_causal=True)
(gradient,) = torch.autograd.grad(expected.sum(), q)
st.activate()
for call in (F.scaled_dot_product_attention, st.scaled_dot_product_attention):
    out = call(q, q, q, is_causal=True)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), q)[0], gradient, rtol=1e-4, atol=1e-5)
st.deactivate()
assert _strobe.aten_calls() == (0, 0)
for other in ("/nowhere/libtorch_cpu.so", "libc.so.6"):  # not loaded; loaded, but not PyTorch's
    assert not _strobe.aten_open(other)
for use in (lambda: _strobe.aten_register("replaced CPU"), lambda: _strobe.aten_register("offered CPU")):
    try:
        use()
    except RuntimeError as refusal:
        print(refusal)
"""


def test_a_process_without_them(python):
    assert python(WITHOUT) == "PyTorch's library has not been opened\n" * 2


# ---- the declarations

TYPES = {  # PyTorch's, as torch_abi.h has them
    "void (*fn)(StableIValue*, uint64_t, uint64_t)": "stable_kernel *",
    "AOTITorchError": "torch_error",
    "AtenTensorHandle": "struct torch_tensor *",
    "StableListHandle": "struct torch_list *",
    "TorchLibraryHandle": "struct torch_library *",
    "StableIValue": "stable_value",
}


def normal(declaration):
    """A type without its parameter's name, and with its stars at the end."""
    words = re.sub(r"\s*\*\s*", " * ", " ".join(declaration.split()).strip()).split()
    stars, words = words.count("*"), [word for word in words if word != "*"]
    known = {"const", "struct", "void", "bool", "char", "stable_value", "stable_kernel", "torch_error"}
    kept = [word for word in words if word in known or word.endswith("_t") or word.startswith("torch_")]
    return " ".join(kept) + "*" * stars


def test_declarations_are_pytorchs():
    """Result and parameters of each function that torch_abi.h declares, against the headers that come with PyTorch."""
    source = Path(__file__).parents[2] / "python" / "src"
    names = dict(re.findall(r'\{AT\((\w+)\), "(\w+)"\}', (source / "torch_abi.c").read_text(encoding="utf-8")))
    names["current_stream"] = "aoti_torch_get_current_cuda_stream"  # of the library with the CUDA backend
    ours = (source / "torch_abi.h").read_text(encoding="utf-8")
    ours = re.sub(r"int32_t \(\*(float32|uint8)\).*;", "", re.sub(r"/\*.*?\*/", "", ours, flags=re.DOTALL))
    include = Path(torch.__file__).parent / "include" / "torch" / "csrc"
    headers = [path for name in ("shim.h", "c_shim_aten.h") for path in sorted(include.rglob(name))]
    theirs = "".join(path.read_text(encoding="utf-8") for path in headers)
    theirs = re.sub(r"//.*", "", theirs)
    compared = 0
    for result, member, parameters in re.findall(r"(\w+) \(\*(\w+)\)\(([^;]*)\);", ours):
        if member not in names:
            continue
        found = re.search(rf"AOTI_TORCH_EXPORT\s+(\w+)\s+{names[member]}\(([^;]*)\);", theirs)
        assert found, names[member]
        declared = " ".join(found[0].split())
        for name, type_ in TYPES.items():
            declared = declared.replace(name, type_)
        declared = re.search(rf"AOTI_TORCH_EXPORT (\w+) {names[member]}\((.*)\);", declared)
        assert normal(result) == normal(declared[1])
        expected = [normal(x) for x in declared[2].split(",")] if declared[2].strip() else ["void"]
        assert [normal(x) for x in parameters.split(",")] == expected, names[member]
        compared += 1
    assert compared == len(names) - 8  # the dtypes, on two lines
