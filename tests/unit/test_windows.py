"""Windows of training and validation, against torchvision itself."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as torchvision_functional

from saturate.plan.draws import Purpose, uniforms
from saturate.plan.windows import (
    SUPPORT,
    UNIFORMS,
    placed,
    random_resized,
    resize_then_center,
)

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SIDES = st.integers(1, 4000)


def crops(
    height: int, width: int, count: int, *, seed: int = 0, **how: Any
) -> np.ndarray:
    draws = uniforms(seed, 0, Purpose.WINDOW, np.arange(count), UNIFORMS)
    return random_resized(np.full(count, height), np.full(count, width), draws, **how)


@given(SIDES, SIDES)
@example(1, 3000)
@example(3000, 1)
@example(300, 400)
def test_the_fallback_is_torchvisions(height: int, width: int) -> None:
    """Where no try can fit (areas of 1e6 images), get_params is not random and every number must agree."""
    (ours,) = crops(height, width, 1, scale=(1e6, 1e6)).tolist()
    top, left, h, w = RandomResizedCrop.get_params(
        torch.empty(1).expand(3, height, width), [1e6, 1e6], list(RATIO)
    )
    assert ours == [left, top, left + w, top + h]


@given(
    st.tuples(*[st.integers(0, 60)] * 4, *[st.integers(1, 90)] * 4), st.integers(1, 40)
)
def test_the_place_of_an_image_in_a_crop(drawn: tuple[int, ...], size: int) -> None:
    """Pixel j of an axis shows the field from j to j + 1 times extent / size: it is of the image if all of that is."""
    x, y, x0, y0, wide, tall, w, h = drawn
    image = np.array([[x, y, x + wide, y + tall]])
    crop = np.array([[x0, y0, x0 + w, y0 + h]])
    low, high = np.maximum(image, crop)[0, :2], np.minimum(image, crop)[0, 2:]
    if (high <= low).any():
        return  # nothing of the image is in it
    (region,), (window,), (place,) = placed(image, crop, size)
    assert region.tolist() == [*(low - (x, y)), *(high - (x, y))]
    for axis, (begin, extent) in enumerate(((x0, w), (y0, h))):
        shows = [
            (
                begin + Fraction(j * extent, size),
                begin + Fraction((j + 1) * extent, size),
            )
            for j in range(size)
        ]
        whole = [
            j for j, (a, b) in enumerate(shows) if low[axis] <= a and b <= high[axis]
        ]
        first, last = place[axis], place[axis + 2]
        if whole:
            assert [first, last] == [whole[0], whole[-1] + 1]
            assert window[axis] == pytest.approx(float(shows[first][0] - low[axis]))
            assert window[axis + 2] == pytest.approx(
                float(shows[last - 1][1] - low[axis])
            )
        else:
            # less than a pixel is left: one shows all of it
            assert last == first + 1
            assert [window[axis], window[axis + 2]] == [0, high[axis] - low[axis]]
            assert shows[first][0] <= low[axis] < shows[first][1]


SHAPES = [
    *[
        (375, 500),
        (1201, 1803),
        (5, 7),
    ],
    *[
        (1, 300),
        (224, 224),
    ],
    # the margin of 224 in 256 x 259 is 35: its half, 17.5, goes to the even 18; of 256 x 257 it is 16.5, which goes
    # to 16
    *[(256, 259), (259, 256), (256, 257)],
]


def noise(height: int, width: int) -> Image.Image:
    random = np.random.Generator(np.random.Philox(height * 10007 + width)).integers(
        0, 256, (height, width, 3)
    )
    y, x = np.mgrid[0:height, 0:width]
    ramps = np.stack(
        [x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), (x + y) % 256],
        axis=-1,
    )
    return Image.fromarray(((random + ramps) / 2).astype(np.uint8))


def difference(
    image: Image.Image,
    resize: int,
    crop: int,
    shift: float = 0.0,
    interpolation: str = "bilinear",
) -> np.ndarray:
    """Grey levels between Pillow's resize of our window and torchvision's Resize + CenterCrop, pixel by
    pixel.
    """
    resized = torchvision_functional.resize(
        image, [resize], InterpolationMode(interpolation)
    )
    expected = np.asarray(
        torchvision_functional.center_crop(resized, [crop, crop]), np.float64
    )
    regions, inner = resize_then_center(
        np.array([image.height]),
        np.array([image.width]),
        resize=resize,
        crop=crop,
        support=SUPPORT[interpolation],
    )
    seen = image.crop(tuple(regions[0].tolist()))
    left, top, right, bottom = inner[0].tolist()
    assert (
        0 <= left < right <= seen.width + 1e-9
        and 0 <= top < bottom <= seen.height + 1e-9
    )
    box = (
        max(left - shift, 0.0),
        top,
        min(right, seen.width) - shift,
        min(bottom, seen.height),
    )
    resample = Image.Resampling[interpolation.upper()]
    ours = np.asarray(seen.resize((crop, crop), resample, box=box), np.float64)
    return np.abs(ours - expected)


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (73, 64), (224, 224)])
def test_the_preimage_has_the_pixels_of_resize_then_center_crop(
    height: int, width: int, resize: int, crop: int
) -> None:
    image = noise(height, width)
    assert difference(image.getchannel(1).convert("F"), resize, crop).max() < 0.02
    rounded = difference(image, resize, crop)
    # Pillow resizes long images down first, then across, and rounds to whole levels between; ours across
    # first, as it is square.
    assert rounded.max() <= 1
    assert rounded.mean() < (
        0.05 if max(height, width) < 2.5 * min(height, width) else 0.3
    )
