"""Folders that programs write: made whole or not at all."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from saturate.contracts import UserError
from saturate.report.record import locked, remove_empty


@contextmanager
def whole(dest: Path) -> Iterator[Path]:
    """Yield a folder to write into, which gets the name DEST at the end: whatever has that name is whole.

    No file is removed but those that were written into it, and what a process of this host that was killed has written
    for DEST. Raises UserError where DEST is there, and is no empty folder, or where another process is writing it.
    """
    dest = Path(dest).resolve()
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise UserError(
            f"{dest} is there and not empty; name a new or an empty folder, or remove it"
        )
    # not every file system has locks that other hosts see
    beside = dest.with_name(f".{dest.name}.{platform.node()}.partial")
    beside.mkdir(parents=True, exist_ok=True)
    with locked(beside, f"{dest}"):
        try:
            fresh = beside / dest.name
            rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            yield fresh
            fresh.rename(dest)  # refused by the system where files have come meanwhile
        finally:
            rmtree(fresh, ignore_errors=True)
            remove_empty([beside])


@contextmanager
def filled(target: Path, root: Path) -> Iterator[Path]:
    """Yield a folder to fill, which gets the name TO at the end: whatever has it is whole.

    Raises ValueError where `target` lies in `root`, UserError where it is there and not empty.
    """
    if target.resolve().is_relative_to(root.resolve()):
        raise ValueError(
            f"{target} lies inside {root}, which is never written to; name a folder elsewhere"
        )
    with whole(target) as fresh:
        yield fresh
