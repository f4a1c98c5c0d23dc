"""What stores share whose samples are entries of larger files: where each lies, its bytes, its label."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from contracts import Array, Split, UserError
from dataset.images.columns import Images
from dataset.images.scan import open_images
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt, unreadable
from dataset.scan.cache import Progress, reading, remembered
from dataset.scan.lists import Grammar, Labels
from dataset.scan.manifest import Manifest, Rejected, Rejects, is_url, printable
from dataset.scan.packed_columns import Beside
from dataset.stores import remote
from dataset.stores.disk_cache import Kept
from dataset.stores.folder import MEND
from system import processes, storage
from system.resources import cores
from system.user_files import open_bytes, read_text


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


FEW = 64 << 20
"""Bytes of shards that threads have walked before processes have started."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Index(Manifest):
    """n entries of the shards of one split, in the order of their names' bytes. `classes` are the labels."""

    VERSION: ClassVar[str] = "shards 1"
    COLUMNS: ClassVar[dict[str, np.dtype[Any]]] = {
        "path_bytes": np.dtype("u1"),
        "path_offsets": np.dtype("i8"),
        "size": np.dtype("i8"),
        "offset": np.dtype("i8"),
        "shard": np.dtype("i4"),
        "label": np.dtype("i4"),
        "row": np.dtype("i8"),
        "shard_bytes": np.dtype("u1"),
        "shard_offsets": np.dtype("i8"),
        "shard_size": np.dtype("i8"),
        "shard_mtime": np.dtype("i8"),
    }
    FINGERPRINT: ClassVar[tuple[str, ...]] = ("path_bytes", "path_offsets", "size", "label")
    RAGGED: ClassVar[dict[str, tuple[str, ...]]] = {
        "path_offsets": ("path_bytes",),
        "shard_offsets": ("shard_bytes",),
    }

    offset: Array  # int64 [n], of the entry's first byte in its shard
    shard: Array  # int32 [n]
    label: Array  # int32 [n], index into classes; -1 = none
    row: Array  # int64 [n], number in its shard; -1 = an entry is called by its name
    shard_bytes: Array  # uint8 [bytes of all shards' names]
    shard_offsets: Array  # int64 [shards + 1]
    shard_size: Array  # int64 [shards], bytes
    shard_mtime: Array  # int64 [shards], ns since 1970; of URLs dataset.stores.remote.Head.number

    def find(self, name: bytes) -> int:
        """Return the place of the entry of that name; -1 where there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self.entry(low) == name else -1

    def shard_path(self, shard: int) -> bytes:
        """Return the absolute path of a shard, or its URL."""
        begin, end = self.shard_offsets[shard : shard + 2].tolist()
        return place_of(self.root, self.shard_bytes[begin:end].tobytes())


class Entry(NamedTuple):
    """An image of a shard."""

    name: bytes  # b"" where it has none
    offset: int  # of its first byte
    size: int  # bytes
    label: str | None
    row: int = -1  # its number in the shard, where that is what messages call it


class Shard(NamedTuple):
    """What the walk over one shard has found."""

    size: int  # bytes
    mtime: int  # ns since 1970; of a URL dataset.stores.remote.Head.number
    entries: list[Entry]
    rejects: list[tuple[bytes, str]]  # (name of a member, why)


Walk = Callable[[str], Shard]
"""Name of a shard -> what it holds. Raises UserError and OSError."""


_Row = tuple[bytes, int, Entry]
"""Name, place of its shard, entry."""


def place_of(root: Path, shard: bytes) -> bytes:
    """Return the path of a shard below `root`, or its URL."""
    return shard if is_url(shard) else os.fsencode(root) + b"/" + shard


def open_index(
    root: Path,
    names: Callable[[list[file_tree.Visit]], list[str]],
    walked: Walk,
    *,
    key: list[Any],
    samples: bool,
    mapped: bool = False,
    packed: Beside | None = None,
    mtime_of: Callable[[str], int] | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Progress | None = None,
) -> Index:
    """Return the index of shards below `root`, from `cache` when none has changed since.

    `names(visits)` lists them, and adds what shows a change; `key` (JSON values) is what the walk depends on
    beside them. Entries are the images of `samples`, with their labels, or all images by their names. Where
    one has no name, or two samples have the same and other bytes, each is named by its shard and its own
    name, or its row.
    Shards that are `mapped` are walked in processes: the system ends one whose mapping cannot be read.
    The columns `packed` beside these shards are taken in place of a walk; `mtime_of` a shard's name is
    then what the index keeps of it. Raises UserError.
    """

    def fill(made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress) -> Sequence[str]:
        shards = names(visits)
        if packed is not None and mtime_of is not None and not rescan:
            taken = packed.taken(Index, made, lambda _: True)
            if taken is not None:  # a copy has other dates, and other names behind URLs
                _save(made, {"shard_mtime": list(map(mtime_of, shards)), **_names(shards)})
                return taken
        found = []
        # this process will fork again: what reads URLs is not to be started in it
        threads = not mapped and not any(map(is_url, shards)) and _bytes(root, shards) <= FEW
        workers = min(len(shards), 8 if threads else min(32, max(4 * int(cores()), 1)))
        work = partial(_walked, walked, root)
        try:
            with reading(root):
                for shard in processes.results(work, shards, workers, threads=threads):
                    found.append(shard)
                    say(len(found), len(shards), "reading shards")
        except BrokenProcessPool:
            raise UserError(
                f"--data: a process that reads the shards of {root} was killed: {processes.KILLED}; "
                "mend that, and start again"
            ) from None
        for name, shard in zip(shards, found, strict=True):
            for member, why in shard.rejects:
                rejects(place_of(root, os.fsencode(name)) + b":" + member, why)
        return _write(root, shards, found, made, rejects, samples=samples)

    return remembered(
        Index, root, [str(root), *key], fill, root=root, cache=cache, rescan=rescan, progress=progress
    )


def _walked(walked: Walk, root: Path, name: str) -> Shard:
    """Return what a shard holds; where the storage fails it is walked again. Raises UserError and OSError."""
    called = printable(place_of(root, os.fsencode(name)))
    try:
        return storage.in_scan(partial(walked, name), lambda: called)
    except Rejected as why:  # an object that is gone, or another one, since its head was asked for
        raise UserError(f"--data: {called}: {why}; start again") from None


def _write(
    real: Path,
    shards: list[str],
    walked: list[Shard],
    made: Path,
    rejects: Rejects,
    *,
    samples: bool,
) -> list[str]:
    """Write the columns of all shards, and return the labels."""
    rows = [(entry.name, place, entry) for place, shard in enumerate(walked) for entry in shard.entries]
    rows.sort(key=lambda row: row[:2])
    twice = [pair for pair in pairwise(rows) if pair[0][0] == pair[1][0]]
    if samples and (
        not all(name for name, _, _ in rows) or not all(_same(real, shards, *pair) for pair in twice)
    ):
        bases = [name.rpartition("/")[2] for name in shards]  # of URLs too, unless two have the same
        own = bases if len({*bases}) == len(bases) else shards
        rows = [(_apart(own[place], entry), place, entry) for _, place, entry in rows]
        rows.sort(key=lambda row: row[0])
    elif twice and not samples:
        for _, (name, place, _) in twice:
            shard = place_of(real, os.fsencode(shards[place]))
            rejects(shard + b":" + name, "this name was there before")
        rows = [next(same) for _, same in groupby(rows, key=itemgetter(0))]
    number_of: dict[str, int] = {}
    labels = [
        -1 if row[2].label is None else number_of.setdefault(row[2].label, len(number_of)) for row in rows
    ]
    values: dict[str, Any] = {
        "path_offsets": np.cumsum([0, *(len(row[0]) for row in rows)]),
        "path_bytes": np.frombuffer(b"".join(row[0] for row in rows), np.uint8),
        "size": [row[2].size for row in rows],
        "offset": [row[2].offset for row in rows],
        "shard": [row[1] for row in rows],
        "label": labels,
        "row": [row[2].row for row in rows],
        **_names(shards),
        "shard_size": [shard.size for shard in walked],
        "shard_mtime": [shard.mtime for shard in walked],
    }
    _save(made, values)
    return list(number_of)


def _same(root: Path, shards: Sequence[str], one: _Row, other: _Row) -> bool:
    """Whether two rows have the same bytes, as where one file was packed twice: then one name will do."""
    contents = []
    for _, place, entry in (one, other):
        if entry.row < 0 or one[2].size != other[2].size:
            return False
        with reading(root / shards[place]), open_bytes(root / shards[place]) as file:
            file.seek(entry.offset)
            contents.append(file.read(entry.size))
    return contents[0] == contents[1]


def _bytes(root: Path, shards: Sequence[str]) -> int:
    return sum(os.path.getsize(root / name) for name in shards)


def _names(shards: Sequence[str]) -> dict[str, Any]:
    """Return the columns of the shards' names."""
    names = list(map(os.fsencode, shards))
    return {
        "shard_bytes": np.frombuffer(b"".join(names), np.uint8),
        "shard_offsets": np.cumsum([0, *map(len, names)]),
    }


def _save(made: Path, values: dict[str, Any]) -> None:
    for column, value in values.items():
        np.save(made / f"{column}.npy", np.asarray(value, Index.COLUMNS[column]))


def _apart(shard: str, entry: Entry) -> bytes:
    """Return a name that no entry of another shard has."""
    own = entry.name if entry.row < 0 else b"%09d" % entry.row
    return os.fsencode(shard) + b"/" + own


PIECE = 10_000
"""Samples that are written together: bounds the memory."""


class Shards:
    """The images of the shards that `open_index` finds: a dataset.stores.shards.Container, but for `files`.

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
