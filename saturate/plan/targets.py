"""Targets of a batch: a label a row, or packed boxes, masks and keypoints. Knows no model, draws nothing.

Packed: what belongs to row i lies at offsets[i] : offsets[i + 1] of each array that has a place a box.
"""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array, BoxColumns, Rows
from saturate.plan import geometry

IGNORE = -1
"""The label of a row that is padding; torch's cross entropy takes it as `ignore_index`."""


def label_targets(column: Array, rows: Rows) -> dict[str, Array]:
    """Return {"labels": int64 [B]}: each row's entry of `column` [n], IGNORE where the row is padding."""
    labels = column[np.where(rows.valid, rows.ids, 0)]
    return {"labels": np.where(rows.valid, labels, IGNORE).astype(np.int64)}


def spans(begins: Array, counts: Array) -> tuple[Array, Array]:
    """Return (places, which), int64: counts[i] places from begins[i] on for each i, and the i of each."""
    which = np.repeat(np.arange(len(counts)), counts)
    # axes: [sum of counts]
    before = np.cumsum(counts) - counts
    return np.arange(len(which)) + (begins - before)[which], which


def usable_boxes(columns: BoxColumns, ids: Array) -> tuple[Array, Array, Array]:
    """Return (annotations, which, boxes): what there is to train on in images `ids`.

    That is int64 [M]; int64 [M], the row of each; and float64 [M, 4]. Boxes are x0 y0 x1 y1 in stored pixels, cut
    at the edges of the image.
    """
    offsets = columns.annotation_offsets
    annotations, which = spans(offsets[ids], offsets[ids + 1] - offsets[ids])
    usable = np.asarray(columns.usable[annotations])
    annotations, which = annotations[usable], which[usable]
    corner, size = np.split(np.asarray(columns.boxes[annotations]), 2, axis=1)
    boxes = np.concatenate([corner, corner + size], axis=1)
    return (
        annotations,
        which,
        geometry.clipped(boxes, columns.height[ids][which], columns.width[ids][which]),
    )


def packed(
    columns: BoxColumns,
    rows: Rows,
    *,
    masks: bool,
    keypoints: bool,
    centred: bool = False,
) -> dict[str, Array]:
    """Return host arrays of the M boxes to train on, in the order of the rows that are valid.

    offsets int64 [B + 1]; boxes float32 [M, 4], x0 y0 x1 y1 in output pixels, cut at the output's edges, none
    without area; labels int64 [M], class numbers; masks uint8 [M, H, W], as large as the batch's images;
    keypoints float32 [M, K, 3], all 0 where one is not marked or not in the output.

    `centred`: only boxes whose middle is in the output, the rule of crops by overlap
    (DetectionPolicy.centred).
    """
    real = np.flatnonzero(rows.valid)
    annotations, which, boxes = usable_boxes(columns, rows.ids[real])
    which = real[which]
    heights, widths = rows.sizes[which].T
    whole = geometry.boxes_to_output(rows, which, boxes)
    # in fp32 before it is asked for its area: rounding may take that
    boxes = geometry.clipped(whole, heights, widths).astype(np.float32)
    valid = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    if centred:
        middle = (whole[:, :2] + whole[:, 2:]) / 2
        valid &= ((middle > 0) & (middle < rows.sizes[which, ::-1])).all(axis=1)
    annotations, which = annotations[valid], which[valid]
    targets = {
        "offsets": np.concatenate(
            [[0], np.cumsum(np.bincount(which, minlength=len(rows)))]
        ).astype(np.int64),
        "boxes": boxes[valid],
        "labels": np.asarray(columns.class_of)[columns.category[annotations]].astype(
            np.int64
        ),
    }
    if masks:
        targets["masks"] = drawn_masks(columns, rows, annotations, which)
    if keypoints:
        targets["keypoints"] = moved_keypoints(columns, rows, annotations, which)
    return targets


def padded(targets: dict[str, Array], places: int) -> dict[str, Array]:
    """Return packed boxes as float32 [B, places, 4], each row's first, and labels int64 [B, places].

    The label of a place without a box is IGNORE. Raises ValueError where a row has more boxes than places.
    """
    filled = np.arange(places) < np.diff(targets["offsets"])[:, None]
    boxes = np.zeros((*filled.shape, 4), np.float32)
    boxes[filled] = targets["boxes"]
    labels = np.full(filled.shape, IGNORE)
    labels[filled] = targets["labels"]
    return {"boxes": boxes, "labels": labels}


