# SPDX-License-Identifier: BSD-3-Clause
"""strobe.torch: operators as PyTorch wants them, gradients, and the meanings of the signatures it takes over."""

import numpy as np
import pytest
import strobe
import strobe.torch as st
import torch
import torch.nn.functional as F
from strobe import _strobe
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import reference

OPERATOR = torch.ops.strobe.attention.default
DEFAULTS = {"q_start": 0, "k_start": 0, "offset": 0, "causal": True, "window": (-1, -1), "diagonal": "bottom_right"}
DEFAULTS |= {"dropout": 0.0, "deterministic": False, "tf32x3": False}


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def operator_cases():
    shapes = {"q": (2, 5, 4, 8), "k": (2, 6, 2, 8), "v": (2, 6, 2, 16)}
    qkv = {name: leaf(*shape, dtype=torch.float32) for name, shape in shapes.items()}
    yield "plain", qkv
    yield "bias, sinks", qkv | {"bias": leaf(1, 4, 1, 6, dtype=torch.float32), "sinks": leaf(4, dtype=torch.float32)}
    yield "mask", qkv | {"mask": torch.rand(2, 1, 5, 6) < 0.5, "softcap": 3.0}
    yield "blocks", qkv | {"block_mask": torch.rand(2, 1, 3, 2) < 0.7, "block_size": (2, 3), "q_start": 4}
    yield "dropout", qkv | {"seed": torch.tensor([-5]), "dropout": 0.2}
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    packed = {name: leaf(5, h, 8, dtype=torch.float32) for name, h in (("q", 4), ("k", 2), ("v", 2))}
    yield "packed", packed | {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 3, "max_seqlen_k": 3}


@pytest.mark.parametrize(("name", "given"), list(operator_cases()), ids=lambda x: x if isinstance(x, str) else "")
def test_opcheck(name, given):
    arguments = [(DEFAULTS | given).get(argument.name) for argument in OPERATOR._schema.arguments]
    torch.library.opcheck(OPERATOR, arguments)
    with torch.no_grad():
        out, lse = OPERATOR(*arguments)
        backward = (torch.randn_like(out), None, out, lse, "bias" in given, *arguments)
    torch.library.opcheck(
        torch.ops.strobe.attention_backward.default, [x.detach() if isinstance(x, torch.Tensor) else x for x in backward]
    )


def test_results_are_laid_out_by_shape():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 4, 8)  # as many heads as rows: a wrong order of axes fits too
    true = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    ways = [
        (st.attention(q, k, v), true.transpose(1, 2)),
        (st.attention(torch.nn.Parameter(q), k, v).detach(), true.transpose(1, 2)),
        (st.attention(q.mT.contiguous().mT, k, v), true.transpose(1, 2)),  # not contiguous
        (st.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))), true),
        (st.scaled_dot_product_attention(*(x.transpose(1, 2).contiguous() for x in (q, k, v))), true),
        (strobe.attention(*(x.transpose(1, 2) for x in (q, k, v)), heads_first=True), true),
    ]
    for out, expected in ways:
        torch.testing.assert_close(out, expected)
        assert type(out) is torch.Tensor and not out.requires_grad
    assert all(ways[n][0].is_contiguous() for n in (0, 1, 2))


