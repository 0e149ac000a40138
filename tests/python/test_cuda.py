# SPDX-License-Identifier: BSD-3-Clause
"""CUDA tensors of PyTorch: the same calls on the GPU, on the caller's stream, with memory of the caller's allocator. Skipped
without a GPU, or where the wheel was built without the CUDA backend."""

import cache
import pytest
import strobe
import strobe.torch as st
import torch
from hypothesis import given
from test_attention import DTYPES, compare, problems
from test_flash_attn_cache import KEYS, ROWS, assert_as_contiguous

import reference

usable = torch.cuda.is_available() and any(k.device == "cuda" and not k.unavailable for k in strobe.kernels())
pytestmark = pytest.mark.skipif(not usable, reason="no CUDA device, or a wheel without CUDA kernels")


def on_gpu(x):
    return x.cuda() if isinstance(x, torch.Tensor) else x


def qkv(*shape, dtype=torch.bfloat16, **options):
    return [torch.randn(*shape, device="cuda", **options).to(dtype) for _ in range(3)]


@given(problems())
def test_forward_and_backward(problem):
    assert compare(problem, on_gpu).is_cuda


def compare_autograd(dtype, call, **options):
    """Values and gradients of a call on the GPU are those of float64, as far as the dtype's plain attention is from it."""
    torch.manual_seed(0)
    here = [torch.randn(2, s, h, 64).to(dtype) for s, h in ((150, 4), (200, 2), (200, 2))]
    dout = torch.randn(2, 150, 4, 64).to(dtype)
    there = [x.cuda().requires_grad_() for x in here]
    out = call(*there)
    gradients = torch.autograd.grad(out, there, dout.cuda())
    exact = [x.double().requires_grad_() for x in here]
    truth, truth_lse = reference.attention(*exact, **options)
    plain = [x.clone().requires_grad_() for x in here]
    plain_out, _ = reference.attention(*plain, **options, dtype=dtype)
    reference.assert_close(out.detach().cpu(), truth.detach(), plain_out.detach())
    allowed = torch.autograd.grad(plain_out, plain, dout)
    terms = reference.terms(*here, dout, torch.zeros(1), truth_lse.detach())
    for name, ours, right, theirs in zip(
        "qkv", gradients, torch.autograd.grad(truth, exact, dout.double()), allowed, strict=True
    ):
        reference.assert_close(ours.cpu(), right, theirs, 3, "d" + name, terms[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_autograd(dtype):
    compare_autograd(dtype, lambda q, k, v: st.flash_attn_func(q, k, v, causal=True), causal=True)


@pytest.mark.parametrize("softcap", [0.5, 7.9, 8.0, 50.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_of_any_size(dtype, softcap):
    compare_autograd(dtype, lambda q, k, v: st.attention(q, k, v, softcap=softcap), softcap=softcap)
    q, k, v = qkv(1, 64, 2, 64)
    lines = strobe.explain(q, k, v, softcap=softcap, backward=True).splitlines()
    hopper = next(line for line in lines if line.startswith("cuda_backward_sm90"))
    if "compute capability" not in hopper:
        assert ("softcap is below 8" in hopper) == (softcap < 8), hopper


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_lse(dtype):
    """lse of a thousand is rounded once."""
    q, k, v = (torch.ones(1, 80, 1, 64, device="cuda", dtype=dtype) * x for x in (4, 32, 1))  # scores are 1024, exactly
    lse = strobe.attention(q, k, v, return_lse=True)[1]
    assert (lse.double() - (1024 + torch.log(torch.tensor(80.0, dtype=torch.float64)))).abs().max() <= 2**-14 + 1e-6


@pytest.mark.parametrize("rows", [9, 150])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_whose_biases_are_all_the_least_number(dtype, rows):
    """As models have them, instead of -inf, in rows of padding: they leave the other rows and all gradients as they are."""
    q, k, v = (torch.randn(1, n, 2, 64, device="cuda").to(dtype) for n in (rows, 130, 130))
    bias = torch.zeros(rows, 130, device="cuda", dtype=dtype)
    bias[:, 100:], bias[3], bias[-1] = (torch.finfo(dtype).min,) * 3
    out, lse = strobe.attention(q, k, v, bias=bias, return_lse=True)
    truth, _ = reference.attention(q.cpu(), k[:, :100].cpu(), v[:, :100].cpu())
    seen = [i for i in range(rows - 1) if i != 3]
    assert (out.cpu()[:, seen] - truth[:, seen]).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    assert torch.isfinite(out).all() and not torch.isnan(lse).any()
    gradients = strobe.attention_backward(q, q, k, v, out, lse, bias=bias)[:3]
    assert all(torch.isfinite(x).all() for x in gradients)


def test_rows_outside_the_sequences_are_zero():
    q, k, v = qkv(2, 8, 2, 16)
    used = torch.tensor([3, 8], dtype=torch.int32, device="cuda")
    out, lse = strobe.attention(q, k, v, used_q=used, used_k=used, return_lse=True)
    assert (out[0, 3:] == 0).all() and (lse[0, :, 3:] == -torch.inf).all()
    gradients = strobe.attention_backward(out, q, k, v, out, lse, used_q=used, used_k=used)
    assert all((g[0, 3:] == 0).all() and torch.isfinite(g).all() for g in gradients[:3])


def test_packed_sequences():
    lengths = [5, 64, 130, 1]
    cu = torch.tensor([0, 5, 69, 199, 200], dtype=torch.int32, device="cuda")
    q, k, v = qkv(200, 4, 64)
    out = st.flash_attn_varlen_func(q, k, v, cu, cu, 130, 130, causal=True)
    start = 0
    for n in lengths:
        rows = slice(start, start + n)
        alone = st.flash_attn_func(*(x[None, rows] for x in (q, k, v)), causal=True)[0]
        truth, _ = reference.attention(*(x[None, rows].cpu() for x in (q, k, v)), causal=True)
        plain, _ = reference.attention(*(x[None, rows].cpu() for x in (q, k, v)), causal=True, dtype=q.dtype)
        reference.assert_close(out[None, rows].cpu(), truth, plain)
        reference.assert_close(alone[None].cpu(), truth, plain)
        start += n


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 30.0}, {"softcap": 5.0}], ids=str)
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_the_next_sequences_rows_leave_a_sequences_bits(dim, options):
    """A tile of rows that a sequence does not fill has the next one's behind them."""
    torch.manual_seed(0)
    rows, keys = [60, 77], [700, 300]
    q, (k, v) = qkv(sum(rows), 4, dim)[0], qkv(sum(keys), 2, dim)[:2]
    cu_q, cu_k = (torch.tensor([0, x[0], sum(x)], dtype=torch.int32, device="cuda") for x in (rows, keys))

    def first(behind):
        q[rows[0] :] = behind
        lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": max(rows), "max_seqlen_k": max(keys)}
        out, lse = strobe.attention(q, k, v, return_lse=True, **lengths, **options)
        return out[: rows[0]], lse[:, : rows[0]]

    usual = first(torch.zeros_like(q[rows[0] :]))
    for behind in (torch.randn_like(q[rows[0] :]), 30 * torch.randn_like(q[rows[0] :]), torch.nan, torch.inf):
        assert all(torch.equal(x, y) for x, y in zip(first(behind), usual, strict=True))


@pytest.mark.parametrize("dtype", ["e4m3", "int8"])
@pytest.mark.parametrize("dims", [(40, 40), (72, 100), (136, 8)])
def test_quantised_on_the_way_with_any_number_of_columns(dims, dtype):
    """Rows of bytes whose columns are no multiple of sixteen are none that the kernel reads."""
    torch.manual_seed(0)
    q, k = qkv(2, 150, 4, dims[0])[:2]
    v = qkv(2, 150, 4, dims[1])[0]
    out, lse = st.attention(q, k, v, causal=True, quantise=dtype, return_lse=True)
    truth, truth_lse = reference.attention(*(x.cpu() for x in (q, k, v)), causal=True)
    assert out.shape == v.shape and out.is_contiguous()
    assert torch.nn.functional.cosine_similarity(out.cpu().double().flatten(), truth.flatten(), 0) > 0.995
    assert (lse.cpu() - truth_lse).abs().max() < 0.2


@pytest.mark.parametrize("rows", [1, 4])
def test_the_batch_leaves_the_bits_of_split_keys(rows):
    torch.manual_seed(0)
    q, (k, v) = qkv(64, rows, 8, 128)[0], qkv(64, 1025, 1, 128)[:2]
    used = torch.randint(1, 1026, (64,), dtype=torch.int32, device="cuda")
    out, lse = strobe.attention(q, k, v, used_k=used, split_keys=64, return_lse=True)
    for b in (slice(0, 1), slice(30, 33)):
        alone = strobe.attention(q[b], k[b], v[b], used_k=used[b], split_keys=64, return_lse=True)
        assert torch.equal(alone[0], out[b]) and torch.equal(alone[1], lse[b])


def test_the_callers_stream_is_used():
    """Work that a stream has not done yet is waited for, because the call is on that stream and not on another."""
    q, k, v = qkv(2, 512, 4, 64)
    expected = strobe.attention(q, k, v)
    torch.cuda.synchronize()
    late = torch.full_like(q, float("nan"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        out = strobe.attention(late, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_in_a_cuda_graph():
    q, k, v = qkv(2, 256, 4, 64)
    out, dout = torch.empty_like(q), torch.randn_like(q)
    strobe.attention(q, k, v, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        strobe.attention(q, k, v, causal=True, out=out)
        result, lse = strobe.attention(q, k, v, causal=True, return_lse=True)
        gradients = strobe.attention_backward(dout, q, k, v, result, lse, causal=True, deterministic=True)
    for _ in range(2):
        for x in (q, k, v):
            x.normal_()
        out.fill_(float("nan"))
        graph.replay()
        expected, expected_lse = strobe.attention(q, k, v, causal=True, return_lse=True)
        again = strobe.attention_backward(dout, q, k, v, expected, expected_lse, causal=True, deterministic=True)
        assert torch.equal(out, expected) and torch.equal(result, expected)
        assert all(torch.equal(x, y) for x, y in zip(gradients[:3], again[:3], strict=True))


def test_tiles_that_two_ctas_share_have_the_bits_of_others():
    """140 tiles of 16 blocks of keys are a few more than a GPU works on at a time, so that they are shared; 70 are not."""
    q = torch.randn(1, 100, 140, 128, device="cuda").bfloat16()
    k, v = (torch.randn(1, 2000, 140, 128, device="cuda").bfloat16() for _ in range(2))
    halves = [strobe.attention(*(x[:, :, part] for x in (q, k, v)), return_lse=True) for part in (slice(70), slice(70, 140))]
    out, lse = torch.empty_like(q), None
    graph = torch.cuda.CUDAGraph()
    strobe.attention(q, k, v, out=out)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        _, lse = strobe.attention(q, k, v, out=out, return_lse=True)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, torch.cat([x for x, _ in halves], 2))
        assert torch.equal(lse, torch.cat([x for _, x in halves], 1))


@pytest.mark.parametrize("dim", [64, 128])
def test_products_of_tf32(dim):
    """Chosen where they are allowed, with at most twice the error of true fp32, forward and backward."""
    torch.manual_seed(0)
    inputs = qkv(1, 700, 2, dim, dtype=torch.float32)
    dout = torch.randn_like(inputs[0])
    for backward, name in ((False, "cuda_forward_tf32x3: chosen"), (True, "cuda_backward_tf32x3: chosen")):
        assert name in strobe.explain(*inputs, tf32x3=True, backward=backward)
        assert name not in strobe.explain(*inputs, backward=backward)
    exact = [x.double().cpu().requires_grad_() for x in inputs]
    leaves = [x.clone().requires_grad_() for x in inputs]
    right, _ = reference.attention(*exact, causal=True)
    truth = [right.detach(), *torch.autograd.grad(right, exact, dout.double().cpu())]
    errors = []
    for allowed in (False, True):
        out = st.attention(*leaves, causal=True, tf32x3=allowed)
        results = [out.detach(), *torch.autograd.grad(out, leaves, dout)]
        errors.append([((x.cpu() - y).norm() / y.norm()).item() for x, y in zip(results, truth, strict=True)])
    assert all(ours <= 2 * fp32 for fp32, ours in zip(*errors, strict=True)), errors


def test_compile():
    compiled = torch.compile(lambda q, k, v: st.attention(q * 2, k, v, causal=True), fullgraph=True, backend="aot_eager")
    q, k, v = qkv(1, 64, 2, 64)
    assert torch.equal(compiled(q, k, v), st.attention(q * 2, k, v, causal=True))


def test_merge():
    q, k, v = qkv(1, 64, 2, 64, dtype=torch.float32)
    parts = [strobe.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 40), (40, 64))]
    out, _ = strobe.merge([part[0] for part in parts], [part[1] for part in parts])
    truth, _ = reference.attention(*(x.cpu() for x in (q, k, v)))
    plain, _ = reference.attention(*(x.cpu() for x in (q, k, v)), dtype=torch.float32)
    assert out.is_cuda
    reference.assert_close(out.cpu(), truth, plain, 3)


def test_devices_do_not_mix():
    q, k, v = qkv(1, 8, 2, 16)
    with pytest.raises(ValueError, match="k is on the CPU 0; q's, CUDA device 0, is accepted"):
        strobe.attention(q, k.cpu(), v)
    assert "cuda_" in strobe.explain(q, k, v)


def new_tokens(q_dtype=torch.bfloat16, tokens=5):
    torch.manual_seed(1)
    return [torch.randn(3, tokens, heads, 64).to(q_dtype) for heads in (4, 2, 2)]


def appended(where, dtype, options):
    """Cache, scales and q after a call, brought to the CPU; `where` takes tensors to the device."""
    q, k, v = (where(x) for x in new_tokens())
    caches = [where(torch.full((20, 8, 2, 64), 3).to(dtype)) for _ in "kv"]
    scales = [where(torch.full((20, 8, 2), 7.0)) for _ in "kv"] if dtype.itemsize == 1 else []
    given = dict(zip(("k_scale", "v_scale"), scales, strict=False))
    table = where(torch.arange(15, dtype=torch.int32).view(3, 5))
    lengths = where(torch.tensor([0, 35, 11], dtype=torch.int32))
    call = st.append if "rotary" in options else strobe.append
    rotary = {name: tuple(map(where, x)) if isinstance(x, tuple) else x for name, x in options.items()}
    turned = call(*caches, k, v, q=q, lengths=lengths, page_table=table, **given, **rotary)
    return [x.cpu() for x in (*caches, *scales, turned)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.float8_e4m3fn])
def test_append_leaves_the_bytes_of_the_cpu(dtype):
    angles = torch.arange(40)[:, None] * 10000.0 ** -(torch.arange(32) / 32)
    for options in (
        {},
        {"rotary": (angles.cos(), angles.sin())},
        {"rotary": 10000.0, "interleaved": True, "hadamard": True},
    ):
        for here, there in zip(appended(lambda x: x, dtype, options), appended(on_gpu, dtype, options), strict=True):
            assert torch.equal(here.view(torch.uint8), there.view(torch.uint8)), (dtype, options)


def test_new_keys_with_rotary_before_attention_over_a_cache():
    q, k, v = new_tokens()
    angles = torch.arange(40)[:, None] * 10000.0 ** -(torch.arange(32) / 32)
    results = []
    for where in (lambda x: x, on_gpu):
        caches = [where(torch.zeros(3, 40, 2, 64, dtype=q.dtype)) for _ in "kv"]
        lengths = where(torch.tensor([0, 35, 11], dtype=torch.int32))
        out = st.flash_attn_with_kvcache(
            where(q), *caches, where(k), where(v), rotary_cos=where(angles.cos()), rotary_sin=where(angles.sin()),
            cache_seqlens=lengths, causal=True,
        )  # fmt: skip
        results.append([x.cpu() for x in (*caches, out)])
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert (results[0][2].float() - results[1][2].float()).abs().max() <= 2**-6 * results[0][2].float().abs().max()


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("rotary", [True, False])
def test_packed_new_keys_of_a_cache(rotary, same):
    """The offsets of the new keys are on the device: the host knows but a bound of their lengths."""
    torch.manual_seed(0)
    q, k, v = torch.randn(33, 8, 64), torch.randn(33, 2, 64), torch.randn(33, 2, 64)
    pages = [torch.randn(64, 16, 2, 64) for _ in range(2)]
    table, cu = torch.randperm(64)[:18].view(3, 6).int(), torch.tensor([0, 1, 31, 33], dtype=torch.int32)
    before = torch.tensor([20, 0, 7], dtype=torch.int32)
    angles = torch.arange(96)[:, None] * 10000.0 ** -(torch.arange(32) / 32)
    results = []
    for device in ("cpu", "cuda"):
        offsets = cu.to(device)
        turned = {"rotary_cos": angles.cos().to(device), "rotary_sin": angles.sin().to(device)} if rotary else {}
        caches = [x.to(device) for x in pages]
        out = st.flash_attn_with_kvcache(
            q.to(device), *caches, k.to(device), v.to(device), **turned, cache_seqlens=before.to(device),
            page_table=table.to(device), cu_seqlens_q=offsets, cu_seqlens_k_new=offsets if same else offsets.clone(),
            max_seqlen_q=30, causal=True,
        )  # fmt: skip
        results.append([x.cpu() for x in (out, *caches)])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-4)


