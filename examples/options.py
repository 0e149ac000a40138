# SPDX-License-Identifier: BSD-3-Clause
"""The examples' arguments. What is wrong with one is said in a line, by argparse, before anything is computed."""

import argparse
from pathlib import Path

import strobe
import torch


def count(text: str) -> int:
    """Steps, rounds, lengths and the like."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is given; an integer from 1 on is accepted")
    return int(text)


def device(text: str) -> str:
    """cpu, or cuda where PyTorch and Strobe can use a GPU."""
    if text not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text} is given; cpu or cuda is accepted")
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("cuda is given, and PyTorch finds no GPU; cpu is accepted")
    lacks = [kernel.unavailable for kernel in strobe.kernels() if kernel.device == text]
    if lacks and all(lacks):
        raise argparse.ArgumentTypeError(f"{text} is given, where Strobe has no kernel: {lacks[0]}; cpu is accepted")
    if not lacks:
        raise argparse.ArgumentTypeError(f"{text} is given, for which this build of Strobe has no kernel; cpu is accepted")
    return text


def existing(text: str) -> str:
    """A file that is read."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is given; a file that exists is accepted")
    return text


def written(text: str) -> str:
    """A file that is written at the end."""
    if not Path(text).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is given; a file in a folder that exists is accepted")
    return text
