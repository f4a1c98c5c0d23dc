"""Sentences about annotations that can be used and may not be what was meant; must not change any."""

from __future__ import annotations

import numpy as np

from contracts import Array

FEW_CROWDS = 0.2  # share of the annotations; COCO's own have 1 %
FEW_BEYOND = 0.1  # share of the boxes; that of boxes as x0 y0 x1 y1 is above a half
NEARLY_ALL = 0.9
ROUNDED = 1.0  # pixels that a box may reach out of its image


def annotation_warnings(rows: Array, sizes: Array) -> list[str]:
    """Return a sentence for each of them. `sizes` int64 [m, 2] are height and width of each row's image."""
    x, y, w, h = rows["box"].T
    height, width = sizes.T
    small = np.maximum(w, h) <= 1
    beyond = (np.minimum(x, y) < -ROUNDED) | (x + w > width + ROUNDED)
    beyond |= y + h > height + ROUNDED
    checks = (
        (
            rows["crowd"],
            FEW_CROWDS,
            "annotations are crowds (iscrowd 1): no detector trains on them, and to miss one is no mistake; "
            "single objects have iscrowd 0",
        ),
        (
            small,
            NEARLY_ALL,
            "boxes are not larger than a pixel: COCO's boxes are in pixels, and these may be shares of the "
            "sides",
        ),
        (
            beyond,
            FEW_BEYOND,
            "boxes reach out of their images: COCO's boxes are x y width height, and these may be x0 y0 x1 "
            "y1",
        ),
    )
    return [
        f"{np.count_nonzero(odd):,} of {len(rows):,} {what}"
        for odd, few, what in checks
        if np.count_nonzero(odd) > few * len(rows)
    ]
