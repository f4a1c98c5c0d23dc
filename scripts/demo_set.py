"""Draw a small image folder that a network can learn in minutes on a CPU, with every file oddity of ImageNet;
knows nothing of training.

Ten classes: column, cross, diagonal, ell, ring, row, saltire, tee, vee, zigzag. An image repeats one motif of
five shapes over its whole area, and the class is how the five are arranged; colours, textures, kinds and
sizes have the same distribution in every class.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# also when it is started as a file
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts._sets import DrawnSet, Key, rng_of

# Rows of a motif, whose five shapes are #. Always five: the share of painted pixels says nothing about the
# class. All are drawn mirrored half the time, and none is another one's mirror image, so that horizontal flips
# in training are harmless; a quarter turn is not (row, column): who obeys a rotation tag mistakes the class.
MOTIFS = {
    "column": "..#.. ..#.. ..#.. ..#.. ..#..",
    "cross": "..#.. ..... #.#.# ..... ..#..",
    "diagonal": "#.... .#... ..#.. ...#. ....#",
    "ell": "#.... ..... #.... ..... #.#.#",
    "ring": "..#.. #...# ..... ..... .#.#.",
    "row": "..... ..... ##### ..... .....",
    "saltire": "#...# ..... ..#.. ..... #...#",
    "tee": "#.#.# ..... ..#.. ..... ..#..",
    "vee": "#...# ..... .#.#. ..... ..#..",
    "zigzag": "..... #.#.# ..... .#.#. .....",
}
# the label is the index in this tuple, as in a scan of the folder
CLASSES = tuple(sorted(MOTIFS))

# index % 25 -> what is odd about the file, so that every class has the same share and 25 images a class have
# all of it.
ODDITIES = {2: "L", 6: "rotated", 9: "CMYK", 14: "L", 18: "rotated", 21: "PNG"}


def image(rng: np.random.Generator, label: int) -> Image.Image:
    """Draw one image of a class."""
    width, height = rng.integers(320, 513, 2).tolist()
    picture, ink = background(rng, width, height)
    cell = min(width, height) * rng.uniform(0.36, 0.52)  # pixels
    for x in np.arange(cell / 2, width, cell):
        for y in np.arange(cell / 2, height, cell):
            motif(rng, picture, CLASSES[label], np.array([x, y]), cell / 2, ink)
    return picture


def background(
    rng: np.random.Generator, width: int, height: int
) -> tuple[Image.Image, list[tuple[int, ...]]]:
    """Return clouds, from large to small ones, and three colours that stand out: these are dark and those
    light, or the other way round."""
    of_clouds, of_ink = rng.permutation((0, 155))
    shape = (*rng.integers(2, 9, 2), 3)
    clouds = rng.integers(of_clouds, of_clouds + 100, shape, dtype=np.uint8)
    ink = rng.integers(of_ink, of_ink + 100, (3, 3)).tolist()
    picture = Image.fromarray(clouds).resize((width, height), Image.Resampling.BICUBIC)
    return picture, [tuple(colour) for colour in ink]


def motif(
    rng: np.random.Generator,
    picture: Image.Image,
    name: str,
    middle: np.ndarray,
    reach: float,
    ink: list[tuple[int, ...]],
) -> None:
    """Paint five shapes of one kind around `middle` (x, y), bent a little, mirrored at random, inside `reach`
    pixels."""
    rows = np.array([list(row) for row in MOTIFS[name].split()])
    places = 0.45 * np.argwhere(rows == "#")[:, ::-1] - 0.9  # (x, y) in -0.9..0.9
    size = reach * rng.uniform(0.6, 0.75)
    bent = np.eye(2) + rng.uniform(-0.1, 0.1, (2, 2))
    points = places * (rng.choice((-1, 1)), 1) @ bent * size + middle
    radius = size * rng.uniform(0.23, 0.28)
    sides = int(rng.integers(3, 7))
    draw = ImageDraw.Draw(picture)
    for point in points:
        draw.regular_polygon((*point, radius), sides, fill=ink[rng.integers(3)])


def _draw(folder: Path, seed: int, key: Key) -> None:
    rng = rng_of(seed, *key)
    picture = image(rng, key[1])
    oddity = ODDITIES.get(key[2] % 25, "")
    if oddity in ("L", "CMYK"):
        picture = picture.convert(oddity)
    tags = Image.Exif()
    if oddity == "rotated":
        # half a turn, a quarter turn either way; the stored pixels are upright
        tags[0x0112] = int(rng.choice((3, 6, 8)))
    picture.save(
        SET.path(folder, key, "JPEG"),
        "PNG" if oddity == "PNG" else "JPEG",
        quality=int(rng.integers(60, 96)),
        subsampling=int(rng.choice((0, 2))),  # 4:4:4 or 4:2:0
        exif=tags,
    )


SET = DrawnSet(
    name="demo_set", about=__doc__, classes=CLASSES, draw=_draw, counts=(200, 50)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
