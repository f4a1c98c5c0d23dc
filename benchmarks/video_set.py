"""`python -m benchmarks video-set TO`: 173 videos of 300 frames, 1080p H.264 with a key frame every 60: what
loaders of clips are timed on.

Each shows a textured picture under a view that drifts, with grain, so that frames differ and have the size
that real ones have; no two videos are alike. A frame has its number in its top left corner, as `number_of`
reads it. Knows nothing of loaders. A folder with such a set in it is left
as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from saturate.run.program import Parser
from scripts._sets import in_processes, make, rng_of, unless_there
from scripts.demo_set import background
from scripts.demo_videos import encode

CLASS = "video"
BITS_OF_A_NUMBER = 12
"""Squares of a frame that show its number, lowest bit first."""
SQUARES_A_SIDE = 16
"""Squares that fill the height of a frame."""
BITS = 0.065
"""Bits a pixel takes in a file: 4 Mbit/s at 1080p, as video sites have it."""
GRAINS = 8
"""Pictures of noise, one of which is added to each frame: drawing as many as frames takes longer than coding
them."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The size, length and coding of the videos of a set."""

    frames: int = 300
    height: int = 1080  # pixels; sides are even
    width: int = 1920
    fps: int = 30
    gop: int = 60  # frames from one key frame to the next


def write(
    dest: Path,
    count: int = 173,
    kind: Kind | None = None,
    *,
    progress: bool = True,
    processes: int | None = None,
) -> bool:
    """Make DEST/train/video/*.mp4; return False when this set is there already.

    Raises ValueError for what cannot be, UserError for a folder that holds anything else.
    """
    kind = kind or Kind()
    dest = dest.resolve()
    sides = kind.height, kind.width
    if count < 1 or min(sides) < SQUARES_A_SIDE or any(side % 2 for side in sides):
        raise ValueError(
            f"needs a video and even sides, from {SQUARES_A_SIDE} pixels on: got {count} of {kind}"
        )
    stamp = {"count": count, **asdict(kind)}
    with unless_there(dest, "video_set.json", stamp) as fresh:
        if fresh is None:
            return False
        folder = fresh / "train" / CLASS
        folder.mkdir(parents=True)
        code = partial(draw, folder, kind)
        in_processes(
            code,
            range(count),
            f"coding {dest.name}",
            progress=progress,
            processes=processes,
        )
    return True


def draw(folder: Path, kind: Kind, index: int) -> None:
    """Write video number `index`."""
    rng = rng_of(0, index)
    height, width = kind.height, kind.width
    ground, _ = background(rng, width + width // 4, height + height // 4)
    levels = np.asarray(ground, np.int16)
    grain = rng.normal(0, 3, (GRAINS, height, width, 1)).astype(np.int16)
    side = height // SQUARES_A_SIDE
    steps = np.cumsum(rng.integers(-4, 5, (kind.frames, 2)), axis=0)
    places = np.abs(steps) % np.array([height // 4, width // 4])

    def frames() -> Iterator[np.ndarray]:
        for number, (top, left) in enumerate(places.tolist()):
            view = levels[top : top + height, left : left + width]
            frame = (view + grain[number % GRAINS]).clip(0, 255).astype(np.uint8)
            for bit in range(BITS_OF_A_NUMBER):
                cell = frame[:side, bit * side : (bit + 1) * side]
                cell[:] = 235 if number >> bit & 1 else 20
            yield frame

    rate = round(BITS * height * width * kind.fps)
    path = folder / f"{index:04d}.mp4"
    encode(
        path,
        frames(),
        (width, height),
        fps=kind.fps,
        gop=kind.gop,
        b=str(rate),
        sc_threshold="0",
    )


def number_of(frame: np.ndarray) -> int:
    """Return the number that a frame shows, uint8 [height, width, 3] in the size in which it was coded."""
    side = len(frame) // SQUARES_A_SIDE
    cells = frame[:side, : BITS_OF_A_NUMBER * side].mean(axis=(0, 2))
    return sum(
        int(cells[bit * side : (bit + 1) * side].mean() > 128) << bit
        for bit in range(BITS_OF_A_NUMBER)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("video_set", __doc__)
    parser.add_argument(
        "target", metavar="TO", type=Path, help="new folder; it gets train/video/*.mp4"
    )
    parser.add_argument("--count", type=int, default=173, help="videos (%(default)s)")
    parser.add_argument(
        "--size",
        type=int,
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        default=(Kind.height, Kind.width),
        help="pixels",
    )
    options = parser.parse_args(arguments)
    kind = Kind(height=options.size[0], width=options.size[1])
    return make(
        "video_set", options.target, lambda: write(options.target, options.count, kind)
    )
