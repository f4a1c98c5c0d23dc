"""Stores of shards, files that hold many samples each: all but how one shard is walked.

    find     the shards of a split: files of its folder, or URLs in its shards.txt
    walk     each of them once, before training -> name, offset, size and label of every image
    columns  in the order of the names, with `shard` and `offset` beside `size`: ShardImages
    read     one range of a shard, by the columns alone; a shard that has changed by then is refused

A kind of shards is a module whose `KIND` is a ShardKind, and a line in dataset.stores.SOURCES.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol, Unpack

import numpy as np

from saturate.contracts import Array, Split, UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.images.scan import open_images
from saturate.dataset.scan import file_tree
from saturate.dataset.scan import names as named
from saturate.dataset.scan.byte_ranges import Entries, RangeFile, ReadAt, unreadable
from saturate.dataset.scan.cache import Options, reading
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.lists import Grammar, Labels, class_names
from saturate.dataset.scan.manifest import (
    Rejected,
    is_url,
    masked,
    printable,
    writing,
)
from saturate.dataset.stores import bucket, remote
from saturate.dataset.stores.entries import EntrySource
from saturate.system import processes, storage
from saturate.system.resources import cores
from saturate.system.urls import bare, whole
from saturate.system.user_files import NOT_REGULAR, open_bytes

FEW = 64 << 20
"""Bytes of shards that threads have walked before processes have started."""
WINDOW = 8 << 10
REMOTE_WINDOW = 1 << 20
"""Bytes that a walk asks for at once: an answer of a server takes as long as some hundred KiB."""


# --- which shards -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShardList:
    """The shards of a split, in the order by which columns number them: files of a folder, or URLs."""

    folder: Path
    names: Sequence[str]  # below the folder, or bare URLs
    # of each its bytes, and ns since 1970 of its last change or the number of its ETag
    versions: Sequence[tuple[int, int]]
    watched: Sequence[Path]  # files and folders that show a change
    # name -> the whole URL; none of files
    urls: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_files(
        cls, folder: Path, names: Sequence[str], *about: Path
    ) -> ShardList | None:
        """Return the shards of these names, None for no name; `about` are files that say more of them.

        Raises OSError.
        """
        states = [os.stat(folder / name) for name in names]
        if not names:
            return None
        for name, state in zip(names, states, strict=True):
            if not stat.S_ISREG(state.st_mode):
                raise UserError(f"--data: {folder / name} is {NOT_REGULAR}")
        return cls(
            folder=folder,
            names=names,
            versions=[(state.st_size, state.st_mtime_ns) for state in states],
            watched=[folder, *about, *(folder / name for name in names)],
        )

    @classmethod
    def of_urls(cls, folder: Path, urls: Mapping[str, str]) -> ShardList:
        """Return the shards behind these URLs, whose heads are asked for. Raises UserError."""
        heads = bucket.heads_of(tuple(urls.values()))
        return cls(
            folder=folder,
            names=[*urls],
            versions=[(head.size, head.number) for head in heads],
            watched=[folder, folder / bucket.SHARDS],
            urls=urls,
        )

    @property
    def ordered(self) -> bool:
        """Whether samples keep the order in which they lie: bucket.ORDER says so."""
        return (self.folder / bucket.ORDER).exists()

    @property
    def comparable(self) -> bool:
        """Whether versions tell these bytes from others of the same size: a server's date alone does not."""
        return not self.urls or all(number > 0 for _, number in self.versions)

    def path(self, shard: int) -> bytes:
        """Return the path of a shard, or its URL."""
        name = os.fsencode(self.names[shard])
        return name if self.urls else os.fsencode(self.folder) + b"/" + name

    @contextmanager
    def opened(self, shard: int) -> Iterator[ReadAt]:
        """Open a shard. Raises Rejected where it is gone or has changed, and OSError.

        It is opened for each read: there may be more shards than a process may have open.
        """
        version = self.versions[shard]
        if self.urls:
            with remote.opened(self.urls[self.names[shard]], version) as read_at:
                yield read_at
            return
        path = self.path(shard)
        with ExitStack() as stack:
            try:
                file = stack.enter_context(open_bytes(path)).fileno()
            except OSError as error:
                raise unreadable(path, error) from None
            status = os.fstat(file)
            if (status.st_size, status.st_mtime_ns) != version:
                raise Rejected("its shard has changed since it was scanned")
            yield lambda offset, length: os.pread(file, length, offset)

    @contextmanager
    def opened_entry(
        self, shard: int, begin: int, size: int, *, ahead: ReadAt | None = None
    ) -> Iterator[tuple[int, ReadAt]]:
        """Open an entry by its place: its size, and what reads a range of it. Raises what `opened` does.

        `ahead` reads ranges of the shard instead.
        """
        with self.opened(shard) as read_at:
            of_shard = ahead or read_at
            yield (
                size,
                lambda offset, length: of_shard(
                    begin + offset, max(min(length, size - offset), 0)
                ),
            )

    def shown(self, shard: int, name: bytes) -> bytes:
        """Return the path or URL of a shard, and the name of its entry."""
        path = self.path(shard)
        # a name may begin with its shard, where names alone are not one each
        base = path.rpartition(b"/")[2] + b"/"
        return path + b":" + name.removeprefix(base)


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
        is_file = line.startswith(("file:", "local:"))
        if not is_url(line) or is_file or bare(line) in urls:
            raise UserError(
                f"--data: {path} line {number} is '{masked(line)[:100]}'; each line is the URL of a shard on a "
                "server, once"
            )
        # whole, for a process that this one does not fork
        urls[bare(line)] = whole(line)
    return urls


