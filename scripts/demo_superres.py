"""Draw textures with sharp edges that a small network learns to enlarge in minutes on a CPU; knows nothing of
training.

Each picture is a clouded ground with gratings, some of waves and some of stripes, and shapes of all sizes.
Interpolation blurs every edge, and a network can learn what an edge looks like.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import background, paint

SIDES = (192, 289)  # of the pictures, pixels: smallest, and one more than the largest
WAVES = (6, 24)  # lengths of a grating's waves, pixels


def picture(rng: np.random.Generator) -> np.ndarray:
    """Draw one texture, uint8 [height, width, 3]."""
    height, width = rng.integers(*SIDES, 2).tolist()
    canvas, ink = background(rng, height, width)
    canvas = canvas.copy()
    for _ in range(3):
        _grating(rng, canvas, ink[rng.integers(3)])
    for _ in range(60):
        point = rng.random(2) * (width, height)
        radius = float(np.exp(rng.uniform(np.log(2), np.log(24))))
        paint(canvas, point, radius, int(rng.integers(3)), ink[rng.integers(3)])
    return (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _grating(rng: np.random.Generator, canvas: np.ndarray, colour: np.ndarray) -> None:
    """Paint waves or stripes of a colour over a box of the canvas."""
    height, width = canvas.shape[:2]
    top, left = rng.integers(0, height // 2), rng.integers(0, width // 2)
    box = canvas[top : top + height // 2, left : left + width // 2]
    y, x = np.mgrid[: box.shape[0], : box.shape[1]]
    angle = rng.uniform(0, np.pi)
    length = rng.uniform(*WAVES)
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / length)
    # of stripes an edge is about a pixel wide
    sharpness = rng.choice((1.0, length / 3))
    cover = (0.5 + 0.5 * sharpness * wave).clip(0, 1)[..., None]
    box += cover * (colour - box)


def _draw(folder: Path, seed: int, key: Key) -> None:
    path = folder / SET.splits[key[0]] / f"{key[2]:04d}.png"
    Image.fromarray(picture(rng_of(seed, *key))).save(path, compress_level=1)


SET = DrawnSet(
    name="demo_superres", about=__doc__, classes=("",), draw=_draw, counts=(96, 12)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
