"""Images in Parquet and HDF5 files, for `scripts.pack`: stores of shards whose samples are rows.

Samples keep the order of the files, and are named by file and row: shard/000000012-name.jpg. The offset of a
sample is the number of its row. No file stays open between two reads, so that none is open across a fork.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from contracts import UserError
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.manifest import Rejected
from dataset.stores.arrow import (
    Schema,
    damaged,
    image_column,
    labels_of,
    require_same,
    schema_of,
)
from dataset.stores.shards import Entry, Shard, ShardList, ShardSource, ShardStore

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


def _find(endings: tuple[str, ...], data: Path, split: str) -> ShardList | None:
    """Return the files of a split: data/train/*, data/train*, *-train-* or data/data/train*."""
    for name in SPLITS[split]:
        named = re.compile(rf"(.*[-_.])?{name}([-_.].*)?")
        for folder in (data / name, data, data / "data"):
            files = [
                file
                for file in (sorted(os.listdir(folder)) if folder.is_dir() else ())
                if file.endswith(endings)
                and (folder.name == name or named.fullmatch(file))
            ]
            if files:
                return ShardList.of_files(folder, files)
    return None


def _entry(
    shard: Shard, row: int, content: bytes, label: str | None, name: str = ""
) -> Iterator[Entry]:
    """Yield the image of a row, or name it as no sample; `name` is what the file calls it."""
    kind = next((kind for magic, kind in KINDS if content.startswith(magic)), "img")
    stem = re.sub(r"[^\w-]", "_", os.path.basename(name).partition(".")[0])[:80]
    file = Path(shard.path).name
    own = os.fsencode(f"{file}/{row:09d}{'-' * bool(stem)}{stem}.{kind}")
    if not content or label is None:
        shard.reject(own, "no label, or several" if content else "no image")
    else:
        yield Entry(own, row, len(content), label)


class RowSource(ShardSource):
    """A contracts.Source of images that are rows of files; `row_of(path, row)` reads one."""

    def __init__(self, row_of: Callable[[Path, int], bytes], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._row_of = row_of

    @contextmanager
    def open_entry(self, sample: int) -> Iterator[tuple[int, ReadAt]]:
        """Open an image. Raises Rejected where its file has changed."""
        shard = int(self.columns.shard[sample])
        with self.shards.opened(shard):  # the file is as it was walked
            path = Path(os.fsdecode(self.shards.path(shard)))
            content = self._row_of(path, int(self.columns.offset[sample]))
        yield len(content), lambda offset, length: content[offset : offset + length]


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
    with (
        damaged(path, pyarrow.ArrowException, OSError, ValueError),
        pyarrow.parquet.ParquetFile(path) as file,
    ):
        yield file


def _prepare_parquet(shards: ShardList, label_key: str | None) -> Schema:
    """Return the schema that all files have. Raises UserError where one has other columns or classes."""
    schemas = []
    for name in shards.names:
        path = shards.folder / name
        with _parquet(path) as file:
            schemas.append(schema_of(file.schema_arrow, path, label_key))
        require_same(schemas[-1], schemas[0], path)
    return schemas[0]


def _walk_parquet(shard: Shard) -> Iterator[Entry]:
    path = Path(shard.path)
    schema = shard.about
    row = 0
    with _parquet(path) as file:
        columns = [schema.image, schema.label]
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            images = batch.column(schema.image).to_pylist()
            labels = labels_of(batch, schema, path)
            for image, label in zip(images, labels, strict=True):
                fields = image if isinstance(image, dict) else {"bytes": image}
                name = str(fields.get("path") or "")
                content = fields["bytes"] or b""
                if name and not content:
                    raise UserError(
                        f"{path}:row {row} has a path, {name}, and no bytes; pack the files themselves"
                    )
                yield from _entry(shard, row, content, label, name)
                row += 1


_group: tuple[Path, int, list[Any]] | None = None
"""The row group that was read last: its file, its first row, its images."""
_reading = threading.Lock()


def _parquet_row(path: Path, row: int) -> bytes:
    """Return an image. Rows that are asked for together are of one group, which is read once."""
    global _group
    with _reading:
        if (
            _group is None
            or _group[0] != path
            or not 0 <= row - _group[1] < len(_group[2])
        ):
            _group = None
            _group = _read_group(path, row)
        image = _group[2][row - _group[1]]
    content: bytes = image["bytes"] if isinstance(image, dict) else image
    return content


def _read_group(path: Path, row: int) -> tuple[Path, int, list[Any]]:
    with _parquet(path) as file:
        column = image_column(file.schema_arrow, path)
        begin = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if row < begin + count:
                table = file.read_row_group(group, columns=[column], use_threads=False)
                return path, begin, table.column(0).to_pylist()
            begin += count
    raise Rejected("no such row")


# --- HDF5 ---------------------------------------------------------------------------------------------------


@contextmanager
def _hdf5(path: Path, names: Sequence[Sequence[str]]) -> Iterator[list[Any]]:
    """Open a file; of each of `names` the first data set that is there. Raises UserError."""
    try:
        import h5py
    except ImportError:
        raise UserError(
            "--source hdf5 needs the package h5py: pip install h5py"
        ) from None
    # h5py's errors have no number; one that has is the storage's
    with damaged(path, OSError, RuntimeError), h5py.File(path, "r") as file:
        sets = [
            file.get(next((name for name in some if name in file), ""))
            for some in names
        ]
        if not all(isinstance(each, h5py.Dataset) for each in sets):
            raise UserError(
                f"{path} has /{', /'.join(sorted(file))[:300]}; it must have data sets of images "
                f"({', '.join(names[0])}) and of labels, which --label-key names"
            )
        yield sets


def _walk_hdf5(shard: Shard) -> Iterator[Entry]:
    path = Path(shard.path)
    labelled = [shard.label_key] if shard.label_key else LABELS_OF_HDF5
    with _hdf5(path, [IMAGES_OF_HDF5, labelled]) as (images, labels):
        encoded = images.ndim == 1 and images.dtype == object
        pixels = (
            images.ndim == 4 and images.shape[-1] in (1, 3) and images.dtype == np.uint8
        )
        named = labels.ndim == 1 and labels.dtype == object
        numbered = labels.ndim in (1, 2) and labels.dtype.kind in "biuf"
        if (
            not (encoded or pixels)
            or not (named or numbered)
            or len(images) != len(labels)
        ):
            raise UserError(
                f"{path}: images are {images.dtype} {images.shape} and labels {labels.dtype} {labels.shape}; "
                "they must be files as uint8 of variable length, or uint8 [n, height, width, 1 or 3], with "
                "numbers or strings [n], numbers [n, 1], or one-hot [n, classes]"
            )
        for row in range(len(images)):
            yield from _entry(shard, row, _file_of(images[row]), _label(labels[row]))


def _file_of(value: Any) -> bytes:
    """Return an image's file; of pixels a PNG, which has all of them."""
    if value.ndim == 1:
        return bytes(value.tobytes())
    file = io.BytesIO()
    pixels = value[:, :, 0] if value.shape[2] == 1 else value
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _label(value: Any) -> str | None:
    """Return the label of a row: a number or a string, a row of one number, or a row in which one is 1."""
    if isinstance(value, bytes):
        return os.fsdecode(value).strip() or None
    if np.ndim(value) and len(value) > 1:
        (ones,) = np.nonzero(value)
        return str(ones[0]) if len(ones) == 1 and value[ones[0]] == 1 else None
    number = float(np.squeeze(value))
    return str(int(number)) if number >= 0 and number.is_integer() else None


def _hdf5_row(path: Path, row: int) -> bytes:
    with _hdf5(path, [IMAGES_OF_HDF5]) as (images,):
        return _file_of(images[row])


# --- stores -------------------------------------------------------------------------------------------------

PARQUET = SimpleNamespace(
    ENDING=".parquet",
    HOLDS="a folder with files such as train/*.parquet or train-00000-of-00001.parquet, of val likewise",
    find=partial(_find, (".parquet",)),
    prepare=_prepare_parquet,
    walk=_walk_parquet,
)
HDF5 = SimpleNamespace(
    ENDING=".h5",
    HOLDS="a folder with files such as train.h5 and val.h5",
    find=partial(_find, (".h5", ".hdf5")),
    walk=_walk_hdf5,
)
FOREIGN = {
    "parquet": ShardStore("parquet", PARQUET, partial(RowSource, _parquet_row)),
    "hdf5": ShardStore("hdf5", HDF5, partial(RowSource, _hdf5_row)),
}
"""--source of scripts.pack -> its store."""
