"""The plan of detection: how large, which part, where in the output, in which groups, with which operations.

Knows no model and no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np

from saturate.contracts import Array, BatchSpec, BoxColumns, Rows, UserError
from saturate.plan import geometry, ops, order, windows
from saturate.plan.augment import UNTOUCHED, Augment
from saturate.plan.augment import turns as turns_of
from saturate.plan.draws import Purpose, uniforms
from saturate.plan.epoch import EpochPlan
from saturate.plan.targets import usable_boxes

STRIDE = 32  # a canvas is a multiple of this, as torchvision's detectors pad (size_divisible)
CENTRED = ("ssd", "ssdlite")
"""Augmentations that crop by overlap: a box whose middle is cut away is dropped."""
OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # of some box with the crop; 1: no crop
TRIALS = 40  # crops that are tried for an overlap before another one is drawn
# overlaps that are tried before the image stays whole: even where only two of the seven can end it, 2 in
# 100,000 images
ROUNDS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionPolicy:
    """How a detector's images are framed.

    flip: the shorter side becomes `size`, or less where the longer one would pass `longer`; without `longer`
    the image is stretched to size x size. multiscale: the same with a shorter side out of `short_sides`. lsj:
    large-scale jitter, size x size. ssd: colours, zoom out, crop by overlap, stretched; ssdlite: crop by
    overlap, stretched. Distributions are those of torchvision's references.
    """

    augment: Literal["flip", "multiscale", "lsj", "ssd", "ssdlite"]
    size: int
    longer: int | None = None
    short_sides: tuple[int, ...] = ()
    flip: float = 0.0
    vflip: float = 0.0
    # after SSD's own; none that moves pixels, since boxes stay
    colours: Augment = UNTOUCHED

    def __post_init__(self) -> None:
        keeps_shape = self.longer is not None
        if not self._shorter:
            raise UserError("--augment multiscale draws from --short-sides; give some")
        if keeps_shape and self.augment in CENTRED:
            raise UserError(
                f"--augment {self.augment} stretches images, this architecture keeps their shape; "
                "flip, multiscale or lsj"
            )
        if not keeps_shape and self.augment == "multiscale":
            raise UserError(
                f"--augment multiscale: this architecture takes {self.size} x {self.size} images only; "
                "flip, lsj, ssd or ssdlite"
            )
        if self.longer is not None and self.longer < max(self._shorter):
            raise UserError(
                f"--image-size or --short-sides of {max(self._shorter)} is more than the longer side may "
                f"have, {self.longer}; a larger --longer-side"
            )

    @property
    def _shorter(self) -> tuple[int, ...]:
        return self.short_sides if self.augment == "multiscale" else (self.size,)

    @property
    def varies(self) -> bool:
        """Whether outputs have different sizes."""
        return self.longer is not None and self.augment != "lsj"

    @property
    def filled(self) -> bool:
        """Whether images fill their canvas: such as keep their shape, are jittered or zoomed out do not."""
        return self.longer is None and self.augment not in ("lsj", "ssd")

    @property
    def operates(self) -> bool:
        """Whether colours are distorted."""
        return self.augment == "ssd" or self.colours.operates

    @property
    def centred(self) -> bool:
        """Whether a box is dropped when its middle is not in the output."""
        return self.augment in CENTRED

    def outputs(
        self, seed: int, epoch: int, ids: Array, heights: Array, widths: Array
    ) -> Array:
        """Return int64 [B, 2], height and width of the outputs of samples `ids`."""
        if self.longer is None or not self.varies:
            return np.full((len(ids), 2), self.size, np.int64)
        sides = np.array(self._shorter)
        drawn = uniforms(seed, epoch, Purpose.SCALE, ids, 1)[:, 0]
        shorter = sides[(drawn * len(sides)).astype(np.int64)]
        return np.stack(windows.fitted(heights, widths, shorter, self.longer), axis=1)

    def largest(self, heights: Array, widths: Array) -> tuple[int, int]:
        """Return the height and width that a batch of such images can have."""
        if self.longer is None:
            return self.size, self.size
        if not self.varies:
            return canvas(np.full((1, 2), self.size))
        fitted = windows.fitted(heights, widths, max(self._shorter), self.longer)
        return canvas(np.stack(fitted, axis=1))

    def frame(
        self,
        seed: int,
        epoch: int,
        ids: Array,
        heights: Array,
        widths: Array,
        boxes: Array,
        which: Array,
    ) -> dict[str, Any]:
        """Return the fields of Rows that say where the pixels of samples `ids` go, and their batch's canvas.

        Crops by overlap read `boxes`, float64 [M, 4], x0 y0 x1 y1 in stored pixels, of samples ids[which];
        `which` ascends.
        """
        turns = turns_of(seed, epoch, ids, flip=self.flip, upside_down=self.vflip)
        sizes = self.outputs(seed, epoch, ids, heights, widths)
        places = None
        distortions = None
        if self.augment == "lsj":
            draws = uniforms(seed, epoch, Purpose.SCALE, ids, 2)
            regions, inner, places = windows.jittered(
                heights, widths, draws, size=self.size
            )
        elif self.augment in CENTRED:
            draws = uniforms(seed, epoch, Purpose.ZOOM, ids, 4)
            zooms = 0.5 if self.augment == "ssd" else 0.0
            images, extents = windows.zoomed_out(
                heights, widths, draws, probability=zooms
            )
            moved = boxes + np.tile(images[which, :2], 2)
            crops = crops_by_overlap(seed, epoch, ids, extents, moved, which)
            regions, inner, places = windows.placed(images, crops, self.size)
            if self.augment == "ssd":
                numbers = ops.distortions(seed, epoch, ids)
                distortions = ops.alone(ops.Op.DISTORT, numbers)
            else:
                places = None  # a crop of the image itself fills the output
        else:
            regions = windows.whole(heights, widths)
            inner = windows.filling(regions)
        if places is not None:
            places = geometry.turned_places(places, turns, sizes)
        return {
            "regions": regions,
            "windows": inner,
            "sizes": sizes,
            "turns": turns,
            "places": places,
            "ops": ops.joined(distortions, self.colours.draw(seed, epoch, ids, sizes)),
            "canvas": canvas(sizes) if self.longer and len(ids) else None,
        }


def canvas(sizes: Array) -> tuple[int, int]:
    """Return height and width of a batch of `sizes` [B, 2]: the largest, rounded up to whole strides."""
    height, width = (-(-sizes.max(axis=0) // STRIDE) * STRIDE).tolist()
    return height, width


def crops_by_overlap(
    seed: int, epoch: int, ids: Array, extents: Array, boxes: Array, which: Array
) -> Array:
    """Return int64 [B, 4], x0 y0 x1 y1: the crops of torchvision's RandomIoUCrop, one in each field.

    `extents` [B, 2] are the fields' width and height. `boxes` float64 [M, 4], in the field's pixels, belong
    to rows `which`, ascending. An overlap is drawn, then TRIALS crops, of which the first counts that has
    sides 0.3 to 1 of the field's, a ratio of 1/2 to 2, and the middle of some box, one of which it overlaps
    that much. If none does, another overlap is drawn, ROUNDS times at most; an image without a box stays
    whole.
    """
    crops = np.concatenate([np.zeros_like(extents), extents], axis=1)
    open_rows = np.unique(which)  # those with a box
    for round_ in range(ROUNDS):
        # a counter for each (sample, round): draws of one round do not depend on how many there were
        turns = ids[open_rows] * ROUNDS + round_
        drawn = uniforms(seed, epoch, Purpose.OVERLAP, turns, 1)[:, 0]
        overlaps = np.array(OVERLAPS)[(drawn * len(OVERLAPS)).astype(np.int64)]
        crop = overlaps < 1
        open_rows, turns, overlaps = open_rows[crop], turns[crop], overlaps[crop]
        if not len(open_rows):
            break
        mine = np.isin(which, open_rows)
        owner = np.searchsorted(open_rows, which[mine])
        counters = (turns[:, None] * TRIALS + np.arange(TRIALS)).ravel()
        # axes: [rows, TRIALS, 4]
        draws = uniforms(seed, epoch, Purpose.CROP, counters, 4).reshape(-1, TRIALS, 4)
        tried = _tried(extents[open_rows], draws)
        fits = _overlapping(tried, boxes[mine], owner, overlaps)
        chosen = fits.argmax(axis=1)
        settled = fits.any(axis=1)
        crops[open_rows[settled]] = tried[settled, chosen[settled]]
        open_rows = open_rows[~settled]
    return crops


def _tried(extents: Array, draws: Array) -> Array:
    """Return the crops that are tried, int64 [rows, TRIALS, 4], x0 y0 x1 y1.

    One that is too narrow or too low is empty, at 0.
    """
    # axes: [rows, 1, 2] against [rows, TRIALS, 2], x and y
    field = extents[:, None]
    size = (field * (0.3 + 0.7 * draws[..., :2])).astype(np.int64)
    corner = ((field - size) * draws[..., 2:]).astype(np.int64)
    width, height = size[..., 0], size[..., 1]
    allowed = (2 * width >= height) & (width <= 2 * height)
    return np.concatenate([corner, corner + size], axis=-1) * allowed[..., None]


def _overlapping(tried: Array, boxes: Array, owner: Array, overlaps: Array) -> Array:
    """Return bool [rows, TRIALS]: crops that hold the middle of some box, and overlap one such box enough.

    `overlaps` [rows] say how much that is. `owner` [M] is the row of each box; ascending, and every row has
    one.
    """
    # axes: [M, TRIALS]
    left, top, right, bottom = np.moveaxis(tried[owner].astype(np.float64), -1, 0)
    x0, y0, x1, y1 = (side[:, None] for side in boxes.T)
    middle_x, middle_y = (x0 + x1) / 2, (y0 + y1) / 2
    inside = (left < middle_x) & (middle_x < right)
    inside &= (top < middle_y) & (middle_y < bottom)
    # of no meaning, and perhaps negative, where the middle is not inside
    common = np.minimum(right, x1) - np.maximum(left, x0)
    common *= np.minimum(bottom, y1) - np.maximum(top, y0)
    either = (right - left) * (bottom - top) + (x1 - x0) * (y1 - y0) - common
    good = inside & (common >= overlaps[owner, None] * either)
    starts = np.searchsorted(owner, np.arange(len(tried)))
    return np.asarray(np.logical_or.reduceat(good, starts, axis=0))


@dataclass(frozen=True, slots=True)
class DetectionPlan(EpochPlan):
    """contracts.Plan for images with boxes.

    Training: the images that have a box to train on, or all with `keep_empty`, in an order in which
    neighbours have like sizes, unless that of the data is asked for. Validation: every image, by size.
    """

    columns: BoxColumns
    policy: DetectionPolicy
    _: KW_ONLY
    keep_empty: bool = False
    # int64 [samples], ascending, of the images that are used
    _ids: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids = np.arange(len(self.columns.height))
        if self.training and not self.keep_empty:
            ids = np.asarray(self.columns.with_boxes)
        object.__setattr__(self, "_ids", ids)
        EpochPlan.__post_init__(self)

    def batch_spec(self) -> BatchSpec:
        policy, ids = self.policy, self._ids
        square = (policy.size, policy.size)
        return BatchSpec(
            rows=self.batch_size,
            canvas=policy.largest(*self._stored(ids)) if len(ids) else square,
            varies=policy.varies,
            filled=policy.filled,
            transposed=self.columns.exif is not None,
            ops=policy.operates,
        )

    @property
    def samples(self) -> int:
        return len(self._ids)

    def require_a_step(self) -> None:
        """Raise UserError when there is nothing to learn, or not even one step."""
        if self.training and self.samples == 0:
            raise UserError(
                f"none of the {len(self.columns.height)} training images has a box to learn: "
                "rejected.txt below --manifest-dir names what was left out, --keep-empty trains without"
            )
        EpochPlan.require_a_step(self)

    @property
    def batches_per_draw(self) -> int:
        return 1  # a canvas is a batch's

    @property
    def ordering(self) -> str:
        own = self.policy
        order = f"seed {self.seed}" if self.shuffled else "sequential"
        if own.varies:
            sizes = own.augment, own.size, own.longer, *own.short_sides
            order += f", sizes of {' '.join(map(str, sizes))}"
        return f"{order}{', with empty images' if self.keep_empty else ''}"

    def ordered(self, epoch: int) -> Array:
        """Return int64 [samples], ids of images."""
        shuffled = self.training and self.shuffled
        ids = self._ids
        if shuffled:
            ids = ids[order.order(self.seed, epoch, self.samples)]
        if not self.policy.varies or (self.training and not shuffled):
            return ids
        sizes = self.policy.outputs(self.seed, epoch, ids, *self._stored(ids))
        if self.training:
            return ids[order.grouped(*sizes.T, seed=self.seed, epoch=epoch)]
        return ids[order.by_size(*sizes.T)]

    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        boxes = np.zeros((0, 4))
        which = np.zeros(0, np.int64)
        if self.policy.centred:
            _, which, boxes = usable_boxes(self.columns, ids)
        return self.policy.frame(
            self.seed, epoch, ids, *self._stored(ids), boxes, which
        )


def padding(batches: Sequence[Rows]) -> float:
    """Return the share, 0..1, of the pixels of batches that no image covers.

    They lie beside the outputs on their canvas, and within them beside `places`.
    """
    sides = [rows.placed[:, 2:] - rows.placed[:, :2] for rows in batches]
    covered = sum(int(sizes.prod(axis=1).sum()) for sizes in sides)
    whole = sum(len(rows) * rows.padded[0] * rows.padded[1] for rows in batches)
    return 1 - covered / whole if whole else 0.0
