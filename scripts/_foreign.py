"""Images in Parquet and HDF5 files, for `scripts.pack`: what training does not read.

Samples keep the order of the files, and are named by file and row: shard/000000012-name.jpg. An entry's
offset in the index is the number of its row. No file stays open between two reads, so that none is open
across a fork.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from contracts import Split, UserError
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.cache import Progress
from dataset.scan.lists import class_names
from dataset.scan.manifest import Rejected, printable
from dataset.stores.arrow import Damaged, labels_of, require_same, schema_of
from dataset.stores.shards import (
    Entry,
    Scan,
    Shard,
    Shards,
    Shelf,
    open_shards,
    shard_path,
)

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}
"""What files of a split are called, the first of these that is there."""
IMAGES_OF_HDF5 = ("images", "image", "imgs", "data", "x")
LABELS_OF_HDF5 = ("labels", "label", "targets", "y")
KINDS = (
    (b"\xff\xd8", "jpg"),
    (b"\x89PNG", "png"),
    (b"RIFF", "webp"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
)
ROWS = 64
"""Rows that are in memory at once while a file is walked."""


def _name(path: Path, row: int, head: bytes, own: str = "") -> bytes:
    """Return the name of a sample; `own` is what its file calls it."""
    kind = next((kind for magic, kind in KINDS if head.startswith(magic)), "img")
    stem = re.sub(r"[^\w-]", "_", os.path.basename(own).partition(".")[0])[:80]
    return os.fsencode(f"{path.name}/{row:09d}{'-' * bool(stem)}{stem}.{kind}")


def _number(label: object) -> str | None:
    """Return a label as text: a whole number, or a name; None where it is neither."""
    if isinstance(label, bytes):
        return os.fsdecode(label).strip() or None
    number = float(label)  # type: ignore[arg-type]
    return str(int(number)) if number >= 0 and number.is_integer() else None


# --- Parquet ------------------------------------------------------------------------------------------------


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a file. Raises UserError where it cannot be read as Parquet, now or in the body."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            "--source parquet needs the package pyarrow: pip install pyarrow"
        ) from None
    errors = (pyarrow.ArrowException, OSError, ValueError)
    with Damaged(path, errors), pyarrow.parquet.ParquetFile(path) as file:
        yield file


def _walk_parquet(path: Path, label_key: str | None) -> Iterator[Entry]:
    with _parquet(path) as file:
        schema = schema_of(file.schema_arrow, path, label_key)
        row = 0
        columns = [schema.image, schema.label]
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            labels = labels_of(batch, schema, path)
            for held, label in zip(
                batch.column(schema.image).to_pylist(), labels, strict=True
            ):
                content, own = (
                    (held, "")
                    if isinstance(held, bytes)
                    else _of_struct(held, path, row)
                )
                yield Entry(
                    _name(path, row, content, own), row, len(content), label, row
                )
                row += 1


def _of_struct(held: dict[str, Any] | None, path: Path, row: int) -> tuple[bytes, str]:
    content = (held or {}).get("bytes") or b""
    own = str((held or {}).get("path") or "")
    if own and not content:
        raise UserError(
            f"{path}:row {row} has a path, {own}, and no bytes; pack the files themselves"
        )
    return content, own


_GROUPS = threading.Lock()


def _renew() -> None:
    """Give a child a lock of its own: a thread of its parent may hold the other."""
    global _GROUPS
    _GROUPS = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def _group(path: Path, label_key: str | None, row: int) -> tuple[int, int, Any]:
    """Return the first row of a row group, the row behind it, and its images; `row` is one of them."""
    with _parquet(path) as file:
        schema = schema_of(file.schema_arrow, path, label_key)
        begin = 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if row < end:
                table = file.read_row_group(
                    group, columns=[schema.image], use_threads=False
                )
                return begin, end, table.column(0)
            begin = end
    raise Rejected("no such row")


_held: dict[Path, tuple[int, int, Any]] = {}
"""The row group that was read last, by its file."""


def _read_parquet(path: Path, label_key: str | None, row: int) -> bytes:
    with _GROUPS:  # rows that are asked for together are of one group: it is read once
        held = _held.get(path)
        if held is None or not held[0] <= row < held[1]:
            _held.clear()
            held = _held[path] = _group(path, label_key, row)
        value = held[2][row - held[0]].as_py()
    content: bytes = value if isinstance(value, bytes) else value["bytes"]
    return content


# --- HDF5 ---------------------------------------------------------------------------------------------------


def _one_of(names: Sequence[str], found: Any, what: str, path: Path) -> str:
    name = next((name for name in names if name in found), "")
    if not name:
        raise UserError(
            f"{path} has no {what}; it has {printable(os.fsencode(', '.join(sorted(found))))[:300]}"
        )
    return name


@contextmanager
def _opened(path: Path, label_key: str | None) -> Iterator[tuple[Any, Any]]:
    """Open a file; its images and labels. Raises UserError."""
    try:
        import h5py
    except ImportError:
        raise UserError(
            "--source hdf5 needs the package h5py: pip install h5py"
        ) from None
    # h5py's errors have no number; one that has is the storage's
    with Damaged(path, (OSError, RuntimeError)), h5py.File(path, "r") as file:
        own = (label_key,) if label_key else LABELS_OF_HDF5
        names = (
            _one_of(IMAGES_OF_HDF5, file, "images", path),
            _one_of(own, file, "labels: --label-key names them", path),
        )
        images, labels = map(file.get, names)  # None for a link that leads nowhere
        for name, held in zip(names, (images, labels), strict=True):
            if not isinstance(held, h5py.Dataset):
                what = "leads nowhere" if held is None else "is a group"
                raise UserError(
                    f"{path}: /{name} {what}; it must be a data set of images, or of labels"
                )
        encoded = images.ndim == 1 and h5py.check_vlen_dtype(images.dtype) == np.uint8
        if not encoded and not (
            images.ndim == 4 and images.dtype == np.uint8 and images.shape[-1] in (1, 3)
        ):
            raise UserError(
                f"{path}: images are {images.dtype} {images.shape}; they must be files as uint8 of variable "
                "length, or uint8 [n, height, width, 1 or 3]"
            )
        numbers = labels.ndim in (1, 2) and labels.dtype.kind in "biuf"
        if not numbers and not (
            labels.ndim == 1 and h5py.check_string_dtype(labels.dtype)
        ):
            raise UserError(
                f"{path}: labels are {labels.dtype} {labels.shape}; they must be numbers or strings [n], "
                "numbers [n, 1], or one-hot [n, classes]"
            )
        if len(images) != len(labels):
            raise UserError(
                f"{path} has {len(images)} images and {len(labels)} labels; write it again"
            )
        yield images, labels


def _file_of(value: Any) -> bytes:
    """Return an image's file; of pixels a PNG, which has all of them."""
    if value.ndim == 1:
        return bytes(value.tobytes())
    made = io.BytesIO()
    Image.fromarray(value[:, :, 0] if value.shape[2] == 1 else value).save(
        made, "PNG", compress_level=1
    )
    return made.getvalue()


