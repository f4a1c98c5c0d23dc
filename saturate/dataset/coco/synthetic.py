"""Images and boxes like COCO's, without files: what the synthetic loader trains on without --data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import Array
from saturate.dataset.coco.columns import Instances, class_names
from saturate.dataset.images.columns import HEADER, Header
from saturate.dataset.scan.manifest import offsets_of
from saturate.plan.draws import bits, key

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
"""Height and width of stored images; each row is the size of a twentieth of the images."""
OUTLINE = np.array([(0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)])
"""Corners, x y, of the rhombus that is the outline of every object, in a box of 1 x 1."""
MOST = 64
"""Most annotations of an image."""
MORE_BOXES = 6.8
MORE_PERSONS = 1.3
"""Means of the exponential draw of how many annotations an image has beside the first: boxes, and persons with
keypoints."""
EMPTY = 0.01
"""Share of images without an annotation."""
LEAST_SIDE = 8
"""Shortest side of a box, pixels."""
SIDES = 50
"""How many times as long as LEAST_SIDE the longest side is: 400 pixels."""
SAME_SIDE = 0.7
OWN_SIDE = 0.3
"""The draw of a box's height is this share of the draw of its width, and this share of a draw of its own."""
JOINTS = (0.1, 0.9)
"""Places of the first and of the last keypoint on the diagonal of the box, as shares of it."""
VISIBLE = 2.0
"""COCO's mark of a keypoint that is labelled and visible."""
SIZE, COUNT, IS_EMPTY, WIDTH, HEIGHT, LEFT, TOP, CATEGORY = range(8)
"""What numbers are drawn for: each is a stream of its own."""


class SyntheticInstances(Instances):
    """Images and boxes like COCO's, in memory: about seven boxes an image, or two with 17 keypoints each.

    One image in a hundred has none. Every number is a function of the image's id and of the annotation's place
    within the image.
    """

    @classmethod
    def generate(cls, samples: int, *, keypoints: bool = False) -> SyntheticInstances:
        """Return `samples` images with boxes of 90 categories, or of one category with `keypoints`."""
        ids = np.arange(samples)
        sizes = SIZES[(_uniform(SIZE, ids) * len(SIZES)).astype(int)]
        more = MORE_PERSONS if keypoints else MORE_BOXES
        drawn = 1 - np.log1p(-_uniform(COUNT, ids)) * more
        counts = np.minimum(drawn, MOST).astype(int)
        counts[_uniform(IS_EMPTY, ids) < EMPTY] = 0
        offsets = offsets_of(counts)
        images = np.repeat(ids, counts)
        places = (
            images * MOST + np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        )
        # axes: [annotation, width and height]
        side = LEAST_SIDE * SIDES ** np.stack(
            [
                _uniform(WIDTH, places),
                SAME_SIDE * _uniform(WIDTH, places)
                + OWN_SIDE * _uniform(HEIGHT, places),
            ],
            axis=1,
        )
        room = sizes[images, ::-1]
        side = np.minimum(side, room)
        corner = np.stack([_uniform(LEFT, places), _uniform(TOP, places)], axis=1) * (
            room - side
        )
        categories = 1 if keypoints else COCO_CATEGORIES
        joints = np.linspace(*JOINTS, COCO_KEYPOINTS if keypoints else 0)[:, None]
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
            path_offsets=offsets_of([*map(len, names)]),
            **{name: records[name].copy() for name in Header._fields},
            image_id=ids,
            annotation_offsets=offsets,
            annotation_id=places + 1,
            boxes=np.concatenate([corner, side], axis=1),
            area=side.prod(axis=1) / 2,  # of the rhombus
            category=(_uniform(CATEGORY, places) * categories).astype(np.int32),
            crowd=np.zeros(len(places), bool),
            usable=np.ones(len(places), bool),
            polygon_offsets=np.arange(len(places) + 1),
            point_offsets=np.arange(len(places) + 1) * len(OUTLINE),
            points=(corner[:, None] + side[:, None] * OUTLINE).reshape(-1, 2),
            rle_offsets=np.zeros(len(places) + 1, np.int64),
            rle=np.zeros(0, np.uint32),
            keypoints=np.concatenate(
                [body, np.full((*body.shape[:2], 1), VISIBLE)], axis=2
            ),
            category_ids=np.arange(1, categories + 1),
            keypoint_mirror=np.arange(len(joints)),
            keypoint_name=np.arange(len(joints), dtype=np.uint32),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(
            SyntheticInstances.generate, keypoints=self.keypoints.shape[1] > 0
        ), (len(self),)


def _uniform(what: int, counters: Array) -> Array:
    """Return float64 in [0, 1) of the stream `what`, one for each counter."""
    return (bits(key(what), counters) >> np.uint64(11)) * 2.0**-53
