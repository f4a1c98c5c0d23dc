"""Images in tar shards: which samples, with which labels, and their bytes; must not know formats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Split, UserError
from dataset import walk
from dataset.beside import beside
from dataset.entries import ReadAt, unreadable
from dataset.images.scan import open_images
from dataset.lists import Grammar, Labels, class_names
from dataset.manifest import Rejected, Rejects, printable
from dataset.scan import Progress
from dataset.sources._stored import Stored, StoredEntries, split_of
from dataset.tar_index import PACKED, Index, open_index, remember_shards, shards_of
from user_files import read_text

FILES = False
HOLDS = "a folder with tar shards, train/*.tar and val/*.tar"
LABELS = "label_key"
PIECE = 10_000
"""Samples that are written together: bounds the memory."""


class Shards:
    """The images of data/<split>/*.tar by name: a dataset.sources._stored.Container.

    A shard is opened for each read: there may be more of them than a process may have open.
    """

    def __init__(self, folder: Path, **how: Any) -> None:
        self._open = partial(open_index, folder, **how)

    @cached_property
    def index(self) -> Index:
        """Return where they lie, as dataset.tar_index.open_index finds it. Raises UserError."""
        return self._open()

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected where there is none, or its shard is another one by now."""
        index = self.index
        place = index.find(key)
        if place < 0:
            raise Rejected("no such member of a shard")
        begin, size, shard = (int(column[place]) for column in (index.offset, index.size, index.shard))
        path = index.shard_path(shard)
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
        """Return the path of the shard, and the name of the member in it."""
        place = self.index.find(key)
        if place < 0:
            return os.fsencode(self.index.root) + b":" + key
        path = self.index.shard_path(int(self.index.shard[place]))
        return path + b":" + key.removeprefix(os.path.basename(path) + b"/")

    def files(self) -> Sequence[Path]:
        """Return the shards and their folder. Raises UserError."""
        root = self.index.root
        return [root, *(root / name for name in shards_of(root))]

    def close(self) -> None:
        """Do nothing: no shard stays open."""


def _pread(file: int, offset: int, length: int) -> bytes:
    """Return a range of a file, which one call need not give whole."""
    data = os.pread(file, max(length, 0), offset)
    while len(data) < length and (piece := os.pread(file, length - len(data), offset + len(data))):
        data += piece
    return data


def missing(data: Path, split: str) -> str:
    """Return what is not there: shards in a folder of that name; `open` refuses compressed ones."""
    try:
        names = os.listdir(data / split)
    except OSError:
        names = []
    found = any(name.endswith((".tar", *(f".tar{ending}" for ending in PACKED), ".tgz")) for name in names)
    return "" if found else f"{split}/*.tar"


class _Told:
    """Who tells of a label that cannot be, for dataset.lists.Labels: a line is a sample."""

    grammar = Grammar(expected="a label is the number of a class or its name, in .cls or by --label-key")

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a sample."""
        return UserError(f"--data: {self.place(line)} {what}")

    def place(self, line: int) -> str:
        """Return where a sample lies."""
        return printable(self._shards.shown(self._shards.index.entry(line)))


def open(
    data: Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    read_delay_s: float = 0.0,
    labels: str | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Any = None,
    **how: Any,
) -> Split:
    """Open the images of data/<split>/*.tar, as dataset.sources.SourceModule says.

    `labels` is the key of a sample's .json that holds its label, where it has no .cls. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    folder = real / split
    again: dict[str, Any] = {"cache": cache, "rescan": rescan, "progress": progress}
    shards = Shards(folder, samples=True, label_key=labels, **again)
    named = class_names(folder, real)

    def list_files(made: Path, rejects: Rejects, visits: list[walk.Visit], say: Progress) -> dict[str, int]:
        remember_shards(visits, real, folder)
        for line in read_text(shards.index.folder / "rejected.txt").splitlines():
            path, _, why = line.partition("\t")
            rejects(path.encode(), why)
        return _list(shards, classes, named, made, rejects)

    columns = open_images(
        real,
        StoredEntries(real, lambda _: shards, split),
        list_files,
        key=["tar", split, labels, named],
        where=f"{folder}/*.tar",
        classes=classes,
        # numbers of classes are taken as they stand, whether or not each has a sample
        listed=named is not None or all(map(str.isdecimal, shards.index.classes)),
        beside=beside(real, split, "images", shards.files()),
        **again,
        **how,
    )
    return Split(columns=columns, source=Stored(columns, shards, read_delay_s=read_delay_s))


def _list(
    shards: Shards, classes: Sequence[str] | None, named: Sequence[str] | None, made: Path, rejects: Rejects
) -> dict[str, int]:
    """Write made/file_list.* of the samples with a label, and return the label of each class."""
    index = shards.index
    labels = Labels(_Told(shards))
    first = {
        int(label): int(place)
        for label, place in zip(*np.unique(index.label, return_index=True), strict=True)
    }
    for number, word in enumerate(index.classes):
        labels.number(word, first[number])
    used: Sequence[str] = []
    class_of = np.zeros(0, np.int32)
    if index.classes:
        used, class_of, _ = labels.classes(classes, named)
    with walk.FileList(made) as files:
        for begin in range(0, len(index), PIECE):
            places = range(begin, min(begin + PIECE, len(index)))
            good = [place for place in places if index.label[place] >= 0]
            files.add([index.entry(place) for place in good], class_of[index.label[good]])
            for place in sorted({*places} - {*good}):
                name = index.entry(place)
                rejects(shards.shown(name), "no label: no .cls beside it, nor --label-key in its .json")
    return {name: label for label, name in enumerate(used)}


def entries(data: Path, cache: Path) -> StoredEntries:
    """Return the images of COCO's annotations: train2017/<file_name> is a member of train2017/*.tar."""
    return StoredEntries(data, lambda split: Shards(data / split, samples=False, cache=cache))


def source(columns: Any, read_delay_s: float = 0.0) -> Stored:
    """Return the bytes of the members that the columns of COCO's images name."""
    split = split_of(columns)
    # beside the columns: the scan has left the index there
    shards = Shards(columns.root / split, samples=False, cache=columns.folder.parent.parent)
    return Stored(columns, shards, prefix=os.fsencode(split) + b"/", read_delay_s=read_delay_s)
