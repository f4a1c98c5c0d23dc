"""scripts.to_coco: a set in YOLO's or Pascal VOC's layout has the boxes, masks and keypoints that it had."""

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
from tests.unit.coco_files import CATEGORIES, KEYPOINTS, document, opened, write_coco

NAMES = list(CATEGORIES.values())
CLASS = {number: place for place, number in enumerate(CATEGORIES)}
FLIPS = [0, 2, 1, 4, 3]


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco") / "coco")


def of_image(told: dict[str, Any], image: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one
        for one in told["annotations"]
        if one["image_id"] == image["id"] and not one["iscrowd"]
    ]


def to_yolo(coco: Path, root: Path, kind: str, *, splits: bool = True) -> None:
    """`kind`: boxes, polygons or keypoints."""
    for split, name in (("train2017", "train"), ("val2017", "val")):
        told = document(
            coco, split, "person_keypoints" if kind == "keypoints" else "instances"
        )
        place = name if splits else ""
        (root / "images" / place).mkdir(parents=True, exist_ok=True)
        (root / "labels" / place).mkdir(parents=True, exist_ok=True)
        for image in told["images"]:
            scale = np.array([image["width"], image["height"]])
            lines = []
            for one in of_image(told, image):
                x, y, w, h = one["bbox"]
                values = [
                    *((np.array([x, y]) + np.array([w, h]) / 2) / scale),
                    *(np.array([w, h]) / scale),
                ]
                if kind == "polygons":
                    values = (
                        (np.array(one["segmentation"][0]).reshape(-1, 2) / scale)
                        .ravel()
                        .tolist()
                    )
                elif kind == "keypoints":
                    points = np.array(one["keypoints"], float).reshape(-1, 3)
                    points[:, :2] /= scale
                    values += points.ravel().tolist()
                lines.append(" ".join(map(str, [CLASS[one["category_id"]], *values])))
            (root / "labels" / place / image["file_name"]).with_suffix(
                ".txt"
            ).write_text("\n".join(lines))
            shutil.copy(coco / split / image["file_name"], root / "images" / place)
    told = {"names": dict(enumerate(NAMES))}
    if splits:  # as exports write it, though the folder is beside the file
        told |= {
            "path": "../datasets/mine",
            "train": "../images/train",
            "val": "images/val",
        }
    if kind == "keypoints":
        told |= {"kpt_shape": [5, 3], "flip_idx": FLIPS, "names": ["person"]}
    (root / "data.yaml").write_text(yaml.safe_dump(told))


def to_voc(coco: Path, root: Path) -> None:
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, name in (("train2017", "train"), ("val2017", "val")):
        told = document(coco, split)
        for image in told["images"]:
            objects = ""
            for one in [
                each for each in told["annotations"] if each["image_id"] == image["id"]
            ]:
                x, y, w, h = map(int, one["bbox"])
                objects += (
                    f"<object><name>{CATEGORIES[one['category_id']]}</name>"
                    f"<difficult>{one['iscrowd']}</difficult><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
                    f"<xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
                )
            size = f"<width>{image['width']}</width><height>{image['height']}</height><depth>3</depth>"
            text = f"<annotation><size>{size}</size>{objects}</annotation>"
            stem = Path(image["file_name"]).stem
            (root / "Annotations" / f"{stem}.xml").write_text(text)
            shutil.copy(coco / split / image["file_name"], root / "JPEGImages")
        stems = [Path(image["file_name"]).stem for image in told["images"]]
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text(
            "\n".join(stems) + "\n"
        )


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


@pytest.mark.parametrize("kind", ["boxes", "polygons", "keypoints"])
def test_yolo(kind: str, coco: Path, tmp_path: Path) -> None:
    to_yolo(coco, tmp_path / "set", kind)
    keypoints = kind == "keypoints"
    target = converted(tmp_path / "set")
    for split in ("train", "val"):
        found = opened(target, split, keypoints=keypoints)
        wanted = opened(coco, split, keypoints=keypoints, cache=tmp_path / "cache")
        ours = [one for one in told_of(wanted) if not one[2]]
        if kind == "boxes":  # which say no more than that
            ours = [(*one[:4], round(one[3][2] * one[3][3], 2)) for one in ours]
        assert told_of(found) == ours and found.rejected == 0
        assert (len(found.points) > 0) == (kind == "polygons")
        if keypoints:
            assert found.keypoint_mirror.tolist() == FLIPS and len(KEYPOINTS) == 5
            assert (
                np.abs(
                    np.sort(found.keypoints.ravel()) - np.sort(wanted.keypoints.ravel())
                ).max()
                < 1e-3
            )


def test_yolo_without_splits(coco: Path, tmp_path: Path) -> None:
    to_yolo(coco, tmp_path / "set", "boxes", splits=False)
    target = converted(tmp_path / "set")
    train, val = opened(target), opened(target, "val")
    assert (len(train), len(val)) == (12, 1) and train.rejected == val.rejected == 0


def test_voc(coco: Path, tmp_path: Path) -> None:
    """Boxes count from 1 and include the last pixel; difficult ones are neither trained on nor missed."""
    to_voc(coco, tmp_path / "set")
    target = converted(tmp_path / "set")
    for split in ("train", "val"):
        found = opened(target, split)
        wanted = told_of(opened(coco, split, cache=tmp_path / "cache"))
        assert told_of(found) == [
            (*one[:4], round(one[3][2] * one[3][3], 2)) for one in wanted
        ]
        assert found.rejected == 0 and sorted(found.classes[1:]) == sorted(NAMES)


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


def test_boxes_are_of_what_is_shown(coco: Path, tmp_path: Path, capsys: Any) -> None:
    root = tmp_path / "set"
    to_yolo(coco, root, "boxes")
    path = sorted((root / "images" / "train").iterdir())[0]
    with Image.open(path) as image:
        path.write_bytes(turned(np.asarray(image.convert("RGB")), 6))
    target = converted(root)
    said = "EXIF turns 1 images; where boxes are of what is shown, train with --exif"
    assert said in capsys.readouterr().out
    assert (len(opened(target)), len(opened(target, exif="shown"))) == (7, 8)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", "has no data.yaml with names, and no classes.txt"),
        ("data.yaml", "names: [a]", "no image of default can be used; there is none"),
        (
            "data.yaml",
            "names: [a]\ntrain: nowhere",
            "nowhere, which data.yaml names, is",
        ),
        ("data.yaml", "names: [a", "is no YAML mapping"),
        ("data.yaml", "5", "is no YAML mapping"),
        ("Annotations/1.xml", "<annotation>", "is no XML"),
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
