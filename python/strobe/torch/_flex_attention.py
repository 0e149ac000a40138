# SPDX-License-Identifier: BSD-3-Clause
"""The functions that PyTorch's FlexAttention takes, traced into expressions of strobe_score.h.

A function is called once, with objects that write down what is done with them. Tensors that it captures become arrays of the
expression. What has no expression is refused by its name.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from strobe.torch._attention import attention_with_zeros

_INTEGERS = (torch.int64, torch.int16, torch.int8)


class _Traced:
    """An expression, of kind "int", "float" or "bool"."""

    def __init__(self, text: str, kind: str):
        self.text, self.kind = text, kind

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return _call(function, args, kwargs or {})

    def __bool__(self):
        raise NotImplementedError("a score_mod or mask_mod branches on a traced value; torch.where is accepted")

    def __getattr__(self, name):
        if name == "device":
            return _Tracer.current.get().device
        if name in _METHODS:
            return lambda *args, **kwargs: _apply(name, _METHODS[name], (self, *args), kwargs)
        raise NotImplementedError(
            f"a score_mod or mask_mod uses .{name} of a traced value, which has no expression in Strobe"
        )


def _of(x: Any) -> _Traced:
    if isinstance(x, _Traced):
        return x
    if isinstance(x, Tensor):
        if x.numel() != 1:
            raise NotImplementedError(
                "a score_mod or mask_mod computes with a whole tensor; one of its elements is accepted"
            )
        return _Tracer.current.get().element(x.reshape(1), (0,))
    if isinstance(x, bool):
        return _Traced(str(int(x)), "bool")
    if isinstance(x, int):
        return _Traced(str(x) if x >= 0 else f"({x})", "int")
    if x in (float("inf"), -float("inf")):
        return _Traced("inf" if x > 0 else "(-inf)", "float")
    return _Traced(f"({float(x)!r})", "float")


def _arithmetic(symbol: str) -> Callable:
    def apply(x, y):
        x, y = _of(x), _of(y)
        if x.kind == y.kind == "bool":  # PyTorch's sum and product of two truths are one
            if symbol == "-":
                raise NotImplementedError("a score_mod or mask_mod subtracts truths; of numbers it is accepted")
            return _Traced(f"({x.text} {'||' if symbol == '+' else '&&'} {y.text})", "bool")
        return _Traced(f"({x.text} {symbol} {y.text})", "float" if "float" in (x.kind, y.kind) else "int")

    return apply


def _unequal(x, y):
    """Of two truths PyTorch's ^ and logical_xor."""
    x, y = _of(x), _of(y)
    if x.kind != "bool" or y.kind != "bool":
        raise NotImplementedError("a score_mod or mask_mod uses ^ on numbers; on truths it is accepted")
    return _Traced(f"({x.text} != {y.text})", "bool")


def _comparison(symbol: str) -> Callable:
    return lambda x, y: _Traced(f"({_of(x).text} {symbol} {_of(y).text})", "bool")


def _logic(symbol: str, name: str) -> Callable:
    def apply(x, y):
        x, y = _of(x), _of(y)
        if x.kind != "bool" or y.kind != "bool":
            raise NotImplementedError(f"a score_mod or mask_mod uses {name} on numbers; on truths it is accepted")
        return _Traced(f"({x.text} {symbol} {y.text})", "bool")

    return apply


def _function(name: str, float_only: bool = True) -> Callable:
    def apply(*args):
        args = [_of(x) for x in args]
        kind = "float" if float_only or any(x.kind == "float" for x in args) else "int"
        return _Traced(f"{name}({', '.join(x.text for x in args)})", kind)

    return apply


def _divide(x, y):
    x, y = _of(x), _of(y)
    return _Traced(f"(float({x.text}) / {y.text})", "float")


