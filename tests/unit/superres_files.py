"""Image folders for the tests of super-resolution, and the feed of a loader of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Array, Feed, Rows, Split
from saturate.dataset.pairs.scan import open_pairs
from saturate.plan.geometry import turned_pixels
from saturate.plan.patches import PatchPlan, PatchPolicy

CPU = torch.device("cpu")


def picture(seed: int, height: int, width: int) -> Array:
    """Return uint8 [height, width, 3], smooth with edges, and no two alike."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(
        rng.integers(0, 256, (height // 5 + 2, width // 5 + 2, 3), np.uint8)
    )
    kind = Image.Resampling.NEAREST if seed % 2 else Image.Resampling.BICUBIC
    return np.asarray(small.resize((width, height), kind))


def encoded(pixels: Array, ending: str) -> bytes:
    """Return a file's bytes: png, jpg or ppm."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(
        file, {"png": "PNG", "jpg": "JPEG", "ppm": "PPM"}[ending]
    )
    return file.getvalue()


def halved(pixels: Array, scale: int) -> Array:
    """Return an image made small by Pillow; what a whole small pixel does not cover is left out."""
    height, width = (side // scale for side in pixels.shape[:2])
    whole = Image.fromarray(
        np.ascontiguousarray(pixels[: height * scale, : width * scale])
    )
    return np.asarray(whole.resize((width, height), Image.Resampling.BICUBIC))


def write(
    folder: Path, count: int, *, ending: str = "png", side: int = 40, even: bool = False
) -> dict[str, Array]:
    """Write images NNNN.png of different sizes; return what is stored of each, by its name.

    `even`: of even sides, as an image has that is twice as large as another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for i in range(count):
        name = f"{i:04d}.{ending}"
        step = 2 if even else 1
        data = encoded(
            picture(i, side + step * (3 * i % 11), side + step * (5 * i % 13)), ending
        )
        (folder / name).write_bytes(data)
        found[name] = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    return found


def write_small(
    folder: Path, images: dict[str, Array], scale: int, suffix: str = ""
) -> None:
    """Write the small image of each as PNG, one level darker than Pillow's: a test sees which is read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels in images.items():
        small = np.maximum(halved(pixels, scale), 1) - 1
        Image.fromarray(small).save(folder / f"{name.partition('.')[0]}{suffix}.png")


def opened(data: Path, split: str = "train", **how: Any) -> Split:
    """Open a split at a scale of 2 unless said otherwise, with the scan beside the data."""
    usual: dict[str, Any] = {"scale": 2, "least": 16, "cache": data.parent / "cache"}
    return open_pairs(data, split, **usual | how)[0]


def feed_of(
    split: Split,
    *,
    patch: int | None = 16,
    batch_size: int = 4,
    workers: int = 0,
    **how: Any,
) -> Feed:
    """Return what a loader gets to train on patches, or, of whole images, to validate."""
    columns: Any = split.columns
    policy = PatchPolicy(
        scale=2, patch=patch, turns=patch is not None, made=columns.made
    )
    training = patch is not None
    plan = PatchPlan(
        columns, policy, seed=3, batch_size=batch_size, training=training, **how
    )
    return Feed(
        plan=plan,
        source=split.source,
        columns=columns,
        targets=lambda rows: {"ids": rows.ids},
        device=CPU,
        workers=workers,
    )


def expected(rows: Rows, i: int, large: Array, small: Array) -> tuple[Array, Array]:
    """Return the small and the large patch of a row: cut out of whole images, then turned."""
    x0, y0 = (rows.regions[i, :2] + rows.windows[i, :2]).astype(int)
    x1, y1 = (rows.regions[i, :2] + rows.windows[i, 2:]).astype(int)
    low = small[y0 // 2 : y1 // 2, x0 // 2 : x1 // 2]
    both = (
        turned_pixels(pixels, int(rows.turns[i]))
        for pixels in (low, large[y0:y1, x0:x1])
    )
    first, second = both
    return first, second


def levels(images: torch.Tensor, i: int) -> Array:
    """Return uint8 [H, W, 3] of an image of a batch."""
    found: Array = (
        (images[i].float() * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    )
    return found
