"""What is wrong with an annotation file, its entries and its folder: one line each, with the id, or one line
that ends the run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts import UserError
from dataset.coco import scan
from tests.unit.coco_files import KEYPOINTS, changed, document, opened, reasons, write, write_coco


@pytest.fixture
def data(tmp_path: Path, synced: list[str]) -> Path:
    return write_coco(tmp_path / "data")


# --- what is left out ---------------------------------------------------------------------------------------

ANNOTATION = 10000  # the id of an annotation of image 1000, 96 x 128 pixels
IMAGE = 1000
FILE = "annotations/instances_train2017.json"


def of(written: dict[str, Any], key: str, number: int) -> dict[str, Any]:
    return next(each for each in written[key] if each["id"] == number)


def put(key: str, number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda written: of(written, key, number).update(values)


def drop(key: str, number: int, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda written: of(written, key, number).pop(name)


def twice(key: str, number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda written: written[key].append(of(written, key, number) | values)


BAD_ANNOTATIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown category": (put("annotations", ANNOTATION, category_id=4), "unknown category 4"),
    "unknown image": (put("annotations", ANNOTATION, image_id=77), "unknown image 77"),
    "same id": (twice("annotations", ANNOTATION), "an annotation before it has the same id"),
    "right of the image": (
        put("annotations", ANNOTATION, bbox=[128, 5, 9, 9]),
        "box [128.0, 5.0, 9.0, 9.0] lies outside image 1000, which has 128 x 96 pixels",
    ),
    "below the image": (
        put("annotations", ANNOTATION, bbox=[5, 97, 9, 9]),
        "box [5.0, 97.0, 9.0, 9.0] lies outside image 1000",
    ),
    "left of the image": (
        put("annotations", ANNOTATION, bbox=[-9, 5, 8.5, 9]),
        "box [-9.0, 5.0, 8.5, 9.0] lies outside image 1000",
    ),
    "above the image": (
        put("annotations", ANNOTATION, bbox=[5, -9, 9, 8.5]),
        "box [5.0, -9.0, 9.0, 8.5] lies outside image 1000",
    ),
    "NaN": (put("annotations", ANNOTATION, bbox=[float("nan"), 5, 9, 9]), "bbox holds NaN or infinity"),
    "infinite": (put("annotations", ANNOTATION, bbox=[5, 5, float("inf"), 9]), "bbox holds NaN or infinity"),
    "infinite area": (put("annotations", ANNOTATION, area=float("inf")), "area holds NaN or infinity"),
    "negative width": (
        put("annotations", ANNOTATION, bbox=[5, 5, -9, 9]),
        "width, height and area cannot be negative",
    ),
    "negative area": (put("annotations", ANNOTATION, area=-1), "width, height and area cannot be negative"),
    "three numbers": (
        put("annotations", ANNOTATION, bbox=[5, 5, 9]),
        "bbox has 3 numbers, not x y width height",
    ),
    "words": (
        put("annotations", ANNOTATION, bbox=["5", 5, 9, 9]),
        "bbox ['5', 5, 9, 9] is no list of numbers",
    ),
    "a number": (put("annotations", ANNOTATION, bbox=5), "bbox 5 is no list of numbers"),
    "huge": (put("annotations", ANNOTATION, area=10**400), "area"),
    "no box": (drop("annotations", ANNOTATION, "bbox"), "has no bbox"),
    "area is a word": (put("annotations", ANNOTATION, area="5"), "is no list of numbers"),
    "no category": (drop("annotations", ANNOTATION, "category_id"), "has no category_id"),
    "half a category": (
        put("annotations", ANNOTATION, category_id=1.5),
        "category_id 1.5 is no whole number",
    ),
    "endless id": (put("annotations", ANNOTATION, image_id=1e30), "is no whole number"),
    "category is a word": (
        put("annotations", ANNOTATION, category_id="1"),
        "category_id '1' is no whole number",
    ),
    "crowd": (put("annotations", ANNOTATION, iscrowd=2), "iscrowd 2 is neither 0 nor 1"),
}


@pytest.mark.parametrize("what", BAD_ANNOTATIONS)
def test_a_bad_annotation_is_left_out_by_its_id(what: str, data: Path) -> None:
    change, why = BAD_ANNOTATIONS[what]
    whole = {int(number) for number in opened(data).annotation_id}
    found = changed(data, change)
    (line,) = reasons(found)
    assert line.startswith(f"{FILE}: annotation {ANNOTATION}: ") and why in line, line
    assert len(found) == 8
    left = whole if what == "same id" else whole - {ANNOTATION}
    assert {int(number) for number in found.annotation_id} == left and len(found.annotation_id) == len(left)


BAD_SEGMENTATIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "NaN in a polygon": (
        put("annotations", ANNOTATION, segmentation=[[1, 2, 3, 4, 5, float("nan")]]),
        "segmentation holds NaN or infinity",
    ),
    "beyond any image": (
        put("annotations", ANNOTATION, segmentation=[[1, 2, 3, -1e8, 5, 6]]),
        "a point is 1e+08 pixels away",
    ),
    "odd polygon": (
        put("annotations", ANNOTATION, segmentation=[[1, 2, 3, 4, 5, 6, 7]]),
        "a polygon has 7 numbers",
    ),
    "two points": (put("annotations", ANNOTATION, segmentation=[[1, 2, 3, 4]]), "a polygon has 4 numbers"),
    "polygon without brackets": (
        put("annotations", ANNOTATION, segmentation=[1, 2, 3, 4, 5, 6]),
        "segmentation 1 is no list of numbers",
    ),
    "segmentation is a word": (
        put("annotations", ANNOTATION, segmentation="x"),
        "'x' is no object with 'counts'",
    ),
    "runs too short": (
        put("annotations", ANNOTATION, segmentation={"counts": [5, 5], "size": [96, 128]}),
        "its runs are 10 pixels long",
    ),
    "negative run": (
        put("annotations", ANNOTATION, segmentation={"counts": [-1, 12289], "size": [96, 128]}),
        "segmentation: cannot be decoded",
    ),
    "runs of another image": (
        put("annotations", ANNOTATION, segmentation={"counts": [96 * 128], "size": [128, 96]}),
        "segmentation of 96 x 128 pixels does not fit image 1000, which has 128 x 96 pixels",
    ),
    "compressed, cut short": (
        put("annotations", ANNOTATION, segmentation={"counts": "P", "size": [96, 128]}),
        "cannot be decoded",
    ),
    "compressed, other letters": (
        put("annotations", ANNOTATION, segmentation={"counts": "é", "size": [96, 128]}),
        "cannot be decoded",
    ),
    "no size": (put("annotations", ANNOTATION, segmentation={"counts": [1]}), "has no size"),
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
    assert (found.rle == whole.rle).all(), "the other run lengths are where they were"
    polygon = int(whole.polygon_offsets[place])
    gone = slice(*whole.point_offsets[polygon : polygon + 2])
    assert (found.points == np.delete(whole.points, gone, axis=0)).all()


def test_annotations_without_an_id(data: Path) -> None:
    found = changed(
        data, lambda written: written["annotations"].extend([[], {"bbox": [1, 2, 3, 4], "area": 1}, None])
    )
    lines = reasons(found)
    assert [line.startswith(f"{FILE}: annotation without an id: ") for line in lines] == [True] * 3
    assert "has no id" in lines[1] and "None is no object" in lines[2]


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
        put("images", IMAGE, file_name="gone.jpg"),
        ["train2017/gone.jpg: image 1000: cannot be read: No such file or directory; with 3 annotations"],
    ),
    "missing, without annotations": (
        put("images", 1021, file_name="gone.jpg"),
        ["train2017/gone.jpg: image 1021: cannot be read: No such file or directory"],
    ),
    "other size": (
        put("images", IMAGE, height=128, width=96),
        [
            "train2017/000000001000.jpg: image 1000: has 128 x 96 pixels, "
            "its annotations are for 96 x 128; with 3 annotations"
        ],
    ),
    "outside": (
        put("images", IMAGE, file_name="../val2017/000000002000.jpg"),
        [f"{FILE}: image 1000: file_name '../val2017/000000002000.jpg' is no path below"],
    ),
    "absolute": (
        put("images", IMAGE, file_name="/etc/passwd"),
        [f"{FILE}: image 1000: file_name '/etc/passwd' is no path below"],
    ),
    "no path": (
        put("images", IMAGE, file_name="\ud800.jpg"),
        [f"{FILE}: image 1000: file_name '\\ud800.jpg' is no path"],
    ),
    "no name": (drop("images", IMAGE, "file_name"), [f"{FILE}: image 1000: has no file_name"]),
    "no height": (put("images", IMAGE, height=0), [f"{FILE}: image 1000: is 128 x 0 pixels large"]),
    "height is a word": (
        put("images", IMAGE, height="96"),
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
    found = changed(data, put("images", IMAGE, height=128, width=96))
    (line,) = reasons(found)
    assert "EXIF orientation 6: the stored pixels count" in line
    assert changed(data, put("images", IMAGE, height=96, width=128)).rejected == 0


# --- mistakes -----------------------------------------------------------------------------------------------


def mistake(root: Path, split: Any = "train", **how: Any) -> str:
    with pytest.raises(UserError) as caught:
        opened(root, split, **how)
    said = str(caught.value)
    assert "\n" not in said and said.startswith("--data: ")
    assert not list((root.parent / "cache").glob("*/tmp-*")), "nothing half is left"
    return said


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("", "data is no folder"),
        (
            "annotations",
            "has no folder annotations; "
            "COCO's layout has train2017/ and annotations/instances_train2017.json",
        ),
        ("annotations/instances_train2017.json", "has no instances_train*.json"),
        ("train2017", "has no folder train2017 for the images of annotations/instances_train2017.json"),
    ],
)
def test_a_layout_that_is_none(missing: str, said: str, data: Path) -> None:
    gone(data / missing)
    assert said in mistake(data)


def test_several_candidates(data: Path) -> None:
    annotations = data / "annotations"
    (annotations / "instances_train2017.json").rename(annotations / "instances_train_a.json")
    shutil.copy(annotations / "instances_train_a.json", annotations / "instances_train_b.json")
    assert "has instances_train_a.json, instances_train_b.json; leave one of them" in mistake(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON: it ends too early, at character 0"),
        ("[]", "holds no object at its top"),
        ("3", "holds no object at its top"),
        (
            '{"images": [], "annotations": []}',
            "has no 'categories'; COCO's form has 'images' and 'annotations' and 'categories'",
        ),
        (
            '{"images": {}, "annotations": [], "categories": []}',
            "holds something else than a list as 'images' at character 11",
        ),
        ('{"images": [{"id": 1,}]}', "(character 21)"),
        ('{"images": [{"id": 1}', "it ends too early, at character 21"),
        ('{"images": [{"id": 1} {"id": 2}]}', "got '{' and not ',' at character 22"),
        ('{"images": [{"id": 1},]}', "got ']' behind a comma at character 22"),
        ('{images: []}', "got 'i' and no name at character 1"),
        ('{"images": []} {}', "more than one value"),
        ('{"images": [' + "[" * 100_000, "cannot be read"),
        ('{"images": [], "annotations": [], "categories": []}', "has no category"),
    ],
)  # fmt: skip
def test_a_file_that_is_none(text: str, said: str, data: Path) -> None:
    (data / "annotations" / "instances_train2017.json").write_text(text)
    line = mistake(data)
    assert said in line and "instances_train2017.json" in line, line


def test_a_file_that_is_no_text(data: Path) -> None:
    (data / "annotations" / "instances_train2017.json").write_bytes(b'{"images": "\xff"}')
    assert "it must be UTF-8" in mistake(data)


def test_errors_of_reading_and_of_writing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names the place that has it."""

    def full(writer: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(scan._Writer, "flush", full)
        with pytest.raises(UserError, match=r"the manifest cannot be written to .*: No space left on device"):
            opened(data)
    path = data / "annotations" / "instances_train2017.json"
    path.unlink()
    path.mkdir()
    assert f"{path} cannot be read: Is a directory" in mistake(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("categories", 3, "name"), "category 3: has no name"),
        (put("categories", 3, name=5), "category 3: name 5 is no text"),
        (put("categories", 3, name=""), "category 3: name '' is empty or holds a control character"),
        (put("categories", 3, name=" \t"), "category 3: name ' \\t' is empty"),
        (
            put("categories", 3, name="a\nb"),
            "category 3: name 'a\\nb' is empty or holds a control character or a line's end; give it",
        ),
        (put("categories", 3, name="a\u2028b"), "category 3: name"),
        (put("categories", 3, name="\ud800"), "category 3: name"),
        (put("categories", 3, id=1), "2 categories have the id 1"),
        (
            put("categories", 3, id=2**53),
            "the category id 9007199254740992 is beyond 2^53, where the figures would be wrong",
        ),
        (lambda written: written["categories"].append([]), "category without an id: [] is no object"),
    ],
)
def test_bad_categories(change: Callable[[dict[str, Any]], Any], said: str, data: Path) -> None:
    written = document(data, "train2017")
    change(written)
    write(data, "train2017", written)
    assert said in mistake(data)


