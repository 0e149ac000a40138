# SPDX-License-Identifier: BSD-3-Clause
"""A diffusion transformer with joint attention (Esser et al., 2024): words and patches of a picture have weights of their own
and meet in one attention over both. It learns by flow matching to draw what three words say: a size, a shape, a place.

    python examples/diffusion_joint.py --plot diffusion_joint.png                about three minutes on two cores
"""

import argparse
import math

import options
import strobe.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, PATCH, WIDTH, HEADS, LAYERS, BATCH = 16, 2, 96, 4, 4, 32
ROW = SIDE // PATCH  # patches
WORDS = (("small", "large"), ("disc", "ring", "square", "cross"), ("left", "right"))
ALL = [word for group in WORDS for word in group]


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures [count, side, side] in -1 to 1 and their words [count, 3]."""
    size, shape, place = (torch.randint(len(g), (count, 1, 1), generator=generator) for g in WORDS)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    x = x - torch.where(place == 0, 4.5, 10.5)
    y = y - 7.5 - torch.randint(-2, 3, (count, 1, 1), generator=generator)
    radius, far = torch.where(size == 0, 2.0, 4.0), torch.hypot(x, y)
    near, most = torch.aminmax(torch.stack([x.abs(), y.abs()]), dim=0)
    inside = radius - far, 0.7 - (far - radius).abs(), radius - most, torch.minimum(0.7 - near, radius - most)
    picture = sum((shape == n) * (0.5 + edge).clamp(0, 1) for n, edge in enumerate(inside))
    words = torch.cat([size, shape + 2, place + 6], dim=1)[..., 0]
    return 2 * picture - 1, words


class Stream(nn.Module):
    """The weights of one kind of token in one layer. The time scales and shifts what a norm gives (Peebles and Xie, 2023)."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.time = nn.Linear(WIDTH, 6 * WIDTH)
        nn.init.zeros_(self.time.weight)

    def enter(self, x: Tensor, time: Tensor) -> Tensor:
        """q, k and v, [batch, tokens, 3, heads, dim]."""
        self.scale1, self.shift1, self.gate1, self.scale2, self.shift2, self.gate2 = self.time(time)[:, None].chunk(6, -1)
        return self.qkv(self.norm1(x) * (1 + self.scale1) + self.shift1).unflatten(2, (3, HEADS, -1))

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + (1 + self.gate1) * self.out(attended.flatten(2))
        return x + (1 + self.gate2) * self.feed(self.norm2(x) * (1 + self.scale2) + self.shift2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(PATCH * PATCH, WIDTH), nn.Linear(WIDTH, PATCH * PATCH)
        self.embed, self.place = nn.Embedding(len(ALL), WIDTH), nn.Parameter(0.02 * torch.randn(ROW * ROW, WIDTH))
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.layers = nn.ModuleList(nn.ModuleList([Stream(), Stream()]) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, pictures: Tensor, words: Tensor, time: Tensor) -> Tensor:
        """The velocity, of the pictures' shape. time: [batch], 0 is noise and 1 a picture."""
        angles = 1000 * time[:, None] * torch.exp(-math.log(1e4) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        patches = pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        x, y = self.enter(patches) + self.place, self.embed(words)
        for of_picture, of_words in self.layers:
            q, k, v = torch.cat([of_words.enter(y, t), of_picture.enter(x, t)], dim=1).unbind(2)
            both = strobe.torch.attention(q, k, v)  # every token sees every other: joint attention
            y, x = of_words.leave(y, both[:, : y.shape[1]]), of_picture.leave(x, both[:, y.shape[1] :])
        return self.leave(self.norm(x)).view(-1, ROW, ROW, PATCH, PATCH).transpose(2, 3).reshape(pictures.shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=options.count, default=1500)
    parser.add_argument("--plot", type=options.written, metavar="FILE", help="write a PNG with a picture of all sixteen sentences")
    a = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=a.steps)
    for step in range(a.steps):
        pictures, words = draw(BATCH, generator)
        noise, t = torch.randn(pictures.shape, generator=generator), torch.rand(BATCH, generator=generator)
        loss = F.mse_loss(model(torch.lerp(noise, pictures, t[:, None, None]), words, t), pictures - noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}, loss {loss.item():.4f}", flush=True)
    sentences = torch.tensor([[s, h, p] for s in range(2) for h in range(2, 6) for p in (6, 7)])
    drawn = torch.randn(len(sentences), SIDE, SIDE, generator=generator)
    with torch.inference_mode():
        for n in range(40):  # from noise to pictures, by Euler's method
            drawn = drawn + model(drawn, sentences, torch.full((len(sentences),), n / 40)) / 40
    ink = (drawn.clamp(-1, 1) + 1).sum(1).view(-1, 2, SIDE // 2).sum(2)
    right = (ink.argmax(1) == sentences[:, 2] - 6).sum().item()
    print(f"{right} of the sixteen drawings lie on the side that their sentence says")
    if a.plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(2, 8, figsize=(12, 3.6), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
        for axis, picture, ids in zip(axes.flat, drawn, sentences, strict=True):
            axis.imshow(picture.numpy(), cmap="gray", vmin=-1, vmax=1)
            axis.set_title(" ".join(ALL[n] for n in ids), fontsize=9)
        figure.savefig(a.plot, dpi=110)
    return 0 if a.steps < 100 or right > 14 else 1


if __name__ == "__main__":
    raise SystemExit(main())
