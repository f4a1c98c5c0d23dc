"""scripts.pack of HDF5 and TFRecord, written by h5py and by the package tfrecord."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saturate.contracts import Array
from saturate.run import pack
from tests.conformance import pictures
from tests.unit.test_pack import opened, stored, trained

h5py = pytest.importorskip("h5py")
tfrecord = pytest.importorskip("tfrecord")
ARRAYS = np.stack([pictures.photograph(seed, 20, 30) for seed in range(7)])
CONTENTS = [
    (pictures.png if seed % 2 else pictures.jpeg)(pixels)
    for seed, pixels in enumerate(ARRAYS)
]
LABELS = [2, 0, 3, 3, 0, 2, 2]
WORDS = ["gnu", "ant", "bee", "bee", "ant", "gnu", "gnu"]


def hdf5(path: Path, images: Any, labels: Any, group: str = "", **how: Any) -> None:
    with h5py.File(path, "a") as file:
        if isinstance(images, list):
            kind = h5py.vlen_dtype(np.uint8)
            held = file.create_dataset(f"{group}x", (len(images),), kind)
            for row, content in enumerate(images):
                held[row] = np.frombuffer(content, np.uint8)
        else:
            file.create_dataset(f"{group}x", data=images, **how)
        file.create_dataset(f"{group}y", data=labels)


def records(
    path: Path, contents: Sequence[bytes], labels: Sequence[Any], kind: str = "int"
) -> None:
    writer = tfrecord.TFRecordWriter(str(path))
    for content, label in zip(contents, labels, strict=True):
        writer.write(
            {
                "image/encoded": (content, "byte"),
                "image/class/label": (label, kind),
                "image/height": (20, "int"),
            }
        )
    writer.close()


def packed(data: Path, *more: str, form: str = "tar") -> Path:
    target = data.parent / form
    command = [str(target), "--from", str(data), "--format", form, *more]
    assert pack.main(command) == 0
    return target


def is_array(content: bytes, pixels: Array) -> bool:
    with Image.open(io.BytesIO(content)) as image:
        return bool(np.array_equal(np.asarray(image), pixels))


NAMES = ["--images", "x", "--labels", "y"]


@pytest.mark.parametrize(("form", "chunked"), [("tar", True), ("arrow", False)])
def test_arrays_of_hdf5_are_stored_as_they_are(
    form: str, chunked: bool, tmp_path: Path
) -> None:
    """In their order, with the numbers of classes, [N, 1, 1] as PCam has them; the split is in a file's name."""
    data = tmp_path / "data"
    data.mkdir()
    how: dict[str, Any] = (
        {"chunks": (2, 20, 30, 3), "compression": "gzip"} if chunked else {}
    )
    hdf5(data / "train.h5", ARRAYS, np.array(LABELS)[:, None, None], **how)
    hdf5(data / "val.h5", ARRAYS[2:4], LABELS[2:4], **how)
    target = packed(data, *NAMES, form=form)
    for split, wanted in (("train", range(7)), ("val", range(2, 4))):
        rows = trained(opened(target)[split])
        assert rows == stored(target, split, form)
        assert [int(label) for _, label, _ in rows] == [LABELS[i] for i in wanted]
        for i, (_, _, content) in zip(wanted, rows, strict=True):
            assert is_array(content, ARRAYS[i])
    assert opened(target)["train"].columns.classes == ("0", "1", "2", "3")


def test_files_in_hdf5_with_words_of_one_file_with_both_splits(tmp_path: Path) -> None:
    data = tmp_path / "all.hdf5"
    hdf5(data, [*CONTENTS, b"no image"], [*WORDS, "ant"], "train/")
    hdf5(data, CONTENTS[:3], WORDS[:3], "val/")
    target = packed(data, "--images", "{split}/x", "--labels", "{split}/y")
    for split, count in (("train", 7), ("val", 3)):
        rows = trained(opened(target)[split])
        assert [content for *_, content in rows] == CONTENTS[:count]
        assert [label for _, label, _ in rows] == WORDS[:count]


