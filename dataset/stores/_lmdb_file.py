"""One LMDB environment that is read and never written: what its meta pages say, and its values by key.

Must not know images or labels. The environment is opened in the process that reads it: what was opened
before a fork is opened again. It takes no lock, so that its table of readers bounds nothing, and does not
read ahead, since samples are read at random.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts import UserError
from dataset.scan.manifest import Rejected
from system import storage
from system.user_files import open_bytes

MAGIC = 0xBEEFC0DE
VERSION = 1
"""The version of the file format that LMDB 0.9 writes."""
HEADER = 16
"""Bytes of a page before what it holds, on machines of 64 bits."""
META = struct.Struct("<IIQQ I44x IHH40x QQ")
"""Magic, version, address, size of the map; page size; padding, flags, depth of the main table; last page,
last transaction."""
OTHER_ORDER = 0x2 | 0x4 | 0x8
"""Flags of a table with reversed keys, several values a key, or integers as keys."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What the newer meta page of an environment says, and the looks of its file.

    One that is written anew by the same program, and takes the place of another, has the same pages.
    """

    transaction: int  # the last one
    page_size: int  # bytes
    pages: int
    looks: tuple[int, int] = (0, 0)  # number of the file, and when it was written to, nanoseconds

    @property
    def size(self) -> int:
        """Return the bytes that the file has at least."""
        return max(self.pages, 2) * self.page_size


def data_file(store: Path) -> Path:
    """Return the file that holds an environment, which is that file or a folder with data.mdb."""
    return store / "data.mdb" if store.is_dir() else store


def checked(store: Path) -> Meta:
    """Return what an environment's meta pages say.

    Raises UserError, in one line, for what is no LMDB that can be read to its end, and OSError.
    """
    path = data_file(store)
    with open_bytes(path) as file:
        status = os.fstat(file.fileno())
        metas = [_meta(file.read(HEADER + META.size), path)]
        file.seek(metas[0].page_size)
        second = file.read(HEADER + META.size)
    if len(second) == HEADER + META.size:
        metas.append(_meta(second, path))
    found = max(metas, key=lambda meta: meta.transaction)
    if status.st_size < found.size:
        raise UserError(
            f"--data: {path} is cut short, or still being copied: it has {status.st_size:,} bytes of "
            f"{found.size:,}; copy it again (mdb_copy -c, where it is whole)"
        )
    return replace(found, looks=_looks(status))


def _looks(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def require_no_writer(store: Path) -> None:
    """Raise UserError where another process of this machine is seen to have an environment open to write."""
    path = data_file(store)
    if writers := _writers(path):
        raise UserError(
            f"--data: {path} is still being written: process {writers[0]} has it open to write; "
            "start when it has closed it"
        )


def _meta(page: bytes, path: Path) -> Meta:
    """Return what a meta page says. Raises UserError."""
    magic = struct.pack("<I", MAGIC)
    if magic not in page and magic[::-1] not in page:
        raise UserError(f"--data: {path} is no LMDB, or its first bytes are lost; write or copy it again")
    numbers = META.unpack_from(page.ljust(HEADER + META.size, b"\0"), HEADER)
    number, version, _, _, page_size, _, flags, _, last_page, transaction = numbers
    if number != MAGIC or version != VERSION:
        raise UserError(
            f"--data: {path} is of another version of LMDB (0.9 is read), or was written on a machine of 32 "
            "bits or of another byte order; write it again with mdb_dump there and mdb_load here"
        )
    if flags & OTHER_ORDER:
        raise UserError(
            f"--data: {path} has several values a key, or keys that are integers or reversed; "
            "write one value a key, with names as keys"
        )
    return Meta(transaction=transaction, page_size=page_size, pages=last_page + 1)


def _writers(path: Path) -> list[int]:
    """Return the other processes of this machine that have the file open to write, as far as this may know.

    Whoever opens an environment with its lock holds a lock on its lock file as long.
    """
    lock = path.with_name("lock.mdb") if path.name == "data.mdb" else Path(f"{path}-lock")
    found = []
    with suppress(OSError, ValueError, IndexError):
        inode = str(os.stat(lock).st_ino)
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
        holders = {int(row[4]) for row in rows if row[5].rpartition(":")[2] == inode}
        found = [pid for pid in sorted(holders - {os.getpid()}) if _writes(pid, path)]
    return found


def _writes(pid: int, path: Path) -> bool:
    """Whether a process has the file open to write."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError, ValueError, IndexError):
                if os.path.samefile(link, path):
                    about = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
                    flags = int(about.partition("flags:")[2].split()[0], 8)
                    if flags & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False


