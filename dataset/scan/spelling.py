"""Why a name is not found that is there in another spelling: slashes, Windows, or forms of Unicode."""

from __future__ import annotations

import os
import re
import unicodedata


def cause_of_file(path: bytes) -> str:
    """Return how a path that is no file is written where it is one; "" where nothing like it is."""
    name = os.fsdecode(path)
    plain = name.replace("\\", "/")
    forms = [plain, *(unicodedata.normalize(f, plain) for f in ("NFC", "NFD"))]
    # a list in Latin-1, or a list in UTF-8 beside names in Latin-1
    forms += [path.decode("latin-1"), os.fsdecode(name.encode("latin-1", "replace"))]
    for form in forms:
        if form != name and os.path.exists(form):
            return f"; it is there in another spelling, as {form!a}"
    if re.search(r"(^|/)[A-Za-z]:\\", name):
        return "; it is a path of Windows"
    return ""
