"""Draw a small image folder that a network can learn in minutes on a CPU, with every file oddity of ImageNet;
knows nothing of training.

Ten classes: column, cross, diagonal, ell, ring, row, saltire, tee, vee, zigzag. An image repeats one motif of
five shapes over its whole area, and the class is how the five are arranged; colours, textures, kinds and
sizes have the same distribution in every class.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when it is started as a file

from contracts import one_line
from scripts import Parser

VERSION = 1  # of the drawing: a set of another version is made anew
STAMP = "demo_set.json"
SPLITS = ("train", "val")

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
CLASSES = tuple(sorted(MOTIFS))  # the label is the place in this tuple, as in a scan of the folder

# index % 25 -> what is odd about the file, so that every class has the same share and 25 images a class have
# all of it.
ODDITIES = {2: "grey", 6: "rotated", 9: "cmyk", 14: "grey", 18: "rotated", 21: "png"}


def image(rng: np.random.Generator, label: int) -> np.ndarray:
    """Draw one image of a class, uint8 [height, width, 3]."""
    height, width = _size(rng)
    canvas, ink = background(rng, height, width)
    cell = min(height, width) / rng.uniform(1.8, 3.2)
    rows, columns = max(1, round(height / cell)), max(1, round(width / cell))
    reach = 0.5 * min(height / rows, width / columns)  # half a cell, in pixels
    for row in range(rows):
        for column in range(columns):
            middle = np.array([(column + 0.5) * width / columns, (row + 0.5) * height / rows])
            motif(rng, canvas, np.array(MOTIFS[CLASSES[label]]), middle, reach, ink)
    canvas += rng.uniform(0, 0.05) * (rng.random((height, width, 1), dtype=np.float32) - 0.5)  # grain
    return (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width at random: mostly 500 pixels long and 4:3 or near, three in ten upright, as
    ImageNet has them."""
    long = 500 if rng.random() < 0.7 else int(rng.integers(320, 641))
    short = round(long * (0.75 if rng.random() < 0.5 else rng.uniform(0.6, 1)))
    return (long, short) if rng.random() < 0.3 else (short, long)


