# SPDX-License-Identifier: BSD-3-Clause
"""The compiled kernels of CUDA's operators of PyTorch (python/src/aten_cuda.c). They work on tensors of either device: on the
CPU, in the places that PyTorch leaves empty there, stack, shapes and strides are tested without a GPU; with one, the rest."""

import threading
import warnings

import pytest
import strobe
import strobe.torch as st
import torch
import torch.nn.functional as F
from strobe import _strobe
from strobe.torch import _compiled, _run
from strobe.torch._aten import OPERATORS
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.skipif(not _compiled.OPEN, reason="a PyTorch without the stable C ABI of 2.10")
on_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and any(k.device == "cuda" and not k.unavailable for k in strobe.kernels())),
    reason="no CUDA device, or a wheel without CUDA kernels",
)

FLASH, CUDNN, EFFICIENT, FOR_CPU = (
    f"_scaled_dot_product_{name}_attention{end}"
    for name, end in (("flash", ""), ("cudnn", ""), ("efficient", ""), ("flash", "_for_cpu"))
)


@pytest.fixture
def on_cpu():
    """The replacing kernels of CUDA in the CPU's places."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _strobe.aten_register("replaced CUDA", "CPU")
    yield
    _strobe.aten_unregister("replaced CUDA")


def ran():
    return torch.tensor(_strobe.aten_calls())


def leaves(*shapes, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes]


def call(operator, q, k, v, mask=None, causal=False, scale=None, lse=True):
    given = {FLASH: (0.0, causal, False), CUDNN: (mask, lse, 0.0, causal, False), EFFICIENT: (mask, lse, 0.0, causal)}
    return getattr(torch.ops.aten, operator)(q, k, v, *given[operator], scale=scale)


def meta(operator, *tensors, **options):
    """What PyTorch says that its own kernel gives."""
    mask = options.pop("mask", None)
    made = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in tensors]
    return call(operator, *made, mask if mask is None else mask.to("meta"), **options)


def assert_laid_out(got, expected):
    """Shapes, dtypes and strides of tensors; None and numbers as they are."""
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b or (a is None and b is None)
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert all(x == y for n, x, y in zip(a.shape, a.stride(), b.stride(), strict=True) if n > 1)


LAYOUTS = {
    "contiguous": lambda h, s, d: torch.randn(2, h, s, d),
    "heads behind rows": lambda h, s, d: torch.randn(2, s, h, d).transpose(1, 2),
    "packed": lambda h, s, d: torch.randn(2, s, 3, h, d).unbind(2)[1].transpose(1, 2),
}


@pytest.mark.parametrize("operator", [FLASH, CUDNN, EFFICIENT])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [4, 2])
def test_results_are_laid_out_as_pytorchs(on_cpu, operator, layout, heads):
    torch.manual_seed(0)
    q, k, v = (LAYOUTS[layout](h, 37, 16).requires_grad_() for h in (4, heads, heads))
    before = ran()
    got = call(operator, q, k, v, causal=True)
    assert_laid_out(got, meta(operator, q, k, v, causal=True))
    gradients = torch.autograd.grad(got[0].square().sum(), (q, k, v))
    assert (ran() - before).tolist() == [1, 1]
    bshd = operator == EFFICIENT
    like = [torch.empty_permuted(x.shape, (0, 2, 1, 3)) if bshd else torch.empty_like(x) for x in (q, k, v)]
    assert_laid_out(gradients, like)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for a, b in zip((got[0], *gradients), (expected, *torch.autograd.grad(expected.square().sum(), (q, k, v))), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", [CUDNN, EFFICIENT])
@pytest.mark.parametrize("kind", ["bool", "float", "padding"])
def test_masks(on_cpu, operator, kind):
    q, k, v = leaves((2, 4, 9, 16), (2, 4, 13, 16), (2, 4, 13, 24))
    mask = torch.rand(2, 1, 1 if kind == "padding" else 9, 13) < 0.7
    mask[..., 0] = True
    mask = torch.randn(2, 4, 9, 13) if kind == "float" else mask
    before = ran()
    got = call(operator, q, k, v, mask=mask, scale=0.3)
    assert_laid_out(got, meta(operator, q, k, v, mask=mask, scale=0.3))
    gradients = torch.autograd.grad(got[0].square().sum(), (q, k, v))
    assert (ran() - before).tolist() == [1, 1]
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    for a, b in zip((got[0], *gradients), (expected, *torch.autograd.grad(expected.square().sum(), (q, k, v))), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_lse_of_the_efficient_operator(on_cpu):
    """Whole 32s of rows, infinity behind the last one; of no rows where nobody asks for it."""
    q, k, v = (x.detach() for x in leaves((2, 3, 37, 16), (2, 3, 37, 16), (2, 3, 37, 16)))
    lse = call(EFFICIENT, q, k, v)[1]
    expected = torch.logsumexp(q @ k.mT / 4, -1)
    torch.testing.assert_close(lse[..., :37], expected)
    assert lse.shape == (2, 3, 64) and (lse[..., 37:] == torch.inf).all()
    assert call(EFFICIENT, q, k, v, lse=False)[1].shape == (2, 3, 0)
    assert call(CUDNN, q, k, v)[1].shape == (2, 3, 37, 1)
    torch.testing.assert_close(call(FLASH, q, k, v)[1], expected)


HANDED_ON: list[str] = []


def define_on_cpu(operator):
    """What activate() does on CUDA: the operator in Python that a kernel hands on to."""
    if hasattr(torch.ops.strobe, operator):
        return

    def function(keys, *args, **kwargs):
        HANDED_ON.append(operator)
        return OPERATORS[operator, "CUDA"](*args, **kwargs)

    _compiled.define_handed_on(operator, "CPU", function)


@pytest.mark.skipif(torch.cuda.is_available(), reason="activate() has defined these operators for CUDA")
@pytest.mark.parametrize("operator", [FLASH, CUDNN, EFFICIENT])
def test_what_is_handed_on(on_cpu, operator):
    """With all arguments, and the results are the call's."""
    define_on_cpu(operator), define_on_cpu(f"{operator}_backward")
    HANDED_ON.clear()
    q, k, v = leaves((), (2, 1, 7, 8), (2, 2, 7, 8))
    repeated = q.expand(2, 2, 5, 8), k.expand(2, 2, 7, 8), v  # strides of 0, which are no layout for a result
    dense = [x.detach().contiguous().requires_grad_() for x in repeated]
    got = call(operator, *repeated, causal=True, scale=0.3)
    assert_laid_out(got, meta(operator, *dense, causal=True, scale=0.3))
    gradients = torch.autograd.grad(got[0].square().sum(), repeated)
    expected = [] if operator == EFFICIENT else [operator, f"{operator}_backward"]
    assert expected == HANDED_ON
    expected = F.scaled_dot_product_attention(*dense, is_causal=True, scale=0.3)
    for a, b in zip((got[0], *gradients), (expected, *torch.autograd.grad(expected.square().sum(), dense)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    if operator == EFFICIENT:
        wide = [x.detach() for x in leaves(*[(1, 2, 7, 136)] * 3)]
        backward = OPERATORS[f"{EFFICIENT}_backward", "CUDA"]
        for given in ((*wide[:2], wide[2][..., :8]), (*(x[..., :8] for x in wide[:2]), wide[2]), wide):
            name = "query" if given[0].shape[-1] > 128 else "value"
            refused = f"{name} has 136 columns of torch.float32; at most 128 are accepted"
            with pytest.raises(RuntimeError, match=refused):
                call(operator, *given)
            with pytest.raises(NotImplementedError, match=refused):
                backward(given[2], *given, None, given[2], None, None, None, 0.0, [True, True, True, False])
        half = [x.bfloat16() for x in wide]
        torch.testing.assert_close(call(operator, *half)[0], F.scaled_dot_product_attention(*half), rtol=0.02, atol=0.02)
    before = ran()
    for bad in ((dense[0].double(), *dense[1:]), (dense[0], dense[1][..., :4], dense[2]), [x.double() for x in dense]):
        with pytest.raises(RuntimeError):
            call(operator, *bad)
    assert (ran() - before).tolist() == [0, 0]


def test_offered_to_strobes_own_calls():
    """In the CPU's place, where PyTorch's own kernel is: what strobe.torch calls on CUDA."""
    flash = getattr(torch, FOR_CPU)
    q, k, v = leaves((2, 4, 9, 16), (2, 2, 13, 16), (2, 2, 13, 24))
    expected = st.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    gradients = torch.autograd.grad(expected.sum(), (q, k, v))
    before = ran()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _strobe.aten_register("offered CUDA", "CPU")
    try:
        out, lse = flash(q, k, v, 0.0, True)
        got = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        with torch.no_grad():
            assert flash(q, k, v, 0.0, True)[1] is None and lse.shape == (2, 4, 9)
        with pytest.raises(RuntimeError, match="takes query, key and value of one GPU"):
            flash(q, k, v, 0.5, True)
    finally:
        _strobe.aten_unregister("offered CUDA")
        if _compiled.flash is not None:  # on a machine with a GPU they were in CUDA's place, and tests below call them there
            _strobe.aten_register("offered CUDA")
    assert (ran() - before).tolist() == [2, 1]
    assert_laid_out((out, *got), (expected, *gradients))
    assert all(torch.equal(a, b) for a, b in zip((out, *got), (expected, *gradients), strict=True))


def test_groups_have_names():
    with pytest.raises(ValueError, match='"none" is no group of kernels'):
        _strobe.aten_register("none")


# ---- on a GPU


@pytest.fixture
def active():
    st.activate()
    yield
    st.deactivate()


@on_gpu
def test_they_are_there():
    assert _compiled.REPLACED["CUDA"] and _compiled.flash is not None


def gpu(*shapes, dtype=torch.bfloat16):
    return leaves(*shapes, dtype=dtype, device="cuda")


def with_gradients(call, *tensors, **options):
    out = call(*tensors, **options)
    torch.manual_seed(1)
    dout = torch.randn(out.shape, dtype=out.dtype, device=out.device)  # the same numbers for every layout of out
    return out, *torch.autograd.grad(out, tensors, dout)


def by_python(call, monkeypatch):
    """The same with the compiled kernels switched off, with and without activate()."""
    with monkeypatch.context() as patch:
        patch.setattr(_run, "_flash", None)
        patch.setattr(_compiled, "REPLACED", {"CPU": (), "CUDA": ()})
        st.activate()
        try:
            return call()
        finally:
            st.deactivate()


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@on_gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [16, 37, 300])
@pytest.mark.parametrize("dim", [64, 128])
def test_the_same_as_through_python(monkeypatch, backend, rows, dim):
    tensors = gpu(*[(2, 4, rows, dim)] * 3)
    torch.use_deterministic_algorithms(backend != "cudnn")  # PyTorch does not choose it then
    try:
        with sdpa_kernel(BACKENDS[backend]):
            before = ran()
            st.activate()
            got = with_gradients(F.scaled_dot_product_attention, *tensors, is_causal=True)
            st.deactivate()
            assert (ran() - before).tolist() == [1, 1]
            expected = by_python(
                lambda: with_gradients(F.scaled_dot_product_attention, *tensors, is_causal=True), monkeypatch
            )
            assert (ran() - before).tolist() == [1, 1]
    finally:
        torch.use_deterministic_algorithms(False)
    assert_laid_out(got, expected)
    assert torch.equal(got[0], expected[0])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **({"rtol": 0.02, "atol": 0.02} if backend == "cudnn" else {"rtol": 0, "atol": 0}))


