"""What was read from far away, kept on a disk of this machine up to a bound, for all its processes and runs.

A file a sample, written beside its place and renamed, with a checksum behind its bytes. Nothing is evicted:
every epoch draws all samples, so whatever is kept saves a read in each. Must not know samples.

How much is kept is measured, by the sizes of the files that are there. As many processes may keep samples as
there are cores: each takes a part of the room that is left, and measures again when it has used that up.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from contracts import UserError
from system.resources import cores
from system.user_files import open_bytes

CHECK = 4
"""Bytes of the checksum."""


class Kept:
    """Bytes by key, in a folder that may hold `bound` bytes. Pickled as it is: nothing stays open."""

    def __init__(self, folder: Path, bound: int) -> None:
        """Raise UserError where the folder cannot be made or written."""
        self.folder = folder
        self.bound = bound
        self._share = 0  # bytes that this process may keep before it measures again
        self._full = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
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
        count = len(data) + CHECK
        try:
            if count > self._share:
                room = self.bound - _measured(self.folder)
                self._full = count > room
                self._share = max(int(room / (2 * cores())), count)
            if self._full:
                return
            self._share -= count
            path.parent.mkdir(exist_ok=True)
            fresh.write_bytes(data + _check(data))
            os.replace(fresh, path)
        except OSError:
            self._full = True
            with suppress(OSError):
                fresh.unlink()


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
