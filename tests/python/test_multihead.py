# SPDX-License-Identifier: BSD-3-Clause
"""strobe.torch.MultiheadAttention beside torch.nn's: the same weights, results and gradients; and what it adds beside plain
arithmetic."""

import copy
import math

import pytest
import strobe.torch as st
import torch
from torch import nn


def modules(**options):
    """PyTorch's and ours with the same weights, drawn once, in float64."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(24, 4, dtype=torch.float64, **options)
    for weight in theirs.parameters():  # biases begin as zero
        nn.init.normal_(weight, std=0.3)
    ours = st.MultiheadAttention(24, 4, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def results(module, tensors, **call):
    """out and the gradients of the inputs, each once, and of the weights."""
    tensors = [x.clone().requires_grad_() for x in tensors]
    query, key, value = (tensors * 3)[:3]
    out, weights = module(query, key, value, need_weights=False, **call)
    assert weights is None
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    parameters = list(module.parameters())
    return [out, *torch.autograd.grad((out * weight).sum(), [*tensors, *parameters])]


def same(module, other, tensors, **call):
    for x, y in zip(results(module, tensors, **call), results(other, tensors, **call), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-11)


def hidden(*shape):
    """True hides a key; each row sees one at least."""
    torch.manual_seed(1)
    mask = torch.rand(*shape) < 0.4
    mask[..., 0] = False
    return mask


CALLS = {
    "self": ({}, [(9, 2, 24)], {}),
    "batch first": ({"batch_first": True}, [(2, 9, 24)], {}),
    "cross": ({}, [(5, 2, 24), (9, 2, 24), (9, 2, 24)], {}),
    "one sequence": ({}, [(9, 24)], {"key_padding_mask": hidden(9)}),
    "other widths": ({"kdim": 10, "vdim": 14}, [(5, 2, 24), (9, 2, 10), (9, 2, 14)], {}),
    "no bias": ({"bias": False}, [(9, 2, 24)], {}),
    "padding": ({}, [(9, 2, 24)], {"key_padding_mask": hidden(2, 9)}),
    "mask": ({}, [(9, 2, 24)], {"attn_mask": hidden(9, 9)}),
    "both": ({}, [(9, 2, 24)], {"attn_mask": hidden(8, 9, 9), "key_padding_mask": hidden(2, 9)}),
    "floats": ({}, [(9, 2, 24)], {"attn_mask": torch.rand(8, 9, 9).double(), "key_padding_mask": torch.rand(2, 9).double()}),
    "one of each": ({}, [(9, 2, 24)], {"attn_mask": torch.rand(9, 9).double(), "key_padding_mask": torch.rand(2, 9).double()}),
    "causal": (
        {}, [(9, 2, 24)], {"attn_mask": nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64), "is_causal": True}
    ),
    "added bias": ({"add_bias_kv": True}, [(9, 2, 24)], {"attn_mask": hidden(9, 9)}),
    "added zeros": ({"add_zero_attn": True, "add_bias_kv": True}, [(9, 2, 24)], {"key_padding_mask": hidden(2, 9)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_pytorch(name):
    options, shapes, call = CALLS[name]
    torch.manual_seed(2)
    same(*modules(**options), [torch.randn(shape, dtype=torch.float64) for shape in shapes], **call)


@pytest.mark.parametrize("options", [{}, {"kdim": 10}, {"bias": False}, {"add_bias_kv": True}], ids=str)
def test_weights_load_both_ways(options):
    theirs, ours = modules(**options)
    assert [(name, x.shape) for name, x in theirs.named_parameters()] == [(n, x.shape) for n, x in ours.named_parameters()]
    nn.init.normal_(ours.out_proj.weight)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert torch.equal(theirs.out_proj.weight, ours.out_proj.weight)


def test_need_weights_is_pytorchs_path():
    theirs, ours = modules()
    x = torch.randn(9, 2, 24, dtype=torch.float64)
    for a, b in zip(ours(x, x, x), theirs(x, x, x), strict=True):
        torch.testing.assert_close(a, b)


def test_in_an_encoder_layer():
    """Trained and evaluated, where nn.TransformerEncoderLayer looks at the module's weights past its forward()."""
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(24, 4, 48, dropout=0, batch_first=True)
    ours = copy.deepcopy(theirs)
    ours.self_attn = st.MultiheadAttention(24, 4, batch_first=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x, padding = torch.randn(2, 9, 24), hidden(2, 9)
    for training in (True, False):
        with torch.set_grad_enabled(training):
            a, b = (layer.train(training)(x, src_key_padding_mask=padding) for layer in (ours, theirs))
        torch.testing.assert_close(a[~padding], b[~padding], rtol=1e-4, atol=1e-5)
    ours.self_attn = st.MultiheadAttention(24, 4, batch_first=True, window=(1, 1)).eval()
    with torch.no_grad():
        y = ours.eval()(x)
        z = x.clone()
        z[:, 5:] = 7.0
        assert torch.equal(y[:, :4], ours(z)[:, :4])  # what lies past the window is not seen


def test_compile_and_dropout():
    ours = st.MultiheadAttention(16, 2, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 16)
    assert not torch.equal(ours(x, x, x, need_weights=False)[0], ours(x, x, x, need_weights=False)[0])
    ours.eval()
    compiled = torch.compile(lambda x: ours(x, x, x, need_weights=False)[0], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), ours(x, x, x, need_weights=False)[0])


