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

h5py = pytest.importorskip("h5py")
arrow = pytest.importorskip("pyarrow")
store = pytest.importorskip("pyarrow.parquet")
IMAGES = [*scenes.small(5).values()]
LABELS = [1, 0, 1, 1, 0]
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 9, 8, 3), np.uint8)
Write = Callable[..., None]


def parquet(path: Path, images: Sequence[bytes], *, names: str = "cat dog") -> None:
    label = {"_type": "ClassLabel", "names": names.split()}
    features = {"image": {"_type": "Image"}, "label": label}
    rows = [
        {"bytes": image or None, "path": f"{place}.jpg" * bool(image)}
        for place, image in enumerate(images)
    ]
    table = arrow.table({"image": rows, "label": LABELS[: len(images)]})
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    table = table.replace_schema_metadata(about)
    store.write_table(table, path.with_suffix(".parquet"), row_group_size=2)


def hdf5(path: Path, images: Sequence[bytes]) -> None:
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        held = file.create_dataset("images", len(images), h5py.vlen_dtype(np.uint8))
        for place, image in enumerate(images):
            held[place] = np.frombuffer(image, np.uint8)
        file["labels"] = LABELS[: len(images)]


def both(
    data: Path, write: Write, images: Sequence[bytes] = IMAGES, **how: Any
) -> None:
    """Write training and validation alike."""
    for split in ("train", "validation"):
        (data / split).mkdir(parents=True, exist_ok=True)
        write(data / split / f"{split}-0", images, **how)


def both_hdf5(data: Path, **held: Any) -> None:
    data.mkdir()
    for split in ("train", "val"):
        with h5py.File(data / f"{split}.h5", "w") as file:
            for name, values in held.items():
                file[name] = values


def packed(data: Path, *more: str) -> int:
    command = [str(data.parent / "to"), "--from", str(data), "--format", "tar", *more]
    return pack.main([*command, "--manifest-dir", str(data.parent / "cache")])


@pytest.mark.parametrize("write", [parquet, hdf5])
def test_images_labels_and_order_stay(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are left out are counted and named."""
    data = tmp_path / "data"
    both(data, write, [IMAGES[0], b"", b"<html>", *IMAGES[3:]])
    assert packed(data) == 0
    output = "".join(capsys.readouterr())
    for split, found in opened(tmp_path / "to").items():
        (line,) = [
            line for line in output.splitlines() if f"warning: {split}: 2 left" in line
        ]
        rejected = Path(line.partition("named in ")[2]).read_text()
        assert "000000001" in rejected and "000000002" in rejected
        columns = found.columns
        read = [found.source.read(sample) for sample in range(3)]
        assert read == [IMAGES[0], *IMAGES[3:]]
        assert columns.label.tolist() == [1, 1, 0]
        assert columns.classes == (("cat", "dog") if write is parquet else ("0", "1"))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([2, 0, 1], "2 0 1"),
        (np.eye(3)[[2, 0, 1]], "2 0 1"),
        ([[0, 0, 1], [1, 0, 0], [1, 1, 0]], "2 0"),
        ([b"caf\xe9", b"caf\xe8", b"x"], "caf\udce9 caf\udce8 x"),
    ],
    ids=["numbers", "one-hot", "several", "latin-1"],
)
def test_labels_of_hdf5(labels: Any, classes: str, tmp_path: Path) -> None:
    """Pixels become PNG."""
    both_hdf5(tmp_path / "data", images=PIXELS, labels=labels)
    assert packed(tmp_path / "data") == 0
    split = opened(tmp_path / "to")["train"]
    columns = split.columns
    assert [columns.classes[label] for label in columns.label] == classes.split()
    shown = Image.open(io.BytesIO(split.source.read(0)))
    np.testing.assert_array_equal(np.asarray(shown), PIXELS[0])


def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    both(data, parquet)

    def said(*more: str) -> str:
        capsys.readouterr()
        assert packed(data, *more) == 2
        return capsys.readouterr().err.splitlines()[-1]

    parquet(data / "train" / "train-1", IMAGES, names="dog cat")
    assert "has other columns or classes than the first shard" in said()
    path = data / "train" / "train-1.parquet"
    path.write_bytes(b"PAR1 cut off")
    assert "train-1.parquet is damaged, cut short" in said("--source", "parquet")
    assert not (tmp_path / "to").exists()
