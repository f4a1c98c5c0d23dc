"""A loader as small as can be, and loaders with one fault each, which the suite must refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Array, Batch, Counts, Feed, Rows, StageSeconds
from saturate.loaders._postprocess import Finish
from tests.conformance import pictures

BILINEAR = Image.Resampling.BILINEAR
Tidy = Callable[[], object]


class Plain:
    """contracts.Loader without threads, processes or faults: Pillow and the plan."""

    in_flight = 0
    decoded_again = None
    notes: Sequence[str] = ()
    reader = ""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.counts = Counts()

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def stage_seconds(self, *, anew: bool = False) -> StageSeconds:
        return {}

    def awaited(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing runs."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        for rows in self.feed.plan.rows(epoch, first):
            yield self.batch(rows)

    def batch(self, rows: Rows) -> Batch:
        rows = self.followed(rows)
        pixels = np.zeros((len(rows), *rows.padded, 3), np.uint8)
        valid = rows.valid.copy()
        for i in np.flatnonzero(valid).tolist():
            levels = self.levels(rows, i)
            valid[i] = levels is not None
            pixels[i] = 0 if levels is None else levels
        return Finish(self.feed)(torch.from_numpy(pixels), rows, valid)

    def followed(self, rows: Rows) -> Rows:
        """The rows that are followed: a fault changes them."""
        return rows

    def levels(self, rows: Rows, i: int) -> Array | None:
        """uint8 [H, W, 3] of row i; None where Pillow has none."""
        pixels = pictures.pil(self.feed.source.read(int(rows.ids[i])))
        if pixels is None:
            return None
        x0, y0, x1, y1 = rows.regions[i].tolist()
        region = Image.fromarray(np.ascontiguousarray(pixels[y0:y1, x0:x1]))
        height, width = rows.sizes[i].tolist()
        window = tuple(rows.windows[i].tolist())
        return np.asarray(region.resize((width, height), BILINEAR, box=window))


class OnePixelOff(Plain):
    def followed(self, rows: Rows) -> Rows:
        off = np.array([1, 0, 1, 0]) * (rows.regions[:, :1] > 0)
        return replace(rows, regions=rows.regions - off)


class NoTurns(Plain):
    def followed(self, rows: Rows) -> Rows:
        return replace(rows, turns=0 * rows.turns)


class NeighboursLabel(Plain):
    def batch(self, rows: Rows) -> Batch:
        made = super().batch(rows)
        made.targets["labels"] = made.targets["labels"].roll(1)
        return made


class NeighboursPixels(Plain):
    def batch(self, rows: Rows) -> Batch:
        made = super().batch(rows)
        made.images = made.images.roll(1, 0)
        return made


class WrongPlace(Plain):
    """Goes on at the beginning of a batch, wherever the run was stopped."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        size = self.feed.plan.batches.rows
        yield from super().batches(epoch, first // size * size)


class NeighbourInstead(Plain):
    """Counts the sample before it in place of what cannot be decoded, as some libraries do."""

    def batch(self, rows: Rows) -> Batch:
        made = super().batch(rows)
        for i in np.flatnonzero(np.isin(rows.ids, made.failed)).tolist():
            made.valid[i] = True
            made.images[i] = made.images[i - 1]
        return made


class BlackFillers(Plain):
    """Leaves rows whose loss is masked as they were: zeros, which batch norm counts."""

    def batch(self, rows: Rows) -> Batch:
        made = super().batch(rows)
        made.images[~made.valid] = 0
        return made


class FillersCount(Plain):
    def followed(self, rows: Rows) -> Rows:
        return replace(rows, fillers=None)


class Brighter(Plain):
    def levels(self, rows: Rows, i: int) -> Array | None:
        found = super().levels(rows, i)
        return None if found is None else np.minimum(found, 254) + np.uint8(1)


def thread() -> Tidy:
    end = threading.Event()
    threading.Thread(
        target=end.wait, args=(60,), name="saturate-plant", daemon=True
    ).start()
    return end.set


def process() -> Tidy:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def tidy() -> None:
        started.kill()
        started.wait()

    return tidy


def open_file() -> Tidy:
    return partial(os.close, os.open(os.devnull, os.O_RDONLY))


def folder() -> Tidy:
    return partial(os.rmdir, tempfile.mkdtemp(prefix="saturate-"))


LEFT: tuple[Callable[[], Tidy], ...] = (thread, process, open_file, folder)
"""Each leaves something behind, and returns what takes it away."""


class Leaks:
    """A real loader around which each epoch keeps 1 MiB, and a file where it is asked for."""

    def __init__(self, feed: Feed, inner: Any, *, files: bool = False) -> None:
        self.inner, self.leaks_files = inner(feed), files
        self.kept: list[bytes] = []
        self.files: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __enter__(self) -> Leaks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.inner.close()
        for file in self.files:
            os.close(file)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self.kept.append(os.urandom(1 << 20))
        if self.leaks_files:
            self.files.append(os.open(os.devnull, os.O_RDONLY))
        yield from self.inner.batches(epoch, first)
