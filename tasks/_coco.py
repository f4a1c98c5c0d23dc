"""AP as COCO defines it, of detections packed in arrays. Must not know models, batches, ranks or files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from contracts import Array, UserError
from system import processes
from system.resources import cores

EVALUATORS = {
    "faster-coco-eval": ("faster_coco_eval", "COCO", "COCOeval_faster"),
    "pycocotools": ("pycocotools", "coco.COCO", "cocoeval.COCOeval"),
}
"""--evaluator -> package, and where in it are what holds annotations and what compares them."""
KINDS = {"boxes": "bbox", "masks": "segm", "keypoints": "keypoints"}
"""What is scored -> COCO's name of it."""
PREFIXES = {"boxes": "", "masks": "mask_", "keypoints": "keypoint_"}
"""What is scored -> how its figures' names begin."""
LIKELY_KEYPOINTS = 17
SIGMA = 0.05
"""COCO's own tolerances are of its 17 keypoints of a person; other sets get this one for each."""

MANY = 20_000
"""Detections and objects from which on processes are started to compare them."""

ALL, SMALL, MEDIUM, LARGE = range(4)  # places of the areas; keypoints have no small ones
AREAS = {
    "boxes": {"": 0, "_small": 1, "_medium": 2, "_large": 3},
    "keypoints": {"": 0, "_medium": 1, "_large": 2},
}
IOU50, IOU75 = 0, 5  # places among 0.5, 0.55, ..., 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """N detections as COCO's results have them, in pixels of the stored image.

    Those of one image are in the model's order.
    """

    image_ids: Array  # int64 [N], COCO's
    category_ids: Array  # int64 [N], COCO's
    boxes: Array  # float64 [N, 4], x y width height
    scores: Array  # float64 [N]
    masks: list[dict[str, Any]] | None = None  # N run lengths, compressed, of the whole image
    keypoints: Array | None = None  # float64 [N, K, 3]

    def __len__(self) -> int:
        return len(self.scores)

    def taken(self, places: Array) -> Detections:
        """Return the detections at `places`, int [M]."""
        return Detections(
            image_ids=self.image_ids[places],
            category_ids=self.category_ids[places],
            boxes=self.boxes[places],
            scores=self.scores[places],
            masks=None if self.masks is None else [self.masks[place] for place in places],
            keypoints=None if self.keypoints is None else self.keypoints[places],
        )

    @staticmethod
    def joined(parts: Sequence[Detections]) -> Detections:
        """Join all detections, by image: their order does not depend on which rank had which image."""
        together = Detections(
            image_ids=np.concatenate([part.image_ids for part in parts]),
            category_ids=np.concatenate([part.category_ids for part in parts]),
            boxes=np.concatenate([part.boxes for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
            masks=None if parts[0].masks is None else [mask for part in parts for mask in part.masks or ()],
            keypoints=None
            if parts[0].keypoints is None
            else np.concatenate([part.keypoints for part in parts]),
        )
        return together.taken(np.argsort(together.image_ids, kind="stable"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an evaluation of one kind gives; -1 = there was nothing of that sort to find."""

    kind: str  # of KINDS
    # [T, R, C, A, M]: overlap 0.5 to 0.95, recall 0 to 1, category, area, detections an image
    precision: Array
    recall: Array  # [T, C, A, M]
    category_ids: Array  # int64 [C]

    def figures(self) -> dict[str, float]:
        """Return COCO's 12 figures (10 of keypoints) by name.

        Those of which there was nothing to find are left out, but `ap`, which is nan then.
        """
        areas = AREAS.get(self.kind, AREAS["boxes"])
        # of all the detections that count
        precision = self.precision[..., -1]
        recall = self.recall[..., -1]
        found = {
            "ap": _mean(precision[:, :, :, ALL]),
            "ap50": _mean(precision[IOU50, :, :, ALL]),
            "ap75": _mean(precision[IOU75, :, :, ALL]),
            **{f"ap{name}": _mean(precision[:, :, :, area]) for name, area in areas.items() if name},
        }
        if self.kind == "keypoints":
            found |= {
                "ar": _mean(recall[:, :, ALL]),
                "ar50": _mean(recall[IOU50, :, ALL]),
                "ar75": _mean(recall[IOU75, :, ALL]),
            }
        else:
            found |= {
                f"ar{most}": _mean(self.recall[:, :, ALL, place]) for place, most in enumerate((1, 10, 100))
            }
        found |= {f"ar{name}": _mean(recall[:, :, area]) for name, area in areas.items() if name}
        prefix = PREFIXES[self.kind]
        return {prefix + name: value for name, value in found.items() if name == "ap" or not np.isnan(value)}

    def by_category(self) -> dict[int, float]:
        """Return category id -> AP, of the categories that have objects to find."""
        means = {
            int(category): _mean(self.precision[:, :, place, ALL, -1])
            for place, category in enumerate(self.category_ids)
        }
        return {category: value for category, value in means.items() if not np.isnan(value)}

    def curve(self, overlap: int) -> Array:
        """Return [R]: precision at recalls 0, 0.01, ..., 1, a mean over categories with objects, or nan."""
        precision = self.precision[overlap, :, :, ALL, -1]
        there = (precision > -1).all(axis=0)
        return precision[:, there].mean(axis=1) if there.any() else np.full(len(precision), np.nan)


