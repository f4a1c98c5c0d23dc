"""AP as COCO defines it, of detections packed in arrays. Must not know models, batches, ranks or files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, pairwise
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

ALL = 0  # index of all areas together
AREAS = {"_small": 1, "_medium": 2, "_large": 3}
KEYPOINT_AREAS = {"_medium": 1, "_large": 2}
IOU50, IOU75 = 0, 5  # indices among 0.5, 0.55, ..., 0.95
OVERLAPS = {
    "": slice(None),
    "50": slice(IOU50, IOU50 + 1),
    "75": slice(IOU75, IOU75 + 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Detections:
    """N detections as COCO's results have them, in pixels of the stored image.

    Those of one image are in the model's order.
    """

    image_ids: Array  # int64 [N], COCO's
    category_ids: Array  # int64 [N], COCO's
    boxes: Array  # float64 [N, 4], x y width height
    scores: Array  # float64 [N]
    # N run lengths, compressed, of the whole image
    masks: list[dict[str, Any]] | None = None
    keypoints: Array | None = None  # float64 [N, K, 3]

    def __len__(self) -> int:
        return len(self.scores)

    def taken(self, places: Array) -> Detections:
        """Return the detections at `places`, int [M]."""

        def of(values: Any) -> Any:
            return (
                [values[place] for place in places]
                if isinstance(values, list)
                else values[places]
            )

        return Detections(
            **{name: of(values) for name, values in self.columns().items()}
        )

    def columns(self) -> dict[str, Any]:
        """Return what there is of these detections, by the names of the fields."""
        return {
            name: values
            for name in self.__slots__
            if (values := getattr(self, name)) is not None
        }

    @staticmethod
    def joined(parts: Sequence[Detections]) -> Detections:
        """Join all detections, by image: their order does not depend on which rank had which image."""
        together: dict[str, Any] = {}
        for name, first in parts[0].columns().items():
            values = [getattr(part, name) for part in parts]
            together[name] = (
                list(chain(*values))
                if isinstance(first, list)
                else np.concatenate(values)
            )
        order = np.argsort(together["image_ids"], kind="stable")
        return Detections(**together).taken(order)


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
        keypoints = self.kind == "keypoints"
        areas = KEYPOINT_AREAS if keypoints else AREAS
        # of all the detections that count
        precision = self.precision[..., -1]
        recall = self.recall[..., -1]
        if keypoints:
            recalls = {
                name: recall[overlap, :, ALL] for name, overlap in OVERLAPS.items()
            }
        else:
            recalls = {
                str(most): self.recall[:, :, ALL, i]
                for i, most in enumerate((1, 10, 100))
            }
        values = {
            **{
                f"ap{name}": precision[overlap, :, :, ALL]
                for name, overlap in OVERLAPS.items()
            },
            **{f"ap{name}": precision[:, :, :, area] for name, area in areas.items()},
            **{f"ar{name}": some for name, some in recalls.items()},
            **{f"ar{name}": recall[:, :, area] for name, area in areas.items()},
        }
        means = {name: _mean(some) for name, some in values.items()}
        prefix = PREFIXES[self.kind]
        return {
            prefix + name: mean
            for name, mean in means.items()
            if name == "ap" or not np.isnan(mean)
        }

    def by_category(self) -> dict[int, float]:
        """Return category id -> AP, of the categories that have objects to find."""
        means = {
            int(category): _mean(self.precision[:, :, place, ALL, -1])
            for place, category in enumerate(self.category_ids)
        }
        return {
            category: value for category, value in means.items() if not np.isnan(value)
        }

    def curve(self, overlap: int) -> Array:
        """Return [R]: precision at recalls 0, 0.01, ..., 1, a mean over categories with objects, or nan."""
        precision = self.precision[overlap, :, :, ALL, -1]
        there = (precision > -1).all(axis=0)
        return (
            precision[:, there].mean(axis=1)
            if there.any()
            else np.full(len(precision), np.nan)
        )


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


def ground_truth(
    columns: Any, kind: str, categories: Array | None = None
) -> dict[str, Any]:
    """Return COCO's annotation file of dataset/coco/columns.py; `kind` says what an annotation must have.

    It has the annotations of these categories, or of all. They are numbered from 1: to pycocotools the id 0
    means that nothing has matched.
    """
    categories = np.asarray(columns.category_ids) if categories is None else categories
    category_of = np.asarray(columns.category_ids)[np.asarray(columns.category)]
    places = np.flatnonzero(np.isin(category_of, categories))
    image_of = np.repeat(
        np.arange(len(columns.image_id)), np.diff(columns.annotation_offsets)
    )[places]
    shape: dict[str, Any] = {}
    if kind == "masks":
        sizes = np.stack([columns.height, columns.width], axis=1)[image_of].tolist()
        shapes = zip(places.tolist(), sizes, strict=True)
        shape = {
            "segmentation": [
                _segmentation(columns, place, size) for place, size in shapes
            ]
        }
    if kind == "keypoints":
        points = np.asarray(columns.keypoints, np.float64)[places]
        seen = (points[:, :, 2] > 0).sum(axis=1)
        shape = {
            "keypoints": points.reshape(len(points), 3 * points.shape[1]),
            "num_keypoints": seen,
        }
    return {
        "images": _entries(
            {"id": columns.image_id, "height": columns.height, "width": columns.width}
        ),
        "annotations": _entries(
            {
                "id": np.arange(1, len(places) + 1),
                "image_id": np.asarray(columns.image_id)[image_of],
                "category_id": category_of[places],
                "bbox": np.asarray(columns.boxes, np.float64)[places],
                "area": np.asarray(columns.area, np.float64)[places],
                "iscrowd": np.asarray(columns.crowd).astype(np.int64)[places],
                **shape,
            }
        ),
        "categories": _entries({"id": categories}),
    }


def _entries(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return columns, arrays or lists of one length, as the entries of a JSON file."""
    lists = [
        values if isinstance(values, list) else np.asarray(values).tolist()
        for values in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


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
    by_category = {
        named[category]: value for category, value in scores.by_category().items()
    }
    width = max(map(len, [*figures, *by_category]))
    tables = {f"{scores.kind}:": figures, f"{scores.kind}, AP by class:": by_category}
    return [
        line
        for title, values in tables.items()
        for line in (
            title,
            *(f"  {name:<{width}}  {value:7.2%}" for name, value in values.items()),
        )
    ]


def score(
    columns: Any, detections: Detections, *, kind: str, evaluator: str, workers: int = 0
) -> Scores:
    """Return the scores of detections against all images of `columns`.

    Many of both are scored in `workers` processes (0 = a core each), a part of the categories in each. What
    is found of a category does not depend on the others: the figures are the same to the last digit.
    """
    categories: Array = np.sort(np.asarray(columns.category_ids))
    workers = (
        min(workers or max(int(cores()), 1), len(categories))
        if len(detections) + len(columns.category) > MANY
        else 1
    )
    if workers <= 1:
        return _score(columns, detections, categories, kind, evaluator)
    all_ids = np.concatenate(
        [
            detections.category_ids,
            np.asarray(columns.category_ids)[np.asarray(columns.category)],
        ]
    )
    groups = _alike(
        np.array([np.count_nonzero(all_ids == category) for category in categories]),
        workers,
    )

    def of_group(group: int) -> tuple[Array, Array]:
        own = categories[groups == group]
        scores = _score(
            columns,
            detections.taken(np.flatnonzero(np.isin(detections.category_ids, own))),
            own,
            kind,
            evaluator,
        )
        return scores.precision, scores.recall

    parts = processes.gathered(of_group, range(workers), workers)
    # axes: [T, R, C, A, M] and [T, C, A, M]
    place = np.argsort(
        np.concatenate([np.flatnonzero(groups == group) for group in range(workers)])
    )
    precision, recall = (
        np.concatenate(values, axis=-3).take(place, axis=-3)
        for values in zip(*parts, strict=True)
    )
    return Scores(
        kind=kind, precision=precision, recall=recall, category_ids=categories
    )


def _alike(sizes: Array, count: int) -> Array:
    """Group `sizes` alike, int [N]: the largest first, each to the group with the least so far."""
    groups = np.zeros(len(sizes), np.int64)
    filled = np.zeros(count)
    for place in np.argsort(-sizes, kind="stable"):
        groups[place] = filled.argmin()
        # + 1, so that categories of which there is nothing are spread too
        filled[groups[place]] += sizes[place] + 1
    return groups


def _score(
    columns: Any, detections: Detections, categories: Array, kind: str, evaluator: str
) -> Scores:
    """Return the scores of these categories. What the evaluators print is caught."""
    package, holder, comparer = EVALUATORS[evaluator]
    with contextlib.redirect_stdout(io.StringIO()):
        annotations = _member(package, holder)
        evaluation = _member(package, comparer)
        truth = ground_truth(columns, kind, categories)
        expected = _indexed(annotations, truth)
        detected = _indexed(
            annotations, {**truth, "annotations": _as_annotations(detections, kind)}
        )
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


def _as_annotations(detections: Detections, kind: str) -> list[dict[str, Any]]:
    """Return what the evaluators' own loadRes makes of a results file: numbered from 1, with an area."""
    if kind == "boxes":
        extra = "bbox"
        shapes: Any = detections.boxes
        areas = detections.boxes[:, 2] * detections.boxes[:, 3]
    elif kind == "masks":
        from pycocotools import mask as coder

        extra = "segmentation"
        shapes = detections.masks or []
        # one at a time: of more than 255 it raises OverflowError (pycocotools 2.0.11 on NumPy 2)
        areas = np.array([coder.area(shape) for shape in shapes], np.float64)
    else:
        points = (
            detections.keypoints
            if detections.keypoints is not None
            else np.zeros((0, LIKELY_KEYPOINTS, 3))
        )
        extra = "keypoints"
        shapes = points.reshape(len(points), 3 * points.shape[1])
        areas = np.ptp(points[:, :, 0], axis=1) * np.ptp(points[:, :, 1], axis=1)
    return _entries(
        {
            "id": np.arange(1, len(detections) + 1),
            "image_id": detections.image_ids,
            "category_id": detections.category_ids,
            "score": detections.scores,
            "area": areas,
            "iscrowd": np.zeros(len(detections), np.int64),
            extra: shapes,
        }
    )
