# SPDX-License-Identifier: BSD-3-Clause
"""The custom operators as PyTorch itself checks them, and programs that torch.export makes of them."""

import io

import pytest
import strobe.torch as st
import torch
from strobe.torch import _ops

NUMBERS = {
    "q_start": 0, "k_start": 0, "offset": 0, "causal": False, "window": [-1, -1], "diagonal": "bottom_right", "dropout": 0.0,
    "deterministic": False, "tf32x3": False,
}  # fmt: skip


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def arguments(given):
    """In the order of the schema: what is given, and defaults."""
    names = [x.name for x in _ops.attention._schema.arguments]
    return tuple(given.get(name, NUMBERS.get(name)) for name in names)


CASES = {
    "every gradient": lambda: {"causal": True, "bias": leaf(4, 9, 11), "sinks": leaf(4), "softcap": 5.0},
    "packed": lambda: {
        "cu_seqlens_q": torch.tensor([0, 4, 9]), "cu_seqlens_k": torch.tensor([0, 3, 11]), "max_seqlen_q": 5, "max_seqlen_k": 8,
    },
    "dropout": lambda: {"dropout": 0.3, "seed": torch.tensor([7]), "mask": torch.rand(9, 11) < 0.8},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name):
    torch.manual_seed(0)
    given = CASES[name]()
    lead = () if "cu_seqlens_q" in given else (2,)
    tensors = {"q": leaf(*lead, 9, 4, 16), "k": leaf(*lead, 11, 2, 16), "v": leaf(*lead, 11, 2, 16)}
    operator = _ops.attention_dropout if name == "dropout" else _ops.attention
    torch.library.opcheck(operator, arguments(tensors | given))
    forward = operator(*arguments(tensors | given))
    saved = [torch.randn_like(forward[0]), torch.randn_like(forward[1]), *forward]
    operator = _ops.attention_dropout_backward if name == "dropout" else _ops.attention_backward
    detached = {name: x.detach() if isinstance(x, torch.Tensor) else x for name, x in (tensors | given).items()}
    # Its own derivative is refused, with a sentence, so the check of one does not apply.
    torch.library.opcheck(
        operator, (*(x.detach() for x in saved), "bias" in given, *arguments(detached)),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


def test_opcheck_of_functions_of_a_score():
    torch.manual_seed(0)
    given = {"q": leaf(2, 9, 4, 16), "k": leaf(2, 11, 2, 16), "v": leaf(2, 11, 2, 16), "softcap": 5.0}
    table, doc = leaf(4, 20), torch.arange(11, dtype=torch.int32) // 4
    texts = ("score * w + table[h][i - j + n]", "doc[i] == doc[j]")
    function = (*texts, ["table", "doc"], [table, doc], ["w", "n"], [0.5, 11.0], [False, True])
    torch.library.opcheck(torch.ops.strobe.attention_scored.default, (*arguments(given), *function))


def test_opcheck_in_fp8():
    torch.manual_seed(0)
    given = {name: leaf(2, 140, 4, 16) for name in "qkv"}
    torch.library.opcheck(
        torch.ops.strobe.attention_e4m3.default, arguments(given),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = st.MultiheadAttention(32, 4, num_kv_heads=2, sinks=True, rotary_base=1e4, batch_first=True)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        q = x.unflatten(-1, (4, 8)).transpose(1, 2)
        return st.scaled_dot_product_attention(q, q, q, is_causal=True)


def test_export():
    """A program for any batch and length, written and read again, beside the module."""
    torch.manual_seed(0)
    model = Model()
    dynamic = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    program = torch.export.export(model, (torch.randn(2, 9, 32),), dynamic_shapes=dynamic)
    assert "strobe.attention" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    x = torch.randn(3, 20, 32)
    torch.testing.assert_close(again(x), model(x))


WRONG = {
    "k.shape is (2, 11, 2, 8); (2, *, *, 16) is accepted": {"k": (2, 11, 2, 8)},
    "k.shape is (3, 11, 2, 16); (2, *, *, 16) is accepted": {"k": (3, 11, 2, 16)},
    "k.shape is (11, 2, 16); (batch, seq, heads, dim) is accepted": {"k": (11, 2, 16)},
    "v.shape is (2, 10, 2, 16); (2, 11, 2, *) is accepted": {"v": (2, 10, 2, 16)},
    "heads_kv is 3; a divisor of heads_q, 4, is accepted": {"k": (2, 11, 3, 16), "v": (2, 11, 3, 16)},
    "sinks.shape is (5,); (4,) is accepted": {"sinks": (5,)},
    "alibi_slopes.shape is (2, 5); (2, 4) is accepted": {"alibi_slopes": (2, 5)},
    "bias.shape is (4, 9, 10); (2, 4, 9, 11), or 1 or nothing in place of any but the last axis, is accepted": {"bias": (4, 9, 10)},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_shapes_are_refused_where_a_program_is_traced_as_in_a_call(sentence):
    given = {"q": (2, 9, 4, 16), "k": (2, 11, 2, 16), "v": (2, 11, 2, 16)} | WRONG[sentence]
    tensors = {name: torch.randn(shape) for name, shape in given.items()}
    with pytest.raises(ValueError) as eager:
        st.attention(**tensors)
    assert str(eager.value) == sentence
    meta = {name: x.to("meta") for name, x in tensors.items()}
    with pytest.raises(ValueError) as traced:
        st.attention(**meta)
    assert str(traced.value) == sentence
    with pytest.raises(Exception, match=r"is accepted"):
        torch.compile(st.attention, fullgraph=True, backend="eager", dynamic=True)(**tensors)


def test_strided_numbers_of_heads():
    """Sinks and slopes that are every second element of others, and one number for all heads."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 9, 4, 16)
    for numbers in (torch.randn(8)[::2], torch.randn(1).expand(4)):
        sinks = numbers.clone().requires_grad_()
        strided = sinks.repeat_interleave(2)[::2] if numbers.stride() == (2,) else sinks[:1].expand(4)
        assert strided.stride() == numbers.stride()
        expected = st.attention(q, k, v, sinks=numbers.contiguous(), alibi_slopes=numbers.contiguous())
        out = st.attention(q, k, v, sinks=strided, alibi_slopes=numbers)
        assert torch.equal(out, expected)
        out.sum().backward()
        assert sinks.grad.isfinite().all() and sinks.grad.abs().sum() > 0
