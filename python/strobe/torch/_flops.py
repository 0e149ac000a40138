# SPDX-License-Identifier: BSD-3-Clause
"""What FlopCounterMode of torch.utils.flop_counter counts for the operators: as much as for PyTorch's own attention.

Forward has two products of matrices and backward five, whatever is given beside the tensors: neither a mask nor lengths of
sequences that are not packed take something off.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from strobe.torch._run import PLAIN

_OPERATORS = (
    "attention", "attention_dropout", "attention_scored", "attention_e4m3", "attention_int8", "cache_attention",
)  # fmt: skip
_BELOW = ("_efficient_backward_below", "_flash_backward_below")


def _lengths(x: Tensor, batch: int, offsets: Tensor | None, longest: int | None) -> list[int]:
    """How many rows of x each sequence has. Where the offsets have no values, as in a traced program, they are the longest that
    there may be: one sequence may have all rows."""
    if offsets is None:
        return [x.shape[1]] * batch
    if type(offsets) in PLAIN and offsets.device.type != "meta":
        return offsets.diff().tolist()
    return [x.shape[0], *[0] * batch][:batch] if longest is None else [longest] * batch


def _scores(given: dict[str, Any]) -> int:
    """How many scores all heads have."""
    q, k, table = given["q"], given["k"], given.get("page_table")
    of_q, of_k = given.get("cu_seqlens_q"), given.get("cu_seqlens_k")
    longest_q, longest_k = given.get("max_seqlen_q"), given.get("max_seqlen_k")
    packed = of_q if of_q is not None else of_k
    batch = q.shape[0] if packed is None else packed.shape[0] - 1
    rows = _lengths(q, batch, of_q, longest_q)
    if table is None:
        keys = _lengths(k, batch, of_k, longest_k)
    else:  # k is of pages
        keys = [table.shape[1] * k.shape[1] if longest_k is None else longest_k] * batch
    return q.shape[-2] * sum(m * n for m, n in zip(rows, keys, strict=True))


def _formula(operator: Any, products: tuple[int, int]) -> Any:
    """products: how many there are of the scores' size over the columns of q, and of v."""
    names = [argument.name for argument in operator.default._schema.arguments]

    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        given = dict(zip(names, args, strict=False)) | kwargs
        columns = products[0] * given["q"].shape[-1] + products[1] * given["v"].shape[-1]
        return 2 * columns * _scores(given)

    return count


def _of_heads_first(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """Of a gradient with the arguments of PyTorch's: (batch, heads, seq, dim)."""
    columns = 3 * query.shape[-1] + 2 * value.shape[-1]
    return 2 * columns * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]


def _formulas() -> dict[str, Any]:
    found = {}
    for name in _OPERATORS:
        for operator, products in ((name, (1, 1)), (f"{name}_backward", (3, 2))):
            if hasattr(torch.ops.strobe, operator):
                found[operator] = _formula(getattr(torch.ops.strobe, operator), products)
    # Of a forward's gradient that a mode is shown and the forward was not (_compiled.py).
    return found | {name: _of_heads_first for name in _BELOW if hasattr(torch.ops.strobe, name)}


def register() -> None:
    """Tell PyTorch how much the operators compute; nothing where it does not ask, or not by tensors."""
    log = logging.getLogger("torch.utils.flop_counter")
    said, log.disabled = log.disabled, True  # of a missing Triton, to somebody who has not asked for the counter
    try:
        from torch.utils.flop_counter import register_flop_formula
    except ImportError:
        return
    finally:
        log.disabled = said
    for operator, formula in _formulas().items():
        try:
            register_flop_formula(getattr(torch.ops.strobe, operator), get_raw=True)(formula)
        except TypeError:  # PyTorch before 2.3 has shapes alone
            return