@on_gpu
def test_fp32_is_made_of_tf32_as_in_pytorchs_kernel(monkeypatch):
    tensors = gpu(*[(2, 4, 300, 64)] * 3, dtype=torch.float32)
    before = ran()
    st.activate()
    got = with_gradients(F.scaled_dot_product_attention, *tensors, is_causal=True)
    st.deactivate()
    assert (ran() - before).tolist() == [1, 1]
    expected = by_python(lambda: with_gradients(F.scaled_dot_product_attention, *tensors, is_causal=True), monkeypatch)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    heads_last = [x.detach().transpose(1, 2) for x in tensors]
    for allowed in (True, False):
        out = strobe.attention(*heads_last, causal=True, diagonal="top_left", tf32x3=allowed).transpose(1, 2)
        assert torch.equal(got[0], out) == torch.equal(expected[0], out) == allowed


def devices_of_results():
    """What the efficient operator gives, and what it gives while a graph is captured."""
    q, k, v = (x.detach() for x in gpu(*[(2, 4, 37, 64)] * 3, dtype=torch.float32))
    made = call(EFFICIENT, q, k, v)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        captured = call(EFFICIENT, q, k, v)
    return [[x.device.type for x in results] for results in (made, captured)]


@on_gpu
def test_numbers_that_nobody_reads_are_where_pytorchs_are():
    """On the host; on the device while a graph is captured, which has no outputs elsewhere."""
    expected = devices_of_results()
    before = ran()
    st.activate()
    try:
        assert devices_of_results() == expected
    finally:
        st.deactivate()
    assert (ran() - before).tolist() == [2, 0]