def test_a_plain_call_is_one_function():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, 4, 8)
    ways = [(False, "bottom_right", None), (True, "bottom_right", 0.5), (True, "top_left", None)]
    for causal, diagonal, scale in ways:
        out = _strobe.attention_plain(q, k[:, :3], v[:, :3], causal, diagonal, scale)
        with torch.no_grad():
            expected, _ = st.attention(q, k[:, :3], v[:, :3], causal=causal, diagonal=diagonal, scale=scale, return_lse=True)
        assert torch.equal(out, expected)

    out = _strobe.attention_plain(q, k[:, :3], v[:, :3], *ways[0])
    assert type(out) is torch.Tensor and out.is_contiguous() and not out.requires_grad and not out.is_inference()
    assert out.resize_(3, 4).shape == (3, 4)  # its memory is PyTorch's own
    with torch.inference_mode():
        assert _strobe.attention_plain(q, k, v, *ways[0]).is_inference()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert _strobe.attention_plain(q.to(dtype), k.to(dtype), v.to(dtype), *ways[0]).dtype is dtype
    with pytest.raises(ValueError, match="scale is 0"):
        st.attention(q, k, v, scale=0)

    class Other(torch.Tensor):
        pass

    way = (True, "bottom_right", None)
    not_its_own = [
        (q.clone().requires_grad_(), k, v), (q, k, v.clone().requires_grad_()), (q.as_subclass(Other), k, v), (q.numpy(), k, v),
        (q, k.double(), v), (q[0], k[0], v[0]), (q.to("meta"), k, v), (q, k[..., :4], v), (q.mT, k.mT, v),
    ]  # fmt: skip
    for given in not_its_own:
        assert _strobe.attention_plain(*given, *way) is None
    with torch.autocast("cpu"):
        assert _strobe.attention_plain(q, k, v, *way) is None
    with pytest.raises(TypeError, match=r"attention_plain\(\) got 3 arguments; q, k, v, causal, diagonal and scale"):
        _strobe.attention_plain(q, k, v)


def test_out_without_lse():
    q, k, v = torch.randn(3, 7, 2, 8)
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 4, "max_seqlen_k": 4}
    for given in (packed, packed | {"causal": True, "softcap": 2.0}):
        out, lse = st.attention(q, k, v, **given, return_lse=True)
        assert lse.isfinite().all()
        assert torch.equal(st.attention(q, k, v, **given), out)
    leaf = q.requires_grad_()
    st.attention(leaf, k, v, **packed).sum().backward()  # here it is saved
    assert leaf.grad.isfinite().all() and leaf.grad.any()


def test_block_masks_positions_offset_and_kernel():
    torch.manual_seed(0)
    q, k, v = (leaf(1, 8, 2, 8) for _ in range(3))
    blocks = torch.tensor([[True, False], [True, True]])
    shown = blocks.repeat_interleave(4, 0).repeat_interleave(4, 1)
    out = st.attention(q, k, v, block_mask=blocks, block_size=(4, 4), causal=True, q_start=3, kernel="reference_forward")
    shown = shown & (torch.arange(8).view(-1, 1) + 3 >= torch.arange(8))
    expected = reference.attention(q, k, v, mask=shown)[0]
    torch.testing.assert_close(out, expected)
    got, true = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected))
    for x, y in zip(got, true, strict=True):
        torch.testing.assert_close(x, y)
    q, k, v = (x.detach().float() for x in (q, k, v))
    first, second = (st.attention(q, k, v, dropout=0.5, seed=1, offset=n) for n in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(
        second, torch.from_numpy(strobe.attention(q.numpy(), k.numpy(), v.numpy(), dropout=0.5, seed=1, offset=1))
    )


class Seen(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_call_is_an_operator_where_operators_are_looked_at():
    q, k, v = (leaf(1, 4, 2, 8, dtype=torch.float32) for _ in range(3))
    eager = st.attention(q, k, v, causal=True)
    gradients = torch.autograd.grad(eager.sum(), (q, k, v))
    with Seen() as seen:
        out = st.attention(q, k, v, causal=True)
        same = torch.autograd.grad(out.sum(), (q, k, v))
    assert torch.equal(out, eager)
    assert all(torch.equal(a, b) for a, b in zip(same, gradients, strict=True))
    assert {"strobe::attention", "strobe::attention_backward"} <= set(seen.names)
    with torch.profiler.profile() as profile:
        st.attention(q, k, v)
    assert "strobe::attention" in {event.key for event in profile.key_averages()}
    with forward_ad.dual_level(), pytest.raises(RuntimeError):  # not a result without its tangent
        forward_ad.unpack_dual(st.attention(forward_ad.make_dual(q.detach(), q.detach()), k, v))
    traced = torch.jit.trace(lambda x: st.attention(x, x, x), torch.randn(1, 4, 2, 8))
    x = torch.randn(1, 4, 2, 8)
    assert torch.equal(traced(x), st.attention(x, x, x))


@pytest.mark.parametrize(
    "call",
    [
        lambda q: st.attention(q, q, q),
        lambda q: st.attention(q, q, q, score="score * 2"),
        lambda q: st.attention(q, q, q, quantise="int8"),
        lambda q: st.attention(q.detach(), q.detach(), q.detach(), sinks=q[0, 0, :, 0]),
        lambda q: st.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(2, 2)),
        lambda q: st.flash_attn_with_kvcache(q, q, q),
    ],
)
def test_a_tangent_is_refused(call):
    """Of tensors that need no gradient too, of which an operator would drop it without a word."""
    q = torch.randn(1, 4, 2, 8)
    sentence = "strobe.torch has no forward derivatives of attention"
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=sentence):
        call(forward_ad.make_dual(q, q))
    with pytest.raises(NotImplementedError, match=sentence):
        torch.func.jvp(lambda x: st.attention(x, x, x), (q,), (q,))
    with pytest.raises(NotImplementedError, match=sentence):
        torch.func.jvp(torch.func.grad(lambda x: st.attention(x, x.detach(), x.detach()).sum()), (q,), (q,))
    with forward_ad.dual_level():  # of tensors without one nothing is dropped
        assert torch.equal(st.attention(q, q, q), st.attention(q, q, q, causal=False, return_lse=True)[0])


