"""`torchvision`: DataLoader workers decode a region, resize and place it; the device does the rest."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from saturate.contracts import Array, Feed, ImageColumns, Rows, UserError
from saturate.loaders import Undecodable
from saturate.loaders._read_retry import NONE, Reads, mark
from saturate.loaders._stages import lap
from saturate.loaders._staging import Staged, Staging, without
from saturate.loaders._workers import PART, Work, Workers
from saturate.loaders.images.decoders import (
    READERS,
    Decode,
    Region,
    choose,
    decode_many,
    exactly,
    plain_jpeg,
    resize_pil,
    resize_window,
)
from saturate.plan.bundles import rows_of_part
from saturate.plan.geometry import largest_upright, turned_pixels, upright

PART_PIXELS = PART * 224 * 224
"""Pixels of a part: larger images come in smaller parts, so that all workers fill one batch together."""


class TorchvisionLoader(Staging[ImageColumns]):
    """contracts.Loader.

    rows -> [worker: read, decode, resize] -> uint8 in shared memory -> pinned -> device.
    """

    def __init__(self, feed: Feed[ImageColumns]) -> None:
        super().__init__(feed)
        self.reader = choose(feed.reader)
        largest = largest_upright(feed.plan)
        self._workers = Workers(
            lambda: Decoding(feed, self.reader),
            workers=feed.workers,
            batch_size=feed.plan.batches.rows,
            part_bytes=lambda rows: rows * math.prod(largest),
            part_rows=min(
                max(PART_PIXELS // math.prod(largest[1:]), 1),
                rows_of_part(feed.plan, feed.workers, PART),
            ),
            row_bytes=lambda rows: 3 * math.prod(rows.padded),
            pinned=feed.device.type == "cuda" and feed.pinned,
            name_of=feed.source.name,
            stages=self.stages,
        )
        self.in_flight = self._workers.in_flight + 2

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        self._stager.wait_for_copies()  # of the sequence before: workers write these slots again
        for slot, its_rows, parts in self.stages.waited(self._workers.run(rows)):
            shape = (len(its_rows), *upright(its_rows).padded, 3)
            pixels = torch.from_numpy(slot[: np.prod(shape)].reshape(shape))
            failed = [sample for part in parts for sample in part.failed]
            staged = self._stager.stage(
                pixels, its_rows, without(its_rows, failed), pinned=self._workers.pinned
            )
            if self._feed.transforms:
                in_all = sum(part.transforms_s for part in parts)
                staged.batch.transforms_ms = 1e3 * in_all / max(self._feed.workers, 1)
            yield staged


class Decoded(NamedTuple):
    """What a worker says of a part."""

    failed: tuple[int, ...]  # ids
    transforms_s: float  # seconds in the functions of --transforms


class Decoding(Work):
    """Decodes rows in a worker into a part of a slot.

    The part is uint8 [rows, H, W, 3] of the batch's canvas. What no image covers stays as it was: _staging.py
    blackens it.
    """

    def __init__(self, feed: Feed[ImageColumns], reader: str) -> None:
        self._reads = Reads(feed.source)
        self._columns = feed.columns
        self._decode: Decode = READERS[reader]()
        self._resize = partial(
            resize_pil if reader == "pil" else resize_window,
            interpolation=feed.pixels.interpolation,
        )
        self._pil: Decode = READERS["pil"]()
        self._transforms = feed.transforms
        self._transforms_s = 0.0  # of the part
        self._name_of = feed.source.name

    def ask(self, samples: Array) -> None:
        self._reads.ask(samples)

    def __call__(self, rows: Rows, slot: Array) -> Decoded:
        self._transforms_s = 0.0
        shape = (len(rows), *rows.padded, 3)
        out = slot[: np.prod(shape)].reshape(shape)
        failed = []
        valid = np.flatnonzero(rows.valid).tolist()
        ids = rows.ids.tolist()
        files = {i: self._reads.read(ids[i]) for i in valid}
        lap("read")
        regions: dict[int, Region] = {i: tuple(rows.regions[i].tolist()) for i in valid}
        plain = np.compress(plain_jpeg(self._columns, rows.ids[valid]), valid).tolist()
        decoded = decode_many(
            self._decode,
            [files[i] for i in plain],
            [regions[i] for i in plain],
            begun=lambda index: mark(ids[plain[index]] if index >= 0 else NONE),
        )
        pixels = dict(zip(plain, decoded, strict=True))
        lap("decode")
        places = rows.placed.tolist()
        for i in valid:
            left, top, right, bottom = places[i]
            x0, y0, x1, y1 = regions[i]
            mark(ids[i])
            try:
                region = pixels.get(i)
                if region is None or region.shape[:2] != (y1 - y0, x1 - x0):
                    # PIL has the last word on what can be decoded
                    region = exactly(self._pil, files[i], regions[i])
                    lap("decode")
                region = self._changed("region", region, rows, i)
                place = out[i, top:bottom, left:right]
                self._resize(place, region, rows.windows[i])
                lap("resize")
                if "output" in self._transforms:
                    place[:] = self._changed("output", place, rows, i)
            except Undecodable:
                failed.append(ids[i])
                lap("decode")
        return Decoded(tuple(failed), self._transforms_s)

    def _changed(self, what: str, pixels: Array, rows: Rows, place: int) -> Array:
        """Return what --transforms makes of a row's pixels, which it gets as they are shown; those themselves where it
        is of others.

        Raises UserError.
        """
        transform = self._transforms.get(what)
        if transform is None:
            return pixels
        if rows.seeds is None:
            raise ValueError(
                "--transforms draws from Rows.seeds, which this plan does not give"
            )
        began = time.perf_counter()
        turns = self._columns.exif
        turn = 0 if turns is None else int(turns[rows.ids[place]])
        made = np.empty_like(pixels)
        try:
            shown = turned_pixels(pixels, turn).copy()
            turned_pixels(made, turn)[:] = transform(shown, int(rows.seeds[place]))
            return made
        except UserError as error:
            raise UserError(
                f"{error}, of {self._name_of(int(rows.ids[place]))}"
            ) from error.__cause__
        finally:
            self._transforms_s += time.perf_counter() - began
            lap("transforms")


def open(feed: Feed[ImageColumns]) -> TorchvisionLoader:
    return TorchvisionLoader(feed)