def _label(held: Any) -> str | None:
    """Return the label of a row: a number or a string, a row of one number, or a row in which one is 1."""
    if np.ndim(held) == 0:
        return _number(held)
    if len(held) == 1:
        return _number(held[0])
    (ones,) = np.nonzero(held)
    return str(ones[0]) if len(ones) == 1 and held[ones[0]] == 1 else None


def _walk_hdf5(path: Path, label_key: str | None) -> Iterator[Entry]:
    with _opened(path, label_key) as (images, labels):
        for row in range(len(images)):
            content = _file_of(images[row])
            yield Entry(
                _name(path, row, content), row, len(content), _label(labels[row]), row
            )


def _read_hdf5(path: Path, label_key: str | None, row: int) -> bytes:
    with _opened(path, label_key) as (images, _):
        return _file_of(images[row])


# --- a split ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A kind of files: which these are, the samples of one, and the bytes of a sample."""

    files: re.Pattern[str]
    walk: Callable[[Path, str | None], Iterator[Entry]]
    read: Callable[[Path, str | None, int], bytes]  # of (file, --label-key, row)


FOREIGN = {
    "parquet": Foreign(
        files=re.compile(r".+\.parquet"), walk=_walk_parquet, read=_read_parquet
    ),
    "hdf5": Foreign(
        files=re.compile(r".+\.(h5|hdf5)"), walk=_walk_hdf5, read=_read_hdf5
    ),
}
"""--source of scripts.pack -> its kind."""


