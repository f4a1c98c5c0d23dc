"""scripts.pack from Parquet, TFRecord, RecordIO and HDF5, written here by hand or by their libraries."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scripts import _framings, pack
from tests.conformance import scenes
from tests.unit.test_pack import opened

MAGIC = struct.pack("<I", _framings.MAGIC)
IMAGES = [*scenes.small(5).values()]
IMAGES[1] = IMAGES[1] + b"x" * (-len(IMAGES[1]) % 4) + MAGIC + MAGIC + b"tail"
"""A record that RecordIO cuts in three: its data has the magic number twice, at a multiple of four."""
LABELS = [1, 0, 1, 1, 0]
Write = Callable[[Path, Sequence[bytes], Sequence[int]], None]


def parquet(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    arrow = pytest.importorskip("pyarrow")
    store = pytest.importorskip("pyarrow.parquet")
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = [{"bytes": image, "path": f"{place}.jpg"} for place, image in enumerate(images)]
    table = arrow.table({"image": rows, "label": labels}).replace_schema_metadata(metadata)
    store.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=2)


def field(number: int, content: bytes) -> bytes:
    length = len(content)
    said = b""
    while length > 127:
        said += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + said + bytes([length]) + content


def tfrecord(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    with open(folder / "train-00000-of-00001", "wb") as file:
        for image, label in zip(images, labels, strict=True):
            features = {
                "image/encoded": field(1, field(1, image)),
                "image/class/label": field(3, field(1, bytes([label]))),
                "image/filename": field(1, field(1, b"n0_1.JPEG")),
                "image/height": field(3, bytes([1 << 3, 5])),  # not packed
            }
            entries = [
                field(1, field(1, name.encode()) + field(2, value)) for name, value in features.items()
            ]
            data = field(1, b"".join(entries))
            head = struct.pack("<Q", len(data))
            file.write(head + struct.pack("<I", _framings._masked_crc(head)) + data + bytes(4))


def recordio(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    with open(folder / "train.rec", "wb") as file:
        for image, label in zip(images, labels, strict=True):
            parts = (struct.pack("<IfQQ", 0, label, 7, 0) + image).split(MAGIC)
            for place, part in enumerate(parts):
                flag = 0 if len(parts) == 1 else 1 if not place else 3 if place == len(parts) - 1 else 2
                file.write(MAGIC + struct.pack("<I", flag << 29 | len(part)) + part + bytes(-len(part) % 4))


def hdf5(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "train.h5", "w") as file:
        held = file.create_dataset("images", len(images), h5py.vlen_dtype(np.uint8))
        for place, image in enumerate(images):
            held[place] = np.frombuffer(image, np.uint8)
        file["labels"] = labels


def packed(data: Path, *more: str) -> int:
    command = [str(data.parent / "to"), "--from", str(data), "--format", "tar", *more]
    return pack.main([*command, "--manifest-dir", str(data.parent / "cache")])


def both(data: Path, write: Write, images: Sequence[bytes] = IMAGES) -> None:
    """Write training and validation alike."""
    for split in ("train", "validation"):
        (data / split).mkdir(parents=True)
        write(data / split, images, LABELS[: len(images)])


@pytest.mark.parametrize("write", [parquet, tfrecord, recordio, hdf5])
def test_images_labels_and_order_stay(write: Write, tmp_path: Path) -> None:
    data = tmp_path / "data"
    both(data, write)
    assert packed(data) == 0
    found = opened(tmp_path / "to")["val"]
    assert [found.source.read(sample) for sample in range(5)] == IMAGES
    assert found.columns.label.tolist() == LABELS
    assert found.columns.classes == (("cat", "dog") if write is parquet else ("0", "1"))


def test_pixels_in_hdf5_become_png(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 8, 3), np.uint8)
    for split in ("train", "val"):
        (tmp_path / "data").mkdir(exist_ok=True)
        with h5py.File(tmp_path / "data" / f"{split}.h5", "w") as file:
            file["images"] = pixels
            file["labels"] = [2, 0, 1]
    assert packed(tmp_path / "data") == 0
    source = opened(tmp_path / "to")["train"].source
    shown = [np.asarray(Image.open(io.BytesIO(source.read(sample)))) for sample in range(3)]
    np.testing.assert_array_equal(shown, pixels)


def both_hdf5(data: Path, **held: Any) -> None:
    h5py = pytest.importorskip("h5py")
    data.mkdir()
    for split in ("train", "val"):
        with h5py.File(data / f"{split}.h5", "w") as file:
            for name, values in held.items():
                file[name] = values


PIXELS = np.zeros((3, 9, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([[2], [0], [1]], "2 0 1"),
        (np.eye(3)[[2, 0, 1]], "2 0 1"),
        ([[0, 0, 1], [1, 0, 0], [1, 1, 0]], "2 0"),
        ([b"caf\xe9", b"caf\xe8", b"x"], "caf\udce9 caf\udce8 x"),
    ],
    ids=["column", "one-hot", "several", "latin-1"],
)
def test_labels_of_hdf5(labels: Any, classes: str, tmp_path: Path) -> None:
    both_hdf5(tmp_path / "data", images=PIXELS, labels=labels)
    assert packed(tmp_path / "data") == 0
    columns = opened(tmp_path / "to")["train"].columns
    assert [columns.classes[label] for label in columns.label] == classes.split()


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"images/x": PIXELS, "labels": [0, 1, 2]}, "/images is a group"),
        ({"images": PIXELS, "labels": np.zeros((3, 1, 1))}, "labels are float64 (3, 1, 1); they must be"),
        ({"images": PIXELS, "labels": 1}, "labels are int64 ()"),
    ],
)
def test_hdf5_of_another_form_is_refused(
    held: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both_hdf5(tmp_path / "data", **held)
    assert packed(tmp_path / "data") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train.parquet", "train.h5"])
def test_a_damaged_file_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("h5py" if name.endswith("h5") else "pyarrow.parquet")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(b"PAR1 cut off")
    assert packed(tmp_path / "data") == 2
    assert f"{name} is damaged: " in capsys.readouterr().err
    assert packed(tmp_path / "data", "--lmdb-label", "x.csv") == 2
    assert "--lmdb-label is for another source" in capsys.readouterr().err


def test_parquet_of_other_classes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both(tmp_path / "data", parquet)
    arrow = pytest.importorskip("pyarrow.parquet")
    one = tmp_path / "data" / "train" / "train-00000-of-00001.parquet"
    table = arrow.read_table(one)
    other = {b"huggingface": table.schema.metadata[b"huggingface"].replace(b'"cat", "dog"', b'"dog", "cat"')}
    arrow.write_table(table.replace_schema_metadata(other), one.with_name("train-00001-of-00002.parquet"))
    assert packed(tmp_path / "data") == 2
    assert "has other columns or classes than the first shard" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("write", "change", "said"),
    [
        (tfrecord, lambda held: held[:-9], "is cut short in the record at byte"),
        (tfrecord, lambda held: held[:5] + b"\x01" + held[6:], "is no TFRecord file"),
        (tfrecord, lambda held: b"\x1f\x8b" + held, "is compressed"),
        (recordio, lambda held: held[:-9], "is damaged, or cut short, at byte"),
        (recordio, lambda held: held[1:], "is no RecordIO file"),
    ],
    ids=["tf-short", "tf-crc", "tf-gzip", "rec-short", "rec-none"],
)
def test_damage_is_refused(
    write: Write, change: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    both(data, write, IMAGES[:3])
    (path,) = (data / "train").iterdir()
    path.write_bytes(change(path.read_bytes()))
    assert packed(data) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "to").exists()


def test_the_checksum_is_crc32c() -> None:
    """The value for these digits is the one of RFC 3720's polynomial."""
    crc = 0xE3069283
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _framings._masked_crc(b"123456789") == expected
