# SPDX-License-Identifier: BSD-3-Clause
"""Where NVRTC is, which compiles functions of a score for GPUs: frameworks with CUDA bring it as a package of its own."""

import functools
import os
from pathlib import Path


@functools.cache
def name_compiler(framework: str) -> None:
    """Tell the library, by the environment, of the NVRTC beside the framework that this file belongs to."""
    if "STROBE_NVRTC" in os.environ:
        return
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        for folder in sorted(Path(framework).parents[1].glob("nvidia/*/lib")):
            if (folder / name).exists():
                os.environ["STROBE_NVRTC"] = str(folder / name)
                return