FEATURES = [{"causal": True}, {"window": (2, 1)}, {"softcap": 2.0}, {"dropout": 0.3, "seed": 7}]
FEATURES += [{"bias": 1}, {"sinks": 1}, {"bias": 1, "sinks": 1}]


@pytest.mark.parametrize("features", FEATURES)
def test_gradcheck(features):
    """Numerical gradients in float64, through out and lse; grouped heads, more rows than keys so that some see nothing."""
    torch.manual_seed(0)
    leaves = [leaf(2, 4, 4, 3), leaf(2, 3, 2, 3), leaf(2, 3, 2, 2)]
    names = [name for name in ("bias", "sinks") if name in features]
    shapes = {"bias": (2, 1, 4, 3), "sinks": (4,)}
    leaves += [leaf(*shapes[name]) for name in names]
    rest = {name: value for name, value in features.items() if name not in names}

    def function(q, k, v, *more):
        out, lse = st.attention(q, k, v, **dict(zip(names, more, strict=True)), **rest, return_lse=True)
        return out, lse[torch.isfinite(lse)]

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("function", ["attention", "scaled_dot_product_attention", "flash_attn_func"])
def test_gradcheck_of_out_alone(function):
    """As a user calls it, with all that gradcheck checks, such as an output without a gradient."""
    leaves = [leaf(1, 4, 4, 3) for _ in range(3)]
    assert torch.autograd.gradcheck(getattr(st, function), leaves)


def test_gradient_of_an_expanded_bias():
    q = leaf(2, 3, 4, 5)
    bias = leaf(3, 1, 4)
    assert torch.autograd.gradcheck(lambda b: st.scaled_dot_product_attention(q, q, q, b.expand(2, 3, 4, 4)), (bias,))


