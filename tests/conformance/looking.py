"""What a loader delivered and should have delivered, and where in the source it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Array, Batch, Feed
from tests.conformance import pictures
from tests.conformance.scenes import Open


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Samples in the order of delivery; of one batch or of many."""

    ids: Array  # int64 [N], -1 for padding
    labels: Array  # int64 [N]
    valid: Array  # bool [N]
    raw: Array  # float32 [N, H, W, 3] as delivered, of clips [N, T, H, W, 3]
    failed: tuple[int, ...]
    levels: Array  # the same in grey levels 0..255: normalisation undone

    @property
    def real(self) -> Array:
        return self.ids >= 0


def seen(batch: Batch, feed: Feed) -> Seen:
    raw = (
        batch.images.detach().to("cpu", torch.float32, copy=True).movedim(1, -1).numpy()
    )
    return Seen(
        ids=np.array(batch.ids),
        labels=batch.targets["labels"].cpu().numpy().copy(),
        valid=batch.valid.cpu().numpy().copy(),
        raw=raw,
        failed=tuple(batch.failed),
        levels=255
        * (
            raw * np.array(feed.pixels.std, np.float32)
            + np.array(feed.pixels.mean, np.float32)
        ),
    )


def joined(parts: Iterable[Seen]) -> Seen:
    parts = list(parts)
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("ids", "labels", "valid", "raw", "levels")
    }
    return Seen(
        **arrays, failed=tuple(sample for part in parts for sample in part.failed)
    )


def passed(open_: Open, feed: Feed, epoch: int = 0, first: int = 0) -> Seen:
    with open_(feed) as loader:
        return joined(seen(batch, feed) for batch in loader.batches(epoch, first))


def difference(levels: Array, reference: Array) -> Array:
    """float [N], mean absolute difference of each image, grey levels."""
    apart = np.abs(levels.astype(np.float32) - reference.astype(np.float32)).reshape(
        len(levels), -1
    )
    return np.asarray(apart.mean(axis=1))


def torchvision_levels(content: bytes, interpolation: str = "bilinear") -> Array:
    """uint8 [224, 224, 3] by torchvision's own transforms on Pillow's pixels."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

    pixels = pictures.pil(content)
    assert pixels is not None
    resize = Resize(256, InterpolationMode(interpolation))
    return np.asarray(Compose([resize, CenterCrop(224)])(Image.fromarray(pixels)))


@dataclass(frozen=True, slots=True)
class Fit:
    """x0 y0 x1 y1, in pixels of the stored image, of a delivered ramp, and whether it was mirrored."""

    window: tuple[float, float, float, float]
    flipped: bool


def fitted(levels: Array, height: int, width: int) -> Fit:
    """Read a window back from a `pictures.ramp`, by its inner 60 %: filters bend the ends."""
    left, right = _ends(levels[..., 0].mean(axis=0), width)
    top, bottom = _ends(levels[..., 1].mean(axis=1), height)
    flipped = left > right
    return Fit((min(left, right), top, max(left, right), bottom), flipped)


def _ends(means: Array, source_pixels: int) -> tuple[float, float]:
    """Source coordinates of the first output pixel's outer edge and the last one's."""
    count = len(means)
    inner = np.arange(count // 5, count - count // 5)
    low, high = pictures.RAMP
    slope, start = np.polyfit(
        inner, (means[inner] - low) / (high - low) * (source_pixels - 1), 1
    )
    # the lowest level is the centre of the first source pixel, half a pixel from the image's edge
    return float(start - 0.5 * slope + 0.5), float(start + (count - 0.5) * slope + 0.5)
