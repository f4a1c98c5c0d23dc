"""Annotations and images that a scan leaves out: one line each, with the id and why."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.coco_files import KEYPOINTS, changed, document, drop, of, opened, put, reasons, write_coco


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


ANNOTATION = 10000  # the id of an annotation of image 1000, 96 x 128 pixels
IMAGE = 1000
FILE = "annotations/instances_train2017.json"


given = partial(put, "annotations", ANNOTATION)
without = partial(drop, "annotations", ANNOTATION)
pictured = partial(put, "images", IMAGE)


def twice(key: str, number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda written: written[key].append(of(written, key, number) | values)


BAD_ANNOTATIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown category": (given(category_id=4), "unknown category 4"),
    "unknown image": (given(image_id=77), "unknown image 77"),
    "right of the image": (
        given(bbox=[128, 5, 9, 9]),
        "box [128.0, 5.0, 9.0, 9.0] lies outside image 1000, which has 128 x 96 pixels",
    ),
    "below the image": (
        given(bbox=[5, 97, 9, 9]),
        "box [5.0, 97.0, 9.0, 9.0] lies outside image 1000",
    ),
    "left of the image": (
        given(bbox=[-9, 5, 8.5, 9]),
        "box [-9.0, 5.0, 8.5, 9.0] lies outside image 1000",
    ),
    "above the image": (
        given(bbox=[5, -9, 9, 8.5]),
        "box [5.0, -9.0, 9.0, 8.5] lies outside image 1000",
    ),
    "NaN": (given(bbox=[float("nan"), 5, 9, 9]), "bbox holds NaN or infinity"),
    "infinite area": (given(area=float("inf")), "area holds NaN or infinity"),
    "negative width": (
        given(bbox=[5, 5, -9, 9]),
        "width, height and area cannot be negative",
    ),
    "negative area": (given(area=-1), "width, height and area cannot be negative"),
    "three numbers": (
        given(bbox=[5, 5, 9]),
        "bbox has 3 numbers, not x y width height",
    ),
    "words": (
        given(bbox=["5", 5, 9, 9]),
        "bbox ['5', 5, 9, 9] is no list of numbers",
    ),
    "huge": (given(area=10**400), "area"),
    "no box": (without("bbox"), "has no bbox"),
    "area is a word": (given(area="5"), "is no list of numbers"),
    "half a category": (
        given(category_id=1.5),
        "category_id 1.5 is no whole number",
    ),
    "endless id": (given(image_id=1e30), "is no whole number"),
    "category is a word": (given(category_id="one"), "unknown category"),
    "category is a list": (given(category_id=[1]), "category_id [1] is no whole"),
    "crowd": (given(iscrowd=2), "iscrowd 2 is neither 0 nor 1"),
}


@pytest.mark.parametrize("what", BAD_ANNOTATIONS)
def test_a_bad_annotation_is_left_out_by_its_id(what: str, data: Path) -> None:
    change, why = BAD_ANNOTATIONS[what]
    whole = {int(number) for number in opened(data).annotation_id}
    found = changed(data, change)
    (line,) = reasons(found)
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}: ") and why in line, line
    assert len(found) == 8
    left = whole - {ANNOTATION}
    assert {int(number) for number in found.annotation_id} == left and len(found.annotation_id) == len(left)


BAD_SEGMENTATIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "NaN in a polygon": (
        given(segmentation=[[1, 2, 3, 4, 5, float("nan")]]),
        "segmentation holds NaN or infinity",
    ),
    "beyond any image": (
        given(segmentation=[[1, 2, 3, -1e8, 5, 6]]),
        "a point is 1e+08 pixels away",
    ),
    "odd polygon": (
        given(segmentation=[[1, 2, 3, 4, 5, 6, 7]]),
        "a polygon has 7 numbers",
    ),
    "two points": (given(segmentation=[[1, 2, 3, 4]]), "a polygon has 4 numbers"),
    "polygon without brackets": (
        given(segmentation=[1, 2, 3, 4, 5, 6]),
        "segmentation 1 is no list of numbers",
    ),
    "segmentation is a word": (
        given(segmentation="x"),
        "'x' is no object with 'counts'",
    ),
    "runs too short": (
        given(segmentation={"counts": [5, 5], "size": [96, 128]}),
        "its runs are 10 pixels long",
    ),
    "negative run": (
        given(segmentation={"counts": [-1, 12289], "size": [96, 128]}),
        "segmentation: cannot be decoded",
    ),
    "runs of another image": (
        given(segmentation={"counts": [96 * 128], "size": [128, 96]}),
        "segmentation of 96 x 128 pixels does not fit image 1000, which has 128 x 96 pixels",
    ),
    "compressed, cut short": (
        given(segmentation={"counts": "P", "size": [96, 128]}),
        "cannot be decoded",
    ),
    "compressed, other letters": (
        given(segmentation={"counts": "é", "size": [96, 128]}),
        "cannot be decoded",
    ),
    "no size": (given(segmentation={"counts": [1]}), "has no size"),
}


@pytest.mark.parametrize("what", BAD_SEGMENTATIONS)
def test_a_bad_segmentation_is_left_out_and_its_box_stays(what: str, data: Path) -> None:
    change, why = BAD_SEGMENTATIONS[what]
    whole = opened(data)
    found = changed(data, change)
    (line,) = reasons(found)
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}: ") and why in line, line
    assert line.endswith("; its segmentation is left out, its box stays")
    assert (found.boxes == whole.boxes).all() and (found.usable == whole.usable).all()
    (place,) = np.flatnonzero(found.annotation_id == ANNOTATION)
    assert np.diff(found.polygon_offsets)[place] == np.diff(found.rle_offsets)[place] == 0
    others = np.arange(len(found.boxes)) != place
    for offsets in ("polygon_offsets", "rle_offsets"):
        lengths = [np.diff(getattr(each, offsets))[others].tolist() for each in (found, whole)]
        assert lengths[0] == lengths[1]
    assert (found.rle == whole.rle).all()
    polygon = int(whole.polygon_offsets[place])
    gone = slice(*whole.point_offsets[polygon : polygon + 2])
    assert (found.points == np.delete(whole.points, gone, axis=0)).all()


def test_annotations_without_an_id(data: Path) -> None:
    found = changed(
        data, lambda written: written["annotations"].extend([[], {"bbox": [1, 2, 3, 4], "area": 1}, None])
    )
    lines = reasons(found)
    assert [line.startswith(f"{FILE}: annotation without an id: ") for line in lines] == [True] * 3
    assert "has no image_id" in lines[1] and "None is no object" in lines[2]


BAD_KEYPOINTS: dict[str, tuple[Any, str]] = {
    "too few": ([1, 2, 2] * 4, "12 numbers as keypoints, not 15"),
    "none": ([], "0 numbers as keypoints, not 15"),
    "infinite": ([1, float("inf"), 2] * 5, "keypoints holds NaN or infinity"),
    "visibility": ([1, 2, 3] * 5, "a visibility is none of 0, 1 and 2"),
    "words": (["x"] * 15, "is no list of numbers"),
}


@pytest.mark.parametrize("what", BAD_KEYPOINTS)
def test_bad_keypoints(what: str, data: Path) -> None:
    values, why = BAD_KEYPOINTS[what]
    number = document(data, "train2017", "person_keypoints")["annotations"][2]["id"]
    found = changed(data, put("annotations", number, keypoints=values), keypoints=True)
    (line,) = reasons(found)
    assert (
        line.startswith(f"annotations/person_keypoints_train2017.json: annotation {number}: ") and why in line
    ), line
    assert found.keypoints.shape == (5, len(KEYPOINTS), 3) and number not in found.annotation_id


BAD_IMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], list[str]]] = {
    "missing": (
        pictured(file_name="gone.jpg"),
        ["train2017/gone.jpg: image 1000: cannot be read: No such file or directory; with 3 annotations"],
    ),
    "missing, without annotations": (
        put("images", 1021, file_name="gone.jpg"),
        ["train2017/gone.jpg: image 1021: cannot be read: No such file or directory"],
    ),
    "other size": (
        pictured(height=128, width=96),
        [
            "train2017/000000001000.jpg: image 1000: has 128 x 96 pixels, "
            "its annotations are for 96 x 128; with 3 annotations"
        ],
    ),
    "outside": (
        pictured(file_name="../val2017/000000002000.jpg"),
        [f"{FILE}: image 1000: file_name '../val2017/000000002000.jpg' is no path below"],
    ),
    "absolute": (
        pictured(file_name="/etc/passwd"),
        [f"{FILE}: image 1000: file_name '/etc/passwd' is no path below"],
    ),
    "no path": (
        pictured(file_name="\ud800.jpg"),
        [f"{FILE}: image 1000: file_name '\\ud800.jpg' is no path"],
    ),
    "no name": (drop("images", IMAGE, "file_name"), [f"{FILE}: image 1000: has no file_name"]),
    "no height": (pictured(height=0), [f"{FILE}: image 1000: is 128 x 0 pixels large"]),
    "height is a word": (
        pictured(height="96"),
        [f"{FILE}: image 1000: height '96' is no whole number"],
    ),
    "same id": (
        twice("images", IMAGE, file_name="000000001007.jpg"),
        [f"{FILE}: image 1000: 2 images have this id; none of them is used"],
    ),
}


@pytest.mark.parametrize("what", BAD_IMAGES)
def test_a_bad_image_is_left_out_by_its_id(what: str, data: Path) -> None:
    """With its annotations: counted in its line, or named one by one."""
    change, wanted = BAD_IMAGES[what]
    whole = opened(data)
    sample = whole.image_id.tolist().index(1021 if "without" in what else IMAGE)
    number, lost = whole.image_id[sample], whole.annotation_id[whole.annotations(sample)].tolist()
    found = changed(data, change)
    lines = reasons(found)
    assert lines[0].startswith(wanted[0]), lines
    named = [f"{FILE}: annotation {one}: its image {number} is left out" for one in lost]
    assert sorted(lines[1:]) == ([] if "; with" in lines[0] else sorted(named))
    assert found.image_id.tolist() == [one for one in whole.image_id if one != number]
    assert found.annotation_id.tolist() == [one for one in whole.annotation_id if one not in lost]


def test_image_files_that_are_none(data: Path) -> None:
    (data / "train2017" / "000000001000.jpg").write_bytes(b"text")
    (data / "train2017" / "000000001007.jpg").write_bytes(b"")
    lines = reasons(opened(data))
    assert [line.partition(": ")[0] for line in lines] == [
        "train2017/000000001000.jpg",
        "train2017/000000001007.jpg",
    ]
    assert "image 1000: " in lines[0] and "image 1007: empty file; with 4 annotations" in lines[1]


def test_a_turned_image_is_named_so(data: Path) -> None:
    """Its annotations may be for what a viewer shows; the stored pixels are what is trained on."""
    path = data / "train2017" / "000000001000.jpg"
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(path, exif=exif)
    found = changed(data, pictured(height=128, width=96))
    (line,) = reasons(found)
    assert "EXIF orientation 6: the stored pixels count" in line
    assert changed(data, pictured(height=96, width=128)).rejected == 0