def test_second_derivatives_are_refused():
    q = leaf(1, 4, 2, 8)
    (gradient,) = torch.autograd.grad(st.attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives of attention; gradients without create_graph=True"):
        gradient.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_compile(backend):
    """One graph, no breaks, other sizes, the same numbers; dropout is drawn anew on every call."""

    def step(q, k, v, mask):
        out = st.scaled_dot_product_attention(q * 2, k, v, mask, enable_gqa=True)
        out = out + st.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True).transpose(1, 2)
        return (out * out).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for rows in (8, 12, 33):
        tensors = [leaf(2, h, rows, 16, dtype=torch.float32) for h in (4, 2, 2)]
        mask = torch.rand(rows, rows) < 0.8
        expected = torch.autograd.grad(step(*tensors, mask), tensors)
        got = torch.autograd.grad(compiled(*tensors, mask), tensors)
        assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(got, expected, strict=True))
    dropping = torch.compile(lambda q: st.attention(q, q, q, dropout=0.5), fullgraph=True, backend=backend)
    q = torch.randn(1, 16, 2, 8)
    assert not torch.equal(dropping(q), dropping(q))
    torch.manual_seed(3)
    first = st.attention(q, q, q, dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(first, st.attention(q, q, q, dropout=0.5))


VMAPPED = {
    "q, k, v": ({}, {}),
    "q alone": ({"k": None, "v": None}, {}),
    "another axis": ({"q": 1, "v": 2}, {"causal": True}),
    "a bias for all": ({"bias": None}, {"bias": (2, 4, 5, 6)}),
    "a bias for each": ({}, {"bias": (3, 2, 1, 5, 6)}),
    "a small bias for each": ({}, {"bias": (3, 5, 6)}),
    "slopes, lengths": ({"alibi_slopes": 0, "used_k": 0}, {"alibi_slopes": (3, 4), "used_k": True}),
    "a mask": ({"mask": None}, {"mask": (4, 1, 6)}),
}


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap(name):
    """As a loop has it, results and gradients of each."""
    dims, options = VMAPPED[name]
    torch.manual_seed(0)
    shapes = {"q": (3, 2, 5, 4, 8), "k": (3, 2, 6, 2, 8), "v": (3, 2, 6, 2, 8)}
    tensors, dims = {}, {"q": 0, "k": 0, "v": 0, **dims}
    for argument, axis in dims.items():
        if argument in shapes:
            tensors[argument] = torch.randn(shapes[argument] if axis is not None else shapes[argument][1:])
            tensors[argument] = tensors[argument].movedim(0, axis).contiguous() if axis else tensors[argument]
    for argument, shape in options.items():
        if argument == "used_k":
            tensors[argument] = torch.tensor([[6, 3], [1, 2], [5, 6]], dtype=torch.int32)
        elif shape is not True:
            tensors[argument] = torch.rand(shape) if argument != "mask" else torch.rand(shape) < 0.7
        dims.setdefault(argument, 0)
    flags = {"causal": options["causal"]} if "causal" in options else {}
    tensors.pop("causal", None)
    dims.pop("causal", None)
    names, wanted = list(tensors), [n for n in tensors if n in ("q", "k", "v", "bias")]

    def loss(*given):
        out, lse = st.attention(**dict(zip(names, given, strict=True)), return_lse=True, **flags)
        return (out * torch.arange(8)).sum() + lse.sum()

    arguments, in_dims = list(tensors.values()), tuple(dims[n] for n in names)
    both = torch.func.grad_and_value(loss, argnums=tuple(names.index(n) for n in wanted))
    gradients, values = torch.func.vmap(both, in_dims)(*arguments)
    for n in range(3):
        one = [x if d is None else x.select(d, n) for x, d in zip(arguments, in_dims, strict=True)]
        expected, value = both(*one)
        torch.testing.assert_close(values[n], value)
        for got, true in zip(gradients, expected, strict=True):
            torch.testing.assert_close(got[n], true)


def test_vmap_over_nothing():
    q, bias = torch.randn(0, 2, 5, 4, 8), torch.randn(0, 5, 5)

    def loss(q, bias):
        return st.attention(q, q, q, bias=bias).sum()

    assert torch.func.vmap(lambda q: st.attention(q, q, q))(q).shape == q.shape
    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))(q, bias)
    assert [x.shape for x in gradients] == [q.shape, bias.shape]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dropout": 0.5}, 'with dropout; randomness="different" beside a seed, the same for all, is accepted'),
        (
            {"cu_seqlens_q": torch.tensor([0, 4], dtype=torch.int32), "max_seqlen_q": 4},
            "with packed sequences; one of a tensor",
        ),
    ],
)
def test_what_vmap_does_not_map(options, sentence):
    q = torch.randn(3, 1, 4, 2, 8) if "dropout" in options else torch.randn(3, 4, 2, 8)
    with pytest.raises(NotImplementedError, match=sentence):
        torch.func.vmap(lambda q: st.attention(q, q, q, seed=3 if "dropout" in options else None, **options))(q)


