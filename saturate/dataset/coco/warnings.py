"""Sentences about annotations that can be used and may not be what was meant; must not change any."""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array

FEW_CROWDS = 0.2  # share of the annotations; COCO's own have 1 %
NAMED = 5  # annotations that a sentence names
ROUNDED = 1.0  # pixels that a box may reach out of its image


def annotation_warnings(rows: Array, sizes: Array) -> list[str]:
    """Return a sentence for each kind of doubtful annotation, which names the first of them by their ids.

    `rows` are ROW [m] of the annotations that are used; `sizes` int64 [m, 2] are height and width of each
    row's image. One box is enough for a sentence; crowds, which are no mistake, take more than FEW_CROWDS.
    """
    x, y, w, h = rows["box"].T
    height, width = sizes.T
    beyond = (np.minimum(x, y) < -ROUNDED) | (x + w > width + ROUNDED)
    beyond |= y + h > height + ROUNDED
    crowds = rows["crowd"]
    checks = (
        (
            crowds & (np.count_nonzero(crowds) > FEW_CROWDS * len(rows)),
            "annotations are crowds (iscrowd 1): no detector trains on them, and to miss one is no mistake; "
            "single objects have iscrowd 0",
        ),
        (
            np.maximum(w, h) <= 1,
            "boxes are not larger than a pixel: COCO's boxes are in pixels, and these may be shares of the "
            "sides",
        ),
        (
            beyond,
            "boxes reach out of their images, and are cut at the edges: COCO's boxes are x y width height, and "
            "these may be x0 y0 x1 y1",
        ),
        (
            _again(rows),
            "boxes are there before, of the same image and category: each of them is trained on",
        ),
    )
    return [
        f"{np.count_nonzero(odd):,} of {len(rows):,} {what} ({_names(rows[odd])})"
        for odd, what in checks
        if odd.any()
    ]


def _again(rows: Array) -> Array:
    """Return bool [m]: rows whose image, category and box an earlier row has, too."""
    columns = [rows["image_id"], rows["category"], *rows["box"].T]
    order = np.lexsort(columns)  # equal rows stay in their order
    alike = [column[order][1:] == column[order][:-1] for column in columns]
    again = np.zeros(len(rows), bool)
    again[order[1:]] = np.logical_and.reduce(alike)
    return again


def _names(rows: Array) -> str:
    """Return what a sentence calls these annotations; 0 is the id of one that has none."""
    names = [
        f"{row['annotation_id'] or 'without an id'} of image {row['image_id']}"
        for row in rows[:NAMED]
    ]
    more = ", ..." if len(rows) > NAMED else ""
    return f"annotation {', '.join(names)}{more}"
