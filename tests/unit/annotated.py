"""Columns of annotated images for tests of plans and targets: those of dataset.coco.columns.Instances,
without a scan or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from saturate.contracts import Array


def columns(
    sizes: Sequence[tuple[int, int]],
    boxes: Sequence[Sequence[tuple[float, float, float, float]]],
    *,
    runs: Sequence[Array] | None = None,
) -> Any:
    """Make the columns of images of `sizes`, height and width, with boxes x y width height each.

    Polygons are the boxes' outlines, or none with `runs`.
    """
    counts = [len(own) for own in boxes]
    every = np.array([box for own in boxes for box in own], np.float64).reshape(-1, 4)
    m = len(every)
    x, y, w, h = every.T
    corners = np.stack([x, y, x + w, y, x + w, y + h, x, y + h], axis=1).reshape(-1, 2)
    outlined = 0 if runs is not None else 1
    lengths = [len(run) for run in runs] if runs is not None else [0] * m
    return SimpleNamespace(
        exif=None,
        fetch=None,
        height=np.array([height for height, _ in sizes], np.int32),
        width=np.array([width for _, width in sizes], np.int32),
        image_id=100 + 3 * np.arange(len(sizes)),
        annotation_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        with_boxes=np.flatnonzero(counts),
        boxes=every,
        usable=np.ones(m, bool),
        category=np.arange(m, dtype=np.int32) % 3,
        class_of=np.array([1, 4, 9]),
        polygon_offsets=np.arange(m + 1) * outlined,
        point_offsets=np.arange(0, 4 * m + 1, 4) if outlined else np.zeros(1, np.int64),
        points=corners if outlined else np.zeros((0, 2)),
        rle_offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        rle=np.concatenate([np.zeros(0), *(runs or [])]).astype(np.uint32),
        keypoints=np.zeros((m, 0, 3)),
    )
