"""Paths that a user names: refuses URLs, and opens files of a user's folders to read them."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, TextIO, cast

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""One slash behind the colon will do: Path makes s3:/bucket of s3://bucket."""
NOT_REGULAR = "a device or a pipe, and not a regular file"


def local_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder of this machine.

    Raises ValueError for a URL, which would be a path below the current folder.
    """
    if _URL.match(os.fspath(name)):
        raise ValueError("is a URL; name a file or folder of this machine")
    return Path(name)


def open_bytes(path: Path | bytes) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises OSError for anything else too, whose strerror says what is there: a pipe would be waited for, and a
    device may have no end.
    """
    return cast(BinaryIO, open(path, "rb", opener=_opener))


def open_text(
    path: Path,
    encoding: str = "utf-8",
    errors: str = "strict",
    *,
    newline: str | None = None,
) -> TextIO:
    """Open a regular file to read its text; it raises what open_bytes does."""
    return cast(
        TextIO,
        open(path, encoding=encoding, errors=errors, newline=newline, opener=_opener),
    )


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a regular file. Raises what open_bytes does, and UnicodeDecodeError."""
    with open_text(path, encoding, errors) as file:
        return file.read()


def _opener(path: str, flags: int) -> int:
    # else the opening itself waits for a pipe's writer
    file = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, NOT_REGULAR, path)
