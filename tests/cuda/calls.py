#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""calls.py LIBSTROBE: what `strobe check` does not ask of the CUDA kernels, through PyTorch's tensors: keys that hold NaN and
are hidden from some rows of a tile only, results that do not depend on the batch with a fixed split, rows of one key, merge. Exit
code 77 without PyTorch or a GPU."""
import ctypes as C
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from abi import Gradients, Paged, Partials, Tensor, Tuning, Varlen  # noqa: E402
from cuda_peers import Strobe, torch, view  # noqa: E402  exits with 77 without PyTorch

NAN_KEY, NAN_VALUE = 120, 150


def tensors(dtype, rows, keys, dim, batch=1, heads=2):
    return [torch.randn(batch, n, heads, dim, device="cuda", dtype=dtype).transpose(1, 2) for n in (rows, keys, keys, rows)]


def forward(strobe, q, k, v, causal, split=0):
    """By the kernels for any GPU, also where Hopper's own would be chosen."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
    a = strobe.prepare(q, k, v, out, lse, causal)
    kernel = b"cuda_forward_fp32" if q.dtype == torch.float32 else b"cuda_forward_sm80"
    tuning = Tuning(C.sizeof(Tuning), kernel, split)
    a.tuning = C.pointer(tuning)
    strobe.forward(a, strobe.workspace(a))
    torch.cuda.synchronize()
    a.tuning = None
    return a, out, lse


def backward(strobe, a, q, k, v, dout, chosen=False):
    """By the kernels for any GPU, or by the one that the library chooses."""
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    g = Gradients(struct_size=C.sizeof(Gradients))
    g.dout, g.dq, g.dk, g.dv = (view(x, True) for x in (dout, dq, dk, dv))
    tuning = Tuning(C.sizeof(Tuning), b"cuda_backward_fp32" if q.dtype == torch.float32 else b"cuda_backward_sm80", 0)
    a.tuning = None if chosen else C.pointer(tuning)
    strobe.backward(a, g, strobe.workspace(a, g))
    torch.cuda.synchronize()
    a.tuning = None
    return dq, dk, dv


def hidden_nan(strobe):
    cases = 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for dim in (40, 64, 128, 200, 256, 300):
            q, k, v, dout = tensors(dtype, 200, 200, dim)
            a, clean, clean_lse = forward(strobe, q, k, v, True)
            clean_dq = backward(strobe, a, q, k, v, dout)[0]
            k[:, :, NAN_KEY], v[:, :, NAN_VALUE] = float("nan"), float("inf")
            a, out, lse = forward(strobe, q, k, v, True)
            dq = backward(strobe, a, q, k, v, dout)[0]
            above = slice(0, NAN_KEY)
            assert torch.equal(out[:, :, above], clean[:, :, above]), (dtype, dim)
            assert torch.equal(lse[:, :, above], clean_lse[:, :, above]), (dtype, dim)
            assert out[:, :, NAN_KEY:].isnan().all(), (dtype, dim)
            assert torch.allclose(dq[:, :, above].float(), clean_dq[:, :, above].float(), atol=1e-2, rtol=1e-2), (dtype, dim)
            v[:, :, NAN_VALUE] = float("nan")
            k[:, :, NAN_KEY] = 0
            out = forward(strobe, q, k, v, True)[1]
            assert out[:, :, :NAN_VALUE].isfinite().all() and out[:, :, NAN_VALUE:].isnan().all(), (dtype, dim)
            cases += 1
    print(f"NaN in keys hidden from a part of a tile: {cases} cases")


def fixed_split(strobe):
    q, k, v, _ = tensors(torch.bfloat16, 1, 5000, 128, batch=4, heads=8)
    whole, lse = forward(strobe, q, k, v, False, split=512)[1:]
    first = forward(strobe, q[:1], k[:1], v[:1], False, split=512)[1]
    assert torch.equal(whole[:1], first)
    right = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert (whole.float() - right).abs().max() < 1e-2
    print("a fixed split gives the same bits in any batch")


