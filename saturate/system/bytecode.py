"""Whether Python keeps what it has compiled of the packages that a run imports; a container often does not."""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source
from types import ModuleType


def compiled_anew(package: ModuleType) -> str:
    """Return why each start of Python compiles a package again, and what ends that; "" where it is kept.

    The package was imported, so it is kept by now where it can be.
    """
    source = str(package.__file__)
    cached = cache_from_source(source)
    if not os.path.isfile(source) or _is_current(cached, source):
        return ""
    why = (
        "-B or PYTHONDONTWRITEBYTECODE forbids to keep it"
        if sys.dont_write_bytecode
        else f"it cannot be kept in {os.path.dirname(cached)}: set PYTHONPYCACHEPREFIX to a folder that can be written"
    )
    return f"each start compiles {package.__name__} and more again, which takes seconds: {why}"


def _is_current(cached: str, source: str) -> bool:
    """Return whether Python takes the compiled file for the source: by a time in its header, unless it has a hash."""
    try:
        with open(cached, "rb") as file:
            header = file.read(12)
        modified = int(os.stat(source).st_mtime) & 0xFFFFFFFF
    except OSError:
        return False
    has_hash = any(header[4:8])
    return has_hash or int.from_bytes(header[8:], "little") == modified
