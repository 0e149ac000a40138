# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of nested tensors: each sequence as PyTorch computes it alone."""

import pytest
import strobe.torch as st
import torch
import torch.nn.functional as F


def nested(lengths, heads=4, dim=8, offsets=None):
    """(batch, heads, any number, dim), and the tensor that has its gradient."""
    made = torch.nested.nested_tensor([torch.randn(n, heads, dim) for n in lengths], layout=torch.jagged)
    values = made.values().requires_grad_()
    given = made.offsets() if offsets is None else offsets
    return torch.nested.nested_tensor_from_jagged(values, given).transpose(1, 2), values


def rows(x):
    """What a nested tensor consists of, packed."""
    return x.transpose(1, 2).values()


def one_by_one(q, k, v, lengths_q, lengths_k, **options):
    parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True)
    made = [F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in each), **options) for each in parts]
    return torch.cat([x[0].transpose(0, 1) for x in made])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lengths_q", "lengths_k"), [([5, 7], [5, 7]), ([1, 40, 3], [9, 2, 3]), ([3, 0, 2], [4, 4, 1])])
def test_each_sequence_is_pytorchs(lengths_q, lengths_k, causal):
    torch.manual_seed(0)
    q, of_q = nested(lengths_q)
    k, of_k = nested(lengths_k)
    v, of_v = nested(lengths_k, dim=16)
    out = st.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert out.is_nested and out.shape[:2] == (len(lengths_q), 4) and out.shape[-1] == 16
    expected = one_by_one(of_q, of_k, of_v, lengths_q, lengths_k, is_causal=causal)
    torch.testing.assert_close(rows(out), expected)
    weights = torch.randn_like(expected)
    found = torch.autograd.grad((rows(out) * weights).sum(), (of_q, of_k, of_v))
    for x, y in zip(found, torch.autograd.grad((expected * weights).sum(), (of_q, of_k, of_v)), strict=True):
        torch.testing.assert_close(x, y)


def test_in_a_module_beside_what_it_was_made_of():
    """Views of one projection, whose result goes with the input."""
    torch.manual_seed(0)
    projection = torch.nn.Linear(16, 48)
    x = torch.nested.nested_tensor([torch.randn(5, 16), torch.randn(2, 16)], layout=torch.jagged)
    q, k, v = (part.unflatten(-1, [4, 4]).transpose(1, 2) for part in projection(x).chunk(3, -1))
    out = st.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2) + x
    expected = one_by_one(*(rows(part) for part in (q, k, v)), [5, 2], [5, 2]).flatten(-2) + x.values()
    torch.testing.assert_close(out.values(), expected)
    out.values().sum().backward()
    assert projection.weight.grad.isfinite().all()


def test_rows_between_the_sequences():
    dense = torch.randn(3, 10, 4, 8)
    starts, lengths = torch.tensor([0, 2, 1]), torch.tensor([3, 4, 5])
    x = torch.nested.narrow(dense, 1, starts, lengths, layout=torch.jagged).transpose(1, 2)
    for n, part in enumerate(st.scaled_dot_product_attention(x, x, x).transpose(1, 2).unbind()):
        alone = dense[n, starts[n] : starts[n] + lengths[n]].transpose(0, 1)[None]
        torch.testing.assert_close(part.transpose(0, 1)[None], F.scaled_dot_product_attention(alone, alone, alone))


def test_grouped_heads_casts_dropout_and_compiled():
    q, _ = nested([3, 5], heads=8)
    k, _ = nested([3, 5], heads=2)
    out = st.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    repeated = [torch.nested.nested_tensor_from_jagged(rows(k).repeat_interleave(4, 1), q.offsets()).transpose(1, 2)] * 2
    torch.testing.assert_close(rows(out), rows(st.scaled_dot_product_attention(q, *repeated)))
    with torch.autocast("cpu", torch.bfloat16):
        assert st.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
    assert not torch.equal(rows(st.scaled_dot_product_attention(q, q, q, dropout_p=0.5)), rows(out))

    def causal(x):
        return st.scaled_dot_product_attention(x, x, x, is_causal=True)

    compiled = torch.compile(causal, backend="aot_eager", fullgraph=True)
    for lengths in ([3, 4], [5, 6], [2, 2]):
        x, values = nested(lengths)
        torch.testing.assert_close(rows(compiled(x)), rows(causal(x)))
        rows(compiled(x)).sum().backward()
        assert values.grad.isfinite().all()


def test_refused():
    q, _ = nested([3, 4])
    other, _ = nested([4, 3])
    few, _ = nested([3, 4], heads=2)
    sdpa = st.scaled_dot_product_attention
    with pytest.raises(NotImplementedError, match="attn_mask is given beside nested tensors"):
        sdpa(q, q, q, torch.ones(4, 4))
    with pytest.raises(NotImplementedError, match="key is not nested; beside a nested tensor each of layout torch.jagged"):
        sdpa(q, torch.randn(2, 4, 3, 8), q)
    with pytest.raises(ValueError, match="key and value have sequences of other lengths than each other"):
        sdpa(q, q, other)
    with pytest.raises(ValueError, match="key has 2 heads, query 4; enable_gqa=True"):
        sdpa(q, few, few)
    strided = torch.nested.nested_tensor([torch.randn(3, 4, 8), torch.randn(5, 4, 8)]).transpose(1, 2)
    with pytest.raises(NotImplementedError, match="query is a nested tensor of 4 axes and layout torch.strided"):
        sdpa(strided, strided, strided)