def test_a_captured_append_reads_the_lengths_that_are_there():
    q, k, v = (on_gpu(x) for x in new_tokens(tokens=1))
    caches = torch.zeros(2, 3, 40, 2, 64, device="cuda", dtype=q.dtype)
    lengths = torch.zeros(3, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        st.append(*caches, k, v, lengths=lengths)
    for step in range(4):
        graph.replay()
        lengths += 1
        assert torch.equal(caches[0][:, step], k[:, 0]) and torch.equal(caches[1][:, step], v[:, 0])
    assert not caches[:, :, 4:].any()


def test_indices_out_of_range_write_nothing():
    q, k, v = (on_gpu(x) for x in new_tokens())
    caches = torch.zeros(2, 3, 40, 2, 64, device="cuda", dtype=q.dtype)
    lengths = torch.tensor([-1, 38, 1 << 30], dtype=torch.int32, device="cuda")
    strobe.append(*caches, k, v, lengths=lengths)
    assert torch.equal(caches[0][1, 38:], k[1, :2])
    caches[:, 1, 38:] = 0
    assert not caches.any()


def paged(dtype, size, dim=64, dim_v=48):
    """Sequences of queries, keys and values, and those in pages on the GPU, with NaN in every slot that is not in use."""
    q = cache.sequences(ROWS, 4, dim, dtype=dtype)
    k, v = cache.sequences(KEYS, 2, dim, dtype=dtype, seed=1), cache.sequences(KEYS, 2, dim_v, dtype=dtype, seed=2)
    table = cache.page_table(KEYS, size)
    pages = [cache.in_pages(x, size, table, heads_outside=size == 16).cuda() for x in (k, v)]
    return (q, k, v), pages, table.cuda()


@pytest.mark.parametrize("size", [1, 16, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_prompts_and_tokens_over_pages(dtype, size):
    (q, k, v), pages, table = paged(dtype, size)
    out, lse, _ = st.flash_attn_varlen_func(
        torch.cat(q).cuda(), *pages, cache.cumulative(ROWS).cuda(), None, 64, 300, causal=True, block_table=table,
        seqused_k=cache.used(KEYS).cuda(), return_attn_probs=True,
    )  # fmt: skip
    assert_as_contiguous(out.cpu().split(ROWS), lse.cpu().split(ROWS, 1), q, k, v, causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_cache_of_more_sequences_with_left_padding(dtype):
    torch.manual_seed(0)
    q = torch.randn(3, 2, 4, 64).to(dtype)
    k, v = (torch.randint(-127, 128, (5, 90, 2, 64), dtype=torch.int8) for _ in range(2))
    options = {
        "cache_seqlens": cache.used([90, 40, 7]), "cache_leftpad": cache.used([0, 33, 7]),
        "cache_batch_idx": cache.used([4, 0, 2]), "k_descale": torch.rand(3, 2) / 40, "v_descale": torch.rand(3, 2) / 40,
    }  # fmt: skip
    there = st.flash_attn_with_kvcache(
        on_gpu(q), on_gpu(k), on_gpu(v), causal=True, **{n: on_gpu(x) for n, x in options.items()}
    )
    here = st.flash_attn_with_kvcache(q.float(), k, v, causal=True, **options)
    torch.testing.assert_close(there.cpu().float(), here, rtol=0, atol=max(8 * torch.finfo(dtype).eps, 1e-5))


def test_a_graph_reads_table_and_lengths_when_it_runs():
    (q, _, _), pages, table = paged(torch.bfloat16, 16)
    tokens = torch.stack([x[:1] if len(x) else torch.zeros(1, 4, 64) for x in q]).bfloat16().cuda()
    table, lengths = table.clone(), cache.used(KEYS).cuda()
    call = lambda: st.flash_attn_with_kvcache(tokens, *pages, page_table=table, cache_seqlens=lengths, causal=True)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    table.copy_(table.flip(0)), lengths.copy_(lengths.flip(0))
    graph.replay()
    assert torch.equal(captured, call())


@pytest.mark.parametrize("size", [8, 16, 5])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [None, torch.int8])
def test_what_only_the_gpu_knows_is_never_followed(dtype, kept, rows, size):
    """Pages that are none and lengths beyond the bound: those keys do not exist, and outside of the output no byte changes.
    NaN lies in every slot that no table names."""
    torch.manual_seed(0)
    last = 2**31 - 1
    table = torch.tensor([[3, -1, 5, 9], [2, 9, last, 0], [-last - 1, 7, 8, 10], [10, -9, last, 999]], dtype=torch.int32)
    there = torch.tensor([4 * size, 2 * size + 3, 10**6, -5], dtype=torch.int32)
    q, k, v = torch.randn(4, rows, 4, 64).to(dtype), *torch.randn(2, 10, size, 2, 64).to(dtype)
    options = {}
    if kept:
        z = strobe.quantise(k.float(), k.float(), v.float(), dtype="int8", scale_block=(1, 1))
        k, v, options = z.k, z.v, dict(z.cache_scales)
        for name in ("k_scale", "v_scale"):
            options[name][[1, 4, 6]] = torch.nan
    else:
        k[[1, 4, 6]] = v[[1, 4, 6]] = torch.nan
    options |= {"causal": True, "max_seqlen_k": 4 * size, "return_lse": True}
    expected = strobe.attention(q.float(), k if kept else k.float(), v if kept else v.float(), page_table=table,
                                used_k=there.clamp(0, 4 * size), **options)  # fmt: skip
    given = [on_gpu(x) for x in (q, k, v, table, there)]
    before = [x.clone().view(torch.uint8) for x in given]
    guarded = torch.full((q.numel() + 8192,), 7, device="cuda", dtype=dtype)
    out = guarded[4096:-4096].view(q.shape)
    _, lse = strobe.attention(
        *given[:3], page_table=given[3], used_k=given[4], out=out, **{n: on_gpu(x) for n, x in options.items()}
    )
    assert (guarded[:4096] == 7).all() and (guarded[-4096:] == 7).all()
    assert all(torch.equal(x, y.view(torch.uint8)) for x, y in zip(before, given, strict=True))
    torch.testing.assert_close(out.cpu().float(), expected[0], rtol=0, atol=max(6 * torch.finfo(dtype).eps, 1e-5))
    torch.testing.assert_close(lse.cpu(), expected[1], rtol=0, atol=max(torch.finfo(dtype).eps, 1e-5))


def test_new_tokens_of_pages_that_are_none_are_written_nowhere():
    """Guard pages on both sides of a cache, and NaN everywhere."""
    torch.manual_seed(0)
    last = 2**31 - 1
    memory = torch.full((2, 9, 4, 2, 64), torch.nan, device="cuda", dtype=torch.bfloat16)
    caches = memory[:, 2:-2]  # five pages of four slots
    k, v = torch.randn(2, 3, 6, 2, 64, device="cuda", dtype=torch.bfloat16)
    table = torch.tensor([[4, 5, 1], [-1, 2, last], [-last - 1, 999, 5]], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([1, 3, 10**6], dtype=torch.int32, device="cuda")
    strobe.append(*caches, k, v, lengths=lengths, page_table=table, max_seqlen_k=12)
    for x, new in zip(memory, (k, v), strict=True):
        assert torch.equal(x[6, 1:4], new[0, :3]) and torch.equal(x[4], new[1, 1:5])
        x[6, 1:4] = x[4] = torch.nan
    assert memory.isnan().all()
    slots = torch.tensor(
        [[0, 21, -1, 20, 19, 10**12], [-7, 24, 1, 2, 3, -(10**12)], [20, 30, 36, -8, -9, 10**9]], device="cuda"
    )
    strobe.append(*caches, k, v, slots=slots, page_table=table, max_seqlen_k=12)
    inside = (slots >= 0) & (slots < 20)
    for x, new in zip(caches, (k, v), strict=True):
        assert torch.equal(x.flatten(0, 1)[slots[inside]], new[inside])
        x.flatten(0, 1)[slots[inside]] = torch.nan
    assert memory.isnan().all()


def a_step(size=16):
    """q, new k and v of a step, caches in pages, their table and lengths."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 1, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2))
    caches = torch.randn(2, 3 * 8, size, 2, 64, device="cuda").bfloat16()
    table = torch.randperm(3 * 8, device="cuda").view(3, 8).int()
    return q, k, v, caches, table, torch.tensor([0, 37, 100], dtype=torch.int32, device="cuda")


def test_compiled_steps_over_a_cache():
    angles = torch.arange(128, device="cuda")[:, None] * 10000.0 ** -(torch.arange(32, device="cuda") / 32)

    def step(q, k, v, k_cache, v_cache, table, lengths):
        return st.flash_attn_with_kvcache(
            q * 2, k_cache, v_cache, k, v, rotary_cos=angles.cos(), rotary_sin=angles.sin(), cache_seqlens=lengths,
            page_table=table, causal=True,
        )  # fmt: skip

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    q, k, v, caches, table, lengths = a_step()
    others = caches.clone()
    for _ in range(3):
        assert torch.equal(compiled(q, k, v, *caches, table, lengths), step(q, k, v, *others, table, lengths))
        assert torch.equal(caches, others)
        lengths += 1

    def attend(q, k_cache, v_cache, table, cu, lengths):
        return st.flash_attn_varlen_func(
            q, k_cache, v_cache, cu, None, 4, 128, causal=True, block_table=table, seqused_k=lengths
        )

    rows, cu = torch.randn(7, 4, 64, device="cuda").bfloat16(), cache.cumulative([4, 1, 2]).cuda()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    lengths += 4
    assert torch.equal(compiled(rows, *caches, table, cu, lengths), attend(rows, *caches, table, cu, lengths))

    def append(k, v, k_cache, v_cache, table, lengths):
        st.append(k_cache, v_cache, k, v, lengths=lengths, page_table=table)
        return lengths + 1

    compiled = torch.compile(append, fullgraph=True, backend="aot_eager")
    lengths = append(k, v, *others, table, compiled(k, v, *caches, table, lengths) - 1)
    assert torch.equal(caches, others)


def test_one_graph_of_a_step_serves_all_steps():
    q, k, v, caches, table, lengths = a_step()
    others, first = caches.clone(), lengths.clone()

    def step(k_cache, v_cache, lengths):
        return st.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, page_table=table, causal=True)

    step(*caches.clone(), lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(*caches, lengths)
    for n in range(20):
        q.copy_(torch.randn_like(q)), k.copy_(torch.randn_like(k)), v.copy_(torch.randn_like(v))
        lengths.copy_(first + n)
        graph.replay()
        assert torch.equal(captured, step(*others, first + n)) and torch.equal(caches, others)
