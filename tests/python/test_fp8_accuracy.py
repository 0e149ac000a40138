# SPDX-License-Identifier: BSD-3-Clause
"""What FP8 may cost: the gates of docs/numerics.md, on the CPU with fewer keys, and on CUDA with all of them and at the head dims
that kernels have variants for. Where a gate of the table is not met, the test holds what the page says was found."""

import math

import pytest
import strobe
import torch
import torch.nn.functional as F

import reference


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


WIDEST = pytest.param(256, marks=pytest.mark.full)  # which takes the CPU as long as the others together


def dims(device):
    return (64, 80, 128, 192, 256) if device == "cuda" else (64, 128, 256)


def normal(generator, *shape):
    return torch.randn(shape, generator=generator)


def outliers(generator, *shape):
    """The paper's inputs: N(0, 1) + N(0, 100) Bernoulli(0.001)."""
    rare = torch.rand(shape, generator=generator) < 0.001
    return normal(generator, *shape) + 10 * normal(generator, *shape) * rare


E4M3, INT8 = "float8_e4m3fn", "int8_float8_e4m3fn"  # of q and k; v is e4m3


def fp8(device, q, k, v, dtype=torch.bfloat16, scores=E4M3, **options):
    """Attention of the quantised tensors on the device: out, rounded to dtype, and lse of the unquantised keys."""
    z = strobe.quantise(*(x.to(device, torch.bfloat16) for x in (q, k, v)), dtype=scores, **options)
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=dtype, device=device)
    out, lse = strobe.attention(z.q, z.k, z.v, out=out, **z.scales, return_lse=True)
    return out.double().cpu(), (lse if z.lse_shift is None else lse + z.lse_shift).double().cpu()


def exact(q, k, v):
    return reference.attention(*(x.bfloat16().double() for x in (q, k, v)))


def rms(x):
    return x.square().mean().sqrt().item()


def cosine(x, y):
    return F.cosine_similarity(x.flatten(), y.flatten(), dim=0).item()


@pytest.mark.parametrize("dim", [64, 80, 128, WIDEST])
def test_outliers(device, generator, dim):
    """Over eight draws: outliers are few, and the error of one draw at 128 columns is between 7e-3 and 1.2e-2. The gate, 9.1e-3,
    is of 128 columns; of 64 and 80 the error is larger, since a score is a mean of fewer products: int8 meets the gate there too."""
    found = {"blocks, Hadamard": [], "int8, blocks, Hadamard": [], "a head": []}
    for _ in range(8):
        q, k, v = (outliers(generator, 1, n, 1, dim) for n in (256, 4096, 4096))
        true, _ = exact(q, k, v)
        found["blocks, Hadamard"].append(rms(fp8(device, q, k, v, hadamard=True)[0] - true))
        found["int8, blocks, Hadamard"].append(rms(fp8(device, q, k, v, scores=INT8, hadamard=True)[0] - true))
        found["a head"].append(rms(fp8(device, q, k, v, scale_block=(0, 0))[0] - true))
    error = {name: rms(torch.tensor(x)) for name, x in found.items()}
    assert error["int8, blocks, Hadamard"] < {64: 9.1e-3, 80: 9.1e-3, 128: 6.5e-3, 256: 6.5e-3}[dim]
    assert error["blocks, Hadamard"] < {64: 1.8e-2, 80: 1.35e-2, 128: 9.1e-3, 256: 9.1e-3}[dim]
    assert error["a head"] > 1.5 * error["blocks, Hadamard"]


@pytest.mark.parametrize("keys", [1, 2, 127, 128, 129, 130, 255, 256, 257, 4099])
def test_values_of_one(device, generator, keys):
    for dim in dims(device):
        q, k = 3 * normal(generator, 1, 70, 4, dim), normal(generator, 1, keys, 2, dim)
        columns = dim // 2 if dim % 32 == 0 else dim  # the kernel of Hopper takes rows of whole 16 bytes
        for dtype, scores in ((torch.bfloat16, E4M3), (torch.float16, E4M3), (torch.bfloat16, INT8), (torch.float16, INT8)):
            out, _ = fp8(device, q, k, torch.ones(1, keys, 2, columns), dtype, scores, hadamard=True)
            assert (out == 1).all()


