# SPDX-License-Identifier: BSD-3-Clause
"""strobe.quantise, and attention of what it returns: against the true values in float64, on the CPU and on CUDA."""

import numpy as np
import pytest
import strobe
import strobe.torch as st
import torch
import torch.nn.functional as F

import reference


def inputs(device="cpu", dtype=torch.bfloat16, dim=64):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 130, 4, dim), (2, 150, 2, dim), (2, 150, 2, dim)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def spread(scale, block, rows):
    """A scale for each row, from one for each block."""
    return scale.expand(-1, rows, -1) if block == 0 else scale.repeat_interleave(block, 1)[:, :rows]


BLOCKS = [(128, 128), (0, 0), (1, 1), (64, 0)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_what_is_stored(device, dtype, block):
    q, k, v = inputs(device)
    z = strobe.quantise(q, k, v, dtype=dtype, scale_block=block)
    for x, stored, scale, rows in zip((q, k, v), z[:3], z[3:6], (block[0], block[1], block[1]), strict=True):
        assert stored.dtype == getattr(torch, dtype) and stored.shape == x.shape and stored.device == x.device
        true = stored.double() * spread(scale, rows, x.shape[1]).unsqueeze(-1).double()
        step = (
            2.0**-4 * x.double().abs() if dtype != "int8" else 0.5 * spread(scale, rows, x.shape[1]).unsqueeze(-1).double()
        )
        smallest = spread(scale, rows, x.shape[1]).unsqueeze(-1).double() * 2.0**-10
        assert ((true - x.double()).abs() <= 1.0001 * (step + smallest)).all()


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("empty", ["q", "k"])
def test_tensors_without_rows(device, kind, empty, monkeypatch):
    """A scale of a whole sequence is there without rows too, and so is K's mean, of which lse_shift comes: nothing is left unset."""
    if kind == "numpy" and device == "cuda":
        pytest.skip("NumPy's arrays lie in the host's memory")
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    rows = {"q": 5, "k": 5} | {empty: 0}
    q, k, v = (torch.randn(2, rows[of], heads, 64, device=device) for of, heads in (("q", 4), ("k", 2), ("k", 2)))
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    try:
        given = (q, k, v) if kind == "torch" else (q.numpy(), k.numpy(), v.numpy())
        z = strobe.quantise(*given, scale_block=(0, 0), subtract_mean=True)
    finally:
        torch.use_deterministic_algorithms(False)
    scales = {name: torch.as_tensor(getattr(z, name)).cpu() for name in ("q_scale", "k_scale", "v_scale")}
    least = 2.0**-40 / 448
    for name, scale in scales.items():
        assert scale.isfinite().all() and (scale > 0).all(), name
        assert ((scale == least) == (empty == "q" if name == "q_scale" else empty == "k")).all(), name
    if empty == "k":
        assert (torch.as_tensor(z.lse_shift) == 0).all()


MIXED = "int8_float8_e4m3fn"


@pytest.mark.parametrize(
    "options",
    [{}, {"hadamard": True}, {"hadamard": True, "seed": 3, "subtract_mean": True}, {"dtype": MIXED}, {"dtype": MIXED, "hadamard": True}],
)
def test_attention_of_quantised_tensors(device, options):
    q, k, v = inputs(device)
    k = k + 3 if "subtract_mean" in options else k
    z = strobe.quantise(q, k, v, **options)
    out, lse = strobe.attention(z.q, z.k, z.v, **z.scales, causal=True, return_lse=True)
    assert out.dtype == torch.bfloat16
    true, true_lse = reference.attention(*(x.double().cpu() for x in (q, k, v)), causal=True)
    assert F.cosine_similarity(out.double().cpu().flatten(), true.flatten(), dim=0) > 0.998
    shifted = lse if z.lse_shift is None else lse + z.lse_shift
    assert (shifted.double().cpu() - true_lse).abs().max() < 0.15
    half = torch.empty_like(out, dtype=torch.float16)
    assert strobe.attention(z.q, z.k, z.v, **z.scales, causal=True, out=half) is half
    assert (half.float() - out.float()).abs().max() < 0.02


def test_a_cache_of_bytes_beside_q():
    q, k, v = inputs(dtype=torch.float32)
    z = strobe.quantise(q, k, v, dtype="int8", scale_block=(1, 1))
    true = reference.attention(*(x.double() for x in (q, k, v)))[0]
    assert (strobe.attention(q, z.k, z.v, **z.cache_scales).double() - true).abs().max() < 0.02


@pytest.mark.parametrize("block", [(0, 0), (16, 16)])
def test_packed_sequences(device, block):
    _, k, v = inputs(device)
    cu = torch.tensor([0, 50, 130, 150], dtype=torch.int32, device=device)
    packed = [k[0], k[0], v[0]]
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 80, "max_seqlen_k": 80}
    z = strobe.quantise(*packed, scale_block=block, **lengths)
    assert z.k_scale.shape == ((3, 2) if block == (0, 0) else (10, 2))
    if device == "cuda":
        return  # which of these the kernels of a GPU take is not the subject here
    out = strobe.attention(z.q, z.k, z.v, **z.scales, **lengths)
    for first, last in ((0, 50), (50, 130), (130, 150)):
        one = [x[first:last].double().unsqueeze(0) for x in packed]
        true = reference.attention(*one)[0][0]
        assert F.cosine_similarity(out[first:last].double().flatten(), true.flatten(), dim=0) > 0.997


