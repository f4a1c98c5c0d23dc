"""`paired`: worker processes cut a patch of a large image and its small one; both are turned behind them.

    rows -> [worker: read, decode, cut, make small or read the small one] -> a small and a large image a row
         -> Stager.finish of the small ones: Batch.images      one plan, one pool of workers, one stream:
         -> Stager.finish of the large ones: its target HIGH   a sample is valid where both are

Where an epoch has several patches of an image, the micro-batches that share images are one task of the
workers: each image is read and decoded once for all of its patches in them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Array, Feed, Pixels, Rows
from saturate.dataset.pairs.columns import Pairs, PairSource
from saturate.loaders import Undecodable
from saturate.loaders._read_retry import Reads, mark, patiently, read
from saturate.loaders._stages import lap
from saturate.loaders._staging import Staged, Stager, Staging, without
from saturate.loaders._workers import PART, Work, Workers
from saturate.loaders.images.decoders import (
    READERS,
    Decode,
    Region,
    choose,
    exactly,
    plain_jpeg,
)
from saturate.loaders.pairs import raw
from saturate.plan.bundles import joined, some
from saturate.plan.geometry import largest_upright, upright
from saturate.plan.lazy import Lazy
from saturate.plan.patches import HIGH, enlarged

LEVELS = Pixels(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), dtype="float32")
"""How the large images come: in [0, 1], exact enough to find every level again."""
PART_PIXELS = PART * 64 * 64
"""Pixels of the large images of a part: larger ones come in smaller parts, so that all workers fill a batch
together."""
PART_ROWS = 128
"""Rows of a part, at most: a worker needs 10 ms for so many small patches, and each part costs the loader's
thread as much."""
IMAGES = 4
"""Images of a part, where a task has several patches of each."""


class PairedLoader(Staging[Pairs]):
    """contracts.Loader of a plan.patches.PatchPlan.

    The feed's columns and source are those of dataset.pairs.columns.
    """

    def __init__(self, feed: Feed[Pairs]) -> None:
        super().__init__(feed)
        plan = feed.plan
        scale = self._scale = plan.batches.scale
        # targets come with the batch of the small images, once for both
        large_feed = replace(feed, targets=lambda rows: {}, pixels=LEVELS)
        self._larger = _Beside(large_feed, self._stager, scale=scale)
        self.reader = choose(feed.reader)
        self._sharing = plan.batches.same_images
        area = math.prod(largest_upright(plan)[1:])
        part_rows = max(min(PART_ROWS, PART_PIXELS // (area * scale**2)), 1)
        if feed.columns.patches > 1:
            part_rows = IMAGES * feed.columns.patches
        self._workers = Workers(
            partial(Cutting, feed, scale, self.reader),
            workers=feed.workers,
            batch_size=plan.batches.rows * self._sharing,
            part_bytes=lambda rows: 3 * rows * area * (1 + scale**2),
            part_rows=part_rows,
            row_bytes=lambda rows: 3 * math.prod(rows.padded) * (1 + scale**2),
            name_of=feed.source.name,
            stages=self.stages,
        )
        self.in_flight = self._workers.in_flight * self._sharing + 2

    def _let_go(self) -> None:
        self._larger.close()

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        tasks = _Tasks(rows, self._sharing, self._feed)
        filled = self.stages.waited(self._workers.run(tasks))
        for index, (slot, task, parts) in enumerate(filled):
            failed = [sample for part in parts for sample in part]
            lows, highs = small_and_large(slot, upright(task), self._scale)
            for own, places in tasks.batches.pop(index):
                pair = torch.from_numpy(lows[places]), torch.from_numpy(highs[places])
                yield self._pair(*pair, own, without(own, failed))

    def _pair(
        self, low: torch.Tensor, high: torch.Tensor, rows: Rows, valid: Array
    ) -> Staged:
        """Return the batch of these rows, of their small and of their large images."""
        staged = self._stager.stage(low, rows, valid)
        larger = self._larger.stage(high, enlarged(rows, self._scale), valid)
        batch = staged.batch
        batch.targets[HIGH] = larger.batch.images
        if batch.transfer is not None and larger.batch.transfer is not None:
            # from the first copy's begin to the second one's end; between them the small images are finished
            batch.transfer = (batch.transfer[0], larger.batch.transfer[1])
        # both were launched on one stream, the large images last
        return Staged(batch, larger.ready, staged.done)


class _Beside(Stager):
    """A Stager that takes turns with another one: on its stream, its slots guarded by the same events."""

    def __init__(self, feed: Feed[Pairs], other: Stager, *, scale: int) -> None:
        super().__init__(feed, scale=scale)
        self.stream = other.stream
        for own, theirs in zip(self._slots, other._slots, strict=True):
            own.done = theirs.done


def small_and_large(slot: Array, rows: Rows, scale: int) -> tuple[Array, Array]:
    """Return views of a slot, uint8 [B, h, w, 3] and [B, H, W, 3]: each row has its small, then its large
    image, on the canvas of upright rows.
    """
    height, width = rows.padded
    small = 3 * height * width
    each = small * (1 + scale**2)
    out = slot[: len(rows) * each].reshape(len(rows), each)
    lows = out[:, :small].reshape(len(rows), height, width, 3)
    return lows, out[:, small:].reshape(len(rows), height * scale, width * scale, 3)


class _Tasks(Lazy):
    """What workers are given: the rows of `sharing` micro-batches as one, sorted by their image.

    `batches`: number of a task that was drawn -> each of its micro-batches, with the places of its rows in
    the task.
    """

    def __init__(self, rows: Sequence[Rows], sharing: int, feed: Feed[Pairs]) -> None:
        super().__init__(-(-len(rows) // sharing), self._task)
        self._rows = rows
        self._sharing = sharing
        self._feed = feed
        self.batches: dict[int, list[tuple[Rows, slice | Array]]] = {}

    def _task(self, index: int) -> Rows:
        own = self._rows[index * self._sharing : (index + 1) * self._sharing]
        if self._feed.columns.patches == 1:
            self.batches[index] = [(own[0], slice(None))]
            return own[0]
        together = joined(own)
        images = self._feed.columns.of_high[together.ids]
        order = np.argsort(images, kind="stable")
        ends = np.cumsum([len(rows) for rows in own])
        places = np.split(np.argsort(order, kind="stable"), ends[:-1])
        self.batches[index] = list(zip(own, places, strict=True))
        return some(together, order)


class Cutting(Work):
    """Fills a part of a slot in a worker: of each row the small image, then the large one, uint8.

    Returns the ids that failed. What no image covers stays as it was: _staging.py blackens it.
    """

    def __init__(self, feed: Feed[Pairs], scale: int, reader: str) -> None:
        assert isinstance(feed.source, PairSource)
        assert (feed.source.low is None) == feed.columns.made
        self._source = feed.source
        # of the large images, and of the small ones where they are not made
        self._sides = [(feed.source, feed.columns.high)]
        if feed.source.low is not None and feed.columns.low is not None:
            self._sides.append((feed.source.low, feed.columns.low))
        self._reads = Reads(feed.source)
        self._scale = scale
        self._decode: Decode = READERS[reader]()
        self._pil: Decode = READERS["pil"]()

    def ask(self, samples: Array) -> None:
        """Begin to read the large images, each by the first of the samples that show it, as __call__ does."""
        images = self._source.images[samples]
        first = np.flatnonzero(np.diff(images, prepend=-1))
        asked = [at for at in first.tolist() if not self._by_region(0, int(images[at]))]
        self._reads.ask(samples[asked])

    def __call__(self, rows: Rows, slot: Array) -> tuple[int, ...]:
        lows, highs = small_and_large(slot, rows, self._scale)
        failed: list[int] = []
        # asked once for all rows: to ask for each takes as long as to decode a small patch
        plain = [
            plain_jpeg(columns, source.images[rows.ids])
            for source, columns in self._sides
        ]
        valid = np.flatnonzero(rows.valid)
        images = self._source.images[rows.ids[valid]]
        # rows of one image lie together: it is decoded once for all of them
        for which in np.split(valid, np.flatnonzero(np.diff(images)) + 1):
            try:
                if len(which):
                    self._cut(rows, which, plain, lows, highs)
            except Undecodable:
                failed += rows.ids[which].tolist()
        return tuple(failed)

    def _cut(
        self, rows: Rows, which: Array, plain: list[Array], lows: Array, highs: Array
    ) -> None:
        """Fill the rows `which`, of one image. Raises Undecodable where it or its small one cannot be had.

        `plain`: bool [B] of each side, whether its file is a plain JPEG.
        """
        scale = self._scale
        first = which[0]
        sample = int(rows.ids[first])
        regions = rows.regions[which]
        stored = self._decoded(0, sample, regions.tolist(), plain[0][first])
        smaller: list[Array] = []
        if len(self._sides) > 1:
            small = (regions // scale).tolist()
            smaller = self._decoded(1, sample, small, plain[1][first])
        windows = rows.windows[which].astype(np.int64).tolist()
        sizes = rows.sizes[which].tolist()
        for index, i in enumerate(which.tolist()):
            x0, y0, x1, y1 = windows[index]
            height, width = sizes[index]
            highs[i, : height * scale, : width * scale] = stored[index][y0:y1, x0:x1]
            if smaller:
                low = smaller[index][
                    y0 // scale : y1 // scale, x0 // scale : x1 // scale
                ]
            else:
                low = made_small(stored[index], (x0, y0, x1, y1), (width, height))
            lows[i, :height, :width] = low
        lap("resize")

    def _decoded(
        self, side: int, sample: int, regions: list[Region], plain: bool
    ) -> list[Array]:
        """Return the pixels of each region of one image, the large or the small one. `plain`: it is a plain JPEG."""
        source, _ = self._sides[side]
        image = int(source.images[sample])
        if self._by_region(side, image):
            read_all = partial(raw.read_regions, source.source, image, regions)
            pixels = patiently(source, sample, read_all)
            if pixels is not None:
                lap("read")
                return pixels
        data = read(source, sample) if side else self._reads.read(sample)
        lap("read")
        mark(sample)
        lefts, tops, rights, bottoms = zip(*regions, strict=True)
        left, top = min(lefts), min(tops)
        around = left, top, max(rights), max(bottoms)
        try:
            decoded = exactly(self._decode if plain else self._pil, data, around)
        except Exception:  # decoders raise what they like, and PIL has the last word
            decoded = exactly(self._pil, data, around)
        finally:
            lap("decode")
        return [
            decoded[y0 - top : y1 - top, x0 - left : x1 - left]
            for x0, y0, x1, y1 in regions
        ]

    def _by_region(self, side: int, image: int) -> bool:
        """Whether of an image nothing but its regions is read."""
        source, columns = self._sides[side]
        # behind a URL a whole image is one request, and the cache has it
        return not source.remote and raw.readable(columns, image)


def made_small(pixels: Array, window: Region, size: tuple[int, int]) -> Array:
    """Return uint8 [h, w, 3], a window of pixels at `size` (width, height), as Pillow makes it.

    Bicubic with a = -0.5, widened by the scale against aliases; pixels around the window are looked at where
    there are any. MATLAB's imresize has that kernel, but mirrors the image at its edges, and goes down before
    it goes across.
    """
    height, width = pixels.shape[:2]
    # fromarray takes longer for a small patch, since it looks at the type first
    image = Image.frombytes("RGB", (width, height), np.ascontiguousarray(pixels))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC, box=window))


def open(feed: Feed[Pairs]) -> PairedLoader:
    return PairedLoader(feed)
