"""Exports of other tools train as they are; YOLO's and Pascal VOC's are named with what converts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from contracts import UserError
from dataset.coco.layouts import find
from tests.unit.coco_files import document, opened, write_coco

TRAIN = 8
VAL = 5


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


TWO = {
    "roboflow": [
        ("train", "train/_annotations.coco.json"),
        ("valid", "valid/_annotations.coco.json"),
    ],
    "fiftyone": [
        ("train/data", "train/labels.json"),
        ("validation/data", "validation/labels.json"),
    ],
    "flat files": [("images", "train.json"), ("images", "val.json")],
    "subsets of CVAT": [
        ("images/train", "annotations/instances_train.json"),
        ("images/val", "annotations/instances_val.json"),
    ],
    "words in another case and place": [
        ("images/Train", "annotations/my_Train_coco.json"),
        ("images/Validation", "annotations/my_Validation_coco.json"),
    ],
    "below data": [
        ("data/train", "annotations/train.json"),
        ("data/val", "annotations/val.json"),
    ],
}
ONE = {
    "CVAT": ("images", "annotations/instances_default.json"),
    "Label Studio": ("images", "result.json"),
    "flat": ("", "anything.json"),
}
"""Whose export -> folder of the images and file of the annotations, of both splits or of each."""


def export(
    coco: Path, root: Path, split: str, images: str, file: str, kind: str = "instances"
) -> None:
    shutil.copytree(coco / split, root / images, dirs_exist_ok=True)
    written = document(coco, split, kind)
    if (
        file == "result.json"
    ):  # names begin with the folder of the images, ids of annotations with 0
        for image in written["images"]:
            image["file_name"] = f"images/{image['file_name']}"
        for number, one in enumerate(written["annotations"]):
            one["id"] = number
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(json.dumps(written))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.mark.parametrize("name", TWO)
def test_two_splits(name: str, data: Path, root: Path) -> None:
    for split, (images, file) in zip(("train2017", "val2017"), TWO[name], strict=True):
        export(data, root, split, images, file)
    train = opened(root)
    val = opened(root, "val", classes=train.classes)
    assert (len(train), len(val)) == (TRAIN, VAL)
    assert train.rejected == val.rejected == 0 and train.warnings == val.warnings == []
    assert all(
        Path(columns.path(i).decode()).is_file()
        for columns in (train, val)
        for i in range(VAL)
    )


@pytest.mark.parametrize("name", ONE)
def test_one_file_of_both_splits(name: str, data: Path, root: Path) -> None:
    """A tenth validates, at least one image, and no image is in both; whatever is scanned first."""
    export(data, root, "train2017", *ONE[name])
    val = opened(root, "val")
    train = opened(root, classes=val.classes)
    assert len(val) == 1 and len(train) == TRAIN - 1
    whole = opened(data)
    assert (
        sorted([*train.image_id.tolist(), *val.image_id.tolist()])
        == whole.image_id.tolist()
    )
    assert len(train.boxes) + len(val.boxes) == len(whole.boxes)
    for columns in (train, val):
        shared = "is of both splits: a tenth of its images validates"
        assert (
            sum(shared in line for line in columns.warnings) == 1
            and columns.rejected == 0
        )


def test_a_split_that_is_missing_is_not_taken_from_the_other(
    data: Path, root: Path
) -> None:
    export(data, root, "train2017", *TWO["flat files"][0])
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
        (
            ["JPEGImages/1.jpg", "Annotations/1.xml", "ImageSets/Main/train.txt"],
            "Pascal VOC",
        ),
    ],
)
def test_what_has_to_be_converted_is_named(
    files: list[str], tool: str, tmp_path: Path
) -> None:
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


def test_pascal_voc_as_it_is_unpacked_is_named_by_its_own_folder(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "VOCdevkit" / "VOC2007"
    (inner / "Annotations").mkdir(parents=True)
    (inner / "Annotations" / "1.xml").write_text("")
    for root in (tmp_path, tmp_path / "VOCdevkit", inner):
        with pytest.raises(
            UserError, match=f"python -m scripts.to_coco {inner} NEW_FOLDER"
        ):
            find(root, "train", keypoints=False)


def test_many_files_are_no_annotation_file(tmp_path: Path) -> None:
    """Labelme writes one file an image."""
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"has 4 JSON files \(a.json, b.json, c.json, ...\)"
    ):
        find(tmp_path, "train", keypoints=False)


def test_keypoints_of_another_tool(data: Path, root: Path) -> None:
    export(data, root, "train2017", *TWO["roboflow"][0], kind="person_keypoints")
    assert opened(root, keypoints=True).keypoints.shape[1] == 5