@on_gpu
@pytest.mark.parametrize("dim", [192, 256])
def test_fp32_of_many_columns_is_pytorchs(dim):
    tensors = gpu(*[(2, 4, 300, dim)] * 3, dtype=torch.float32)
    expected = with_gradients(F.scaled_dot_product_attention, *tensors, is_causal=True)
    before = ran()
    with pytest.warns(UserWarning, match=f"query has {dim} columns of torch.float32; at most 128 are accepted"):
        st.activate()
        try:
            got = with_gradients(F.scaled_dot_product_attention, *tensors, is_causal=True)
        finally:
            st.deactivate()
    assert (ran() - before).tolist() == [0, 0]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert torch.equal(got[0], expected[0])


OWN = {
    "heads first": (lambda q, k, v: st.scaled_dot_product_attention(q, k, v, is_causal=True), (2, 4, 50, 64)),
    "heads last": (lambda q, k, v: st.attention(q, k, v, causal=True), (2, 50, 4, 64)),
    "flash_attn_func": (lambda q, k, v: st.flash_attn_func(q, k, v, softmax_scale=0.2), (2, 50, 4, 64)),
}


@on_gpu
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_strobes_own_calls(monkeypatch, name, dtype):
    function, shape = OWN[name]
    tensors = gpu(*[shape] * 3, dtype=dtype)
    before = ran()
    got = with_gradients(function, *tensors)
    assert (ran() - before).tolist() == [1, 1]
    expected = by_python(lambda: with_gradients(function, *tensors), monkeypatch)
    assert_laid_out(got, expected)
    assert torch.equal(got[0], expected[0])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
    with torch.no_grad():
        assert torch.equal(function(*tensors), got[0])


