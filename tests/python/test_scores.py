# SPDX-License-Identifier: BSD-3-Clause
"""Functions of a score: the ten of docs/scores.md against PyTorch in float64, as text and traced; what is refused."""

import concurrent.futures
import math
import re
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import strobe
import strobe.torch as st
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

HEADS, LENGTH, DIM = 4, 64, 16
PAGE = Path(__file__).parents[2] / "docs" / "scores.md"


def texts():
    """{name: {"score": text} or {"visible": text}} of the page."""
    found, name = {}, None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("### "):
            name = line[4:]
        elif match := re.match(r"    (score|visible) = (.*)", line):
            found.setdefault(name, {})[match[1]] = match[2]
    return found


generator = torch.Generator().manual_seed(5)


def random(*shape):
    return torch.randn(*shape, generator=generator)


ARRAYS = {
    "ALiBi": {"slope": 2.0 ** -torch.arange(1, HEADS + 1)},
    "T5's relative bias": {"bias": random(HEADS, 32)},
    "Documents": {"doc": (torch.arange(LENGTH) // 13).to(torch.int32)},
    "Prefix-LM": {"prefix": torch.tensor([5, 30], dtype=torch.int32)},
    "Tanh of a learned table": {"table": random(HEADS, 2 * LENGTH + 1)},
    "Paged positions": {"page": torch.tensor([2, 0, 3, 1], dtype=torch.int32)},
}
SCALARS = {"Neighborhood Attention in 2D": {"w": 8, "n": 8, "r": 2}, "Tanh of a learned table": {"m": LENGTH}}


def t5_bucket(distance):
    far = 8 + (torch.log(torch.abs(distance) / 8.0) / math.log(16.0) * 8 + 0.001).to(torch.int32)
    near = torch.where(torch.abs(distance) < 8, torch.abs(distance), torch.minimum(far, torch.full_like(far, 15)))
    return torch.where(distance > 0, 16, 0) + near


MODS = {
    "ALiBi": (lambda a: lambda s, b, h, i, j: s - a["slope"][h] * (i - j).abs(), None),
    "T5's relative bias": (lambda a: lambda s, b, h, i, j: s + a["bias"][h, t5_bucket(j - i)], None),
    "Softcap": (lambda a: lambda s, b, h, i, j: 20 * torch.tanh(s / 20), None),
    "Documents": (None, lambda a: lambda b, h, i, j: a["doc"][i] == a["doc"][j]),
    "Prefix-LM": (None, lambda a: lambda b, h, i, j: (j <= i) | (j < a["prefix"][b])),
    "Dilated window": (None, lambda a: lambda b, h, i, j: (j <= i) & (i - j < 32) & ((i - j) % 4 == 0)),
    "Strided window": (None, lambda a: lambda b, h, i, j: (j <= i) & ((i - j < 16) | (j % 16 == 15))),
    "Neighborhood Attention in 2D": (
        None,
        lambda a: (
            lambda b, h, i, j: (((i // 8).clamp(2, 5) - j // 8).abs() <= 2) & (((i % 8).clamp(2, 5) - j % 8).abs() <= 2)
        ),
    ),
    "Tanh of a learned table": (lambda a: lambda s, b, h, i, j: s + torch.tanh(a["table"][h, i - j + LENGTH]), None),
    "Paged positions": (None, lambda a: lambda b, h, i, j: a["page"][j // 16] * 16 + j % 16 <= i),
}


def inputs(dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(2, LENGTH, HEADS, DIM, generator=g).to(dtype).requires_grad_() for _ in range(3)]


def dense(q, k, v, name, arrays):
    """In float64, from the definition."""
    b, h = torch.arange(2).view(2, 1, 1, 1), torch.arange(HEADS).view(1, HEADS, 1, 1)
    i, j = torch.arange(LENGTH).view(1, 1, LENGTH, 1), torch.arange(LENGTH).view(1, 1, 1, LENGTH)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(DIM)
    score_mod, mask_mod = MODS[name]
    if score_mod:
        scores = score_mod(arrays)(scores, b, h, i, j)
    if mask_mod:
        scores = scores.masked_fill(~mask_mod(arrays)(b, h, i, j).expand_as(scores), -math.inf)
    weights = torch.nan_to_num(torch.softmax(scores, -1), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def double(x):
    return x.detach().double().requires_grad_() if x.is_floating_point() else x


def leaf(x):
    return x.detach().clone().requires_grad_() if x.is_floating_point() else x


@pytest.mark.parametrize("how", ["text", "traced"])
@pytest.mark.parametrize("name", MODS)
def test_ten_functions(name, how):
    arrays = {key: leaf(x) for key, x in ARRAYS.get(name, {}).items()}
    q, k, v = inputs()
    if how == "text":
        out = st.attention(q, k, v, arrays=arrays, scalars=SCALARS.get(name), **texts()[name])
    else:
        score_mod, mask_mod = (mod and mod(arrays) for mod in MODS[name])
        out = st.flex_attention(*(x.transpose(1, 2) for x in (q, k, v)), score_mod, mask_mod).transpose(1, 2)
    truths = [double(x) for x in (q, k, v)]
    exact = {key: double(x) for key, x in arrays.items()}
    truth = dense(*truths, name, exact)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    out.backward(gradient)
    truth.backward(gradient.double())
    assert torch.allclose(out.double(), truth, atol=3e-6, rtol=1e-5)
    for x, y in zip([q, k, v, *arrays.values()], [*truths, *exact.values()], strict=True):
        if x.is_floating_point():
            assert torch.allclose(x.grad.double(), y.grad, atol=2e-5 * max(1, y.grad.abs().max().item())), name


def test_the_page_has_ten():
    assert list(texts()) == list(MODS) and len(MODS) == 10


def test_numpy_and_lengths():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 30, 2, 8)).astype(np.float32)
    cu = np.array([0, 11, 30], np.int32)
    lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    same = strobe.attention(q, k, v, causal=True, **lengths)
    assert np.array_equal(same, strobe.attention(q, k, v, visible="j <= i + seq_k - seq_q", **lengths))
    assert "cpu_forward" in strobe.explain(q[None], k[None], v[None], score="score * w", scalars={"w": 2})


@pytest.mark.parametrize(
    ("mod", "sentence"),
    [
        (lambda s, b, h, i, j: torch.erf(s), "calls erf, which has no expression"),
        (lambda s, b, h, i, j: s if i > j else -s, "branches on a traced value; torch.where is accepted"),
        (lambda s, b, h, i, j: s.sinh(), "uses .sinh of a traced value"),
        (lambda s, b, h, i, j: s + torch.ones(3), "computes with a whole tensor"),
        (lambda s, b, h, i, j: s + torch.ones(3, 3)[i], "a tensor of 2 axes by 1 indices"),
        (lambda s, b, h, i, j: s + (i & j), "uses & on numbers"),
        (lambda s, b, h, i, j: s + (i ^ j), "uses ^ on numbers"),
        (lambda s, b, h, i, j: s + ((i < j) - (i > 3)), "subtracts truths"),
        (lambda s, b, h, i, j: torch.add(s, j, alpha=2), "calls add with 2 arguments, alpha, which has no expression"),
        (lambda s, b, h, i, j: s + i.div(j, rounding_mode="floor"), "calls div with 2 arguments, rounding_mode, which"),
    ],
)
def test_what_has_no_expression_is_refused_by_name(mod, sentence):
    q, k, v = (x.transpose(1, 2) for x in inputs())
    with pytest.raises(NotImplementedError, match=re.escape(sentence)):
        st.flex_attention(q, k, v, mod)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"score": "scor"}, ValueError, 'score has "scor" at column 1'),
        ({"score": 3}, TypeError, "score is 3; an expression as text is accepted"),
        ({"score": "score", "arrays": 3}, TypeError, "arrays is 3; a dictionary from names is accepted"),
        ({"score": "score + a[i]", "arrays": {"a": np.zeros(3)}}, ValueError, "a.dtype is float64; float32,"),
        (
            {"score": "score + a[i]", "arrays": {"a": np.zeros(3, np.float32)}},
            ValueError,
            "is from 0 to 63 for these positions",
        ),
        ({"scalars": {"w": 1}}, ValueError, "arrays or scalars are given without score and visible"),
    ],
)
def test_bad_arguments_are_refused(options, kind, sentence):
    q, k, v = (x.detach().numpy() for x in inputs())
    with pytest.raises(kind, match=re.escape(sentence)):
        strobe.attention(q, k, v, **options)


def masked_dense(q, k, v, shown):
    """In float64, with a mask (batch, heads, seq, seq)."""
    scores = (q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~shown, -math.inf)
    return torch.nan_to_num(torch.softmax(scores, -1), 0.0) @ v.double()


@pytest.mark.parametrize("per_head", [False, True])
def test_the_lists_of_a_block_mask_are_taken_as_they_are(per_head):
    q, k, v = (torch.randn(2, 3, 80, 16, generator=generator) for _ in range(3))
    heads = 3 if per_head else 1
    partial = torch.rand(1, heads, 3, 5, generator=generator) < 0.4  # blocks of 32 rows and 16 keys
    full = (torch.rand(1, heads, 3, 5, generator=generator) < 0.3) & ~partial
    counts = [x.sum(-1).to(torch.int32) for x in (partial, full)]
    lists = [torch.argsort(x.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32) for x in (partial, full)]
    lengths = {"BLOCK_SIZE": (32, 16), "seq_lengths": (80, 80)}
    block = (torch.arange(80).view(-1, 1) // 32, torch.arange(80) // 16)

    only_partial = BlockMask.from_kv_blocks(counts[0], lists[0], **lengths)
    assert torch.allclose(
        st.flex_attention(q, k, v, block_mask=only_partial).double(),
        masked_dense(q, k, v, partial[:, :, block[0], block[1]]),
        atol=2e-6,
    )

    def causal(b, h, i, j):
        return i >= j

    both = BlockMask.from_kv_blocks(counts[0], lists[0], counts[1], lists[1], mask_mod=causal, **lengths)
    within = partial[:, :, block[0], block[1]] & torch.ones(80, 80, dtype=torch.bool).tril()
    shown = within | full[:, :, block[0], block[1]]  # of a full block mask_mod is not asked
    assert torch.allclose(st.flex_attention(q, k, v, block_mask=both).double(), masked_dense(q, k, v, shown), atol=2e-6)

    with pytest.raises(ValueError, match=re.escape("block_mask is for the lengths (80, 80); (64, 80), those of query")):
        st.flex_attention(q[:, :, :64], k, v, block_mask=both)


def test_a_block_mask_of_pytorchs_own_making():
    q, k, v = (torch.randn(2, 3, 200, 16, generator=generator) for _ in range(3))
    doc = torch.arange(200) // 70

    def documents(b, h, i, j):
        return (doc[i] == doc[j]) & (i >= j)

    block_mask = create_block_mask(documents, 2, None, 200, 200, device="cpu", BLOCK_SIZE=64)
    i, j = torch.arange(200).view(-1, 1), torch.arange(200)
    shown = (doc.view(-1, 1) == doc) & (i >= j)
    for given in (block_mask, documents):
        out = st.flex_attention(q, k, v, block_mask=given)
        assert torch.allclose(out.double(), masked_dense(q, k, v, shown), atol=2e-6)


@pytest.mark.parametrize(
    "truth",
    [
        lambda i, j: (i > j) + (j > 3),  # PyTorch's sum of two truths is one
        lambda i, j: ((i > j) + True) * (j > 3),
        lambda i, j: (i > j) ^ (j > 3),
        lambda i, j: torch.logical_xor(i > j, j > 3) & (i % 2 == 0),
    ],
)
def test_what_is_computed_of_truths_is_a_truth(truth):
    q, k, v = (x.detach().transpose(1, 2) for x in inputs())
    at = torch.arange(LENGTH)
    table = truth(at[:, None], at[None])
    assert table.dtype is torch.bool
    found = st.flex_attention(q, k, v, lambda s, b, h, i, j: s + 2 * truth(i, j))
    scores = q.double() @ k.double().mT / math.sqrt(DIM) + 2 * table
    assert torch.allclose(found.double(), torch.softmax(scores, -1) @ v.double(), atol=4e-6)
    found = st.flex_attention(q, k, v, block_mask=lambda b, h, i, j: truth(i, j) | (i == j))
    assert torch.allclose(found.double(), masked_dense(q, k, v, table | (at[:, None] == at)), atol=4e-6)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_arrays_that_only_choose_have_no_gradient(backend):
    """As in PyTorch: what is compared, what `visible` reads and what nothing reads may require one."""
    q, k, v = inputs()
    names = ("moved", "compared", "shown", "unread")
    arrays = {name: torch.randn(LENGTH, requires_grad=True) for name in names}
    text = {"score": "score + (compared[i] > 0 ? moved[j] * w : 0)", "visible": "shown[j] > -1 || i == j"}

    def step(q):
        return st.attention(q, k, v, arrays=arrays, scalars={"w": 2}, **text).square().sum()

    call = step if backend is None else torch.compile(step, backend=backend, fullgraph=True)
    call(q).backward()
    assert all(arrays[name].grad is None or not arrays[name].grad.any() for name in names[1:])
    chosen = arrays["compared"].detach()[:, None] > 0
    moved = arrays["moved"].detach().double().requires_grad_()
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) / math.sqrt(DIM) + torch.where(chosen, 2 * moved, 0.0)
    shown = (arrays["shown"] > -1) | torch.eye(LENGTH, dtype=torch.bool)
    out = torch.einsum("bhij,bjhd->bihd", torch.softmax(scores.masked_fill(~shown, -math.inf), -1), v.double())
    (truth,) = torch.autograd.grad(out.square().sum(), moved)
    assert torch.allclose(arrays["moved"].grad.double(), truth, atol=1e-4)


def test_threads_trace_at_the_same_time():
    q, k, v = (x.transpose(1, 2) for x in inputs())
    tables = [torch.full((LENGTH,), float(n)) for n in range(4)]
    meet = threading.Barrier(4)

    def traced(n):
        def add(score, b, h, i, j):
            meet.wait(timeout=60)  # all threads are within their functions
            return score * tables[n][i]

        return [st.flex_attention(q, k, v, add) for _ in range(3)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(traced, range(4)))
    for n, outs in enumerate(found):
        truth = masked_dense(n * q, k, v, torch.ones(LENGTH, LENGTH, dtype=torch.bool))
        assert all(torch.allclose(out.double(), truth, atol=4e-6) for out in outs)


@pytest.mark.parametrize("number", [np.int64(7), np.int32(7), torch.tensor(7)], ids=["int64", "int32", "tensor"])
def test_an_integer_of_any_framework_is_an_integer(number):
    q, k, v = inputs()
    text = {"visible": "i / n == j / n"}  # of a float it would be i == j
    assert torch.equal(st.attention(q, k, v, scalars={"n": number}, **text), st.attention(q, k, v, scalars={"n": 7}, **text))
    assert torch.equal(st.attention(q, k, v, scalars={"n": np.float32(7)}, **text), st.attention(q, k, v, visible="i == j"))


def test_integers_beyond_32_bits_are_refused():
    q, k, v = (x.transpose(1, 2) for x in inputs())
    doc = torch.arange(LENGTH) << 30
    with pytest.raises(ValueError, match=re.escape("captured_0 has values from 0 to 67645734912; 32 bits are accepted")):
        st.flex_attention(q, k, v, block_mask=lambda b, h, i, j: doc[i] == doc[j])


def test_texts_in_a_compiled_program():
    table = torch.randn(HEADS, 2 * LENGTH, requires_grad=True)
    doc = torch.arange(LENGTH, dtype=torch.int32) // 20
    q, k, v = inputs()

    def step(q, k, v, table):
        out = st.attention(
            q * 1.5, k, v, score="score * w + table[h][i - j + n]", visible="doc[i] == doc[j]",
            arrays={"table": table, "doc": doc}, scalars={"w": 0.5, "n": LENGTH},
        )  # fmt: skip
        return (out * out).sum()

    truth = torch.autograd.grad(step(q, k, v, table), (q, k, v, table))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for x, y in zip(torch.autograd.grad(compiled(q, k, v, table), (q, k, v, table)), truth, strict=True):
        assert torch.equal(x, y)


def test_a_traced_function_in_a_compiled_program():
    q, k, v = (x.transpose(1, 2) for x in inputs())

    def step(q):
        return st.flex_attention(q + 1, k, v, lambda score, b, h, i, j: score - 0.1 * (i - j).abs()) * 2

    assert torch.equal(torch.compile(step, backend="aot_eager")(q), step(q))


@pytest.mark.parametrize(("dim_v", "scale"), [(8, 0.0), (0, None)])
def test_flex_attention_of_nothing_is_pytorchs(dim_v, scale):
    """A scale of 0, and no columns of v."""
    q, k, v = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, dim_v)
    mods = lambda score, b, h, i, j: score + 0.1 * (i - j)  # noqa: E731
    found = st.flex_attention(q, k, v, mods, scale=scale, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        expected = flex_attention(q, k, v, mods, scale=scale, return_lse=True)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
