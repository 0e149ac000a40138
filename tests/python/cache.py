# SPDX-License-Identifier: BSD-3-Clause
"""Caches for tests: K and V of several sequences, lying contiguous or in pages, with NaN in every slot that is not in use."""

import torch

NOWHERE = 2147480000  # in a page table beyond a sequence's length: no page has this number


def sequences(lengths, *shape, dtype=torch.float32, seed=0):
    """A tensor (length, *shape) for each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, *shape, generator=generator).to(dtype) for n in lengths]


def page_table(lengths, size, seed=0):
    """int32 (batch, pages): each sequence has pages for its length, in any order, with some of nobody between them."""
    each = [-(-n // size) for n in lengths]
    numbers = torch.randperm(sum(each) + 2, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    table = torch.full((len(lengths), max([*each, 1]) + 1), NOWHERE, dtype=torch.int32)
    for b, count in enumerate(each):
        table[b, :count], numbers = numbers[:count], numbers[count:]
    return table


def empty(*shape, dtype, heads_outside=False):
    """(sequences or pages, slots, heads, dim) of NaN, in memory perhaps (.., heads, slots, dim)."""
    first, slots, heads, dim = shape
    if heads_outside:
        return torch.full((first, heads, slots, dim), torch.nan).to(dtype).transpose(1, 2)
    return torch.full(shape, torch.nan).to(dtype)


def fill(pages, table, rows):
    """Writes the sequences of rows into the pages of their table."""
    size = pages.shape[1]
    for b, x in enumerate(rows):
        j = torch.arange(x.shape[0])
        pages[table[b, j // size].long(), j % size] = x


def in_pages(rows, size, table, heads_outside=False):
    """The sequences in pages."""
    count = table[table != NOWHERE].max().item() + 2
    pages = empty(count, size, *rows[0].shape[1:], dtype=rows[0].dtype, heads_outside=heads_outside)
    fill(pages, table, rows)
    return pages


def cumulative(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def used(lengths):
    return torch.tensor(lengths, dtype=torch.int32)
