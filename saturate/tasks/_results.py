"""Detections as files in COCO's results format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from saturate.tasks._coco import Detections

KEYS = {"boxes": "bbox", "masks": "segmentation", "keypoints": "keypoints"}
"""What is scored -> its key in a results file."""
Entries = list[dict[str, Any]]


def entries(detections: Detections, kind: str) -> Entries:
    """Return one kind's entries of a results file, as COCO's server takes them."""
    shapes: Sequence[object]
    if kind == "masks":
        shapes = detections.masks or []
    elif kind == "keypoints":
        assert detections.keypoints is not None
        points = detections.keypoints
        shapes = points.reshape(len(points), 3 * points.shape[1]).tolist()
    else:
        shapes = detections.boxes.tolist()
    rows = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
        shapes,
        detections.scores.tolist(),
        strict=True,
    )
    names = ("image_id", "category_id", KEYS[kind], "score")
    return [dict(zip(names, row, strict=True)) for row in rows]


def encoded(entries: Entries) -> bytes:
    """Return a results file, with an entry a line.

    Numbers are not rounded, so that an evaluator gives the same figures.
    """
    return ("[" + ",\n".join(map(json.dumps, entries)) + "]\n").encode()


def file_name(kind: str) -> str:
    """Return the name of a kind's results file."""
    return f"detections{'' if kind == 'boxes' else f'_{kind}'}.json"