def _remainder(x, y):
    """Python's and PyTorch's: the sign is the divisor's."""
    x, y = _of(x), _of(y)
    if "float" in (x.kind, y.kind):
        return _Traced(f"({x.text} - floor({x.text} / {y.text}) * {y.text})", "float")
    return _Traced(f"(({x.text} % {y.text} + {y.text}) % {y.text})", "int")


def _floor_divide(x, y):
    x, y = _of(x), _of(y)
    if "float" in (x.kind, y.kind):
        return _Traced(f"floor({x.text} / {y.text})", "float")
    return _Traced(f"(({x.text} - {_remainder(x, y).text}) / {y.text})", "int")


def _where(condition, yes, no):
    condition, yes, no = _of(condition), _of(yes), _of(no)
    kinds = {yes.kind, no.kind}
    kind = "float" if "float" in kinds else "bool" if kinds == {"bool"} else "int"
    return _Traced(f"({condition.text} ? {yes.text} : {no.text})", kind)


def _to(x, dtype, *args, **kwargs):
    if dtype is torch.bool:
        return _Traced(f"({x.text} != 0)", "bool")
    if not isinstance(dtype, torch.dtype):
        raise NotImplementedError("a score_mod or mask_mod uses .to() with something else than a dtype")
    return _Traced(f"float({x.text})", "float") if dtype.is_floating_point else _Traced(f"int({x.text})", "int")


def _clamp(x, min=None, max=None):
    x = x if min is None else _BY_NAME["maximum"](x, min)
    return x if max is None else _BY_NAME["minimum"](x, max)


def _negative(x):
    x = _of(x)
    return _Traced(f"(-{x.text})", "int" if x.kind == "bool" else x.kind)


def _not(x):
    x = _of(x)
    if x.kind != "bool":
        raise NotImplementedError("a score_mod or mask_mod uses ~ on a number; on a truth it is accepted")
    return _Traced(f"(!{x.text})", "bool")


def _constant(value: bool) -> Callable:
    """x.new_ones(size, dtype), a number whatever the size."""
    return lambda x, size=(), dtype=None, **kwargs: _to(_of(value), dtype or torch.int64)


def _swapped(apply: Callable) -> Callable:
    return lambda x, y: apply(y, x)


_BY_NAME: dict[str, Callable] = {
    "add": _arithmetic("+"), "sub": _arithmetic("-"), "mul": _arithmetic("*"), "truediv": _divide, "div": _divide,
    "mod": _remainder, "remainder": _remainder, "floordiv": _floor_divide, "floor_divide": _floor_divide,
    "pow": _function("pow"), "lt": _comparison("<"), "le": _comparison("<="), "gt": _comparison(">"), "ge": _comparison(">="),
    "eq": _comparison("=="), "ne": _comparison("!="), "and": _logic("&&", "&"), "or": _logic("||", "|"),
    "xor": _unequal, "logical_xor": _unequal, "bitwise_xor": _unequal, "logical_and": _logic("&&", "logical_and"), "logical_or": _logic("||", "logical_or"), "logical_not": _not, "invert": _not,
    "bitwise_not": _not, "neg": _negative, "negative": _negative, "abs": _function("abs", False),
    "minimum": _function("min", False), "maximum": _function("max", False), "min": _function("min", False),
    "max": _function("max", False), "exp": _function("exp"), "exp2": _function("exp2"), "log": _function("log"),
    "tanh": _function("tanh"), "sqrt": _function("sqrt"), "floor": _function("floor"), "where": _where, "clamp": _clamp,
    "multiply": _arithmetic("*"), "subtract": _arithmetic("-"), "true_divide": _divide, "bitwise_and": _logic("&&", "&"),
    "bitwise_or": _logic("||", "|"), "full_like": lambda x, value, **kwargs: _of(value),
    "zeros_like": lambda x, **kwargs: _Traced("0", x.kind), "ones_like": lambda x, **kwargs: _Traced("1", x.kind),
}  # fmt: skip
_METHODS = {**_BY_NAME, "to": _to, "float": lambda x: _to(x, torch.float32), "int": lambda x: _to(x, torch.int32),
            "long": lambda x: _to(x, torch.int32), "bool": lambda x: _to(x, torch.bool),
            "new_zeros": _constant(False), "new_ones": _constant(True)}  # fmt: skip
