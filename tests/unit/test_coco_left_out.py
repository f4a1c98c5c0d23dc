"""Annotations and images that a scan leaves out: one line each, with the id and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.coco_files import (
    KEYPOINTS,
    changed,
    document,
    of,
    opened,
    put,
    reasons,
    write_coco,
)

ANNOTATION = 10000  # the id of an annotation of image 1000, 96 x 128 pixels
IMAGE = 1000
FILE = "annotations/instances_train2017.json"
GONE = ...  # the same words in every process, since they are part of a test's name
"""Stands for a value that is not in the file."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


def with_values(
    data: Path, key: str, number: int, values: dict[str, Any], **how: Any
) -> Any:
    """The training set with these values of one entry."""

    def change(written: dict[str, Any]) -> None:
        entry = of(written, key, number)
        entry.update(values)
        for name in [name for name, value in entry.items() if value is GONE]:
            del entry[name]

    return changed(data, change, **how)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"category_id": 4}, "unknown category 4"),
        ({"category_id": 1.5}, "category_id 1.5 is no whole number"),
        ({"category_id": "one"}, "unknown category"),
        ({"category_id": [1]}, "category_id [1] is no whole"),
        ({"image_id": 77}, "unknown image 77"),
        ({"image_id": 1e30}, "is no whole number"),
        (
            {"bbox": [128, 5, 9, 9]},
            "box [128.0, 5.0, 9.0, 9.0] lies outside image 1000, which has 128 x 96",
        ),
        ({"bbox": [5, 97, 9, 9]}, "box [5.0, 97.0, 9.0, 9.0] lies outside image 1000"),
        (
            {"bbox": [-9, 5, 8.5, 9]},
            "box [-9.0, 5.0, 8.5, 9.0] lies outside image 1000",
        ),
        (
            {"bbox": [5, -9, 9, 8.5]},
            "box [5.0, -9.0, 9.0, 8.5] lies outside image 1000",
        ),
        ({"bbox": [float("nan"), 5, 9, 9]}, "bbox holds NaN or infinity"),
        ({"bbox": [5, 5, -9, 9]}, "width, height and area cannot be negative"),
        ({"bbox": [5, 5, 9]}, "bbox has 3 numbers, not x y width height"),
        ({"bbox": ["5", 5, 9, 9]}, "bbox ['5', 5, 9, 9] is no list of numbers"),
        ({"bbox": GONE}, "has no bbox"),
        ({"area": float("inf")}, "area holds NaN or infinity"),
        ({"area": -1}, "width, height and area cannot be negative"),
        ({"area": 10**400}, "area"),
        ({"area": "5"}, "is no list of numbers"),
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
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}: ") and why in line, line
    assert len(found) == 8
    assert found.annotation_id.tolist() == [
        number for number in whole if number != ANNOTATION
    ]


@pytest.mark.parametrize(
    ("segmentation", "why"),
    [
        ([[1, 2, 3, 4, 5, float("nan")]], "segmentation holds NaN or infinity"),
        ([[1, 2, 3, -1e8, 5, 6]], "a point is 1e+08 pixels away"),
        ([[1, 2, 3, 4, 5, 6, 7]], "a polygon has 7 numbers"),
        ([[1, 2, 3, 4]], "a polygon has 4 numbers"),
        ([1, 2, 3, 4, 5, 6], "segmentation 1 is no list of numbers"),
        ("x", "'x' is no object with 'counts'"),
        ({"counts": [1]}, "has no size"),
        ({"counts": [5, 5], "size": [96, 128]}, "its runs are 10 pixels long"),
        ({"counts": [-1, 12289], "size": [96, 128]}, "segmentation: cannot be decoded"),
        ({"counts": "P", "size": [96, 128]}, "cannot be decoded"),
        ({"counts": "é", "size": [96, 128]}, "cannot be decoded"),
        (
            {"counts": [96 * 128], "size": [128, 96]},
            "segmentation of 96 x 128 pixels does not fit image 1000, which has 128 x 96 pixels",
        ),
    ],
    ids=str,
)
def test_a_bad_segmentation_is_left_out_and_its_box_stays(
    segmentation: Any, why: str, data: Path
) -> None:
    whole = opened(data)
    found = with_values(data, "annotations", ANNOTATION, {"segmentation": segmentation})
    (line,) = reasons(found)
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}: ") and why in line, line
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


