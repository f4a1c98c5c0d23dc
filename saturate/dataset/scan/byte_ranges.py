"""What a scan reads: entries by name, with size and bytes; must not know formats or columns.

A file of a folder, a member of an archive, a value of a database: the scan parses all of them with the same
code.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from saturate.dataset.scan import file_tree
from saturate.dataset.scan.manifest import BROKEN_LINK, Rejected
from saturate.system import storage

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

    Copied into worker processes, so nothing is opened before it is read. Where entries lie behind URLs an
    attribute `remote` is true: the scan then reads them in processes alone, for this one will fork; and so where
    `mapped` is, since the system ends a process that reads a damaged mapping. Where an attribute `by_index` is
    true the scan gives `opened` and `shown` the number of an entry in its list.
    """

    def opened(self, name: bytes) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an entry: its size in bytes, and what reads a range of them.

        Raises Rejected when the entry cannot be read, and OSError when the storage fails: that ends the scan.
        """

    def shown(self, name: bytes) -> bytes:
        """Return what rejected.txt calls an entry, or a class."""

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        """Add to `visits` the files or folders below the scan's root that show a later change of entries."""


def unreadable(path: bytes, error: OSError) -> Rejected | OSError:
    """Return what is raised for an error of reading a file: the error where the file is not at fault."""
    if storage.failed(error) or (isinstance(error, PermissionError) and _shut_in(path)):
        return error
    broken = os.path.islink(path) and not os.path.exists(path)
    if broken:
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


class Files:
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
            # not blocking: a pipe must not stop the scan
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise Rejected("no regular file")
            yield status.st_size, lambda offset, length: os.pread(file, length, offset)
        except OSError as error:
            raise unreadable(path, error) from None
        finally:
            os.close(file)

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        """Add the folders of these files."""
        file_tree.remember_folders(visits, self.root, file_tree.folders_of(names))
