# SPDX-License-Identifier: BSD-3-Clause
"""A small GPT over characters, whose attention is given: what train_gpt.py, train_gpt_ranks.py and generate.py share."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent


class Size(NamedTuple):
    context: int
    width: int
    heads: int
    layers: int
    batch: int
    rate: float  # of learning, at its peak
    dtype: torch.dtype  # of the products; weights, norms and the loss stay in float32


SIZE = {
    "cpu": Size(128, 128, 4, 4, 8, 2e-3, torch.float32),
    "cuda": Size(1024, 512, 4, 6, 16, 1e-3, torch.bfloat16),
}


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual path."""

    def __init__(self, width: int, heads: int, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, width]
        b, s, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)  # views
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(b, s, width))
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    """Characters in, logits of the next ones out."""

    def __init__(self, characters: int, size: Size, attention):
        super().__init__()
        self.context = size.context
        self.embed, self.place = nn.Embedding(characters, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads, attention) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, characters, bias=False)

    def forward(self, ids: Tensor, places: Tensor | None = None) -> Tensor:  # [batch, seq] -> [batch, seq, characters]
        place = self.place.weight[: ids.shape[1]] if places is None else self.place(places)  # positions [seq]
        return self.head(self.norm(self.blocks(self.embed(ids) + place)))


def text() -> str:
    files = ("include/strobe/strobe.h", "examples/data/text.txt")
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in files)


def batches(ids: Tensor, size: Size, count: int) -> Iterator[Tensor]:
    """Pieces of the text, [batch, context + 1], the same in each run."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        at = torch.randint(len(ids) - size.context - 1, (size.batch,), generator=generator)
        yield torch.stack([ids[n : n + size.context + 1] for n in at])


@torch.inference_mode()
def write(model: GPT, ids: Tensor, count: int) -> Tensor:
    """The characters that the model goes on with, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(count):
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            logits = model(ids[None, -model.context :])[0, -1]
        weights = F.softmax(logits.float().cpu() / 0.7, dim=-1)
        ids = torch.cat([ids, torch.multinomial(weights, 1, generator=generator).to(ids.device)])
    return ids


def save(model: GPT, alphabet: list[str], path: str) -> None:
    """The weights as generate.py and generate.c read them, and beside them the characters and the number of heads."""
    from safetensors.torch import save_file

    numbers = {"alphabet": [ord(c) for c in alphabet], "heads": [model.blocks[0].heads]}
    tensors = {name: x.float().contiguous().cpu() for name, x in model.state_dict().items()}
    save_file(tensors | {name: torch.tensor(x, dtype=torch.int32) for name, x in numbers.items()}, path)