def background(rng: np.random.Generator, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a textured background, float32 [height, width, 3] in 0..1, and three colours [3, 3] that stand
    out from it."""
    dark, light = (rng.uniform(low, low + 0.4, (3, 3)).astype(np.float32) for low in (0, 0.6))
    ground, ink = (dark, light) if rng.random() < 0.5 else (light, dark)
    # Computed at a quarter of the size and enlarged: a fifth of the time.
    y, x = np.mgrid[: height // 4, : width // 4]
    angle = rng.uniform(0, np.pi)
    wavelength = rng.uniform(0.03, 0.5) * max(x.shape)
    stripes = (
        0.5
        + 0.5
        * np.sin(
            (x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / wavelength) + rng.uniform(0, 2 * np.pi)
        )[..., None]
    )
    clouds = np.asarray(
        Image.fromarray(rng.random((6, 6), dtype=np.float32)).resize(x.shape[::-1], Image.Resampling.BICUBIC)
    )[..., None]
    small = (stripes * ground[0] + (1 - stripes) * ground[1]) * clouds + ground[2] * (1 - clouds)
    large = Image.fromarray((small.clip(0, 1) * 255).astype(np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
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
    points = middle + reach * (size * (centres * (mirror, 1)) @ rotation + rng.uniform(-0.08, 0.08, 2))
    radius = reach * size * rng.uniform(0.17, 0.23)
    kind = int(rng.integers(3))
    for point, colour in zip(points, ink[rng.integers(3, size=5)], strict=True):
        paint(canvas, point, radius, kind, colour)


def paint(canvas: np.ndarray, point: np.ndarray, radius: float, kind: int, colour: np.ndarray) -> None:
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
        tags[0x0112] = int(rng.choice((3, 6, 8)))  # half a turn, a quarter turn either way
        exif = tags.tobytes()
    buffer = io.BytesIO()
    if oddity == "png":
        picture.save(buffer, "PNG", compress_level=1)
    else:
        picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling, exif=exif)
    return buffer.getvalue()


def _write_one(root: Path, seed: int, key: tuple[int, int, int]) -> None:
    split, label, index = key
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    name = f"{CLASSES[label]}_{index:05d}.JPEG"
    (root / SPLITS[split] / CLASSES[label] / name).write_bytes(
        encode(rng, image(rng, label), ODDITIES.get(index % 25))
    )


def write(
    dest: Path,
    train_per_class: int = 200,
    val_per_class: int = 50,
    seed: int = 0,
    *,
    progress: bool = True,
    processes: int | None = None,
) -> bool:
    """Make DEST/{train,val}/<class>/*.JPEG; False when it is there already. The bytes never depend on
    `processes` (None: one a core)."""
    stamp = {
        "version": VERSION,
        "seed": seed,
        "train_per_class": train_per_class,
        "val_per_class": val_per_class,
    }
    return fill(dest, STAMP, stamp, CLASSES, _write_one, progress=progress, processes=processes)


def fill(
    dest: Path,
    stamp_name: str,
    stamp: dict[str, Any],
    classes: tuple[str, ...],
    write_one: Callable[[Path, int, tuple[int, int, int]], None],
    *,
    progress: bool = True,
    processes: int | None = None,
) -> bool:
    """Make the folders DEST/{train,val}/<class> and call write_one(root, seed, (split, label, index)) for
    each file, in processes.

    False when the set of this `stamp`, kept in the file `stamp_name`, is there; one of another stamp is
    replaced. ValueError for counts below one, FileExistsError for a folder with anything else in it.
    """
    seed = stamp["seed"]
    counts = (stamp["train_per_class"], stamp["val_per_class"])
    if min(counts) < 1 or seed < 0:
        raise ValueError(
            f"needs at least one file a class and a seed >= 0, got {counts[0]} and {counts[1]} files, seed "
            f"{seed}"
        )
    with replacing(dest, stamp_name, stamp, SPLITS) as fresh:
        if fresh is None:
            return False
        keys = [(s, c, i) for s, n in enumerate(counts) for c in range(len(classes)) for i in range(n)]
        for folder in (fresh / split / name for split in SPLITS for name in classes):
            folder.mkdir(parents=True, exist_ok=True)
        workers = processes or len(os.sched_getaffinity(0))
        # spawn: the caller may have threads, and a fork with threads may hang
        with ProcessPoolExecutor(workers, get_context("spawn"), follow, (os.getpid(),)) as pool:
            try:
                done = pool.map(partial(write_one, fresh, seed), keys, chunksize=8)
                for _ in track(done, f"drawing {Path(dest).name}", total=len(keys), disable=not progress):
                    pass
            finally:
                pool.shutdown(cancel_futures=True)  # an interrupt does not wait for the files still to come
    return True


def follow(parent: int) -> None:
    """Prepare a process of a pool: Ctrl-C is for its parent alone, and it ends when that has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextmanager
def replacing(
    dest: Path, stamp_name: str, stamp: dict[str, Any], inside: Iterable[str]
) -> Iterator[Path | None]:
    """Yield the folder to write a set into, which gets the name DEST once all of it is there; None when the
    set of this stamp is there already.

    A set of another stamp is replaced. FileExistsError for a folder with anything but the set's `inside` in
    it.
    """
    dest = Path(dest).resolve()
    found = {path.name for path in dest.iterdir()} if dest.is_dir() else set()
    if stamp_name in found and json.loads((dest / stamp_name).read_text()) == stamp:
        yield None
        return
    if (
        (found and stamp_name not in found)
        or found - {stamp_name, *inside}
        or (dest.exists() and not dest.is_dir())
    ):
        raise FileExistsError(f"{dest} holds something else than a demo set; name a new or an empty folder")
    fresh, old = (dest.with_name(f".{dest.name}.{os.getpid()}.{state}") for state in ("partial", "old"))
    try:
        fresh.mkdir(parents=True)
        yield fresh
        (fresh / stamp_name).write_text(json.dumps(stamp) + "\n")
        if found:
            dest.rename(old)
        fresh.rename(dest)  # takes the place of an empty folder too
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    return command("demo_set", __doc__, write, per_class(200, 50), arguments)


def per_class(train: int, val: int) -> dict[str, tuple[int, str]]:
    """Return the counts that `command` takes for a set of classes."""
    return {
        "--train-per-class": (train, "files of a class in train/"),
        "--val-per-class": (val, "files of a class in val/"),
    }


def command(
    prog: str,
    description: str | None,
    write: Callable[..., bool],
    counts: dict[str, tuple[int, str]],
    arguments: list[str] | None,
) -> int:
    """Run the command line of a set: parse, call write(dest, *counts, seed), return the exit code. `counts`:
    flag -> (default, what it counts)."""
    parser = Parser(prog, description)
    parser.add_argument("dest", type=Path, help="folder to make")
    for flag, (default, what) in counts.items():
        parser.add_argument(
            flag, dest=flag, metavar="N", type=int, default=default, help=f"{what} (%(default)s)"
        )
    parser.add_argument("--seed", type=int, default=0, help="another seed, other files (%(default)s)")
    options = parser.parse_args(arguments)
    return make(
        prog,
        options.dest,
        lambda: write(options.dest, *(getattr(options, flag) for flag in counts), options.seed),
    )


def make(prog: str, dest: Path, write: Callable[[], bool]) -> int:
    """Make the set at `dest` by `write`, which returns False where it is already there; say so, and return
    the program's exit code."""
    try:
        said = "made" if write() else "already there"
    except (ValueError, OSError) as error:
        print(one_line(f"{prog}: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"{dest}: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
