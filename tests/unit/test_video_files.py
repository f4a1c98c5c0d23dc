"""The files that tests make: a number is read back from the pixels, and from no others."""

from __future__ import annotations

import numpy as np

from tests.unit.video_files import number, picture


def test_numbers_survive_coding_resizing_and_nothing_else() -> None:
    for value in (0, 1, 255, 256, 1000, 4095):
        pixels = picture(value, (96, 128))
        assert number(pixels) == value
        assert number(pixels[::3, ::2]) == value
        assert number(pixels[..., 1]) == value
        assert number(np.rot90(pixels, 2)) != value
    assert number(np.zeros((96, 128, 3), np.uint8)) == -1
    for value in range(100):
        assert (
            number(
                np.mean(
                    [picture(value, (96, 128)), picture(value + 1, (96, 128))], axis=0
                )
            )
            == -1
        ), "mixed of two"
