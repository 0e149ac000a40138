# SPDX-License-Identifier: BSD-3-Clause
"""Shapes, dtypes, masks and features, forward and backward, against float64: drawn by hypothesis."""

import numpy as np
import pytest
import strobe
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


class Problem:
    """Tensors of a problem, printed as sizes and features only."""

    def __init__(self, tensors, features, dout, dlse):
        self.parts = tensors, features, dout, dlse

    def __repr__(self):
        def short(x):
            return f"{str(x.dtype)[6:]}{tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)

        tensors, features, _, _ = self.parts
        return " ".join([short(x) for x in tensors] + [f"{name}={short(x)}" for name, x in features.items()])


@st.composite
def problems(draw):
    """Sizes that cross tile borders, and any subset of features."""
    sizes = st.sampled_from([1, 2, 3, 7, 16, 17, 33, 64, 65])
    heads_kv = draw(st.sampled_from([1, 2, 3]))
    heads = heads_kv * draw(st.sampled_from([1, 2, 4]))
    b, rows, keys = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    dim, dim_v = draw(st.sampled_from([1, 8, 17, 32, 64, 80])), draw(st.sampled_from([8, 32, 65]))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(dtype)

    dtype = draw(st.sampled_from(DTYPES))
    tensors = [randn(b, rows, heads, dim), randn(b, keys, heads_kv, dim), randn(b, keys, heads_kv, dim_v)]
    features = {}
    if draw(st.booleans()):
        features["causal"] = True
    if draw(st.integers(0, 2)) == 0:
        features["window"] = (draw(st.integers(-1, 20)), draw(st.integers(-1, 20)))
    features["diagonal"] = draw(st.sampled_from(["bottom_right", "top_left"]))
    shape = (draw(st.sampled_from([1, b])), draw(st.sampled_from([1, heads])), draw(st.sampled_from([1, rows])), keys)
    if draw(st.integers(0, 2)) == 0:
        features["bias"] = randn(*shape, dtype=draw(st.sampled_from([torch.float32, dtype])))
    if draw(st.integers(0, 2)) == 0:
        features["mask"] = torch.rand(*shape, generator=generator) < 0.7
    if draw(st.integers(0, 3)) == 0:
        features["alibi_slopes"] = randn(*draw(st.sampled_from([(heads,), (b, heads)]))).abs()
    if draw(st.integers(0, 3)) == 0:
        features["softcap"] = 5.0
        tensors[0] *= 1.25
    if draw(st.integers(0, 3)) == 0:
        features["sinks"] = randn(heads)
    if draw(st.booleans()):
        features["scale"] = draw(st.sampled_from([0.3, 1.0]))
    tensors = [x.to(dtype) for x in tensors]
    return Problem(tensors, features, randn(b, rows, heads, dim_v, dtype=dtype), randn(b, heads, rows))


def results(q, k, v, features, dout, dlse, dtype):
    """out, lse and the gradients of the reference in a dtype. NaN where the plain dtype overflows: nan_to_num'd by the check."""
    leaves = {"q": q, "k": k, "v": v} | {name: features[name] for name in ("bias", "sinks") if name in features}
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in leaves.items()}
    rest = features | {name: leaves[name] for name in leaves if name in features}
    out, lse = reference.attention(leaves["q"], leaves["k"], leaves["v"], **rest, dtype=dtype)
    seen = torch.isfinite(lse)
    total = (out * dout.to(dtype)).sum() + (torch.where(seen, lse, 0) * dlse.to(dtype) * seen).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return out.detach(), lse.detach(), dict(zip(leaves, gradients, strict=True))


