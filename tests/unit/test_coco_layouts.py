"""Exports of other tools train as they are; YOLO's and Pascal VOC's are named with what converts them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts import UserError
from dataset.coco.layouts import find
from tests.unit.coco_files import document, opened, write_coco

TRAIN = 8
VAL = 5


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


def roboflow(coco: Path, root: Path) -> None:
    for split, name in (("train2017", "train"), ("val2017", "valid")):
        shutil.copytree(coco / split, root / name)
        (root / name / "_annotations.coco.json").write_text(json.dumps(document(coco, split)))


def fiftyone(coco: Path, root: Path) -> None:
    for split, name in (("train2017", "train"), ("val2017", "validation")):
        shutil.copytree(coco / split, root / name / "data")
        (root / name / "labels.json").write_text(json.dumps(document(coco, split)))


def flat_files(coco: Path, root: Path) -> None:
    shutil.copytree(coco / "train2017", root / "images")
    shutil.copytree(coco / "val2017", root / "images", dirs_exist_ok=True)
    for name in ("train", "val"):
        (root / f"{name}.json").write_text(json.dumps(document(coco, f"{name}2017")))


def subsets_of_cvat(coco: Path, root: Path) -> None:
    (root / "annotations").mkdir()
    for name in ("train", "val"):
        shutil.copytree(coco / f"{name}2017", root / "images" / name)
        (root / "annotations" / f"instances_{name}.json").write_text(
            json.dumps(document(coco, f"{name}2017"))
        )


def other_words(coco: Path, root: Path) -> None:
    """Names that hold the split as a word, in another case and place."""
    (root / "annotations").mkdir()
    for name, word in (("train", "Train"), ("val", "Validation")):
        shutil.copytree(coco / f"{name}2017", root / "images" / word)
        (root / "annotations" / f"my_{word}_coco.json").write_text(json.dumps(document(coco, f"{name}2017")))


def below_data(coco: Path, root: Path) -> None:
    (root / "annotations").mkdir()
    for name in ("train", "val"):
        shutil.copytree(coco / f"{name}2017", root / "data" / name)
        (root / "annotations" / f"{name}.json").write_text(json.dumps(document(coco, f"{name}2017")))


def cvat(coco: Path, root: Path) -> None:
    shutil.copytree(coco / "train2017", root / "images")
    (root / "annotations").mkdir()
    shutil.copy(
        coco / "annotations" / "instances_train2017.json", root / "annotations" / "instances_default.json"
    )


def label_studio(coco: Path, root: Path) -> None:
    """File names below the folder of the export, categories from 0, ids of annotations from 0."""
    shutil.copytree(coco / "train2017", root / "images")
    told = document(coco, "train2017")
    for image in told["images"]:
        image["file_name"] = f"images/{image['file_name']}"
    for number, one in enumerate(told["annotations"]):
        one["id"] = number
    (root / "result.json").write_text(json.dumps(told))


def flat(coco: Path, root: Path) -> None:
    shutil.copytree(coco / "train2017", root, dirs_exist_ok=True)
    (root / "anything.json").write_text(json.dumps(document(coco, "train2017")))


Write = Callable[[Path, Path], None]


@pytest.mark.parametrize("write", [roboflow, fiftyone, flat_files, subsets_of_cvat, other_words, below_data])
def test_two_splits(write: Write, data: Path, tmp_path: Path) -> None:
    root = tmp_path / "export"
    root.mkdir()
    write(data, root)
    train = opened(root)
    val = opened(root, "val", classes=train.classes)
    assert (len(train), len(val)) == (TRAIN, VAL)
    assert train.rejected == val.rejected == 0 and train.warnings == val.warnings == []
    assert all(Path(columns.path(i).decode()).is_file() for columns in (train, val) for i in range(VAL))


@pytest.mark.parametrize("write", [cvat, label_studio, flat])
def test_one_file_of_both_splits(write: Write, data: Path, tmp_path: Path) -> None:
    """A tenth validates, at least one image, and no image is in both; whatever is scanned first."""
    root = tmp_path / "export"
    root.mkdir()
    write(data, root)
    val = opened(root, "val")
    train = opened(root, classes=val.classes)
    assert len(val) == 1 and len(train) == TRAIN - 1
    whole = opened(data)
    assert sorted([*train.image_id.tolist(), *val.image_id.tolist()]) == whole.image_id.tolist()
    assert len(train.boxes) + len(val.boxes) == len(whole.boxes)
    for columns in (train, val):
        told = "is of both splits: a tenth of its images validates"
        assert sum(told in line for line in columns.warnings) == 1 and columns.rejected == 0


def test_a_split_that_is_missing_is_not_taken_from_the_other(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "export"
    root.mkdir()
    flat_files(data, root)
    (root / "val.json").unlink()
    with pytest.raises(UserError, match="COCO's layout has val2017/"):
        opened(root, "val")
    assert len(opened(root)) == TRAIN


@pytest.mark.parametrize(
    ("files", "tool"),
    [
        (["data.yaml", "images/train/1.jpg", "labels/train/1.txt"], "YOLO"),
        (["train/images/1.jpg", "train/labels/1.txt"], "YOLO"),
        (["images/1.jpg", "labels/1.txt"], "YOLO"),
        (["obj_train_data/1.jpg", "obj_train_data/1.txt", "obj.names"], "YOLO"),
        (["JPEGImages/1.jpg", "Annotations/1.xml", "ImageSets/Main/train.txt"], "Pascal VOC"),
    ],
)
def test_what_has_to_be_converted_is_named(files: list[str], tool: str, tmp_path: Path) -> None:
    root = tmp_path / "my data"
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    with pytest.raises(UserError) as caught:
        find(root, "train", keypoints=False)
    said = str(caught.value)
    assert said.startswith(
        f"--data: {root} is in {tool}'s layout; python -m scripts.to_coco '{root}' NEW_FOLDER"
    )
    assert "\n" not in said


def test_pascal_voc_as_it_is_unpacked_is_named_by_its_own_folder(tmp_path: Path) -> None:
    inner = tmp_path / "VOCdevkit" / "VOC2007"
    (inner / "Annotations").mkdir(parents=True)
    (inner / "Annotations" / "1.xml").write_text("")
    for root in (tmp_path, tmp_path / "VOCdevkit", inner):
        with pytest.raises(UserError, match=f"python -m scripts.to_coco {inner} NEW_FOLDER"):
            find(root, "train", keypoints=False)


def test_many_files_are_no_annotation_file(tmp_path: Path) -> None:
    """Labelme writes one file an image."""
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.json").write_text("{}")
    with pytest.raises(UserError, match=r"has 4 JSON files \(a.json, b.json, c.json, ...\)"):
        find(tmp_path, "train", keypoints=False)


def test_keypoints_of_another_tool(data: Path, tmp_path: Path) -> None:
    root: Any = tmp_path / "export"
    root.mkdir()
    for split, name in (("train2017", "train"), ("val2017", "valid")):
        shutil.copytree(data / split, root / name)
        told = document(data, split, "person_keypoints")
        (root / name / "_annotations.coco.json").write_text(json.dumps(told))
    assert opened(root, keypoints=True).keypoints.shape[1] == 5
