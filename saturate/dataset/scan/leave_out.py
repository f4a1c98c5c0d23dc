"""The list of --leave-out: files of the data that a scan leaves out; must not know formats."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from saturate.contracts import UserError
from saturate.dataset.scan.manifest import printable
from saturate.system.user_files import open_text

HEADINGS = ("photo", "path")
WHY = "named in --leave-out"


def listed(path: Path, root: Path, warn: Callable[[str], None]) -> frozenset[bytes]:
    """Return `place` of the files that the first column of a CSV file names, below `root` or by an absolute path.

    A file that is not there is told: it may have been removed since. Raises UserError for a folder, and where
    none of the files is there.
    """
    try:
        # some spreadsheets write a mark of UTF-8 before the first letter
        with open_text(path, "utf-8-sig", "surrogateescape", newline="") as file:
            named = [row[0] for row in csv.reader(file) if row and row[0]]
    except (OSError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--leave-out {path}: {why}") from None
    entries = set()
    missing = []
    for number, name in enumerate(named):
        # as tables of this program write a formula, and a byte that is no UTF-8
        plain = re.sub(r"\\x([89a-f][0-9a-f])", _byte, name.removeprefix("'"))
        for spelling in (name, plain):
            if os.path.isdir(root / spelling):
                raise UserError(
                    f"--leave-out {path}: '{printable(name)}' is a folder; name files"
                )
            if os.path.lexists(root / spelling):
                entries.add(place(os.fsencode(root / spelling)))
                break
        else:
            if number or name not in HEADINGS:
                missing.append(name)
    if missing:
        more = f", nor {len(missing) - 1:,} more" if len(missing) > 1 else ""
        name = missing[0]
        line = f"{root} has no file '{printable(name)}'{_nearest(root, name)}{more}, which --leave-out {path} names"
        if not entries:
            raise UserError(line)
        warn(line)
    return frozenset(entries)


def place(path: bytes) -> bytes:
    """Return a file's absolute path, the links of its folders followed and its own not."""
    folder, name = os.path.split(path)
    return os.path.join(_real(folder), name)


@lru_cache
def _real(folder: bytes) -> bytes:
    return os.path.realpath(folder)


def _byte(written: re.Match[str]) -> str:
    return os.fsdecode(bytes.fromhex(written[1]))


def _nearest(root: Path, name: str) -> str:
    """Say which file has the nearest name: in each folder the nearest part of the path; "" without any."""
    at = root
    for part in Path(name).parts:
        if not os.path.lexists(at / part):
            names: list[str] = []
            with suppress(OSError):
                names = os.listdir(at)
            close = get_close_matches(part, names, 1, 0.0)
            if not close:
                break
            part = close[0]
        at /= part
    nearest = printable(os.path.relpath(at, root))
    return f" (did you mean {nearest}?)" if at.is_file() else ""
