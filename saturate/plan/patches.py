"""The plan of pairs of images: which patch of each, and which of the eight turns. Knows no loader, no device.

A row's output is the small image. Its region and window are of the large one, in multiples of the scale: the
window is what the large patch shows, and what becomes `sizes` pixels once it is made small.

    large image, stored                       Batch.images    window made small: `sizes`
    +---------------------------+             targets[HIGH]   window as it is: scale * `sizes`
    |   region                  |
    |   +-------------------+   |
    |   |  window           |   |   The region is wider where small images are made of large ones, so that a
    |   |  +-----------+    |   |   patch that is made small is the patch of the image that is made small.
    |   |  |           |    |   |
    |   |  +-----------+    |   |
    |   +-------------------+   |
    +---------------------------+
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saturate.contracts import Array, BatchSpec, PairColumns, Rows
from saturate.plan import bundles, order
from saturate.plan.draws import Purpose, bits, key, uniforms
from saturate.plan.epoch import EpochPlan
from saturate.plan.geometry import TURNS

HIGH = "high"
"""The target that has the large images, float32 [B, 3, H, W] in [0, 1]."""
BLOCK = 128
"""Images whose patches lie together in an epoch, where there are several of each."""
REACH = 2
"""Small pixels to either side of a window that bicubic interpolation looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPolicy:
    """How patches are taken. `patch` is the side of the large ones, pixels; None = whole images."""

    scale: int
    patch: int | None = None
    turns: bool = False
    made: bool = True  # small images are made of the large ones; else they are stored beside them

    def frame(
        self, seed: int, epoch: int, ids: Array, heights: Array, widths: Array
    ) -> dict[str, Array]:
        """Return regions, windows, sizes and turns of samples `ids`, of large images heights x widths."""
        # x and y; what a whole small pixel does not cover is left out
        sides = np.stack([widths, heights], axis=1).astype(np.int64)
        limit = sides // self.scale * self.scale
        if self.patch is None:
            low = np.zeros_like(limit)
            high = limit
        else:
            places = (limit - self.patch) // self.scale + 1
            drawn = uniforms(seed, epoch, Purpose.WINDOW, ids, 2)
            low = np.floor(drawn * places).astype(np.int64) * self.scale
            high = low + self.patch
        margin = REACH * self.scale if self.made else 0
        begin = np.maximum(low - margin, 0)
        end = np.minimum(high + margin, limit)
        kinds = TURNS if self.turns else 0
        turns = uniforms(seed, epoch, Purpose.FLIP, ids, 1)[:, 0] * kinds
        inner = np.concatenate([low - begin, high - begin], axis=1)
        return {
            "regions": np.concatenate([begin, end], axis=1),
            "windows": inner.astype(np.float64),
            "sizes": ((high - low) // self.scale)[:, ::-1],
            "turns": turns.astype(np.uint8),
        }


@dataclass(frozen=True, slots=True)
class PatchPlan(EpochPlan):
    """contracts.Plan for pairs of images.

    A sample is one of `patches` patches of an image, and its size that of the large image; the patches of one
    image lie together.
    """

    columns: PairColumns
    policy: PatchPolicy

    def batch_spec(self) -> BatchSpec:
        patch, scale = self.policy.patch, self.policy.scale
        high, wide = (int(sides.max(initial=scale)) for sides in self.stored)
        if patch is not None:
            high = wide = patch
        patches = self.columns.patches
        block = min(BLOCK * patches, self.samples) if patches > 1 else 1
        return BatchSpec(
            rows=self.batch_size,
            canvas=(high // scale, wide // scale),
            varies=patch is None,
            filled=patch is not None or self.batch_size == 1,
            transposed=self.policy.turns,
            scale=scale,
            same_images=max(block // (self.batch_size * self.world_size), 1),
        )

    @property
    def batches_per_draw(self) -> int:
        # a canvas is a batch's
        one_shape = self.batches.filled and self.training
        return max(bundles.ROWS // self.batch_size, 1) if one_shape else 1

    @property
    def ordering(self) -> str:
        begin = f"seed {self.seed}" if self.shuffled else "sequential"
        if self.columns.patches == 1:
            return begin
        return f"{begin}, {self.columns.patches} patches an image in blocks of {BLOCK}"

    def ordered(self, epoch: int) -> Array:
        """Return int64 [samples]: blocks of images, within a block one patch of each, then the next of each.

        So the patches of an image lie in different batches, and near enough to decode the image once.
        """
        patches = self.columns.patches
        if patches == 1 or not (self.training and self.shuffled):
            return EpochPlan.ordered(self, epoch)
        samples = np.arange(self.samples, dtype=np.int64)
        images, rounds = np.divmod(samples, patches)
        shuffled = order.order(self.seed, epoch, -(-self.samples // patches))
        block = np.empty_like(shuffled)
        block[shuffled] = np.arange(len(block)) // BLOCK
        within = bits(key(self.seed, epoch, Purpose.BLOCKS), samples)
        # the last key counts first
        return np.lexsort((within, rounds, block[images]))

    def frame(self, epoch: int, ids: Array, views: Array) -> dict[str, Any]:
        framed: dict[str, Any] = self.policy.frame(
            self.seed, epoch, ids, *self._stored(ids)
        )
        if not self.batches.filled:
            framed["canvas"] = tuple(framed["sizes"].max(axis=0).tolist())
        return framed


def enlarged(rows: Rows, scale: int) -> Rows:
    """Return the rows whose outputs are the large images: those of `rows`, `scale` times as high and wide."""
    height, width = rows.padded
    return replace(
        rows, sizes=rows.sizes * scale, canvas=(height * scale, width * scale)
    )
