"""AP as COCO defines it, of detections packed in arrays. Must not know models, batches, ranks or files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import Any

import numpy as np

from saturate.contracts import Array
from saturate.dataset.coco.columns import Instances

KINDS = {"boxes": "bbox", "masks": "segm", "keypoints": "keypoints"}
"""What is scored -> COCO's name of it."""
PREFIXES = {"boxes": "", "masks": "mask_", "keypoints": "keypoint_"}
"""What is scored -> how its figures' names begin."""
OF_SHAPES = "ap ap50 ap75 ap_small ap_medium ap_large ar1 ar10 ar100 ar_small ar_medium ar_large"
OF_POINTS = "ap ap50 ap75 ap_medium ap_large ar ar50 ar75 ar_medium ar_large"
FIGURES = {
    "boxes": OF_SHAPES.split(),
    "masks": OF_SHAPES.split(),
    "keypoints": OF_POINTS.split(),
}
"""What is scored -> COCO's figures of it, in the order in which an evaluator gives them."""
PERSON_KEYPOINTS = 17
SIGMA = 0.05
"""COCO's own tolerances are of its 17 keypoints of a person; other sets get this one for each."""


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
        columns: dict[str, Any] = {
            name: [values[place] for place in places]
            if isinstance(values, list)
            else values[places]
            for name, values in self._columns().items()
        }
        return Detections(**columns)

    def _columns(self) -> dict[str, Any]:
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: values for name, values in columns.items() if values is not None}

    @staticmethod
    def joined(parts: Sequence[Detections]) -> Detections:
        """Join detections, by image: their order does not depend on which rank had which image."""
        together: dict[str, Any] = {}
        for name, first in parts[0]._columns().items():
            values = [getattr(part, name) for part in parts]
            is_list = isinstance(first, list)
            together[name] = [*chain(*values)] if is_list else np.concatenate(values)
        order = np.argsort(together["image_ids"], kind="stable")
        return Detections(**together).taken(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an evaluation of one kind gives; -1 = there was nothing of that sort to find."""

    kind: str  # of KINDS
    stats: Array  # [12], or [10] of keypoints: COCO's figures
    # [T, R, C]: overlap 0.5 to 0.95, recall 0 to 1, category; of all sizes
    precision: Array
    category_ids: Array  # int64 [C]

    def figures(self) -> dict[str, float]:
        """Return COCO's 12 figures (10 of keypoints) by name.

        Those of which there was nothing to find are left out, but `ap`, which is nan then.
        """
        names = FIGURES[self.kind]
        return {
            PREFIXES[self.kind] + name: value if value > -1 else float("nan")
            for name, value in zip(names, self.stats.tolist(), strict=True)
            if value > -1 or name == "ap"
        }

    def by_category(self) -> dict[int, float]:
        """Return category id -> AP, of the categories that have objects to find."""
        return {
            int(category): float(precision.mean())
            for category, precision in zip(
                self.category_ids, np.moveaxis(self.precision, 2, 0), strict=True
            )
            if (precision > -1).all()
        }

    def curve(self, overlap: int) -> Array:
        """Return [R]: precision at recalls 0, 0.01, ..., 1, a mean over categories with objects, or nan."""
        precision = self.precision[overlap]
        present = (precision > -1).all(axis=0)
        if not present.any():
            return np.full(len(precision), np.nan)
        return precision[:, present].mean(axis=1)


def score(
    columns: Instances,
    entries: list[dict[str, Any]],
    *,
    samples: Sequence[int],
    kind: str,
    evaluator: str,
) -> Scores:
    """Return the scores of a results file's entries, of one kind, against the `samples` of `columns` alone: nobody has
    looked for the objects of an image that could not be decoded.

    What evaluators print is caught. They add fields to the entries.
    """
    if evaluator == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO  # type: ignore[import-untyped]
        from faster_coco_eval import COCOeval_faster as COCOeval
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = ground_truth(columns, kind)
        truth.createIndex()
        results = COCO()
        if entries:  # of none pycocotools raises IndexError
            results = truth.loadRes(entries)
        run = COCOeval(truth, results, KINDS[kind])
        if samples:  # of none evaluators raise KeyError
            run.params.imgIds = np.sort(columns.image_id[[*samples]]).tolist()
        keypoints = columns.keypoints.shape[1]
        if kind == "keypoints" and keypoints != PERSON_KEYPOINTS:
            run.params.kpt_oks_sigmas = np.full(keypoints, SIGMA)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return Scores(
        kind=kind,
        # of faster-coco-eval two more follow, which COCO does not have
        stats=np.asarray(run.stats)[: 10 if kind == "keypoints" else 12],
        # axes: [T, R, C, areas, detections an image] -> all areas, the most detections
        precision=np.asarray(run.eval["precision"])[:, :, :, 0, -1],
        category_ids=np.sort(np.asarray(columns.category_ids)),
    )


def ground_truth(columns: Instances, kind: str) -> dict[str, Any]:
    """Return COCO's annotation file of dataset/coco/columns.py; `kind` says what an annotation must have.

    Annotations are numbered from 1: to pycocotools the id 0 means that nothing has matched.
    """
    count = len(columns.area)
    image_of = np.repeat(
        np.arange(len(columns.image_id)), np.diff(columns.annotation_offsets)
    )
    shape: dict[str, Any] = {}
    if kind == "masks":
        sizes = np.stack([columns.height, columns.width], axis=1)[image_of].tolist()
        shape["segmentation"] = [
            segmentation(columns, place, size) for place, size in enumerate(sizes)
        ]
    if kind == "keypoints":
        points = np.asarray(columns.keypoints, np.float64)
        shape["keypoints"] = points.reshape(count, 3 * points.shape[1])
        shape["num_keypoints"] = (points[:, :, 2] > 0).sum(axis=1)
    images = {"id": columns.image_id, "height": columns.height, "width": columns.width}
    annotations = {
        "id": np.arange(1, count + 1),
        "image_id": np.asarray(columns.image_id)[image_of],
        "category_id": np.asarray(columns.category_ids)[np.asarray(columns.category)],
        "bbox": np.asarray(columns.boxes, np.float64),
        "area": np.asarray(columns.area, np.float64),
        "iscrowd": np.asarray(columns.crowd).astype(np.int64),
        **shape,
    }
    return {
        "info": {},  # some versions of pycocotools ask for it
        "images": _entries(images),
        "annotations": _entries(annotations),
        "categories": _entries({"id": columns.category_ids}),
    }


def _entries(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return columns, arrays or lists of one length, as the entries of a JSON file."""
    lists = [
        values if isinstance(values, list) else np.asarray(values).tolist()
        for values in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def segmentation(columns: Instances, place: int, size: list[int]) -> Any:
    """Return polygons, or uncompressed run lengths; where there are neither, a polygon without an inside."""
    runs = columns.rle[columns.rle_offsets[place] : columns.rle_offsets[place + 1]]
    if len(runs):
        return {"size": size, "counts": runs.tolist()}
    first, last = columns.polygon_offsets[place : place + 2]
    cuts = columns.point_offsets[first : last + 1].tolist()
    polygons = [columns.points[a:b].ravel().tolist() for a, b in pairwise(cuts)]
    return polygons or [[0.0] * 6]


def names(columns: Instances) -> dict[int, str]:
    """Return category id -> its name."""
    return {
        int(category): columns.classes[number]
        for category, number in zip(columns.category_ids, columns.class_of, strict=True)
    }
