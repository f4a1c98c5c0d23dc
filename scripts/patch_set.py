"""Make the sets of `bench train --task superres`: the same patches as PNG files, as raw PPM files and in an
LMDB.

    TO/png-16/train/a/000000.png ...    TO/raw-16/train/a/000000.ppm ...    TO/lmdb-16/train.lmdb

They are cut out of drawn textures, or of the images of a folder. Knows nothing of training.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from scripts import Parser, pack
from scripts._sets import make, replacing
from scripts.demo_superres import picture

STAMP = "patch_set.json"
VERSION = 1
STORES = ("png", "raw", "lmdb")
OF_A_PICTURE = 50
"""Patches that are cut out of a picture before the next one is drawn or opened."""


def pictures(images: Path | None, side: int, seed: int) -> Iterator[np.ndarray]:
    """Yield pictures for ever, uint8 [H, W, 3]: drawn ones, or again and again those of a folder that are
    `side` pixels wide and high at least. Raises ValueError where it has none.
    """
    files = (
        []
        if images is None
        else [path for path in sorted(images.rglob("*")) if _holds(path, side)]
    )
    if images is not None and not files:
        raise ValueError(
            f"--images {images}: no picture of {side} x {side} pixels or more is there"
        )
    rng = np.random.default_rng(seed)
    at = 0
    while True:
        yield _pixels(files[at % len(files)]) if files else picture(rng)
        at += 1


def _holds(path: Path, side: int) -> bool:
    """Whether it is a picture of that size, as far as its header says."""
    if not path.is_file():
        return False
    try:
        with Image.open(path) as opened:
            return min(opened.size) >= side
    except UnidentifiedImageError:  # a text, or a list of the pictures
        return False


def _pixels(path: Path) -> np.ndarray:
    """Return uint8 [H, W, 3]. Raises ValueError where the picture is damaged."""
    try:
        with Image.open(path) as opened:
            return np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError(
            f"--images: {path} cannot be decoded ({error}); take it away"
        ) from None


def patches(
    images: Path | None, side: int, count: int, seed: int
) -> Iterator[np.ndarray]:
    """Yield so many patches, uint8 [side, side, 3], at random places."""
    rng = np.random.default_rng(seed + side)
    made = 0
    for whole in pictures(images, side, seed):
        height, width = whole.shape[:2]
        if min(height, width) < side:
            raise ValueError(
                f"--patches {side}: drawn pictures have {width} x {height} pixels; give --images"
            )
        for _ in range(min(OF_A_PICTURE, count - made)):
            y, x = rng.integers(0, (height - side + 1, width - side + 1))
            made += 1
            yield whole[y : y + side, x : x + side]
        if made == count:
            return


def write(
    target: Path,
    sides: Sequence[int],
    count: int,
    seed: int = 0,
    images: Path | None = None,
) -> bool:
    """Make the sets; False when they are there already. Raises ValueError and OSError."""
    stamp = {
        "version": VERSION,
        "seed": seed,
        "count": count,
        "patches": [*sides],
        "images": str(images),
    }
    if min(sides) < 1:
        raise ValueError(f"--patches {min(sides)}: at least 1 pixel")
    if count < 2:
        raise ValueError(f"--count {count}: at least two, one of them to validate")
    with replacing(
        target, STAMP, stamp, [f"{store}-{side}" for store in STORES for side in sides]
    ) as fresh:
        if fresh is None:
            return False
        for side in sides:
            for number, patch in enumerate(patches(images, side, count, seed)):
                split = "train" if number else "val"
                for store, ending in (("png", "png"), ("raw", "ppm")):
                    folder = fresh / f"{store}-{side}" / split / "a"
                    folder.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(patch).save(folder / f"{number:06d}.{ending}")
            # it tells of one class alone, and how to train on a folder that is renamed in the end
            with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
                failed = pack.main(
                    [str(fresh / f"lmdb-{side}"), "--from", str(fresh / f"png-{side}")]
                )
            if failed:
                raise ValueError(
                    f"the LMDB could not be made: {output.getvalue().strip()}"
                )
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("patch_set", __doc__)
    parser.add_argument("target", metavar="TO", type=Path, help="folder to make")
    parser.add_argument(
        "--patches",
        type=int,
        nargs="+",
        default=[16, 64],
        help="sides in pixels (16 64)",
    )
    parser.add_argument(
        "--count", type=int, default=20_000, help="patches of each side (%(default)s)"
    )
    parser.add_argument(
        "--images", type=Path, help="cut them out of the images below this folder"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    return make(
        "patch_set",
        options.target,
        lambda: write(
            options.target, options.patches, options.count, options.seed, options.images
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
