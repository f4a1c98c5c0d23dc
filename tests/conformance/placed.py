"""The reference of images, of different sizes at places of a canvas.

It is Pillow, NumPy's colours and nothing else: decode, cut out the region, resize the window into the place,
mirror, distort, normalise; 0 everywhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as functional
from PIL import Image

from saturate.contracts import Array, Batch, Feed, Rows
from saturate.loaders._ops import distort
from saturate.loaders._postprocess import DTYPES
from tests.conformance import pictures
from tests.conformance.looking import difference
from tests.conformance.scenes import Open, Scene

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "nearest": Image.Resampling.NEAREST,
}


def packed(rows: Rows) -> dict[str, Array]:
    """Make id modulo 4 boxes for each valid row: {"offsets": int64 [B + 1], "boxes": float32 [M, 4],
    "labels": int64 [M]}.
    """
    counts = np.where(rows.valid, rows.ids % 4, 0)
    labels = np.repeat(rows.ids, counts)
    return {
        "offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "boxes": np.stack([labels] * 4, axis=1).astype(np.float32) / 2,
        "labels": labels.astype(np.int64),
    }


def reference(feed: Feed, content: bytes, rows: Rows, i: int) -> Array | None:
    """float64 [H, W, 3] of row i on its batch's canvas, normalised; None where Pillow cannot decode it."""
    pixels = decoded(content)
    if pixels is None:
        return None
    levels = window_of(pixels, rows, i, feed.pixels.interpolation)
    return on_canvas(rows, i, normalised(feed, coloured(levels, rows, i)))


@lru_cache(maxsize=64)
def decoded(content: bytes) -> Array | None:
    return pictures.pil(content)


def place_of(rows: Rows, i: int) -> tuple[int, int, int, int]:
    height, width = rows.sizes[i].tolist()
    left, top, right, bottom = (
        (0, 0, width, height) if rows.places is None else rows.places[i].tolist()
    )
    return left, top, right, bottom


def turned(pixels: Array, turn: int) -> Array:
    """[H, W, 3] or [T, H, W, 3], by NumPy: transposed, flipped, mirrored, in this order."""
    if turn & 4:
        pixels = np.swapaxes(pixels, -3, -2)
    if turn & 2:
        pixels = pixels[..., ::-1, :, :]
    if turn & 1:
        pixels = pixels[..., ::-1, :]
    return pixels


def window_of(pixels: Array, rows: Rows, i: int, interpolation: str) -> Array:
    """uint8 [h, w, 3], the window of row i as it fills its place.

    What Pillow cannot, bilinear without antialiasing, is torch's, of a window that is its region.
    """
    turn = int(rows.turns[i])
    x0, y0, x1, y1 = rows.regions[i].tolist()
    left, top, right, bottom = place_of(rows, i)
    a, b, c, d = rows.windows[i].tolist()
    region = Image.fromarray(np.ascontiguousarray(pixels[y0:y1, x0:x1]))
    sides = (bottom - top, right - left) if turn & 4 else (right - left, bottom - top)
    if interpolation in FILTERS:
        levels = np.asarray(
            region.resize(sides, FILTERS[interpolation], box=(a, b, c, d))
        )
    else:
        planes = torch.from_numpy(np.array(region)).permute(2, 0, 1)[None].float()
        resized = functional.interpolate(planes, sides[::-1], mode="bilinear")
        levels = resized[0].permute(1, 2, 0).round().to(torch.uint8).numpy()
    return turned(levels, turn)


def distorted(pixels: Array, numbers: Sequence[float]) -> Array:
    """RGB in 0..1 [..., 3] of one image after SSD's distortion, in 64 bits; see tests/unit/test_ops.py."""
    images = torch.from_numpy(pixels.astype(np.float64))[None]
    each = torch.tensor(numbers[:6], dtype=torch.float64).view(-1, 1, 1, 1, 1)
    return distort(images, *each)[0].numpy()


def coloured(levels: Array, rows: Rows, i: int) -> Array:
    """float64 in 0..1 of grey levels."""
    scaled = levels.astype(np.float64) / 255
    for operation, *numbers in () if rows.ops is None else rows.ops[i].tolist():
        if operation:
            scaled = distorted(scaled, numbers)
    return scaled


def normalised(feed: Feed, values: Array) -> Array:
    return (values - np.array(feed.pixels.mean)) / np.array(feed.pixels.std)