def fixed_split_of_lengths(strobe, kernel, heads, heads_kv, dim, dim_v):
    """Decoding by lengths in device memory: the same bits alone, beside other lengths and under another bound of keys."""
    lengths, most = (3000, 1, 777, 5000, 64), 6000
    q = torch.randn(len(lengths), heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(len(lengths), heads_kv, most, dim, device="cuda", dtype=torch.bfloat16)
    v = k[..., :dim_v] if dim_v < dim else torch.randn_like(k)

    def call(b, end, bound, split):
        out = torch.full((end - b, heads, 1, dim_v), float("nan"), device="cuda", dtype=q.dtype)
        lse = torch.empty(end - b, heads, 1, device="cuda")
        a = strobe.prepare(q[b:end], k[b:end, :, :bound], v[b:end, :, :bound], out, lse, False)
        used = torch.tensor(lengths[b:end], dtype=torch.int32, device="cuda")
        varlen, tuning = Varlen(struct_size=C.sizeof(Varlen), used_k=used.data_ptr()), Tuning(C.sizeof(Tuning), kernel, split)
        a.varlen, a.tuning = C.cast(C.pointer(varlen), C.c_void_p), C.pointer(tuning)
        strobe.forward(a, strobe.workspace(a))
        torch.cuda.synchronize()
        return out, lse

    for split in (48, 500, 1000, 8192):
        together = call(0, len(lengths), most, split)
        for b, n in enumerate(lengths):
            alone = call(b, b + 1, n, split)
            assert all(torch.equal(x[0], y[b]) for x, y in zip(alone, together, strict=True)), (kernel, split, b)
    print(f"so it does with {kernel.decode()}, beside other lengths")


def numbers_that_lie(strobe, kernel, rows, dim, page):
    """Lengths outside of [0, seq_k] and entries of a page table that are no pages, which only the device sees: lengths are cut, such pages
    are invisible, what lies around the cache is not read, it holds NaN, and what lies around the outputs is not written."""
    most, guard, lengths = 192, 8, (192 + 1, 2**31 - 1, -1, -(2**31), 100, 191)
    batch, heads, heads_kv, used = len(lengths), 4, 2, [min(max(n, 0), most) for n in lengths]
    q = torch.randn(batch, heads, rows, dim, device="cuda", dtype=torch.bfloat16)
    slots = page or most
    entries = batch * most // slots
    caches = [torch.full((entries + 2 * guard, slots, heads_kv, dim), float("nan"), device="cuda", dtype=q.dtype) for _ in "kv"]
    k, v = (x[guard : guard + entries] for x in caches)
    order = torch.randperm(entries, device="cuda").int() if page else torch.arange(entries, device="cuda").int()
    table = order.view(batch, most // slots)
    seen = torch.zeros(batch, most, dtype=torch.bool, device="cuda")
    flat = [torch.zeros(batch, most, heads_kv, dim, device="cuda", dtype=q.dtype) for _ in "kv"]
    wrong_entries = (-1, entries, 2**31 - 1, -(2**31))
    for b, n in enumerate(used):
        for j in range(0, n, slots):
            is_lie = page and (b + j // slots) % 3 == 0
            count, at = min(slots, n - j), int(table[b, j // slots])
            for x, part in zip((k, v), flat, strict=True):
                new = torch.randn(count, heads_kv, dim, device="cuda", dtype=q.dtype)
                if not is_lie:
                    x[at, :count], part[b, j : j + count] = new, new
            seen[b, j : j + count] = not is_lie
            if is_lie:
                table[b, j // slots] = wrong_entries[(b + j) % len(wrong_entries)]
    bytes_of_out = torch.full((batch + 2, heads, rows, dim), 7.0, device="cuda", dtype=q.dtype)
    lses = torch.full((batch + 2, heads, rows), 7.0, device="cuda")
    out, lse = bytes_of_out[1:-1], lses[1:-1]
    like = torch.empty(batch, heads_kv, most, dim, device="meta", dtype=q.dtype)
    a = strobe.prepare(q, *((like, like) if page else (k.transpose(1, 2), v.transpose(1, 2))), out, lse, False)
    ends = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    varlen, tuning = Varlen(struct_size=C.sizeof(Varlen), used_k=ends.data_ptr()), Tuning(C.sizeof(Tuning), kernel, 0)
    paged = Paged(C.sizeof(Paged), table.data_ptr(), table.shape[1], slots, entries)
    a.varlen, a.tuning = C.cast(C.pointer(varlen), C.c_void_p), C.pointer(tuning)
    if page:
        for to, x in ((a.k, k), (a.v, v)):
            to.data, to.stride = x.data_ptr(), (C.c_int64 * 3)(*x.stride()[:3])
        a.paged = C.cast(C.pointer(paged), C.c_void_p)
    strobe.forward(a, strobe.workspace(a))
    torch.cuda.synchronize()
    scores = torch.einsum("bhid,bjhd->bhij", q.float(), flat[0].float().repeat_interleave(2, 2)) / dim**0.5
    weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1).nan_to_num(0)
    right = torch.einsum("bhij,bjhd->bhid", weights, flat[1].float().repeat_interleave(2, 2))
    assert (out.float() - right).abs().max() < 3e-2, (kernel, rows, dim, page)
    for x in (bytes_of_out, lses):
        assert (x[0] == 7).all() and (x[-1] == 7).all(), (kernel, rows, dim, page)


def hidden_nan_rows(strobe, chosen):
    """Rows of Q and dO that hold NaN and do not see a key, or see none at all, leave the key's gradients alone, with and
    without STROBE_DETERMINISTIC."""
    cases = 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for dim in (40, 64, 128, 256, 300):
            for rows, keys, row in ((300, 200, 50), (200, 200, 30)):  # bottom right: of 300 rows, the first 100 see nothing
                q, k, v, dout = tensors(dtype, rows, keys, dim)
                a, _, lse = forward(strobe, q, k, v, True)
                clean = backward(strobe, a, q, k, v, dout, chosen)
                q[:, :, row], dout[:, :, row + 1] = float("nan"), float("inf")
                after = max(row + 1 + keys - rows + 1, 0)  # the first key that neither row sees
                for flags in (0, 1):
                    a.flags = flags
                    dq, dk, dv = backward(strobe, a, q, k, v, dout, chosen)
                    for rest in (slice(0, row), slice(row + 2, None)):
                        assert torch.allclose(dq[:, :, rest].float(), clean[0][:, :, rest].float(), atol=1e-2, rtol=1e-2), (dtype, dim, rows)
                    for x, right in ((dk, clean[1]), (dv, clean[2])):
                        assert torch.allclose(x[:, :, after:].float(), right[:, :, after:].float(), atol=1e-2, rtol=1e-2), (dtype, dim, rows)
                        assert after == 0 or x[:, :, 0].isnan().any() or x[:, :, 0].isinf().any(), (dtype, dim, rows)
                    cases += 1
    print(f"NaN in rows that do not see a key, {'the chosen kernel' if chosen else 'any GPU'}: {cases} cases")


def deterministic(strobe):
    """With the flag, the same bits in every run; without, the same values."""
    for dim in (64, 128, 256):
        q, k, v, dout = tensors(torch.bfloat16, 700, 700, dim, batch=2)
        a, out, lse = forward(strobe, q, k, v, True)  # the descriptor points at out and lse
        free = backward(strobe, a, q, k, v, dout)
        a.flags = 1
        first = backward(strobe, a, q, k, v, dout)
        for _ in range(3):
            assert all(torch.equal(x, y) for x, y in zip(first, backward(strobe, a, q, k, v, dout))), dim
        assert all(torch.allclose(x.float(), y.float(), atol=2e-2, rtol=1e-2) for x, y in zip(first, free)), dim
    print("STROBE_DETERMINISTIC: the same bits in every run")


def merge(strobe, few):
    q, k, v, _ = tensors(torch.float32, 33, 300, 72)
    whole, whole_lse = forward(strobe, q, k, v, False)[1:]
    cuts = [0, 100, 260, 300] if few else [*range(0, 300, 4), 300]
    parts = [forward(strobe, q, k[:, :, i:j], v[:, :, i:j], False)[1:] for i, j in zip(cuts, cuts[1:])]
    pairs = (Tensor * (2 * len(parts)))()
    for n, (out, lse) in enumerate(parts):
        pairs[2 * n], pairs[2 * n + 1] = view(out, True), Tensor(lse.data_ptr(), (C.c_int64 * 3)(0, 0, 0), 0, 0)
    out, lse = torch.empty_like(whole), torch.empty_like(whole_lse)
    m = Partials(C.sizeof(Partials), 1, 33, 2, 72, len(parts), C.addressof(pairs), view(out, True), device=1)
    m.lse = Tensor(lse.data_ptr(), (C.c_int64 * 3)(0, 0, 0), 0, 0)
    strobe.check(strobe.lib.strobe_merge(C.byref(m), C.c_void_p(torch.cuda.current_stream().cuda_stream)))
    torch.cuda.synchronize()
    assert torch.allclose(out, whole, atol=1e-5) and torch.allclose(lse, whole_lse, atol=1e-5)
    print(f"{len(parts)} partial results merge to the whole")


def only_key(strobe):
    """A row that sees one key has its V, bit for bit: one key in all, or one in a window; whole, split and merged. mask 4 is a
    window that ends at the last key."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rows, keys, dim in ((70, 1, 64), (300, 300, 64), (300, 300, 128), (1, 131072, 64), (3, 5000, 200)):
            q, k, v, _ = tensors(dtype, rows, keys, dim)
            q *= 20
            for kernel in (None, b"cuda_forward_fp32" if dtype == torch.float32 else b"cuda_forward_sm80"):
                out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
                a = strobe.prepare(q, k, v, out, lse, False)
                a.mask, a.window_left, a.window_right = (0 if keys == 1 else 4), 0, 0
                tuning = Tuning(C.sizeof(Tuning), kernel, 0)
                a.tuning = C.pointer(tuning) if kernel else None
                strobe.forward(a, strobe.workspace(a))
                torch.cuda.synchronize()
                assert torch.equal(out, v[:, :, -rows:].expand(out.shape)), (dtype, rows, keys, dim, kernel)
    print("a row that sees one key has its V")


def main():
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.manual_seed(3)
    strobe = Strobe(sys.argv[1], None)
    fixed_split(strobe)
    fixed_split_of_lengths(strobe, b"cuda_decode_sm80", 32, 8, 128, 128)
    if torch.cuda.get_device_capability()[0] == 9:
        fixed_split_of_lengths(strobe, b"cuda_latent_sm90", 16, 1, 576, 512)
    hopper = torch.cuda.get_device_capability()[0] == 9
    lies = [(b"cuda_decode_sm80", (1, 4), (0, 16, 1)), (b"cuda_forward_sm80", (1, 100), (0, 16, 1))]
    if hopper:
        lies += [(b"cuda_decode_sm90", (1, 4), (0, 16, 1)), (b"cuda_forward_sm90", (100,), (0, 16))]
    for kernel, all_rows, pages in lies:
        for rows in all_rows:
            for page in pages:
                numbers_that_lie(strobe, kernel, rows, 128, page)
    print("lengths and pages that are none, known on the device alone, reach nothing beside the cache and the outputs")
    only_key(strobe)
    merge(strobe, True)
    merge(strobe, False)
    hidden_nan(strobe)
    hidden_nan_rows(strobe, False)
    hidden_nan_rows(strobe, True)
    deterministic(strobe)


main()
