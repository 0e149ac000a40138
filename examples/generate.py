# SPDX-License-Identifier: BSD-3-Clause
"""Text from the GPT that train_gpt.py trains, several prompts at a time, K and V in pages: generate.c in Python.

    python examples/train_gpt.py --save gpt.safetensors
    python examples/generate.py gpt.safetensors 60 "typedef struct" "/" "Mr. Bennet"        60 characters behind each prompt
    python examples/generate.py --plot pages.png gpt.safetensors 60 ...                     and whose the pages were, step by step

Prompts of different lengths are one packed batch, and so are the single characters of the later steps. A sequence that is done
leaves its place and its pages to the next prompt.
"""

import argparse
import sys
import time

import options
import strobe.torch
import torch
from gpt import GPT, SIZE
from safetensors import SafetensorError
from safetensors.torch import load_file

PAGE, AT_ONCE = 16, 2


def load(path: str) -> tuple[GPT, str]:
    weights = load_file(path)
    alphabet, heads = "".join(map(chr, weights.pop("alphabet"))), weights.pop("heads").item()
    context, width = weights["place.weight"].shape
    layers = sum(name.endswith("qkv.bias") for name in weights)
    model = GPT(len(alphabet), SIZE["cpu"]._replace(context=context, width=width, heads=heads, layers=layers), None)
    model.load_state_dict(weights)
    return model, alphabet


@torch.inference_mode()
def generate(model: GPT, prompts: list[list[int]], count: int, owners: list | None = None) -> list[list[int]]:
    """The prompts with so many characters behind each, or as many as the model's context takes; in owners each step's pages."""
    width, heads, each = model.head.in_features, model.blocks[0].heads, -(-model.context // PAGE)
    caches = torch.zeros(len(model.blocks), 2, AT_ONCE * each, PAGE, heads, width // heads)  # k and v of each layer
    free, table = list(range(AT_ONCE * each)), torch.zeros(AT_ONCE, each, dtype=torch.int32)
    texts, waiting = [p[: model.context] for p in prompts], list(range(len(prompts)))
    running: list[int | None] = [None] * AT_ONCE  # which prompt is at each place
    cached = torch.zeros(AT_ONCE, dtype=torch.int32)  # characters of it that are in the cache

    def attend(layer):
        def attention(q, k, v):  # [1, heads, rows, dim], the new rows of all sequences
            q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
            return strobe.torch.flash_attn_with_kvcache(
                q, *caches[layer], k, v, cache_seqlens=cached, page_table=table, causal=True,
                cu_seqlens_q=cu, cu_seqlens_k_new=cu, max_seqlen_q=max(map(len, new)),
            ).transpose(0, 1)[None]  # fmt: skip

        return attention

    for layer, block in enumerate(model.blocks):
        block.attention = attend(layer)
    while waiting or any(n is not None for n in running):
        for b in range(AT_ONCE):
            if running[b] is None and waiting:
                running[b], cached[b] = waiting.pop(0), 0
        new = [texts[n][cached[b] :] if n is not None else [] for b, n in enumerate(running)]
        places = [i for b, ids in enumerate(new) for i in range(cached[b], cached[b] + len(ids))]
        cu = torch.tensor([0, *map(len, new)]).cumsum(0).int()
        for b, ids in enumerate(new):
            for page in range(-(-int(cached[b]) // PAGE), -(-(int(cached[b]) + len(ids)) // PAGE)):
                table[b, page] = free.pop()
        rows = [character for ids in new for character in ids]
        x = model.embed(torch.tensor(rows)) + model.place(torch.tensor(places))
        logits = model.head(model.norm(model.blocks(x[None])[0]))
        cached += cu.diff()
        if owners is not None:
            owners.append(
                {n: table[b, : -(-int(cached[b]) // PAGE)].tolist() for b, n in enumerate(running) if n is not None}
            )
        for b, n in enumerate(running):
            if n is None:
                continue
            end = min(len(prompts[n]) + count, model.context)
            if len(texts[n]) < end:
                texts[n].append(logits[cu[b + 1] - 1].argmax().item())
            if len(texts[n]) == end:
                free += table[b, : -(-int(cached[b]) // PAGE)].tolist()
                running[b] = None
    return texts


def plot(owners: list[dict[int, list[int]]], path: str) -> None:
    import matplotlib.pyplot as plt

    axis = plt.figure(figsize=(8, 3.5)).gca()
    for n in sorted(set().union(*owners)):
        points = [(step, page) for step, pages in enumerate(owners) for page in pages.get(n, [])]
        axis.scatter(*zip(*points, strict=True), marker="s", s=9, label=f"prompt {n + 1}")
    axis.set(title=f"Whose each page of {PAGE} slots is, {AT_ONCE} prompts at a time", xlabel="step", ylabel="page")
    axis.legend()
    plt.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=options.existing)
    parser.add_argument("count", type=options.count)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--plot", type=options.written, metavar="PNG")
    a = parser.parse_args()
    try:
        model, alphabet = load(a.path)
    except (SafetensorError, KeyError, RuntimeError) as error:
        parser.error(f"{a.path} is not what train_gpt.py --save writes: {str(error).splitlines()[0]}")
    asked = [[alphabet.index(c) for c in prompt if c in alphabet] for prompt in a.prompts]
    if not all(asked):
        sys.exit("a prompt has no character that the model knows")
    start, owners = time.perf_counter(), [] if a.plot else None
    texts = generate(model, asked, a.count, owners)
    print("\n".join(f"{number}: {''.join(alphabet[n] for n in text)}" for number, text in enumerate(texts, 1)))
    made = sum(map(len, texts)) - sum(map(len, asked))
    print(f"{made} characters, {made / (time.perf_counter() - start):.0f} a second", file=sys.stderr)
    if owners:
        plot(owners, a.plot)


if __name__ == "__main__":
    main()