class _Environment:
    """An environment that this process has open, until nobody holds it: LMDB opens a file once a process."""

    def __init__(self, path: str) -> None:
        try:
            import lmdb
        except ImportError:
            raise UserError("--source lmdb needs the package lmdb: pip install lmdb") from None
        self.process = os.getpid()
        self.error: type[Exception] = lmdb.Error
        self.grown: type[Exception] = lmdb.MapResizedError
        try:
            self.opened: Any = lmdb.open(
                path, subdir=os.path.isdir(path), readonly=True, create=False, lock=False, readahead=False
            )
        except lmdb.Error as error:
            failure = OSError(getattr(error, "code", 0), str(error), path)
            if storage.failed(failure):
                raise failure from None
            raise UserError(f"--data: {path} cannot be opened by LMDB: {error}") from None


_open: weakref.WeakValueDictionary[str, _Environment] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _renew() -> None:
    """Renew the lock in a child, which has its parent's, and held."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def _environment(path: str) -> _Environment:
    """Return the environment of a path, opened in this process."""
    with _opening:
        found = _open.get(path)
        if found is not None and found.process != os.getpid():
            found.opened.close()  # the parent's, in this child alone
            found = None
        if found is None:
            found = _Environment(path)
            _open[path] = found
        return found


class Store:
    """The values of an environment by key, for many processes and threads. Pickled as its path.

    Nothing is open before the first read. One that is written to between two reads is refused, and one that
    was `scanned` where it is another one by then: its values may be those of other labels.
    """

    def __init__(self, path: Path, scanned: Meta | None = None) -> None:
        self.path = path
        self.scanned = scanned
        self._file = ""
        self._found: Meta | None = None  # what it was when it was opened
        self._held: _Environment | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def open(self) -> None:
        """Open the environment, as the first read does. Raises UserError and OSError."""
        self._environment()

    def close(self) -> None:
        """Let go of the environment; it is closed when no other Store holds it."""
        self._held = None

    def _environment(self) -> _Environment:
        held = self._held
        if held is None or held.process != os.getpid():
            found = checked(self.path)
            if self.scanned not in (None, found):
                raise self._written_to()
            held = _environment(os.path.realpath(self.path))
            self._file = str(data_file(self.path))
            self._found = found
            self._held = held
        return held

    def _written_to(self) -> Rejected | UserError:
        if self.scanned is not None:
            return Rejected("its store was written to after it was scanned")
        return UserError(f"--data: {self.path} is still being written; start when it is complete")

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        environment = self._environment()
        # first: to read a page beyond the end of the file would end the process by a bus error
        assert self._found is not None
        status = os.stat(self._file)
        if status.st_size < self._found.size or _looks(status) != self._found.looks:
            raise self._written_to()
        try:
            with environment.opened.begin(buffers=True) as transaction:
                now = environment.opened.info()
                if (now["last_txnid"], now["last_pgno"] + 1) != (self._found.transaction, self._found.pages):
                    raise self._written_to()
                yield transaction
        except environment.grown:
            raise self._written_to() from None
        except environment.error as error:
            raise UserError(f"--data: {self.path} is damaged: {error}; write or copy it again") from None

    @contextmanager
    def value(self, key: bytes) -> Iterator[memoryview | None]:
        """Yield a value, mapped, None where the key is not there; gone when the body ends.

        Raises Rejected where the store is not what was scanned, UserError and OSError.
        """
        with self._transaction() as transaction:
            yield transaction.get(key) if key else None  # LMDB has no empty key

    def copies(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return values as one transaction has them, b"" for a key that is not there."""
        with self._transaction() as transaction:
            return [bytes(transaction.get(key, b"")) for key in keys]

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys, in the order of their bytes."""
        with self._transaction() as transaction:
            for key in transaction.cursor().iternext(keys=True, values=False):
                yield bytes(key)