# --- what they hold -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardImages(Images):
    """n images with a label, and where each lies. Their fingerprint is that of the same images as files."""

    VERSION = f"{Images.VERSION} in shards 1"
    COLUMNS = Images.COLUMNS | {"shard": "i4", "offset": "i8"}
    EXTRA = ("shard", "offset")

    shard: Array  # int32 [n], its number in the ShardList
    offset: Array  # int64 [n], of the entry's first byte in its shard


class ShardSource(EntrySource):
    """A contracts.Source of images in shards."""

    columns: ShardImages

    def __init__(
        self, columns: ShardImages, shards: ShardList, read_delay_s: float = 0.0
    ) -> None:
        super().__init__(columns, read_delay_s)
        self.shards = shards
        self.remote = bool(shards.urls)

    def shown(self, sample: int) -> bytes:
        """Return the path or URL of the sample's shard, and the sample's name."""
        shard = int(self.columns.shard[sample])
        return self.shards.shown(shard, self.columns.entry(sample))

    def version(self, sample: int) -> bytes:
        """Return what tells the bytes of an entry from others; b"" where a server says too little for that."""
        shard, *place = self._place(sample)
        if self.shards.versions[shard][1] <= 0:
            return b""
        path = self.shards.path(shard)
        return path + b"?%d-%d-%d-%d" % (*self.shards.versions[shard], *place)

    def open_entry(self, sample: int) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected where its shard is gone or has changed."""
        return self.shards.opened_entry(*self._place(sample))

    def _place(self, sample: int) -> tuple[int, int, int]:
        columns = self.columns
        places = (columns.shard, columns.offset, columns.size)
        shard, offset, size = (int(column[sample]) for column in places)
        return shard, offset, size


class Entry(NamedTuple):
    """An image of a shard."""

    name: bytes  # b"" where it has none
    offset: int  # of its first byte
    size: int  # bytes
    label: str
    # its number in the shard, by which it is named where others have its name; -1 where none there may have it
    row: int = -1


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard while it is walked. What a walk leaves out it names by `reject`."""

    path: Path | str  # or the URL
    file: BinaryIO  # at its beginning; may be read and sought as any
    size: int  # bytes
    label_key: str | None = None  # what --label-key says
    about: About | None = None  # what the kind's `prepare` has returned
    rejects: list[tuple[bytes, str]] = field(default_factory=list)  # (name, why)

    def reject(self, name: bytes, why: str) -> None:
        """Name what is no sample in rejected.txt."""
        self.rejects.append((name, why))


