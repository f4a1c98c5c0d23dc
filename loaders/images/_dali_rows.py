"""Rows as DALI takes them: which files it decodes, what stands for the others, and arrays of numbers.

    rows -> Prepared: paths or bytes, regions, windows, sizes and places as arrays

Must not know DALI, nor the order of an epoch.
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from saturate.contracts import Array, Feed, FileSource, ImageColumns, Rows, UserError
from saturate.dataset.images.columns import stored_size
from saturate.loaders import Undecodable
from saturate.loaders._read_retry import read
from saturate.loaders.images.decoders import PNG, READERS, exactly, plain_jpeg
from saturate.plan.bundles import some
from saturate.plan.geometry import upright

PLACEHOLDER_SIDE = 16


@dataclass(slots=True)
class Prepared:
    """One batch as DALI takes it. Axes: B samples; (y, x) as DALI orders them."""

    rows: Rows  # the plan's; the numbers are those of its upright rows
    data: (
        Array | list[Array]
    )  # uint8 [B, L] paths padded with NUL, or a list of B arrays of bytes
    starts: Array  # int32 [B, 2]
    shapes: Array  # int32 [B, 2]
    windows: Array  # float32 [B, 4], y0 x0 y1 x1 inside the region
    sizes: Array  # float32 [B, 2], of what the window is resized to
    # what only a graph that places images takes
    places: dict[str, Array] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    own_bytes: Array | None = None  # bool [B], rows whose bytes are the sample's file
    files: list[Path] = field(default_factory=list)  # substitutes

    def only(self, row: int) -> Prepared:
        """Return a batch of this row alone; the substitutes stay this one's."""
        part = slice(row, row + 1)
        return Prepared(
            rows=some(self.rows, part),
            data=self.data[part],
            starts=self.starts[part],
            shapes=self.shapes[part],
            windows=self.windows[part],
            sizes=self.sizes[part],
            places={name: values[part] for name, values in self.places.items()},
        )

    def forget(self) -> None:
        """Remove the substitutes."""
        for file in self.files:
            file.unlink(missing_ok=True)


@dataclass(slots=True)
class Known:
    """What attempts to decode them have shown of files, by id: the header did not tell."""

    bad: set[int] = field(default_factory=set)  # nothing decodes them
    odd: set[int] = field(default_factory=set)  # PIL does, and DALI does not


def plain(columns: ImageColumns, ids: Array) -> Array:
    """Return bool [B]: the files that every decoder turns into the same pixels.

    The others are decoded by PIL and handed over as PNG.
    """
    return plain_jpeg(columns, ids) | (
        (columns.format[ids] == PNG) & (columns.depth[ids] == 8) & columns.whole[ids]
    )


def placeholder() -> bytes:
    """Return the bytes of a small image that stands for a row without one."""
    return encoded(np.zeros((PLACEHOLDER_SIDE, PLACEHOLDER_SIDE, 3), np.uint8))


def encoded(pixels: Array) -> bytes:
    """Return RGB uint8 as lossless bytes that DALI decodes."""
    buffer = io.BytesIO()
    # it is decoded again at once: to compress it would only take time
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def whole_image(data: bytes, columns: ImageColumns, sample: int) -> Array:
    """Return RGB uint8 [H, W, 3] of a whole file, by PIL. Raises Undecodable, also for an unexpected size."""
    height, width = stored_size(columns, sample)
    return exactly(READERS["pil"](), data, (0, 0, width, height))


def blank_rows(batch_size: int, size: tuple[int, ...]) -> Rows:
    """Return rows without a sample, whose outputs are height x width `size`."""
    zeros = np.zeros((batch_size, 4))
    return Rows(
        ids=np.full(batch_size, -1),
        regions=zeros.astype(np.int64),
        windows=zeros,
        sizes=np.tile(np.array(size, np.int64), (batch_size, 1)),
        turns=np.zeros(batch_size, np.uint8),
        valid=np.zeros(batch_size, bool),
    )


def largest_rows(feed: Feed[ImageColumns], threads: int) -> Rows | None:
    """Return a batch that takes as much memory as any is likely to: the largest images that DALI decodes, one
    for each of its `threads`, which keep buffers of that size, beside others of all sizes. All are whole.

    None where no size is known yet. A whole batch of the largest never comes in an epoch, and would take
    gigabytes that no other needs.
    """
    columns = feed.columns
    pixels = np.asarray(columns.height).astype(np.int64) * np.asarray(columns.width)
    size = feed.plan.batches.rows

    def decoded(ids: Array) -> Array:
        """Return those of known size that PIL need not decode."""
        return ids[(pixels[ids] > 0) & plain(columns, ids)]

    descending = np.argsort(pixels, kind="stable")[::-1]
    largest = decoded(descending[: 4 * threads])[: min(threads, size)]
    if not len(largest):
        return None
    others = np.linspace(0, len(pixels) - 1, size - len(largest)).astype(np.int64)
    ids = np.resize(np.concatenate([largest, decoded(others)]), size)
    whole = np.zeros((size, 4), np.int64)
    whole[:, [3, 2]] = [stored_size(columns, sample) for sample in ids.tolist()]
    return replace(
        blank_rows(size, feed.plan.batches.sample_shape[-2:]),
        ids=ids,
        regions=whole,
        windows=whole.astype(np.float64),
        valid=np.ones(size, bool),
    )


