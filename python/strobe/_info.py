# SPDX-License-Identifier: BSD-3-Clause
"""What this build and this machine have, and the number of threads."""

import os
from typing import NamedTuple

from strobe import _strobe


class Kernel(NamedTuple):
    """A kernel of this build. ``unavailable`` says why this machine cannot run it, None: it can."""

    name: str
    summary: str
    operation: str
    """"forward" or "backward"."""
    device: str
    """"cpu" or "cuda"."""
    by_name_only: bool
    """Never chosen by itself, only by ``kernel=``."""
    unavailable: str | None
    scale_block: int
    """What the keys of ``scale_block`` have to be a multiple of, or 0 for all; 1: any number is taken; 0: no scales are."""


class Device(NamedTuple):
    """A device that the library can use. ``level`` is the CPU's: "baseline", "avx2", "avx512", ..."""

    kind: str
    number: int
    name: str
    level: str
    memory_bytes: int


def kernels() -> list[Kernel]:
    """Return the kernels of this build, best first within an operation and device, the reference last."""
    return [Kernel(*entry) for entry in _strobe.kernels()]


def devices() -> list[Device]:
    """Return the devices that the library can use here."""
    return [Device(*entry) for entry in _strobe.devices()]


def version() -> str:
    """Return the library's version, such as "0.1.0"."""
    return _strobe.version()


def build_info() -> str:
    """Return how the library was built: version, compiler, backends, levels."""
    return _strobe.build_info()


def set_num_threads(threads: int) -> None:
    """Set how many threads a call on the CPU may use, in the whole process.

    The default is ``OMP_NUM_THREADS``, or as many as the process may run on. Results do not depend on it, bit for bit.

    Parameters
    ----------
    threads : int
        1 to 1024.
    """
    _strobe.set_num_threads(threads)


def get_num_threads() -> int:
    """Return how many threads a call on the CPU may use."""
    return _strobe.get_num_threads()


def _default_threads() -> int:
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wish.isdecimal() and int(wish) > 0:
        return int(wish)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


set_num_threads(min(_default_threads(), 1024))
