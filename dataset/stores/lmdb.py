"""Images that are values of an LMDB: the environment, which is never written, keys, labels and bytes.

A store that scripts.pack wrote has its own list beside the images, entries SAMPLES: the samples in their
order, with their labels, whatever their names are. Of any other a key is class/name, or a list has labels.

The environment is opened in the process that reads it: what was opened before a fork is opened again. It
takes no lock, so that its table of readers bounds nothing, and does not read ahead, since samples are read at
random. Must not know formats of images.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array, Split, UserError
from dataset.images.scan import FileLister, open_images
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.cache import Progress
from dataset.scan.lists import VERSION, Grammar, Labels, List, class_names
from dataset.scan.manifest import Rejected, Rejects, printable
from dataset.scan.packed_columns import beside
from dataset.stores.shards import Stored, StoredEntries, split_of
from system import storage
from system.user_files import open_bytes

MAGIC = 0xBEEFC0DE
FORMAT_VERSION = 1
"""The version of the file format that LMDB 0.9 writes."""
HEADER = 16
"""Bytes of a page before what it holds, on machines of 64 bits."""
META = struct.Struct("<IIQQ I44x IHH40x QQ")
"""Magic, version, address, size of the map; page size; padding, flags, depth of the main table; last page,
last transaction."""
OTHER_ORDER = 0x2 | 0x4 | 0x8
"""Flags of a table with reversed keys, several values a key, or integers as keys."""


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What the newer meta page of an environment says, and the looks of its file.

    One that is written anew by the same program, and takes the place of another, has the same pages.
    """

    transaction: int  # the last one
    page_size: int  # bytes
    pages: int
    looks: tuple[int, int] = (
        0,
        0,
    )  # number of the file, and when it was written to, nanoseconds

    @property
    def size(self) -> int:
        """Return the bytes that the file has at least."""
        return max(self.pages, 2) * self.page_size


def data_file(store: Path) -> Path:
    """Return the file that holds an environment, which is that file or a folder with data.mdb."""
    return store / "data.mdb" if store.is_dir() else store


def checked(store: Path) -> Meta:
    """Return what an environment's meta pages say.

    Raises UserError, in one line, for what is no LMDB that can be read to its end, and OSError.
    """
    path = data_file(store)
    with open_bytes(path) as file:
        status = os.fstat(file.fileno())
        metas = [_parse_meta(file.read(HEADER + META.size), path)]
        file.seek(metas[0].page_size)
        second = file.read(HEADER + META.size)
    if len(second) == HEADER + META.size:
        metas.append(_parse_meta(second, path))
    found = max(metas, key=lambda meta: meta.transaction)
    if status.st_size < found.size:
        raise UserError(
            f"--data: {path} is cut short, or still being copied: it has {status.st_size:,} bytes of "
            f"{found.size:,}; copy it again (mdb_copy -c, where it is whole)"
        )
    return replace(found, looks=_looks(status))


