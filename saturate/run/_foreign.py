"""Images with labels in HDF5 and TFRecord files, for `scripts.pack` alone: rows in the order of their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from saturate.contracts import Array, Source, Split, UserError, counted
from saturate.dataset.images.headers import parse
from saturate.dataset.images.pixels import stored
from saturate.dataset.open import SPLITS, Console
from saturate.dataset.scan import file_tree, names
from saturate.dataset.scan.manifest import Rejected, printable
from saturate.system.user_files import open_bytes

FILES = re.compile(r".+\.(h5|hdf5|rec)|.*tfrecord.*|.+-\d{5}-of-\d{5}")
Place = tuple[Path, str, int, int]
"""File, dataset and row of HDF5; file, "", offset and size of an image in TFRecords."""


class Options(Protocol):
    """What of the command line is read."""

    images: str | None
    labels: str | None


@dataclass(frozen=True)
class Rows(Source):
    """Labelled images: the columns and the bytes of a split."""

    places: Sequence[Place]
    names: Sequence[bytes]
    label: Array
    classes: tuple[str, ...]
    files = False
    read_delay_s = 0.0
    exif = None
    several = None

    def __len__(self) -> int:
        return len(self.names)

    def entry(self, sample: int) -> bytes:
        """Return the name of a sample."""
        return self.names[sample]

    def name(self, sample: int) -> str:
        """Return what messages call a sample."""
        return printable(self.names[sample])

    def check(self, sample: int, size: int) -> None:
        """Do nothing: there is no manifest."""

    def read(self, sample: int) -> bytes:
        """Return the bytes of a sample; of an array as a PPM. Raises UserError and OSError."""
        return _content(*self.places[sample])


def files_of(data: Path) -> list[Path]:
    """Return the HDF5 or TFRecord files of a folder without folders, or the file itself; none of other data.

    Raises UserError.
    """
    inside = sorted(data.iterdir()) if data.is_dir() else [data]
    if any(path.is_dir() for path in inside):
        return []
    found = [path for path in inside if FILES.fullmatch(path.name) and path.exists()]
    for path in found:
        if path.suffix == ".rec":
            raise UserError(
                f"{path}: RecordIO is not read; write its images into class folders: "
                "DALI's fn.readers.mxnet gives them with their labels"
            )
    return found


def open_rows(
    files: Sequence[Path], options: Options, console: Console
) -> dict[str, Split[Any]]:
    """Return the splits of files; one that says none by its name is train. Raises UserError.

    With {split} in the names of datasets each file has all splits.
    """
    splits: dict[str, Split[Any]] = {}
    classes = None
    for split in SPLITS:
        images, labels = (
            name and name.format(split=split)
            for name in (options.images, options.labels)
        )
        inside = images != options.images
        own = [
            path
            for path in files
            if inside or split in (names.read(path.name).splits or {"train"})
        ]
        if own:
            rows = _rows(own, images, labels, classes, console)
            splits[split] = Split(columns=rows, source=rows)
            classes = rows.classes
    return splits


def _rows(
    files: Sequence[Path],
    images: str | None,
    labels: str | None,
    classes: tuple[str, ...] | None,
    console: Console,
) -> Rows:
    places = []
    entries = []
    texts = []
    rejected = []
    for path in files:
        is_hdf5 = path.suffix in (".h5", ".hdf5")
        found = (_of_hdf5 if is_hdf5 else _of_tfrecord)(path, images, labels)
        for row, (label, place) in enumerate(found):
            content = _content(*place)
            try:
                parse(content, len(content))
            except Rejected as why:
                rejected.append(f"row {row} of {path}: {why}")
                continue
            places.append(place)
            entries.append(b"%s/%09d.img" % (os.fsencode(path.name), row))
            is_name = isinstance(label, bytes)
            texts.append(os.fsdecode(label) if is_name else str(label))
    if rejected:
        console.warn(f"left out: {counted(len(rejected), 'row')}, first {rejected[0]}")
    if not places:
        raise UserError(f"{files[0]} has no image")
    used = sorted({*texts})
    if all(text.isdigit() for text in used):
        used = [str(number) for number in range(max(map(int, used)) + 1)]
    number_of = file_tree.numbered(used, classes, f"{files[0]} has class")
    label_of = np.array([number_of[text] for text in texts], np.int32)
    return Rows(places, entries, label_of, classes or tuple(used))


@cache
def _dataset(path: Path, name: str) -> Any:
    """Return a dataset of a file, which stays open. Raises UserError."""
    try:
        import h5py
    except ImportError:
        raise UserError("HDF5 needs the package h5py: pip install h5py") from None
    try:
        # room for the chunk that neighbours share
        file = h5py.File(path, "r", rdcc_nbytes=1 << 28)
    except OSError as error:
        raise UserError(f"{path} cannot be read as HDF5: {error}") from None
    held = file.get(name)
    if not isinstance(held, h5py.Dataset):
        there: list[str] = []
        file.visit(there.append)
        raise UserError(f"{path} has no dataset {name}; it has {', '.join(there)}")
    return held


def _of_hdf5(
    path: Path, images: str | None, labels: str | None
) -> Iterator[tuple[Any, Place]]:
    """Yield label and place of each row. Raises UserError."""
    if not images or not labels:
        raise UserError(
            f"{path}: name its datasets, as --images images --labels labels"
        )
    held, numbers = _dataset(path, images), _dataset(path, labels)
    is_array = held.dtype == np.uint8 and held.shape[1:][2:] == (3,)
    is_encoded = held.ndim == 1 and (held.dtype.metadata or {}).get("vlen") == np.uint8
    if not (is_array or is_encoded):
        raise UserError(
            f"{path}: {images} is {held.dtype} {held.shape}; it must be uint8 [N, height, width, 3], "
            "or files as uint8 of variable length"
        )
    if numbers.size != len(held) or numbers.dtype.kind not in "iubOS":
        raise UserError(
            f"{path}: {labels} is {numbers.dtype} {numbers.shape}; it must be a whole number or a name for "
            f"each of {len(held)} images"
        )
    for row, label in enumerate(numbers[()].reshape(-1).tolist()):
        yield label, (path, images, row, 0)


def _of_tfrecord(
    path: Path, images: str | None, labels: str | None
) -> Iterator[tuple[Any, Place]]:
    """Yield label and place of each record's image. Raises UserError."""
    try:
        from tfrecord.example_pb2 import Example
        from tfrecord.writer import TFRecordWriter
    except ImportError:
        raise UserError(
            "TFRecord needs the package tfrecord: pip install tfrecord"
        ) from None
    image_key, label_key = images or "image/encoded", labels or "image/class/label"
    with open_bytes(path) as file:
        # a record: its length, the checksum of that, its bytes, their checksum
        while head := file.read(8):
            checked = file.read(4) == TFRecordWriter.masked_crc(head)
            record = file.read(int.from_bytes(head, "little")) if checked else b""
            if not record or file.read(4) != TFRecordWriter.masked_crc(record):
                raise UserError(
                    f"{path} is no TFRecord file, or is damaged, cut short or compressed: unpack or copy it again"
                )
            features = Example.FromString(record).features.feature
            there = sorted(features)
            held = features[image_key].bytes_list.value
            label = features[label_key]
            values = [*label.int64_list.value, *label.bytes_list.value]
            if len(held) != 1 or len(values) != 1:
                raise UserError(
                    f"{path}: a record has not one {image_key} and one {label_key}; it has "
                    f"{', '.join(there)}: name them by --images and --labels"
                )
            offset = file.tell() - 4 - len(record) + record.index(held[0])
            yield values[0], (path, "", offset, len(held[0]))


def _content(path: Path, dataset: str, at: int, size: int) -> bytes:
    """Return the bytes of an image. Raises UserError and OSError."""
    if not dataset:
        with open_bytes(path) as file:
            file.seek(at)
            return file.read(size)
    try:
        value = _dataset(path, dataset)[at]
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: row {at} cannot be read: {error}") from None
    return value.tobytes() if value.ndim == 1 else stored(value, compressed=False)