def test_rotary(device):
    q, k, v = inputs(device, torch.float32)
    angle = torch.arange(200.0).unsqueeze(1) * 10000.0 ** (-torch.arange(16) / 16)
    cos, sin = (f(angle).contiguous().to(device) for f in (torch.cos, torch.sin))

    def turned(x, start):
        c, s = (t[start : start + x.shape[1]].view(1, -1, 1, 16) for t in (cos, sin))
        a, b, rest = x[..., :16], x[..., 16:32], x[..., 32:]
        return torch.cat([a * c - b * s, b * c + a * s, rest], -1)

    z = strobe.quantise(q, k, v, rotary=(cos, sin), q_start=20)
    same = strobe.quantise(turned(q, 20), turned(k, 0), v)
    for x, y in zip(z[:2], same[:2], strict=True):
        assert (x.float() - y.float()).abs().max() <= 32  # one step of the largest magnitudes
        assert (x.float() != y.float()).float().mean() < 0.01


def test_numpy():
    q, k, v = (x.numpy() for x in inputs(dtype=torch.float32))
    z = strobe.quantise(q, k, v, dtype="int8")
    assert z.k.dtype == np.int8 and z.k_scale.dtype == np.float32 and z.k_scale.shape == (2, 2, 2)
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(NotImplementedError, match="NumPy has no float8_e4m3fn; with the package ml_dtypes"):
            strobe.quantise(q, k, v)
        return
    z = strobe.quantise(q, k, v)
    assert z.q.dtype == ml_dtypes.float8_e4m3fn
    out = strobe.attention(z.q, z.k, z.v, **z.scales)
    assert out.dtype == ml_dtypes.bfloat16
    assert np.abs(out.astype(np.float32) - strobe.attention(q, k, v)).max() < 0.1


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", "float8_e4m3fn"), ("int8", MIXED)])
def test_torch_gradients(device, name, dtype):
    q, k, v = (x.requires_grad_() for x in inputs(device))
    out = st.attention(q, k, v, causal=True, quantise=name)
    z = strobe.quantise(*(x.detach() for x in (q, k, v)), hadamard=True, subtract_mean=True, dtype=dtype)
    assert torch.equal(out, strobe.attention(z.q, z.k, z.v, **z.scales, causal=True))
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    compiled = torch.compile(lambda *x: st.attention(*x, causal=True, quantise=name), fullgraph=True, backend="aot_eager")
    for x, y in zip(torch.autograd.grad(compiled(q, k, v), (q, k, v), dout), gradients, strict=True):
        assert torch.equal(x, y)
    exact = [x.detach().double().cpu().requires_grad_() for x in (q, k, v)]
    true = torch.autograd.grad(reference.attention(*exact, causal=True)[0], exact, dout.double().cpu())
    for x, y in zip(gradients, true, strict=True):
        assert x.dtype == torch.bfloat16
        assert F.cosine_similarity(x.double().cpu().flatten(), y.flatten(), dim=0) > 0.995


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"dtype": "e5m2"}, ValueError, 'dtype is \'e5m2\'; "float8_e4m3fn", "int8_float8_e4m3fn" or "int8" is accepted'),
        ({"scale_block": 128}, TypeError, "scale_block is 128; a pair"),
        ({"scale_block": (-1, 0)}, ValueError, "scale_block is .*; rows and keys that share a scale, 0 for all"),
        ({"rotary": "3"}, TypeError, "rotary is '3'; a pair of tables"),
        ({"rotary": 0.5}, ValueError, "rotary is 0.5; a base of 1 or more, or a pair of tables"),
        ({"rotary": (torch.zeros(200, 8), torch.zeros(200, 9))}, ValueError, r"rotary\[1\].shape is \(200, 9\)"),
        ({"rotary": (torch.zeros(20, 8), torch.zeros(20, 8))}, ValueError, "positions"),
        ({"seed": -1}, ValueError, "seed is -1; an integer"),
    ],
)
def test_bad_arguments_are_refused(options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        strobe.quantise(*inputs(), **options)


def test_bad_scales_are_refused():
    q, k, v = inputs()
    z = strobe.quantise(q, k, v)
    with pytest.raises(ValueError, match=r"k_scale.shape is \(2, 3, 2\); \(2, 2, 2\) is accepted"):
        strobe.attention(z.q, z.k, z.v, **z.scales | {"k_scale": z.k_scale[:, :1].expand(2, 3, 2)})
    with pytest.raises(ValueError, match=r"scales\.k is NULL"):
        strobe.attention(z.q, z.k, z.v, q_scale=z.q_scale, v_scale=z.v_scale, scale_block=z.scale_block)
    with pytest.raises(NotImplementedError, match="bias is given beside quantise; one of them"):
        st.attention(q, k, v, quantise="e4m3", bias=torch.zeros(130, 150))
    with pytest.raises(ValueError, match="quantise is 'int4'; \"e4m3\" or \"int8\" is accepted"):
        st.attention(q, k, v, quantise="int4")
