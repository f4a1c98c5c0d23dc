"""The preprocessing inside an exported file is Pillow's, to a grey level."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from scripts import export
from scripts._preprocessing import Framing, Preprocessed


def framing(window: str, interpolation: str) -> Framing:
    """Return what makes images of 32 x 32, whose levels stay in 0..1."""
    return Framing(
        window="center" if window == "center" else "stretch",
        resize=32,
        image_size=32,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        interpolation=interpolation,
        exif="stored",
    )


@pytest.mark.parametrize("window", ["center", "stretch"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(70, 41), (20, 25)], ids=["smaller", "larger"])
def test_levels(size: tuple[int, int], interpolation: str, window: str) -> None:
    # bicubic overshoots at edges, and what is clipped between two passes depends on which is the first
    pixels = np.random.default_rng(0).integers(40, 216, (*size, 3), dtype=np.uint8)
    whole = Preprocessed(nn.Identity(), framing(window, interpolation))
    got = whole(torch.from_numpy(pixels)[None])[0]
    height, width = size
    box = (0.0, 0.0, float(width), float(height))
    if window == "center":
        shorter = min(size)
        long = 32 * max(size) // shorter
        begin = round((long - 32) / 2) * max(size) / long
        end = begin + 32 * max(size) / long
        box = (
            (0.0, begin, float(width), end)
            if height > width
            else (begin, 0.0, end, float(height))
        )
    resampling = Image.Resampling[interpolation.upper()]
    expected = np.asarray(
        Image.fromarray(pixels).resize((32, 32), resampling, box=box), np.float64
    )
    difference = np.abs(255 * got.permute(1, 2, 0).numpy() - expected)
    # Pillow begins with the axis that shrinks the more, and what is rounded between the passes is another
    assert difference.max() <= 1.01 and difference.mean() < 0.3


def test_a_file_that_computes_something_else_is_seen() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    whole = Preprocessed(network, framing("center", "bilinear"))
    images = [np.full((40, 50, 3), level, np.uint8) for level in (51, 102, 255)]

    def wrong(batch: np.ndarray) -> np.ndarray:
        logits: np.ndarray = whole(torch.from_numpy(batch)).numpy()
        return logits + 0.25

    count, largest, scale = export.compared(wrong, whole, iter(images))
    assert count == 3 and scale == pytest.approx(1.0)
    assert largest == pytest.approx(0.25)