def moved_keypoints(
    columns: BoxColumns, rows: Rows, annotations: Array, which: Array
) -> Array:
    """Return float32 [M, K, 3], x y in output pixels and visibility; turns may swap left and right."""
    # axes: [M, K, 3]
    points = np.asarray(columns.keypoints[annotations])
    points = np.where(
        geometry.reflected(rows.turns)[which, None, None],
        points[:, np.asarray(columns.keypoint_mirror)],
        points,
    )
    place = geometry.to_output(rows, which, points[..., :2])
    inside = ((place >= 0) & (place < rows.sizes[which, None, ::-1])).all(axis=2) & (
        points[..., 2] > 0
    )
    moved = np.concatenate([place, points[..., 2:]], axis=2)
    return np.where(inside[..., None], moved, 0).astype(np.float32)


def drawn_masks(
    columns: BoxColumns, rows: Rows, annotations: Array, which: Array
) -> Array:
    """Return uint8 [M, H, W], 1 inside: polygons as pycocotools draws them, the nearest pixel of run lengths.

    Nothing outside of the image is inside.
    """
    masks = np.zeros((len(annotations), *rows.padded), np.uint8)
    place = rows.placed[which]
    counts = (
        columns.polygon_offsets[annotations + 1] - columns.polygon_offsets[annotations]
    )
    polygons, owner = spans(columns.polygon_offsets[annotations], counts)
    corners = columns.point_offsets[polygons + 1] - columns.point_offsets[polygons]
    points, polygon = spans(columns.point_offsets[polygons], corners)
    moved = geometry.to_output(
        rows, which[owner[polygon]], np.asarray(columns.points[points])
    )
    outlines = np.split(moved, np.cumsum(corners)[:-1])
    first = np.cumsum(counts) - counts
    for number, annotation in enumerate(annotations.tolist()):
        mask, its_place = masks[number], place[number]
        if counts[number]:
            begin = first[number]
            _fill(mask, its_place, outlines[begin : begin + counts[number]])
        else:
            _sample(mask, its_place, columns, rows, annotation, int(which[number]))
    return masks


def _fill(mask: Array, place: Array, outlines: list[Array]) -> None:
    """Set the union of polygons [points, 2], as far as it is within `place`."""
    # takes a tenth of a second, and only masks need it
    from pycocotools import mask as coco

    whole = np.concatenate(outlines)
    # Only where the polygons are: a canvas has a million pixels, an object ten thousand.
    low = np.floor(whole.min(axis=0)).astype(np.int64) - 1
    high = np.ceil(whole.max(axis=0)).astype(np.int64) + 1
    x0, y0 = np.maximum(low, place[:2]).tolist()
    x1, y1 = np.minimum(high, place[2:]).tolist()
    if x0 < x1 and y0 < y1:
        runs = coco.frPyObjects(
            [(outline - (x0, y0)).ravel() for outline in outlines], y1 - y0, x1 - x0
        )
        mask[y0:y1, x0:x1] = coco.decode(coco.merge(runs))


def _sample(
    mask: Array,
    place: Array,
    columns: BoxColumns,
    rows: Rows,
    annotation: int,
    row: int,
) -> None:
    """Set the pixels of `place` whose centres an annotation's run lengths cover; none where it has none."""
    begin, end = columns.rle_offsets[annotation : annotation + 2]
    runs = np.asarray(columns.rle[begin:end])
    if not len(runs):
        return
    sample = rows.ids[row]
    sides = int(columns.width[sample]), int(columns.height[sample])
    # run lengths go column by column
    levels = np.repeat(np.arange(len(runs)) % 2, runs).astype(np.uint8)
    turned = levels.reshape(sides)
    if not geometry.transposed(rows.turns[row]):
        turned = turned.T
    height, width = turned.shape
    x0, y0, x1, y1 = place.tolist()
    # columns and rows are sampled apart, since the map has no shear
    scale, shift = (numbers[row] for numbers in geometry.affine(rows))
    across = _nearest(np.arange(x0, x1), scale[0], shift[0], width)
    down = _nearest(np.arange(y0, y1), scale[1], shift[1], height)
    mask[y0:y1, x0:x1] = turned[down[:, None], across]


def _nearest(pixels: Array, scale: float, shift: float, side: int) -> Array:
    """Return int64 [N], the stored pixels at the centres of output pixels [N], along one axis of the output.

    There are `side` stored pixels, in which those of a row's place lie but for rounding.
    """
    stored = np.floor((pixels + 0.5 - shift) / scale)
    return np.clip(stored, 0, side - 1).astype(np.int64)
