"""Draw textures with sharp edges that a small network learns to enlarge in minutes on a CPU; knows nothing of
training.

Each picture is a clouded ground with gratings, some of waves and some of stripes, and shapes of all sizes.
Interpolation blurs every edge, and a network can learn what an edge looks like.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import background

SIDES = (192, 289)  # of the pictures, pixels: smallest, and one more than the largest
WAVES = (12, 48)  # lengths of a grating's waves, pixels before the picture is halved


def picture(rng: np.random.Generator) -> Image.Image:
    """Draw one texture, at twice its size, so that edges are a pixel wide once it is halved."""
    sides = 2 * rng.integers(*SIDES, 2)
    canvas, ink = background(rng, *sides.tolist())
    for _ in range(3):
        corner = rng.integers(0, sides // 2)
        wave = Image.fromarray(_grating(rng, *sides // 2))
        canvas.paste(ink[rng.integers(3)], tuple(corner), wave)
    draw = ImageDraw.Draw(canvas)
    for _ in range(60):
        x, y = rng.random(2) * sides
        radius = np.exp(rng.uniform(np.log(4), np.log(48)))
        colour = ink[rng.integers(3)]
        draw.regular_polygon((x, y, radius), int(rng.integers(3, 7)), fill=colour)
    return canvas.reduce(2)


def _grating(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Return how much of a colour waves or stripes have, uint8 [height, width]."""
    y, x = np.mgrid[:height, :width]
    angle = rng.uniform(0, np.pi)
    length = rng.uniform(*WAVES)
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / length)
    # of stripes an edge is about a pixel wide
    sharpness = rng.choice((1.0, length / 3))
    return (127.5 + 127.5 * sharpness * wave).clip(0, 255).astype(np.uint8)


def _draw(folder: Path, seed: int, key: Key) -> None:
    path = folder / SET.splits[key[0]] / f"{key[2]:04d}.png"
    picture(rng_of(seed, *key)).save(path, compress_level=1)


SET = DrawnSet(
    name="demo_superres", about=__doc__, classes=("",), draw=_draw, counts=(96, 12)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
