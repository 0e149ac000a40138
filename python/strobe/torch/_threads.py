# SPDX-License-Identifier: BSD-3-Clause
"""The threads that calls on the CPU run on, beside PyTorch's operators."""

from pathlib import Path

import torch

from strobe import _strobe


def share_threads(share: bool = True) -> bool:
    """Run calls of the main thread on the threads of PyTorch's operators. Importing strobe.torch does this.

    Between two operators PyTorch's threads wait without giving their cores up, some milliseconds, so that workers of Strobe's own
    would get a part of them. Calls of other threads, with another number of threads than PyTorch has, and in a forked
    process have Strobe's own workers. Results are the same bits.

    Parameters
    ----------
    share : bool
        False: Strobe's own workers for every call.

    Returns
    -------
    bool
        Whether they are shared: not where this PyTorch has no OpenMP.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return _strobe.share_threads(str(library) if share else None)
