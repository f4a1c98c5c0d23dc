"""Make the sets of `bench train --task superres`: the same patches as PNG files and in an LMDB, also decoded.

    TO/png-16/train/a/000000.png ...    TO/lmdb-16/train.lmdb    TO/raw-16/train.lmdb    TO/lz4-16/train.lmdb

They are cut out of drawn textures, or of the images of a folder. Knows nothing of training.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from saturate.run import pack
from saturate.run.program import Parser
from scripts._sets import make, unless_there
from scripts.demo_superres import picture

OF_A_PICTURE = 50
"""Patches that are cut out of a picture before the next one is drawn or opened."""


def pictures(images: Path | None, side: int, seed: int) -> Iterator[np.ndarray]:
    """Yield pictures for ever, uint8 [H, W, 3]: drawn ones, or again and again those of a folder that are
    `side` pixels wide and high at least. Raises ValueError where it has none.
    """
    rng = np.random.default_rng(seed)
    while images is None:
        yield np.asarray(picture(rng))
    while True:
        large = False
        for path in filter(Path.is_file, sorted(images.rglob("*"))):
            with suppress(UnidentifiedImageError), Image.open(path) as opened:
                if min(opened.size) >= side:
                    large = True
                    yield np.asarray(opened.convert("RGB"))
        if not large:
            raise ValueError(f"--images {images} has no picture of {side} x {side}")


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
                f"--patches {side}: larger than what is drawn; give --images"
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
    pixels: Sequence[str] = (),
) -> bool:
    """Make the sets, LMDBs with such `pixels` too; False when they are there already.

    Raises ValueError, UserError and OSError.
    """
    if min(sides) < 1 or count < 2:
        raise ValueError(f"--patches {min(sides)} --count {count}: at least 1 px and 2")
    stamp = {"seed": seed, "count": count, "patches": [*sides], "images": str(images)}
    stamp["pixels"] = [*pixels]
    with unless_there(target, "patch_set.json", stamp) as fresh:
        if fresh is None:
            return False
        for side in sides:
            for number, patch in enumerate(patches(images, side, count, seed)):
                split = "train" if number else "val"
                folder = fresh / f"png-{side}" / split / "a"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(patch).save(folder / f"{number:06d}.png")
            # it tells of one class alone, and how to train on a folder that is renamed in the end
            with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
                of = str(fresh / f"png-{side}")
                made = {"lmdb": [], **{kind: ["--pixels", kind] for kind in pixels}}
                failed = any(
                    pack.main([str(fresh / f"{kind}-{side}"), "--from", of, *flags])
                    for kind, flags in made.items()
                )
            if failed:
                raise ValueError(f"no LMDB could be made: {output.getvalue().strip()}")
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
    parser.add_argument(
        "--pixels",
        nargs="+",
        default=[],
        choices=["raw", "lz4"],
        help="LMDBs of decoded patches, too",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    return make(
        "patch_set",
        options.target,
        lambda: write(
            options.target,
            options.patches,
            options.count,
            options.seed,
            options.images,
            options.pixels,
        ),
    )
