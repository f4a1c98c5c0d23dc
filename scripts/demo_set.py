"""Draw a small image folder that a network can learn in minutes on a CPU, with every file oddity of ImageNet;
knows nothing of training.

Ten classes: column, cross, diagonal, ell, ring, row, saltire, tee, vee, zigzag. An image repeats one motif of
five shapes over its whole area, and the class is how the five are arranged; colours, textures, kinds and
sizes have the same distribution in every class.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

# also when it is started as a file
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts._sets import DrawnSet, Key, rng_of

# Centres (x, y) of the five shapes of a motif, in half cells from its middle, y downwards. Always five, never
# touching: the share of painted pixels says nothing about the class. All are drawn mirrored half the time,
# and none is another one's mirror image, so that horizontal flips in training are harmless; a quarter turn is
# not (row, column): who obeys a rotation tag mistakes the class.
MOTIFS = {
    "column": ((0, -1), (0, -0.5), (0, 0), (0, 0.5), (0, 1)),
    "cross": ((0, 0), (0, -0.8), (0.8, 0), (0, 0.8), (-0.8, 0)),
    "diagonal": ((-0.9, -0.9), (-0.45, -0.45), (0, 0), (0.45, 0.45), (0.9, 0.9)),
    "ell": ((-0.7, -0.8), (-0.7, 0), (-0.7, 0.8), (0, 0.8), (0.7, 0.8)),
    "ring": ((0, -0.9), (0.86, -0.28), (0.53, 0.73), (-0.53, 0.73), (-0.86, -0.28)),
    "row": ((-1, 0), (-0.5, 0), (0, 0), (0.5, 0), (1, 0)),
    "saltire": ((0, 0), (-0.75, -0.75), (0.75, -0.75), (0.75, 0.75), (-0.75, 0.75)),
    "tee": ((-0.8, -0.8), (0, -0.8), (0.8, -0.8), (0, 0), (0, 0.8)),
    "vee": ((-0.9, -0.8), (-0.45, 0), (0, 0.8), (0.45, 0), (0.9, -0.8)),
    "zigzag": ((-1, -0.4), (-0.5, 0.4), (0, -0.4), (0.5, 0.4), (1, -0.4)),
}
# the label is the index in this tuple, as in a scan of the folder
CLASSES = tuple(sorted(MOTIFS))

# index % 25 -> what is odd about the file, so that every class has the same share and 25 images a class have
# all of it.
ODDITIES = {2: "grey", 6: "rotated", 9: "cmyk", 14: "grey", 18: "rotated", 21: "png"}


def image(rng: np.random.Generator, label: int) -> np.ndarray:
    """Draw one image of a class, uint8 [height, width, 3]."""
    height, width = _size(rng)
    canvas, ink = background(rng, height, width)
    centres = np.array(MOTIFS[CLASSES[label]])
    cell = min(height, width) / rng.uniform(1.8, 3.2)
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    reach = 0.5 * min(height / rows, width / columns)  # half a cell, in pixels
    for row in range(rows):
        for column in range(columns):
            x, y = (column + 0.5) * width / columns, (row + 0.5) * height / rows
            motif(rng, canvas, centres, np.array([x, y]), reach, ink)
    return finished(rng, canvas, 0.05)


def finished(rng: np.random.Generator, canvas: np.ndarray, most: float) -> np.ndarray:
    """Return the canvas as uint8, with grain of at most that strength."""
    grain = rng.uniform(0, most)
    canvas += grain * (rng.random((*canvas.shape[:2], 1), dtype=np.float32) - 0.5)
    return (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width at random: mostly 500 pixels long and 4:3 or near, three in ten upright, as
    ImageNet has them."""
    long = 500 if rng.random() < 0.7 else int(rng.integers(320, 641))
    short = round(long * (0.75 if rng.random() < 0.5 else rng.uniform(0.6, 1)))
    return (long, short) if rng.random() < 0.3 else (short, long)


