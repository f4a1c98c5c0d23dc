"""Images that are values of an LMDB, which is never written: keys, labels and bytes; must not know formats.

A store that scripts.pack wrote has a list of its samples with their labels in the entries SAMPLES, whatever
their names are. Of any other a key is class/name.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

from saturate.contracts import Array, Split, UserError, counted
from saturate.dataset.images.columns import Images
from saturate.dataset.images.scan import open_images
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Entries, ReadAt
from saturate.dataset.scan.cache import Options
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.manifest import Rejected, Rejects, printable
from saturate.dataset.stores.entries import EntrySource
from saturate.system import processes, storage
from saturate.system.programs import program
from saturate.system.user_files import open_bytes

T = TypeVar("T")
FILES = False
HOLDS = "a folder with train.lmdb and val.lmdb"
LABELS = "lmdb_label"
PREFIX = "prefix"
SAMPLES = (b"__classes__", b"__names__", b"__ends__", b"__labels__")
"""A store's own list: names of classes (JSON), the samples' keys one behind the other, where each ends (int64
[n + 1]), and its class (int32 [n])."""
ABOUT = frozenset((b"__keys__", b"__len__", *SAMPLES))
"""Entries that are no samples: our own, and those that loaders of others keep."""
LONGEST_KEY = 511
"""Bytes of a key, as LMDB is built."""
Labelled = tuple[Sequence[bytes], Sequence[int], dict[str, int]]
"""Keys of samples, the class of each as a number, the number of each class."""

_environments: weakref.WeakValueDictionary[tuple[int, ...], Any] = (
    weakref.WeakValueDictionary()
)
"""What this process has open, by how its file looked: LMDB opens a file once."""
_opening = threading.Lock()


def _after_fork() -> None:
    """Close in a child what its parent has open."""
    global _opening
    _opening = threading.Lock()
    while _environments:
        _environments.popitem()[1].close()


os.register_at_fork(after_in_child=_after_fork)


class Store(Entries):
    """The values of an LMDB: dataset.scan.byte_ranges.Entries, by key.

    For many processes and threads; pickled as its path and its state.

    Nothing is open before the first read. Each read compares the store with what it was at the first one, by
    file, size, date and last transaction: values of one that has changed may be those of other labels.

    The environment takes no lock, so that its table of readers bounds nothing, and does not read ahead, since
    samples are read at random.
    """

    mapped = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.path.realpath(path / "data.mdb" if path.is_dir() else path)
        self._state: tuple[int, ...] | None = None
        self._held: object = None  # keeps the environment open

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    @contextmanager
    def transaction(self, key: bytes = b"") -> Iterator[Any]:
        """Begin a read, of a key that messages name. Raises UserError where the store has changed or is damaged,
        and OSError."""
        try:
            import lmdb
        except ImportError:
            raise UserError(
                "--source lmdb needs the package lmdb: pip install lmdb"
            ) from None
        try:
            status = os.stat(self.file)
        except FileNotFoundError:
            if self._state is None:
                raise
            raise self._changed(key) from None
        look = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        # before LMDB looks: a page behind the end of the file would end the process by a bus error
        if self._state is not None and self._state[:4] != look:
            raise self._changed(key)
        try:
            environment = self._environment(lmdb, look)
            if self._state is None:
                pages = environment.info()["last_pgno"] + 1
                if pages * environment.stat()["psize"] > status.st_size:
                    raise UserError(
                        f"--data: {self.file} is cut short, or still being copied: it has "
                        f"{counted(status.st_size, 'byte')}, too few; copy it again (mdb_copy -c, where it is whole)"
                    )
            with environment.begin(buffers=True) as transaction:
                state = (*look, transaction.id())
                if self._state is None:
                    kinds = environment.open_db(None, transaction).flags(transaction)
                    if kinds["dupsort"] or kinds["integerkey"] or kinds["reverse_key"]:
                        raise UserError(
                            f"--data: {self.file} has several values a key, or keys that are no names; write "
                            "one value a key, with names as keys"
                        )
                    self._state = state
                elif self._state != state:
                    raise self._changed(key)
                yield transaction
        except lmdb.Error as error:
            raise self._damaged(error) from None

    def _environment(self, lmdb: Any, look: tuple[int, ...]) -> Any:
        """Return the environment of the file that looks so, opened in this process."""
        with _opening:
            environment = _environments.get(look)
            if environment is None:
                for other in [*_environments]:
                    if other[:2] == look[:2]:
                        _environments.pop(other).close()
                # an error of the storage is one of the system here, and may pass
                with open_bytes(Path(self.file)) as file:
                    file.read(1)
                environment = lmdb.open(
                    self.file,
                    subdir=False,
                    readonly=True,
                    create=False,
                    lock=False,
                    readahead=False,
                )
                _environments[look] = environment
            self._held = environment
            return environment

    def _changed(self, key: bytes) -> UserError:
        return UserError(
            f"--data: {printable(self.shown(key))}: the store was written to, or replaced, since it was "
            "opened, and its values may be those of other labels; start again when it is complete"
        )

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[int, ReadAt]]:
        """Open a value: its size, and what reads a range. Raises Rejected where there is none."""
        with self.transaction(key) as transaction:
            value = transaction.get(key) if 0 < len(key) <= LONGEST_KEY else None
            if value is None:
                raise Rejected("no such key")
            yield (
                len(value),
                lambda offset, length: bytes(value[offset : offset + length]),
            )

    def shown(self, key: bytes) -> bytes:
        """Return the path of the store, and the key."""
        return os.fsencode(self.path) + b":" + key

    def names(self) -> list[bytes]:
        """Return the keys of samples, in the order of their bytes; all pages of keys are read. Raises UserError."""

        def read() -> list[bytes]:
            with self.transaction() as transaction:
                entries = transaction.cursor().iternext(keys=True, values=True)
                sizes = {bytes(key): len(value) for key, value in entries}
            size = os.stat(self.file).st_size
            if max(sizes.values(), default=0) > size:
                raise self._damaged("it has a value that is larger than the file")
            return [key for key in sizes if key not in ABOUT]

        return storage.in_scan(read, lambda: str(self.path))

    def apart(self, read: Callable[[Store], T]) -> T:
        """Return read(store), done in a process of its own: LMDB ends a process that meets a damaged page.

        Raises UserError that says so, and what `read` raises.
        """

        def work() -> tuple[T, tuple[int, ...] | None]:
            # LMDB says there which of its assertions has failed
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            return read(self), self._state

        try:
            answer, self._state = processes.apart(work)
        except BrokenProcessPool:
            raise self._damaged(
                "the system has ended the process that read it, or memory was short"
            ) from None
        return answer

    def _damaged(self, why: object) -> UserError:
        return UserError(
            f"--data: {self.path} is no LMDB that can be read, or is damaged: {why}; write or copy it again"
        )

    def close(self) -> None:
        """Let go of the environment, which is closed when no other Store has it."""
        self._held = None


class LmdbSource(EntrySource):
    """A contracts.Source of values, by the names in columns."""

    def __init__(self, columns: Images, store: Store, read_delay_s: float) -> None:
        super().__init__(columns, read_delay_s)
        self.store = store

    def open_entry(self, sample: int) -> AbstractContextManager[tuple[int, ReadAt]]:
        """Open the sample's value."""
        return self.store.opened(self.columns.entry(sample))

    def shown(self, sample: int) -> bytes:
        """Return the path of the store, and the key."""
        return self.store.shown(self.columns.entry(sample))


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
    **how: Unpack[Options],
) -> Split[Images]:
    """Open the images of data/<split>.lmdb, as dataset.stores.SourceModule says.

    With `labels`, PREFIX, keys are class/name even where the store has its own list. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    path = real / f"{split}.lmdb"
    store = storage.in_scan(partial(Store, path), lambda: str(path))
    own = labels is None and store.apart(lambda store: _own_list(store) is not None)
    labelled = partial(_by_own_list if own else _by_prefix, store)

    def list_files(scan: Scan) -> dict[str, int]:
        scan.remember(store.file)
        names, numbers, label_of = labelled(classes, scan.rejects)
        file_tree.write_file_list(scan.made, [(names, numbers)])
        return label_of

    columns = open_images(
        real,
        store,
        list_files,
        # a link may lead to another one by now
        key=["lmdb", split, store.file, *(["own list"] if own else [])],
        where=str(store.path),
        classes=classes,
        listed=own,
        **how,
    )
    with store.transaction():
        pass  # to see that nothing has written to it meanwhile
    store.close()
    return Split(columns=columns, source=LmdbSource(columns, store, read_delay_s))


def _own_list(store: Store) -> list[bytes] | None:
    """Return the store's own list of samples, None where it has none. Raises UserError."""

    def read() -> list[bytes] | None:
        with store.transaction() as transaction:
            held = [transaction.get(key) for key in SAMPLES]
            return None if None in held else list(map(bytes, held))

    try:
        return storage.in_scan(read, lambda: str(store.path))
    except OSError as error:
        raise UserError(
            f"--data: {store.path} cannot be read: {error.strerror}"
        ) from None