def on_canvas(rows: Rows, i: int, values: Array) -> Array:
    left, top, right, bottom = place_of(rows, i)
    out = np.zeros((*rows.padded, 3))
    out[top:bottom, left:right] = values
    return out


def epoch_is_the_plans(
    open_: Open,
    feed: Feed,
    scene: Scene,
    tolerance: float,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    unsure: Collection[str] = (),
) -> set[int]:
    """Check every batch of batches(epoch, first), in mean grey levels; return the ids that failed.

    `unsure`: damaged files whose pixels a GPU may guess otherwise.
    """
    failed = set[int]()
    with open_(feed) as loader:
        for epoch, first in epochs:
            expected = feed.plan.rows(epoch, first)
            for batch, rows in zip(loader.batches(epoch, first), expected, strict=True):
                failed.update(batch.failed)
                form_is_the_plans(batch, rows, feed)
                pixels_are_where_they_belong(
                    batch, rows, feed, scene, tolerance, unsure
                )
    return failed


def form_is_the_plans(batch: Batch, rows: Rows, feed: Feed) -> None:
    """Shape, layout, dtype, ids, sizes and rows are the plan's; targets are the same on the device."""
    shape = feed.plan.batches.rows, *feed.plan.batches.sample_shape[:-2], *rows.padded
    assert batch.images.shape == shape
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    assert batch.images.is_contiguous(memory_format=last)
    assert batch.images.dtype == DTYPES[feed.pixels.dtype]
    device = torch.empty(0, device=feed.device).device
    for tensor in (batch.images, batch.valid, batch.sizes):
        assert tensor.device == device
    assert batch.ids.dtype == np.int64
    counted = rows.valid if rows.fillers is None else rows.valid & ~rows.fillers
    valid = counted & ~np.isin(rows.ids, batch.failed)
    rows = replace(rows, ids=np.where(counted | ~rows.valid, rows.ids, -1))
    np.testing.assert_array_equal(batch.ids, rows.ids)
    np.testing.assert_array_equal(batch.sizes.cpu().numpy(), rows.sizes)
    np.testing.assert_array_equal(batch.valid.cpu().numpy(), valid)
    rows = replace(rows, valid=valid)
    for field in fields(Rows):
        if field.name == "fillers":  # asked of the pixels
            continue
        found, expected = getattr(batch.rows, field.name), getattr(rows, field.name)
        np.testing.assert_array_equal(found, expected, err_msg=field.name)
    targets = feed.targets(rows)
    assert set(batch.targets) == set(batch.host) == set(targets)
    for name, value in targets.items():
        np.testing.assert_array_equal(
            batch.targets[name].cpu().numpy(), value, err_msg=name
        )
        np.testing.assert_array_equal(batch.host[name], value, err_msg=name)


def pixels_are_where_they_belong(
    batch: Batch,
    rows: Rows,
    feed: Feed,
    scene: Scene,
    tolerance: float,
    unsure: Collection[str],
) -> None:
    """Close to the reference inside of the place, exactly 0 outside, and in rows that are not valid.

    What failed is what Pillow cannot decode. In training such a row is the next one that is none, cyclically.
    """
    fillers = np.zeros(len(rows), bool) if rows.fillers is None else rows.fillers
    raw = batch.images.detach().float().cpu().permute(0, 2, 3, 1).numpy()
    all_expected = [
        reference(feed, scene.bytes_of[int(rows.ids[i])], rows, i)
        if rows.valid[i]
        else None
        for i in range(len(rows))
    ]
    there = [i for i, one in enumerate(all_expected) if one is not None]
    for i, expected in enumerate(all_expected):
        failed = int(rows.ids[i]) in batch.failed
        assert failed == (rows.valid[i] and expected is None) or fillers[i]
        assert raw[i].any() == batch.shows_sample[i]
        if expected is None:
            shown = np.zeros_like(raw[i])
            if rows.keys is not None and there:  # of training
                shown = raw[min((j for j in there if j > i), default=there[0])]
            np.testing.assert_array_equal(raw[i], shown)
            continue
        left, top, right, bottom = place_of(rows, i)
        name = scene.names[rows.ids[i]]
        rest = raw[i].copy()
        rest[top:bottom, left:right] = 0
        assert not rest.any(), f"{name}: not 0 outside of its place"
        found, wanted = (
            (one[top:bottom, left:right] * np.array(feed.pixels.std)) * 255
            for one in (raw[i], expected)
        )
        apart = difference(found[None], wanted[None])[0]
        assert apart <= tolerance or name in unsure, (
            f"{name}: {apart:.2f} grey levels apart"
        )