def test_annotations_without_an_id(data: Path) -> None:
    found = changed(
        data,
        lambda written: written["annotations"].extend(
            [[], {"bbox": [1, 2, 3, 4], "area": 1}, None]
        ),
    )
    lines = reasons(found)
    assert [
        line.startswith(f"{FILE}: annotation without an id: ") for line in lines
    ] == [True] * 3
    assert "has no image_id" in lines[1] and "None is no object" in lines[2]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1, 2, 2] * 4, "12 numbers as keypoints, not 15"),
        ([], "0 numbers as keypoints, not 15"),
        ([1, float("inf"), 2] * 5, "keypoints holds NaN or infinity"),
        ([1, 2, 3] * 5, "a visibility is none of 0, 1 and 2"),
    ],
)
def test_bad_keypoints(values: Any, why: str, data: Path) -> None:
    number = document(data, "train2017", "person_keypoints")["annotations"][2]["id"]
    found = with_values(
        data, "annotations", number, {"keypoints": values}, keypoints=True
    )
    (line,) = reasons(found)
    assert line.startswith(
        f"annotations/person_keypoints_train2017.json: annotation {number}: "
    )
    assert why in line and number not in found.annotation_id
    assert found.keypoints.shape == (5, len(KEYPOINTS), 3)


PICTURE = "train2017/000000001000.jpg: image 1000: "
NO_PATH = f"{FILE}: image 1000: file_name "


@pytest.mark.parametrize(
    ("number", "values", "said"),
    [
        (
            1000,
            {"file_name": "gone.jpg"},
            "train2017/gone.jpg: image 1000: cannot be read: No such file or",
        ),
        (
            1021,
            {"file_name": "gone.jpg"},
            "train2017/gone.jpg: image 1021: cannot be read: No such file or",
        ),
        (
            *(1000, {"height": 128, "width": 96}),
            f"{PICTURE}has 128 x 96 pixels, its annotations are for 96 x 128; with 3 annotations",
        ),
        (
            1000,
            {"file_name": "../val2017/000000002000.jpg"},
            f"{NO_PATH}'../val2017/000000002000.jpg' is no",
        ),
        (
            1000,
            {"file_name": "/etc/passwd"},
            f"{NO_PATH}'/etc/passwd' is no path below",
        ),
        (1000, {"file_name": "\ud800.jpg"}, f"{NO_PATH}'\\ud800.jpg' is no path"),
        (1000, {"file_name": GONE}, f"{FILE}: image 1000: has no file_name"),
        (1000, {"height": 0}, f"{FILE}: image 1000: is 128 x 0 pixels large"),
        (1000, {"height": "96"}, f"{FILE}: image 1000: height '96' is no whole number"),
        (
            1007,
            {"id": 1000},
            f"{FILE}: image 1000: 2 images have this id; none of them is used",
        ),
    ],
    ids=str,
)
def test_a_bad_image_is_left_out_by_its_id(
    number: int, values: Any, said: str, data: Path
) -> None:
    """With its annotations: counted in its line, or named one by one."""
    whole = opened(data)
    left = {number, *({values["id"]} if "id" in values else ())}
    image_of = np.repeat(whole.image_id, np.diff(whole.annotation_offsets))
    lost = np.isin(image_of, [*left])
    found = with_values(data, "images", number, values)
    first, *others = reasons(found)
    assert first.startswith(said) and ("; with" in first) == (
        not others and lost.any()
    ), first
    why = {
        image: "its image 1000 is left out"
        if image == 1000
        else f"unknown image {image}"
        for image in left
    }
    named = [
        f"{FILE}: annotation {one}: {why[image]}"
        for one, image in zip(
            whole.annotation_id[lost].tolist(), image_of[lost].tolist(), strict=True
        )
    ]
    assert sorted(others) == ([] if "; with" in first else sorted(named))
    assert found.image_id.tolist() == [one for one in whole.image_id if one not in left]
    assert found.annotation_id.tolist() == whole.annotation_id[~lost].tolist()


def test_image_files_that_are_none(data: Path) -> None:
    (data / "train2017" / "000000001000.jpg").write_bytes(b"text")
    (data / "train2017" / "000000001007.jpg").write_bytes(b"")
    first, second = reasons(opened(data))
    assert first.startswith(f"{PICTURE}no known image format")
    assert (
        second
        == "train2017/000000001007.jpg: image 1007: empty file; with 4 annotations"
    )


def test_a_turned_image_is_named_so(data: Path) -> None:
    """Its annotations may be for what a viewer shows; the stored pixels are what is trained on."""
    path = data / "train2017" / "000000001000.jpg"
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(path, exif=exif)
    (line,) = reasons(changed(data, put("images", IMAGE, height=128, width=96)))
    assert "EXIF orientation 6: the stored pixels count" in line
    assert changed(data, put("images", IMAGE, height=96, width=128)).rejected == 0
