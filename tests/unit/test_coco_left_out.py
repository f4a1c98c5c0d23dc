"""Annotations and images that a scan leaves out: one line each, with the id and why; and what ends a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.coco_files import (
    KEYPOINTS,
    changed,
    document,
    opened,
    put,
    reasons,
    write_coco,
)
from tests.unit.folders import refused

ANNOTATION = 10000  # the id of an annotation of image 1000, 96 x 128 pixels
IMAGE = 1000
FILE = "annotations/instances_train2017.json"
PICTURE = "train2017/000000001000.jpg"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


def with_values(
    data: Path, key: str, number: int, values: dict[str, Any], **how: Any
) -> Any:
    """The training set with these values of one entry."""
    return changed(data, put(key, number, **values), **how)


NEGATIVE = "width, height and area cannot be negative"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"image_id": 77}, "its image is unknown"),
        ({"category_id": 99}, "its category is unknown"),
        ({"bbox": [500, 5, 9, 9]}, "its box lies outside its image"),
        ({"bbox": [float("nan"), 5, 9, 9]}, "bbox holds NaN or infinity"),
        ({"bbox": [5, 5, -9, 9]}, NEGATIVE),
        ({"bbox": [5, 5, 9]}, "bbox has 3 numbers, not x y width height"),
        ({"bbox": ["5", 5, 9, 9]}, "bbox ['5', 5, 9, 9] is no list of numbers"),
        ({"iscrowd": 2}, "iscrowd 2 is neither 0 nor 1"),
    ],
    ids=str,
)
def test_a_bad_annotation_is_left_out_by_its_id(
    values: dict[str, Any], why: str, data: Path
) -> None:
    whole = opened(data).annotation_id.tolist()
    found = with_values(data, "annotations", ANNOTATION, values)
    (line,) = reasons(found)
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}") and why in line, line
    assert len(found) == 8
    whole.remove(ANNOTATION)
    assert found.annotation_id.tolist() == whole


@pytest.mark.parametrize(
    ("segmentation", "why"),
    [
        ([[1, 2, 3, 4, 5, float("nan")]], "segmentation holds NaN or infinity"),
        ([[1, 2, 3, -1e8, 5, 6]], "a point is too far from any image"),
        ({"counts": [5, 5], "size": [96, 128]}, "its runs are 10 pixels long"),
        ({"counts": [96 * 128], "size": [128, 96]}, "not of the size of its image"),
    ],
    ids=str,
)
def test_a_bad_segmentation_is_left_out_and_its_box_stays(
    segmentation: Any, why: str, data: Path
) -> None:
    whole = opened(data)
    found = with_values(data, "annotations", ANNOTATION, {"segmentation": segmentation})
    (line,) = reasons(found)
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}") and why in line, line
    assert line.endswith("; its segmentation is left out, its box stays")
    assert (found.boxes == whole.boxes).all() and (found.usable == whole.usable).all()
    place = found.annotation_id.tolist().index(ANNOTATION)
    for name in ("polygon_offsets", "rle_offsets"):
        lengths = np.diff(getattr(whole, name))
        lengths[place] = 0
        assert np.diff(getattr(found, name)).tolist() == lengths.tolist()
    assert (found.rle == whole.rle).all()
    polygon = int(whole.polygon_offsets[place])
    gone = slice(*whole.point_offsets[polygon : polygon + 2])
    assert (found.points == np.delete(whole.points, gone, axis=0)).all()


def test_bad_keypoints(data: Path) -> None:
    number = document(data, "train2017", "person_keypoints")["annotations"][2]["id"]
    points = {"keypoints": [1, 2, 2] * 4}
    found = with_values(data, "annotations", number, points, keypoints=True)
    (line,) = reasons(found)
    assert f"annotation {number}" in line
    assert "it has not as many keypoints as its category" in line
    assert number not in found.annotation_id
    assert found.keypoints.shape == (5, len(KEYPOINTS), 3)


@pytest.mark.parametrize(
    ("number", "values", "said"),
    [
        (IMAGE, {"file_name": "gone.jpg"}, "train2017/gone.jpg: image 1000: cannot be"),
        (
            IMAGE,
            {"height": 128, "width": 96},
            f"{PICTURE}: image 1000: has 128 x 96 pixels, its annotations are for 96 x 128; with 3",
        ),
        (
            IMAGE,
            {"file_name": "../val2017/000000002000.jpg"},
            "train2017/000000002000.jpg: image 1000: cannot be read",
        ),
        (IMAGE, {"file_name": "\ud800.jpg"}, f"{FILE}: image 1000: file_name"),
        (1007, {"id": IMAGE}, f"{FILE}: image 1000: 2 images have this id; none"),
    ],
    ids=str,
)
def test_a_bad_image_is_left_out_by_its_id(
    number: int, values: Any, said: str, data: Path
) -> None:
    """Its annotations go with it: counted in its line, or named one by one."""
    whole = opened(data)
    left = {number, *({values["id"]} if "id" in values else ())}
    image_of = np.repeat(whole.image_id, np.diff(whole.annotation_offsets))
    lost = np.isin(image_of, [*left])
    found = with_values(data, "images", number, values)
    first, *others = reasons(found)
    assert first.startswith(said), first
    named = [f"annotation {one}," in "".join(others) for one in whole.annotation_id]
    assert named == (lost & ("; with" not in first)).tolist()
    assert found.image_id.tolist() == [one for one in whole.image_id if one not in left]
    assert found.annotation_id.tolist() == whole.annotation_id[~lost].tolist()


# --- what is wrong with a file as a whole ---


def mistake(root: Path) -> str:
    said = refused(lambda: opened(root))
    assert not list((root.parent / "cache").glob("*/tmp-*"))
    return said


ALL = '"annotations": [], "categories": []}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ('{"images": [], "annotations": {}}', "has no list 'annotations'"),
        ('{"images": [' + "[" * 100_000, "is no JSON"),
        ('{"images": [], ' + ALL, "has no category"),
        ('{"images": [], ' + ALL[:-2] + '{"id": 1, "name": "a"}]}', "no image of"),
    ],
)
def test_a_file_that_is_none(text: str, said: str, data: Path) -> None:
    (data / FILE).write_text(text)
    line = mistake(data)
    assert re.search(said, line) and "instances_train2017.json" in line, line


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "a\nb"}, "category 3: name 'a\\nb' is no text"),
        ({"id": 1}, "several categories of the id 1"),
    ],
)
def test_bad_categories(values: dict[str, Any], said: str, data: Path) -> None:
    assert said in refused(lambda: with_values(data, "categories", 3, values))