@on_gpu
def test_masks_on_a_gpu(active):
    tensors = gpu(*[(2, 4, 40, 64)] * 3)
    mask = torch.rand(2, 1, 40, 40, device="cuda") < 0.7
    mask[..., 0] = True
    for given in (mask, torch.randn(2, 4, 40, 40, device="cuda", dtype=torch.bfloat16)):
        before = ran()
        got = with_gradients(F.scaled_dot_product_attention, *tensors, attn_mask=given)
        own = with_gradients(st.scaled_dot_product_attention, *tensors, attn_mask=given)
        assert (ran() - before).tolist() == [2, 2]
        exact = [x.detach().double() for x in tensors]
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(*exact, attn_mask=given if given.dtype == torch.bool else given.double())
        torch.testing.assert_close(got[0].double(), out, rtol=0.02, atol=0.02)
        for a, b in zip(got, own, strict=True):
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@on_gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_and_backward_of_either_library(backend):
    tensors, results = gpu(*[(2, 3, 40, 64)] * 3), []
    with sdpa_kernel(BACKENDS[backend]):
        for first, second in ((False, False), (True, False), (False, True), (True, True)):
            (st.activate if first else st.deactivate)()
            out = F.scaled_dot_product_attention(*tensors)
            (st.activate if second else st.deactivate)()
            torch.manual_seed(1)
            results.append(torch.autograd.grad(out, tensors, torch.randn_like(out)))
            st.deactivate()
    for got in results[1:]:
        for a, b in zip(got, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


@on_gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_graphs(active, backend):
    """Inductor compares the strides of results with those that it planned with."""
    for shape in ((2, 4, 40, 64), (2, 40, 4, 64)):
        tensors = gpu(*[shape] * 3)

        def call(q, k, v, swap=shape[1] == 40):
            q, k, v = (x.transpose(1, 2) if swap else x for x in (q, k, v))
            return 2 * F.scaled_dot_product_attention(q, k, v, is_causal=True)

        with sdpa_kernel(BACKENDS[backend]):
            before = ran()
            got = with_gradients(torch.compile(call), *tensors)
            assert (ran() - before).tolist() == [1, 1]
            expected = with_gradients(call, *tensors)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@on_gpu
def test_autocast(active):
    q, k, v = gpu(*[(1, 2, 20, 32)] * 3, dtype=torch.float32)
    before = ran()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours, out = st.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert ours.dtype == out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32
    assert (ran() - before).tolist() == [1, 1]


@on_gpu
def test_in_a_cuda_graph(active):
    tensors = gpu(*[(2, 4, 256, 64)] * 3)
    calls = F.scaled_dot_product_attention, st.scaled_dot_product_attention
    torch.use_deterministic_algorithms(True)
    try:
        with_gradients(calls[0], *tensors), with_gradients(calls[1], *tensors)
        dout = torch.randn_like(tensors[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = [(out := call(*tensors), *torch.autograd.grad(out, tensors, dout)) for call in calls]
        for _ in range(2):
            with torch.no_grad():
                for x in (*tensors, dout):
                    x.normal_()
            graph.replay()
            for call, got in zip(calls, recorded, strict=True):
                out = call(*tensors)
                expected = (out, *torch.autograd.grad(out, tensors, dout))
                assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@on_gpu
def test_streams_and_threads(active):
    """Each thread with a stream of its own, on which its inputs are still being written."""
    tensors = gpu(*[(2, 4, 256, 64)] * 3)
    expected, wrong = {}, []
    for name, call in (("F", F.scaled_dot_product_attention), ("st", st.scaled_dot_product_attention)):
        expected[name] = with_gradients(call, *tensors)
    torch.cuda.synchronize()

    def work(name, call):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(4):
                late = [torch.full_like(x, float("nan")) for x in tensors]
                torch.cuda._sleep(2_000_000)
                with torch.no_grad():
                    for a, b in zip(late, tensors, strict=True):
                        a.copy_(b)
                out = call(*[x.requires_grad_() for x in late])
                gradients = torch.autograd.grad(out, late, torch.ones_like(out))
                stream.synchronize()
                if not torch.equal(out, expected[name][0]) or not all(x.isfinite().all() for x in gradients):
                    wrong.append(name)

    calls = {"F": F.scaled_dot_product_attention, "st": st.scaled_dot_product_attention}
    threads = [threading.Thread(target=work, args=(name, calls[name])) for name in ("F", "st", "F", "st")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@on_gpu
def test_deterministic_algorithms(active):
    tensors = gpu(*[(1, 2, 2048, 64)] * 3)
    torch.use_deterministic_algorithms(True)
    try:
        assert _strobe.aten_deterministic() is True
        first = with_gradients(F.scaled_dot_product_attention, *tensors)
        for _ in range(5):
            again = with_gradients(F.scaled_dot_product_attention, *tensors)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)
    assert _strobe.aten_deterministic() is False


@on_gpu
def test_refusals(active):
    q, k, v = gpu(*[(1, 2, 16, 64)] * 3)
    before = ran()
    with pytest.warns(UserWarning, match="dropout_p is 0.5; 0 is accepted"):
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum().backward()
    with pytest.raises((RuntimeError, ValueError)):
        st.scaled_dot_product_attention(q, k.cpu(), v)
    with pytest.raises((RuntimeError, ValueError)):
        st.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(16, 16, dtype=torch.bool))
    assert (ran() - before).tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(st.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives of attention"):
        gradient.sum().backward()


@on_gpu
def test_another_device_than_the_current_one(active):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    tensors = [x.detach().to("cuda:1").requires_grad_() for x in gpu(*[(1, 2, 40, 64)] * 3)]
    for call in (F.scaled_dot_product_attention, st.scaled_dot_product_attention):
        got = with_gradients(call, *tensors)
        with torch.cuda.device(1):
            expected = with_gradients(call, *tensors)
        assert all(torch.allclose(a, b, atol=0.02) for a, b in zip(got, expected, strict=True))
