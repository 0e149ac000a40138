# SPDX-License-Identifier: BSD-3-Clause
"""Where a framework keeps its from_dlpack(), for results in it. Called once a type, by the extension."""

import sys
from collections.abc import Callable
from typing import Any


def from_dlpack(tensor: Any) -> Callable[[Any], Any]:
    """Return the function that makes a tensor of the same framework from an object with ``__dlpack__``."""
    if hasattr(tensor, "__array_namespace__"):  # the array API standard: JAX, CuPy, ...
        found = getattr(tensor.__array_namespace__(), "from_dlpack", None)
        if found:
            return found
    for base in type(tensor).__mro__:
        module: Any = sys.modules.get(base.__module__.partition(".")[0])
        found = getattr(module, "from_dlpack", None)  # PyTorch before the exchange API, MLX, ...
        if found:
            return found
    raise TypeError(
        f"q is a {type(tensor)!r}, whose framework has no from_dlpack; a tensor of NumPy, PyTorch, JAX or another framework "
        "with DLPack in both directions is accepted"
    )
