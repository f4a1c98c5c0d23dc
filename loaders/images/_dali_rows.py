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

from contracts import Array, Feed, FileSource, Rows, UserError
from dataset.images.columns import stored_size
from loaders import Undecodable
from loaders._read_retry import read
from loaders._workers import some
from loaders.images.decoders import PNG, READERS, exactly, plain_jpeg
from plan.geometry import upright

PLACEHOLDER_SIDE = 16
FEW = 0.01
"""Share of files that PIL decodes, up to which nobody needs to know."""
PIECE = 1 << 18
"""Files that are looked at together: bounds the memory."""


@dataclass(slots=True)
class Prepared:
    """One batch as DALI takes it. Axes: B samples; (y, x) as DALI orders them."""

    rows: Rows  # the plan's; the numbers are those of its upright rows
    data: Any  # uint8 [B, L] paths padded with NUL, or a list of B arrays of bytes
    starts: Array  # int32 [B, 2]
    shapes: Array  # int32 [B, 2]
    windows: Array  # float32 [B, 4], y0 x0 y1 x1 inside the region
    sizes: Array  # float32 [B, 2], of what the window is resized to
    places: dict[str, Array] = field(
        default_factory=dict
    )  # what only a graph that places images takes
    failed: tuple[int, ...] = ()
    own_bytes: Array | None = None  # bool [B], rows whose bytes are the sample's file
    files: list[Path] = field(default_factory=list)  # substitutes

    def only(self, row: int) -> Prepared:
        """Return a batch of this row alone; the substitutes stay this one's."""
        part = slice(row, row + 1)
        arrays: dict[str, Any] = {
            name: getattr(self, name)[part]
            for name in ("data", "starts", "shapes", "windows", "sizes")
        }
        places = {name: values[part] for name, values in self.places.items()}
        return replace(
            self,
            rows=some(self.rows, part),
            places=places,
            failed=(),
            own_bytes=None,
            files=[],
            **arrays,
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


def plain(columns: Any, ids: Array) -> Array:
    """Return bool [B]: the files that every decoder turns into the same pixels.

    The others are decoded by PIL and handed over as PNG.
    """
    return plain_jpeg(columns, ids) | (
        (columns.format[ids] == PNG) & (columns.depth[ids] == 8) & columns.whole[ids]
    )


def notes(columns: Any) -> list[str]:
    """Return a line where many files are not plain and DALI reads the files.

    Each is then decoded, and written for DALI, in one thread.
    """
    odd = 0
    for at in range(0, len(columns), PIECE):
        ids = np.arange(at, min(at + PIECE, len(columns)))
        known = columns.height[ids] > 0  # others will be opened when a plan draws them
        odd += int((known & ~plain(columns, ids)).sum())
    if odd <= FEW * len(columns):
        return []
    return [
        f"{odd:,} of {len(columns):,} images are no plain JPEG or 8-bit PNG: "
        "PIL decodes them in one thread before DALI; "
        "--loader dali-fed and torchvision do it in worker processes"
    ]


def placeholder() -> bytes:
    """Return the bytes of a small image that stands for a row without one."""
    return encoded(np.zeros((PLACEHOLDER_SIDE, PLACEHOLDER_SIDE, 3), np.uint8))


def encoded(pixels: Array) -> bytes:
    """Return RGB uint8 as lossless bytes that DALI decodes."""
    buffer = io.BytesIO()
    # it is decoded again at once: to compress it would only take time
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def whole_image(data: bytes, columns: Any, sample: int) -> Array:
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


def largest_rows(feed: Feed, threads: int) -> Rows | None:
    """Return a batch that takes as much memory as any is likely to: the largest images that DALI decodes, one
    for each of its `threads`, which keep buffers of that size, beside others of all sizes. All are whole.

    None where no size is known yet. A whole batch of the largest never comes in an epoch, and would take
    gigabytes that no other needs.
    """
    columns = feed.columns
    pixels = np.asarray(columns.height).astype(np.int64) * np.asarray(columns.width)
    size = feed.plan.batch_size
    first = np.argsort(pixels, kind="stable")[
        : -4 * max(threads, 1) - 1 : -1
    ]  # PIL decodes some of them
    first = first[pixels[first] > 0]
    first = first[plain(columns, first)][: min(max(threads, 1), size)]
    if not len(first):
        return None
    others = np.linspace(0, len(pixels) - 1, size - len(first)).astype(np.int64)
    others = others[(pixels[others] > 0) & plain(columns, others)]
    ids = np.resize(np.concatenate([first, others]), size)
    whole = np.zeros((size, 4), np.int64)
    whole[:, [3, 2]] = [stored_size(columns, sample) for sample in ids.tolist()]
    return Rows(
        ids=ids,
        regions=whole,
        windows=whole.astype(np.float64),
        sizes=np.tile(np.array(feed.plan.sample_shape[-2:], np.int64), (size, 1)),
        turns=np.zeros(size, np.uint8),
        valid=np.ones(size, bool),
    )


def numbers(rows: Rows, absent: Array, *, placed: bool) -> dict[str, Any]:
    """Return the arrays of a Prepared; an absent row takes the placeholder whole.

    `placed`: for a graph that places images.
    """
    rows = upright(rows)
    regions = rows.regions.copy()
    windows = rows.windows.copy()
    regions[absent] = windows[absent] = (0, 0, PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)
    y_x = [1, 0]
    places = rows.placed
    # DALI's external_source takes contiguous arrays alone
    return {
        "starts": np.ascontiguousarray(regions[:, y_x], np.int32),
        "shapes": np.ascontiguousarray(
            (regions[:, 2:] - regions[:, :2])[:, y_x], np.int32
        ),
        "windows": np.ascontiguousarray(windows[:, [1, 0, 3, 2]], np.float32),
        "sizes": np.ascontiguousarray(
            (places[:, 2:] - places[:, :2])[:, ::-1], np.float32
        ),
        "places": placed_at(rows) if placed else {},
    }


def placed_at(rows: Rows) -> dict[str, Array]:
    """Return where the canvas begins in each image, int32 [B, 2], and how large it is, int32 [B, 2]."""
    return {
        "corners": np.ascontiguousarray(-rows.placed[:, [1, 0]], np.int32),
        "canvases": np.tile(np.array(rows.padded, np.int32), (len(rows), 1)),
    }


class PathPreparer:
    """Rows -> Prepared with paths, for the loaders in which DALI reads the files itself."""

    def __init__(self, feed: Feed) -> None:
        self._source = cast(
            FileSource, feed.source
        )  # open_loader has refused any other
        self._columns = feed.columns
        self._folder = tempfile.TemporaryDirectory(prefix="saturate-")
        self._placeholder = Path(self._folder.name, "placeholder")
        self._placeholder.write_bytes(placeholder())
        self._made = 0
        self._batch_size = feed.plan.batch_size
        self._size = feed.plan.sample_shape[-2:]
        self.placed = not feed.plan.filled
        self.notes = notes(feed.columns)

    def __call__(self, rows: Rows, known: Known) -> Prepared:
        own = rows.valid.copy()
        # valid ones alone: padding has id -1, which would read the last sample's columns
        own[rows.valid] = plain(self._columns, rows.ids[rows.valid])
        if known.bad or known.odd:
            own &= ~np.isin(rows.ids, list(known.bad | known.odd))
        files = []
        others = {}
        failed = []
        absent = ~rows.valid
        for i in np.flatnonzero(rows.valid & ~own):
            sample = int(rows.ids[i])
            try:
                if sample in known.bad:
                    raise Undecodable
                files.append(self._substitute(sample))
                others[int(i)] = bytes(files[-1])
            except Undecodable:
                failed.append(sample)
                absent[i] = True
        # DALI hands the path to open(2), for which the first NUL ends it: one array instead of B. What
        # is not read by its own path gets another one below
        paths = self._source.paths(np.where(own, rows.ids, 0))
        instead = [
            others.get(int(i), bytes(self._placeholder)) for i in np.flatnonzero(~own)
        ]
        width = max([paths.shape[1], *(len(path) + 1 for path in instead)])
        data = np.zeros((len(rows), width), np.uint8)
        data[:, : paths.shape[1]] = paths
        for i, path in zip(np.flatnonzero(~own), instead, strict=True):
            data[i] = np.frombuffer(path.ljust(width, b"\0"), np.uint8)
        arrays = numbers(rows, absent, placed=self.placed)
        return Prepared(
            rows, data, **arrays, failed=tuple(failed), own_bytes=own, files=files
        )

    def blank(self) -> Prepared:
        """Return a batch of placeholders."""
        return self(blank_rows(self._batch_size, self._size), Known())

    def diagnose(self, prepared: Prepared) -> set[int]:
        """Return the ids that PIL cannot decode either. Raises UserError for a file that cannot be had."""
        undecodable = set()
        for sample in prepared.rows.ids[prepared.own_bytes]:
            try:
                whole_image(read(self._source, int(sample)), self._columns, int(sample))
            except Undecodable:
                undecodable.add(int(sample))
        return undecodable

    def check(self, prepared: Prepared, sizes: Array) -> None:
        """Raise UserError when DALI read another number of bytes than the manifest has."""
        own = prepared.own_bytes
        assert own is not None
        ids = prepared.rows.ids[own]
        for at in np.flatnonzero(sizes[own] != self._columns.size[ids]):
            self._source.check(int(ids[at]), int(sizes[own][at]))

    def close(self) -> None:
        self._folder.cleanup()

    def _substitute(self, sample: int) -> Path:
        """Write the sample's pixels as PNG. Raises Undecodable, and UserError when there is no room."""
        self._made += 1
        path = Path(self._folder.name, f"{self._made}.png")
        content = encoded(
            whole_image(read(self._source, sample), self._columns, sample)
        )
        try:
            path.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"{self._folder.name}: an image that DALI cannot take as it is "
                f"cannot be written there ({error.strerror}): "
                "set TMPDIR to a folder with room, or --loader dali-fed"
            ) from None
        return path
