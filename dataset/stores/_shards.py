"""What sources share whose samples lie in shards: their bytes by place, their labels, their columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Split, UserError
from dataset.images.columns import Images
from dataset.images.scan import open_images
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt, unreadable
from dataset.scan.cache import Progress
from dataset.scan.lists import Grammar, Labels
from dataset.scan.manifest import Rejected, Rejects, is_url, printable
from dataset.scan.packed_columns import Beside
from dataset.stores import remote
from dataset.stores._shard_index import Index
from dataset.stores._stored import Stored, StoredEntries
from system.user_files import read_text

PIECE = 10_000
"""Samples that are written together: bounds the memory."""


class Shards:
    """The images of the shards that `open_index` finds: a dataset.stores._stored.Container, but for `files`.

    A shard is opened for each read: there may be more of them than a process may have open.
    """

    def __init__(self, open_index: partial[Index]) -> None:
        self._open = open_index

    def __getstate__(self) -> dict[str, Any]:
        # a copy finds the index that is there: it shows no progress, and does not scan anew
        again = {**self._open.keywords, "progress": None, "rescan": False}
        return {**self.__dict__, "_open": partial(self._open.func, *self._open.args, **again)}

    @property
    def urls(self) -> Mapping[str, str]:
        """Return the whole URL of each shard that lies behind one, by its name."""
        return {}

    @property
    def remote(self) -> bool:
        """Whether shards lie behind URLs."""
        return False

    def version(self, key: bytes) -> bytes:
        """Return what tells the bytes of an entry from others, for a cache."""
        index = self.index
        place = index.find(key)
        shard = int(index.shard[place])
        numbers = (index.shard_size[shard], index.shard_mtime[shard], index.offset[place], index.size[place])
        return index.shard_path(shard) + b"?%d-%d-%d-%d" % tuple(map(int, numbers))

    @cached_property
    def index(self) -> Index:
        """Return where they lie. Raises UserError."""
        return self._open()

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected where there is none, or its shard is another one by now."""
        index = self.index
        place = index.find(key)
        if place < 0:
            raise Rejected("no such entry of a shard")
        begin, size, shard = (int(column[place]) for column in (index.offset, index.size, index.shard))
        path = index.shard_path(shard)
        if is_url(path):
            expected = int(index.shard_size[shard]), int(index.shard_mtime[shard])
            with remote.opened(self.urls[os.fsdecode(path)], expected) as (_, read_at):
                yield size, lambda offset, length: read_at(begin + offset, min(length, size - offset))
            return
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            status = os.fstat(file)
            if (status.st_size, status.st_mtime_ns) != (index.shard_size[shard], index.shard_mtime[shard]):
                raise Rejected("its shard has changed since it was scanned")
            yield size, lambda offset, length: _pread(file, begin + offset, min(length, size - offset))
        except OSError as error:
            raise unreadable(path, error) from None
        finally:
            os.close(file)

    def shown(self, key: bytes) -> bytes:
        """Return the path of the shard, and the entry's name in it, or its row and name."""
        index = self.index
        place = index.find(key)
        if place < 0:
            return os.fsencode(index.root) + b":" + key
        path = index.shard_path(int(index.shard[place]))
        name = key.removeprefix(os.path.basename(path) + b"/")
        row = int(index.row[place])
        return path + b":" + (name if row < 0 else b"row %d" % row + (b" " + name if name == key else b""))

    def name_rejected(self, rejects: Rejects) -> None:
        """Name what the walk over the shards has left out. Raises UserError."""
        for line in read_text(self.index.folder / "rejected.txt").splitlines():
            path, _, why = line.partition("\t")
            rejects(path.encode(), why)

    def files(self) -> Sequence[Path]:
        """Return the shards and what else shows a change. Raises UserError."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: no shard stays open."""


def _pread(file: int, offset: int, length: int) -> bytes:
    """Return a range of a file, which one call need not give whole."""
    data = os.pread(file, max(length, 0), offset)
    while len(data) < length and (piece := os.pread(file, length - len(data), offset + len(data))):
        data += piece
    return data


def index_options(how: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options of SourceModule.open that are also options of finding an index."""
    return {name: how[name] for name in ("cache", "rescan", "progress") if name in how}


@dataclass(frozen=True, kw_only=True)
class _Told:
    """Tells of a label that cannot be, for dataset.scan.lists.Labels: a line is a sample."""

    shards: Shards
    grammar: Grammar

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a sample."""
        return UserError(f"--data: {self.place(line)} {what}")

    def place(self, line: int) -> str:
        """Return where a sample lies."""
        return printable(self.shards.shown(self.shards.index.entry(line)))


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """How the images of one split's shards get their classes."""

    shards: Shards
    named: Sequence[str] | None  # the names of classes that are numbers, or the order of all
    expected: str  # what a label is, in words
    without: str  # why an image has no label, in words

    def open(
        self,
        data: Path,
        split: str,
        *,
        key: list[Any],
        where: str,
        beside: Beside | None = None,
        classes: Sequence[str] | None = None,
        read_delay_s: float = 0.0,
        **how: Any,
    ) -> Split:
        """Open the split, as dataset.stores.SourceModule says.

        The other parameters are those of dataset.images.scan.open_images. Raises UserError.
        """
        shards = self.shards
        entries = StoredEntries(data, lambda _: shards, split, remote=shards.remote)

        def list_files(
            made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
        ) -> dict[str, int]:
            entries.remember(visits, [])
            shards.name_rejected(rejects)
            return self._list(classes, made, rejects)

        columns: Images = open_images(
            data,
            entries,
            list_files,
            key=[*key, self.named],
            where=where,
            classes=classes,
            # numbers of classes are taken as they stand, whether or not each has a sample
            listed=self.named is not None or all(map(str.isdecimal, shards.index.classes)),
            beside=beside,
            **how,
        )
        # here, as nobody has walked the shards yet where the columns lay beside the store: a walk starts
        # processes, which the worker of a loader may not
        shards.index  # noqa: B018
        return Split(columns=columns, source=Stored(columns, shards, read_delay_s=read_delay_s))

    def _list(self, classes: Sequence[str] | None, made: Path, rejects: Rejects) -> dict[str, int]:
        """Write made/file_list.* of the samples with a label, and return the label of each class."""
        index = self.shards.index
        labels = Labels(_Told(shards=self.shards, grammar=Grammar(expected=self.expected)))
        first = {
            int(label): int(place)
            for label, place in zip(*np.unique(index.label, return_index=True), strict=True)
        }
        for number, word in enumerate(index.classes):
            labels.number(word, first[number])
        used: Sequence[str] = []
        class_of = np.zeros(0, np.int32)
        if index.classes:
            used, class_of, _ = labels.classes(classes, self.named)
        with file_tree.FileList(made) as files:
            for begin in range(0, len(index), PIECE):
                places = range(begin, min(begin + PIECE, len(index)))
                good = [place for place in places if index.label[place] >= 0]
                files.add([index.entry(place) for place in good], class_of[index.label[good]])
                for place in sorted({*places} - {*good}):
                    rejects(self.shards.shown(index.entry(place)), self.without)
        return {name: label for label, name in enumerate(used)}
