"""Draw a small video folder that a network can learn in minutes on a CPU; knows nothing of training.

Eight classes: circle, down, grow, shake, shrink, sideways, still, up. A video shows shapes before a textured
background that drifts, and the class is how the shapes move; colours, textures, places, sizes and the drift
have the same distribution in every class, so that a single frame does not tell. A left-right flip keeps every
class; frames in reverse order do not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import numpy as np

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import background, paint

# the label is the place, as in a scan of the folder
CLASSES = ("circle", "down", "grow", "shake", "shrink", "sideways", "still", "up")
# smallest and largest of a shape; lengths are in shorter sides of the frame
RADII = (0.05, 0.16)


def frames(
    rng: np.random.Generator, label: int, seconds: np.ndarray, size: tuple[int, int]
) -> Iterator[np.ndarray]:
    """Yield the frames of one video of a class at these times, uint8 [height, width, 3] of this `size`."""
    height, width = size
    short = min(height, width)
    ground, ink = background(rng, 2 * height, 2 * width)
    # grain
    ground = ground + rng.uniform(0, 0.05) * (
        rng.random((*ground.shape[:2], 1), dtype=np.float32) - 0.5
    )
    # The background is twice as large as the view, which drifts from its middle.
    angle = rng.uniform(0, 2 * np.pi)
    speed = min(rng.uniform(0, 0.25) * short, 0.5 * short / seconds[-1])
    drift = speed * np.array([np.cos(angle), np.sin(angle)])
    # Shapes that leave on one side come back on the other, once they are out of sight: their places stay
    # evenly spread.
    margin = RADII[1] * short
    area = np.array([width, height]) + 2 * margin
    count = round(rng.integers(5, 9) * max(height, width) / short)
    starts = rng.random((count, 2)) * area
    kinds = rng.integers(3, size=count)
    colours = ink[rng.integers(3, size=count)]
    offsets, radii = _motion(rng, CLASSES[label], count, seconds)
    for second, offset, radius in zip(seconds, offsets, radii, strict=True):
        left, top = np.rint(np.array([width, height]) / 2 + drift * second).astype(int)
        canvas = ground[top : top + height, left : left + width].copy()
        points = (starts + offset * short) % area - margin
        for point, reach, kind, colour in zip(
            points, radius * short, kinds, colours, strict=True
        ):
            paint(canvas, point, reach, kind, colour)
        yield (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def shape(rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width at random, even: a shorter side of 112 to 144 pixels, from square to 16:9, three
    in ten upright."""
    short = 2 * int(rng.integers(56, 73))
    long = 2 * round(short / 2 * rng.choice((1, 4 / 3, 16 / 9)))
    return (long, short) if rng.random() < 0.3 else (short, long)


def _motion(
    rng: np.random.Generator, name: str, count: int, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (x, y), y downwards [times, count, 2], and radii [times, count], in shorter sides of the
    frame."""
    t = seconds[:, None]
    offsets = np.zeros((len(seconds), count, 2))
    phase = rng.random(count)
    size = rng.random(count)
    way = int(rng.choice((-1, 1)))
    speed = rng.uniform(0.4, 0.8) * rng.uniform(0.8, 1.2, count)
    if name in ("up", "down", "sideways"):
        axis, sign = {"up": (1, -1), "down": (1, 1), "sideways": (0, way)}[name]
        offsets[..., axis] = sign * speed * t
    elif name == "circle":
        angle = 2 * np.pi * (phase + way * rng.uniform(0.6, 1) * t)
        offsets = rng.uniform(0.1, 0.18) * np.stack(
            [np.cos(angle), np.sin(angle)], axis=-1
        )
    elif name == "shake":
        direction = 2 * np.pi * rng.random(count)
        swing = rng.uniform(0.06, 0.1) * np.sin(
            2 * np.pi * (phase + rng.uniform(1.5, 2.2) * t)
        )
        offsets = swing[..., None] * np.stack(
            [np.cos(direction), np.sin(direction)], axis=-1
        )
    elif name in ("grow", "shrink"):
        # from the smallest to the largest radius, or back, and again
        size = size + (1 if name == "grow" else -1) * rng.uniform(0.6, 1) * t
    smallest, largest = RADII
    return offsets, np.broadcast_to(
        smallest * (largest / smallest) ** (size % 1), offsets.shape[:2]
    )


def encode(
    path: Path,
    pictures: Iterable[np.ndarray],
    size: tuple[int, int],
    *,
    fps: int,
    gop: int,
    **options: str,
) -> None:
    """Write pictures, uint8 [*size, 3], as H.264; `options` are libx264's."""
    # neither the time nor a random number in the file
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as file:
        # with mbtree, the same frames give other bytes now and then
        options = {"preset": "veryfast", "x264-params": "mbtree=0", **options}
        stream = file.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))


def _draw(folder: Path, seed: int, key: Key) -> None:
    _, label, _ = key
    rng = rng_of(seed, *key)
    size = shape(rng)
    fps, gop = int(rng.choice((12, 15, 24, 25, 30))), int(rng.choice((12, 24, 60)))
    seconds = np.arange(rng.integers(24, 61)) / fps
    pictures = frames(rng, label, seconds, size)
    encode(SET.path(folder, key, "mp4"), pictures, size, fps=fps, gop=gop, crf="25")


SET = DrawnSet(
    name="demo_videos", about=__doc__, classes=CLASSES, draw=_draw, counts=(100, 25)
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
