"""What was read from far away, kept on a disk of this machine up to a bound, for all its processes and runs.

A file a sample, written beside its place and renamed, with a checksum behind its bytes. Nothing is evicted:
every epoch draws all samples, so whatever is kept saves a read in each. Must not know samples.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from contracts import UserError
from user_files import open_bytes

USED = "used-bytes"
"""The file that counts what all processes have kept."""
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
            self._reserve(0)
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
            if not self._reserve(len(data) + CHECK):
                self._full = True
                return
            path.parent.mkdir(exist_ok=True)
            fresh.write_bytes(data + _check(data))
            os.replace(fresh, path)
        except OSError:
            self._full = True
            with suppress(OSError):
                fresh.unlink()

    def _reserve(self, count: int) -> bool:
        """Whether so many bytes more are within the bound; they are counted then. Raises OSError."""
        file = os.open(self.folder / USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            used = int(os.pread(file, 20, 0) or b"0") + count
            if used > self.bound:
                return False
            os.pwrite(file, b"%020d" % used, 0)
            return True
        finally:
            os.close(file)


def _check(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(CHECK, "big")