def background(
    rng: np.random.Generator, height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a textured background, float32 [height, width, 3] in 0..1, and three colours [3, 3] that stand
    out from it."""
    dark, light = (
        rng.uniform(low, low + 0.4, (3, 3)).astype(np.float32) for low in (0, 0.6)
    )
    ground, ink = (dark, light) if rng.random() < 0.5 else (light, dark)
    # Computed at a quarter of the size and enlarged: a fifth of the time.
    y, x = np.mgrid[: height // 4, : width // 4]
    angle = rng.uniform(0, np.pi)
    wavelength = rng.uniform(0.03, 0.5) * max(x.shape)
    along = (x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / wavelength)
    stripes = 0.5 + 0.5 * np.sin(along + rng.uniform(0, 2 * np.pi))[..., None]
    bicubic = Image.Resampling.BICUBIC
    noise = Image.fromarray(rng.random((6, 6), dtype=np.float32))
    clouds = np.asarray(noise.resize(x.shape[::-1], bicubic))[..., None]
    striped = stripes * ground[0] + (1 - stripes) * ground[1]
    small = striped * clouds + ground[2] * (1 - clouds)
    picture = Image.fromarray((small.clip(0, 1) * 255).astype(np.uint8))
    large = picture.resize((width, height), bicubic)
    return np.asarray(large) / np.float32(255), ink


def motif(
    rng: np.random.Generator,
    canvas: np.ndarray,
    centres: np.ndarray,
    middle: np.ndarray,
    reach: float,
    ink: np.ndarray,
) -> None:
    """Paint five shapes of one kind around `middle` (x, y), turned by at most 8 degrees, mirrored at random,
    inside `reach` pixels."""
    turn = np.deg2rad(rng.uniform(-8, 8))
    size = rng.uniform(0.6, 0.75)
    mirror = rng.choice((-1, 1))
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    points = middle + reach * (
        size * (centres * (mirror, 1)) @ rotation + rng.uniform(-0.08, 0.08, 2)
    )
    radius = reach * size * rng.uniform(0.17, 0.23)
    kind = int(rng.integers(3))
    for point, colour in zip(points, ink[rng.integers(3, size=5)], strict=True):
        paint(canvas, point, radius, kind, colour)


def paint(
    canvas: np.ndarray, point: np.ndarray, radius: float, kind: int, colour: np.ndarray
) -> None:
    """Paint a disc (`kind` 0), a square (1) or a diamond (2), all of about the same area, around `point` (x,
    y); outside is cut off."""
    left, top = np.maximum(point - radius - 2, 0).astype(int)
    right, bottom = np.maximum(point + radius + 2, 0).astype(int)
    patch = canvas[top:bottom, left:right]
    dx = np.abs(np.arange(left, left + patch.shape[1]) + 0.5 - point[0])[None, :]
    dy = np.abs(np.arange(top, top + patch.shape[0]) + 0.5 - point[1])[:, None]
    distance = (np.hypot(dx, dy), np.maximum(dx, dy) * 1.13, (dx + dy) * 0.8)[kind]
    cover = (radius - distance + 0.5).clip(0, 1)[..., None]
    patch += cover * (colour - patch)


def encode(rng: np.random.Generator, pixels: np.ndarray, oddity: str | None) -> bytes:
    """Return the file's bytes: a JPEG of random quality, or what `oddity` names. A rotation tag leaves the
    stored pixels upright."""
    picture = Image.fromarray(pixels)
    exif = b""
    quality = int(rng.integers(60, 96))
    subsampling = int(rng.choice((0, 2)))  # 4:4:4 or 4:2:0
    if oddity == "grey":
        picture = picture.convert("L")
    elif oddity == "cmyk":
        picture = picture.convert("CMYK")
    elif oddity == "rotated":
        tags = Image.Exif()
        # half a turn, a quarter turn either way
        tags[0x0112] = int(rng.choice((3, 6, 8)))
        exif = tags.tobytes()
    buffer = io.BytesIO()
    if oddity == "png":
        picture.save(buffer, "PNG", compress_level=1)
    else:
        picture.save(
            buffer, "JPEG", quality=quality, subsampling=subsampling, exif=exif
        )
    return buffer.getvalue()


def _draw(folder: Path, seed: int, key: Key) -> None:
    rng = rng_of(seed, *key)
    content = encode(rng, image(rng, key[1]), ODDITIES.get(key[2] % 25))
    SET.path(folder, key, "JPEG").write_bytes(content)


SET = DrawnSet(
    name="demo_set", about=__doc__, classes=CLASSES, draw=_draw, counts=(200, 50)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
