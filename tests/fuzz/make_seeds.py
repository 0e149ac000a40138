#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""make_seeds.py: writes seeds/, the small well-formed files and texts that the fuzzers start from."""
import json
import struct
from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"


def save(path, data):
    (SEEDS / path).parent.mkdir(parents=True, exist_ok=True)
    (SEEDS / path).write_bytes(data)


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy(version, header, data):
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(header)) + header + data


def tensor(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


save("safetensors/qkv", safetensors({"q": tensor("F32", [1, 2, 1, 2], 0, 16), "k": tensor("F16", [1, 2, 1, 2], 16, 24),
                                     "v": tensor("BF16", [1, 2, 1, 2], 24, 32)}, bytes(32)))
save("safetensors/notes", safetensors({"__metadata__": {"format": "pt"}, "x": tensor("I64", [1], 0, 8)}, bytes(8)))
save("safetensors/escape", safetensors(b'{"\\u0071\\n":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}   ', bytes(8)))
save("safetensors/empty", safetensors({"q": tensor("F32", [0, 4], 0, 0)}, b""))
save("npy/f4", npy((1, 0), b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", bytes(24)))
save("npy/f2", npy((2, 0), b"{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }\n", bytes(8)))
save("npy/f8", npy((3, 0), b"{'shape': (), 'fortran_order': False, 'descr': '<f8'}\n", bytes(8)))
save("npy/refused", npy((1, 0), b"{'descr': '>i4', 'fortran_order': True, 'shape': (0, 1), }\n", b""))
save("score/table", b"score + t[min(h, 2)][min(max(i - j, 0), 3)] * w\nd[min(i, 4)] == d[min(j, 4)] && !(j > i)\n")
save("score/functions", b"i % 3 == 0 ? tanh(score / 30.0) * 3e1 : pow(exp2(score), -w) - "
     b"log(sqrt(abs(score)))\nfloor(0.5 * i) < j || c\n")
save("score/choices", b"j < 3 ? -inf : int(score) / (c - i * 2) + float(hkv)\n(i - j) / 8 == 0 || seq_k - j >= b\n")
