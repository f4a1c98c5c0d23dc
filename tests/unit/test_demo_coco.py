"""The demo's detection set has what COCO has, and its annotations are the pixels' own."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageFilter
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from scripts import demo_coco
from tests.unit.folders import contents


def opened(folder: Path, split: str) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(folder / f"annotations/instances_{split}.json")


def precision(coco: COCO, results: list[dict[str, Any]], kind: str) -> float:
    """AP of these results, which stay as they are."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(coco, coco.loadRes(copy.deepcopy(results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco") / "set"
    assert demo_coco.write(folder, 60, 30, seed=3, progress=False)
    return folder


def test_it_has_what_coco_has(made: Path) -> None:
    coco = opened(made, "train2017")
    whole = [one for one in coco.anns.values() if not one["iscrowd"]]
    crowds = [one for one in coco.anns.values() if one["iscrowd"]]
    counts = np.array([len(coco.imgToAnns[image]) for image in coco.imgs])
    assert len(coco.imgs) == 60
    assert (counts == 0).sum() == 5
    assert counts.max() >= 5
    assert len(crowds) >= 6
    assert all(isinstance(one["segmentation"]["counts"], list) for one in crowds)
    assert {one["category_id"] for one in whole} == set(demo_coco.CATEGORIES)
    areas = np.array([one["area"] for one in whole])
    assert (areas < 32**2).mean() > 0.3
    assert ((areas >= 32**2) & (areas < 96**2)).mean() > 0.2
    assert max(one["area"] for one in opened(made, "val2017").anns.values()) > 96**2
    sizes = np.array([(one["height"], one["width"]) for one in coco.imgs.values()])
    assert (sizes.max(axis=1) >= 160).all()
    assert (sizes.max(axis=1) <= 200).all()
    assert 0.1 < (sizes[:, 0] > sizes[:, 1]).mean() < 0.6
    modes = []
    for image in coco.imgs.values():
        with Image.open(made / "train2017" / image["file_name"]) as picture:
            assert picture.size == (image["width"], image["height"])
            assert picture.format == "JPEG"
            modes.append(picture.mode)
    assert set(modes) == {"RGB", "L"}
    assert np.diff(sorted(coco.imgs)).min() > 1
    assert np.diff(sorted(coco.anns)).max() > 1
    assert not set(coco.imgs) & set(opened(made, "val2017").imgs)


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_pycocotools_takes_it_and_gives_the_truth_full_marks(made: Path, kind: str) -> None:
    coco = opened(made, "val2017")
    results: list[dict[str, Any]] = [
        {
            "image_id": one["image_id"],
            "category_id": one["category_id"],
            "score": 1.0,
            **({"bbox": list(one["bbox"])} if kind == "bbox" else {"segmentation": coco.annToRLE(one)}),
        }
        for one in coco.anns.values()
        if not one["iscrowd"]
    ]
    np.testing.assert_allclose(precision(coco, results, kind), 1)
    # The plant: boxes of the wrong class must cost marks, or the line above proves nothing.
    for one in results[: len(results) // 2]:
        one["category_id"] = 10 + one["category_id"] % 50
    assert precision(coco, results, kind) < 0.8


@pytest.mark.parametrize("split", demo_coco.SPLITS)
def test_boxes_and_areas_are_those_of_the_masks(made: Path, split: str) -> None:
    coco = opened(made, split)
    for one in coco.anns.values():
        image = coco.imgs[one["image_id"]]
        x, y, width, height = one["bbox"]
        assert min(x, y) >= 0
        assert x + width <= image["width"]
        assert y + height <= image["height"]
        mask = coco.annToMask(one)
        ys, xs = np.nonzero(mask)
        slack = 0 if one["iscrowd"] else 3  # a polygon's tip may cover no pixel's middle
        np.testing.assert_allclose(
            [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], [x, y, x + width, y + height], atol=slack
        )
        np.testing.assert_allclose(mask.sum(), one["area"], rtol=0 if one["iscrowd"] else 0.1)


def test_what_is_annotated_is_what_is_painted() -> None:
    for index in range(20):
        pixels, annotations = demo_coco.drawn(np.random.default_rng([5, index]))
        height, width = pixels.shape[:2]
        for one in annotations:
            mask = Image.fromarray(
                masks.decode(masks.merge(masks.frPyObjects(one["segmentation"], height, width)))
                * np.uint8(255)
            )
            inner = np.asarray(mask.filter(ImageFilter.MinFilter(5))) > 0
            outer = np.asarray(mask.filter(ImageFilter.MaxFilter(5))) == 0
            near = np.zeros_like(inner)
            x0, y0, w, h = (int(value) for value in one["bbox"])
            near[max(y0 - 4, 0) : y0 + h + 5, max(x0 - 4, 0) : x0 + w + 5] = True
            colour = np.median(pixels[inner], axis=0)
            assert np.abs(pixels[inner] - colour).max() <= 8
            assert (np.abs(pixels[outer & near] - colour).max(axis=1) > 8).mean() > 0.9


def test_nothing_touches_anything_else() -> None:
    for index in range(20):
        pixels, annotations = demo_coco.drawn(np.random.default_rng([6, index]), crowd=True)
        covered = np.zeros(pixels.shape[:2], int)
        for one in annotations:
            parts = masks.frPyObjects(one["segmentation"], *pixels.shape[:2])
            covered += masks.decode(parts if one["iscrowd"] else masks.merge(parts))
        assert covered.max() == 1
        assert annotations[0]["iscrowd"] == 1


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_run_lengths_are_cocos(mask: np.ndarray) -> None:
    counts = demo_coco.run_lengths(mask)
    assert sum(counts) == mask.size
    np.testing.assert_array_equal(
        masks.decode(masks.frPyObjects({"counts": counts, "size": list(mask.shape)}, *mask.shape)), mask
    )


def test_a_larger_set_begins_with_a_smaller_one(made: Path, tmp_path: Path) -> None:
    for name in ("one", "again"):
        assert demo_coco.write(tmp_path / name, 12, 3, seed=3, progress=False)
    one, more = contents(tmp_path / "one"), contents(made)
    assert one == contents(tmp_path / "again")
    assert all(more[name] == data for name, data in one.items() if name.endswith(".jpg"))
    assert len(one) == 12 + 3 + 3
    whole = json.loads(more["annotations/instances_train2017.json"])
    part = json.loads(one["annotations/instances_train2017.json"])
    assert part["annotations"] == whole["annotations"][: len(part["annotations"])]
    assert len({data for name, data in one.items() if name.endswith(".jpg")}) == 15
