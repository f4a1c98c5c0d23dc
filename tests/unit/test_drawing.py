"""What is drawn on pictures: pixels at places that are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    # of the mean side a letter has a fiftieth, and 12 pixels at least; a line has a sixth of that
    ("size", "letters", "line"),
    [((4000, 3000), 70, 11), ((640, 480), 12, 2), ((64, 64), 12, 2)],
)
def test_lines_and_letters_grow_with_the_picture(
    size: tuple[int, int], letters: int, line: int
) -> None:
    width, height = size
    box = np.array([width // 4, height // 2, width // 2, height - 4])
    there = of_colour(marked(grey(*size), [Mark(box, 1, "ant")]), colour_of(1))
    middle = height * 3 // 4
    (inked,) = np.flatnonzero(there[middle]).reshape(1, -1)
    assert inked[:line].tolist() == [*range(width // 4, width // 4 + line)]
    assert inked[-1] == width // 2 and len(inked) == 2 * line
    # the label stands on the box: its fill ends there, and is 1.3 letters high
    column = np.flatnonzero(there[:, width // 4 + 1])
    assert abs(column[0] - (height // 2 - 1.3 * letters)) <= 1


def test_black_letters_have_contrast_on_every_colour() -> None:
    """At least 4.5, which WCAG 2.1 asks of text."""
    for category in range(91):
        linear = [
            level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4
            for level in (value / 255 for value in colour_of(category))
        ]
        luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
        assert (luminance + 0.05) / 0.05 >= 4.5, category
    picture = marked(grey(400, 300), [Mark(np.array([50, 50, 300, 200]), 1, "ant")])
    of_label = np.asarray(picture)[35:49, 52:80]
    assert (of_label < 60).all(axis=2).any(), "which they are"


def test_labels_leave_each_other_room() -> None:
    """Five boxes in one place have five labels that can be read, in the picture."""
    box = np.array([100, 100, 300, 250])
    alone = of_colour(marked(grey(400, 300), [Mark(box, 2, "a name")]), colour_of(2))
    label = int(alone.sum()) - int(alone[100:251, 100:301].sum())
    assert label > 300, "above its box"
    marks = [Mark(box, category, "a name") for category in range(2, 7)]
    drawn = marked(grey(400, 300), marks)
    for mark in marks:
        assert of_colour(drawn, colour_of(mark.category)).sum() > 0.9 * label
    # without room for two it is that of the mark on top
    marks = [Mark(np.array([0, 0, 24, 15]), category, "x") for category in (2, 3)]
    pixels = marked(grey(24, 15), marks)
    assert not of_colour(pixels, colour_of(2)).any()


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


def test_a_picture_without_a_mark_says_so() -> None:
    plain = grey(400, 300)
    assert (np.asarray(marked(plain, [])) == GREY).all()
    said = marked(plain, [], otherwise="nothing found")
    white = of_colour(said, (255, 255, 255))
    assert white[:16, :130].sum() > 700
    assert not white[17:].any() and not white[:, 130:].any()
    drawn = marked(plain, [Mark(np.array([10, 50, 90, 90]), 1, "")], otherwise="none")
    assert not of_colour(drawn, (255, 255, 255)).any()


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
