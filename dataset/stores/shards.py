"""What stores share whose samples are entries of larger files; and all of a store of shards but its walk.

    find     the shards of a split: files of its folder, or URLs in its shards.txt
    walk     each of them once, before training -> name, offset, size and label of every image
    columns  in the order of the names, with `shard`, `offset` and `size`: ShardImages
    read     one range of a shard, by the columns alone; a shard that is another one by then is refused

A kind of shards is a module with `ENDING` and `walk(shard)`, and a line in dataset.stores.SOURCES; ShardStore
says what else such a module may have.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

import numpy as np

from contracts import MAX_PIXELS, Array, Split, UserError
from dataset.images.columns import Images
from dataset.images.scan import open_images
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt, unreadable
from dataset.scan.cache import Progress, reading, remembered
from dataset.scan.lists import Grammar, Labels, class_names
from dataset.scan.manifest import (
    Manifest,
    Rejected,
    Rejects,
    S,
    is_url,
    masked,
    printable,
)
from dataset.scan.packed_columns import Beside, Look
from dataset.stores import bucket, remote
from dataset.stores.disk_cache import Kept
from dataset.stores.folder import MEND, require_size
from system import processes, storage
from system.resources import cores
from system.user_files import open_bytes

FEW = 64 << 20
"""Bytes of shards that threads have walked before processes have started."""
PIECE = 10_000
"""Samples that are written together: bounds the memory."""
REMOTE_WINDOW = 1 << 20
"""Bytes that a walk asks of a server at once: an answer takes as long as some hundred KiB."""


# --- what is read after the scan ----------------------------------------------------------------------------


class Container(Protocol):
    """The entries of one split by key. Pickled into worker processes; opens nothing before it reads."""

    def opened(self, key: Any) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an entry, as dataset.scan.byte_ranges.Entries does."""

    def shown(self, key: Any) -> bytes:
        """Return what messages call an entry: where it lies, and its name."""

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
        self,
        data: Path,
        container_of: Callable[[str], Container],
        split: str = "",
        *,
        remote: bool = False,
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
        container = self._containers.get(split)
        if container is None:
            container = self._containers.setdefault(split, self._container_of(split))
        return container, key

    def opened(self, name: bytes) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an entry. Raises Rejected, UserError and OSError."""
        container, key = self._parts(name)
        return container.opened(key)

    def shown(self, name: bytes) -> bytes:
        """Return where an entry lies, and its key."""
        container, key = self._parts(name)
        return container.shown(key)

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        """Add the files that the entries of these names lie in, or those of the one split."""
        splits = (
            [self.split]
            if self.split
            else sorted({os.fsdecode(name.split(b"/")[0]) for name in names})
        )
        for split in splits:
            file_tree.remember_paths(
                visits, self.data, self._parts(os.fsencode(split) + b"/")[0].files()
            )

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
        self,
        columns: Any,
        container: Container,
        *,
        prefix: bytes = b"",
        read_delay_s: float = 0.0,
    ) -> None:
        self.columns = columns
        self.container = container
        self.prefix = prefix
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.columns)

    def key(self, sample: int) -> Any:
        """Return what the container knows the sample by."""
        entry: bytes = self.columns.entry(sample)
        return entry.removeprefix(self.prefix)

    def name(self, sample: int) -> str:
        """Return where the sample's entry lies, and its name, on one line."""
        return printable(self.container.shown(self.key(sample)))

    def read(self, sample: int) -> bytes:
        """Return the entry's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError when it is gone or its size is not the manifest's, OSError when the storage fails.
        """
        if self.kept is not None:
            version = self.container.version(self.key(sample))  # type: ignore[attr-defined]
            return self.kept.get(version, lambda: self._read(sample))
        return self._read(sample)

    def _read(self, sample: int) -> bytes:
        with self._opened(sample) as (size, read_at):
            return read_at(0, size)

    @contextmanager
    def opened(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        """Open the entry, to read a part of it: its size, and what reads a range. Raises as `read` does."""
        if self.kept is None:
            with self._opened(sample) as opened:
                yield opened
        else:
            data = self.read(sample)
            yield len(data), lambda offset, length: data[offset : offset + length]

    @contextmanager
    def _opened(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        try:
            with self.container.opened(self.key(sample)) as (size, read_at):
                self.check(sample, size)
                yield size, read_at
        except Rejected as why:
            raise UserError(
                f"an entry of --data: {self.name(sample)}: {why}; {MEND}"
            ) from None
        if self.read_delay_s:
            time.sleep(self.read_delay_s)

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""
        require_size("an entry", self.name, self.columns, sample, size)


def split_of(columns: Any) -> str:
    """Return the split that begins the names of COCO's images: train2017 of train2017/0.jpg."""
    return os.fsdecode(columns.entry(0).partition(b"/")[0])


# --- columns of shards --------------------------------------------------------------------------------------

OF_ENTRIES: dict[str, np.dtype[Any]] = {
    "offset": np.dtype("i8"),  # of the entry's first byte in its shard
    "shard": np.dtype("i4"),
    "row": np.dtype("i8"),  # number in its shard; -1 = an entry is called by its name
}
OF_SHARDS: dict[str, np.dtype[Any]] = {
    "shard_bytes": np.dtype("u1"),  # names below the root, or URLs, one after the other
    "shard_offsets": np.dtype("i8"),  # [shards + 1], where each begins
    "shard_size": np.dtype("i8"),  # bytes
    "shard_mtime": np.dtype(
        "i8"
    ),  # ns since 1970; of URLs dataset.stores.remote.Head.number
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Located:
    """Where each of n entries lies: OF_ENTRIES, of one or more shards: OF_SHARDS."""

    offset: Array
    shard: Array
    row: Array
    shard_bytes: Array
    shard_offsets: Array
    shard_size: Array
    shard_mtime: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardImages(Images, Located):
    """n images with a label, and where each lies. Their fingerprint is that of the same images as files."""

    VERSION: ClassVar[str] = f"{Images.VERSION} in shards 1"
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]] = {
        **Images.COLUMNS,
        **OF_ENTRIES,
        **OF_SHARDS,
    }
    RAGGED: ClassVar[dict[str, tuple[str, ...]]] = {
        **Images.RAGGED,
        "shard_offsets": ("shard_bytes",),
    }
    EXTRA: ClassVar[tuple[str, ...]] = tuple(OF_ENTRIES)


@dataclass(frozen=True, eq=False, kw_only=True)
class Index(Manifest, Located):
    """All images of the shards of one split by name, for annotations that name them."""

    VERSION: ClassVar[str] = "shards 2"
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]] = {
        **{
            name: Images.COLUMNS[name]
            for name in ("path_bytes", "path_offsets", "size")
        },
        **OF_ENTRIES,
        **OF_SHARDS,
    }
    FINGERPRINT: ClassVar[tuple[str, ...]] = ("path_bytes", "path_offsets", "size")
    RAGGED: ClassVar[dict[str, tuple[str, ...]]] = ShardImages.RAGGED


