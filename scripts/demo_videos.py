"""Draw a small video folder that a network can learn in minutes on a CPU; knows nothing of training.

Eight classes: circle, down, grow, shake, shrink, sideways, still, up. A video shows shapes before a textured
background, and the class is how the shapes move; colours, textures, places and sizes have the same
distribution in every class, so that a single frame does not tell. A left-right flip keeps every class; frames
in reverse order do not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import av
import numpy as np
from PIL import ImageDraw

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import background

# the label is the place, as in a scan of the folder
CLASSES = ("circle", "down", "grow", "shake", "shrink", "sideways", "still", "up")
# smallest and largest of a shape; lengths are in shorter sides of the frame
RADII = (0.05, 0.18)


def frames(
    rng: np.random.Generator, label: int, seconds: np.ndarray, size: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the frames of one video of a class at these times, uint8 [height, width, 3].

    `size`: width and height, pixels.
    """
    # drawn at twice the size, so that slow growth is seen at the edges
    large = 2 * size
    short = min(large)
    ground, ink = background(rng, *large.tolist())
    # Shapes that leave on one side come back on the other, once they are out of sight: their places stay
    # evenly spread.
    margin = RADII[1] * short
    area = large + 2 * margin
    count = int(rng.integers(8, 17))
    starts = rng.random((count, 2)) * area
    sides = rng.integers(3, 7, count).tolist()
    colours = [ink[place] for place in rng.integers(3, size=count)]
    offsets, radii = _motion(rng, CLASSES[label], count, seconds)
    for offset, radius in zip(offsets, radii * short, strict=True):
        picture = ground.copy()
        draw = ImageDraw.Draw(picture)
        points = (starts + offset * short) % area - margin
        for shape in zip(points, radius, sides, colours, strict=True):
            (x, y), reach, corners, colour = shape
            draw.regular_polygon((x, y, reach), corners, fill=colour)
        yield np.asarray(picture.reduce(2))


def _motion(
    rng: np.random.Generator, name: str, count: int, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (x, y), y downwards [times, count, 2], and radii [times, count], in shorter sides of the
    frame."""
    t = seconds[:, None]
    phase, place = rng.random((2, count))
    way = rng.choice((-1, 1))
    line = rng.uniform(0.4, 0.8) * rng.uniform(0.8, 1.2, count) * t
    angle = 2 * np.pi * (phase + way * rng.uniform(0.6, 1) * t)
    swing = rng.uniform(0.08, 0.12) * np.sin(
        2 * np.pi * (phase + rng.uniform(1.5, 2.2) * t)
    )
    direction = 2 * np.pi * place
    still = np.zeros_like(line)
    motions = {
        "circle": (0.14 * np.cos(angle), 0.14 * np.sin(angle)),
        "down": (still, line),
        "shake": (swing * np.cos(direction), swing * np.sin(direction)),
        "sideways": (way * line, still),
        "up": (still, -line),
    }
    # from the smallest to the largest radius, or back, and again
    growth = {"grow": 1, "shrink": -1}.get(name, 0) * rng.uniform(0.7, 1)
    smallest, largest = RADII
    radii = smallest * (largest / smallest) ** ((place + growth * t) % 1)
    offsets = np.stack(motions.get(name, (still, still)), axis=-1)
    return offsets, np.broadcast_to(radii, line.shape)


def encode(
    path: Path,
    pictures: Iterable[np.ndarray],
    size: Sequence[int],
    *,
    fps: int,
    gop: int,
    **options: str,
) -> None:
    """Write pictures of a width and height, uint8 [height, width, 3], as H.264; `options` are libx264's."""
    # neither the time nor a random number in the file
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as file:
        # with mbtree, the same frames give other bytes now and then
        options = {"preset": "veryfast", "x264-params": "mbtree=0", **options}
        stream = file.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))


def _draw(folder: Path, seed: int, key: Key) -> None:
    rng = rng_of(seed, *key)
    size = 2 * rng.integers(56, 101, 2)  # even
    fps, gop = int(rng.choice((12, 15, 24, 25, 30))), int(rng.choice((12, 24, 60)))
    seconds = np.arange(rng.integers(24, 61)) / fps
    pictures = frames(rng, key[1], seconds, size)
    path = SET.path(folder, key, "mp4")
    encode(path, pictures, size.tolist(), fps=fps, gop=gop, crf="25")


SET = DrawnSet(
    name="demo_videos", about=__doc__, classes=CLASSES, draw=_draw, counts=(100, 25)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
