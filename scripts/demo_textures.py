"""Draw a small image folder of 50 classes that is hard to learn from a few images each, for 48 pixels on a
CPU; knows nothing of training.

A class is one of demo_set's ten arrangements of shapes on one of five textures: checks, dots, rings, stripes,
waves. Colours, contrast, scale and place have the same distribution in every class, so that a network which
remembers the colours of the images that it has seen has learned nothing. Ten images a class are too few to
show a class in all of these, which is what augmentation is for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import MOTIFS, motif

TEXTURES = ("checks", "dots", "rings", "stripes", "waves")
CLASSES = tuple(
    sorted(f"{shape}-{texture}" for shape in MOTIFS for texture in TEXTURES)
)


def image(rng: np.random.Generator, label: int) -> Image.Image:
    """Draw one image of a class, 56 to 80 pixels a side."""
    shape, kind = CLASSES[label].split("-")
    sides = rng.integers(56, 81, 2)
    ground = rng.integers(64, 192, 3)
    contrast = rng.choice((-1, 1), 3) * rng.uniform(38, 64, 3)
    levels = ground + contrast * texture(rng, kind, *sides)[..., None]
    picture = Image.fromarray(levels.astype(np.uint8))
    # further from the ground than its own two colours are from each other: the shapes are seen on any texture
    away = np.where(ground < 128, 1, -1)
    ink = (ground + away * rng.integers(100, 128, (3, 3))).tolist()
    reach = min(sides) * rng.uniform(0.4, 0.5)
    centre = sides / 2 + rng.uniform(-1, 1, 2) * (sides / 2 - reach)
    motif(rng, picture, shape, centre, reach, [tuple(colour) for colour in ink])
    return picture


def texture(rng: np.random.Generator, kind: str, width: int, height: int) -> np.ndarray:
    """Return -1 for pixels of one colour, 1 for those of the other, and less between, [height, width].

    The period is 10 to 20 pixels; place and direction are random.
    """
    middle = rng.uniform(0, (height, width))
    y, x = np.mgrid[:height, :width] - middle[:, None, None]
    turn = rng.uniform(0, np.pi)
    step = 2 * np.pi / rng.uniform(10, 20)
    along = step * (x * np.cos(turn) + y * np.sin(turn))
    across = step * (y * np.cos(turn) - x * np.sin(turn))
    waves = {
        "checks": np.sin(along) * np.sin(across),
        "dots": np.sin(along) + np.sin(across) - 1,
        "rings": np.sin(np.hypot(along, across)),
        "stripes": np.sin(along),
        "waves": np.sin(along + 2 * np.sin(across / 2)),
    }
    return (4 * waves[kind]).clip(-1, 1)


def _draw(folder: Path, seed: int, key: Key) -> None:
    rng = rng_of(seed, *key)
    picture = image(rng, key[1])
    picture.save(SET.path(folder, key, "JPEG"), quality=int(rng.integers(60, 96)))


SET = DrawnSet(
    name="demo_textures", about=__doc__, classes=CLASSES, draw=_draw, counts=(10, 20)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