def test_categories_of_validation_must_be_those_of_training(data: Path) -> None:
    classes = opened(data).classes
    assert opened(data, "val", classes=classes).classes == classes
    written = document(data, "val2017")
    of(written, "categories", 3).update(name="crate")
    write(data, "val2017", written)
    line = mistake(data, "val", classes=classes)
    assert "missing: 2 box; not in training: 2 crate (class number and name)" in line


def test_names_that_several_categories_have_get_their_ids(data: Path) -> None:
    classes = ("__background__", "person (1)", "box", "person (5)")
    assert changed(data, put("categories", 5, name="person")).classes == classes


def test_a_side_without_a_partner(data: Path) -> None:
    written = document(data, "train2017", "person_keypoints")
    written["categories"][0]["keypoints"] = ["nose", "left_eye", "right_eye", "left_hand", "right_foot"]
    write(data, "train2017", written, "person_keypoints")
    assert "keypoint 'left_hand' has no partner; rename, so that there is one 'right hand'" in mistake(
        data, keypoints=True
    )


def test_keypoints_need_names(data: Path) -> None:
    shutil.copy(
        data / "annotations" / "instances_train2017.json",
        data / "annotations" / "person_keypoints_train2017.json",
    )
    assert "category 1 names no keypoints" in mistake(data, keypoints=True)


def test_a_file_without_images(data: Path) -> None:
    write(data, "train2017", document(data, "train2017") | {"images": []})
    assert "no image of" in (line := mistake(data)) and "it has none" in line


def test_without_images_the_annotation_file_has_the_sizes(data: Path) -> None:
    """As --score asks for it: the same annotations, and no file of an image is looked at."""
    whole = opened(data)
    shutil.rmtree(data / "train2017")
    with pytest.raises(UserError, match="has no folder train2017"):
        opened(data)
    alone = opened(data, images=False)
    for name in (
        "image_id",
        "height",
        "width",
        "annotation_id",
        "boxes",
        "category",
        "usable",
        "points",
        "rle",
    ):
        assert np.array_equal(getattr(alone, name), getattr(whole, name)), name
    assert not alone.rejected


def test_nothing_is_left(data: Path) -> None:
    for path in (data / "train2017").iterdir():
        path.unlink()
    line = mistake(data)
    assert "no image of" in line and "left out: 8, first" in line and "image 1000" in line
