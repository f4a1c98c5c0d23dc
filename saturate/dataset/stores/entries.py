"""The bytes of samples that are entries of larger files: what LMDBs, shards and objects behind URLs share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

from saturate.contracts import UserError
from saturate.dataset.scan.byte_ranges import ReadAt
from saturate.dataset.scan.manifest import Rejected, printable
from saturate.dataset.stores.disk_cache import Kept
from saturate.dataset.stores.folder import MEND, require_size


class EntrySource(ABC):
    """A contracts.Source whose samples are entries. A subclass gives `open_entry` and `shown`; a remote one also
    `version`.

    A source is pickled into worker processes, and opens nothing before its first read.
    """

    files = False
    remote = False
    """Whether the entries lie behind URLs."""
    reads_at_once = 1
    """How many reads a worker has under way at once."""
    alone_while_fast = False
    """Whether a worker has one read under way only, while the storage answers at once: threads would cost more
    than such a read takes."""
    kept: Kept | None = None
    """The cache on a disk of what a remote source has read; None: there is no cache."""

    def __init__(self, columns: Any, read_delay_s: float = 0.0) -> None:
        self.columns = columns
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.columns)

    @abstractmethod
    def open_entry(self, sample: int) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open the sample's entry; inside are its size and what reads a range of it.

        Raises Rejected, UserError and OSError.
        """

    @abstractmethod
    def shown(self, sample: int) -> bytes:
        """Return the place of the sample's entry and its name, as bytes: a name may be no UTF-8."""

    def version(self, sample: int) -> bytes:
        """Return the cache's key of the sample's bytes, which changes where they do; b"": they are not cached."""
        raise NotImplementedError

    def name(self, sample: int) -> str:
        """Return what `shown` does as printable text on one line."""
        return printable(self.shown(sample))

    def read(self, sample: int) -> bytes:
        """Return the bytes of the sample's entry, from the cache where it has them.

        A read of the storage takes `read_delay_s` longer than it would. Raises UserError when the entry is gone
        or has another size than in the manifest, and OSError when the storage fails.
        """
        key = self.version(sample) if self.kept is not None else b""
        if self.kept is None or not key:
            return self._read(sample)
        return self.kept.get(key, lambda: self._read(sample))

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
