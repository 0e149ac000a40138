# SPDX-License-Identifier: BSD-3-Clause
"""A vision transformer with shifted windows (Liu et al., 2021) that removes noise from pictures. Patches lie row by row in one
sequence; who sees whom is a text, so that no window is cut out, rolled or put back:

    visible = (i / w + s) / n == (j / w + s) / n && (i % w + s) / n == (j % w + s) / n

w patches a row, n x n patches a window, windows shifted by s in every second layer.

    python examples/vision_windows.py --plot vision_windows.png                  about a minute on two cores
"""

import argparse

import options
import strobe.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE, PATCH, WINDOW, WIDTH, HEADS, LAYERS, BATCH = 32, 2, 4, 64, 4, 4, 8
ROW = SIDE // PATCH  # patches
VISIBLE = "(i / w + s) / n == (j / w + s) / n && (i % w + s) / n == (j % w + s) / n"


def who_sees_whom(shift: int) -> Tensor:
    """The same as a mask of PyTorch's, [patches, patches]."""
    at = torch.arange(ROW * ROW)
    window = (at // ROW + shift) // WINDOW * ROW + (at % ROW + shift) // WINDOW
    return window[:, None] == window[None]


class Block(nn.Module):
    def __init__(self, shift: int):
        super().__init__()
        self.shift, self.by_mask = shift, False
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:  # [batch, patches, width]
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).unbind(2)  # views [batch, patches, heads, dim]
        if self.by_mask:
            out = F.scaled_dot_product_attention(
                *(y.transpose(1, 2) for y in (q, k, v)), who_sees_whom(self.shift)
            ).transpose(1, 2)
        else:
            out = strobe.torch.attention(q, k, v, visible=VISIBLE, scalars={"w": ROW, "n": WINDOW, "s": self.shift})
        x = x + self.out(out.flatten(2))
        return x + self.feed(self.norm2(x))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(PATCH * PATCH, WIDTH), nn.Linear(WIDTH, PATCH * PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(ROW * ROW, WIDTH))
        self.blocks = nn.Sequential(*(Block(layer % 2 * WINDOW // 2) for layer in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, pictures: Tensor) -> Tensor:  # [batch, side, side]
        patches = pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        x = self.leave(self.norm(self.blocks(self.enter(patches) + self.place)))
        return x.view(-1, ROW, ROW, PATCH, PATCH).transpose(2, 3).reshape(pictures.shape)


def draw(count: int, generator: torch.Generator) -> Tensor:
    """Pictures [count, side, side] of three discs and a bar each, of any grey."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    random = torch.rand(count, 4, 4, 1, 1, generator=generator)
    pictures = random[:, 3, 3].expand(-1, SIDE, SIDE).clone()
    for n in range(4):
        a, b, size, grey = (random[:, n, m] for m in range(4))
        disc = (x - SIDE * a) ** 2 + (y - SIDE * b) ** 2 < (3 + 6 * size) ** 2
        inside = disc if n < 3 else (x * (a - 0.5) + y * (b - 0.5) - 8 * (size - 0.5)).abs() < 1
        pictures = torch.where(inside, grey.expand_as(pictures), pictures)
    return pictures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=options.count, default=500)
    parser.add_argument("--plot", type=options.written, metavar="FILE", help="write a PNG: noisy, restored and true pictures, and who sees whom")
    a = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(a.steps):
        true = draw(BATCH, generator)
        loss = F.mse_loss(model(true + 0.3 * torch.randn(true.shape, generator=generator)), true)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step + 1 == a.steps:
            print(f"step {step}, mean square error {loss.item():.4f}", flush=True)
    true = draw(6, torch.Generator().manual_seed(2))
    noisy = true + 0.3 * torch.randn(true.shape, generator=generator)
    with torch.inference_mode():
        restored = model(noisy)
        for block in model.blocks:
            block.by_mask = True
        difference = (model(noisy) - restored).abs().max().item()
    errors = [F.mse_loss(x, true).item() for x in (noisy, restored)]
    print(f"mean square error: noisy {errors[0]:.4f}, restored {errors[1]:.4f}; by PyTorch's masks within {difference:.1e}")
    if a.plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(3, 7, figsize=(12, 5.4), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
        windows = who_sees_whom(0), who_sees_whom(WINDOW // 2), torch.ones(ROW * ROW, ROW * ROW)
        for line, pictures, window in zip(axes, (noisy, restored, true), windows, strict=True):
            for axis, picture in zip(line, [*pictures, window], strict=True):
                axis.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1)
        axes[0, 6].set_title("windows, shifted\nwindows, all pairs")
        figure.savefig(a.plot, dpi=110)
    return 0 if difference < 1e-4 and (a.steps < 100 or errors[1] < errors[0] / 5) else 1


if __name__ == "__main__":
    raise SystemExit(main())