def numbers(rows: Rows, absent: Array, *, placed: bool) -> dict[str, Any]:
    """Return the arrays of a Prepared; an absent row takes the placeholder whole.

    `placed`: for a graph that places images: where the canvas begins in each image, and how large it is.
    """
    rows = upright(rows)
    regions = rows.regions.copy()
    windows = rows.windows.copy()
    regions[absent] = windows[absent] = (0, 0, PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)
    places = rows.placed
    corners = -places[:, [1, 0]]
    canvases = np.tile(rows.padded, (len(rows), 1))
    extents = regions[:, [3, 2]] - regions[:, [1, 0]]
    # DALI's external_source takes contiguous arrays alone
    as_dali = np.ascontiguousarray
    both = {
        "corners": as_dali(corners, np.int32),
        "canvases": as_dali(canvases, np.int32),
    }
    return {
        "starts": as_dali(regions[:, [1, 0]], np.int32),
        "shapes": as_dali(extents, np.int32),
        "windows": as_dali(windows[:, [1, 0, 3, 2]], np.float32),
        "sizes": as_dali(places[:, [3, 2]] - places[:, [1, 0]], np.float32),
        "places": both if placed else {},
    }


class PathPreparer:
    """Rows -> Prepared with paths, for the loaders in which DALI reads the files itself."""

    def __init__(self, feed: Feed[ImageColumns]) -> None:
        self._feed = feed
        # open_loader has refused any other
        self._source = cast(FileSource, feed.source)
        self._columns = feed.columns
        self._folder = tempfile.TemporaryDirectory(prefix="saturate-")
        self._placeholder = Path(self._folder.name, "placeholder")
        self._placeholder.write_bytes(placeholder())
        self._made = 0

    def __call__(self, rows: Rows, known: Known) -> Prepared:
        own = rows.valid.copy()
        # valid ones alone: padding has id -1, which would read the last sample's columns
        own[rows.valid] = plain(self._columns, rows.ids[rows.valid])
        own &= ~np.isin(rows.ids, list(known.bad | known.odd))
        files = []
        failed = []
        absent = ~rows.valid
        # what is not read by its own path
        instead = dict.fromkeys(np.flatnonzero(~own).tolist(), bytes(self._placeholder))
        for i in np.flatnonzero(rows.valid & ~own).tolist():
            sample = int(rows.ids[i])
            try:
                if sample in known.bad:
                    raise Undecodable
                files.append(self._substitute(sample))
                instead[i] = bytes(files[-1])
            except Undecodable:
                failed.append(sample)
                absent[i] = True
        # DALI hands the path to open(2), for which the first NUL ends it: one array instead of B
        paths = self._source.paths(np.where(own, rows.ids, 0))
        width = max([paths.shape[1], *(len(path) + 1 for path in instead.values())])
        data = np.zeros((len(rows), width), np.uint8)
        data[:, : paths.shape[1]] = paths
        for i, path in instead.items():
            data[i] = np.frombuffer(path.ljust(width, b"\0"), np.uint8)
        arrays = numbers(rows, absent, placed=not self._feed.plan.batches.filled)
        return Prepared(
            rows, data, **arrays, failed=tuple(failed), own_bytes=own, files=files
        )

    def blank(self) -> Prepared:
        """Return a batch of placeholders."""
        plan = self._feed.plan
        return self(
            blank_rows(plan.batches.rows, plan.batches.sample_shape[-2:]), Known()
        )

    def diagnose(self, prepared: Prepared) -> set[int]:
        """Return the ids that PIL cannot decode either. Raises UserError for a file that cannot be had."""
        undecodable = set()
        for sample in prepared.rows.ids[prepared.own_bytes].tolist():
            try:
                whole_image(read(self._source, sample), self._columns, sample)
            except Undecodable:
                undecodable.add(sample)
        return undecodable

    def check(self, prepared: Prepared, sizes: Array) -> None:
        """Raise UserError when DALI read another number of bytes than the manifest has."""
        own = prepared.own_bytes
        ids = prepared.rows.ids[own]
        for index in np.flatnonzero(sizes[own] != self._columns.size[ids]):
            self._source.check(int(ids[index]), int(sizes[own][index]))

    def close(self) -> None:
        self._folder.cleanup()

    def _substitute(self, sample: int) -> Path:
        """Write the sample's pixels as PNG. Raises Undecodable, and UserError when there is no room."""
        self._made += 1
        path = Path(self._folder.name, f"{self._made}.png")
        data = read(self._source, sample)
        try:
            path.write_bytes(encoded(whole_image(data, self._columns, sample)))
        except OSError as error:
            raise UserError(
                f"{self._folder.name}: an image that DALI cannot take as it is "
                f"cannot be written there ({error.strerror}): "
                "set TMPDIR to a folder with room, or --loader dali-fed"
            ) from None
        return path
