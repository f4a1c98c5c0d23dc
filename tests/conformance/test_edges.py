"""The outermost pixels of an output, where a filter reaches beyond the image: the largest difference counts.

torchvision and Pillow weigh the pixels that are there; DALI repeats the outermost one (docs/images.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts import Array
from tests.conformance import pictures
from tests.conformance.looking import passed
from tests.conformance.scenes import Backend, Scene, scene

SIDE = 32
"""Side of the output, pixels."""
HEIGHT, WIDTH = 3 * SIDE, 4 * SIDE
BEYOND = 2  # output pixels that a filter's reach never passes
ROUNDING = 1.1  # grey levels: two passes are rounded, on a GPU to fp16
MOST = 255 / 8
"""Grey levels that DALI may differ by, from black to white: an eighth of a triangle's area lies outside."""


def edged() -> dict[str, Array]:
    """White pictures with one black side, and noise."""
    sides: dict[str, Any] = {
        "top": np.s_[:1],
        "bottom": np.s_[-1:],
        "left": np.s_[:, :1],
        "right": np.s_[:, -1:],
    }
    found = {
        "noise": np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    }
    for name, side in sides.items():
        found[name] = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
        found[name][side] = 0
    return found


def resized(pixels: Array, height: int, width: int) -> Array:
    return np.asarray(
        Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    )


def resized_repeating(pixels: Array) -> Array:
    """Resize a picture whose outermost pixels go on beyond it."""
    rows = BEYOND * HEIGHT // SIDE
    columns = BEYOND * WIDTH // SIDE
    larger = np.pad(pixels, ((rows, rows), (columns, columns), (0, 0)), mode="edge")
    return resized(larger, SIDE + 2 * BEYOND, SIDE + 2 * BEYOND)[
        BEYOND:-BEYOND, BEYOND:-BEYOND
    ]


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(
        tmp_path_factory.mktemp("edges"),
        {name: pictures.png(pixels) for name, pixels in edged().items()},
    )


def test_the_largest_difference_is_rounding(backend: Backend, edges: Scene) -> None:
    feed = edges.feed(
        backend.device, batch_size=5, image_size=SIDE, training=False, window="stretch"
    )
    found = passed(backend.open, feed)
    of_dali = backend.name.startswith("dali")
    apart = []
    for name, levels in zip(edges.names, found.levels, strict=True):
        expected = resized(edged()[name], SIDE, SIDE).astype(float)
        repeating = resized_repeating(edged()[name]).astype(float)
        inner = np.s_[1:-1, 1:-1]
        assert np.abs(levels - expected)[inner].max() <= ROUNDING, f"{name}, inside"
        assert (
            np.abs(levels - (repeating if of_dali else expected)).max() <= ROUNDING
        ), name
        apart.append(np.abs(levels - expected).max())
    print(f"{backend.name}: {max(apart):.1f} grey levels from Pillow at most")
    assert max(apart) <= (MOST if of_dali else ROUNDING)
