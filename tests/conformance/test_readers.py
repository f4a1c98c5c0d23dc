"""Readers of the torchvision loader against Pillow, bit for bit; no loader and no device."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from saturate.loaders import Undecodable
from saturate.loaders.images.decoders import READERS, exactly
from tests.conformance import pictures
from tests.conformance.scenes import Scene

DIFFERENCE = {"opencv": 0.02}
"""Mean grey levels that readers which `auto` never chooses may differ by."""


def regions(height: int, width: int, seed: int) -> list[tuple[int, int, int, int]]:
    draws = np.random.default_rng(seed)
    found = [(0, 0, width, height), (width - 1, height - 1, width, height)]
    for _ in range(4):
        x0, x1 = sorted(draws.integers(0, width, 2).tolist())
        y0, y1 = sorted(draws.integers(0, height, 2).tolist())
        found.append((x0, y0, x1 + 1, y1 + 1))
    return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("source", ["photographs", "samples"])
def test_regions_are_pillows(
    reader: str, source: str, request: pytest.FixtureRequest
) -> None:
    scene: Scene = request.getfixturevalue(source)
    decode, worst = READERS[reader](), 0.0
    for sample in range(0, scene.samples, max(1, scene.samples // 25)):
        expected = pictures.pil(scene.bytes_of[sample])
        assert expected is not None
        for region in regions(expected.shape[0], expected.shape[1], seed=sample):
            x0, y0, x1, y1 = region
            pixels = exactly(decode, scene.bytes_of[sample], region)
            worst = max(
                worst, float(np.abs(pixels.astype(int) - expected[y0:y1, x0:x1]).mean())
            )
    assert worst <= DIFFERENCE.get(reader, 0.0)


@pytest.mark.parametrize("reader", READERS)
def test_damage_is_refused_or_decoded_as_pillow_does(reader: str) -> None:
    """A reader may refuse more than Pillow, and never give other pixels, or some where Pillow has none."""
    decode = READERS[reader]()
    for name, content in pictures.damaged_files().items():
        try:
            with Image.open(io.BytesIO(content)) as image:
                region = (0, 0, *image.size)
        except (
            UnidentifiedImageError
        ):  # Pillow 11.0 refuses some heads that newer ones take
            region = (0, 0, 1, 1)
        expected = pictures.pil(content)
        try:
            pixels = exactly(decode, content, region)
        except Exception:  # readers raise what they like, see TorchvisionLoader.region
            continue
        assert expected is not None, name
        np.testing.assert_array_equal(pixels, expected, err_msg=name)


@pytest.mark.parametrize("length", [100, 4_000, 1_000_000])
def test_a_png_of_which_zeros_took_a_part_is_refused(length: int) -> None:
    """A copy was cut off, to a disk that had kept the room: Pillow itself goes on in black.

    Every loader leaves PNGs to this reader, or refused ones.
    """
    decode = READERS["pil"]()
    pixels = pictures.photograph(13, 60, 80)
    whole = pictures.png(pixels)
    for content in (whole, whole + b"more"):
        np.testing.assert_array_equal(exactly(decode, content, (0, 0, 80, 60)), pixels)
    blacks = 0
    # behind the header of the pixels' chunk
    for begin in range(whole.index(b"IDAT") + 4, len(whole) - 16, 997):
        zeros = whole[begin : begin + length]
        content = whole[:begin] + bytes(len(zeros)) + whole[begin + length :]
        blacks += pictures.pil(content) is not None
        with pytest.raises(Undecodable):
            exactly(decode, content, (0, 0, 80, 60))
    assert blacks or length < 1_000_000, "Pillow takes those without an end"