def test_pixels_in_lz4_of_hdf5(tmp_path: Path) -> None:
    lz4 = pytest.importorskip("lz4.frame")
    hdf5(tmp_path / "train.h5", ARRAYS, LABELS)
    target = packed(tmp_path / "train.h5", *NAMES, "--pixels", "lz4")
    contents = [
        lz4.decompress(content) for *_, content in stored(target, "train", "tar")
    ]
    assert all(map(is_array, contents, ARRAYS))


def test_tfrecords(tmp_path: Path) -> None:
    """Names as TensorFlow's own ImageNet has them; several files are one split."""
    data = tmp_path / "data"
    data.mkdir()
    records(data / "train-00000-of-00002", CONTENTS[:4], LABELS[:4])
    records(data / "train-00001-of-00002", CONTENTS[4:], LABELS[4:])
    records(data / "validation-00000-of-00001", CONTENTS[1:3], LABELS[1:3])
    target = packed(data)
    for split, part in (("train", slice(0, 7)), ("val", slice(1, 3))):
        rows = trained(opened(target)[split])
        assert rows == stored(target, split, "tar")
        assert [content for *_, content in rows] == CONTENTS[part]
        assert [int(label) for _, label, _ in rows] == LABELS[part]


def test_words_of_tfrecords(tmp_path: Path) -> None:
    words = [word.encode() for word in WORDS]
    records(tmp_path / "train.tfrecord", CONTENTS, words, "byte")
    rows = stored(packed(tmp_path / "train.tfrecord"), "train", "tar")
    assert [label for _, label, _ in rows] == WORDS


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_others(path: Path) -> None:
    """Write a whole record of another message."""
    head, record = (3).to_bytes(8, "little"), b"\xff\xff\xff"
    crc = tfrecord.TFRecordWriter.masked_crc
    path.write_bytes(head + crc(head) + record + crc(record))


def without(package: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def hide(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [*sys.modules]:
            if name.partition(".")[0] == package:
                monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.mark.parametrize(
    ("name", "change", "more", "said"),
    [
        ("train.h5", None, [], "name the datasets of images and labels by --images"),
        ("train.h5", None, ["--images", "z", "--labels", "y"], "by --images and --labels; it has x, y"),
        ("train.h5", None, ["--images", "y", "--labels", "y"], "/y is int64 (7,) and /y int64 (7,); they must"),
        ("train.h5", lambda path, _: cut(path), NAMES, "cannot be read as HDF5"),
        ("train.h5", without("h5py"), NAMES, "pip install h5py"),
        ("a.tfrecord", lambda path, _: cut(path), [], "is no TFRecord file, or is"),
        ("a.tfrecord", lambda path, _: of_others(path), [], "no tf.train.Example"),
        ("a.tfrecord", lambda path, _: flipped(path), [], "is no TFRecord file, or is"),
        ("a.tfrecord", None, ["--labels", "z"], "image/height, and not one image/encoded and one z"),
        ("a.tfrecord", without("tfrecord"), [], "pip install tfrecord"),
        ("a.rec", None, [], "fn.readers.mxnet"),
        ("a.tfrecord", lambda path, _: path.write_bytes(b""), [], "has no image of train"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(
    name: str,
    change: Any,
    more: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    if name.endswith("h5"):
        hdf5(path, ARRAYS, LABELS)
    else:
        records(path, CONTENTS, LABELS)
    if change is not None:
        change(path, monkeypatch)
    assert pack.main([str(tmp_path / "to"), "--from", str(path), *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not (tmp_path / "to").exists()


def test_a_class_that_training_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    records(data / "train.tfrecord", CONTENTS[:2], [1, 0])
    records(data / "val.tfrecord", CONTENTS[:2], [0, 2])
    assert pack.main([str(tmp_path / "to"), "--from", str(data)]) == 2
    assert (
        "has the label '2', which is none of the 2 classes of the training data"
        in capsys.readouterr().err
    )
