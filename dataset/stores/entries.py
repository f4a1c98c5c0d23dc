"""The bytes of samples that are entries of larger files: what LMDBs, shards and objects behind URLs share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

from contracts import UserError
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.manifest import Rejected, printable
from dataset.stores.disk_cache import Kept
from dataset.stores.folder import MEND, require_size


class EntrySource(ABC):
    """A contracts.Source of entries; one that is remote has `version` too.

    It is pickled into worker processes, and opens nothing before it reads.
    """

    files = False
    remote = False
    """Whether samples lie behind URLs."""
    reads_at_once = 1
    """Reads that a worker has under way together."""
    alone_while_fast = False
    """Whether it has one under way where the storage answers at once: threads cost more than that takes."""
    kept: Kept | None = None
    """The cache on a disk, of a remote source."""

    def __init__(self, columns: Any, read_delay_s: float = 0.0) -> None:
        self.columns = columns
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.columns)

    @abstractmethod
    def open_entry(self, sample: int) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an entry: its size, and what reads a range. Raises Rejected, UserError and OSError."""

    @abstractmethod
    def shown(self, sample: int) -> bytes:
        """Return where an entry lies, and its name."""

    def version(self, sample: int) -> bytes:
        """Return a key of the cache that other bytes do not have."""
        raise NotImplementedError

    def name(self, sample: int) -> str:
        """Return where the sample's entry lies, and its name, on one line."""
        return printable(self.shown(sample))

    def read(self, sample: int) -> bytes:
        """Return the entry's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError when it is gone or its size is not the manifest's, OSError when the storage fails.
        """
        if self.kept is None:
            return self._read(sample)
        return self.kept.get(self.version(sample), lambda: self._read(sample))

    def _read(self, sample: int) -> bytes:
        try:
            with self.open_entry(sample) as (size, read_at):
                self.check(sample, size)
                data = read_at(0, size)
        except Rejected as why:
            raise UserError(
                f"an entry of --data: {self.name(sample)}: {why}; {MEND}"
            ) from None
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        return data

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        require_size("an entry", self.name, self.columns, sample, size)
