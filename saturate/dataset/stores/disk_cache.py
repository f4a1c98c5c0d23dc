"""What was read from far away, kept on a disk of this machine up to a bound, for all its processes and runs.

A file a sample, written beside its place and renamed, with a checksum behind its bytes. Nothing is evicted:
every epoch draws all samples, so whatever is kept saves a read in each. Must not know samples.

How much is kept is measured at the start of a run, by the sizes of the files that are there. From then on the
file COUNT says it, under a lock: a sample is counted and written as one act, whichever process does it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from saturate.contracts import UserError
from saturate.system.user_files import create, open_bytes

COUNT = "bytes"
"""The file of the folder that says how many bytes are kept."""
CHECK = 4
"""Bytes of the checksum."""


class Kept:
    """Bytes by key, in a folder that may hold `bound` bytes. Pickled as it is: nothing stays open."""

    def __init__(self, folder: Path, bound: int) -> None:
        """Raise UserError where the folder cannot be made or written."""
        self.folder = folder
        self.bound = bound
        self._full = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._count() as file:
                file.write(b"%d" % _measured(folder))
                file.truncate()
        except OSError as error:
            raise UserError(
                f"--cache-dir {folder} cannot be written: {error.strerror}; name another"
            ) from None

    def get(self, key: bytes, fetch: Callable[[], bytes]) -> bytes:
        """Return what is kept under a key, or what `fetch` returns, which is kept while there is room."""
        digest = hashlib.blake2b(key, digest_size=20).hexdigest()
        path = self.folder / digest[:2] / digest[2:]
        with suppress(OSError), open_bytes(path) as file:
            held = file.read()
            data = held[:-CHECK]
            if held[-CHECK:] == _check(data):
                return data  # else the machine went down while it was written
        data = fetch()
        if not self._full:
            self._keep(path, data)
        return data

    def _keep(self, path: Path, data: bytes) -> None:
        """Keep bytes; a disk that fails, or is full, keeps nothing more."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}")
        try:
            with self._count() as file:
                # it has just been made where a person has removed it
                before = int(file.read() or _measured(self.folder))
                total = before + len(data) + CHECK
                self._full = total > self.bound
                if self._full:
                    return
                file.seek(0)
                file.write(b"%d" % total)
                # still under the lock: a run that begins meanwhile measures what is there
                path.parent.mkdir(exist_ok=True)
                fresh.unlink(
                    missing_ok=True
                )  # of a process of this number that was killed
                with create(fresh) as sample:
                    sample.write(data + _check(data))
                os.replace(fresh, path)
        except (OSError, ValueError):
            self._full = True
            with suppress(OSError):
                fresh.unlink()

    @contextmanager
    def _count(self) -> Iterator[BinaryIO]:
        """Open COUNT, which no other process or thread then has. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self.folder / COUNT, flags, 0o666), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def _measured(folder: Path) -> int:
    """Return the bytes of all files that are kept."""
    total = 0
    for path in folder.glob("??"):
        with suppress(OSError), os.scandir(path) as files:
            for file in files:
                with suppress(FileNotFoundError):  # renamed, or removed by a person
                    total += file.stat().st_size
    return total


def _check(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(CHECK, "big")
