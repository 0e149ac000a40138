# SPDX-License-Identifier: BSD-3-Clause
"""What FP8 costs on a real model: queries, keys and values of all-MiniLM-L6-v2 through strobe.quantise and strobe.attention.

    pip install torch==2.13.0 && pip install .
    python examples/fp8_error.py [--device cuda]

Prints the relative error (2-norm, against float64) of attention by layer: in bfloat16, and in e4m3 with scales by blocks of 128
rows, as they are, with a Hadamard transform of Q and K, and without K's mean; last with Q and K in int8. Fails when a cosine
is not above 0.999, or above 0.9995 with Q and K in int8.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

import options
import strobe
import torch

FILE = Path(__file__).resolve().parent / "data" / "minilm_qkv.safetensors"
WAYS = {
    "as they are": {},
    "Hadamard": {"hadamard": True},
    "mean": {"subtract_mean": True},
    "Hadamard, mean": {"hadamard": True, "subtract_mean": True},
    "int8 Q and K": {"hadamard": True, "dtype": "int8_float8_e4m3fn"},
}


def read(path: Path) -> dict[str, torch.Tensor]:
    """The float32 tensors of a safetensors file: 8 bytes of length, a JSON header, data."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + x for x in entry["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view(entry["shape"])
    return tensors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=options.device, metavar="cpu|cuda")
    device = parser.parse_args().device
    tensors = read(FILE)
    layers = sorted(name.removesuffix(".q") for name in tensors if name.endswith(".q"))
    least, least_int8 = 1.0, 1.0
    print(f"{'layer':<8}{'bfloat16':>12}" + "".join(f"{way:>18}" for way in WAYS))
    for layer in layers:
        q, k, v = (tensors[f"{layer}.{name}"].to(device) for name in "qkv")
        q, k, v = (x if x.dim() == 4 else x.unsqueeze(0) for x in (q, k, v))
        truth = strobe.attention(*(x.cpu().double() for x in (q, k, v)))
        results = [strobe.attention(q.bfloat16(), k.bfloat16(), v.bfloat16())]
        for way in WAYS.values():
            z = strobe.quantise(q, k, v, **way)
            results.append(strobe.attention(z.q, z.k, z.v, **z.scales))
        errors = [((x.cpu().double() - truth).norm() / truth.norm()).item() for x in results]
        cosines = [torch.cosine_similarity(x.cpu().double().flatten(), truth.flatten(), dim=0).item() for x in results]
        least, least_int8 = min(least, *cosines), min(least_int8, cosines[-1])
        print(f"{layer:<8}{errors[0]:>12.2e}" + "".join(f"{error:>18.2e}" for error in errors[1:]))
    print(f"least cosine: {least:.5f}, with Q and K in int8 {least_int8:.5f}")
    return 0 if least > 0.999 and least_int8 > 0.9995 else 1


if __name__ == "__main__":
    sys.exit(main())