def compare(problem, there=lambda x: x):
    """Forward and backward on tensors that `there` moves to a device, beside the reference. Returns out, of that device."""
    (q, k, v), features, dout, dlse = problem.parts
    dlse = torch.where(torch.isfinite(reference.attention(q, k, v, **features)[1]), dlse, 0).float()
    truth_out, truth_lse, truth = results(q, k, v, features, dout, dlse, torch.float64)
    plain_out, plain_lse, plain = results(q, k, v, features, dout, dlse, q.dtype)
    factor = 3 if "softcap" in features else 2
    moved = [there(x) for x in (q, k, v)]
    options = {name: there(x) for name, x in features.items()}
    out, lse = strobe.attention(*moved, **options, return_lse=True)
    reference.assert_close(out.cpu(), truth_out, plain_out, factor, "out")
    reference.assert_close(lse.cpu(), truth_lse, plain_lse, factor, "lse")
    gradients = strobe.attention_backward(
        there(dout), *moved, out, lse, dlse=there(dlse), **options, bias_gradient="bias" in features
    )
    terms = reference.terms(q, k, v, dout, dlse, truth_lse, features.get("scale"))
    for name, gradient in zip(("q", "k", "v", "bias", "sinks"), gradients, strict=True):
        assert (gradient is None) == (name not in truth)
        if gradient is not None:
            reference.assert_close(gradient.cpu(), truth[name], plain[name], factor + 1, "d" + name, terms[name])
    return out