SDPA = [
    ((2, 4, 9, 16), (2, 4, 9, 16), {}),
    ((2, 4, 9, 16), (2, 4, 13, 16), {"is_causal": True}),  # top-left: the last rows see less than all
    ((2, 4, 13, 16), (2, 4, 9, 16), {"is_causal": True}),
    ((2, 4, 9, 16), (2, 2, 13, 16), {"enable_gqa": True, "scale": 0.5}),
    ((4, 9, 16), (4, 13, 16), {}),
    ((9, 16), (13, 16), {"mask": (9, 13)}),
    ((3, 2, 4, 9, 16), (3, 2, 4, 13, 16), {"mask": (3, 1, 1, 9, 13)}),
    ((2, 4, 9, 16), (1, 4, 13, 16), {"mask": (9, 13)}),
    ((2, 4, 9, 16), (2, 4, 13, 16), {"mask": (2, 1, 1, 13)}),
    ((2, 4, 9, 16), (2, 4, 13, 16), {"mask": (2, 1, 9, 1)}),
    ((2, 4, 0, 16), (2, 4, 5, 16), {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("q_shape", "k_shape", "options"), SDPA)
@pytest.mark.parametrize("boolean", [True, False])
def test_sdpa_is_pytorchs(dtype, q_shape, k_shape, options, boolean):
    """Values and gradients beside PyTorch's math path, whose own error in this dtype is the tolerance."""
    if not boolean and "mask" not in options:
        pytest.skip("no mask")
    torch.manual_seed(0)
    options = dict(options)
    mask = options.pop("mask", None)
    if mask:
        drawn = torch.rand(mask) < 0.7
        drawn[..., 0] = True  # no row without a key: PyTorch's answers differ there
        options["attn_mask"] = drawn if boolean else torch.randn(mask)
    tensors = [torch.randn(s).to(dtype) for s in (q_shape, k_shape, k_shape)]

    def run(function, to):
        leaves = [x.to(to).requires_grad_() for x in tensors]
        own = dict(options)
        if own.get("attn_mask") is not None and not boolean:
            own["attn_mask"] = own["attn_mask"].to(to)
        out = function(*leaves, **own)
        weights = torch.linspace(-1, 1, max(out.numel(), 1)).to(to)[: out.numel()].reshape(out.shape)
        return [out, *torch.autograd.grad((out * weights).sum(), leaves)]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        truth = run(F.scaled_dot_product_attention, torch.float64)
        plain = run(F.scaled_dot_product_attention, dtype)
    for name, ours, right, theirs in zip("oqkv", run(st.scaled_dot_product_attention, dtype), truth, plain, strict=True):
        assert ours.dtype == dtype
        largest = torch.finfo(dtype).eps * 4 if name in "qk" else 0  # of the terms that cancel, of about 4
        reference.assert_close(ours, right, theirs, 3, name, largest)


NOTHING = {
    "no heads": ((2, 0, 5, 8), (2, 0, 6, 8), (2, 0, 6, 8), {}),
    "no heads of many": ((2, 0, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8), {"enable_gqa": True}),
    "no columns": ((2, 3, 5, 0), (2, 3, 6, 0), (2, 3, 6, 8), {"is_causal": True}),
    "no columns, a scale": ((3, 5, 0), (3, 6, 0), (3, 6, 8), {"scale": 2.0}),
    "no columns of v": ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 0), {}),
    "no columns at all": ((5, 0), (6, 0), (6, 0), {}),
    "a scale of 0": ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 4), {"scale": 0.0}),
    "dropout of everything": ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 4), {"dropout_p": 1.0}),
    "a scale of 0, masked": ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 8), {"scale": 0, "attn_mask": torch.linspace(0, 3, 6)}),
}


