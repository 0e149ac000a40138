# SPDX-License-Identifier: BSD-3-Clause
"""strobe.torch.activate: each caller of PyTorch's own attention runs on Strobe, and on PyTorch again after deactivate."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import strobe.torch as st
import torch
import torch.nn.functional as F
from strobe import _strobe
from strobe.torch import _aten, _compiled

import reference

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="PyTorch without torch.library.get_kernel")


class Calls:
    """What Strobe has computed: its functions by name, which Python called, and the calls of compiled kernels."""

    def __init__(self):
        self.by_python, self.before = [], _strobe.aten_calls()

    def names(self):
        forward, backward = (now - then for now, then in zip(_strobe.aten_calls(), self.before, strict=True))
        return sorted(self.by_python + ["attention"] * forward + ["attention_backward"] * backward)

    def __eq__(self, names):
        return self.names() == sorted(names)

    __hash__ = None

    def __len__(self):
        return len(self.names())

    def __repr__(self):
        return repr(self.names())


@pytest.fixture(params=["compiled", "python"])
def calls(request, monkeypatch):
    """Strobe active for one test, by compiled kernels where PyTorch takes them, and through Python; what ran."""
    if request.param == "python":
        monkeypatch.setattr(_compiled, "REPLACED", {"CPU": (), "CUDA": ()})
    elif not _compiled.REPLACED["CPU"]:
        pytest.skip("a PyTorch without the stable C ABI of 2.10")
    ran = Calls()

    class Counted:
        def __getattr__(self, name):
            def call(*args, **kwargs):
                ran.by_python.append(name)
                return getattr(_strobe, name)(*args, **kwargs)

            return call

    monkeypatch.setattr(_aten, "_strobe", Counted())
    st.activate()
    yield ran
    st.deactivate()
    assert request.param == "compiled" or _strobe.aten_calls() == ran.before


def test_a_word_on_dropout(calls):
    """PyTorch has no fused kernel for it on the CPU; its own composition runs, with what it drops, and a warning says so once."""
    q = torch.randn(1, 2, 8, 16, requires_grad=True)

    def run(p):
        torch.manual_seed(1)
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=p)
        return out.detach(), torch.autograd.grad(out.sum(), q)[0]

    with pytest.warns(UserWarning, match=r"instead of Strobe's: dropout_p is 0.5; 0 is accepted") as said:
        found = run(0.5)
    assert said[0].filename == __file__  # not of a line between
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(0.5)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            run(0.0)
        with torch.inference_mode():
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert not calls
    st.deactivate()
    for x, y in zip(found, run(0.5), strict=True):
        assert torch.equal(x, y)


def leaves(device, *shape, dtype=torch.bfloat16, count=3):
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=dtype, device=device, requires_grad=True) for _ in range(count)]


def close(got, tensors, dout, **options):
    """Out and its gradients are as near to float64 as everywhere in these tests (reference.assert_close)."""
    results = [got.detach(), *torch.autograd.grad(got, tensors, dout)]
    expected = []
    for dtype in (torch.float64, got.dtype):
        copies = [x.detach().cpu().to(dtype).requires_grad_() for x in tensors]
        out, lse = reference.attention(*(x.transpose(1, 2) for x in copies), dtype=dtype, **options)
        gradients = torch.autograd.grad(out.transpose(1, 2), copies, dout.cpu().to(dtype))
        expected.append([out.detach().transpose(1, 2), *gradients])
    heads_last = [x.detach().cpu().transpose(1, 2) for x in (*tensors, dout)]
    terms = reference.terms(*heads_last, torch.zeros(1), lse.detach())
    for name, x, true, plain in zip(("out", "q", "k", "v"), results, *expected, strict=True):
        reference.assert_close(x.cpu(), true, plain, 2 if name == "out" else 3, name, terms.get(name, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(calls, device, dtype, causal):
    tensors = leaves(device, 2, 3, 70, 64, dtype=dtype)
    out = F.scaled_dot_product_attention(*tensors, is_causal=causal)
    close(out, tensors, torch.randn_like(out), causal=causal, diagonal="top_left")
    assert calls == ["attention", "attention_backward"]


@pytest.mark.parametrize("kind", ["bool", "padding", "float"])
def test_masks(calls, device, kind):
    tensors = leaves(device, 2, 3, 40, 64)
    mask = torch.rand(2, 1, 1 if kind == "padding" else 40, 40, device=device) < 0.7
    mask[..., :5] = True
    given = torch.randn(2, 3, 40, 40, device=device, dtype=torch.bfloat16) if kind == "float" else mask
    out = F.scaled_dot_product_attention(*tensors, attn_mask=given)
    close(out, tensors, torch.randn_like(out), **{"bias" if kind == "float" else "mask": given.cpu()})
    assert calls == ["attention", "attention_backward"]


def test_modules(calls, device):
    attention = torch.nn.MultiheadAttention(64, 4, batch_first=True, device=device, dtype=torch.bfloat16)
    layer = torch.nn.TransformerEncoderLayer(64, 4, dropout=0, batch_first=True, device=device, dtype=torch.bfloat16)
    (x,) = leaves(device, 2, 30, 64, count=1)
    attention(x, x, x, need_weights=False)[0].sum().backward()
    assert calls == ["attention", "attention_backward"]
    layer(x).sum().backward()
    assert calls == ["attention", "attention_backward"] * 2
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert calls == ["attention", "attention_backward"] * 3 + ["attention"]


@pytest.mark.parametrize("masks", ["none", "padding", "both"])
def test_modules_without_a_gradient(calls, masks):
    """PyTorch's fast path on the CPU, which does not come by scaled_dot_product_attention."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).eval()
    x, padding = torch.randn(2, 30, 64), torch.arange(30) > torch.tensor([[29], [17]])
    causal = torch.ones(30, 30, dtype=torch.bool).triu(1)
    given = {
        "none": {},
        "padding": {"src_key_padding_mask": padding},
        "both": {"src_key_padding_mask": padding, "src_mask": causal},
    }
    own = {"key_padding_mask": padding, "attn_mask": causal} if masks == "both" else {}
    attention = layer.self_attn
    with torch.no_grad():
        got = layer(x, **given[masks]), attention(x, x, x, need_weights=False, **own)[0]
        assert calls == ["attention"] * 2
        st.deactivate()
        expected = layer(x, **given[masks]), attention(x, x, x, need_weights=False, **own)[0]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a[~padding], b[~padding], rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