def place_of(root: Path, shard: bytes) -> bytes:
    """Return the path of a shard below `root`, or its URL."""
    return shard if is_url(shard) else os.fsencode(root) + b"/" + shard


def shard_path(columns: Any, shard: int) -> bytes:
    """Return the absolute path of a shard, or its URL."""
    begin, end = columns.shard_offsets[shard : shard + 2].tolist()
    return place_of(columns.root, columns.shard_bytes[begin:end].tobytes())


class Shards:
    """The bytes of entries by their number in `columns`, which are Located: a Container, but for `files`.

    A shard is opened for each read: there may be more of them than a process may have open. `urls` has the
    whole URL of each shard that lies behind one, by its name.
    """

    def __init__(self, columns: Any, urls: Mapping[str, str]) -> None:
        self.columns = columns
        self.urls = urls

    @property
    def remote(self) -> bool:
        """Whether shards lie behind URLs."""
        return bool(self.urls)

    def version(self, index: int) -> bytes:
        """Return what tells the bytes of an entry from others, for a cache."""
        columns = self.columns
        shard = int(columns.shard[index])
        numbers = (
            columns.shard_size[shard],
            columns.shard_mtime[shard],
            columns.offset[index],
        )
        return shard_path(columns, shard) + b"?%d-%d-%d-%d" % (
            *map(int, numbers),
            int(columns.size[index]),
        )

    @contextmanager
    def opened(self, index: Any) -> Iterator[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected where there is none, or its shard is another one by now."""
        columns = self.columns
        if index < 0:
            raise Rejected("no such entry of a shard")
        begin, size, shard = (
            int(column[index])
            for column in (columns.offset, columns.size, columns.shard)
        )
        path = shard_path(columns, shard)
        expected = int(columns.shard_size[shard]), int(columns.shard_mtime[shard])
        if is_url(path):
            with remote.opened(self.urls[os.fsdecode(path)], expected) as (_, read_at):
                yield (
                    size,
                    lambda offset, length: read_at(
                        begin + offset, min(length, size - offset)
                    ),
                )
            return
        try:
            # not blocking: a pipe in its place must not stop the run
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            status = os.fstat(file)
            if (status.st_size, status.st_mtime_ns) != expected:
                raise Rejected("its shard has changed since it was scanned")
            yield (
                size,
                lambda offset, length: _pread(
                    file, begin + offset, min(length, size - offset)
                ),
            )
        except OSError as error:
            raise unreadable(path, error) from None
        finally:
            os.close(file)

    def shown(self, index: Any) -> bytes:
        """Return the path of the shard, and the entry's name in it, or its row and name; or of a class."""
        columns = self.columns
        if isinstance(index, bytes):
            return os.fsencode(columns.root) + b":" + index
        path = shard_path(columns, int(columns.shard[index]))
        key = columns.entry(index)
        name = key.removeprefix(os.path.basename(path) + b"/")
        row = int(columns.row[index])
        return (
            path
            + b":"
            + (
                name
                if row < 0
                else b"row %d" % row + (b" " + name if name == key else b"")
            )
        )

    def files(self) -> Sequence[Path]:
        """Return nothing: who scans shards knows them from their Shelf."""
        return []

    def close(self) -> None:
        """Do nothing: no shard stays open."""


def _pread(file: int, offset: int, length: int) -> bytes:
    """Return a range of a file, which one call need not give whole."""
    data = os.pread(file, max(length, 0), offset)
    while len(data) < length and (
        piece := os.pread(file, length - len(data), offset + len(data))
    ):
        data += piece
    return data


class ShardSource(Stored):
    """A contracts.Source of images in shards: sample i is entry i of the container's columns, or keys[i]."""

    def __init__(
        self,
        columns: Any,
        container: Shards,
        keys: Array | None = None,
        read_delay_s: float = 0.0,
    ) -> None:
        super().__init__(columns, container, read_delay_s=read_delay_s)
        self._keys = keys

    def key(self, sample: int) -> int:
        """Return the sample's number in the columns of the shards."""
        return sample if self._keys is None else int(self._keys[sample])


# --- which shards, and what they hold -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The shards of a split: files in its folder, or those that its shards.txt names by their URLs."""

    folder: Path
    names: Sequence[str]  # below the folder, or URLs without a query
    paths: Sequence[Path]  # of all that shows a change
    urls: Mapping[str, str] = field(
        default_factory=dict
    )  # name -> the whole URL; none of files
    heads: Mapping[str, remote.Head] = field(default_factory=dict)  # of URLs
    looks: Sequence[Look] = ()  # of URLs where columns lie beside them

    def packed(self, data: Path, split: str) -> Packed:
        """Return the place of the columns beside these shards."""
        files = [self.folder / name for name in self.names if not is_url(name)]
        place = data / f"{split}.columns" / "images"
        return Packed(folder=place, files=files, remote=self.looks, shelf=self)

    def shown(self, name: str) -> bytes:
        """Return the path of a shard, or its URL."""
        return place_of(self.folder, os.fsencode(name))

    def columns_of_names(self) -> dict[str, Any]:
        """Return the columns of the shards' names."""
        names = list(map(os.fsencode, self.names))
        return {
            "shard_bytes": np.frombuffer(b"".join(names), np.uint8),
            "shard_offsets": np.cumsum([0, *map(len, names)]),
        }


@dataclass(frozen=True, kw_only=True)
class Packed(Beside):
    """Columns beside packed shards, which have other dates in a copy, and other names behind URLs."""

    shelf: Shelf

    def taken(
        self, table: type[S], made: Path, fits: Callable[[S], bool]
    ) -> Sequence[str] | None:
        """Return what Beside does; the copied columns are of the shards as they are here."""
        classes = super().taken(table, made, fits)
        if classes is not None:
            heads, folder = self.shelf.heads, self.shelf.folder
            mtimes = [
                heads[name].number
                if name in heads
                else os.stat(folder / name).st_mtime_ns
                for name in self.shelf.names
            ]
            _save(
                made,
                OF_SHARDS,
                {"shard_mtime": mtimes, **self.shelf.columns_of_names()},
            )
        return classes


def shelf(folder: Path, names: Callable[[Path], Sequence[str]], cache: Path) -> Shelf:
    """Return the shards of a folder, which `names` lists unless it has a shards.txt.

    Heads of those behind URLs are asked for once. Raises UserError.
    """
    urls = urls_of(folder)
    if not urls:
        with reading(folder):
            files = names(folder)
        return Shelf(
            folder=folder,
            names=files,
            paths=[folder, *(folder / name for name in files)],
        )
    columns = (folder.parent / f"{folder.name}.columns").exists()
    told, seen = bucket.described([*urls.values()], cache, looks=columns)
    looks = [
        (name.rpartition("/")[2], head.size, look)
        for name, (head, look) in zip(urls, seen, strict=True)
    ]
    return Shelf(
        folder=folder,
        names=[*urls],
        paths=[folder, folder / bucket.SHARDS, told],
        urls=urls,
        heads={name: head for name, (head, _) in zip(urls, seen, strict=True)},
        looks=looks if columns else (),
    )


def urls_of(folder: Path) -> dict[str, str]:
    """Return name -> URL of the shards in a folder's shards.txt; none without it. Raises UserError."""
    path = folder / bucket.SHARDS
    urls: dict[str, str] = {}
    if not os.path.lexists(path):
        return urls
    with reading(path), open_bytes(path) as file:
        lines = file.read()
    for number, content in bucket.shard_lines(lines):
        line = os.fsdecode(content)
        if not is_url(line):
            shown = printable(content)[:100]
            raise UserError(
                f"--data: {path} line {number} is '{shown}'; each line is the URL of a shard"
            )
        if urls.setdefault(remote.plain(line), line) != line:
            raise UserError(f"--data: {path} line {number} names {masked(line)} again")
    return urls


class Entry(NamedTuple):
    """An image of a shard."""

    name: bytes  # b"" where it has none
    offset: int  # of its first byte
    size: int  # bytes
    label: str | None = None
    row: int = -1  # its number in the shard, where that is what messages call it


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard while it is walked. What a walk leaves out it names by `reject`."""

    path: str | Path  # or the URL
    file: BinaryIO  # at its beginning; may be read and sought as any
    size: int  # bytes
    version: int  # the date of its last change, ns since 1970; of a URL dataset.stores.remote.Head.number
    folder: str = ""  # name of the folder that the shards lie in
    samples: bool = True  # else entries are all images by their names, without labels
    label_key: str | None = None  # what --label-key says
    about: Any = None  # what the kind's `prepare` has returned
    rejects: list[tuple[bytes, str]] = field(default_factory=list)  # (name, why)

    def reject(self, name: bytes, why: str) -> None:
        """Name what is no sample in rejected.txt."""
        self.rejects.append((name, why))


Walk = Callable[[Shard], Iterable[Entry]]
"""A shard -> its images. Raises UserError and OSError."""


class _Walked(NamedTuple):
    """What the walk over one shard has found."""

    size: int
    version: int
    entries: list[Entry]
    rejects: list[tuple[bytes, str]]


class _Ranges(io.RawIOBase):
    """An object behind a URL as a file that can be read and sought."""

    def __init__(self, size: int, read_at: ReadAt) -> None:
        self._size = size
        self._read_at = read_at
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[
            whence
        ]
        self._place = begin + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        data = self._read_at(
            self._place, min(len(buffer), max(self._size - self._place, 0))
        )
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


@contextmanager
def _opened(shelf: Shelf, name: str) -> Iterator[tuple[BinaryIO, int, int]]:
    """Open a shard to walk it: its file, size and version. Raises UserError, Rejected and OSError."""
    if is_url(name):
        head = shelf.heads[name]
        with remote.opened(shelf.urls[name], (head.size, head.number)) as (
            size,
            read_at,
        ):
            yield (
                io.BufferedReader(_Ranges(size, read_at), REMOTE_WINDOW),
                size,
                head.number,
            )
        return
    with open_bytes(shelf.folder / name) as file:
        status = os.fstat(file.fileno())
        yield file, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, kw_only=True)
class Scan:
    """How the shards of one split are walked."""

    shelf: Shelf
    walk: Walk
    mapped: bool = False  # in processes: the system ends one whose mapping of a shard cannot be read
    samples: bool = True
    label_key: str | None = None
    about: Any = None

    def _one(self, name: str) -> _Walked:
        """Walk a shard; where the storage fails it is walked again. Raises UserError and OSError."""
        called = printable(self.shelf.shown(name))
        try:
            with reading(called):
                return storage.in_scan(partial(self._walked, name), lambda: called)
        except Rejected as why:  # an object that is gone, or another one, since its head was asked for
            raise UserError(f"--data: {called}: {why}; start again") from None

    def _walked(self, name: str) -> _Walked:
        with _opened(self.shelf, name) as (file, size, version):
            shard = Shard(
                path=name if is_url(name) else self.shelf.folder / name,
                file=file,
                size=size,
                version=version,
                folder=self.shelf.folder.name,
                samples=self.samples,
                label_key=self.label_key,
                about=self.about,
            )
            return _Walked(size, version, [*self.walk(shard)], shard.rejects)

    def columns(
        self, rejects: Rejects, say: Progress
    ) -> tuple[dict[str, Any], list[str]]:
        """Walk all shards. Return columns of their entries in the order of their names, and the labels.

        Columns are those of Index, and `label`, int32 [n]: the number of a label, -1 = none. Where an entry
        has no name, or two samples have the same and other bytes, each is named by its shard and its own
        name, or its row. Raises UserError.
        """
        shelf, names = self.shelf, self.shelf.names
        walked: list[_Walked] = []
        # this process will fork again: what reads URLs is not to be started in it
        few = (
            not shelf.urls
            and sum(os.path.getsize(shelf.folder / name) for name in names) <= FEW
        )
        threads = few and not self.mapped
        workers = min(len(names), 8 if threads else min(32, max(4 * int(cores()), 1)))
        try:
            with reading(shelf.folder):
                for shard in processes.results(
                    self._one, names, workers, threads=threads
                ):
                    walked.append(shard)
                    say(len(walked), len(names), "reading shards")
        except BrokenProcessPool:
            raise UserError(
                f"--data: a process that reads the shards of {shelf.folder} was killed: {processes.KILLED}; "
                "mend that, and start again"
            ) from None
        for called, shard in zip(map(shelf.shown, names), walked, strict=True):
            for member, why in shard.rejects:
                rejects(called + b":" + member, why)
        rows = [
            (entry.name, place, entry)
            for place, shard in enumerate(walked)
            for entry in shard.entries
        ]
        rows.sort(key=lambda row: row[:2])
        twice = [pair for pair in pairwise(rows) if pair[0][0] == pair[1][0]]
        if self.samples and (
            not all(name for name, _, _ in rows) or not all(map(self._same, twice))
        ):
            bases = [
                name.rpartition("/")[2] for name in names
            ]  # of URLs too, unless two have the same
            own = list(
                map(os.fsencode, bases if len({*bases}) == len(bases) else names)
            )
            rows = [
                (
                    own[place]
                    + b"/"
                    + (entry.name if entry.row < 0 else b"%09d" % entry.row),
                    place,
                    entry,
                )
                for _, place, entry in rows
            ]
            rows.sort(key=itemgetter(0))
        elif twice and not self.samples:
            for _, (member, place, _) in twice:
                rejects(
                    shelf.shown(names[place]) + b":" + member,
                    "this name was there before",
                )
            rows = [next(same) for _, same in groupby(rows, key=itemgetter(0))]
        number_of: dict[str, int] = {}
        labels = [
            -1
            if row[2].label is None
            else number_of.setdefault(row[2].label, len(number_of))
            for row in rows
        ]
        columns = {
            "path_offsets": np.cumsum([0, *(len(row[0]) for row in rows)]),
            "path_bytes": np.frombuffer(b"".join(row[0] for row in rows), np.uint8),
            "size": np.array([row[2].size for row in rows], np.int64),
            "offset": np.array([row[2].offset for row in rows], np.int64),
            "shard": np.array([row[1] for row in rows], np.int32),
            "row": np.array([row[2].row for row in rows], np.int64),
            "label": np.array(labels, np.int32),
            **shelf.columns_of_names(),
            "shard_size": np.array([shard.size for shard in walked], np.int64),
            "shard_mtime": np.array([shard.version for shard in walked], np.int64),
        }
        return columns, [*number_of]

    def _same(
        self, pair: tuple[tuple[bytes, int, Entry], tuple[bytes, int, Entry]]
    ) -> bool:
        """Whether two rows have the same bytes, as where one file was packed twice: then one name will do."""
        contents = []
        for _, place, entry in pair:
            if entry.row < 0 or pair[0][2].size != entry.size:
                return False
            path = self.shelf.folder / self.shelf.names[place]
            with reading(path), open_bytes(path) as file:
                file.seek(entry.offset)
                contents.append(file.read(entry.size))
        return contents[0] == contents[1]


def _save(
    made: Path,
    dtypes: Mapping[str, np.dtype[Any]],
    values: Mapping[str, Any],
    ahead: str = "",
) -> None:
    for name in dtypes.keys() & values.keys():
        np.save(made / f"{ahead}{name}.npy", np.asarray(values[name], dtypes[name]))


# --- a split of images with a label -------------------------------------------------------------------------


class _Listing:
    """The images of a scan under way: dataset.scan.byte_ranges.Entries by their number, and their list."""

    def __init__(
        self,
        scan: Scan,
        container: Callable[[Any, Mapping[str, str]], Shards],
        classes: Sequence[str] | None,
        named: Sequence[str] | None,
        words: tuple[str, str],
        check: Callable[[list[bytes]], None] | None,
    ) -> None:
        self.by_index = True
        self.remote = bool(scan.shelf.urls)
        self.numbers = named is not None
        self._scan = scan
        self._container = container
        self._classes = classes
        self._named = named
        self.grammar = Grammar(expected=words[0])
        self._without = words[1]
        self._check = check
        self._shards = container(
            SimpleNamespace(root=scan.shelf.folder), scan.shelf.urls
        )

    def opened(self, index: Any) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open the entry of that number in the list."""
        return self._shards.opened(index)

    def shown(self, index: Any) -> bytes:
        """Return what rejected.txt calls an entry, or a class."""
        return self._shards.shown(index)

    def place(self, line: int) -> str:
        """Return where a sample lies, for dataset.scan.lists.Labels: a line is a sample."""
        return printable(self.shown(line))

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a sample."""
        return UserError(f"--data: {self.place(line)} {what}")

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        """Add what shows a change of shards."""
        file_tree.remember_paths(
            visits, self._scan.shelf.folder, self._scan.shelf.paths
        )

    def _take(self, columns: Mapping[str, Any]) -> list[bytes]:
        """Take these columns for the entries that are read, and return their names."""
        names = _names(columns)
        located = SimpleNamespace(
            root=self._scan.shelf.folder, entry=names.__getitem__, **columns
        )
        self._shards = self._container(located, self._scan.shelf.urls)
        return names

    def __call__(
        self, made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        """Walk the shards; write made/file_list.* of the samples with a label; return {class: label}."""
        self.remember(visits, [])
        columns, words = self._scan.columns(rejects, say)
        names = self._take(columns)
        if self._check is not None:
            self._check(names)
        label = columns["label"]
        labels = Labels(self)
        numbers, firsts = np.unique(label, return_index=True)
        first = dict(zip(numbers.tolist(), firsts.tolist(), strict=True))
        for number, word in enumerate(words):
            labels.number(word, first[number])
        used: Sequence[str] = []
        class_of = np.zeros(0, np.int32)
        if words:
            used, class_of, _ = labels.classes(self._classes, self._named)
        # numbers of classes are taken as they stand, whether or not each has a sample
        self.numbers = self._named is not None or all(map(str.isdecimal, words))
        good = np.flatnonzero(label >= 0)
        for index in np.flatnonzero(label < 0).tolist():
            rejects(self._shards.shown(index), self._without)
        with file_tree.FileList(made) as files:
            for begin in range(0, len(good), PIECE):
                part = good[begin : begin + PIECE]
                files.add(
                    [names[index] for index in part.tolist()], class_of[label[part]]
                )
        _save(made, OF_SHARDS, columns)
        of_good = {name: columns[name][good] for name in (*OF_ENTRIES, "size")}
        _save(made, OF_ENTRIES, of_good, "file_list.")
        if len(good) < len(names):
            kept = [names[index] for index in good.tolist()]
            ends = np.cumsum([0, *map(len, kept)])
            paths = {
                "path_bytes": np.frombuffer(b"".join(kept), np.uint8),
                "path_offsets": ends,
            }
            self._take({**columns, **of_good, **paths})
        return {name: label for label, name in enumerate(used)}


def _names(columns: Mapping[str, Any]) -> list[bytes]:
    """Return the names of all entries of these columns."""
    blob = columns["path_bytes"].tobytes()
    return [
        blob[begin:end] for begin, end in pairwise(columns["path_offsets"].tolist())
    ]


def open_shards(
    data: Path,
    split: str,
    scan: Scan,
    *,
    key: list[Any],
    where: str,
    named: Sequence[str] | None = None,
    expected: str = "a label is the number of a class, or its name",
    without: str = "no label",
    check: Callable[[list[bytes]], None] | None = None,
    container: Callable[[Any, Mapping[str, str]], Shards] = Shards,
    classes: Sequence[str] | None = None,
    cache: Path,
    rescan: bool = False,
    max_pixels: int = MAX_PIXELS,
    progress: Progress | None = None,
    read_delay_s: float = 0.0,
) -> Split:
    """Open the images with a label of one split's shards.

    `named` are the names of classes that are numbers, or the order of all; `expected` and `without` say in
    words what a label is, and why an image has none. `check` is given all names, and may raise UserError.
    `container` reads the bytes. `key`, `where` and what follows are as for dataset.images.scan.open_images
    and dataset.stores.SourceModule. Raises UserError.
    """
    listing = _Listing(scan, container, classes, named, (expected, without), check)
    columns = open_images(
        data,
        listing,
        listing,
        key=[*key, named],
        where=where,
        root=scan.shelf.folder,
        table=ShardImages,
        classes=classes,
        listed=lambda: listing.numbers,
        beside=scan.shelf.packed(data, split),
        cache=cache,
        rescan=rescan,
        max_pixels=max_pixels,
        progress=progress,
    )
    source = ShardSource(
        columns, container(columns, scan.shelf.urls), read_delay_s=read_delay_s
    )
    return Split(columns=columns, source=source)


# --- a store ------------------------------------------------------------------------------------------------


class NamedShards(Shards):
    """All images of a split's shards by name, for annotations that name them."""

    def __init__(self, scan: Callable[[], Scan], key: list[Any], cache: Path) -> None:
        self._scan = scan
        self._key = key
        self._cache = cache

    @cached_property
    def scan(self) -> Scan:
        """Return the shards that are there. Raises UserError."""
        return self._scan()

    @cached_property
    def urls(self) -> Mapping[str, str]:  # type: ignore[override]
        """Return the whole URL of each shard that lies behind one, by its name."""
        return self.scan.shelf.urls

    @cached_property
    def columns(self) -> Index:
        """Return where all images lie, from the cache when no shard has changed since. Raises UserError."""
        shelf = self.scan.shelf

        def fill(
            made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
        ) -> Sequence[str]:
            file_tree.remember_paths(visits, shelf.folder, shelf.paths)
            _save(made, Index.COLUMNS, self.scan.columns(rejects, say)[0])
            return ()

        key = [str(shelf.folder), *self._key]
        how: dict[str, Any] = {"cache": self._cache, "rescan": False, "progress": None}
        return remembered(Index, shelf.folder, key, fill, root=shelf.folder, **how)

    @cached_property
    def places(self) -> dict[bytes, int]:
        """Return the number of each image by its name. Raises UserError."""
        names = _names(vars(self.columns))
        return dict(zip(names, range(len(names)), strict=True))

    @contextmanager
    def opened(self, key: Any) -> Iterator[tuple[int, ReadAt]]:
        """Open the image of a name. Raises Rejected."""
        with super().opened(self.places.get(key, -1)) as opened:
            yield opened

    def shown(self, key: Any) -> bytes:
        """Return what messages call the image of a name."""
        return super().shown(self.places.get(key, key))

    def files(self) -> Sequence[Path]:
        """Return what shows a change of shards. Raises UserError."""
        _ = self.places  # here, since a walk starts processes, which a worker may not
        return self.scan.shelf.paths


class ShardStore:
    """A store of shards of one kind: a dataset.stores.SourceModule around the kind's module.

    The module has `ENDING`, of shards' names, and `walk(shard)`, which yields an Entry for each image. It may
    have `HOLDS`, `EXPECTED`, `MAPPED` (see Scan), `find(data, split)`, which returns a Shelf or None,
    `readable(folder, names)`, which raises UserError for what lies there and cannot be read,
    `prepare(path, label_key)`, whose result each walk of the split has as shard.about, and the names of
    classes as its `classes`, and `without(label_key, about)`: why an image has no label.
    """

    FILES = False
    LABELS = "label_key"

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        self.kind = kind
        self.ending: str = kind.ENDING
        self.HOLDS: str = getattr(
            kind,
            "HOLDS",
            f"a folder with {name} shards, train/*{self.ending} and val/*{self.ending}, or train/shards.txt "
            "with their URLs",
        )

    def _names(self, folder: Path) -> list[str]:
        """Return the sorted names of the shards in a folder. Raises UserError and OSError."""
        names = file_tree.names_below(folder)
        if hasattr(self.kind, "readable"):
            self.kind.readable(folder, names)
        return [
            name
            for name in names
            if name.endswith(self.ending) and not name.startswith(".")
        ]

    def missing(self, data: Path, split: str) -> str:
        """Return what is not there: shards in a folder of that name; `open` says which of several are."""
        there: object = None
        try:
            if hasattr(self.kind, "find"):
                there = storage.in_scan(
                    partial(self.kind.find, data, split), lambda: str(data)
                )
            elif urls := urls_of(data / split):
                there = (
                    any(name.endswith(self.ending) for name in urls)
                    or self.ending == ".tar"
                )
            else:
                with suppress(OSError):
                    there = self._names(data / split)
        except storage.StorageFault:
            raise
        except UserError:
            there = not hasattr(self.kind, "find")
        return "" if there else f"{split}/*{self.ending}"

    def _shelf(self, data: Path, split: str, cache: Path) -> Shelf:
        if not hasattr(self.kind, "find"):
            return shelf(data / split, self._names, cache)
        there: Shelf | None = storage.in_scan(
            partial(self.kind.find, data, split), lambda: str(data)
        )
        if there is None:
            raise UserError(
                f"--data {data}: has no {split}/*{self.ending}; it must be {self.HOLDS}"
            )
        return there

    def _scan(
        self,
        data: Path,
        split: str,
        cache: Path,
        *,
        samples: bool,
        label_key: str | None,
    ) -> Scan:
        shelf = self._shelf(data, split, cache)
        about = None
        if hasattr(self.kind, "prepare"):
            path = shelf.folder / shelf.names[0]
            with reading(path):
                about = storage.in_scan(
                    partial(self.kind.prepare, path, label_key), lambda: str(path)
                )
        mapped = getattr(self.kind, "MAPPED", False)
        return Scan(
            shelf=shelf,
            walk=self.kind.walk,
            mapped=mapped,
            samples=samples,
            label_key=label_key,
            about=about,
        )

    def open(
        self,
        data: Path,
        split: str,
        *,
        classes: Sequence[str] | None = None,
        cache: Path,
        rescan: bool = False,
        max_pixels: int = MAX_PIXELS,
        progress: Progress | None = None,
        read_delay_s: float = 0.0,
        labels: str | None = None,
    ) -> Split:
        """Open the images of a split, as dataset.stores.SourceModule says.

        `labels` is what --label-key says: where a shard has the labels. Raises UserError.
        """
        real = Path(os.path.realpath(data))
        scan = self._scan(real, split, cache, samples=True, label_key=labels)
        folder = scan.shelf.folder
        without = getattr(self.kind, "without", lambda *_: "no label")
        return open_shards(
            real,
            split,
            scan,
            key=[
                f"{self.name} 3",
                split,
                labels,
            ],  # another number for another rule of what is a sample
            where=f"{folder}/*{self.ending}",
            named=getattr(scan.about, "classes", None)
            or class_names(folder, real, real / "train"),
            expected=getattr(
                self.kind, "EXPECTED", "a label is the number of a class, or its name"
            ),
            without=without(labels, scan.about),
            classes=classes,
            cache=cache,
            rescan=rescan,
            max_pixels=max_pixels,
            progress=progress,
            read_delay_s=read_delay_s,
        )

    def _named(self, data: Path, split: str, cache: Path) -> NamedShards:
        scan = partial(self._scan, data, split, cache, samples=False, label_key=None)
        return NamedShards(scan, [f"{self.name} 3", split], cache)

    def keep(self, columns: Images, data: Path, split: str, cache: Path) -> None:
        """Save columns of a split next to it, in their order, with the places of its entries of these names.

        Nothing but the shards' own headers is read: the images have been scanned where they were packed from.
        Raises UserError and OSError.
        """
        scan = self._scan(data, split, cache, samples=True, label_key=None)
        located, _ = scan.columns(Rejects(io.StringIO()), lambda *_: None)
        number_of = {name: number for number, name in enumerate(_names(located))}
        names = _names(vars(columns))
        if lost := [name for name in names if name not in number_of]:
            raise UserError(
                f"{data}: {split} was not written with '{printable(lost[0])}'; try again"
            )
        numbers = np.array([number_of[name] for name in names], np.int64)
        more = {name: located[name][numbers] for name in OF_ENTRIES}
        more |= {name: located[name] for name in OF_SHARDS}
        scan.shelf.packed(data, split).keep(ShardImages, columns, more)

    def entries(self, data: Path, cache: Path) -> StoredEntries:
        """Return the images of COCO's annotations: train2017/<file_name> is an entry of that split."""
        far = any((folder / bucket.SHARDS).exists() for folder in data.iterdir())
        return StoredEntries(
            data, lambda split: self._named(data, split, cache), remote=far
        )

    def source(self, columns: Any, read_delay_s: float = 0.0) -> Stored:
        """Return the bytes of the entries that the columns of COCO's images name."""
        split = split_of(columns)
        # beside the columns: the scan has left the index there
        named = self._named(columns.root, split, columns.folder.parent.parent)
        prefix = os.fsencode(split) + b"/"
        names = _names(vars(columns))
        keys = np.array(
            [named.places.get(name.removeprefix(prefix), -1) for name in names],
            np.int64,
        )
        return ShardSource(
            columns, Shards(named.columns, named.urls), keys, read_delay_s
        )