@given(problems())
def test_forward_and_backward(problem):
    compare(problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", ["both", "q", "k"])
def test_packed_sequences(dtype, packed):
    torch.manual_seed(1)
    lengths_q, lengths_k = [5, 0, 17, 1], [7, 3, 33, 0]
    if packed == "k":
        lengths_q = [17] * 4
    if packed == "q":
        lengths_k = [33] * 4
    tq, tk = sum(lengths_q), sum(lengths_k)
    q, k, v = torch.randn(tq, 4, 32), torch.randn(tk, 2, 32), torch.randn(tk, 2, 32)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    options = {}
    cu_q, cu_k = (torch.tensor([0, *np.cumsum(n)], dtype=torch.int32) for n in (lengths_q, lengths_k))
    if packed in ("both", "q"):
        options["cu_seqlens_q"] = cu_q
    if packed in ("both", "k"):
        options["cu_seqlens_k"] = cu_k
    qs = q if "cu_seqlens_q" in options else q.reshape(4, 17, 4, 32)
    ks, vs = (x if "cu_seqlens_k" in options else x.reshape(4, 33, 2, 32) for x in (k, v))
    out, lse = strobe.attention(qs, ks, vs, causal=True, **options, return_lse=True)
    out = out.reshape(tq, 4, 32)
    lse = lse if "cu_seqlens_q" in options else lse.transpose(0, 1).reshape(4, tq)
    for b in range(4):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        alone = [x[None] for x in (q[rows], k[keys], v[keys])]
        truth, plain = (reference.attention(*alone, causal=True, dtype=d) for d in (torch.float64, dtype))
        reference.assert_close(out[None, rows], truth[0], plain[0])
        reference.assert_close(lse[None, :, rows], truth[1], plain[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [False, True])
def test_quantised_keys_and_values(dtype, packed):
    """int8 with a scale for each row and head stands for their product."""
    torch.manual_seed(0)
    q = torch.randn(2, 3, 4, 32).to(dtype)
    k, v = torch.randint(-127, 128, (2, 2, 40, 2, 32), dtype=torch.int8)
    k_scale, v_scale = torch.rand(2, 2, 40, 2) / 50
    exact = [x.double() * scale.double()[..., None] for x, scale in ((k, k_scale), (v, v_scale))]
    truth, truth_lse = reference.attention(q, *exact, causal=True)
    plain, plain_lse = reference.attention(q, *(x.to(dtype) for x in exact), causal=True, dtype=dtype)
    options = {"k_scale": k_scale, "v_scale": v_scale, "causal": True, "return_lse": True}
    if packed:
        cu = torch.tensor([0, 40, 80])
        options |= {"cu_seqlens_k": cu, "k_scale": k_scale.flatten(0, 1), "v_scale": v_scale.flatten(0, 1)}
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    out, lse = strobe.attention(q, k, v, **options)
    reference.assert_close(out, truth, plain)
    reference.assert_close(lse, truth_lse, plain_lse)
    with pytest.raises(ValueError, match=r"k_scale.shape is .*; \(.* 2\) is accepted"):
        strobe.attention(q, k, v, **options | {"k_scale": k_scale[:1, :3]})
    with pytest.raises(ValueError, match="scales"):
        strobe.attention(q, k, v, **{name: x for name, x in options.items() if "scale" not in name})


def test_keys_and_values_of_another_dtype():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 5, 4, 32)
    k, v = k.bfloat16(), v.bfloat16()
    out = strobe.attention(q, k, v)
    truth, _ = reference.attention(q, k, v)
    plain, _ = reference.attention(q, k.float(), v.float(), dtype=torch.float32)
    assert out.dtype == torch.float32
    reference.assert_close(out, truth, plain)


def test_rows_outside_the_sequences_are_zero():
    q, k, v = torch.randn(3, 2, 8, 2, 16)
    used = torch.tensor([3, 8])
    out, lse = strobe.attention(q, k, v, used_q=used, used_k=used, return_lse=True)
    assert (out[0, 3:] == 0).all() and (lse[0, :, 3:] == -torch.inf).all()
    truth, _ = reference.attention(q[:1, :3], k[:1, :3], v[:1, :3])
    assert (out[:1, :3] - truth).abs().max() < 1e-5
    gradients = strobe.attention_backward(out, q, k, v, out, lse, used_q=used, used_k=used)
    assert all((g[0, 3:] == 0).all() and torch.isfinite(g).all() for g in gradients[:3])


def test_block_mask():
    q, k, v = torch.randn(3, 2, 40, 2, 16)
    blocks = torch.rand(2, 1, 5, 3) < 0.5
    mask = blocks.repeat_interleave(8, 2).repeat_interleave(16, 3)[..., :40]
    out = strobe.attention(q, k, v, block_mask=blocks, block_size=(8, 16))
    assert torch.equal(out, strobe.attention(q, k, v, mask=mask))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_dropout(threads):
    """The weights themselves, by v = identity: a share p is 0, the others are divided by 1 - p, whatever the threads."""
    q, k = torch.randn(2, 2, 64, 3, 16)
    v = torch.eye(64).reshape(1, 64, 1, 64).expand(2, 64, 3, 64)
    weights = strobe.attention(q, k, v)
    dropped, lse = strobe.attention(q, k, v, dropout=0.3, seed=2**64 - 1, threads=threads, return_lse=True)
    kept = dropped != 0
    assert abs(1 - kept.float().mean() - 0.3) < 0.02
    assert (dropped - torch.where(kept, weights / 0.7, 0)).abs().max() < 1e-6
    assert torch.equal(dropped, strobe.attention(q, k, v, dropout=0.3, seed=2**64 - 1, threads=1))
    assert not torch.equal(dropped, strobe.attention(q, k, v, dropout=0.3, seed=2**64 - 1, offset=1))
    assert torch.equal(lse, strobe.attention(q, k, v, return_lse=True)[1])


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_zero_sizes(shape):
    b, rows, keys = shape
    q, k, v = torch.randn(b, rows, 2, 8), torch.randn(b, keys, 2, 8), torch.randn(b, keys, 2, 8)
    out, lse = strobe.attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and lse.shape == (b, 2, rows)
    assert (out == 0).all() and (lse == -torch.inf).all()
    dq, dk, dv, _, _ = strobe.attention_backward(out, q, k, v, out, lse)
    assert (dq == 0).all() and (dk == 0).all() and (dv == 0).all() and dk.shape == k.shape


def test_what_is_not_seen_contributes_nothing():
    """NaN and infinity in hidden keys, in padding, and past the diagonal."""
    q, k, v = torch.randn(3, 1, 9, 2, 16)
    k[:, 5:], v[:, 5:] = torch.nan, torch.inf
    truth, _ = reference.attention(q, k[:, :5], v[:, :5])
    for hiding in ({"mask": torch.arange(9).reshape(1, 9) < 5}, {"used_k": torch.tensor([5])}):
        out = strobe.attention(q, k, v, **hiding)
        assert (out - truth).abs().max() < 1e-5
    assert torch.isfinite(strobe.attention(q, k, v, causal=True, diagonal="top_left")[:, :5]).all()


def test_threads_do_not_change_a_bit():
    q, k, v = torch.randn(3, 2, 130, 6, 64)
    results = []
    for threads in (1, 2, 3, 16):
        out, lse = strobe.attention(q, k, v, causal=True, return_lse=True, threads=threads)
        gradients = strobe.attention_backward(q, q, k, v, out, lse, causal=True, threads=threads)
        results.append([out, lse, *gradients[:3]])
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


FORWARDS = [k.name for k in strobe.kernels() if k.operation == "forward" and k.device == "cpu" and not k.unavailable]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [None, *FORWARDS])
def test_rows_whose_biases_are_all_the_least_number(kernel, dtype):
    """As models have them, instead of -inf, in rows of padding: scores vanish beside it, so that such a row is a mean."""
    q, k, v = (torch.randn(1, n, 2, 64).to(dtype) for n in (40, 130, 130))
    bias = torch.zeros(40, 130, dtype=dtype)
    bias[:, 100:], bias[3], bias[-1] = (torch.finfo(dtype).min,) * 3
    try:
        out = strobe.attention(q, k, v, bias=bias, kernel=kernel)
    except NotImplementedError:
        pytest.skip("it has no bias, or another dtype")
    truth, _ = reference.attention(q, k[:, :100], v[:, :100])
    truth[:, [3, -1]] = v.double().mean(1, keepdim=True)
    assert (out - truth).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    _, lse = strobe.attention(q, k, v, bias=bias, kernel=kernel, return_lse=True)
    gradients = strobe.attention_backward(q, q, k, v, out, lse, bias=bias)[:3]
    assert all(torch.isfinite(x).all() for x in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_merge(dtype):
    q, k, v = (x.to(dtype) for x in torch.randn(3, 2, 31, 4, 32))
    whole, whole_lse = strobe.attention(q, k, v, return_lse=True)
    parts = [strobe.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 10), (10, 10), (10, 31))]
    out, lse = strobe.merge([p[0] for p in parts], [p[1] for p in parts])
    assert out.dtype == dtype and lse.dtype == torch.float32
    truth, truth_lse = reference.attention(q, k, v)
    plain, _ = reference.attention(q, k, v, dtype=dtype)
    for ours, its_lse in ((out, lse), (whole, whole_lse)):
        reference.assert_close(ours, truth, plain)
        assert (its_lse - truth_lse).abs().max() < 1e-5
    into = parts[0][0]
    assert strobe.merge([p[0] for p in parts], [p[1] for p in parts], out=into)[0] is into
    assert torch.equal(into, out)


