"""Images with labels in HDF5 and TFRecord files, for `scripts.pack` alone: rows in the order of their files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import Source, Split, UserError
from saturate.dataset.images.headers import parse
from saturate.dataset.images.pixels import stored
from saturate.dataset.open import SPLITS, Console
from saturate.dataset.scan import names
from saturate.dataset.scan.lists import Grammar, Labels
from saturate.dataset.scan.manifest import Rejected, printable
from saturate.system.user_files import open_bytes

FILES = re.compile(r".+\.(h5|hdf5|rec)|.*tfrecord.*|.+-\d{5}-of-\d{5}")
CHUNKS = 1 << 28
"""Bytes that are kept of chunks of an HDF5 file, which neighbouring rows share."""


Row = tuple[str, Callable[[], bytes]]
"""Label, and what reads the image's file, of an array a PPM; that raises UserError and OSError."""


class Rows(Source):
    """The images of a split: its columns, and their bytes. Raises UserError for labels that fit no classes."""

    files = False
    read_delay_s = 0.0
    exif = several = None
    grammar = Grammar(expected="")

    def __init__(self, rows: dict[bytes, Row], classes: Sequence[str] | None) -> None:
        self._names = [*rows]
        self._rows = [*rows.values()]
        labels = Labels(self)
        numbers = [
            labels.number(label, sample) for sample, (label, _) in enumerate(self._rows)
        ]
        used, class_of, _ = labels.classes(classes, None)
        self.label = class_of[numbers]
        self.classes = tuple(used)

    def __len__(self) -> int:
        return len(self._rows)

    def entry(self, sample: int) -> bytes:
        """Return the name of a sample."""
        return self._names[sample]

    def name(self, sample: int) -> str:
        """Return what messages call a sample."""
        return printable(self._names[sample])

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a row."""
        return UserError(f"--data: {self.name(line)} {what}")

    def check(self, sample: int, size: int) -> None:
        """Do nothing: there is no manifest."""

    def read(self, sample: int) -> bytes:
        """Return the bytes of a sample. Raises what its row does."""
        return self._rows[sample][1]()


def files_of(data: Path) -> list[Path]:
    """Return the HDF5 or TFRecord files of a folder without folders, or the file itself; none of other data.

    Raises UserError.
    """
    inside = sorted(data.iterdir()) if data.is_dir() else [data]
    if any(path.is_dir() for path in inside):
        return []
    files = [path for path in inside if FILES.fullmatch(path.name) and path.exists()]
    for path in files:
        if path.suffix == ".rec":
            raise UserError(
                f"{path}: RecordIO is not read; write its images into class folders: "
                "DALI's fn.readers.mxnet gives them with their labels"
            )
    return files


def open_rows(
    files: Sequence[Path], images: str | None, labels: str | None, console: Console
) -> dict[str, Split[Any]]:
    """Return the splits of files; one that says none by its name is train. Raises UserError.

    With {split} in the names of datasets each file has all splits.
    """
    splits: dict[str, Split[Any]] = {}
    classes = None
    for split in SPLITS:
        rows: dict[bytes, Row] = {}
        own = [
            path
            for path in files
            if "{split}" in (images or "")
            or split in (names.read(path.name).splits or SPLITS[:1])
        ]
        for path in own:
            walk = _hdf5 if path.suffix in (".h5", ".hdf5") else _tfrecord
            keys = [key and key.format(split=split) for key in (images, labels)]
            for number, row in enumerate(walk(path, *keys)):
                name = b"%s/%09d.img" % (os.fsencode(path.name), number)
                content = row[1]()
                try:
                    parse(content, len(content))
                    rows[name] = row
                except Rejected as why:
                    console.warn(f"{split}: {printable(name)} is left out: {why}")
        if not rows and (own or split == "train"):
            raise UserError(f"--data: {files[0].parent} has no image of {split}")
        if rows:
            source = Rows(rows, classes)
            splits[split] = Split(columns=source, source=source)
            classes = source.classes
    return splits


def _hdf5(path: Path, *keys: str | None) -> Iterator[Row]:
    """Yield the rows of two datasets of a file, which stays open. Raises UserError."""
    try:
        import h5py
    except ImportError:
        raise UserError("HDF5 needs the package h5py: pip install h5py") from None
    try:
        file = h5py.File(path, "r", rdcc_nbytes=CHUNKS)
    except OSError as error:
        raise UserError(f"{path} cannot be read as HDF5: {error}") from None
    images, labels = (key and file.get(key) for key in keys)
    if not (isinstance(images, h5py.Dataset) and isinstance(labels, h5py.Dataset)):
        members: list[str] = []
        file.visit(members.append)
        raise UserError(
            f"{path}: name the datasets of images and labels by --images and --labels; it has {', '.join(members)}"
        )
    is_array = images.dtype == np.uint8 and images.shape[1:][2:] == (3,)
    is_encoded = images.ndim == 1 and h5py.check_vlen_dtype(images.dtype) == np.uint8
    is_text = h5py.check_string_dtype(labels.dtype)
    is_labelled = labels.size == len(images) and (is_text or labels.dtype.kind in "iu")
    if not (is_array or is_encoded) or not is_labelled:
        raise UserError(
            f"{path}: {images.name} is {images.dtype} {images.shape} and {labels.name} {labels.dtype} "
            f"{labels.shape}; they must be uint8 [N, height, width, 3], or files as uint8 of variable length, "
            "and N whole numbers or names"
        )
    texts = (labels.asstr() if is_text else labels)[()].ravel().astype(str)
    for row, label in enumerate(texts.tolist()):
        yield label, partial(_of_hdf5, images, row)


def _of_hdf5(images: Any, row: int) -> bytes:
    try:
        value = images[row]
    except OSError as error:
        raise UserError(f"{images.file.filename}: row {row}: {error}") from None
    return value.tobytes() if value.ndim == 1 else stored(value, compressed=False)


def _tfrecord(path: Path, *keys: str | None) -> Iterator[Row]:
    """Yield the rows of a file, a tf.train.Example each. Raises UserError."""
    try:
        from tfrecord.example_pb2 import Example
        from tfrecord.writer import TFRecordWriter
    except ImportError:
        raise UserError(
            "TFRecord needs the package tfrecord: pip install tfrecord"
        ) from None
    image_key, label_key = keys[0] or "image/encoded", keys[1] or "image/class/label"
    with open_bytes(path) as file:
        # a record: its length, the checksum of that, its bytes, their checksum
        while head := file.read(8):
            checked = file.read(4) == TFRecordWriter.masked_crc(head)
            record = file.read(int.from_bytes(head, "little")) if checked else b""
            begin = file.tell() - len(record)
            if not record or file.read(4) != TFRecordWriter.masked_crc(record):
                raise UserError(
                    f"{path} is no TFRecord file, or is damaged, cut short or compressed: unpack or copy it again"
                )
            try:
                features = Example.FromString(record).features.feature
            except Exception as error:  # protobuf's
                raise UserError(f"{path}: no tf.train.Example: {error}") from None
            feature_names = ", ".join(sorted(features))
            image = features[image_key].bytes_list.value
            label = features[label_key]
            numbers, texts = label.int64_list.value, label.bytes_list.value
            values = [*map(str, numbers), *map(os.fsdecode, texts)]
            if len(image) != 1 or len(values) != 1:
                raise UserError(
                    f"{path}: a record has {feature_names}, and not one {image_key} and one {label_key}: name them "
                    "by --images and --labels"
                )
            place = begin + record.index(image[0])
            yield values[0], partial(_of_tfrecord, path, place, len(image[0]))


def _of_tfrecord(path: Path, place: int, size: int) -> bytes:
    with open_bytes(path) as file:
        file.seek(place)
        return file.read(size)