def test_weights_are_pytorchs(calls):
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    with torch.no_grad(), pytest.warns(UserWarning, match="need_weights is True; False is accepted") as said:
        weights = attention(x, x, x)[1]
    assert said[0].filename == __file__
    with torch.no_grad():
        attention(x, y, y, need_weights=False)  # PyTorch has no fast path for these
    assert weights.shape == (2, 5, 5)
    assert calls == ["attention"]


def test_a_sentence_is_said_once(calls):
    q = torch.randn(1, 2, 9, 16, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            F.scaled_dot_product_attention(q, q, q)
        assert len(said) == 1
        st.deactivate()
        st.activate()
        F.scaled_dot_product_attention(q, q, q)
        assert len(said) == 2


def test_threads(calls):
    """Calls from many threads, forward and backward, have the results of one."""
    tensors = leaves("cpu", 2, 3, 70, 64)
    expected = torch.autograd.grad(F.scaled_dot_product_attention(*tensors, is_causal=True).sum(), tensors)

    def run(_):
        own = [x.detach().clone().requires_grad_() for x in tensors]
        return torch.autograd.grad(F.scaled_dot_product_attention(*own, is_causal=True).sum(), own)

    with ThreadPoolExecutor(4) as pool:
        for gradients in pool.map(run, range(16)):
            assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_autocast(calls, device):
    q, k, v = leaves(device, 1, 2, 20, 32, dtype=torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = F.scaled_dot_product_attention(q, k, v)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32
    assert calls == ["attention", "attention_backward"]


def test_compile(calls, device):
    """What was compiled while Strobe was active runs on PyTorch's kernels after deactivate, and the other way round."""
    tensors = leaves(device, 2, 2, 40, 64)
    compiled = torch.compile(lambda q, k, v: 2 * F.scaled_dot_product_attention(q, k, v, is_causal=True))
    first = torch.autograd.grad(compiled(*tensors).sum(), tensors)
    assert calls == ["attention", "attention_backward"]
    st.deactivate()
    second = torch.autograd.grad(compiled(*tensors).sum(), tensors)
    assert calls == ["attention", "attention_backward"]
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)
    st.activate()
    compiled(*tensors)
    assert calls == ["attention", "attention_backward", "attention"]


def test_refused_calls_run_on_pytorch(calls):
    q = torch.randn(1, 2, 9, 16, dtype=torch.float64, requires_grad=True)
    with pytest.warns(UserWarning, match=r"instead of Strobe's: query.dtype is torch.float64") as said:
        out = F.scaled_dot_product_attention(q, q, q)
        (gradient,) = torch.autograd.grad(out.sum(), q)
    assert {x.filename for x in said} == {__file__}
    assert calls == []
    st.deactivate()
    expected = F.scaled_dot_product_attention(q, q, q)
    assert torch.equal(out, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected.sum(), q)[0])