# --- keys and labels ----------------------------------------------------------------------------------------


def samples_of(
    names: Sequence[bytes], labels: Array, classes: Sequence[str]
) -> dict[bytes, bytes]:
    """Return a store's own list of these samples, the entries SAMPLES."""
    ends = np.cumsum([0, *map(len, names)], dtype="<i8")
    values = (
        json.dumps([*classes]).encode(),
        b"".join(names),
        ends.tobytes(),
        labels.astype("<i4").tobytes(),
    )
    return dict(zip(SAMPLES, values, strict=True))


def _by_own_list(
    store: Store, classes: Sequence[str] | None, rejects: Rejects
) -> Labelled:
    """Return the samples of the store's own list. Raises UserError."""
    listed, keys = store.apart(lambda store: (_own_list(store), store.names()))
    assert listed is not None
    try:
        used = list(map(str, json.loads(listed[0])))
        ends = np.frombuffer(listed[2], "<i8").tolist()
        names = [listed[1][begin:end] for begin, end in pairwise(ends)]
        numbers = np.frombuffer(listed[3], "<i4")
        whole = len(names) == len(numbers) > 0
        whole = whole and 0 <= numbers.min() <= numbers.max() < len(used)
    except (ValueError, TypeError):
        whole = False
    if not whole:
        raise UserError(
            f"--data: {store.path}: its own list of samples is damaged; pack it again, or take the first part "
            f"of each key as the class by --lmdb-label {PREFIX}"
        )
    for key in sorted({*keys}.difference(names)):
        rejects(
            store.shown(key),
            f"the store's own list has no label for it; --lmdb-label {PREFIX} takes its key",
        )
    labels = file_tree.numbered(used, classes, f"{store.path} has class")
    class_of = np.array([labels[name] for name in used])
    return names, class_of[numbers].tolist(), labels


def _by_prefix(
    store: Store, classes: Sequence[str] | None, rejects: Rejects
) -> Labelled:
    """Return the samples whose keys are class/name. Raises UserError."""
    names: list[bytes] = []
    folders: list[str] = []
    for key in store.apart(Store.names):
        folder, slash, _ = key.partition(b"/")
        if folder and slash:
            names.append(key)
            folders.append(os.fsdecode(folder))
        else:
            rejects(
                store.shown(key),
                f"no class before a '/' in its key; {program('pack')} writes stores with labels",
            )
    labels = file_tree.numbered(
        sorted(set(folders)), classes, f"{store.path} has class"
    )
    return names, [labels[folder] for folder in folders], labels
