"""What sources share whose samples are entries of a store, such as an LMDB or the shards of a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from contracts import UserError
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.manifest import Rejected, printable
from dataset.stores.disk_cache import Kept
from dataset.stores.folder import MEND


class Container(Protocol):
    """The entries of one split by key. Pickled into worker processes; opens nothing before it reads."""

    def opened(self, key: bytes) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an entry, as dataset.scan.byte_ranges.Entries does."""

    def shown(self, key: bytes) -> bytes:
        """Return what messages call an entry: where it lies, and its key."""

    def files(self) -> Sequence[Path]:
        """Return the files and folders that show a change of entries."""

    def close(self) -> None:
        """Let go of what is open."""


class StoredEntries:
    """The entries of a data set by name: dataset.scan.byte_ranges.Entries of one `split`, or of all.

    A name is a key of the split, or, of all, the split and the key: train2017/0.jpg. With `remote` they lie
    behind URLs.
    """

    def __init__(
        self, data: Path, container_of: Callable[[str], Container], split: str = "", *, remote: bool = False
    ) -> None:
        self.data = data
        self.remote = remote
        self.split = split
        self._container_of = container_of
        self._containers: dict[str, Container] = {}

    def _parts(self, name: bytes) -> tuple[Container, bytes]:
        split, key = self.split, name
        if not split:
            first, _, key = name.partition(b"/")
            split = os.fsdecode(first)
        found = self._containers.get(split)
        if found is None:
            found = self._containers.setdefault(split, self._container_of(split))
        return found, key

    @contextmanager
    def opened(self, name: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open an entry. Raises Rejected, UserError and OSError."""
        container, key = self._parts(name)
        with container.opened(key) as found:
            yield found

    def shown(self, name: bytes) -> bytes:
        """Return where an entry lies, and its key."""
        container, key = self._parts(name)
        return container.shown(key)

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        """Add the files that the entries of these names lie in, or those of the one split."""
        splits = [self.split] if self.split else sorted({os.fsdecode(name.split(b"/")[0]) for name in names})
        for split in splits:
            file_tree.remember_paths(visits, self.data, self._parts(os.fsencode(split) + b"/")[0].files())

    def close(self) -> None:
        """Let go of what is open."""
        for container in self._containers.values():
            container.close()


class Stored:
    """A contracts.Source of the entries that columns name, each behind the same `prefix`."""

    files = False
    reads_at_once = 1
    """Reads that a worker has under way together."""
    alone_while_fast = False
    """Whether it has one under way where the storage answers at once: threads cost more than that takes."""
    kept: Kept | None = None
    """Where bytes are kept on a disk, of a container with `version`."""

    def __init__(
        self, columns: Any, container: Container, *, prefix: bytes = b"", read_delay_s: float = 0.0
    ) -> None:
        self.columns = columns
        self.container = container
        self.prefix = prefix
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.columns)

    def _key(self, sample: int) -> bytes:
        entry: bytes = self.columns.entry(sample)
        return entry.removeprefix(self.prefix)

    def name(self, sample: int) -> str:
        """Return where the sample's entry lies, and its key, on one line."""
        return printable(self.container.shown(self._key(sample)))

    def read(self, sample: int) -> bytes:
        """Return the entry's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError when it is gone or its size is not the manifest's, OSError when the storage fails.
        """
        if self.kept is not None:
            version = self.container.version(self._key(sample))  # type: ignore[attr-defined]
            return self.kept.get(version, lambda: self._read(sample))
        return self._read(sample)

    def _read(self, sample: int) -> bytes:
        with self._opened(sample) as (size, read_at):
            return read_at(0, size)

    @contextmanager
    def opened(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        """Open the entry, to read a part of it: its size, and what reads a range. Raises as `read` does."""
        if self.kept is None:
            with self._opened(sample) as found:
                yield found
        else:
            data = self.read(sample)
            yield len(data), lambda offset, length: data[offset : offset + length]

    @contextmanager
    def _opened(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        try:
            with self.container.opened(self._key(sample)) as (size, read_at):
                self.check(sample, size)
                yield size, read_at
        except Rejected as why:
            raise UserError(f"an entry of --data: {self.name(sample)}: {why}; {MEND}") from None
        if self.read_delay_s:
            time.sleep(self.read_delay_s)

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        expected = int(self.columns.size[sample])
        if size != expected:
            said = f"{self.name(sample)} has {size} bytes, the manifest says {expected}"
            raise UserError(f"an entry of --data changed size: {said}; {MEND}")


def split_of(columns: Any) -> str:
    """Return the split that begins the names of COCO's images: train2017 of train2017/0.jpg."""
    return os.fsdecode(columns.entry(0).partition(b"/")[0])