def _mean(values: Array) -> float:
    counted = values[values > -1]
    return float(np.mean(counted)) if len(counted) else float("nan")


def require(evaluator: str) -> None:
    """Import the evaluator, so that no process that scores has to. Raises UserError."""
    package, *members = EVALUATORS[evaluator]
    try:
        for member in members:
            _member(package, member)
    except (ImportError, OSError) as error:
        other = next(name for name in EVALUATORS if name != evaluator)
        raise UserError(
            f"--evaluator {evaluator} cannot be imported ({error}): "
            f"pip install {evaluator}, or --evaluator {other}"
        ) from None


def ground_truth(columns: Any, kind: str, categories: Array | None = None) -> dict[str, Any]:
    """Return COCO's annotation file of dataset/coco/columns.py; `kind` says what an annotation must have.

    It has the annotations of these categories, or of all. They are numbered from 1: to pycocotools the id 0
    means that nothing has matched.
    """
    categories = np.asarray(columns.category_ids) if categories is None else categories
    category_of = np.asarray(columns.category_ids)[np.asarray(columns.category)]
    places = np.flatnonzero(np.isin(category_of, categories))
    rows = zip(
        range(1, len(places) + 1),
        np.repeat(np.asarray(columns.image_id), np.diff(columns.annotation_offsets))[places].tolist(),
        category_of[places].tolist(),
        np.asarray(columns.boxes, np.float64)[places].tolist(),
        np.asarray(columns.area, np.float64)[places].tolist(),
        np.asarray(columns.crowd).astype(np.int64)[places].tolist(),
        strict=True,
    )
    names = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")
    annotations = [dict(zip(names, row, strict=True)) for row in rows]
    sizes = zip(
        *(np.asarray(column).tolist() for column in (columns.image_id, columns.height, columns.width)),
        strict=True,
    )
    images = [{"id": image, "height": height, "width": width} for image, height, width in sizes]
    if kind == "masks":
        size_of = {image["id"]: [image["height"], image["width"]] for image in images}
        for place, annotation in zip(places.tolist(), annotations, strict=True):
            annotation["segmentation"] = _segmentation(columns, place, size_of[annotation["image_id"]])
    if kind == "keypoints":
        points = np.asarray(columns.keypoints, np.float64)[places]
        for annotation, own, count in zip(
            annotations,
            points.reshape(len(points), 3 * points.shape[1]).tolist(),
            (points[:, :, 2] > 0).sum(axis=1).tolist(),
            strict=True,
        ):
            annotation.update(keypoints=own, num_keypoints=count)
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": category} for category in categories.tolist()],
    }


def _segmentation(columns: Any, place: int, size: list[int]) -> Any:
    """Return polygons, or uncompressed run lengths; an annotation with neither gets a polygon without an
    inside.
    """
    runs = columns.rle[columns.rle_offsets[place] : columns.rle_offsets[place + 1]]
    if len(runs):
        return {"size": size, "counts": runs.tolist()}
    cuts = columns.point_offsets[
        columns.polygon_offsets[place] : columns.polygon_offsets[place + 1] + 1
    ].tolist()
    polygons = [columns.points[a:b].ravel().tolist() for a, b in pairwise(cuts)]
    return polygons or [[0.0] * 6]


def names(columns: Any) -> dict[int, str]:
    """Return category id -> its name."""
    return {
        int(category): columns.classes[number]
        for category, number in zip(columns.category_ids, columns.class_of, strict=True)
    }


def lines(scores: Scores, columns: Any) -> list[str]:
    """Write the figures, then AP by category, in lines for a person to read."""
    figures = scores.figures()
    named = names(columns)
    by_category = {named[category]: value for category, value in scores.by_category().items()}
    width = max(map(len, [*figures, *by_category]))
    told = {f"{scores.kind}:": figures, f"{scores.kind}, AP by class:": by_category}
    return [
        line
        for title, values in told.items()
        for line in (title, *(f"  {name:<{width}}  {value:7.2%}" for name, value in values.items()))
    ]


