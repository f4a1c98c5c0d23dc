"""Finds image files whose names an annotation file writes in another way than the storage.

    C:\\data\\img%201.jpg   ->   img 1.jpg

Must not know annotations.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote

from dataset.scan.byte_ranges import Entries
from dataset.scan.manifest import Rejected

PARTS = 12  # of a name that are looked for at most: bounds the time that a hostile one takes


def path_below(name: str, prefixes: list[str]) -> str:
    """Return the path below the folder of images that a name is, or "" where it is none.

    `prefixes`: how names may begin that are not written below that folder.
    """
    name = name.removeprefix(
        next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    )
    return "" if name.startswith("/") or ".." in name.split("/") else name


def last_parts(name: str) -> Iterator[str]:
    """Yield paths that a name may stand for, the most of its last parts first.

    Backslashes separate parts too, %20 may be a blank, and letters with accents may be one character (NFC) or
    two (NFD).
    """
    plain = name.replace("\\", "/")
    decoded = unquote(plain)
    forms = [
        plain,
        decoded,
        unicodedata.normalize("NFC", decoded),
        unicodedata.normalize("NFD", decoded),
    ]
    split = [
        [part for part in form.split("/") if part not in ("", ".", "..")]
        for form in dict.fromkeys(forms)
    ]
    for count in range(min(PARTS, max(map(len, split))), 0, -1):
        yield from ("/".join(parts[-count:]) for parts in split)


def find(entries: Entries, folder: str, name: str) -> bytes | None:
    """Return the entry below `folder` that the last parts of a name are, or None."""
    for candidate in last_parts(name):
        try:
            path = below(folder, candidate)
            with entries.opened(path):
                return path
        except (Rejected, UnicodeEncodeError, ValueError):
            continue
    return None


def is_there(entries: Entries, path: bytes) -> bool:
    """Return whether the storage has an entry of that name."""
    try:
        with entries.opened(path):
            return True
    except Rejected:
        return False


def below(folder: str, name: str) -> bytes:
    """Return the name of an entry in the folder of images, which may be the root itself, ""."""
    return os.fsencode(f"{folder}/{name}" if folder else name)
