# SPDX-License-Identifier: BSD-3-Clause
"""One list of arguments: the signatures, the extension's table, the operators' schema and the other modules agree with it."""

import inspect
import typing

import numpy as np
import pytest
import strobe
import strobe.torch as st
import torch
from strobe import _arguments, _strobe

CALLS = {
    "attention": (_arguments.Forward, ["q", "k", "v"], {"repeat", "heads_first", "shards"}),
    "attention_backward": (_arguments.Backward, ["dout", "q", "k", "v", "out", "lse"], {"heads_first", "shards"}),
    "explain": (_arguments.Explain, ["q", "k", "v"], set()),
    "quantise": (_arguments.Quantise, ["q", "k", "v"], set()),
    "mask_lists": (_arguments.Lists, ["q", "k", "v"], set()),
    "append": (_arguments.Append, ["k_cache", "v_cache", "k", "v"], set()),
}
QKV = np.random.default_rng(0).standard_normal((3, 1, 9, 2, 16), dtype=np.float32)


def table(options):
    """The names of a table, each with its default."""
    return {name: hint.__metadata__[0] for name, hint in typing.get_type_hints(options, include_extras=True).items()}


def defaults(function):
    """The keyword-only parameters of a function, each with its default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("name", CALLS)
def test_the_extension_and_the_signatures(name):
    options, tensors, private = CALLS[name]
    assert set(_strobe.arguments()) == set(CALLS)
    assert sorted(_strobe.arguments()[name]) == sorted({*tensors, *table(options), *private})
    signature = inspect.signature(getattr(strobe, name))
    assert list(signature.parameters) == tensors + list(table(options))
    assert defaults(getattr(strobe, name)) == table(options)


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"mask_lists", "append"}))
def test_every_default_is_the_extensions(name):
    """None is every default in C: the same results with all of them spelled out."""
    out, lse = strobe.attention(*QKV, return_lse=True)
    tensors = (out, *QKV, out, lse) if name == "attention_backward" else QKV
    options = table(CALLS[name][0])
    if name == "quantise":
        tensors = [torch.from_numpy(x) for x in QKV]  # NumPy alone has no e4m3
    plain, spelled = (getattr(strobe, name)(*tensors, **given) for given in ({}, options))
    nothing = getattr(strobe, name)(*tensors, **dict.fromkeys(options))
    if name == "attention_backward":
        assert all(x is y or np.array_equal(x, y) for x, y in zip(plain, spelled, strict=True))
    elif name == "quantise":
        for x, y, z in zip(plain, spelled, nothing, strict=True):
            assert x is y is z or x == y == z if not isinstance(x, torch.Tensor) else same_bits(x, y) and same_bits(x, z)
    else:
        assert np.array_equal(plain, spelled) and np.array_equal(plain, nothing)


def same_bits(x, y):
    return x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8))


def test_torch_has_names_and_defaults_of_the_table():
    own = defaults(st.attention)
    assert own.pop("quantise") is None  # its own
    assert own.items() <= table(_arguments.Forward).items()
    assert own.keys() >= {"causal", "window", "bias", "mask", "seed", "cu_seqlens_q", "deterministic", "return_lse"}
    schema = [x.name for x in torch.ops.strobe.attention.default._schema.arguments]
    functions = {"score", "visible", "arrays", "scalars"}  # which another way through autograd has
    assert sorted(schema) == sorted({"q", "k", "v", *own} - {"return_lse"} - functions)
    assert schema == [x.name for x in torch.ops.strobe.attention_dropout.default._schema.arguments]
    backward = [x.name for x in torch.ops.strobe.attention_backward.default._schema.arguments]
    assert sorted(backward) == sorted([*schema, "dout", "dlse", "out", "lse", "bias_gradient"])
    assert set(backward) <= set(_strobe.arguments()["attention_backward"])


def test_jax_has_names_and_defaults_of_the_table():
    pytest.importorskip("jax")
    import strobe.jax

    own = defaults(strobe.jax.attention)
    assert own and own.items() <= table(_arguments.Forward).items()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: strobe.attention(*QKV, casual=True), "attention() got an unexpected keyword argument 'casual'"),
        (lambda: strobe.attention(*QKV, dq=QKV[0]), "attention() got an unexpected keyword argument 'dq'"),
        (lambda: strobe.explain(*QKV, out=QKV[0]), "explain() got an unexpected keyword argument 'out'"),
        (
            lambda: strobe.attention_backward(*QKV, *QKV, k_scale=1),
            "attention_backward() got an unexpected keyword argument",
        ),
        (lambda: strobe.attention(*QKV, True), "takes 3 positional arguments but 4 were given"),
        (lambda: strobe.attention(*QKV[:2]), "missing 1 required positional argument: 'v'"),
        (lambda: strobe.attention(*QKV, v=QKV[2]), "got multiple values for argument 'v'"),
        (lambda: _strobe.attention(*QKV, QKV[0]), "attention() got 4 positional arguments; q, k and v are accepted"),
        (lambda: _strobe.attention(*QKV, q=QKV[0]), "attention() got a positional and a keyword argument 'q'"),
    ],
)
def test_what_is_no_argument_is_refused(call, sentence):
    with pytest.raises(TypeError) as caught:
        call()
    assert sentence in str(caught.value)


def test_names_in_any_order_and_made_at_run_time():
    names = {"seed": 5, "".join(["drop", "out"]): 0.5, b"causal".decode(): True}
    q, k, v = QKV
    first = strobe.attention(q, k, v, causal=True, dropout=0.5, seed=5)
    assert np.array_equal(first, strobe.attention(v=v, k=k, q=q, **names))
    assert np.array_equal(first, _strobe.attention(**dict(reversed(names.items())), v=v, q=q, k=k))
