"""Modules of Triton kernels, or None where Triton cannot build them on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from threading import Thread
from types import ModuleType


def kernels(
    module: str, build: Callable[[ModuleType], object], otherwise: str
) -> ModuleType | None:
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


def hash_ahead() -> Thread:
    """Have a thread hash Triton's own files, which the first kernel of a process else waits for.

    A kernel's place in Triton's cache has that hash, of half a gigabyte, in its name. The thread hashes and
    reads without the interpreter's lock. Without Triton it does nothing.
    """

    def work() -> None:
        with suppress(Exception):  # the kernel itself says what is wrong
            # torch knows where this version of Triton has it
            import_module("torch._inductor.runtime.triton_compat").triton_key()

    thread = Thread(target=work, name="triton-key", daemon=True)
    thread.start()
    return thread
