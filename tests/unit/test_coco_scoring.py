"""AP of packed detections by both evaluators and by hand; results files."""

from __future__ import annotations

import contextlib
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coder
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from saturate.dataset.coco.scan import open_coco
from saturate.tasks import _coco, _results
from saturate.tasks._coco import Detections, Scores
from tests.unit.coco_files import write_coco

pytest.importorskip("faster_coco_eval")
KINDS = ("boxes", "masks", "keypoints")
EVALUATORS = ("faster-coco-eval", "pycocotools")
SHAPES = "ap ap50 ap75 ap_small ap_medium ap_large ar1 ar10 ar100 ar_small ar_medium ar_large"
POINTS = "ap ap50 ap75 ap_medium ap_large ar ar50 ar75 ar_medium ar_large"
STATS = {
    "boxes": SHAPES.split(),
    "masks": [f"mask_{name}" for name in SHAPES.split()],
    "keypoints": [f"keypoint_{name}" for name in POINTS.split()],
}
"""What COCOeval.stats has, in its order: the rows that its summarize() prints."""


@dataclass
class Set:
    root: Path
    columns: dict[str, Any]  # of each kind

    def by_hand(self, found: Detections, kind: str, left_out: Any = ()) -> Any:
        """The figures that pycocotools makes of the annotation file, less images `left_out`, and a results file."""
        which = "person_keypoints" if kind == "keypoints" else "instances"
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO(str(self.root / "annotations" / f"{which}_val2017.json"))
            for images, key in (("images", "id"), ("annotations", "image_id")):
                truth.dataset[images] = [
                    one for one in truth.dataset[images] if one[key] not in left_out
                ]
            truth.createIndex()
            run = COCOeval(
                truth,
                truth.loadRes(json.loads(written(found, kind))),
                _coco.KINDS[kind],
            )
            keypoints = self.columns[kind].keypoints.shape[1]
            if kind == "keypoints" and keypoints != 17:
                run.params.kpt_oks_sigmas = np.full(keypoints, _coco.SIGMA)
            run.evaluate()
            run.accumulate()
            run.summarize()
        return run.stats


@pytest.fixture
def drawn(coco_root: Path, columns: Any, people: Any) -> Set:
    return Set(coco_root, {"boxes": columns, "masks": columns, "keypoints": people})


def guesses(columns: Any, kind: str, *, seed: int, digits: int = 1) -> Detections:
    """Four shapes near every object, crowds too, other classes now and then, many tied scores."""
    rng = np.random.default_rng(seed)
    which = rng.permutation(np.repeat(np.arange(len(columns.area)), 4))
    which = which[rng.random(len(which)) < 0.9]
    image = np.repeat(
        np.arange(len(columns.image_id)), np.diff(columns.annotation_offsets)
    )[which]
    boxes = columns.boxes[which] + rng.normal(0, 0.08, (len(which), 4)) * np.tile(
        columns.boxes[which, 2:], 2
    )
    boxes[:, 2:] = np.maximum(boxes[:, 2:], 1)
    categories = columns.category_ids[columns.category[which]]
    categories = np.where(
        rng.random(len(which)) < 0.2,
        rng.choice(columns.category_ids, len(which)),
        categories,
    )
    masks = keypoints = None
    if kind == "masks":
        sizes = zip(columns.height[image], columns.width[image], strict=True)
        masks = []
        for box, (height, width) in zip(boxes, sizes, strict=True):
            (code,) = coder.frPyObjects(box[None], height, width)
            masks.append({**code, "counts": code["counts"].decode()})
    if kind == "keypoints":
        keypoints = columns.keypoints[which].copy()
        keypoints[:, :, :2] += (
            rng.normal(0, 0.08, (len(which), 1, 1)) * columns.boxes[which, None, 2:]
        )
    scores = rng.random(len(which)).round(digits)
    images = np.asarray(columns.image_id)[image]
    found = Detections(
        image_ids=images,
        category_ids=categories,
        boxes=boxes,
        scores=scores,
        masks=masks,
        keypoints=keypoints,
    )
    return Detections.joined([found])


def scored(
    columns: Any,
    found: Detections,
    kind: str,
    evaluator: str = "faster-coco-eval",
    left_out: Any = (),
) -> Scores:
    entries = _results.entries(found, kind)
    samples = np.flatnonzero(~np.isin(columns.image_id, left_out))
    return _coco.score(
        columns, entries, samples=samples.tolist(), kind=kind, evaluator=evaluator
    )


def written(found: Detections, kind: str) -> bytes:
    return _results.encoded(_results.entries(found, kind))


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_those_of_the_files(drawn: Set, kind: str, evaluator: str) -> None:
    """To 1e-12, of many scores that are the same."""
    columns = drawn.columns[kind]
    found = guesses(columns, kind, seed=1)
    expected = drawn.by_hand(found, kind)
    wanted = dict(zip(STATS[kind], expected, strict=True))
    scores = scored(columns, found, kind, evaluator)
    figures = scores.figures()
    mean = np.mean([*scores.by_category().values()])
    assert mean == pytest.approx(figures[STATS[kind][0]])
    there = {name: value for name, value in wanted.items() if value > -1}
    assert figures == pytest.approx(there, rel=0, abs=1e-12)


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_cannot_be_decoded_is_in_no_figure(
    drawn: Set, kind: str, evaluator: str
) -> None:
    columns = drawn.columns[kind]
    left_out = columns.image_id[::3]
    found = guesses(columns, kind, seed=2)
    found = found.taken(np.flatnonzero(~np.isin(found.image_ids, left_out)))
    wanted = drawn.by_hand(found, kind, {*left_out.tolist()})
    figures = scored(columns, found, kind, evaluator, left_out).figures()
    assert figures[STATS[kind][0]] == pytest.approx(wanted[0], rel=0, abs=1e-12)
    missed = scored(columns, found, kind, evaluator).figures()
    assert missed[STATS[kind][0]] < figures[STATS[kind][0]]


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_nothing_found_is_0_and_nothing_to_find_is_no_figure(
    drawn: Set, tmp_path: Path, evaluator: str
) -> None:
    columns = drawn.columns["boxes"]
    nothing = guesses(columns, "boxes", seed=0).taken(np.zeros(0, np.int64))
    figures = scored(columns, nothing, "boxes", evaluator).figures()
    assert set(figures.values()) == {0.0} and {"ap", "ap50", "ar100"} <= figures.keys()
    assert (
        "ap_large" not in figures and "ar_large" not in figures
    )  # there is no object of 96 x 96 pixels
    root = write_coco(tmp_path / "set", splits={"val2017": 4}, size=(64, 80))
    path = root / "annotations" / "instances_val2017.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"annotations": []}))
    scores = scored(
        open_coco(root, "val", keypoints=False, cache=tmp_path / "cache"),
        nothing,
        "boxes",
        evaluator,
    )
    # best.pt is picked by it: it is always there
    assert scores.figures().keys() == {"ap"} and math.isnan(scores.figures()["ap"])
    assert scores.by_category() == {} and np.isnan(scores.curve(0)).all()
