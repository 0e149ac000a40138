#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""minilm.py: batches of unequal texts through the model of examples/minilm_embeddings.py, with eager attention, sdpa and Strobe.

    python3 bench/minilm.py

Sentences of a few words, 32 a batch, and paragraphs of up to 512 tokens, 8 a batch, padded to their longest. One thread, fp32; its own
processor seconds, medians of five turns in one process with the least and the most. Needs what the example needs."""

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import minilm_embeddings as example  # noqa: E402
import strobe.transformers  # noqa: E402
import torch  # noqa: E402


def paragraphs():
    """24 runs of 30 to 330 words, in a fixed order."""
    words = " ".join(example.sentences()[:900]).split()
    random.seed(1)
    return [" ".join(words[n * 40 : n * 40 + random.randint(30, 330)]) for n in range(24)]


def main():
    torch.set_num_threads(1)
    strobe.transformers.register()
    tokenizer = example.AutoTokenizer.from_pretrained(example.get_model_path())
    model = example.BertModel.from_pretrained(example.get_model_path(), dtype=torch.float32).eval()
    for name, texts, size in (("sentences", example.sentences()[:96], 32), ("paragraphs", paragraphs(), 8)):
        batches = [
            tokenizer(texts[n : n + size], padding=True, truncation=True, return_tensors="pt")
            for n in range(0, len(texts), size)
        ]
        tokens = [int(length) for batch in batches for length in batch["attention_mask"].sum(1)]
        print(f"{len(texts)} {name} of {min(tokens)} to {max(tokens)} tokens, batches of {size}")
        seconds = {attention: [] for attention in example.IMPLEMENTATIONS}
        for turn in range(6):  # the first is not timed
            for attention in example.IMPLEMENTATIONS:
                model.set_attn_implementation(attention)
                start = time.thread_time()
                example.embed(model, batches)
                if turn:
                    seconds[attention].append(time.thread_time() - start)
        for attention, times in seconds.items():
            print(f"  {attention:<8}{statistics.median(times):8.3f} s ({min(times):.3f} to {max(times):.3f})", flush=True)


main()
