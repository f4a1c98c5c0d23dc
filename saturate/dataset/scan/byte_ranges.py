"""What a scan reads: entries by name, with size and bytes; must not know formats or columns.

A file of a folder, a member of an archive, a value of a database: the scan parses all of them with the same
code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from saturate.dataset.scan.manifest import BROKEN_LINK, Rejected
from saturate.system import storage
from saturate.system.user_files import is_no_file, open_bytes

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> that many bytes of an entry, or fewer where it ends before."""


class RangeFile(io.RawIOBase):
    """An entry that is read by ranges, as a file that can be read and sought."""

    def __init__(self, size: int, read_at: ReadAt) -> None:
        self._size = size
        self._read_at = read_at
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = (0, self._position, self._size)[whence]
        self._position = begin + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(self._size - self._position, 0))
        data = self._read_at(self._position, length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class Entries(Protocol):
    """The entries of one data set by name.

    Copied into worker processes, so nothing is opened before it is read.
    """

    remote: bool = False
    """Entries lie behind URLs: the scan reads them in processes alone, for this one will fork."""
    mapped: bool = False
    """Likewise, since the system ends a process that reads a damaged mapping."""
    by_index: bool = False
    """`opened` and `shown` are given the number of an entry in the scan's list in place of its name."""

    def opened(self, name: bytes) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an entry: its size in bytes, and what reads a range of them.

        Raises Rejected when the entry cannot be read, and OSError when the storage fails: that ends the scan.
        """

    def shown(self, name: bytes) -> bytes:
        """Return what rejected.txt calls an entry, or a class."""


def unreadable(path: bytes, error: OSError) -> Rejected | OSError:
    """Return what is raised for an error of reading a file: the error where the file is not at fault."""
    if storage.failed(error) or (isinstance(error, PermissionError) and _shut_in(path)):
        return error
    if is_no_file(error):
        return Rejected("no regular file")
    if os.path.islink(path) and not os.path.exists(path):
        return Rejected(BROKEN_LINK)
    return Rejected(f"cannot be read: {error.strerror}")


def _shut_in(path: bytes) -> bool:
    """Whether a file may not be read since one of its folders may not be entered."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


class Files(Entries):
    """Entries that are files: a name is a path below `root`, or an absolute one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def shown(self, name: bytes) -> bytes:
        """Return the absolute path of an entry."""
        return os.path.join(os.fsencode(self.root), name)

    @contextmanager
    def opened(self, name: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open a file.

        What is wrong with it, now or when a range is read, is raised as Rejected, and OSError where it is not
        this file's fault.
        """
        path = self.shown(name)
        try:
            with open_bytes(path) as file:
                number = file.fileno()
                yield (
                    os.fstat(number).st_size,
                    lambda offset, length: os.pread(number, length, offset),
                )
        except OSError as error:
            raise unreadable(path, error) from None
