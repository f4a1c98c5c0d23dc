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

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import MOTIFS, encode, finished, motif

TEXTURES = ("checks", "dots", "rings", "stripes", "waves")
CLASSES = tuple(
    sorted(f"{shape}-{texture}" for shape in MOTIFS for texture in TEXTURES)
)


def image(rng: np.random.Generator, label: int) -> np.ndarray:
    """Draw one image of a class, uint8 [height, width, 3], 56 to 80 pixels a side."""
    shape, kind = CLASSES[label].split("-")
    height, width = (int(side) for side in rng.integers(56, 81, 2))
    ground = rng.uniform(0.25, 0.75, 3)
    contrast = rng.choice((-1, 1), 3) * rng.uniform(0.15, 0.25, 3)
    share = texture(rng, kind, height, width)[..., None]
    canvas = (ground + (2 * share - 1) * contrast).astype(np.float32)
    # further from the ground than its own two colours are from each other: the shapes are seen on any texture
    ink = ground + np.where(ground > 0.5, -1, 1) * rng.uniform(0.4, 0.6, (3, 3))
    reach = min(height, width) * rng.uniform(0.4, 0.5)
    room = np.array([width, height]) / 2 - reach
    centre = np.array([width, height]) / 2 + rng.uniform(-1, 1, 2) * room
    motif(rng, canvas, np.array(MOTIFS[shape]), centre, reach, ink.astype(np.float32))
    return finished(rng, canvas, 0.1)


def texture(rng: np.random.Generator, kind: str, height: int, width: int) -> np.ndarray:
    """Return how much of the first colour each pixel has, float32 [height, width] in 0..1.

    The period is 10 to 20 pixels; place and direction are random.
    """
    y, x = np.mgrid[:height, :width].astype(np.float32)
    turn = rng.uniform(0, np.pi)
    step = 2 * np.pi / rng.uniform(10, 20)
    along = step * (x * np.cos(turn) + y * np.sin(turn)) + rng.uniform(0, 2 * np.pi)
    across = step * (y * np.cos(turn) - x * np.sin(turn)) + rng.uniform(0, 2 * np.pi)
    if kind == "checks":
        wave = 2 * np.sin(along) * np.sin(across)
    elif kind == "dots":
        wave = 2 * (np.sin(along) + np.sin(across)) - 2
    elif kind == "rings":
        corner = rng.uniform(0, 1, 2) * (width, height)
        wave = 2 * np.sin(step * np.hypot(x - corner[0], y - corner[1]))
    elif kind == "stripes":
        wave = 2 * np.sin(along)
    else:
        wave = 2 * np.sin(along + 2 * np.sin(across / 2))
    return np.clip(0.5 + wave, 0, 1).astype(np.float32)


def _draw(folder: Path, seed: int, key: Key) -> None:
    rng = rng_of(seed, *key)
    content = encode(rng, image(rng, key[1]), None)
    SET.path(folder, key, "JPEG").write_bytes(content)


SET = DrawnSet(
    name="demo_textures", about=__doc__, classes=CLASSES, draw=_draw, counts=(10, 20)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
