"""What scripts.to_coco knows of a set, whichever layout it is in, and what it leaves out."""

from __future__ import annotations

import math
import mimetypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataset.images.columns import FORMATS, TRANSPOSE, TURN_OF, Header
from dataset.images.headers import read_header
from dataset.scan.byte_ranges import Files
from dataset.scan.manifest import Rejected

Size = tuple[int, int]
"""Height and width, pixels."""


class Left:
    """What is left out: how many lines and images, and the first of them. Also how many EXIF turns."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""
        self.turned = 0

    def __call__(self, path: Path, why: str) -> None:
        self.count += 1
        self.first = self.first or f"{path}: {why}"

    def said(self) -> str:
        """Return a sentence, "" where nothing is left out."""
        return f"{self.count:,} left out, first {self.first}" if self.count else ""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """A set as its layout says it."""

    categories: list[dict[str, Any]]  # in COCO's form
    splits: dict[str, list[Path]]  # train, val or default -> images, below the root
    # (root, image, left) -> the size that labels are of, and annotations in COCO's form. Raises ValueError.
    read: Callable[[Path, Path, Left], tuple[Size, list[dict[str, Any]]]]
    keypoints: bool = False


def sizes(root: Path, image: Path, left: Left) -> tuple[Size, Size]:
    """Return the sizes of an image as stored and as shown. Raises ValueError where its header says none."""
    try:
        with Files(root).opened(os.fsencode(image)) as (size, read_at):
            found: Header = read_header(size, read_at)
    except Rejected as why:
        raise ValueError(str(why)) from None
    stored = (found.height, found.width)
    turn = 0 if found.format == FORMATS.index("tiff") else int(TURN_OF[found.orientation])
    left.turned += turn > 0
    return stored, stored[::-1] if turn >= TRANSPOSE else stored


def is_image(path: Path) -> bool:
    """Return whether a file's name is an image's."""
    return (mimetypes.guess_type(path.name)[0] or "").startswith("image/")


def images_below(folder: Path, root: Path) -> list[Path]:
    """Return the images below a folder, as paths below `root`, in the order of their names."""
    return [path.relative_to(root) for path in sorted(folder.rglob("*")) if is_image(path)]


def outlined(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return box, area and segmentation of a polygon, in pixels."""
    across = [x for x, _ in points]
    down = [y for _, y in points]
    twice = sum(
        x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True)
    )
    return {
        "bbox": [min(across), min(down), max(across) - min(across), max(down) - min(down)],
        "area": abs(twice) / 2,
        "segmentation": [[value for point in points for value in point]],
    }


def number(text: str | None) -> float:
    """Return a finite number. Raises ValueError."""
    value = float(text or "")
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of pixels")
    return value
