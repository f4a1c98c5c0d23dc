"""Columns of annotated images for tests of plans and targets: those of dataset.coco.columns.Instances,
without a scan or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from contracts import Array

COCO_MIX = {
    (640, 480): 21.6,
    (640, 427): 12.0,
    (480, 640): 9.3,
    (640, 426): 7.7,
    (500, 375): 6.5,
    (640, 428): 4.7,
    (426, 640): 3.1,
    (427, 640): 3.0,
    (500, 333): 2.7,
    (640, 425): 2.6,
    (375, 500): 2.0,
    (640, 360): 1.6,
    (640, 424): 1.5,
    (612, 612): 1.2,
    (640, 640): 1.0,
    (333, 500): 1.0,
}
"""Width and height -> per cent of train2017, about; the others have a longer side of 640 and any shorter one.
"""


def columns(
    sizes: Sequence[tuple[int, int]],
    boxes: Sequence[Sequence[tuple[float, float, float, float]]],
    *,
    keypoints: Array | None = None,
    mirror: Sequence[int] = (),
    runs: Sequence[Array] | None = None,
) -> SimpleNamespace:
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
        keypoints=np.zeros((m, 0, 3)) if keypoints is None else keypoints,
        keypoint_mirror=np.array(mirror, np.int64),
    )


def coco_like(n: int, *, seed: int = 0) -> SimpleNamespace:
    """n images of COCO's sizes, with about 7 boxes each; one in a hundred has none."""
    rng = np.random.default_rng(seed)
    shares = np.array(list(COCO_MIX.values())) / 100
    kind = np.searchsorted(np.cumsum(shares), rng.random(n))
    other = rng.integers(300, 640, n)
    upright = rng.random(n) < 0.3
    listed = np.array([*COCO_MIX, (0, 0)])[kind]
    widths = np.where(kind < len(COCO_MIX), listed[:, 0], np.where(upright, other, 640))
    heights = np.where(
        kind < len(COCO_MIX), listed[:, 1], np.where(upright, 640, other)
    )
    counts = np.minimum(rng.geometric(1 / 7.3, n), 60) * (rng.random(n) > 0.01)
    limit = np.repeat(np.stack([widths, heights], axis=1), counts, axis=0)
    extent = np.minimum(np.exp(rng.uniform(np.log(8), np.log(500), limit.shape)), limit)
    corner = rng.random(limit.shape) * (limit - extent)
    parts = np.split(np.concatenate([corner, extent], axis=1), np.cumsum(counts)[:-1])
    return columns(
        list(zip(heights.tolist(), widths.tolist(), strict=True)),
        [list(map(tuple, part.tolist())) for part in parts],
    )
