"""Why a name is not found that is there in another spelling: slashes, or forms of Unicode."""

from __future__ import annotations

import os
import unicodedata


def cause_of_file(path: bytes) -> str:
    """Return how a path that is no file is written where it is one; "" where nothing like it is."""
    name = os.fsdecode(path)
    plain = name.replace("\\", "/")
    for form in (plain, *(unicodedata.normalize(f, plain) for f in ("NFC", "NFD"))):
        if form != name and os.path.exists(form):
            return f"; it is there in another spelling, as {form!a}"
    return ""