@pytest.mark.parametrize("kind", ["eager", "compiled"])
@pytest.mark.parametrize("name", NOTHING)
def test_sdpa_of_nothing_is_pytorchs(name, kind):
    """No heads, no columns, a scale of 0 and a dropout of 1, with gradients."""
    torch.manual_seed(0)
    *shapes, options = NOTHING[name]
    tensors = [torch.randn(s) for s in shapes]

    def run(function, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = function(*leaves, **{n: x.to(dtype) if isinstance(x, torch.Tensor) else x for n, x in options.items()})
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    ours = st.scaled_dot_product_attention
    if kind == "compiled":
        torch._dynamo.reset()  # it does not compile one function for ever more shapes
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        truth, plain = (run(F.scaled_dot_product_attention, dtype) for dtype in (torch.float64, torch.float32))
    for part, x, right, theirs in zip("oqkv", run(ours, torch.float32), truth, plain, strict=True):
        reference.assert_close(x, right, theirs, 3, part)
    with torch.no_grad():
        assert ours(*tensors, **options).shape == truth[0].shape


def test_sdpa_refusals():
    q = torch.randn(1, 4, 3, 8)
    with pytest.raises(ValueError, match="attn_mask is given with is_causal=True"):
        st.scaled_dot_product_attention(q, q, q, torch.ones(3, 3, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match="key has 2 heads, query 4; enable_gqa=True"):
        st.scaled_dot_product_attention(q, q[:, :2], q[:, :2])
    for given, sentence in (
        ((None, q, q), "query is a <class 'NoneType'>; a torch.Tensor is accepted"),
        ((q, q.numpy(), q), "key is a <class 'numpy.ndarray'>; a torch.Tensor is accepted"),
        ((q, q, q, np.ones((3, 3))), "attn_mask is a <class 'numpy.ndarray'>; a torch.Tensor is accepted"),
    ):
        with pytest.raises(TypeError, match=sentence):
            st.scaled_dot_product_attention(*given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_flash_attn_meanings(dtype):
    """causal and windows from the bottom-right corner, (B, S, H, D), (out, lse, None) with return_attn_probs."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, s, h, 16).to(dtype) for s, h in ((5, 4), (8, 2), (8, 2)))
    cases = [
        {"causal": True},
        {"window_size": (2, 0)},
        {"window_size": (2, 3), "softcap": 2.0},
        {"causal": True, "window_size": (3, 3)},
    ]
    cases += [{"softmax_scale": 0.3, "alibi_slopes": torch.rand(4)}, {}]
    for case in cases:
        same = {"causal": case.get("causal", False), "window": case.get("window_size"), "softcap": case.get("softcap")}
        same |= {"scale": case.get("softmax_scale"), "alibi_slopes": case.get("alibi_slopes")}
        truth, truth_lse = reference.attention(q, k, v, **same)
        plain, plain_lse = reference.attention(q, k, v, **same, dtype=dtype)
        out, lse, probs = st.flash_attn_func(q, k, v, **case, return_attn_probs=True)
        assert probs is None and lse.dtype == torch.float32
        reference.assert_close(out, truth, plain, 3)
        reference.assert_close(lse, truth_lse, plain_lse, 3)
        alone = st.flash_attn_func(q, k, v, **case)  # without lse, for which some kernels take finer exponentials
        reference.assert_close(alone, truth, plain, 3)
        assert torch.equal(alone, st.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **case))


def test_flash_attn_packed():
    torch.manual_seed(0)
    qkv = torch.randn(2, 9, 3, 4, 16, requires_grad=True)
    out = st.flash_attn_qkvpacked_func(qkv, causal=True)
    assert torch.equal(out, st.flash_attn_func(*qkv.unbind(2), causal=True))
    (gradient,) = torch.autograd.grad(out.sum(), qkv)
    assert gradient.shape == qkv.shape
    cu = torch.tensor([0, 9, 18], dtype=torch.int32)
    flat = qkv.reshape(18, 3, 4, 16)
    packed, lse, _ = st.flash_attn_varlen_func(*flat.unbind(1), cu, cu, 9, 9, causal=True, return_attn_probs=True)
    assert torch.equal(packed.reshape(out.shape), out) and lse.shape == (4, 18)
    assert torch.equal(packed, st.flash_attn_varlen_qkvpacked_func(flat, cu, 9, causal=True))
    (again,) = torch.autograd.grad(packed.sum(), qkv)
    assert torch.equal(gradient, again)


REFUSED = [
    (lambda q, k: st.attention(q.numpy(), k, k), TypeError, "q is a <class 'numpy.ndarray'>; a torch.Tensor is accepted"),
    (lambda q, k: st.attention(q, k, k, window=3), TypeError, "window is 3; a pair (left, right) is accepted"),
    (lambda q, k: st.attention(q, k, k, window=(1, 2, 3)), TypeError, "window is (1, 2, 3); a pair (left, right)"),
    (lambda q, k: st.attention(q, k, k, dropout=0.1, seed=-1), ValueError, "seed is -1; an integer in [0, 2**64), or an"),
    (lambda q, k: st.attention(q, k, k, dropout=0.1, seed=2**64), ValueError, "seed is 18446744073709551616; an integer"),
    (lambda q, k: st.attention(q, k, k, dropout=0.1, seed="x"), ValueError, "seed is 'x'; an integer in [0, 2**64)"),
    (lambda q, k: st.flash_attn_func(q, k, k, window_size=3), TypeError, "window is 3; a pair (left, right) is accepted"),
    (lambda q, k: st.flash_attn_qkvpacked_func(q), ValueError, "qkv.shape is (2, 5, 4, 8); (batch, seq, 3, heads, dim)"),
    (lambda q, k: st.flash_attn_kvpacked_func(q, k), ValueError, "kv.shape is (2, 7, 2, 8); (batch, seq_k, 2, heads_kv,"),
    (
        lambda q, k: st.flash_attn_varlen_qkvpacked_func(q, torch.tensor([0, 5]), 5),
        ValueError,
        "qkv.shape is (2, 5, 4, 8); (total, 3, heads, dim) is accepted",
    ),
    (
        lambda q, k: st.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.int32)),
        ValueError,
        "attn_mask.dtype is torch.int32; torch.bool or a floating-point dtype is accepted",
    ),
]


@pytest.mark.parametrize(("call", "exception", "sentence"), REFUSED)
def test_refused(call, exception, sentence):
    with pytest.raises(exception) as caught:
        call(torch.zeros(2, 5, 4, 8), torch.zeros(2, 7, 2, 8))
    assert sentence in str(caught.value)


def test_a_view_with_its_negative_bit_set():
    q = torch._neg_view(torch.randn(1, 4, 2, 8))
    assert torch.equal(st.attention(q, q, q), st.attention(*[q.resolve_neg()] * 3))


def test_autocast():
    q = torch.randn(1, 4, 2, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert st.attention(q, q.bfloat16(), q).dtype == torch.bfloat16
        exact = q.double()  # autocast leaves float64 alone, and so gradcheck
        for call in (st.attention, st.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
            assert call(exact, exact, exact).dtype == torch.float64


def test_nested_tensors_are_refused():
    x = torch.nested.nested_tensor([torch.randn(3, 4, 8), torch.randn(5, 4, 8)], layout=torch.jagged)
    with pytest.raises(NotImplementedError, match="q is a nested tensor; packed sequences, with cu_seqlens_q and cu_seqlens_k"):
        st.attention(x, x, x)


def test_a_gradient_that_is_one_number_repeated():
    q = leaf(1, 4, 2, 8, dtype=torch.float32)
    st.attention(q, q, q).sum().backward()  # dout is a scalar expanded to out's shape
    assert torch.isfinite(q.grad).all()


def test_scaled_dot_product_attention_is_one_node():
    """Plain calls go past the views: any layout, the gradient of sum(), a graph of the gradient, a result changed in place."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 9, 3, 16, requires_grad=True) for _ in range(3))
    layouts = [
        [x.transpose(1, 2) for x in (q, k, v)],
        [x.transpose(1, 2).contiguous() for x in (q, k, v)],
        [x.transpose(1, 2).transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)],  # the last axis is strided
    ]
    for tensors in layouts:
        ours, theirs = (
            f(*tensors, is_causal=True) for f in (st.scaled_dot_product_attention, F.scaled_dot_product_attention)
        )
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(*(torch.autograd.grad(x.sum(), (q, k, v), retain_graph=True) for x in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b)
    out = st.scaled_dot_product_attention(q, k, v)
    (gradient,) = torch.autograd.grad((out**2).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()
    out = st.scaled_dot_product_attention(q, k, v)
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_import_leaves_the_compiler_out(python):
    """It takes as long to import as PyTorch itself, and comes with the functions that it is told not to compile."""
    python(
        "import sys, torch, strobe.torch as st; assert 'torch._dynamo' not in sys.modules; assert set(st.__all__) <= set(dir(st))\n"
        "from strobe.torch import *; assert flex_attention is st.flex_attention and 'torch._dynamo' in sys.modules\n"
        "try: st.nothing\nexcept AttributeError as e: assert 'nothing' in str(e)\nelse: raise AssertionError"
    )
