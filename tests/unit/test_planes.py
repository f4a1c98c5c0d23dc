"""Planes of decoded frames become RGB of the output's size, as Pillow and swscale make it."""

from __future__ import annotations

import av
import numpy as np
import pytest
from PIL import Image

from saturate.loaders.videos._planes import Fitter, rgb
from saturate.loaders.videos.pyav import ACCURATE, planes


def photograph(height: int, width: int) -> np.ndarray:
    draws = np.random.default_rng(0)
    coarse = Image.fromarray(draws.integers(0, 256, (9, 12, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    return np.clip(
        np.asarray(coarse).astype(int) + draws.integers(-12, 13, (height, width, 3)),
        0,
        255,
    ).astype(np.uint8)


WINDOWS = [
    ((0, 0, 320, 240), (0, 0, 320, 240), (60, 80)),
    ((10, 20, 300, 220), (3.3, 4.75, 280.2, 190.1), (112, 112)),
    ((0, 0, 320, 240), (100.25, 80.5, 150.75, 120.5), (112, 112)),  # enlarged
    ((41, 33, 201, 193), (0, 0, 160, 160), (160, 160)),  # neither
]


@pytest.mark.parametrize(("region", "window", "size"), WINDOWS)
def test_the_resize_is_pillows(
    region: tuple[int, ...], window: tuple[float, ...], size: tuple[int, int]
) -> None:
    pixels = photograph(240, 320)
    out = np.empty((*size, 3), np.uint8)
    picture = rgb(pixels)
    Fitter(picture, np.array(region), np.array(window), size).fill(out, picture)
    x0, y0, x1, y1 = region
    cut = Image.fromarray(pixels[y0:y1, x0:x1]).resize(
        size[::-1],
        Image.Resampling.BILINEAR,
        box=window,  # type: ignore[arg-type]
    )
    expected = np.asarray(cut).astype(int)
    assert np.abs(out - expected).mean() < 0.2  # Pillow rounds twice
    assert np.abs(out - expected).max() <= 2


SUBSAMPLED = ("yuv420p", "yuvj420p", "yuv420p10le", "nv12")


@pytest.mark.parametrize(
    "pixels",
    [*SUBSAMPLED, "yuv444p", "yuv444p12le", "gray", "gray10le", "gbrp", "monob"],
)
@pytest.mark.parametrize("colours", ["ITU601", "ITU709", "BT2020"])
def test_resized_planes_are_resized_rgb(pixels: str, colours: str) -> None:
    full = 2 if pixels.startswith("yuvj") else 1
    frame = av.VideoFrame.from_ndarray(photograph(240, 320), format="rgb24")
    frame = frame.reformat(format=pixels, dst_colorspace=colours, dst_color_range=full)
    frame.colorspace = {"ITU601": 5, "ITU709": 1, "BT2020": 9}[colours]
    whole = frame.to_ndarray(format="rgb24", interpolation=ACCURATE)
    window, size = (3.3, 4.75, 280.2, 190.1), (80, 80)
    expected = np.asarray(
        Image.fromarray(whole).resize(size[::-1], Image.Resampling.BILINEAR, box=window)
    ).astype(int)
    found = np.empty((*size, 3), np.uint8)
    picture = planes(frame, 0)
    Fitter(picture, np.array([0, 0, 320, 240]), np.array(window), size).fill(
        found, picture
    )
    apart = np.abs(found - expected)
    assert apart.mean() < 0.6
    assert abs((found - expected).mean()) < 0.3