_BINARY = ("add", "sub", "mul", "truediv", "mod", "floordiv", "pow", "and", "or", "xor")
for _name in (*_BINARY, "lt", "le", "gt", "ge", "eq", "ne", "invert", "neg", "abs"):
    setattr(_Traced, f"__{_name}__", _BY_NAME[_name])
for _name in _BINARY:
    setattr(_Traced, f"__r{_name}__", _swapped(_BY_NAME[_name]))
_Traced.__hash__ = object.__hash__  # type: ignore[method-assign]


class _Tracer(TorchFunctionMode):
    """While a function is called: what it captures, and what it does with PyTorch's functions."""

    current: ContextVar["_Tracer"] = ContextVar("current")  # each thread has its own

    def __init__(self, arrays: dict[str, Tensor], device: torch.device):
        super().__init__()
        self.arrays, self.device = arrays, device

    def __enter__(self):
        self.before = _Tracer.current.set(self)
        return super().__enter__()

    def __exit__(self, *error):
        _Tracer.current.reset(self.before)
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return _call(function, args, kwargs or {})

    def element(self, tensor: Tensor, index: tuple) -> _Traced:
        if tensor.dim() != len(index):
            raise NotImplementedError(
                f"a score_mod or mask_mod reads a tensor of {tensor.dim()} axes by {len(index)} indices"
            )
        with torch._C.DisableTorchFunction():
            name = next((n for n, x in self.arrays.items() if x is tensor), None)
            if name is None:
                name = f"captured_{len(self.arrays)}"
                self.arrays[name] = tensor
        kind = "bool" if tensor.dtype is torch.bool else "float" if tensor.dtype.is_floating_point else "int"
        text = name + "".join(f"[int({_of(i).text})]" if _of(i).kind == "float" else f"[{_of(i).text}]" for i in index)
        return _Traced(f"({text} != 0)", "bool") if kind == "bool" else _Traced(text, kind)


def _call(function, args, kwargs):
    name = getattr(function, "__name__", str(function))
    flat = [a for group in args for a in (group if isinstance(group, (tuple, list)) else (group,))]
    if not any(isinstance(a, _Traced) for a in [*flat, *kwargs.values()]):
        with torch._C.DisableTorchFunction():  # of tensors alone: worked out now
            return function(*args, **kwargs)
    if name == "__getitem__" and isinstance(args[0], Tensor):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return _Tracer.current.get().element(args[0], index)
    plain = name.strip("_")
    apply = _BY_NAME.get(plain)
    if apply is None and plain.startswith("r") and plain[1:] in _BINARY:
        apply = _swapped(_BY_NAME[plain[1:]])
    if apply is None:
        raise NotImplementedError(f"a score_mod or mask_mod calls {name}, which has no expression in Strobe")
    return _apply(name, apply, args, kwargs)


def _apply(name: str, apply: Callable, args: tuple, kwargs: dict[str, Any]) -> _Traced:
    try:
        inspect.signature(apply).bind(*args, **kwargs)
    except TypeError:
        given = ", ".join([f"{len(args)} arguments", *kwargs])
        raise NotImplementedError(
            f"a score_mod or mask_mod calls {name} with {given}, which has no expression in Strobe"
        ) from None
    return apply(*args, **kwargs)


def _trace(function: Callable, arrays: dict[str, Tensor], device: torch.device, with_score: bool) -> str:
    names = (("score", "float"),) if with_score else ()
    arguments = [_Traced(*x) for x in (*names, ("b", "int"), ("h", "int"), ("i", "int"), ("j", "int"))]
    with _Tracer(arrays, device):
        return _of(function(*arguments)).text


