"""Makes Batches of decoded pixels, on their device: the door that all batches of files leave by.

    levels         grey levels of the whole batch, decoded, resized and upright, on the host or the device
      | show       the turn that EXIF asks for, where operations follow
      | operate    colours and the like, `Rows.ops`, row by row, in fp32 (loaders/_ops.py)
      | turn       mirror, flip, transpose, `Rows.turns`: a permutation of each row (loaders/_flips.py)
      | normalise  (level / 255 - mean) / std, in the step's dtype
      | blacken    0 outside of the places, and in rows that are padding or could not be decoded
      | stand in   in training a row that could not be decoded shows another one of its micro-batch
    Batch          with the targets, sizes and ids of its rows

Loaders see plan.geometry.upright rows. Must not know where the pixels come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType

import numpy as np
import torch

from saturate.contracts import Array, Batch, Columns, Feed, Rows
from saturate.loaders._flips import images_shape, turned
from saturate.loaders._memory import to_device
from saturate.loaders._ops import operated
from saturate.plan.geometry import transposed, turned_by_exif, whole_turns
from saturate.system.triton_kernels import kernels

# numbers that are normalised at once, of 4 bytes: a batch of clips has ten times as many
PIECE = 1 << 25
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


class Finish:
    """Makes Batches of levels [B, H, W, 3], or [B, T, H, W, 3], as a feed asks for them."""

    def __init__(self, feed: Feed[Columns]) -> None:
        self._feed = feed
        self.dtype = DTYPES[feed.pixels.dtype]
        mean, std = torch.tensor(feed.pixels.mean), torch.tensor(feed.pixels.std)
        self._scale = (1 / (255 * std)).to(feed.device)
        self._shift = (-mean / std).to(feed.device)
        self._kernel = _kernel(feed.device, self.dtype)
        # axes: [level, channel]; what each level becomes, for the kernel to look up
        levels = torch.arange(256, device=feed.device)[:, None].repeat(1, 3)
        self._table = self._normalised(levels).to(self.dtype)
        if self._kernel is not None:
            # the kernel runs on another stream
            torch.cuda.current_stream(feed.device).synchronize()

    def __call__(
        self,
        pixels: torch.Tensor,
        rows: Rows,
        valid: Array,
        *,
        into: torch.Tensor | None = None,
        normalised: bool = False,
    ) -> Batch:
        """Return the batch of upright pixels [B, ..., H, W, 3], on its device, which stay as they are.

        `pixels`: uint8 or fp32 grey levels; or, `normalised`, what the decoder itself has normalised, of rows
        without operations. `valid`: bool [B], rows that are no padding and were decoded. `into`: memory for
        the images, images_shape(...); None = new. The host waits for nothing: which rows an operation, a turn
        or a failure meets is known here.
        """
        lost, others = stand_ins(rows, valid)
        if into is None:
            shape = images_shape(pixels.shape, rows)
            into = torch.empty(shape, dtype=self.dtype, device=pixels.device)
        images = into.movedim(-1, 1)
        if self._kernel is not None and not normalised and _is_one_launch(pixels, rows):
            turns = np.where(valid, whole_turns(rows), self._kernel.LOST)
            batch, on_device = _batch_with_targets(
                images, rows, valid, self._feed, [turns.astype(np.uint8)]
            )
            self._kernel.finished(pixels, self._table, *on_device, into)
            self._copy_rows(into, others, lost)
            return batch
        left = rows
        if rows.ops is not None:
            # they act on levels: who decodes normalises only where the plan does not operate
            assert not normalised
            # they are drawn for images as they are shown
            pixels = turned(pixels, turned_by_exif(rows), self._to_device)
            left = replace(rows, exif=None)
            pixels = operated(pixels, rows.ops, self._to_device)
        # what is normalised already needs nothing but the turn, which then writes the images themselves
        written = into if normalised and pixels.dtype == into.dtype else None
        pixels = turned(pixels, left, self._to_device, written)
        if normalised and pixels is not into:
            into.copy_(pixels)
        elif not normalised:
            for part, levels in zip(_pieces(into), _pieces(pixels), strict=True):
                part.copy_(self._normalised(levels))
        if not rows.filled:
            (places,) = self._to_device([rows.placed])
            images.masked_fill_(outside(places, images), 0)
        if not valid.all():
            (blank,) = self._to_device([np.flatnonzero(~valid)])
            images.index_fill_(0, blank, 0)
        self._copy_rows(into, others, lost)
        return batch_of(images, rows, valid, self._feed)

    def _copy_rows(self, images: torch.Tensor, origin: Array, to: Array) -> None:
        """Copy the rows `origin` of images, int64 [N], over the rows `to`."""
        if len(to):
            target, source = self._to_device([to, origin])
            images.index_copy_(0, target, images.index_select(0, source))

    def _normalised(self, levels: torch.Tensor) -> torch.Tensor:
        """Return float32, levels [..., 3] normalised; they stay as they are."""
        fresh = levels.to(torch.float32, copy=True)
        return torch.addcmul(self._shift, fresh, self._scale, out=fresh)

    def _to_device(self, values: list[Array]) -> list[torch.Tensor]:
        return to_device(values, self._feed.device)


def _is_one_launch(pixels: torch.Tensor, rows: Rows) -> bool:
    """Return whether the kernel makes the images: of levels that fill them, and need no operation before."""
    height, width = rows.padded
    return (
        rows.ops is None
        and pixels.dtype == torch.uint8
        and pixels.is_contiguous()
        and pixels.shape[-3:-1] == (height, width)
        and (height == width or not transposed(whole_turns(rows)).any())
        and rows.filled
    )


@cache
def _kernel(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """Return loaders._postprocess_kernel, its kernel built; None on a CPU, and if Triton cannot."""
    if device.type != "cuda":
        return None

    def build(kernel: ModuleType) -> None:
        level = torch.zeros(1, 1, 1, 3, dtype=torch.uint8, device=device)
        table = torch.zeros(256, 3, dtype=dtype, device=device)
        image = torch.empty_like(level, dtype=dtype)
        kernel.finished(level, table, level.view(-1)[:1], image)

    return kernels(
        "saturate.loaders._postprocess_kernel", build, "batches take more launches"
    )


def _pieces(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cut a batch into pieces of about PIECE numbers: temporary memory then does not grow with it."""
    return pixels.split(max(PIECE // max(pixels[0].numel(), 1), 1))


def stand_ins(rows: Rows, decoded: Array) -> tuple[Array, Array]:
    """Return which rows of training could not be decoded, int64 [N], and what each shows instead, int64 [N].

    That is the next row of its micro-batch that was decoded, cyclically: zeros would be no sample, and batch
    norm would count them. A micro-batch of which nothing could be decoded is left out: it stays 0.
    """
    lost, others = [], []
    if rows.keys is not None and not decoded.all():
        for i in np.flatnonzero(rows.valid & ~decoded).tolist():
            twins = np.flatnonzero(decoded & (rows.keys == rows.keys[i]))
            if len(twins):
                lost.append(i)
                others.append(twins[np.searchsorted(twins, i) % len(twins)])
    return np.array(lost, np.int64), np.array(others, np.int64)


def _behind(rows: Rows, decoded: Array) -> tuple[Rows, tuple[int, ...]]:
    """Return the rows as a batch has them, where only what counts is valid, and the ids that have failed."""
    fillers = np.zeros_like(decoded) if rows.fillers is None else rows.fillers
    failed = tuple(rows.ids[rows.valid & ~decoded & ~fillers].tolist())
    shown = replace(rows, ids=np.where(fillers, -1, rows.ids), valid=decoded & ~fillers)
    if rows.keys is None:
        return shown, failed
    seen = decoded & fillers
    seen[stand_ins(rows, decoded)[0]] = True
    return replace(shown, fillers=seen), failed


def batch_of(
    images: torch.Tensor, rows: Rows, decoded: Array, feed: Feed[Columns]
) -> Batch:
    """Return a batch of these images, with all that the rows and the task say of them."""
    return _batch_with_targets(images, rows, decoded, feed, [])[0]


def _batch_with_targets(
    images: torch.Tensor,
    rows: Rows,
    decoded: Array,
    feed: Feed[Columns],
    more: Sequence[Array],
) -> tuple[Batch, list[torch.Tensor]]:
    """Make the targets; return the batch, and `more` numbers on the device.

    Targets are made here, and not by the caller, so that one copy brings all small arrays to the device.
    """
    rows, failed = _behind(rows, decoded)
    targets = feed.targets(rows)
    sizes, valid, *values = to_device(
        [rows.sizes, rows.valid, *targets.values(), *more], feed.device
    )
    batch = Batch(
        images=images,
        sizes=sizes,
        targets=dict(zip(targets, values, strict=False)),
        valid=valid,
        ids=rows.ids,
        failed=failed,
        rows=rows,
        host=targets,
    )
    return batch, values[len(targets) :]


def outside(places: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Return bool [B, 1, ..., H, W]: pixels of [B, 3, ..., H, W] outside of `places`, int64 [B, 4]."""
    x0, y0, x1, y1 = places[:, None].unbind(2)
    y, x = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    # axes: [B, H, 1] and [B, 1, W]
    inside = ((y >= y0) & (y < y1))[:, :, None] & ((x >= x0) & (x < x1))[:, None, :]
    return ~inside.reshape(len(places), *[1] * (images.ndim - 3), *inside.shape[1:])