def test_products_of_tf32_are_allowed_and_not_asked_for():
    q, k, v, dout = (torch.randn(2, 9, 2, 8) for _ in range(4))
    plain, allowed = (strobe.attention(q, k, v, return_lse=True, **options) for options in ({}, {"tf32x3": True}))
    assert all(torch.equal(x, y) for x, y in zip(plain, allowed, strict=True))
    gradients = [strobe.attention_backward(dout, q, k, v, *plain, tf32x3=given)[:3] for given in (False, True)]
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))
    assert strobe.explain(q, k, v) == strobe.explain(q, k, v, tf32x3=True)


def test_explain_and_kernels():
    q = np.zeros((1, 4, 2, 8), np.float32)
    names = [kernel.name for kernel in strobe.kernels() if kernel.operation == "forward" and kernel.device == "cpu"]
    lines = strobe.explain(q, q, q, causal=True).splitlines()
    assert [line.split(":")[0] for line in lines] == names
    assert sum(line.endswith(": chosen") for line in lines) == 1
    assert "reference_backward" in strobe.explain(q, q, q, backward=True)
    assert strobe.explain(q, q, q.astype(np.float16)).count("differ in dtype")  # refused, and explained
    out = strobe.attention(q, q, q, kernel="standard_forward")
    assert out.shape == q.shape
    assert strobe.version() == strobe.__version__ and strobe.version() in strobe.build_info()
    assert strobe.devices()[0].kind == "cpu"
    blocks = {kernel.name: kernel.scale_block for kernel in strobe.kernels()}
    assert blocks["reference_forward"] == 1 and blocks["reference_backward"] == 0
    assert blocks.get("cuda_forward_fp8_sm90", 128) == 128