def _listed(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Lists of columns, a row each, as booleans: (batch, heads, rows, columns)."""
    given = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    at = torch.where(given, indices, columns).to(torch.int64)
    found = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    return found.scatter_(-1, at, True)[..., :columns]


def _masked(query: Tensor, key: Tensor, block_mask: Any, arrays: dict[str, Tensor]) -> dict[str, Any]:
    """The options that say what a BlockMask, or a mask_mod alone, lets be seen."""
    if block_mask is None:
        return {}
    if not hasattr(block_mask, "kv_indices"):
        return {"visible": _trace(block_mask, arrays, query.device, False)}
    visible = _trace(block_mask.mask_mod, arrays, query.device, False)
    rows, columns = block_mask.BLOCK_SIZE
    if min(rows, columns) >= 1 << 30:  # PyTorch's way to have one block for all
        return {"visible": visible}
    lengths = (query.shape[-2], key.shape[-2])
    if tuple(block_mask.seq_lengths) != lengths:
        raise ValueError(
            f"block_mask is for the lengths {tuple(block_mask.seq_lengths)}; {lengths}, those of query and key, are accepted"
        )
    blocks = -(-key.shape[-2] // columns)
    shown = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, blocks)
    if block_mask.full_kv_num_blocks is not None:
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, blocks)
        shown = shown | full
        arrays["full_blocks"] = full.expand(query.shape[0], query.shape[1], -1, -1)
        visible = f"full_blocks[b][h][i / {rows}][j / {columns}] || {visible}"
    return {"visible": visible, "block_mask": shown, "block_size": (rows, columns)}


def _narrow(name: str, x: Tensor) -> Tensor:
    """Integers as expressions have them, of 32 bits."""
    if x.dtype not in _INTEGERS:
        return x
    if x.dtype is torch.int64 and x.numel():
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise NotImplementedError(
                f"{name} is of torch.int64, whose values can't be looked at in a graph; torch.int32 is accepted"
            )
        least, most = (int(y) for y in torch.aminmax(x))
        if least < -(1 << 31) or most >= 1 << 31:
            raise ValueError(f"{name} has values from {least} to {most}; 32 bits are accepted")
    return x.to(torch.int32)


@torch.compiler.disable  # a graph has no place for what a function does when it is traced
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Any:
    """Return what ``torch.nn.attention.flex_attention.flex_attention`` returns, without torch.compile.

    Parameters
    ----------
    query, key, value : Tensor, (batch, heads, seq, dim)
    score_mod : function of (score, b, h, q_idx, kv_idx), optional
        Called once, with objects that write down what it does. Tensors that it captures have gradients, where they require
        them. int64 ones are read as int32.
    block_mask : torch's BlockMask, or its mask_mod itself, a function of (b, h, q_idx, kv_idx), optional
        Of a BlockMask the lists of keys are taken as they are: blocks that are in none are hidden, full ones are visible
        whatever mask_mod says. Of a mask_mod alone the library finds the blocks itself.
    scale : float, optional
    enable_gqa : bool
        More query heads than heads of key and value are accepted.
    return_lse : bool
        Return ``(out, lse)``, lse in natural logarithms.

    Raises
    ------
    NotImplementedError
        A function does something that has no expression; the sentence names it.
    ValueError
        block_mask is for other lengths, or an integer that is captured needs more than 32 bits.
    """
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"query has {query.shape[1]} heads and key {key.shape[1]}; with enable_gqa=True this is accepted")
    arrays: dict[str, Tensor] = {}
    options: dict[str, Any] = {"scale": scale}
    if score_mod is not None:
        options["score"] = _trace(score_mod, arrays, query.device, True)
    options |= _masked(query, key, block_mask, arrays)
    if score_mod is None and block_mask is None:
        options["visible"] = "1"
    arrays = {name: _narrow(name, x) for name, x in arrays.items()}
    out, lse = attention_with_zeros(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), arrays=arrays, return_lse=True, **options
    )
    out = out.transpose(1, 2)
    return (out, lse) if return_lse else out