def plain(module, x, causal):
    """The additions by hand, of one sequence (seq, 24) in float64."""
    rows = len(x)
    biases = module.in_proj_bias.split([24, 12, 12])
    weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    q, k, v = ((x @ w.T + b).view(rows, -1, 6).transpose(0, 1) for w, b in zip(weights, biases, strict=True))
    turns = torch.polar(torch.ones(rows, 3).double(), torch.arange(rows)[:, None] / 100.0 ** (torch.arange(3).double() / 3))

    def rotated(x):
        y = torch.complex(x[..., :3], x[..., 3:]) * turns
        return torch.cat([y.real, y.imag], -1)

    q, k, v = rotated(q), rotated(k).repeat_interleave(2, 0), v.repeat_interleave(2, 0)
    distance = torch.arange(rows)[None] - torch.arange(rows)[:, None]
    seen = (distance >= -2) & (distance <= (0 if causal else 1))
    scores = (q @ k.transpose(1, 2) / math.sqrt(6)).masked_fill(~seen, -math.inf)
    column = module.sinks.double().view(4, 1, 1).expand(4, rows, 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return module.out_proj((weights @ v).transpose(0, 1).flatten(1))


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_added(causal):
    torch.manual_seed(0)
    ours = st.MultiheadAttention(24, 4, num_kv_heads=2, rotary_base=100.0, sinks=True, window=(2, 1), dtype=torch.float64)
    for weight in ours.parameters():
        nn.init.normal_(weight, std=0.3)
    x = torch.randn(9, 24, dtype=torch.float64, requires_grad=True)
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64) if causal else None
    got = ours(x, x, x, need_weights=False, attn_mask=mask, is_causal=causal)[0]
    expected = plain(ours, x, causal)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # angles are float32
    inputs = [x, *ours.parameters()]
    for a, b in zip(torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sinks_of_a_module_in_another_dtype(dtype):
    torch.manual_seed(0)
    module = st.MultiheadAttention(24, 4, sinks=True, batch_first=True)
    nn.init.normal_(module.sinks)
    x = torch.randn(2, 5, 24)
    (expected,) = torch.autograd.grad(module(x, x, x, need_weights=False)[0].sum(), module.sinks)
    module.to(dtype)
    x = x.to(dtype)
    (got,) = torch.autograd.grad(module(x, x, x, need_weights=False)[0].sum(), module.sinks)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), expected, rtol=0.1, atol=0.1)


def test_refusals():
    x = torch.randn(2, 5, 16)
    plain = st.MultiheadAttention(16, 2, batch_first=True)
    cases = [
        ({"need_weights": True}, {"sinks": True}, NotImplementedError, "need_weights is True in a module with sinks"),
        ({"is_causal": True}, {}, ValueError, "is_causal is True without attn_mask"),
        ({"attn_mask": torch.zeros(5, 4)}, {}, ValueError, r"attn_mask.shape is \(5, 4\); \(5, 5\) or \(4, 5, 5\)"),
        ({"key_padding_mask": torch.zeros(5, 2)}, {}, ValueError, r"key_padding_mask.shape is \(5, 2\); \(2, 5\)"),
        ({"attn_mask": torch.zeros(5, 5).int()}, {}, ValueError, "attn_mask.dtype is torch.int32"),
        ({"attn_mask": torch.zeros(5, 5), "is_causal": True}, {"add_zero_attn": True}, NotImplementedError, "adds keys"),
    ]  # fmt: skip
    for call, options, error, sentence in cases:
        with pytest.raises(error, match=sentence):
            st.MultiheadAttention(16, 2, batch_first=True, **options)(x, x, x, **{"need_weights": False} | call)
    with pytest.raises(ValueError, match="key has 2 axes"):
        plain(x, x[0], x, need_weights=False)
    with pytest.raises(ValueError, match="num_kv_heads is 3; a divisor of num_heads, 4"):
        st.MultiheadAttention(16, 4, num_kv_heads=3)
    with pytest.raises(ValueError, match="rotary_base is given with 3 dims a head"):
        st.MultiheadAttention(12, 4, rotary_base=1e4)
    with pytest.raises(ValueError, match="add_bias_kv is True with window"):
        st.MultiheadAttention(16, 4, add_bias_kv=True, window=(1, 1))


def test_dropout_of_everything():
    ours, theirs = (module(16, 4, dropout=1.0, batch_first=True) for module in (st.MultiheadAttention, torch.nn.MultiheadAttention))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(*(module(x, x, x, need_weights=False)[0] for module in (ours, theirs)))
