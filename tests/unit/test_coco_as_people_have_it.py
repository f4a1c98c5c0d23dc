"""Annotation files as tools and people write them: what is taken, and what is warned of."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.coco.warnings import crowd_warning
from tasks import _results
from tasks._coco import Detections
from tasks._results import Results
from tests.unit.coco_files import (
    changed,
    document,
    of,
    opened,
    put,
    reasons,
    write,
    write_coco,
)

IMAGE = 1000
NAME = "000000001000.jpg"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


def each(
    key: str, change: Callable[[dict[str, Any]], Any]
) -> Callable[[dict[str, Any]], None]:
    """Return a change of a document: of every entry of a list."""

    def changed_each(written: dict[str, Any]) -> None:
        for entry in written[key]:
            change(entry)

    return changed_each


# --- ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        (lambda one: one.pop("id"), 20),
        (lambda one: one.update(id=7), 19),
        (lambda one: one.update(id=None), 20),
        (lambda one: one.update(id=one["image_id"]), 14),
        (lambda one: one.update(id=f"a{one['id']}"), 0),
    ],
    ids=["missing", "all the same", "null", "by image", "text"],
)
def test_annotations_without_ids_of_their_own(
    change: Any, anew: int, data: Path
) -> None:
    whole = opened(data)
    found = changed(data, each("annotations", change))
    assert (found.boxes == whole.boxes).all() and found.rejected == 0
    assert len(set(found.annotation_id.tolist())) == len(whole.annotation_id) == 20
    assert [
        "numbered anew" in line and line.startswith(f"{anew} of 20 ")
        for line in found.warnings
    ] == ([True] * (anew > 0))


def test_ids_that_are_text(data: Path, tmp_path: Path) -> None:
    """Numbers in quotes are these numbers, others get their own; a results file has the texts again."""

    def change(written: dict[str, Any]) -> None:
        for image in written["images"]:
            image["id"] = f"img-{image['id']}" if image["id"] != IMAGE else str(IMAGE)
        for one in written["annotations"]:
            one["image_id"] = (
                f"img-{one['image_id']}" if one["image_id"] != IMAGE else str(IMAGE)
            )
            one["category_id"] = str(one["category_id"])
        for category in written["categories"]:
            category["id"] = str(category["id"])

    whole = opened(data)
    found = changed(data, change)
    assert found.rejected == 0 and IMAGE in found.image_id.tolist()
    assert found.classes == whole.classes and sorted(found.area) == sorted(whole.area)
    detections = Detections(
        image_ids=np.asarray(found.image_id),
        category_ids=np.full(8, 3),
        boxes=np.ones((8, 4)),
        scores=np.ones(8),
    )
    path = tmp_path / "detections.json"
    path.write_bytes(_results.written(detections, "boxes", found.text_ids))
    entries = json.loads(path.read_text())
    assert {one["image_id"] for one in entries} == {
        "1000",
        *(f"img-{1000 + 7 * i}" for i in range(1, 8)),
    }
    assert {one["category_id"] for one in entries} == {"3"}
    assert Results.read(path).checked(found).image_ids.tolist() == sorted(
        found.image_id.tolist()
    )


# --- boxes --------------------------------------------------------------------------------------------------


def to_corners(one: dict[str, Any]) -> None:
    x, y, w, h = one["bbox"]
    one["bbox"] = [x, y, x + w, y + h]


def to_shares(one: dict[str, Any]) -> None:
    one["bbox"] = [value / 128 for value in one["bbox"]]


def half_of_them() -> Callable[[dict[str, Any]], None]:
    numbers = iter(range(100))
    return lambda one: one.update(iscrowd=next(numbers) % 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (to_corners, "these may be x0 y0 x1 y1"),
        (to_shares, "20 of 20 boxes are not larger than a pixel"),
        (
            half_of_them(),
            "10 of 20 annotations are crowds (iscrowd 1): no detector trains on them",
        ),
        (lambda one: None, ""),
    ],
    ids=["corners", "shares", "crowds", "as COCO"],
)
def test_boxes_that_may_be_meant_otherwise(change: Any, said: str, data: Path) -> None:
    warnings = changed(data, each("annotations", change)).warnings
    assert len(warnings) == bool(said) and all(said in line for line in warnings), (
        warnings
    )


@pytest.mark.parametrize(
    ("crowds", "said"),
    [(0, ""), (1, "1 of 20 annotations are crowds"), (4, "4 of 20"), (5, "")],
)
def test_a_few_crowds_are_counted_and_no_warning(crowds: int, said: str) -> None:
    """COCO has them too; where there are more, a doubt has the count."""
    assert crowd_warning(np.arange(20) < crowds).startswith(said)
    assert bool(crowd_warning(np.arange(20) < crowds)) == bool(said)


# --- names of files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        (NAME, f"C:\\Users\\me\\photos\\{NAME}"),
        (NAME, f"/mnt/disk/photos/{NAME}"),
        (NAME, f"../../media/upload/1/{NAME}"),
        ("a b/1 2.jpg", "a%20b/1%202.jpg"),
        ("sub/1.jpg", "sub\\1.jpg"),
        (
            unicodedata.normalize("NFC", "Mädchen.jpg"),
            unicodedata.normalize("NFD", "Mädchen.jpg"),
        ),
        (
            unicodedata.normalize("NFD", "Mädchen.jpg"),
            unicodedata.normalize("NFC", "Mädchen.jpg"),
        ),
        ("50%20.jpg", "x/50%20.jpg"),
    ],
    ids=[
        "windows",
        "absolute",
        "upwards",
        "percent",
        "backslash",
        "nfd",
        "nfc",
        "percent in the name",
    ],
)
def test_names_are_found_by_their_last_parts(
    stored: str, written: str, data: Path
) -> None:
    path = data / "train2017" / stored
    path.parent.mkdir(exist_ok=True)
    (data / "train2017" / NAME).rename(path)
    found = changed(data, put("images", IMAGE, file_name=written))
    assert found.rejected == 0 and found.path(
        found.image_id.tolist().index(IMAGE)
    ).endswith(stored.encode())
    (line,) = found.warnings
    assert line.startswith(
        "1 of 8 file names are found by their last parts alone, first "
    )


def test_a_file_is_of_one_image(data: Path) -> None:
    """Last parts that several names have say nothing."""

    def change(written: dict[str, Any]) -> None:
        of(written, "images", IMAGE)["file_name"] = "/left/1.jpg"
        of(written, "images", 1014)["file_name"] = "/right/1.jpg"
        of(written, "images", 1021)["file_name"] = "/other/000000001007.jpg"

    (data / "train2017" / NAME).rename(data / "train2017" / "1.jpg")
    found = changed(data, change)
    assert (
        found.image_id.tolist() == [1007, 1028, 1035, 1042, 1049]
        and found.warnings == []
    )
    assert ["and so may another image's" in line for line in reasons(found)] == [
        True
    ] * 3


# --- keypoints ----------------------------------------------------------------------------------------------


def test_a_category_without_keypoints_beside_one_with(data: Path) -> None:
    """Both are trained: the boxes of the one have no keypoint to learn."""
    written = document(data, "train2017", "person_keypoints")
    others = document(data, "train2017")
    written["categories"].insert(0, {"id": 0, "name": "animal", "keypoints": []})
    written["categories"].append({"id": 5, "name": "triangle"})
    triangles = [one for one in others["annotations"] if one["category_id"] == 5]
    written["annotations"] += triangles
    write(data, "train2017", written, "person_keypoints")
    found = opened(data, keypoints=True)
    assert found.rejected == 0 and found.keypoints.shape == (6 + len(triangles), 5, 3)
    assert found.classes == ("__background__", "animal", "person", "triangle")
    seen = (found.keypoints[..., 2] > 0).any(axis=1)
    assert seen.tolist() == (found.category == 1).tolist()
    assert found.usable.all()
