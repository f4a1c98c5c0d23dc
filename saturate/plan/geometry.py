"""Where a point of an image lies in the output of its row, and back; and turns. Knows no annotation.

There is one exact affine map a row.

A point (x, y) is in pixels from the top left corner of the image, so that a pixel's centre is at a half. An
output is as large as `Rows.sizes` says and lies at the top left of the batch's canvas: its coordinates are
those of the canvas.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from saturate.contracts import Array, Plan, Rows

MIRROR = 1  # left to right, last
FLIP = 2  # top to bottom, before it
TRANSPOSE = 4  # rows become columns, first
TURNS = 8
"""`Rows.turns` are below: a sum of the three."""


def mirror(chosen: Array) -> Array:
    """Return uint8 [B], turns that mirror the chosen rows, bool [B], and leave the others as they are."""
    return chosen.astype(np.uint8) * np.uint8(MIRROR)


def transposed(turns: Array) -> Array:
    """Return bool, whether a turn swaps height and width."""
    return turns & TRANSPOSE > 0


def reflected(turns: Array) -> Array:
    """Return bool, whether a turn makes a left hand a right one: an odd number of the three does."""
    odd: Array = (turns & MIRROR > 0) ^ (turns & FLIP > 0) ^ transposed(turns)
    return odd


def composed(first: Array, then: Array) -> Array:
    """Return uint8, the turns that do `first`, and after it `then`."""
    # what is flipped before it is transposed is mirrored after it
    swapped = transposed(then)
    mirrored = np.where(swapped, first & FLIP, first & MIRROR) > 0
    flipped = np.where(swapped, first & MIRROR, first & FLIP) > 0
    moved = mirror(mirrored) + FLIP * mirror(flipped)
    return (moved + (first & TRANSPOSE).astype(np.uint8)) ^ then


def whole_turns(rows: Rows) -> Array:
    """Return uint8 [B], the turns from stored pixels to outputs: EXIF's, then the row's own."""
    return (
        rows.turns
        if rows.exif is None
        else composed(rows.exif[:, 0].astype(np.uint8), rows.turns)
    )


def turned_pixels(pixels: Array, turn: int) -> Array:
    """Return the pixels [H, W, ...] of one image, turned."""
    if turn & TRANSPOSE:
        pixels = pixels.swapaxes(0, 1)
    if turn & FLIP:
        pixels = pixels[::-1]
    return pixels[:, ::-1] if turn & MIRROR else pixels


def turned_places(places: Array, turns: Array, sizes: Array) -> Array:
    """Return int64 [B, 4], places x0 y0 x1 y1 of outputs before their turns, as they lie after them.

    `sizes`: int64 [B, 2], height and width of the outputs after the turn.
    """
    return _reversed(
        np.where(transposed(turns)[:, None], places[:, [1, 0, 3, 2]], places),
        turns,
        sizes,
    )


def upright_places(places: Array, turns: Array, sizes: Array) -> Array:
    """Return the places before the turns, of those after them: what `turned_places` was given."""
    before = _reversed(places, turns, sizes)
    return np.where(transposed(turns)[:, None], before[:, [1, 0, 3, 2]], before)


def _reversed(places: Array, turns: Array, sizes: Array) -> Array:
    """Mirror and flip places, which undoes itself."""
    x0, y0, x1, y1 = places.T
    height, width = sizes.T
    other_x = np.where(turns & MIRROR > 0, [width - x1, width - x0], [x0, x1])
    other_y = np.where(turns & FLIP > 0, [height - y1, height - y0], [y0, y1])
    return np.stack([other_x[0], other_y[0], other_x[1], other_y[1]], axis=1)


def upright(rows: Rows) -> Rows:
    """Return the rows as a loader decodes and resizes them: of stored pixels, and without a turn.

    Sizes, places and canvas are those before the turns. Turns are the same permutation whoever decodes, so
    they are done behind the loader (loaders/_postprocess.py).
    """
    if rows.exif is not None:
        rows = _of_stored(rows, rows.exif)
    if not rows.turns.any():
        return rows
    swapped = transposed(rows.turns)
    sizes = np.where(swapped[:, None], rows.sizes[:, ::-1], rows.sizes)
    canvas = rows.padded
    if swapped.any():
        canvas = int(sizes[:, 0].max()), int(sizes[:, 1].max())
    places = (
        None
        if rows.places is None
        else upright_places(rows.places, rows.turns, rows.sizes)
    )
    return replace(
        rows, turns=np.zeros_like(rows.turns), sizes=sizes, places=places, canvas=canvas
    )


def turned_by_exif(rows: Rows) -> Rows:
    """Return the rows with the turn that EXIF asks for, and without their own."""
    return replace(upright(replace(rows, exif=None)), exif=rows.exif)


def _of_stored(rows: Rows, exif: Array) -> Rows:
    """Return the same rows in stored pixels, with EXIF's turn among their own."""
    turns = exif[:, 0].astype(np.uint8)
    regions = upright_places(rows.regions, turns, exif[:, 1:])
    extents = (rows.regions[:, 2:] - rows.regions[:, :2])[:, ::-1]
    windows = upright_places(rows.windows, turns, extents)
    return replace(
        rows, regions=regions, windows=windows, turns=whole_turns(rows), exif=None
    )


