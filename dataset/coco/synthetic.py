"""Images and boxes like COCO's, without files: what the synthetic loader trains on without --data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array
from dataset.coco.columns import Instances, class_names
from dataset.images.columns import HEADER, Header
from plan.draws import bits, key

COCO_TRAIN = 118_287
COCO_VAL = 5_000
COCO_CATEGORIES = 90
COCO_KEYPOINTS = 17
SIZES = np.array(
    [(480, 640)] * 8
    + [(640, 480)] * 3
    + [(427, 640)] * 5
    + [(640, 427), (375, 500), (500, 375), (612, 612)]
)
"""Height and width; each is that of a twentieth of the images."""
OUTLINE = np.array([(0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)])
"""Everything is a rhombus: x y of its corners, in a box of 1 x 1."""
MOST = 64  # annotations of an image


class SyntheticInstances(Instances):
    """Images and boxes like COCO's, in memory: about seven boxes an image, or two with 17 keypoints each.

    One image in a hundred has none. All numbers are functions of the image's id and the annotation's place in
    it.
    """

    @classmethod
    def of(cls, samples: int, *, keypoints: bool = False) -> SyntheticInstances:
        """Return so many images of 90 categories, or of one with keypoints."""
        ids = np.arange(samples)
        sizes = SIZES[(_uniform(0, ids) * len(SIZES)).astype(int)]
        counts = np.minimum(
            1 - np.log1p(-_uniform(1, ids)) * (1.3 if keypoints else 6.8), MOST
        ).astype(int)
        counts[_uniform(2, ids) < 0.01] = 0
        offsets = np.concatenate([[0], np.cumsum(counts)])
        images = np.repeat(ids, counts)
        places = (
            images * MOST + np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        )
        # axes: [annotation, width and height]
        # 8 to 400 pixels
        side = 8 * 50 ** np.stack(
            [
                _uniform(3, places),
                0.7 * _uniform(3, places) + 0.3 * _uniform(4, places),
            ],
            axis=1,
        )
        room = sizes[images, ::-1]
        side = np.minimum(side, room)
        corner = np.stack([_uniform(5, places), _uniform(6, places)], axis=1) * (
            room - side
        )
        categories = 1 if keypoints else COCO_CATEGORIES
        joints = np.linspace(0.1, 0.9, COCO_KEYPOINTS if keypoints else 0)[:, None]
        # axes: [annotation, point, x and y]
        body = corner[:, None] + side[:, None] * joints
        names = [f"{i:012d}.jpg".encode() for i in range(samples)]
        header = Header(size=0, height=0, width=0, format=0, depth=8, components=3)
        records = np.full(samples, np.array(header, HEADER))
        records["height"], records["width"] = sizes.T
        return cls(
            folder=Path("synthetic"),
            root=Path("/synthetic"),
            fingerprint=f"synthetic-{samples}-{categories}-{len(joints)}",
            classes=class_names(
                np.arange(1, categories + 1),
                [f"category-{i:02d}" for i in range(1, categories + 1)],
            ),
            rejected=0,
            path_bytes=np.frombuffer(b"".join(names), np.uint8),
            path_offsets=np.concatenate(
                [[0], np.cumsum([len(name) for name in names], dtype=np.int64)]
            ),
            **{name: records[name].copy() for name in Header._fields},
            image_id=ids,
            annotation_offsets=offsets,
            annotation_id=places + 1,
            boxes=np.concatenate([corner, side], axis=1),
            area=side.prod(axis=1) / 2,
            category=(_uniform(7, places) * categories).astype(np.int32),
            crowd=np.zeros(len(places), bool),
            usable=np.ones(len(places), bool),
            polygon_offsets=np.arange(len(places) + 1),
            point_offsets=np.arange(len(places) + 1) * len(OUTLINE),
            points=(corner[:, None] + side[:, None] * OUTLINE).reshape(-1, 2),
            rle_offsets=np.zeros(len(places) + 1, np.int64),
            rle=np.zeros(0, np.uint32),
            keypoints=np.concatenate(
                [body, np.full((*body.shape[:2], 1), 2.0)], axis=2
            ),
            category_ids=np.arange(1, categories + 1),
            keypoint_mirror=np.arange(len(joints)),
            keypoint_name=np.arange(len(joints), dtype=np.uint32),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SyntheticInstances.of, keypoints=self.keypoints.shape[1] > 0), (
            len(self),
        )


def _uniform(what: int, counters: Array) -> Array:
    """Return float64 in [0, 1), one for each counter."""
    return (bits(key(what), counters) >> np.uint64(11)) * 2.0**-53
