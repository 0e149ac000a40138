# SPDX-License-Identifier: BSD-3-Clause
"""Attention as the textbook has it, on PyTorch tensors of any dtype, differentiable: in float64 the truth, in the tensors' own
dtype the plain implementation from whose error the tolerances are derived. Independent of the library."""

import math

import torch


def visible(rows, keys, causal=False, window=None, diagonal="bottom_right"):
    """[rows, keys], True where row i sees key j."""
    left, right = window or (-1, -1)
    if causal:
        right = 0
    shift = keys - rows if diagonal == "bottom_right" else 0
    distance = torch.arange(keys)[None, :] - torch.arange(rows)[:, None] - shift
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def attention(
    q, k, v, *, causal=False, window=None, diagonal="bottom_right", bias=None, mask=None, alibi_slopes=None, softcap=None,
    sinks=None, scale=None, dtype=torch.float64,
):  # fmt: skip
    """Return out [batch, seq, heads, dim_v] and lse [batch, heads, seq] in dtype."""
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    rows, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(dtype)
    if alibi_slopes is not None:
        slopes = alibi_slopes.to(dtype).reshape(-1, q.shape[1], 1, 1)
        distance = (torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)[None, :]).abs()
        scores = scores - slopes * distance.to(dtype)
    seen = visible(rows, keys, causal, window, diagonal)
    if mask is not None:
        seen = seen & mask
    scores = scores.masked_fill(~seen, -math.inf)
    columns = scores
    if sinks is not None:
        columns = torch.cat([scores, sinks.to(dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
    lse = scores.new_full(scores.shape[:-1], -math.inf) if columns.shape[-1] == 0 else torch.logsumexp(columns, -1)
    finite = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
    weights = torch.exp(scores - finite[..., None]).masked_fill(~seen, 0)
    return (weights @ v).transpose(1, 2), lse


def rounding(x):
    """One rounding step of x's dtype at the magnitude of x's largest element."""
    largest = x.abs().max().item() if x.numel() else 0.0
    return torch.finfo(x.dtype).eps * max(largest, torch.finfo(x.dtype).tiny)


def terms(q, k, v, dout, dlse, lse, scale=None):
    """One rounding of what makes each gradient: in q's dtype of the terms that cancel, softmax(s) (dout v - dout out), where out
    has been rounded to that dtype, times what they are multiplied with; and in float32 of lse, from which the weights
    exp(s - lse) are made again: it moves a weight by that share of itself."""
    if 0 in (q.numel(), k.numel()):
        return dict.fromkeys(("q", "k", "v", "bias", "sinks"), 0.0)
    scale, eps = scale or 1 / math.sqrt(q.shape[-1]), torch.finfo(q.dtype).eps
    share = torch.finfo(torch.float32).eps * lse.masked_fill(torch.isinf(lse), 0).abs().max().item()
    over_rows = dout.double().abs().sum(1).max().item() * (q.shape[2] // k.shape[2])
    q, k, v, dout, dlse = (x.double().abs().max().item() for x in (q, k, v, dout.sum(-1), dlse))
    dp = (eps + share) * (dout * v + dlse)
    return {"q": dp * k * scale, "k": dp * q * scale, "v": eps * dout + share * over_rows, "bias": dp, "sinks": dp}


def assert_close(ours, truth, plain, factor=2, name="result", term=0.0):
    """max |ours - truth| <= factor * max |plain - truth| + 2 roundings of the result and of the terms that cancel in it: nothing
    here is typed in by hand."""
    assert ours.shape == truth.shape, (name, ours.shape, truth.shape)
    if ours.numel() == 0:
        return
    ours64, plain64 = ours.double(), plain.double()
    infinite = torch.isinf(truth)
    assert torch.equal(torch.isinf(ours64), infinite), f"{name}: infinities differ"
    assert not torch.isnan(ours64).any(), f"{name}: NaN"
    error = (ours64 - truth).masked_fill(infinite, 0).abs().max().item()
    allowed = (plain64 - truth).masked_fill(infinite, 0).abs().nan_to_num().max().item()
    roundings = rounding(truth.masked_fill(infinite, 0).to(ours.dtype)) + term
    bound = factor * allowed + 2 * roundings
    assert error <= bound, f"{name}: error {error:.3e}, bound {bound:.3e}"
