"""What is drawn on pictures: pixels at places that are known by hand."""

from __future__ import annotations

import numpy as np
from PIL import Image

from saturate.system.drawing import (
    INK,
    Mark,
    colour_of,
    fitted,
    marked,
    sheet,
)
from saturate.tasks._predictions import picture_names

GREY = (100, 100, 100)


def grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def of_colour(picture: Image.Image, colour: tuple[int, ...]) -> np.ndarray:
    """Where a picture has exactly this colour, bool [H, W]."""
    return (np.asarray(picture) == colour).all(axis=2)


def test_masks_are_veils_and_points_are_dots() -> None:
    """In a picture that is twice as large as the one of the marks."""
    mask = np.zeros((50, 60), bool)
    mask[20:40, 10:30] = True
    points = np.array([[45, 30, 2], [45, 45, 0]])
    mark = Mark(np.array([5, 15, 55, 48]), 3, "", mask=mask, points=points)
    pixels = np.asarray(marked(grey(120, 100), [mark], 2.0)).astype(int)
    red, green, blue = colour_of(3)
    veil = [100 + (level - 100) * 110 / 255 for level in (red, green, blue)]
    assert np.abs(pixels[60, 40] - veil).max() <= 1
    assert pixels[60, 70].tolist() == [*GREY]
    assert pixels[60, 90].tolist() == [red, green, blue], "seen"
    assert pixels[90, 90].tolist() == [*GREY], "not there"


def test_small_pictures_are_enlarged_by_whole_numbers() -> None:
    levels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = fitted(Image.fromarray(levels), 9)
    assert large.size == (8, 8)
    assert (np.asarray(large) == levels.repeat(4, axis=0).repeat(4, axis=1)).all()
    assert fitted(grey(4000, 3000), 400).size == (400, 300)


def test_a_sheet_has_pictures_in_rows_and_captions_below_them() -> None:
    colours = ("red", "lime", "blue")
    tiles = [Image.new("RGB", (200, 100), colour) for colour in colours]
    captions = [[("one", INK), ("two", "red")], [], [("three", INK)]]
    laid = sheet([*zip(tiles, captions, strict=True)], across=2)
    # a picture with 8 pixels between, and two lines of 25
    assert laid.shape == (2 * (100 + 8 + 50), 2 * (200 + 8), 3)
    assert laid[50, 100].tolist() == [255, 0, 0]
    assert laid[50, 308].tolist() == [0, 255, 0]
    assert laid[158 + 50, 100].tolist() == [0, 0, 255]
    below = laid[108:158]
    assert (below[:25, :208] < 100).all(axis=2).any(), "black letters"
    assert (below[25:, :208] == (255, 0, 0)).all(axis=2).any(), "red ones"
    assert (below[:, 208:] == 255).all()


def test_pictures_are_named_after_files_and_no_two_alike() -> None:
    files = ["a/x.jpg", "b/x.png", "c/X.jpg", "x-2.jpg", "new/y.tar.jpg"]
    names = picture_names(files, ".png")
    assert names == ["x.png", "x-2.png", "X-3.png", "x-2-2.png", "y.tar.png"]
