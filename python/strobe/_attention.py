# SPDX-License-Identifier: BSD-3-Clause
"""The calls on tensors of any framework. Their options go to the extension by name, which refuses a name that it lacks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from strobe import _strobe
from strobe._arguments import Backward, Explain, Forward, Lists, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = TypeVar("Tensor")
"""A tensor of any framework: results are of q's."""


class Gradients(NamedTuple):
    """What :func:`attention_backward` returns: a gradient for each input, of its shape; None where there is none."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any
    dsinks: Any


class MaskLists(NamedTuple):
    """What :func:`mask_lists` returns: memory on the device, and what it was made for. Neither is to be changed."""

    memory: Any
    made_for: bytes


def sides(window: tuple[int, int] | None) -> tuple[int, int]:
    """Both sides of a window, unbounded where there is none; for the modules that need them as numbers."""
    if window is None:
        return -1, -1
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window is {window!r}; a pair (left, right) is accepted")
    return window[0], window[1]


@takes(Forward)
def attention(q: Tensor, k: Tensor, v: Tensor, **options: "Unpack[Forward]") -> Any:
    """Return softmax(scale * Q K^T) V, exactly, without ever storing the matrix of scores.

    Parameters
    ----------
    q : tensor, (batch, seq_q, heads_q, dim)
        float32, float16, bfloat16, float64 (through the reference kernels), or float8_e4m3fn with scales (strobe.quantise).
        Any strides, but a contiguous last axis.
    k : tensor, (batch, seq_k, heads_kv, dim)
        heads_q is a multiple of heads_kv; query head h reads head h // (heads_q // heads_kv). Of q's dtype, or
        k and v together of another: float8_e4m3fn or int8 with scales, float16 or bfloat16 (on a GPU beside float32).
    v : tensor, (batch, seq_k, heads_kv, dim_v)
    causal : bool
        Row i sees keys up to the diagonal. The same as ``window=(-1, 0)``.
    window : (left, right), optional
        Row i sees from left keys before the diagonal to right keys after it, inclusive; -1 is unbounded.
    diagonal : {"bottom_right", "top_left"}
        The diagonal runs through the key i + seq_k - seq_q, so that the last row meets the last key (flash-attn's meaning),
        or through the key i (the meaning of PyTorch's is_causal).
    bias : tensor, broadcasts to (batch, heads_q, seq_q, seq_k), optional
        Added to the scores, after softcap; -inf hides a key. Its last axis is seq_k, contiguous.
    mask : bool tensor, broadcasts as bias, optional
        True: visible. Combined with causal and window by "and".
    block_mask : bool tensor, broadcasts to (batch, heads_q, ceil(seq_q / rows), ceil(seq_k / keys)), optional
        True: the block of scores is visible, otherwise it is hidden.
    block_size : (rows, keys), optional
        Of block_mask.
    mask_lists : MaskLists, optional
        What :func:`mask_lists` has made of mask and block_mask, which are given too: a GPU need not look at them in each call.
    alibi_slopes : float32 tensor, (heads_q,) or (batch, heads_q), optional
        -slope * abs(i + seq_k - seq_q - j) is added to the scores.
    softcap : float, optional
        Scores become softcap * tanh(score / softcap).
    sinks : float32 tensor, (heads_q,), optional
        A logit a head that joins the denominator of the softmax and has no value.
    dropout : float
        Share of the weights that are dropped, in [0, 1); the others are divided by 1 - dropout.
    seed, offset : int
        Choose what is dropped, the same on every device and for any number of threads. Required with dropout: seed.
    scale : float, optional
        Default 1 / sqrt(dim).
    cu_seqlens_q, cu_seqlens_k : int32 or int64 tensor, (batch + 1,), optional
        Sequence b of that side is rows [cu[b], cu[b + 1]) of a packed q (total_q, heads_q, dim), or k and v.
    max_seqlen_q, max_seqlen_k : int, optional
        Upper bounds of their lengths; found out by itself on the CPU.
    used_q, used_k : int32 or int64 tensor, (batch,), optional
        Only so many first rows of each sequence exist; the others of a new result are zero.
    q_start, k_start : int
        Positions of row 0 and key 0, for shards and chunks.
    deterministic : bool
        Backward gives the same bits on every run; always so on the CPU.
    tf32x3 : bool
        Allow a GPU to make each product of float32 of three products of TF32, on its tensor cores: faster, with an error of the
        same size (docs/numerics.md). It changes nothing on the CPU and for other dtypes.
    kernel : str, optional
        Take the kernel of this name or refuse; see :func:`strobe.kernels`.
    threads : int, optional
        For this call, instead of :func:`strobe.set_num_threads`.
    score : str, optional
        A function of a score: an expression of C over score, b, h, hkv, i, j, seq_q, seq_k, and the names of scalars and
        arrays, such as "score + table[h][i - j + 511]"; docs/scores.md. On a GPU NVRTC compiles it.
    visible : str, optional
        An expression that says whether row i sees key j: "doc[i] == doc[j]". Combined with the masks by "and".
    arrays : dict of tensors, optional
        What the expressions index, by name: float32, float16, bfloat16, int32, uint8 or bool, of 1 to 4 axes.
    scalars : dict of numbers, optional
        By name; an int is an integer in the expressions.
    leftpad_k : int32 or int64 tensor, (batch,), optional
        How many first keys of each sequence are padding, which its length counts.
    page_table : int32 tensor, (batch, pages a sequence), optional
        K and V are a cache of pages, (pages, page_size, heads_kv, dim), with any strides: key j of sequence b lies in slot
        j % page_size of page page_table[b, j // page_size]. Where that is the number of no page, its keys are invisible.
        Lengths are used_k, their bound max_seqlen_k; without them all slots count.
    q_scale, k_scale, v_scale : float32 tensor, (batch, blocks, heads), or packed (blocks, heads), optional
        What a float8_e4m3fn or int8 tensor is multiplied with, a number a block of rows and head; extents of 1 repeat. With
        0 in scale_block a packed side has (batch, heads).
    scale_block : (rows, keys)
        How many share a scale, 1 for a scale a token and head, as for a quantised cache; 0: all of a sequence.
    split_keys : int, optional
        Keys in one split of split-KV decoding, for the kernels that decode: a row's bits then do not depend on the batch.
    return_lse : bool
        Return ``(out, lse)``.
    out : tensor, optional
        Where to write the result: of q's dtype and the result's shape, and overlapping no input.

    Returns
    -------
    out : tensor, (batch, seq_q, heads_q, dim_v), or packed like q
        In q's framework and dtype; of float8_e4m3fn bfloat16, unless `out` is float16. A row that sees no key is 0.
    lse : tensor, (batch, heads_q, seq_q), or packed (heads_q, total_q)
        Natural logarithm of the softmax's denominator, scale included; float32 (float64 for a float64 q). A row that sees no
        key has -inf.

    Raises
    ------
    ValueError
        An argument is wrong; the sentence names it, its value and what is accepted.
    NotImplementedError
        No kernel of this build and machine takes the problem; the sentence says why. See :func:`explain`.
    TypeError
        An argument is not of a type that is accepted.
    strobe.Error
        Out of memory, an error of the device.

    Examples
    --------
    >>> import numpy as np, strobe
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 6, 2, 64), dtype=np.float32)
    >>> strobe.attention(q, k, v, causal=True).shape
    (1, 6, 2, 64)
    """
    return _strobe.attention(q, k, v, **options)


@takes(Backward)
def attention_backward(
    dout: Any, q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, **options: "Unpack[Backward]"
) -> Gradients:
    """Return the gradients of :func:`attention`.

    Parameters
    ----------
    dout : tensor, as out
        The gradient of out.
    q, k, v, out, lse : tensor
        As the forward took them and returned them (``return_lse=True``). The other arguments: as the forward had them.
    dlse : tensor, as lse, optional
        The gradient of lse; None: zero.
    bias_gradient : bool
        Return the gradient of bias too; axes that bias repeats are summed.
    dq, dk, dv : tensor, optional
        Where to write the gradients, which are written, not added to.
    array_gradients : dict of tensors, optional
        Where to write the gradients of arrays that score reads, by name, of the arrays' shapes, in any floating-point dtype.

    Returns
    -------
    Gradients
        ``(dq, dk, dv, dbias, dsinks)``: of the shapes of q, k, v, bias and sinks; None for those that there are none of.

    Raises
    ------
    ValueError, NotImplementedError, TypeError, strobe.Error
        As :func:`attention`.
    """
    return Gradients(*_strobe.attention_backward(q, k, v, dout=dout, out=out, lse=lse, **options))


@takes(Explain)
def explain(q: Any, k: Any, v: Any, **options: "Unpack[Explain]") -> str:
    """Return which kernel :func:`attention` (or its backward) would run on these arguments, and why not the others.

    Returns
    -------
    str
        A line for each kernel, best first: "name: chosen" or "name: why not". Runs nothing.
    """
    return _strobe.explain(q, k, v, **options)


@takes(Lists)
def mask_lists(q: Any, k: Any, v: Any, **options: "Unpack[Lists]") -> MaskLists:
    """Return what a GPU's kernels work out of mask and block_mask before they start, for calls that use the masks again.

    Parameters
    ----------
    q, k, v : tensor
        Of which shapes, dtypes and device are read, no element.
    mask, block_mask, block_size, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k : optional
        As the calls have them: one of the masks at least.
    backward : bool
        Also for :func:`attention_backward`.

    Returns
    -------
    MaskLists
        For ``mask_lists=`` of calls with the same masks, unchanged, and the same batch, heads and lengths; heads of k and v,
        dims, dtypes and windows may be others. On the CPU it is empty, and changes nothing.

    Examples
    --------
    >>> lists = strobe.mask_lists(q, k, v, mask=mask)             # doctest: +SKIP
    >>> for layer in layers:                                      # doctest: +SKIP
    ...     out = strobe.attention(*layer(x), mask=mask, mask_lists=lists)
    """
    return MaskLists(*_strobe.mask_lists(q, k, v, **options))


def merge(outs: Sequence[Tensor], lses: Sequence[Any], *, out: Any = None) -> tuple[Any, Any]:
    """Merge partial results over disjoint sets of keys into the result over all of them.

    Parameters
    ----------
    outs : sequence of tensors, (batch, seq_q, heads_q, dim_v)
        Partial results of :func:`attention`, each over a part of the keys; float32 ones lose nothing.
    lses : sequence of float32 tensors, (batch, heads_q, seq_q)
        Their lse. A part whose rows see nothing, (0, -inf), changes nothing.
    out : tensor, optional
        Where to write the result; may be the first of outs itself.

    Returns
    -------
    (out, lse) : tensors
        Of the shapes of the parts, in the framework and dtype of the first.
    """
    return _strobe.merge(outs, lses, out)