class About(Protocol):
    """What the shards of a split have in common."""

    @property
    def classes(self) -> Sequence[str] | None:
        """Return the names of the classes, where shards have them."""


@dataclass(frozen=True, kw_only=True)
class ShardKind:
    """A kind of shards: how one is walked, and where it differs from others."""

    ending: str  # of shards' names
    walk: Callable[[Shard], Iterator[Entry]]
    holds: str = ""  # what --data must be, in words that follow "it must be"
    mapped: bool = False  # a walk maps its shard, and is therefore done in a process
    # (data, split) -> its shards; such a kind opens files, and reads no shards.txt
    find: Callable[[Path, str], ShardList | None] | None = None
    # (shards, what --label-key says) -> what each walk has as `shard.about`
    prepare: Callable[[ShardList, str | None], About] | None = None


Row = tuple[bytes, int, Entry]
"""Name of a sample, number of its shard, where it lies."""


@dataclass(eq=False, kw_only=True)
class _Listing(Entries):
    """A scan under way: its FileLister, and its images, dataset.scan.byte_ranges.Entries by their number."""

    by_index = True
    grammar: ClassVar[Grammar] = Grammar(
        expected="a label is the number of a class, or its name"
    )

    kind: ShardKind
    shards: ShardList
    about: About | None  # what the kind's `prepare` has returned
    label_key: str | None = None
    classes: Sequence[str] | None = None
    named: Sequence[str] | None = None
    listed: bool = False
    # of each image its name, and int64 [n, 3]: its shard, first byte and bytes
    _names: Sequence[bytes] = ()
    _places: Array = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    # of a process that reads URLs: a shard, the place in it of some bytes, and these
    _held: tuple[int, int, bytes] = (-1, 0, b"")

    def __post_init__(self) -> None:
        self.remote = bool(self.shards.urls)

    @contextmanager
    def opened(self, index: Any) -> Iterator[tuple[int, ReadAt]]:
        """Open the entry of that number in the list."""
        place, *following = self._places[index : index + 2].tolist()
        shard, begin, _ = place
        is_near = self.remote and any(
            other == shard and 0 < behind - begin < REMOTE_WINDOW // 4
            for other, behind, _ in following
        )
        ahead = partial(self._ahead, shard) if is_near else None
        with self.shards.opened_entry(*place, ahead=ahead) as opened:
            yield opened

    def _ahead(self, shard: int, begin: int, length: int) -> bytes:
        """Return a range of a shard behind a URL; one request brings what the next entries need, too."""
        held, first, data = self._held
        if held != shard or not first <= begin <= begin + length <= first + len(data):
            with self.shards.opened(shard) as read_at:
                first, data = begin, read_at(begin, max(length, REMOTE_WINDOW))
            self._held = shard, first, data
        return data[begin - first :][:length]

    def shown(self, index: bytes | int) -> bytes:
        """Return what rejected.txt calls an entry, or a class."""
        if isinstance(index, bytes):
            return index
        return self.shards.shown(self._places[index, 0], self._names[index])

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a sample, for dataset.scan.lists.Labels: a line is a sample."""
        return UserError(f"--data: {printable(self.shown(line))} {what}")

    def __call__(self, scan: Scan) -> dict[str, int]:
        """Walk the shards; write made/file_list.* of their images; return {class: label}."""
        scan.remember(*self.shards.watched)
        rows = self.rows(scan)
        names = self._names = [name for name, _, _ in rows]
        places = [(shard, entry.offset, entry.size) for _, shard, entry in rows]
        self._places = np.array(places, np.int64).reshape(-1, 3)
        with writing():
            for column, values in zip(ShardImages.EXTRA, self._places.T, strict=False):
                np.save(scan.made / f"file_list.{column}.npy", values)
        labels = Labels(self)
        numbers = [labels.number(row[2].label, line) for line, row in enumerate(rows)]
        used: Sequence[str] = ()
        if rows:
            used, class_of, self.listed = labels.classes(self.classes, self.named)
            numbers = class_of[numbers].tolist()
        file_tree.write_file_list(scan.made, [(names, numbers)])
        return {name: label for label, name in enumerate(used)}

    @contextmanager
    def _reading(self, shard: int) -> Iterator[None]:
        """Raise what reading a shard raises as a UserError that names it."""
        called = printable(self.shards.path(shard))
        try:
            with reading(called):
                yield
        except Rejected as why:
            raise UserError(f"--data: {called}: {why}; start again") from None

    def _one(self, shard: int) -> tuple[list[Entry], list[tuple[bytes, str]]]:
        """Return the entries of a shard, and what it has left out. Raises UserError."""
        with self._reading(shard):
            called = printable(self.shards.path(shard))
            return storage.in_scan(partial(self._walked, shard), lambda: called)

    def _walked(self, number: int) -> tuple[list[Entry], list[tuple[bytes, str]]]:
        shards = self.shards
        path = os.fsdecode(shards.path(number))
        size = shards.versions[number][0]
        window = REMOTE_WINDOW if shards.urls else WINDOW
        with shards.opened(number) as read_at:
            shard = Shard(
                path=path if shards.urls else Path(path),
                file=io.BufferedReader(RangeFile(size, read_at), window),
                size=size,
                label_key=self.label_key,
                about=self.about,
            )
            return [*self.kind.walk(shard)], shard.rejects

    def rows(self, scan: Scan) -> list[Row]:
        """Walk all shards, and return their images in the order of the names. Raises UserError.

        Where an image has no name, or two have the same and other bytes or labels, each is named by its shard,
        and its row or its own name. A store that is `ordered` keeps its order, and its names, instead.
        """
        shards = self.shards
        count = len(shards.names)
        # what reads URLs is not to be started in a process that forks, and who maps a file that cannot be
        # read is ended by the system
        threads = (
            not shards.urls
            and not self.kind.mapped
            and sum(size for size, _ in shards.versions) <= FEW
        )
        workers = min(count, 8 if threads else min(32, max(4 * int(cores()), 1)))
        rows: list[Row] = []
        try:
            walked = processes.results(
                self._one, range(count), workers, threads=threads
            )
            for shard, (entries, left_out) in enumerate(walked):
                rows += [(entry.name, shard, entry) for entry in entries]
                for name, why in left_out:
                    scan.rejects(shards.path(shard) + b":" + name, why)
                scan.progress(shard + 1, count, "reading shards")
        except BrokenProcessPool:
            raise UserError(
                f"--data: a process that reads the shards of {shards.folder} was killed: {processes.KILLED}; "
                "mend that, and start again"
            ) from None
        if shards.ordered and all(name for name, _, _ in rows):
            return rows
        rows.sort(key=itemgetter(0, 1))
        twice = (pair for pair in pairwise(rows) if pair[0][0] == pair[1][0])
        if (rows and not rows[0][0]) or not all(map(self._same, twice)):
            rows = self._by_shard(rows)
        return rows

    def _same(self, pair: tuple[Row, Row]) -> bool:
        """Whether two rows have the same bytes and label, as where one file was packed twice: one name will do."""
        contents = []
        first = pair[0][2]
        for _, shard, entry in pair:
            alike = (entry.size, entry.label) == (first.size, first.label)
            if entry.row < 0 or not alike:
                return False
            with self._reading(shard), self.shards.opened(shard) as read_at:
                contents.append(read_at(entry.offset, entry.size))
        return contents[0] == contents[1]

    def _by_shard(self, rows: Sequence[Row]) -> list[Row]:
        names = self.shards.names
        bases = [name.rpartition("/")[2] for name in names]
        # URLs of several folders may end alike
        shown = bases if len(set(bases)) == len(names) else names
        renamed = [
            (
                os.fsencode(shown[shard])
                + b"/"
                + (name if entry.row < 0 else b"%09d" % entry.row),
                shard,
                entry,
            )
            for name, shard, entry in rows
        ]
        return sorted(renamed, key=itemgetter(0))


# --- a store ------------------------------------------------------------------------------------------------


class ShardStore:
    """A store of shards of one kind, as dataset.stores.SourceModule says."""

    FILES = False
    LABELS = "label_key"

    def __init__(self, name: str, kind: ShardKind) -> None:
        self.name = name
        self.kind = kind
        self.ending = kind.ending
        self.HOLDS = (
            kind.holds
            or f"a folder with {name} shards, train/*{self.ending}, or their URLs in train/shards.txt"
        )

    def _urls(self, data: Path, split: str) -> dict[str, str]:
        """Return name -> URL of the shards that shards.txt names. Raises UserError."""
        return {} if self.kind.find else urls_of(data / split)

    def _find(self, data: Path, split: str) -> ShardList | None:
        """Return the shards that are files; None where there are none. Raises UserError and OSError."""

        folder = data / split

        def find() -> ShardList | None:
            if self.kind.find:
                return self.kind.find(data, split)
            inside = file_tree.names_below(folder)
            shard_names = named.shards(inside, self.ending, str(folder))
            if shard_names:
                # beside class folders without a shard nothing more is looked at
                nested = [
                    os.path.relpath(os.path.join(place, name), folder)
                    for place, _, files in os.walk(folder)
                    for name in files
                ]
                named.shards(nested, self.ending, str(folder))
            return ShardList.of_files(folder, shard_names)

        return storage.in_scan(find, lambda: str(data))

    def missing(self, data: Path, split: str) -> str:
        """Return what is not there: shards in a folder of that name; `open` says which of several are."""
        present: object = None
        try:
            if urls := self._urls(data, split):
                # a URL need not end as its file does
                present = self.ending == ".tar" or any(
                    name.endswith(self.ending) for name in urls
                )
            else:
                with suppress(OSError):
                    present = self._find(data, split)
        except storage.StorageFault:
            raise
        except UserError:
            present = True
        return "" if present else f"{split}/*{self.ending}"

    def open(
        self,
        data: Path,
        split: str,
        *,
        classes: Sequence[str] | None = None,
        read_delay_s: float = 0.0,
        labels: str | None = None,
        **how: Unpack[Options],
    ) -> Split[ShardImages]:
        """Open the images of a split, as dataset.stores.SourceModule says.

        `labels` is what --label-key says: where a shard has the labels. Raises UserError.
        """
        real = Path(os.path.realpath(data))
        if urls := self._urls(real, split):
            shards = ShardList.of_urls(real / split, urls)
        else:
            with reading(real / split):
                listed = self._find(real, split)
            if not listed:
                raise UserError(
                    f"--data {real}: has no {split}/*{self.ending}; it must be {self.HOLDS}"
                )
            shards = listed
        folder = shards.folder
        about = None
        if self.kind.prepare:
            prepare = partial(self.kind.prepare, shards, labels)
            with reading(folder):
                about = storage.in_scan(prepare, lambda: str(folder))
        named = about.classes if about else None
        named = named or class_names(folder, real, real / "train")
        listing = _Listing(
            kind=self.kind,
            shards=shards,
            about=about,
            label_key=labels,
            classes=classes,
            named=named,
        )
        how["rescan"] = how.get("rescan", False) or not shards.comparable
        columns = open_images(
            real,
            listing,
            listing,
            # another number for another rule of what is a sample; of files their dates tell of a change
            key=[
                f"{self.name} 4",
                split,
                # of several that a split may be in
                os.path.relpath(folder, real),
                labels,
                named,
                shards.ordered,
                *(shards.versions if shards.urls else ()),
            ],
            where=f"{folder}/*{self.ending}",
            root=folder,
            table=ShardImages,
            classes=classes,
            listed=lambda: listing.listed,
            **how,
        )
        assert isinstance(columns, ShardImages)
        return Split(columns=columns, source=ShardSource(columns, shards, read_delay_s))