def test_activate_twice_and_deactivate_twice():
    st.activate()
    st.activate()
    st.deactivate()
    st.deactivate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.scaled_dot_product_attention(*leaves("cpu", 1, 1, 4, 8))


def test_pytorchs_registry_of_implementations(calls):
    attention = torch.nn.attention
    if not hasattr(attention, "activate_flash_attention_impl"):
        pytest.skip("PyTorch without a registry of attention implementations")
    assert attention.current_flash_attention_impl() == "strobe"
    attention.restore_flash_attention_impl()
    F.scaled_dot_product_attention(*leaves("cpu", 1, 1, 4, 8))
    assert calls == []
    attention.activate_flash_attention_impl("strobe")
    F.scaled_dot_product_attention(*leaves("cpu", 1, 1, 4, 8))
    assert calls == ["attention"]


def test_varlen_attn(calls, device_or_skip):
    device = device_or_skip("cuda")
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    q, k, v = leaves(device, 50, 2, 64)
    offsets = torch.tensor([0, 20, 50], dtype=torch.int32, device=device)
    varlen.varlen_attn(q, k, v, offsets, offsets, 30, 30).sum().backward()
    assert calls == ["attention", "attention_backward"]


@pytest.mark.parametrize("name", ["block_table", "num_splits"])
def test_arguments_of_varlen_attn_that_are_refused(name):
    q, k, v = (x.detach() for x in leaves("cpu", 1, 5, 2, 16))
    with pytest.raises(NotImplementedError, match=f"{name} is given; without it the call is accepted"):
        _aten._flash_forward(q, k, v, None, None, 5, 5, 0.0, False, False, **{name: 2})


OPERATORS = {
    "flash": (_aten._cuda, (), _aten._cuda_backward, lambda r: (*r[:2], None, None, 0, 0, 0.0, True, *r[6:8])),
    "cudnn": (
        _aten._cudnn, (None, True), _aten._cudnn_backward,
        lambda r: (*r[:2], *r[6:8], None, None, None, 0, 0, 0.0, True),
    ),
    "efficient": (
        _aten._efficient, (None, True), _aten._efficient_backward,
        lambda r: (None, *r, 0.0, [True, True, True, False], True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_of_cuda(operator):
    """What PyTorch calls on CUDA, called on the CPU, where the same functions work: which results belong where."""
    forward, given, backward, saved = OPERATORS[operator]
    q, k, v = (x.detach() for x in leaves("cpu", 2, 3, 37, 16, dtype=torch.float32))
    results = forward(q, k, v, *given, 0.0, True)
    dout = torch.randn_like(q)
    gradients = backward(dout, q, k, v, *saved(results))[:3]
    copies = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = reference.attention(*(x.transpose(1, 2) for x in copies), causal=True)
    expected = torch.autograd.grad(out.transpose(1, 2), copies, dout.double())
    for got, true in zip((results[0], results[1].flatten()[:37], *gradients), (out.transpose(1, 2), lse[0, 0], *expected),
                         strict=True):  # fmt: skip
        torch.testing.assert_close(got.double(), true.detach(), rtol=1e-5, atol=1e-5)
