"""The columns of images with boxes, their fingerprint, and the synthetic ones."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.dataset.coco.columns import COCO_IDS, Instances, class_numbers, mirrored
from saturate.dataset.coco.synthetic import SyntheticInstances
from tests.unit.coco_files import changed, document, opened, write, write_coco

DENSE = list(range(1, 81))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data", splits={"train2017": 4})


@pytest.mark.parametrize(
    ("ids", "numbers"),
    [
        ([2, 4], [1, 2]),
        ([-5, 0, 4], [1, 2, 3]),
        ([], []),
        ([*COCO_IDS], [*COCO_IDS]),  # as torchvision's published weights
        ([*COCO_IDS, 91], [*DENSE, 81]),
    ],
)
def test_numbers_of_classes(ids: list[int], numbers: list[int]) -> None:
    assert class_numbers(np.array(ids, np.int64)).tolist() == numbers


@pytest.mark.parametrize(
    "pair",
    ["left_eye right_eye", "eyeLeft eyeRight", "LEFT-EYE RIGHT-EYE", "l_eye r_eye"],
)
def test_sides_however_they_are_written(pair: str) -> None:
    left, right = pair.split()
    assert mirrored([right, "nose", left, "bright"]).tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ("left_x", "'left_x'"),
        ("nose eyeRight left_eye", "'eyeRight'"),
        ("left_eye right_eye leftEye", "'left_eye'"),
    ],
)
def test_a_side_needs_one_partner(names: str, wrong: str) -> None:
    with pytest.raises(UserError, match=f"keypoint {wrong} has no partner of its own"):
        mirrored(names.split())


def put(key: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda written: next(
        each for each in written[key] if not each.get("iscrowd")
    ).update(values)


def another_run(written: dict[str, Any]) -> None:
    crowd = next(each for each in written["annotations"] if each["iscrowd"])
    runs = crowd["segmentation"]["counts"]
    runs[0], runs[2] = runs[0] + 1, runs[2] - 1


def another_category(written: dict[str, Any]) -> None:
    put("categories", id=6)(written)
    for each in written["annotations"]:
        each["category_id"] = 6


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "box": put("annotations", bbox=[1, 2, 3, 4]),
    "runs": another_run,
    "keypoints": put("annotations", keypoints=[1, 2, 2] * 5),
    "category ids": another_category,
    "names of categories": put("categories", name="crate"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_training_and_scoring_depend_on_changes_the_fingerprint(
    what: str, data: Path
) -> None:
    keypoints = what == "keypoints"
    before = opened(data, keypoints=keypoints).fingerprint
    after = changed(data, CHANGES[what], keypoints=keypoints)
    assert after.fingerprint != before and after.rejected == 0


def test_place_and_order_and_the_rest_of_the_file_do_not(data: Path) -> None:
    before = opened(data).fingerprint
    other = Path(shutil.copytree(data, data.parent / "elsewhere"))
    written = document(other, "train2017")
    written["images"].reverse()
    written["info"], written["licenses"] = {"year": 2017}, [1, 2]
    write(other, "train2017", written)
    assert opened(other).fingerprint == before


@pytest.mark.parametrize("keypoints", [False, True])
def test_the_synthetic_set_is_like_a_scan_of_coco(keypoints: bool) -> None:
    found = SyntheticInstances.generate(2000, keypoints=keypoints)
    for name, dtype in Instances.COLUMNS.items():
        assert getattr(found, name).dtype == dtype, name
    m = len(found.boxes)
    assert found.annotation_offsets[-1] == m == found.annotations(1999).stop
    for sample in (-1, 2000):
        with pytest.raises(IndexError):
            found.annotations(sample)
    for name in ("annotation_id", "area", "category", "crowd", "usable", "keypoints"):
        assert len(getattr(found, name)) == m, name
    assert found.keypoints.shape == (m, 17 * keypoints, 3)
    per_image = np.diff(found.annotation_offsets)
    assert per_image.mean() == pytest.approx(2 if keypoints else 7.3, abs=0.4)
    few = SyntheticInstances.generate(50, keypoints=keypoints)
    assert (few.boxes == found.boxes[: len(few.boxes)]).all()
    assert few.fingerprint != found.fingerprint
    assert (pickle.loads(pickle.dumps(few)).keypoints == few.keypoints).all()
