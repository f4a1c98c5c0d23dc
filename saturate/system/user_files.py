"""Paths that a user names, and names by strangers: where they lead, and opening files without surprises."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""One slash behind the colon will do: Path makes s3:/bucket of s3://bucket."""
_DRIVE = re.compile(r"[A-Za-z]:")
NOT_REGULAR = "a device or a pipe, and not a regular file"


def imported(name: str) -> Any:
    """Return what `package.module:function` names; the folder of now is searched last.

    Raises ImportError, AttributeError, or ValueError for a name without a module.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return getattr(import_module(module), attribute)


def local_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder of this machine.

    Raises ValueError for a URL, which would be a path below the current folder.
    """
    if _URL.match(os.fspath(name)):
        raise ValueError("is a URL; name a file or folder of this machine")
    return Path(name)


def foreign_parts(name: str) -> list[str]:
    """Return the parts of a name that a stranger gave to a file, which lies below a folder wherever that is.

    Raises ValueError for one that is absolute, as Windows has them too, or that has an empty or a hidden part;
    `.` and `..` are hidden ones.
    """
    parts = name.split("/")
    if not all(parts):
        raise ValueError("is absolute, or has an empty part")
    if any(part.startswith(".") for part in parts):
        raise ValueError("has a part that begins with a dot")
    if "\\" in name or "\0" in name or _DRIVE.match(name):
        raise ValueError("has a backslash, a NUL or a drive")
    return parts


def is_foreign(name: str) -> bool:
    """Whether a stranger's name is refused by `foreign_parts`."""
    try:
        foreign_parts(name)
    except ValueError:
        return True
    return False


def below(root: Path, name: str) -> Path:
    """Return the path of a stranger's name below a folder.

    Raises ValueError as `foreign_parts` does, and where a link leads out of the folder.
    """
    path = root.joinpath(*foreign_parts(name))
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise ValueError("leads out of the folder by a link")
    return path


def create(path: Path) -> BinaryIO:
    """Make a file to write. Raises FileExistsError for whatever has its name, a link too."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666), "wb")


def open_bytes(path: Path | bytes) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises OSError for anything else too, whose strerror says what is there: a pipe would be waited for, and a
    device may have no end.
    """
    return cast(BinaryIO, open(path, "rb", opener=_opener))


def read_bytes(path: Path | bytes, most: int) -> bytes:
    """Return the bytes of a regular file, `most` of them at most. Raises what open_bytes does.

    A small file takes half as long as by a file object.
    """
    file = _opener(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(file, most)
        if len(content) == most:
            return content
        pieces = [content]
        # storage behind a network may give less than there is
        while piece := os.read(file, most - sum(map(len, pieces))):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(file)


def is_no_file(error: OSError) -> bool:
    """Whether open_bytes has found something that is no regular file."""
    return isinstance(error, IsADirectoryError) or error.strerror == NOT_REGULAR


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


def _opener(path: str | bytes | Path, flags: int) -> int:
    # else the opening itself waits for a pipe's writer
    file = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, NOT_REGULAR, path)
