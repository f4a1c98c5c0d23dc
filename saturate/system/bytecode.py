"""Whether Python keeps what it has compiled of the packages that a run imports; a container often does not."""

from __future__ import annotations

import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType


def compiled_anew(package: ModuleType) -> str:
    """Return why each start of Python compiles a package again, and what ends that; "" where it is kept.

    The package was imported, so it is kept by now where it can be.
    """
    kept = Path(cache_from_source(str(package.__file__)))
    if kept.exists():
        return ""
    why = (
        "PYTHONDONTWRITEBYTECODE is set: unset it"
        if sys.dont_write_bytecode
        else f"nothing can be written to {kept.parent}: PYTHONPYCACHEPREFIX names a folder that can"
    )
    return f"each start compiles all packages again, which takes seconds: {why}"