def score(columns: Any, found: Detections, *, kind: str, evaluator: str, workers: int = 0) -> Scores:
    """Return the scores of detections against all images of `columns`.

    Many of both are scored in `workers` processes (0 = a core each), a part of the categories in each. What
    is found of a category does not depend on the others: the figures are the same to the last digit.
    """
    categories: Array = np.sort(np.asarray(columns.category_ids))
    workers = (
        min(workers or max(int(cores()), 1), len(categories))
        if len(found) + len(columns.category) > MANY
        else 1
    )
    if workers <= 1:
        return _score(columns, found, categories, kind, evaluator)
    all_ids = np.concatenate(
        [found.category_ids, np.asarray(columns.category_ids)[np.asarray(columns.category)]]
    )
    groups = _alike(np.array([np.count_nonzero(all_ids == category) for category in categories]), workers)

    def of_group(group: int) -> tuple[Array, Array]:
        own = categories[groups == group]
        scores = _score(
            columns, found.taken(np.flatnonzero(np.isin(found.category_ids, own))), own, kind, evaluator
        )
        return scores.precision, scores.recall

    parts = processes.gathered(of_group, range(workers), workers)
    # axes: [T, R, C, A, M] and [T, C, A, M]
    place = np.argsort(np.concatenate([np.flatnonzero(groups == group) for group in range(workers)]))
    precision, recall = (
        np.concatenate(values, axis=-3).take(place, axis=-3) for values in zip(*parts, strict=True)
    )
    return Scores(kind=kind, precision=precision, recall=recall, category_ids=categories)


def _alike(sizes: Array, count: int) -> Array:
    """Group `sizes` alike, int [N]: the largest first, each to the group with the least so far."""
    groups = np.zeros(len(sizes), np.int64)
    filled = np.zeros(count)
    for place in np.argsort(-sizes, kind="stable"):
        groups[place] = filled.argmin()
        # + 1, so that categories of which there is nothing are spread too
        filled[groups[place]] += sizes[place] + 1
    return groups


def _score(columns: Any, found: Detections, categories: Array, kind: str, evaluator: str) -> Scores:
    """Return the scores of these categories. What the evaluators print is caught."""
    package, holder, comparer = EVALUATORS[evaluator]
    with contextlib.redirect_stdout(io.StringIO()):
        annotations = _member(package, holder)
        evaluation = _member(package, comparer)
        truth = ground_truth(columns, kind, categories)
        expected = _indexed(annotations, truth)
        detected = _indexed(annotations, {**truth, "annotations": _as_annotations(found, kind)})
        run = evaluation(expected, detected, KINDS[kind])
        run.params.imgIds = sorted(image["id"] for image in truth["images"])
        run.params.catIds = categories.tolist()
        if kind == "keypoints" and columns.keypoints.shape[1] != LIKELY_KEYPOINTS:
            run.params.kpt_oks_sigmas = np.full(columns.keypoints.shape[1], SIGMA)
        run.evaluate()
        run.accumulate()
    return Scores(
        kind=kind,
        precision=np.asarray(run.eval["precision"]),
        recall=np.asarray(run.eval["recall"]),
        category_ids=categories,
    )


def _member(package: str, path: str) -> Any:
    *modules, name = path.split(".")
    return getattr(import_module(".".join([package, *modules])), name)


def _indexed(annotations: Any, dataset: dict[str, Any]) -> Any:
    made = annotations()
    made.dataset = dataset
    made.createIndex()
    return made


def _as_annotations(found: Detections, kind: str) -> list[dict[str, Any]]:
    """Return what the evaluators' own loadRes makes of a results file: numbered from 1, with an area."""
    if kind == "boxes":
        extra = "bbox"
        shapes = found.boxes.tolist()
        areas = found.boxes[:, 2] * found.boxes[:, 3]
    elif kind == "masks":
        from pycocotools import mask as coder

        extra = "segmentation"
        shapes = found.masks or []
        # one at a time: of more than 255 it raises OverflowError (pycocotools 2.0.11 on NumPy 2)
        areas = np.array([coder.area(shape) for shape in shapes], np.float64)
    else:
        points = found.keypoints if found.keypoints is not None else np.zeros((0, LIKELY_KEYPOINTS, 3))
        extra = "keypoints"
        shapes = points.reshape(len(points), 3 * points.shape[1]).tolist()
        areas = np.ptp(points[:, :, 0], axis=1) * np.ptp(points[:, :, 1], axis=1)
    rows = zip(
        found.image_ids.tolist(),
        found.category_ids.tolist(),
        found.scores.tolist(),
        areas.tolist(),
        shapes,
        strict=True,
    )
    return [
        {
            "id": number,
            "image_id": image,
            "category_id": category,
            "score": value,
            "area": area,
            "iscrowd": 0,
            extra: shape,
        }
        for number, (image, category, value, area, shape) in enumerate(rows, 1)
    ]