def files_of(kind: str, data: Path, split: str) -> list[Path]:
    """Return the sorted files of a split: data/train/*, data/train*, *-train-* or data/data/train*."""
    files = FOREIGN[kind].files
    for name in SPLITS[split]:
        named = re.compile(rf"(.*[-_.])?{name}([-_.].*)?")
        for folder, every in (
            (data / name, True),
            (data, False),
            (data / "data", False),
        ):
            own = sorted(folder.iterdir()) if folder.is_dir() else []
            found = [
                path
                for path in own
                if files.fullmatch(path.name) and (every or named.fullmatch(path.name))
            ]
            if found:
                return found
    return []


class Rows(Shards):
    """The images of a split's files by their rows: a dataset.stores.shards.Container."""

    def __init__(
        self, kind: str, label_key: str | None, columns: Any, urls: Mapping[str, str]
    ) -> None:
        super().__init__(columns, urls)
        self._kind = kind
        self._label_key = label_key

    @contextmanager
    def opened(self, index: int) -> Iterator[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected where it is not what the columns say."""
        with super().opened(index):  # the file is as it was walked
            path = Path(
                os.fsdecode(shard_path(self.columns, int(self.columns.shard[index])))
            )
            content = FOREIGN[self._kind].read(
                path, self._label_key, int(self.columns.offset[index])
            )
        yield len(content), lambda offset, length: content[offset : offset + length]


def _walk(kind: str, shard: Shard) -> Iterator[Entry]:
    for entry in FOREIGN[kind].walk(Path(shard.path), shard.label_key):
        if entry.size:
            yield entry._replace(row=-1)
        else:
            shard.reject(entry.name, "no image")


def open_foreign(
    kind: str,
    data: Path,
    split: str,
    *,
    label_key: str | None,
    cache: Path,
    progress: Progress,
    classes: Sequence[str] | None,
) -> Split:
    """Open the images of a split. Raises UserError."""
    real = Path(os.path.realpath(data))
    paths = files_of(kind, real, split)
    if not paths:
        raise UserError(
            f"{data} has no {kind} files of {split}, such as {split}/*, {split}-00000-of-00001.*"
        )
    folder = paths[0].parent
    named = _classes_of_parquet(paths, label_key) if kind == "parquet" else None
    shelf = Shelf(
        folder=folder, names=[path.name for path in paths], paths=[folder, *paths]
    )
    return open_shards(
        real,
        split,
        Scan(shelf=shelf, walk=partial(_walk, kind), label_key=label_key),
        key=[kind, 3, split, label_key],
        where=str(folder),
        named=named or class_names(folder, real, real / "train"),
        without="no label, or several",
        container=partial(Rows, kind, label_key),
        cache=cache,
        progress=progress,
        classes=classes,
    )


def _classes_of_parquet(
    paths: Sequence[Path], label_key: str | None
) -> list[str] | None:
    """Return the names of the classes that all files have. Raises UserError where one has others."""
    schemas = []
    for path in paths:
        with _parquet(path) as file:
            schemas.append(schema_of(file.schema_arrow, path, label_key))
        require_same(schemas[-1], schemas[0], path)
    return None if schemas[0].classes is None else [*schemas[0].classes]