def largest_upright(plan: Plan) -> tuple[int, ...]:
    """Return the `sample_shape` of outputs before they are turned: a batch may have high and wide ones."""
    spec = plan.batches
    if spec.transposed:
        spec = replace(spec, canvas=(max(spec.canvas),) * 2)
    return spec.sample_shape


def affine(rows: Rows) -> tuple[Array, Array]:
    """Return (scale, shift), float64 [B, 2] of the output's x and y: output = image * scale + shift.

    Of a transposed row it is the image's y that becomes the output's x. A mirrored row has a negative scale
    of x, a flipped one of y.
    """
    place = rows.placed
    swapped = transposed(rows.turns)[:, None]
    extent = rows.windows[:, 2:] - rows.windows[:, :2]
    corner = rows.regions[:, :2] + rows.windows[:, :2]
    extent = np.where(swapped, extent[:, ::-1], extent)
    corner = np.where(swapped, corner[:, ::-1], corner)
    # axes: [B, 2], x and y
    backwards = np.stack([rows.turns & MIRROR, rows.turns & FLIP], axis=1) > 0
    scale = (place[:, 2:] - place[:, :2]) / extent
    scale = np.where(backwards, -scale, scale)
    return scale, np.where(backwards, place[:, 2:], place[:, :2]) - corner * scale


def to_output(rows: Rows, which: Array, points: Array) -> Array:
    """Return float64 [M, ..., 2], points in output pixels, not clipped. `which` [M]: the row of each."""
    scale, shift = (_along(part[which], points) for part in affine(rows))
    return _swapped(rows, which, points) * scale + shift


def to_image(rows: Rows, which: Array, points: Array) -> Array:
    """Return float64 [M, ..., 2], points of outputs in stored pixels of the image: `to_output` backwards."""
    scale, shift = (_along(part[which], points) for part in affine(rows))
    return _swapped(rows, which, (points - shift) / scale)


def _swapped(rows: Rows, which: Array, points: Array) -> Array:
    """Return the points, those of transposed rows with x and y swapped."""
    swapped = transposed(rows.turns[which]).reshape(-1, *[1] * (points.ndim - 1))
    return np.where(swapped, points[..., ::-1], points)


def _along(numbers: Array, points: Array) -> Array:
    # axes: [M, 2] -> [M, 1, ..., 1, 2]
    return numbers.reshape(len(numbers), *[1] * (points.ndim - 2), 2)


def boxes_to_output(rows: Rows, which: Array, boxes: Array) -> Array:
    """Return float64 [M, 4], boxes x0 y0 x1 y1 in output pixels, not clipped; x0 <= x1 under a turn too."""
    return _ordered(to_output(rows, which, boxes.reshape(-1, 2, 2)))


def boxes_to_image(rows: Rows, which: Array, boxes: Array) -> Array:
    """Return float64 [M, 4], boxes of outputs, as a detector finds them, in stored pixels of the image."""
    return _ordered(to_image(rows, which, boxes.reshape(-1, 2, 2)))


def _ordered(corners: Array) -> Array:
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def clipped(boxes: Array, heights: Array, widths: Array) -> Array:
    """Return the boxes, cut at the edges of images of heights x widths [M]; outside no area is left."""
    limit = np.stack([widths, heights, widths, heights], axis=1)
    return np.clip(boxes, 0, limit)