def _looks(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def require_no_writer(store: Path) -> None:
    """Raise UserError where another process of this machine is seen to have an environment open to write."""
    path = data_file(store)
    if writers := _writers(path):
        raise UserError(
            f"--data: {path} is still being written: process {writers[0]} has it open to write; "
            "start when it has closed it"
        )


def _parse_meta(page: bytes, path: Path) -> Meta:
    """Return what a meta page says. Raises UserError."""
    magic = struct.pack("<I", MAGIC)
    if magic not in page and magic[::-1] not in page:
        raise UserError(
            f"--data: {path} is no LMDB, or its first bytes are lost; write or copy it again"
        )
    numbers = META.unpack_from(page.ljust(HEADER + META.size, b"\0"), HEADER)
    number, version, _, _, page_size, _, flags, _, last_page, transaction = numbers
    if number != MAGIC or version != FORMAT_VERSION:
        raise UserError(
            f"--data: {path} is of another version of LMDB (0.9 is read), or was written on a machine of 32 "
            "bits or of another byte order; write it again with mdb_dump there and mdb_load here"
        )
    if flags & OTHER_ORDER:
        raise UserError(
            f"--data: {path} has several values a key, or keys that are integers or reversed; "
            "write one value a key, with names as keys"
        )
    return Meta(transaction=transaction, page_size=page_size, pages=last_page + 1)


def _writers(path: Path) -> list[int]:
    """Return the other processes of this machine that have the file open to write, as far as this may know.

    Whoever opens an environment with its lock holds a lock on its lock file as long.
    """
    lock = (
        path.with_name("lock.mdb") if path.name == "data.mdb" else Path(f"{path}-lock")
    )
    found = []
    with suppress(OSError, ValueError, IndexError):
        inode = str(os.stat(lock).st_ino)
        rows = [
            line.split()
            for line in Path("/proc/locks").read_text().splitlines()
            if "->" not in line
        ]
        holders = {int(row[4]) for row in rows if row[5].rpartition(":")[2] == inode}
        found = [pid for pid in sorted(holders - {os.getpid()}) if _writes(pid, path)]
    return found


def _writes(pid: int, path: Path) -> bool:
    """Whether a process has the file open to write."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError, ValueError, IndexError):
                if os.path.samefile(link, path):
                    about = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
                    flags = int(about.partition("flags:")[2].split()[0], 8)
                    if flags & os.O_ACCMODE != os.O_RDONLY:
                        return True
    return False


class _Environment:
    """An environment that this process has open, until nobody holds it: LMDB opens a file once a process."""

    def __init__(self, path: str) -> None:
        try:
            import lmdb
        except ImportError:
            raise UserError(
                "--source lmdb needs the package lmdb: pip install lmdb"
            ) from None
        self.process = os.getpid()
        self.error: type[Exception] = lmdb.Error
        self.grown: type[Exception] = lmdb.MapResizedError
        try:
            self.opened: Any = lmdb.open(
                path,
                subdir=os.path.isdir(path),
                readonly=True,
                create=False,
                lock=False,
                readahead=False,
            )
        except lmdb.Error as error:
            failure = OSError(getattr(error, "code", 0), str(error), path)
            if storage.failed(failure):
                raise failure from None
            raise UserError(
                f"--data: {path} cannot be opened by LMDB: {error}"
            ) from None


_open: weakref.WeakValueDictionary[str, _Environment] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _renew() -> None:
    """Renew the lock in a child, which has its parent's, and held."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def _environment(path: str) -> _Environment:
    """Return the environment of a path, opened in this process."""
    with _opening:
        found = _open.get(path)
        if found is not None and found.process != os.getpid():
            found.opened.close()  # the parent's, in this child alone
            found = None
        if found is None:
            found = _Environment(path)
            _open[path] = found
        return found


class Store:
    """The values of an environment by key, for many processes and threads. Pickled as its path.

    Nothing is open before the first read. One that is written to between two reads is refused, and one that
    was `scanned` where it is another one by then: its values may be those of other labels.
    """

    def __init__(self, path: Path, scanned: Meta | None = None) -> None:
        self.path = path
        self.scanned = scanned
        self._file = ""
        self._found: Meta | None = None  # what it was when it was opened
        self._held: _Environment | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def open(self) -> None:
        """Open the environment, as the first read does. Raises UserError and OSError."""
        self._environment()

    def close(self) -> None:
        """Let go of the environment; it is closed when no other Store holds it."""
        self._held = None

    def _environment(self) -> _Environment:
        held = self._held
        if held is None or held.process != os.getpid():
            found = checked(self.path)
            if self.scanned not in (None, found):
                raise self._written_to()
            held = _environment(os.path.realpath(self.path))
            self._file = str(data_file(self.path))
            self._found = found
            self._held = held
        return held

    def _written_to(self) -> Rejected | UserError:
        if self.scanned is not None:
            return Rejected("its store was written to after it was scanned")
        return UserError(
            f"--data: {self.path} is still being written; start when it is complete"
        )

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        environment = self._environment()
        # first: to read a page beyond the end of the file would end the process by a bus error
        assert self._found is not None
        status = os.stat(self._file)
        if status.st_size < self._found.size or _looks(status) != self._found.looks:
            raise self._written_to()
        try:
            with environment.opened.begin(buffers=True) as transaction:
                now = environment.opened.info()
                if (now["last_txnid"], now["last_pgno"] + 1) != (
                    self._found.transaction,
                    self._found.pages,
                ):
                    raise self._written_to()
                yield transaction
        except environment.grown:
            raise self._written_to() from None
        except environment.error as error:
            raise UserError(
                f"--data: {self.path} is damaged: {error}; write or copy it again"
            ) from None

    @contextmanager
    def value(self, key: bytes) -> Iterator[memoryview | None]:
        """Yield a value, mapped, None where the key is not there; gone when the body ends.

        Raises Rejected where the store is not what was scanned, UserError and OSError.
        """
        with self._transaction() as transaction:
            yield transaction.get(key) if key else None  # LMDB has no empty key

    def copies(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return values as one transaction has them, b"" for a key that is not there."""
        with self._transaction() as transaction:
            return [bytes(transaction.get(key, b"")) for key in keys]

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys, in the order of their bytes."""
        with self._transaction() as transaction:
            for key in transaction.cursor().iternext(keys=True, values=False):
                yield bytes(key)


FILES = False
HOLDS = "a folder with train.lmdb and val.lmdb, each a file or a folder with data.mdb"
LABELS = "lmdb_label"
PREFIX = "prefix"
SAMPLES = (b"__classes__", b"__names__", b"__ends__", b"__labels__")
"""A store's own list: names of classes (JSON), the samples' keys one behind the other, where each ends (int64
[n + 1]), and its class (int32 [n])."""
ABOUT = (b"__keys__", b"__len__", *SAMPLES)
"""Entries that are no samples: our own, and those that loaders of others keep."""
GRAMMAR = Grammar(
    expected="a line is 'key label', separated in all lines by TABs, commas (then quote a key that holds "
    "one) or blanks"
)
PIECE = 10_000
"""Keys that are written together: bounds the memory."""
HEAD = 1024
"""Bytes of a value that tell what it is."""
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_ARROWS_FIELD = struct.pack("<I", 4) + b"list\0"
"""The one column of what pyarrow.serialize writes, as its schema names it."""


class Values:
    """The values of data/<split>.lmdb by key: a dataset.stores.shards.Container."""

    def __init__(self, data: Path, split: str, scanned: Meta | None = None) -> None:
        self.store = Store(data / f"{split}.lmdb", scanned)

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open a value. Raises Rejected where there is none, or one that only Python code could unpack."""
        with self.store.value(key) as found:
            if found is None:
                raise Rejected("no such key")
            value = found
            if what := foreign(bytes(value[:HEAD])):
                raise Rejected(f"{what}, which is never loaded")
            yield (
                len(value),
                lambda offset, length: bytes(value[offset : offset + length]),
            )

    def shown(self, key: bytes) -> bytes:
        """Return the path of the store, and the key."""
        return os.fsencode(self.store.path) + b":" + key

    def files(self) -> Sequence[Path]:
        """Return the file of the store. Raises UserError where it is still being written."""
        path = self.store.path

        def look() -> Path:
            require_no_writer(path)
            return data_file(path)

        return [storage.in_scan(look, lambda: str(path))]

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()


def foreign(head: bytes) -> str:
    """Return what a value is that begins so and is no file's bytes; "" where it may be an image."""
    if head.startswith(_PICKLES):
        return "a Python pickle"
    if int.from_bytes(head[:4], "little") < 1 << 16 and _ARROWS_FIELD in head:
        return "an object in pyarrow's old serialization"
    return ""


def missing(data: Path, split: str) -> str:
    """Return what is not there: a store of that name."""
    return "" if os.path.lexists(data / f"{split}.lmdb") else f"{split}.lmdb"


def open(
    data: Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    read_delay_s: float = 0.0,
    labels: str | None = None,
    **how: Any,
) -> Split:
    """Open the images of data/<split>.lmdb, as dataset.stores.SourceModule says.

    `labels` is PREFIX, where keys are class/name, or the path of a list 'key label'; without it the labels
    are those of the store's own list, where it has one. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    path = real / f"{split}.lmdb"
    values = Values(real, split)
    try:
        before = _meta(path)
        files = values.files()
    except OSError as error:
        raise UserError(f"--data: {path} cannot be read: {error.strerror}") from None
    entries = StoredEntries(real, lambda _: values, split)
    key: list[Any] = ["lmdb", split]
    fixed = True
    if labels not in (None, PREFIX):
        list_of = Path(os.path.realpath(str(labels)))
        listed = List(list_of, GRAMMAR)
        named = class_names(list_of.parent, real)
        list_files: FileLister = partial(
            _by_list, values, entries, classes, listed, named
        )
        key += [VERSION, str(list_of), named]
    elif labels is None and storage.in_scan(
        partial(_has_own_list, values), lambda: str(path)
    ):
        list_files = partial(_by_own_list, values, entries, classes)
        key += ["own list"]
    else:
        list_files = partial(_by_prefix, values, entries, classes)
        fixed = False
    with closing(entries):
        columns = open_images(
            real,
            entries,
            list_files,
            key=key,
            where=str(path),
            classes=classes,
            listed=fixed,
            beside=beside(real, split, "images", files) if labels is None else None,
            **how,
        )
    _unchanged(path, before)
    return Split(
        columns=columns,
        source=Stored(columns, Values(real, split, before), read_delay_s=read_delay_s),
    )


def _meta(path: Path) -> Meta:
    return storage.in_scan(partial(checked, path), lambda: str(path))


def _unchanged(path: Path, before: Meta) -> None:
    """Raise UserError where a store was written to while it was scanned."""
    now = _meta(path)
    if now != before:
        raise UserError(
            f"--data: {path} is still being written: transaction {before.transaction} became "
            f"{now.transaction}, or another file, while it was scanned; start when it is complete"
        )


def entries(data: Path, cache: Path) -> StoredEntries:
    """Return the images of COCO's annotations: of train2017/<file_name> the store is train2017.lmdb."""
    return StoredEntries(data, partial(Values, data))


def source(columns: Any, read_delay_s: float = 0.0) -> Stored:
    """Return the bytes of the values that the columns of COCO's images name."""
    split = split_of(columns)
    path = columns.root / f"{split}.lmdb"
    # of one that is gone a read says so
    values = Values(columns.root, split, _meta(path) if path.exists() else None)
    return Stored(
        columns, values, prefix=os.fsencode(split) + b"/", read_delay_s=read_delay_s
    )


def _samples(values: Values) -> Iterator[bytes]:
    """Yield the keys of samples, in the order of their bytes. Raises UserError where the first is no file."""
    storage.in_scan(values.store.open, lambda: str(values.store.path))
    keys = (key for key in values.store if key not in ABOUT)
    for first in islice(keys, 1):
        with values.store.value(first) as value:
            what = foreign(bytes((value or b"")[:HEAD]))
        if what:
            raise UserError(
                f"--data: {printable(values.shown(first))} is {what}, which is never loaded: it may run any "
                "code; write each image's file as it is, under the key class/name"
            )
        yield first
    yield from keys


def _has_own_list(values: Values) -> bool:
    with (
        closing(values),
        values.store.value(SAMPLES[0]) as classes,
        values.store.value(SAMPLES[-1]) as labels,
    ):
        return classes is not None and labels is not None


def samples_of(
    names: Sequence[bytes], labels: Array, classes: Sequence[str]
) -> dict[bytes, bytes]:
    """Return a store's own list of these samples, the entries SAMPLES."""
    ends = np.cumsum([0, *map(len, names)], dtype="<i8")
    told = (
        json.dumps([*classes]).encode(),
        b"".join(names),
        ends.tobytes(),
        labels.astype("<i4").tobytes(),
    )
    return dict(zip(SAMPLES, told, strict=True))


def _by_own_list(
    values: Values,
    entries: StoredEntries,
    classes: Sequence[str] | None,
    made: Path,
    rejects: Rejects,
    visits: list[file_tree.Visit],
    say: Progress,
) -> dict[str, int]:
    """Write made/file_list.* of the samples of the store's own list, and return the label of each class."""
    entries.remember(visits, [])
    told, joined, cuts, held = values.store.copies(SAMPLES)
    try:
        used = list(map(str, json.loads(told)))
        names = [
            joined[begin:end]
            for begin, end in pairwise(np.frombuffer(cuts, "<i8").tolist())
        ]
        numbers = np.frombuffer(held, "<i4")
    except (ValueError, TypeError):
        names = []
    if (
        not names
        or len(names) != len(numbers)
        or not 0 <= numbers.min() <= numbers.max() < len(used)
    ):
        raise UserError(
            f"--data: {values.store.path}: its own list of samples is damaged; pack it again, or take the "
            f"first part of each key as the class by --lmdb-label {PREFIX}"
        )
    for key in sorted({*_samples(values)}.difference(names)):
        rejects(
            values.shown(key),
            f"the store's own list has no label for it; --lmdb-label {PREFIX} takes its key",
        )
    labels = file_tree.numbered(used, classes, f"{values.store.path} has class")
    class_of = np.array([labels[name] for name in used])[numbers]
    _write(zip(names, class_of.tolist(), strict=True), made, say)
    return labels


def _by_prefix(
    values: Values,
    entries: StoredEntries,
    classes: Sequence[str] | None,
    made: Path,
    rejects: Rejects,
    visits: list[file_tree.Visit],
    say: Progress,
) -> dict[str, int]:
    """Write made/file_list.* of keys class/name, and return the label of each class."""
    entries.remember(visits, [])
    names = set[bytes]()
    for key in _samples(values):
        if own := _folder(key):
            names.add(own)
        else:
            rejects(
                values.shown(key),
                "no class before a '/' in its key; --lmdb-label names a list of labels",
            )
    labels = file_tree.numbered(
        sorted(map(os.fsdecode, names)), classes, f"{values.store.path} has class"
    )
    label_of = {os.fsencode(name): label for name, label in labels.items()}
    keys = (key for key in values.store if _folder(key))
    _write(((key, label_of[_folder(key)]) for key in keys), made, say)
    return labels


def _folder(key: bytes) -> bytes:
    """Return what comes before the first slash of a key; b"" where there is none."""
    own, slash, _ = key.partition(b"/")
    return own if slash else b""


def _by_list(
    values: Values,
    entries: StoredEntries,
    classes: Sequence[str] | None,
    listed: List,
    named: Sequence[str] | None,
    made: Path,
    rejects: Rejects,
    visits: list[file_tree.Visit],
    say: Progress,
) -> dict[str, int]:
    """Write made/file_list.* of the keys that a list has labels for, and return the label of each class."""
    entries.remember(visits, [])
    file_tree.remember(visits, b"", os.fsencode(listed.path))
    keys = set(_samples(values))
    heading = listed.heading(lambda name: os.fsencode(name) in keys)
    if heading:
        rejects(os.fsencode(listed.path), f"line 1 is a heading: {heading}")
    labels = Labels(listed)
    number_of: dict[bytes, int] = {}
    others: list[str] = []
    for line, (name, label) in listed.rows(skip=bool(heading)):
        key = os.fsencode(name)
        number = labels.number(label, line)
        if key not in keys:
            others.append(
                f"line {line}, '{printable(key)[:100]}'" if not others else ""
            )
        elif number_of.setdefault(key, number) != number:
            raise listed.wrong(
                line, f"names '{printable(key)[:100]}' again, with another label"
            )
    if others:
        rejects(
            os.fsencode(listed.path),
            f"{len(others)} lines name no key of {values.store.path}, first {others[0]}",
        )
    for key in sorted(keys - number_of.keys()):
        rejects(values.shown(key), f"{listed.path} has no label for it")
    if not number_of:
        raise UserError(
            f"--data: {listed.path} names no key of {values.store.path}, which has {len(keys)}, such as "
            f"'{printable(min(keys, default=b''))[:100]}'; {GRAMMAR.expected}"
        )
    used, class_of, _ = labels.classes(classes, named)
    _write(
        ((key, int(class_of[number_of[key]])) for key in sorted(number_of)), made, say
    )
    return {name: label for label, name in enumerate(used)}


def _write(samples: Iterator[tuple[bytes, int]], made: Path, say: Progress) -> None:
    """Write made/file_list.* of (key, label), which are in the order of the keys' bytes."""
    with file_tree.FileList(made) as files:
        while part := list(islice(samples, PIECE)):
            files.add([key for key, _ in part], [label for _, label in part])
            say(files.total, 0, "listing keys")
