"""`torchvision`: DataLoader workers decode a region, resize and flip it; pixels travel as uint8 and are normalised on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from contracts import Batch, Feed, Rows
from loaders._readers import READERS, Decode, Undecodable, choose, exactly, resize_pil, resize_window
from loaders._staging import Ahead, Staged, Stager, hand_over
from loaders._workers import Workers

JPEG, PLAIN_COMPONENTS = 0, (1, 3)


class TorchvisionLoader:
    """contracts.Loader. rows -> [worker: read, decode, resize, flip] -> uint8 in shared memory -> pinned -> device."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.reader = choose(feed.reader)
        plan = feed.plan
        self._workers = Workers(
            lambda: Decoding(feed, self.reader),
            workers=feed.workers,
            batch_size=plan.batch_size,
            part_bytes=lambda rows: 3 * rows * plan.image_size**2,
            pinned=feed.device.type == "cuda" and feed.pinned,
        )
        self._stager = Stager(feed)
        self._ahead: Ahead | None = None
        self.in_flight = self._workers.in_flight + 2

    def __enter__(self) -> TorchvisionLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self._stop()
        rows = self._feed.plan.rows(epoch, first)
        self._ahead = Ahead(lambda: self._staged(rows), depth=2, device=self._feed.device)
        return hand_over(iter(self._ahead))

    def close(self) -> None:
        self._workers.stop()
        self._stop()
        self._workers.close()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        self._stager.wait_for_copies()  # of the sequence before: workers write these slots again
        for slot, its_rows, parts in self._workers.run(rows):
            height, width = (int(side) for side in its_rows.sizes.max(axis=0))
            shape = (len(its_rows), height, width, 3)
            pixels = torch.from_numpy(slot[: np.prod(shape)].reshape(shape))
            failed = tuple(sample for part in parts for sample in part)
            yield self._stager.stage(pixels, its_rows, failed, pinned=self._workers.pinned)

    def _stop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


class Decoding:
    """In a worker: rows -> part of a slot as uint8 [rows, H, W, 3]; returns the failed ids."""

    def __init__(self, feed: Feed, reader: str) -> None:
        self._source, self._columns = feed.source, feed.columns
        self._decode: Decode = READERS[reader]()
        self._resize = resize_pil if reader == "pil" else resize_window
        self._pil: Decode = READERS["pil"]()

    def __call__(self, rows: Rows, slot: np.ndarray[Any, Any]) -> tuple[int, ...]:
        height, width = (int(side) for side in rows.sizes.max(axis=0))
        shape = (len(rows), height, width, 3)
        out, failed = slot[: np.prod(shape)].reshape(shape), []
        for i in range(len(rows)):
            if not rows.valid[i]:
                out[i] = 0
                continue
            sample, (h, w) = int(rows.ids[i]), rows.sizes[i]
            try:
                data = self._source.read(sample)
                region = self.region(sample, data, rows.regions[i])
                self._resize(out[i, :h, :w], region, rows.windows[i], bool(rows.flips[i]))
            except (Undecodable, OSError):
                out[i] = 0
                failed.append(sample)
        return tuple(failed)

    def region(self, sample: int, data: bytes, region: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """RGB uint8 of the region. PIL has the last word on what can be decoded. Raises Undecodable."""
        box = (int(region[0]), int(region[1]), int(region[2]), int(region[3]))
        columns = self._columns
        decode: Decode = self._decode
        odd = columns.format[sample] != JPEG or columns.components[sample] not in PLAIN_COMPONENTS
        if odd or not columns.whole[sample]:
            decode = self._pil
        try:
            return exactly(decode, data, box)
        except Exception:  # decoders raise what they like on damaged files
            if decode is self._pil:
                raise
        return exactly(self._pil, data, box)


def open(feed: Feed) -> TorchvisionLoader:
    return TorchvisionLoader(feed)
