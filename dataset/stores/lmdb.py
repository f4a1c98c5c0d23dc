"""Images that are values of an LMDB: keys, labels and bytes; must not know formats.

A store that scripts.pack wrote has its own list beside the images, entries SAMPLES: the samples in their
order, with their labels, whatever their names are. Of any other a key is class/name, or a list has labels.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
from dataset.stores._lmdb_file import Meta, Store, checked, data_file, require_no_writer
from dataset.stores._stored import Stored, StoredEntries, split_of
from system import storage

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
    """The values of data/<split>.lmdb by key: a dataset.stores._stored.Container."""

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
            yield len(value), lambda offset, length: bytes(value[offset : offset + length])

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
        list_files: FileLister = partial(_by_list, values, entries, classes, listed, named)
        key += [VERSION, str(list_of), named]
    elif labels is None and storage.in_scan(partial(_has_own_list, values), lambda: str(path)):
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
    return Stored(columns, values, prefix=os.fsencode(split) + b"/", read_delay_s=read_delay_s)


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


def samples_of(names: Sequence[bytes], labels: Array, classes: Sequence[str]) -> dict[bytes, bytes]:
    """Return a store's own list of these samples, the entries SAMPLES."""
    ends = np.cumsum([0, *map(len, names)], dtype="<i8")
    told = (json.dumps([*classes]).encode(), b"".join(names), ends.tobytes(), labels.astype("<i4").tobytes())
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
        names = [joined[begin:end] for begin, end in pairwise(np.frombuffer(cuts, "<i8").tolist())]
        numbers = np.frombuffer(held, "<i4")
    except (ValueError, TypeError):
        names = []
    if not names or len(names) != len(numbers) or not 0 <= numbers.min() <= numbers.max() < len(used):
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
                values.shown(key), "no class before a '/' in its key; --lmdb-label names a list of labels"
            )
    labels = file_tree.numbered(sorted(map(os.fsdecode, names)), classes, f"{values.store.path} has class")
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
            others.append(f"line {line}, '{printable(key)[:100]}'" if not others else "")
        elif number_of.setdefault(key, number) != number:
            raise listed.wrong(line, f"names '{printable(key)[:100]}' again, with another label")
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
    _write(((key, int(class_of[number_of[key]])) for key in sorted(number_of)), made, say)
    return {name: label for label, name in enumerate(used)}


def _write(samples: Iterator[tuple[bytes, int]], made: Path, say: Progress) -> None:
    """Write made/file_list.* of (key, label), which are in the order of the keys' bytes."""
    with file_tree.FileList(made) as files:
        while part := list(islice(samples, PIECE)):
            files.add([key for key, _ in part], [label for _, label in part])
            say(files.total, 0, "listing keys")
