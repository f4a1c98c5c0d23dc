"""Drawing on pictures: objects with their labels, and sheets of pictures with captions.

Lines and letters grow with the picture, so that a label on a phone's photo is read as one on a thumbnail is.
"""

from __future__ import annotations

import colorsys
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from saturate.contracts import Array
from saturate.system import fonts

INK = "black"
RIGHT = "#08519c"
WRONG = "#a63603"
"""Colours of what a network got right and wrong: blue and orange, which all eyes tell apart."""
LETTERS = 20
"""Pixels of the letters below the pictures of a sheet."""
LEAST_LETTERS = 12
"""Pixels of the letters of a label, at least."""
GAP = 8
"""Pixels between the pictures of a sheet."""
GOLDEN = 0.618034
"""Steps of the hue, turns: categories next to each other get different ones."""
VEIL = 110
"""How opaque a mask is, of 255."""
HEIGHTS = sorted(range(-16, 16), key=lambda height: abs(height + 0.9))
"""Where a label is tried, in its own heights below its box's top: above it, inside, then ever farther away."""
Tile = tuple[Image.Image, Sequence[tuple[str, str]]]
"""A picture, and the lines below it: text and colour."""


class Mark(NamedTuple):
    """An object in a picture, in pixels of that."""

    box: Array  # [4], x0 y0 x1 y1
    category: int  # picks the colour
    text: str
    mask: Array | None = None  # bool or uint8 [H, W], 1 inside
    points: Array | None = None  # [K, 3], x y and whether it is there: above 0


def colour_of(category: int) -> tuple[int, ...]:
    """Return the colour of a category, RGB: so light that black letters on it have contrast."""
    shares = colorsys.hsv_to_rgb(category * GOLDEN % 1, 0.6, 1.0)
    return tuple(round(255 * share) for share in shares)


def fitted(picture: Image.Image, side: int) -> Image.Image:
    """Return a picture whose longer side is at most `side`; a small one is enlarged by a whole number."""
    scale = side / max(picture.size)
    scale = int(scale) or scale
    width, height = (max(round(length * scale), 1) for length in picture.size)
    # enlarged by a whole number a pixel stays a square, shrunk it is the mean of an area
    return picture.resize((width, height), Image.Resampling.BOX)


def marked(
    picture: Image.Image,
    marks: Iterable[Mark],
    scale: float = 1.0,
    *,
    otherwise: str = "",
) -> Image.Image:
    """Return a picture with its marks, the last one on top; without one it says `otherwise`.

    `scale`: how many times as large it is as the one that the marks are of. A label for which there is no room
    beside those of the marks on top is left out.
    """
    picture = picture.copy()
    draw = ImageDraw.Draw(picture)
    width, height = picture.size
    letters = max(round((width + height) / 100), LEAST_LETTERS)
    line = max(letters // 6, 2)
    labels = []
    for mark in marks:
        colour = colour_of(mark.category)
        if mark.mask is not None:
            veil = Image.fromarray(mark.mask.astype(np.uint8) * np.uint8(VEIL))
            picture.paste(colour, (0, 0), veil.resize(picture.size))
        # PIL draws the right and the lower edge, too
        box = (mark.box * scale).clip(0, [width - 1, height - 1] * 2).tolist()
        draw.rectangle(box, outline=colour, width=line)
        for x, y, visible in (
            () if mark.points is None else mark.points * (scale, scale, 1)
        ):
            if visible > 0:
                draw.circle((x, y), 1.5 * line, colour, INK)
        labels.append((box, mark.text, colour))
    if otherwise and not labels:
        labels.append(([0, 0, 0, 0], otherwise, (255, 255, 255)))
    taken = np.zeros((height, width), bool)
    for box, text, colour in reversed(labels):
        cut, font = fonts.line(text, width - letters, letters)
        wide, tall = round(font.getlength(cut)) + letters // 2, round(1.3 * letters)
        if place := _free(box, wide, tall, taken):
            left, top = place
            taken[top : top + tall, left : left + wide] = True
            draw.rectangle((left, top, left + wide - 1, top + tall - 1), colour)
            draw.text((left + letters // 4, top + tall / 2), cut, INK, font, "lm")
    return picture


def _free(
    box: Sequence[float], wide: int, tall: int, taken: Array
) -> tuple[int, int] | None:
    """Return the left and the top of the place nearest to a box in which no pixel is `taken`; None without one."""
    height, width = taken.shape
    for step in HEIGHTS:
        top = int(max(min(box[1] + step * tall, height - tall), 0))
        for edge in (box[0], box[2] - wide):
            left = int(max(min(edge, width - wide), 0))
            if not taken[top : top + tall, left : left + wide].any():
                return left, top
    return None


def sheet(tiles: Sequence[Tile], across: int = 2) -> Array:
    """Lay pictures side by side, `across` a row, each with its lines below it; uint8 [H, W, 3].

    Two a row are large enough to see in TensorBoard.
    """
    width = max(picture.width for picture, _ in tiles) + GAP
    height = max(picture.height for picture, _ in tiles) + GAP
    line = round(1.25 * LETTERS)
    tall = height + line * max(len(lines) for _, lines in tiles)
    rows = -(-len(tiles) // across)
    laid = Image.new("RGB", (min(across, len(tiles)) * width, rows * tall), "white")
    draw = ImageDraw.Draw(laid)
    for place, (picture, lines) in enumerate(tiles):
        left, top = place % across * width, place // across * tall
        laid.paste(picture, (left + (width - picture.width) // 2, top + GAP // 2))
        for at, (text, colour) in enumerate(lines):
            cut, font = fonts.line(text, width - 2 * GAP, LETTERS)
            below = top + picture.height + GAP + at * line
            draw.text((left + GAP, below), cut, colour, font)
    return np.asarray(laid)


def encoded(pixels: Array, form: str) -> bytes:
    """Return uint8 [H, W, 3] as a file, PNG or JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, quality=90)
    return buffer.getvalue()
