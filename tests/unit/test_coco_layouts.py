"""Exports of other tools train as they are; what is no layout is one line."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from saturate.contracts import UserError
from saturate.dataset.coco.layouts import find
from tests.unit.coco_files import document, opened, write_coco
from tests.unit.folders import refused

TRAIN = 8
VAL = 5
COCO = {
    split: (split, f"annotations/instances_{split}.json")
    for split in ("train2017", "val2017")
}


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco") / "coco")


TWO = {
    "COCO": [*COCO.values()],
    "roboflow": [
        (split, f"{split}/_annotations.coco.json") for split in ("train", "valid")
    ],
    "fiftyone": [
        (f"{split}/data", f"{split}/labels.json") for split in ("train", "validation")
    ],
    "words in another case and place": [
        (f"images/{split}", f"annotations/my_{split}_coco.json")
        for split in ("Train", "Validation")
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
    # names begin with the folder of the images, ids of annotations with 0
    if file == "result.json":
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
def test_two_splits(name: str, coco: Path, root: Path) -> None:
    for split, (images, file) in zip(("train2017", "val2017"), TWO[name], strict=True):
        export(coco, root, split, images, file)
    if name == "COCO":
        for other in ("captions_train2017", "instances_train_small"):
            (root / f"annotations/{other}.json").write_text("{}")
    train = opened(root)
    val = opened(root, "val")
    assert (len(train), len(val)) == (TRAIN, VAL)
    assert train.rejected == val.rejected == 0 and train.warnings == val.warnings == []


@pytest.mark.parametrize("name", ["roboflow", "fiftyone"])
def test_a_test_set(name: str, coco: Path, root: Path) -> None:
    """It is found by its name, and changes neither of the others; there may be no other."""
    for split, (images, file) in zip(("train2017", "val2017"), TWO[name], strict=True):
        export(coco, root, split, images, file)
    with pytest.raises(UserError, match="has no annotations of test; "):
        find(root, "test", keypoints=False)
    images, file = (part.replace("train", "test") for part in TWO[name][0])
    export(coco, root, "val2017", images, file)
    found = {split: len(opened(root, split)) for split in ("train", "val", "test")}
    assert found == {"train": TRAIN, "val": VAL, "test": VAL}
    for images, _ in TWO[name]:
        shutil.rmtree(root / images.partition("/")[0])
    assert len(opened(root, "test")) == VAL


def test_a_file_of_both_splits_has_no_test_set(coco: Path, root: Path) -> None:
    export(coco, root, "train2017", *ONE["CVAT"])
    with pytest.raises(UserError, match="has no annotations of test; "):
        find(root, "test", keypoints=False)


@pytest.mark.parametrize("name", ONE)
def test_one_file_of_both_splits(name: str, coco: Path, root: Path) -> None:
    """A tenth validates, at least one image, and no image is in both; whatever is scanned first."""
    export(coco, root, "train2017", *ONE[name])
    val = opened(root, "val")
    train = opened(root)
    assert len(val) == 1 and len(train) == TRAIN - 1
    whole = opened(coco)
    ids = sorted([*train.image_id.tolist(), *val.image_id.tolist()])
    assert ids == whole.image_id.tolist()
    assert len(train.boxes) + len(val.boxes) == len(whole.boxes)
    for columns in (train, val):
        said = ["is of both splits: a tenth" in line for line in columns.warnings]
        assert sum(said) == 1 and columns.rejected == 0


def test_keypoints(coco: Path, root: Path) -> None:
    """COCO's own files are chosen by their kind; another tool's file may hold keypoints under any name."""
    assert opened(coco, keypoints=True).classes == ("__background__", "person")
    export(coco, root, "train2017", *TWO["roboflow"][0], kind="person_keypoints")
    for keypoints in (False, True, False):  # scans of one file, kept side by side
        found = opened(root, keypoints=keypoints)
        assert found.keypoints.shape[1] == 5 * keypoints


def test_a_folder_of_the_splits_own_that_appears_later_is_taken(
    coco: Path, root: Path
) -> None:
    for split in ("train", "val"):
        export(coco, root, f"{split}2017", "images", f"{split}.json")
    assert Path(os.fsdecode(opened(root).path(0))).parent == root / "images"
    shutil.copytree(root / "images", root / "train")
    assert Path(os.fsdecode(opened(root).path(0))).parent == root / "train"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "has no annotations of val; COCO's layout has val2017/"),
        (
            ["images/train/1.jpg", "labels/train/1.txt"],
            "what converts YOLO",
        ),
        # not taken from the other split
        (
            ["train.json", "images/1.jpg"],
            "has no annotations of val; COCO's layout has",
        ),
        # Labelme writes one file an image
        (
            ["a.json", "b.json", "c.json", "d.json"],
            "has 4 JSON files for val (a.json, b",
        ),
    ],
)
def test_what_is_no_layout(files: list[str], said: str, root: Path) -> None:
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    assert said in refused(lambda: find(root, "val", keypoints=False))


VOC = """<annotation><filename>{name}.jpg</filename>
<size><width>40</width><height>30</height><depth>3</depth></size>
{objects}</annotation>"""
OBJECT = """<object><name>{}</name><difficult>{}</difficult><bndbox>
<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""
OBJECTS = {
    "000005": [("dog", 0, 9, 11, 20, 30), ("cat", 1, 1, 1, 40, 30)],
    "000007": [("person", 0, 3, 4, 3, 9)],
    "000009": [],
    "000012": [("cat", 0, 31, 2, 39, 8)],
}
"""Image -> name, difficult, xmin, ymin, xmax, ymax: pixels from 1 on, the last one included."""


def test_pascal_voc_by_the_pages_two_lines(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("supervision")
    page = Path(__file__).resolve().parents[2] / "docs" / "data.md"
    (code,) = re.findall(
        r"```python\n(import supervision.*?)```", page.read_text(), re.S
    )
    for folder in ("JPEGImages", "Annotations"):
        (root / "VOC" / folder).mkdir(parents=True)
    for name, objects in OBJECTS.items():
        Image.new("RGB", (40, 30)).save(root / f"VOC/JPEGImages/{name}.jpg")
        xml = "".join(OBJECT.format(*one) for one in objects)
        text = VOC.format(name=name, objects=xml)
        (root / f"VOC/Annotations/{name}.xml").write_text(text)
    monkeypatch.chdir(root)
    exec(code, {})
    found = {}
    for split in ("train", "val"):
        columns = opened(root / "COCO", split)
        assert columns.rejected == 0
        for sample in range(len(columns)):
            its = columns.annotations(sample)
            named = [columns.class_names[one] for one in columns.category[its]]
            found[Path(os.fsdecode(columns.path(sample))).stem] = [
                (kind, *box)
                for kind, box in zip(named, columns.boxes[its].tolist(), strict=True)
            ]
    assert found == {
        name: [
            (kind, left - 1, top - 1, right - left + 1, bottom - top + 1)
            for kind, _, left, top, right, bottom in objects
        ]
        for name, objects in OBJECTS.items()
    }
