"""scripts.pack from Parquet and HDF5, written here by their libraries."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scripts import pack
from tests.conformance import scenes
from tests.unit.test_pack import opened

IMAGES = [*scenes.small(5).values()]
LABELS = [1, 0, 1, 1, 0]
Write = Callable[[Path, Sequence[bytes], Sequence[int]], None]


def parquet(folder: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    arrow = pytest.importorskip("pyarrow")
    store = pytest.importorskip("pyarrow.parquet")
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = [
        {"bytes": image or None, "path": f"{place}.jpg" * bool(image)}
        for place, image in enumerate(images)
    ]
    table = arrow.table({"image": rows, "label": labels}).replace_schema_metadata(
        metadata
    )
    store.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=2)


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


@pytest.mark.parametrize("write", [parquet, hdf5])
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
    shown = [
        np.asarray(Image.open(io.BytesIO(source.read(sample)))) for sample in range(3)
    ]
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
        (
            {"images": PIXELS, "labels": np.zeros((3, 1, 1))},
            "labels are float64 (3, 1, 1); they must be",
        ),
        ({"images": PIXELS, "labels": 1}, "labels are int64 ()"),
    ],
)
def test_hdf5_of_another_form_is_refused(
    held: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both_hdf5(tmp_path / "data", **held)
    assert packed(tmp_path / "data") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["images", "labels"])
def test_a_link_of_hdf5_that_leads_nowhere_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    held = {"images": PIXELS, "labels": [0, 1, 2]} | {
        name: h5py.ExternalLink("moved.h5", "/x")
    }
    both_hdf5(tmp_path / "data", **held)
    assert packed(tmp_path / "data") == 2
    assert f"/{name} leads nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train.parquet", "train.h5"])
def test_a_damaged_file_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("h5py" if name.endswith("h5") else "pyarrow.parquet")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(b"PAR1 cut off")
    assert packed(tmp_path / "data") == 2
    assert f"{name} is damaged: " in capsys.readouterr().err
    assert packed(tmp_path / "data", "--lmdb-label", "x.csv") == 2
    assert "--lmdb-label is for another source" in capsys.readouterr().err


def test_parquet_of_other_classes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both(tmp_path / "data", parquet)
    arrow = pytest.importorskip("pyarrow.parquet")
    one = tmp_path / "data" / "train" / "train-00000-of-00001.parquet"
    table = arrow.read_table(one)
    other = {
        b"huggingface": table.schema.metadata[b"huggingface"].replace(
            b'"cat", "dog"', b'"dog", "cat"'
        )
    }
    arrow.write_table(
        table.replace_schema_metadata(other),
        one.with_name("train-00001-of-00002.parquet"),
    )
    assert packed(tmp_path / "data") == 2
    assert (
        "has other columns or classes than the first shard" in capsys.readouterr().err
    )


@pytest.mark.parametrize("write", [parquet, hdf5])
def test_rows_that_are_left_out_are_counted_and_named(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    both(data, write, [IMAGES[0], b"", b"<html>", *IMAGES[3:]])
    assert packed(data) == 0
    said = capsys.readouterr()
    for split in ("train", "val"):
        (line,) = [
            line
            for line in (said.out + said.err).splitlines()
            if f"warning: {split}: 2 left" in line
        ]
        rejected = Path(line.partition("named in ")[2]).read_text()
        assert "000000001" in rejected and "000000002" in rejected
        assert len(opened(tmp_path / "to")[split].columns) == 3


def test_two_kinds_of_files_are_not_chosen_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    both(data, parquet)
    hdf5(data / "train", IMAGES, LABELS)
    assert packed(data) == 2
    assert (
        "parquet and hdf5 files of train; --source says which"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["train-00000-of-00001.tfrecord", "train.rec"])
@pytest.mark.parametrize("source", ["auto", "tfrecord"])
def test_other_formats_are_refused_in_one_line(
    name: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(bytes(100))
    assert packed(data, "--source", source) == 2
    assert (
        len(capsys.readouterr().err.splitlines()) == 1
        and not (tmp_path / "to").exists()
    )
