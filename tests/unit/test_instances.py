"""The columns of images with boxes, their fingerprint, and the synthetic ones."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import UserError
from dataset.coco.columns import (
    Instances,
    categories_of,
    class_names,
    class_numbers,
    mirrored,
)
from dataset.coco.scan import open_coco
from dataset.coco.synthetic import SyntheticInstances
from dataset.scan.manifest import NoManifest
from tests.unit.coco_files import document, write, write_coco

COCO_IDS = [
    *range(1, 12),
    *range(13, 26),
    27,
    28,
    *range(31, 45),
    *range(46, 66),
    67,
    70,
    *range(72, 83),
    *range(84, 91),
]
DENSE = list(range(1, 81))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data", splits={"train2017": 4})


def opened(root: Path, **how: Any) -> Instances:
    return open_coco(
        root, "train", **{"cache": root.parent / "cache", "keypoints": False, **how}
    )


def test_annotations_of_an_image(data: Path) -> None:
    found = opened(data)
    ends = [0, 3, 7, 10, 10]
    assert [found.annotations(sample) for sample in range(4)] == list(
        map(slice, ends, ends[1:])
    )
    assert found.with_boxes.tolist() == [0, 1, 2] and found.with_boxes.dtype == np.int64
    for sample in (-1, 4):
        with pytest.raises(IndexError, match=f"sample {sample} of 4"):
            found.annotations(sample)


def test_coco_s_classes_are_those_of_published_weights() -> None:
    assert len(COCO_IDS) == 80
    assert class_numbers(np.array(COCO_IDS)).tolist() == COCO_IDS
    names = class_names(np.array(COCO_IDS), [f"name {i}" for i in COCO_IDS])
    assert (
        len(names) == 91 and names[0] == "__background__" and names.count("N/A") == 10
    )
    assert all(names[i] == f"name {i}" for i in COCO_IDS)


@pytest.mark.parametrize(
    ("ids", "numbers"),
    [
        ([1], [1]),
        ([2], [1]),
        ([2, 4], [1, 2]),
        ([0, 1], [1, 2]),
        ([-5, 3, 4], [1, 2, 3]),
        ([], []),
        (COCO_IDS[:-1], DENSE[:-1]),
        ([*COCO_IDS, 91], [*DENSE, 81]),
        ([*COCO_IDS[:-1], 91], DENSE),
    ],
)
def test_numbers_of_classes(ids: list[int], numbers: list[int]) -> None:
    assert class_numbers(np.array(ids, np.int64)).tolist() == numbers


@given(st.lists(st.integers(-3, 40), unique=True).map(sorted))
def test_classes_and_categories_are_each_other_s_inverse(ids: list[int]) -> None:
    names = class_names(np.array(ids, np.int64), [str(i) for i in ids])
    class_of = class_numbers(np.array(ids, np.int64))
    category_of = categories_of(class_of, len(names))
    assert category_of[class_of].tolist() == list(range(len(ids)))
    assert [names[number] for number in class_of] == [str(i) for i in ids]
    assert (category_of >= 0).sum() == len(ids) and category_of[0] == -1
    assert all(
        name == "N/A"
        for name, category in zip(names[1:], category_of[1:], strict=True)
        if category < 0
    )
    assert len(names) == len(ids) + 1


SIDES = """left_eye right_eye, eye_left eye_right, leftEye rightEye, eyeLeft eyeRight, Left_eye Right_eye,
    left-eye right-eye, LEFT_EYE RIGHT_EYE, left_eye RightEye, left right, outer_left_eye outer_right_eye,
    eye1Left eye1Right, left1 right1, lefteye righteye, l_eye r_eye, eye_l eye_r, LEye REye, eyeL eyeR, L1 R1,
    eye.L eye.R"""


@pytest.mark.parametrize(
    "pair", [*map(str.split, SIDES.split(",")), ["left eye", "right eye"]], ids=str
)
def test_sides_however_they_are_written(pair: list[str]) -> None:
    assert mirrored([pair[1], "nose", pair[0], "bright spot"]).tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize(
    "name",
    ["l_eye", "eyeR", "bright", "leftover", "upright", "copyright", "L", "", "___"],
)
def test_what_may_be_no_side_stays(name: str) -> None:
    assert mirrored(["nose", name, "tail"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["left_x"],
            "keypoint 'left_x' has no partner; rename, so that there is one 'right x'",
        ),
        (
            ["nose", "eyeRight", "left_eye"],
            "keypoint 'eyeRight' has no partner; .* 'eye left'",
        ),
        (
            ["left_eye", "right_eye", "leftEye"],
            "keypoint 'left_eye' is there twice, or its partner is",
        ),
        (
            ["left_eye", "right_eye", "right eye"],
            "keypoint 'left_eye' is there twice, or its partner is",
        ),
        (["left\neye"], "keypoint 'left.*neye' has no partner"),
    ],
)
def test_a_side_needs_one_partner(names: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        mirrored(names)
    assert "\n" not in str(caught.value)


NAMES = [
    "left_a",
    "right_a",
    "aLeft",
    "aRight",
    "l_a",
    "r_a",
    "LA",
    "RA",
    "lefta",
    "righta",
    "a",
    "L",
    "b",
]


@given(st.lists(st.sampled_from(NAMES), max_size=7))
def test_mirrored_twice_is_as_it_was(names: list[str]) -> None:
    with suppress(UserError):
        mirror = mirrored(names)
        assert mirror[mirror].tolist() == list(range(len(names)))


@pytest.mark.parametrize("column", ["boxes", "points", "rle", "annotation_offsets"])
def test_another_length_is_noticed(column: str, data: Path) -> None:
    folder = opened(data).folder
    values = np.load(folder / f"{column}.npy")
    np.save(folder / f"{column}.npy", np.concatenate([values, values[-1:]]))
    with pytest.raises(NoManifest, match=column):
        Instances.open(folder)


def put(key: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda written: next(
        each for each in written[key] if key != "annotations" or not each["iscrowd"]
    ).update(values)


def crowd(written: dict[str, Any]) -> None:
    runs = next(each for each in written["annotations"] if each["iscrowd"])[
        "segmentation"
    ]["counts"]
    runs[0], runs[2] = runs[0] + 1, runs[2] - 1


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "box": put("annotations", bbox=[1, 2, 3, 4]),
    "area": put("annotations", area=1.5),
    "polygon": put("annotations", segmentation=[[1, 2, 3, 4, 5, 6]]),
    "no polygon": put("annotations", segmentation=[]),
    "crowd": put("annotations", iscrowd=1),
    "runs": crowd,
    "keypoints": put("annotations", keypoints=[1, 2, 2] * 5),
    "annotation id": put("annotations", id=5),
    "no annotation": lambda written: written["annotations"].pop(0),
    "category ids": lambda written: (
        put("categories", id=6)(written),
        [each.update(category_id=6) for each in written["annotations"]],
    ),
    "names of categories": put("categories", name="crate"),
    "names of keypoints": put(
        "categories", keypoints=["nose", "eye", "mouth", "left_hand", "right_hand"]
    ),
    "image": lambda written: (written["images"].pop(0), written["annotations"].clear()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_training_and_scoring_depend_on_changes_the_fingerprint(
    what: str, data: Path
) -> None:
    keypoints = "keypoints" in what
    kind = "person_keypoints" if keypoints else "instances"
    before = opened(data, keypoints=keypoints).fingerprint
    written = document(data, "train2017", kind)
    CHANGES[what](written)
    write(data, "train2017", written, kind)
    after = opened(data, keypoints=keypoints, rescan=True)
    assert after.fingerprint != before and after.rejected == 0


def test_place_and_order_and_the_rest_of_the_file_do_not(data: Path) -> None:
    before = opened(data).fingerprint
    other = Path(shutil.copytree(data, data.parent / "elsewhere"))
    written = document(other, "train2017")
    written["images"].reverse()
    written["info"], written["licenses"] = {"year": 2017}, [1, 2]
    for each in written["images"]:
        each["license"] = 5
    write(other, "train2017", written)
    assert opened(other).fingerprint == before


@pytest.mark.parametrize("keypoints", [False, True])
def test_the_synthetic_set_is_like_a_scan_of_coco(keypoints: bool) -> None:
    found = SyntheticInstances.of(2000, keypoints=keypoints)
    for name, dtype in Instances.COLUMNS.items():
        assert getattr(found, name).dtype == dtype, name
    m = len(found.boxes)
    assert found.annotation_offsets[-1] == m == found.annotations(1999).stop
    for offsets, columns in Instances.RAGGED.items():
        assert {len(getattr(found, name)) for name in columns} == {
            getattr(found, offsets)[-1]
        }, offsets
    assert found.keypoints.shape == (m, 17 * keypoints, 3)
    assert len(found.classes) == (2 if keypoints else 91) == found.class_of.max() + 1
    assert len(np.unique(found.annotation_id)) == m
    per_image = np.diff(found.annotation_offsets)
    assert per_image.mean() == pytest.approx(2 if keypoints else 7.3, abs=0.4)
    assert (
        0.003 < (per_image == 0).mean() < 0.02
        and len(found.with_boxes) == (per_image > 0).sum()
    )
    image = np.repeat(np.arange(2000), per_image)
    x, y, w, h = found.boxes.T
    assert min(x.min(), y.min()) >= 0 and min(w.min(), h.min()) >= 8
    assert (x + w <= found.width[image] + 1e-9).all() and (
        y + h <= found.height[image] + 1e-9
    ).all()
    assert 0.3 < (w * h < 32**2).mean() < 0.5, "41 % of COCO's are small"
    points = found.points.reshape(m, -1, 2)
    np.testing.assert_allclose(points.min(axis=1), found.boxes[:, :2])
    np.testing.assert_allclose(
        points.max(axis=1), found.boxes[:, :2] + found.boxes[:, 2:]
    )
    few = SyntheticInstances.of(50, keypoints=keypoints)
    assert (
        few.boxes == found.boxes[: len(few.boxes)]
    ).all() and few.fingerprint != found.fingerprint
    assert (pickle.loads(pickle.dumps(few)).keypoints == few.keypoints).all()
