"""The bytes of samples that are entries of larger files: what LMDBs, shards and objects behind URLs share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from saturate.contracts import UserError
from saturate.dataset.scan.byte_ranges import ReadAt
from saturate.dataset.scan.manifest import Rejected
from saturate.dataset.stores.disk_cache import Kept
from saturate.dataset.stores.folder import MEND, StoredSource


class EntrySource(StoredSource):
    """A source whose samples are entries. A subclass gives `open_entry` and `shown`; a remote one also
    `version`.
    """

    files = False
    noun = "an entry"
    cache: Kept | None = None
    """The cache on a disk of what a remote source has read; None: there is no cache."""

    @abstractmethod
    def open_entry(self, sample: int) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open the sample's entry; inside are its size and what reads a range of it.

        Raises Rejected, UserError and OSError.
        """

    def version(self, sample: int) -> bytes:
        """Return the cache's key of the sample's bytes, which changes where they do; b"": they are not cached."""
        raise NotImplementedError

    def read(self, sample: int) -> bytes:
        """Return the bytes of the sample's entry, from the cache where it has them.

        A read of the storage takes `read_delay_s` longer than it would. Raises UserError when the entry is gone
        or has another size than in the manifest, and OSError when the storage fails.
        """
        key = self.version(sample) if self.cache is not None else b""
        if self.cache is None or not key:
            return self._read(sample)
        return self.cache.get(key, lambda: self._read(sample))

    def _read(self, sample: int) -> bytes:
        with self.opened(sample) as (size, read_at):
            return read_at(0, size)

    @contextmanager
    def opened(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        """Open the sample's entry, past the cache. Raises what `read` does."""
        try:
            with self.open_entry(sample) as (size, read_at):
                self.check(sample, size)
                yield size, read_at
        except Rejected as why:
            raise UserError(
                f"an entry of --data: {self.name(sample)}: {why}; {MEND}"
            ) from None
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
