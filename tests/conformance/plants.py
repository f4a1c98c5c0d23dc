"""A loader as small as can be, and loaders with one fault each, which the suite must refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from contracts import Array, Batch, Counts, Feed, Rows
from tests.conformance import moving, pictures

Tidy = Callable[[], object]


class Plain:
    """contracts.Loader without threads, processes or faults: Pillow (videos: PyAV, all frames of a file) and
    the plan.
    """

    in_flight = 0
    notes: Sequence[str] = ()
    reader = ""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.counts = Counts()

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def awaited(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing runs."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        for rows in self.feed.plan.rows(epoch, first):
            yield self.batch(rows)

    def batch(self, rows: Rows) -> Batch:
        clip = () if rows.frames is None else rows.frames.shape[1:]
        failed, images = (
            [],
            np.zeros((len(rows), *clip, *map(int, rows.sizes[0]), 3), np.float32),
        )
        for i in np.flatnonzero(rows.valid):
            levels = (
                self.levels(rows, int(i))
                if rows.frames is None
                else np.stack(self.clip(rows, int(i)))
            )
            if levels is None:
                failed.append(int(rows.ids[i]))
            else:
                images[i] = (levels / 255 - np.array(self.feed.pixels.mean)) / np.array(
                    self.feed.pixels.std
                )
        valid = rows.valid & ~np.isin(rows.ids, failed)
        labels = np.where(valid, self.feed.targets(rows)["labels"], -1)
        device, dtype = self.feed.device, getattr(torch, self.feed.pixels.dtype)
        return Batch(
            images=torch.from_numpy(images).to(device, dtype).movedim(-1, 1),
            sizes=torch.from_numpy(rows.sizes).to(device),
            targets={"labels": torch.from_numpy(labels).to(device)},
            valid=torch.from_numpy(valid).to(device),
            ids=rows.ids,
            failed=tuple(failed),
        )

    def levels(self, rows: Rows, i: int) -> Array | None:
        """uint8 [H, W, 3] of row i, None where Pillow has none."""
        pixels = pictures.pil(self.feed.source.read(int(rows.ids[i])))
        return None if pixels is None else self.framed(pixels, rows, i)

    def clip(self, rows: Rows, i: int) -> list[Array]:
        """uint8 [H, W, 3] of each frame of row i."""
        sample = int(rows.ids[i])
        whole = moving.decoded(
            self.feed.source.read(sample), int(self.feed.columns.count[sample])
        )
        assert whole is not None
        return [self.framed(whole[frame], rows, i) for frame in self.frames(rows, i)]

    def framed(self, pixels: Array, rows: Rows, i: int) -> Array:
        """uint8 [H, W, 3] of row i from all pixels of an image or a frame."""
        x0, y0, x1, y1 = self.region(rows, i)
        height, width = (int(side) for side in rows.sizes[i])
        region = Image.fromarray(np.ascontiguousarray(pixels[y0:y1, x0:x1]))
        window = (
            tuple(float(edge) for edge in rows.windows[i])
            if (x0, y0, x1, y1) == tuple(rows.regions[i])
            else None
        )
        out = np.asarray(
            region.resize((width, height), Image.Resampling.BILINEAR, box=window)  # type: ignore[arg-type]
        )
        return out[:, ::-1] if self.flipped(rows, i) else out

    def region(self, rows: Rows, i: int) -> tuple[int, int, int, int]:
        x0, y0, x1, y1 = (int(edge) for edge in rows.regions[i])
        return x0, y0, x1, y1

    def flipped(self, rows: Rows, i: int) -> bool:
        return bool(rows.turns[i])

    def frames(self, rows: Rows, i: int) -> list[int]:
        """Places of row i's frames in their file."""
        assert rows.frames is not None
        found: list[int] = rows.frames[i].tolist()
        return found


class OnePixelOff(Plain):
    def region(self, rows: Rows, i: int) -> tuple[int, int, int, int]:
        x0, y0, x1, y1 = super().region(rows, i)
        return x0 + 1, y0, x1 + 1, y1


class NoTurns(Plain):
    def flipped(self, rows: Rows, i: int) -> bool:
        return False


class OneFrameOff(Plain):
    """Shows the frame before or behind the one that it was asked for."""

    def frames(self, rows: Rows, i: int) -> list[int]:
        return [frame - 1 if frame else frame + 1 for frame in super().frames(rows, i)]


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
        size = self.feed.plan.batch_size
        yield from super().batches(epoch, first // size * size)


class NeighbourInstead(Plain):
    """Replaces what cannot be decoded by the sample before it, as some libraries do."""

    def batch(self, rows: Rows) -> Batch:
        made = super().batch(rows)
        for i, sample in enumerate(rows.ids.tolist()):
            if sample in made.failed:
                made.valid[i] = True
                for column in (made.images, made.targets["labels"]):
                    column[i] = column[i - 1]
        return made


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
    """A real loader around which each epoch keeps `mib` MiB, and a file where it is asked for."""

    def __init__(
        self, feed: Feed, inner: Any, mib: int = 1, *, files: bool = False
    ) -> None:
        self.inner, self.mib, self.leaks_files = inner(feed), mib, files
        self.kept: list[bytes] = []
        self.files: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __enter__(self) -> Leaks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def awaited(self) -> str:
        return ""

    def close(self) -> None:
        self.inner.close()
        for file in self.files:
            os.close(file)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self.kept.append(os.urandom(self.mib << 20))
        if self.leaks_files:
            self.files.append(os.open(os.devnull, os.O_RDONLY))
        yield from self.inner.batches(epoch, first)
