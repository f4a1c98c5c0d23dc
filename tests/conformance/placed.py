"""Images of different sizes at places of a canvas: a plan and its reference.

The reference is Pillow, NumPy's colours and nothing else: decode, cut out the region, resize the window into
the place, mirror, distort, normalise; 0 everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from contracts import Array, Batch, Feed, Rows
from loaders._ops import distort
from loaders._postprocess import DTYPES
from plan import geometry, ops
from tests.conformance import pictures
from tests.conformance.looking import difference
from tests.conformance.scenes import Open, Scene

SIZES = ((40, 56), (56, 40), (64, 64), (33, 61), (24, 24))
STEP = 16
"""Sides of a canvas are multiples of it."""
LEAST = 9
"""Sides of a place, pixels, at least."""


@dataclass(frozen=True, kw_only=True)
class PlacedPlan:
    """contracts.Plan: every sample in the order of its number, later ones first in odd epochs; the last batch
    is padded.

    sizes    outputs of several sizes, padded to the largest of the batch
    canvas   the same, padded to multiples of STEP
    places   outputs of one size, of which the image fills a part
    colour   the same, with distorted colours
    turned   outputs of several sizes and places, in all eight turns
    all      of all this at once
    """

    heights: Array
    widths: Array
    kind: str
    batch_size: int = 5

    image_size: int = 64
    sample_shape: tuple[int, ...] = (3, 64, 64)
    filled: bool = False
    same_frames: int = 1
    upscale: int = 0

    @property
    def samples(self) -> int:
        return len(self.heights)

    @property
    def global_batch_size(self) -> int:
        return self.batch_size

    @property
    def resident(self) -> int:
        return 1 if self.kind in ("places", "colour") else 8

    @property
    def operates(self) -> bool:
        return self.kind in ("colour", "all")

    @property
    def transposes(self) -> bool:
        return self.kind in ("turned", "all")

    def steps(self, first: int = 0) -> int:
        return -(-(self.samples - first) // self.batch_size)

    def rows(self, epoch: int, first: int) -> Sequence[Rows]:
        ordered = np.arange(self.samples)[:: -1 if epoch % 2 else 1][first:]
        return [
            self._batch(epoch, ordered[at : at + self.batch_size])
            for at in range(0, len(ordered), self.batch_size)
        ]

    def _batch(self, epoch: int, ids: Array) -> Rows:
        real = len(ids)
        ids = np.concatenate([ids, np.full(self.batch_size - real, ids[0])])
        made = [self._row(epoch, int(sample)) for sample in ids]
        regions, windows, sizes, places = (
            np.array(column) for column in zip(*made, strict=True)
        )
        valid = np.arange(len(ids)) < real
        height, width = -(-sizes.max(axis=0) // STEP) * STEP
        return Rows(
            ids=np.where(valid, ids, -1),
            regions=regions.astype(np.int64),
            windows=windows.astype(np.float64),
            sizes=sizes.astype(np.int64),
            turns=(
                (ids + epoch + 1) % (geometry.TURNS if self.transposes else 2)
            ).astype(np.uint8),
            valid=valid,
            places=None
            if self.kind in ("sizes", "canvas")
            else places.astype(np.int64),
            canvas=(int(height), int(width))
            if self.kind in ("canvas", "all")
            else None,
            ops=self._ops(epoch, ids) if self.operates else None,
        )

    def _ops(self, epoch: int, ids: Array) -> Array:
        """A third of the rows has none; of kind `all` the others have one in either of two slots."""
        drawn = ops.alone(ops.Op.DISTORT, ops.distortions(5, epoch, ids))
        slots = (
            [(ids + epoch) % 3 == slot for slot in range(2)]
            if self.kind == "all"
            else [ids % 3 > 0]
        )
        return np.concatenate(
            [np.where(has[:, None, None], drawn, 0) for has in slots], axis=1
        )

    def _row(
        self, epoch: int, sample: int
    ) -> tuple[Array, Array, tuple[int, int], Array]:
        """Region, window, size of the output, place: each third sample is a whole image, others a part."""
        draws = np.random.default_rng([epoch, sample])
        limit = np.array([self.widths[sample], self.heights[sample]])
        size = (
            (64, 64) if self.resident == 1 else SIZES[int(draws.integers(len(SIZES)))]
        )
        place = np.array([0, 0, size[1], size[0]])
        if sample % 4:  # one in four fills its output
            sides = draws.integers(LEAST, place[2:] + 1)
            corner = draws.integers(0, place[2:] - sides + 1)
            place = np.concatenate([corner, corner + sides])
        if sample % 3 == 0:
            return np.array([0, 0, *limit]), np.array([0, 0, *limit]), size, place
        low = draws.integers(0, limit // 3)
        high = limit - draws.integers(0, limit // 3)
        # a fractional window, or all of the region
        inside = draws.random(4) * 0.2 if sample % 3 == 1 else np.zeros(4)
        sides = np.tile(high - low, 2)
        window = (
            np.array([0, 0, 1, 1]) * sides + np.array([1, 1, -1, -1]) * inside * sides
        )
        return np.concatenate([low, high]), window, size, place


KINDS = ("sizes", "canvas", "places", "colour", "turned", "all")


def feed_of(scene: Scene, kind: str, device: torch.device, **changes: Any) -> Feed:
    plan = PlacedPlan(
        heights=np.asarray(scene.manifest.height),
        widths=np.asarray(scene.manifest.width),
        kind=kind,
    )
    return replace(
        scene.feed(device, batch_size=plan.batch_size),
        **{"plan": plan, "targets": packed, **changes},
    )


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
    return on_canvas(
        rows, i, normalised(feed, coloured(window_of(pixels, rows, i), rows, i))
    )


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


def window_of(pixels: Array, rows: Rows, i: int) -> Array:
    """uint8 [h, w, 3], the window of row i as it fills its place."""
    turn = int(rows.turns[i])
    x0, y0, x1, y1 = rows.regions[i].tolist()
    left, top, right, bottom = place_of(rows, i)
    a, b, c, d = rows.windows[i].tolist()
    region = Image.fromarray(np.ascontiguousarray(pixels[y0:y1, x0:x1]))
    sides = (bottom - top, right - left) if turn & 4 else (right - left, bottom - top)
    return turned(
        np.asarray(region.resize(sides, Image.Resampling.BILINEAR, box=(a, b, c, d))),
        turn,
    )


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
) -> set[int]:
    """Check every batch of batches(epoch, first), in mean grey levels; return the ids that failed."""
    failed = set[int]()
    with open_(feed) as loader:
        for epoch, first in epochs:
            expected = feed.plan.rows(epoch, first)
            for batch, rows in zip(loader.batches(epoch, first), expected, strict=True):
                failed.update(batch.failed)
                form_is_the_plans(batch, rows, feed)
                pixels_are_where_they_belong(batch, rows, feed, scene, tolerance)
    return failed


def form_is_the_plans(batch: Batch, rows: Rows, feed: Feed) -> None:
    """Shape, layout, dtype, ids, sizes and rows are the plan's; packed targets are the same on the device."""
    assert batch.images.shape == (len(rows), 3, *rows.padded)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.images.dtype == DTYPES[feed.pixels.dtype]
    valid = rows.valid & ~np.isin(rows.ids, batch.failed)
    np.testing.assert_array_equal(batch.ids, rows.ids)
    np.testing.assert_array_equal(batch.sizes.cpu().numpy(), rows.sizes)
    np.testing.assert_array_equal(batch.valid.cpu().numpy(), valid)
    assert batch.rows is not None
    np.testing.assert_array_equal(batch.rows.valid, valid)
    for name in (
        "ids",
        "regions",
        "windows",
        "sizes",
        "turns",
        "places",
        "ops",
        "canvas",
    ):
        np.testing.assert_array_equal(
            getattr(batch.rows, name), getattr(rows, name), err_msg=name
        )
    targets = packed(replace(rows, valid=valid))
    assert set(batch.targets) == set(batch.host) == set(targets)
    for name, value in targets.items():
        np.testing.assert_array_equal(
            batch.targets[name].cpu().numpy(), value, err_msg=name
        )
        np.testing.assert_array_equal(batch.host[name], value, err_msg=name)


def pixels_are_where_they_belong(
    batch: Batch, rows: Rows, feed: Feed, scene: Scene, tolerance: float
) -> None:
    """Close to the reference inside of the place, exactly 0 outside, and in rows that are not valid."""
    raw = batch.images.detach().float().cpu().permute(0, 2, 3, 1).numpy()
    for i in range(len(rows)):
        expected = (
            reference(feed, scene.bytes_of[int(rows.ids[i])], rows, i)
            if rows.valid[i]
            else None
        )
        if expected is None:
            assert not raw[i].any()
            assert not rows.valid[i] or int(rows.ids[i]) in batch.failed
            continue
        left, top, right, bottom = place_of(rows, i)
        rest = raw[i].copy()
        rest[top:bottom, left:right] = 0
        assert not rest.any(), f"{scene.names[rows.ids[i]]}: not 0 outside of its place"
        found, wanted = (
            (one[top:bottom, left:right] * np.array(feed.pixels.std)) * 255
            for one in (raw[i], expected)
        )
        apart = difference(found[None], wanted[None])[0]
        assert apart <= tolerance, (
            f"{scene.names[rows.ids[i]]}: {apart:.2f} grey levels apart"
        )