def test_lengths_beside_a_block(device, generator):
    for dim in dims(device):
        errors = {E4M3: [], INT8: []}
        q, all_k, all_v = (normal(generator, 2, n, 4, dim) for n in (128, 258, 258))
        for keys in (126, 127, 128, 129, 130, 254, 255, 256, 257, 258):
            k, v = all_k[:, :keys], all_v[:, :keys]
            true, true_lse = exact(q, k, v)
            for scores, of in errors.items():
                out, lse = fp8(device, q, k, v, scores=scores, hadamard=True)
                of.append(rms(out - true) / rms(true))
                assert (lse - true_lse).abs().max() < 0.15
        assert all(max(x) < 1.06 * min(x) for x in errors.values()) and max(errors[INT8]) < 0.8 * min(errors[E4M3])


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_mean_in_keys(device, generator, dim):
    """The mean costs nothing where it is subtracted: what is left is the rounding of N(0, 1), 0.9986 on a GPU, 0.9992 with
    int8 q and k, which is the gate of 0.999."""
    q, k, v = (normal(generator, 1, n, 2, dim) for n in (256, 2048, 2048))
    moved = k + 10 * normal(generator, 1, 1, 2, dim).sign()
    true, true_lse = exact(q, moved, v)
    as_it_is = fp8(device, q, moved, v, hadamard=True)[0]
    out, lse = fp8(device, q, moved, v, hadamard=True, subtract_mean=True)
    without = cosine(fp8(device, q, k, v, hadamard=True)[0], exact(q, k, v)[0])
    assert cosine(as_it_is, true) < 0.98 and cosine(out, true) > max(0.998, without - 2e-4)
    assert (lse - true_lse).abs().max() < 0.2
    assert cosine(fp8(device, q, moved, v, scores=INT8, hadamard=True, subtract_mean=True)[0], true) > 0.999


def test_long_sums_of_positive_values(device, generator):
    keys = 131072 if device == "cuda" else 16384
    for dim in dims(device):
        q, k = normal(generator, 1, 64, 1, dim), normal(generator, 1, keys, 1, dim)
        v = torch.rand(1, keys, 1, dim, generator=generator)
        true, _ = exact(q, k, v)
        for scores in (E4M3, INT8):
            error = [(fp8(device, q, k, v, x, scores, hadamard=True)[0] - true) / true for x in (torch.bfloat16, torch.float16)]
            assert error[0].abs().max() < 5e-3 * max(1, math.sqrt(131072 / keys))
            assert error[1].mean().abs() < 5e-4  # a tenth of it is left for what does not average out, where rounding of out does


@pytest.mark.parametrize("dim", [64, 128, WIDEST])
def test_needles(device, generator, dim):
    """Keys whose score is a ninth of all others' weight, each with one of 64 values, which arg max has to tell."""
    keys, places, seeds = (131072, 10, 5) if device == "cuda" else (16384, 2, 8)
    found = {"fp8": 0, "int8": 0, "bf16": 0}
    strength = 0.82 * math.sqrt(128 / dim) * (math.log(keys) - math.log(9)) / (math.log(131072) - math.log(9))
    for run in range(seeds * places):
        at = keys * (2 * (run % places) + 1) // (2 * places)
        q, k, codes = normal(generator, 1, 64, 1, dim), normal(generator, 1, keys, 1, dim), normal(generator, 64, dim)
        wanted = torch.randint(64, (64,), generator=generator)
        v = codes[torch.randint(64, (1, keys, 1), generator=generator)]
        k[:, at : at + 64], v[0, at : at + 64, 0] = strength * q, codes[wanted]
        plain = strobe.attention(*(x.to(device, torch.bfloat16) for x in (q, k, v))).double().cpu()
        fewer = {"fp8": fp8(device, q, k, v, hadamard=True)[0], "int8": fp8(device, q, k, v, scores=INT8, hadamard=True)[0]}
        for name, out in (*fewer.items(), ("bf16", plain)):
            found[name] += (out[0, :, 0] @ codes.double().T).argmax(-1).eq(wanted).sum().item()
    print(f"needles, {dim} columns: {found}")
    assert found["bf16"] > 20 * seeds * places and found["fp8"] > 0.97 * found["bf16"]
    assert found["int8"] > 0.995 * found["bf16"]  # as often: on an H100 2235 of 2230 at 128 columns
