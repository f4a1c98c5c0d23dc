"""Why a name is not found that is there in another spelling: slashes, encodings, forms of Unicode."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator

_WINDOWS = re.compile(r"(?:^|/)[A-Za-z]:[\\/]")
_UTF8 = "the list is not in UTF-8, and names there are: save it as UTF-8"
_LATIN = "names there are not in UTF-8, and the list is"
_UNICODE = "its accents are in another form of Unicode (NFC, NFD)"
_BACKSLASH = r"folders are separated by '/' here, and not by '\'"


def cause(name: str, exists: Callable[[str], bool]) -> str:
    """Return what tells a name from the one that `exists`, "" where none that looks like it does."""
    return next(
        (f"; {why}" for form, why in _spellings(name) if form != name and exists(form)),
        "",
    )


def cause_of_file(path: bytes) -> str:
    """Return why there is no file of a path, as `cause` does."""
    name = os.fsdecode(path)
    if _WINDOWS.search(name):
        return (
            "; it is a path of Windows: write it below the folder of the list, with '/'"
        )
    folder = os.path.dirname(name)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return cause(
        os.path.relpath(name, folder) if folder else name,
        lambda form: os.path.exists(os.path.join(folder, form)),
    )


def _spellings(name: str) -> Iterator[tuple[str, str]]:
    """Yield other ways to write a name, and what they are."""
    yield name.replace("\\", "/"), _BACKSLASH
    yield unicodedata.normalize("NFC", name), _UNICODE
    yield unicodedata.normalize("NFD", name), _UNICODE
    try:
        yield os.fsencode(name).decode("latin-1"), _UTF8
        yield os.fsdecode(name.encode("latin-1")), _LATIN
    except UnicodeError:
        pass  # it has letters that Latin-1 has not
