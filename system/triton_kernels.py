"""Modules of Triton kernels, or None where Triton cannot build them on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def kernels(module: str, build: Callable[[Any], object], otherwise: str) -> Any:
    """Return the imported module once `build(module)` has run its kernels on small tensors.

    Returns None, with a warning that ends in `otherwise`, where that fails: without Triton, a C compiler or
    Python.h, each of which has an error of its own.
    """
    try:
        imported = import_module(module)
        build(imported)
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"Triton builds no kernel here ({type(error).__name__}: {first_line}): {otherwise}",
            stacklevel=3,
        )
        return None
    return imported
