"""scripts.to_coco: a set in YOLO's layout has the boxes and masks that it had."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from dataset.coco.columns import Instances
from scripts.to_coco import main
from tests.conformance.pictures import turned
from tests.unit.coco_files import CATEGORIES, document, opened, write_coco

NAMES = list(CATEGORIES.values())
CLASS = {number: place for place, number in enumerate(CATEGORIES)}


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco") / "coco")


def to_yolo(coco: Path, root: Path, kind: str) -> None:
    """`kind`: boxes or polygons."""
    for split, name in (("train2017", "train"), ("val2017", "val")):
        told = document(coco, split)
        shutil.copytree(coco / split, root / "images" / name)
        (root / "labels" / name).mkdir(parents=True)
        for image in told["images"]:
            scale = np.array([image["width"], image["height"]])
            lines = []
            for one in told["annotations"]:
                if one["image_id"] != image["id"] or one["iscrowd"]:
                    continue
                corner, extent = np.reshape(one["bbox"], (2, 2))
                points: Any = [corner + extent / 2, extent]
                if kind == "polygons":
                    points = np.reshape(one["segmentation"][0], (-1, 2))
                values = (points / scale).ravel().tolist()
                lines.append(" ".join(map(str, [CLASS[one["category_id"]], *values])))
            file = root / "labels" / name / image["file_name"]
            file.with_suffix(".txt").write_text("\n".join(lines))
    # as exports write it, though the folder is beside the file
    told = {"path": "../datasets/mine", "train": "../images/train", "val": "val.txt"}
    (root / "data.yaml").write_text(
        yaml.safe_dump(told | {"names": dict(enumerate(NAMES))})
    )
    files = sorted(path.name for path in (root / "images/val").iterdir())
    (root / "val.txt").write_text("".join(f"images/val/{name}\n" for name in files))


def told_of(columns: Instances) -> list[tuple[Any, ...]]:
    """Return what each annotation says, beside its ids, in an order of its own."""
    image = np.repeat(np.arange(len(columns)), np.diff(columns.annotation_offsets))
    names = [Path(columns.path(int(i)).decode()).name for i in image]
    own = zip(
        names,
        columns.category,
        columns.crowd,
        columns.boxes.round(3).tolist(),
        columns.area,
        strict=True,
    )
    return sorted(
        (
            name,
            columns.classes[columns.class_of[category]],
            bool(crowd),
            box,
            round(float(area), 2),
        )
        for name, category, crowd, box, area in own
    )


def converted(root: Path) -> Path:
    target = root.parent / f"{root.name}-as-coco"
    assert main([str(root), str(target)]) == 0
    return target


@pytest.mark.parametrize("kind", ["boxes", "polygons"])
def test_yolo(kind: str, coco: Path, tmp_path: Path) -> None:
    to_yolo(coco, tmp_path / "set", kind)
    target = converted(tmp_path / "set")
    for split in ("train", "val"):
        found = opened(target, split)
        wanted = opened(coco, split, cache=tmp_path / "cache")
        ours = [one for one in told_of(wanted) if not one[2]]
        if kind == "boxes":  # which say no more than that
            ours = [(*one[:4], round(one[3][2] * one[3][3], 2)) for one in ours]
        assert told_of(found) == ours and found.rejected == 0
        assert (len(found.points) > 0) == (kind == "polygons")


def test_what_cannot_be_read_is_counted(
    coco: Path, tmp_path: Path, capsys: Any
) -> None:
    root = tmp_path / "set"
    to_yolo(coco, root, "boxes")
    label, other, *_ = sorted((root / "labels" / "train").glob("*.txt"))
    box = "0.5 0.5 0.1 0.1"
    label.write_text(
        f"0 0.5 0.5 0.1\n9 {box}\n0 x {box[4:]}\n0 nan {box[4:]}\n0 {box}\n"
    )
    (root / "images/train" / other.with_suffix(".jpg").name).write_bytes(b"text")
    target = converted(root)
    said = capsys.readouterr()
    assert f"{target}: train 7 images, " in said.out
    image = f"images/train/{label.stem}.jpg"
    why = f"first a label of {image}: 3 numbers behind the class"
    assert f"5 left out, {why}" in said.err


def test_boxes_are_of_what_is_shown(coco: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    to_yolo(coco, root, "boxes")
    path = sorted((root / "images" / "train").iterdir())[0]
    with Image.open(path) as image:
        path.write_bytes(turned(np.asarray(image.convert("RGB")), 6))
    target = converted(root)
    assert (len(opened(target)), len(opened(target, exif="shown"))) == (7, 8)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", "data.yaml: no YAML mapping with names, train and val"),
        ("data.yaml", "{names: [a], train: nowhere}", "nowhere, which data.yaml"),
        ("data.yaml", "{names: [a], train: ., val: .}", "no image of train can be"),
        ("data.yaml", "names: [a", "no YAML mapping"),
        ("data.yaml", "5", "no YAML mapping"),
    ],
)
def test_one_line_for_what_is_no_such_set(
    name: str, text: str, said: str, tmp_path: Path, capsys: Any
) -> None:
    root = tmp_path / "set"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(text)
    assert main([str(root), str(tmp_path / "to")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("to_coco: ") and said in line, line
    assert not (tmp_path / "to").exists()
