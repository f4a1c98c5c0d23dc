"""What loaders of clips share: which files a backend is exact for, the work of a worker, the loader.

    rows -> [worker: decode each clip's frames in one go, resize] -> uint8 [B, T, H, W, 3], shared -> device

A file that a backend is not known to be exact for, or that it refuses, is decoded by pyav in the same worker.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch

from saturate.contracts import Array, Feed, FileSource, Loader, Rows, Source
from saturate.dataset.scan.manifest import printable
from saturate.dataset.stores.folder import changed, require_regular
from saturate.dataset.videos.columns import Videos
from saturate.loaders import Undecodable
from saturate.loaders._read_retry import mark, read
from saturate.loaders._stages import lap
from saturate.loaders._staging import Staged, Staging
from saturate.loaders._workers import Work, Workers
from saturate.loaders.videos._planes import Fitter, Picture, compile_kernels
from saturate.loaders.videos.exact import exact, notes, sort_of
from saturate.plan.geometry import largest_upright, upright
from saturate.system import storage


def passed(keys: Array, frames: Array) -> int:
    """Return how many frames a decoder goes through for `frames`, ascending.

    It begins at the last key frame, or at the wanted frame before. `keys`: bool [F], the file's key frames.
    """
    key = np.flatnonzero(keys)
    begins = (
        key[np.maximum(np.searchsorted(key, frames, side="right") - 1, 0)]
        if len(key)
        else np.zeros_like(frames)
    )
    before = np.concatenate([[-1], frames[:-1]])
    before[0] = min(begins[0], frames[0]) - 1
    return int(np.maximum(np.minimum(frames - before, frames - begins + 1), 1).sum())


class Reader(Protocol):
    """Decodes frames of one file. Made in the worker process that uses it."""

    @property
    def decoded(self) -> int | None:
        """Return how many frames the last clip took; None: all from the key frame before, see passed()."""

    def __call__(
        self, sample: int, path: bytes, frames: list[int]
    ) -> Iterator[tuple[int, Picture]]:
        """Yield (frame, picture) once for each of `frames`, in any order. Raises Undecodable.

        `frames` are places in columns.pts(sample), ascending, each once. Of a source that has no files,
        `path` is a memoryview of the whole file: for readers of loaders that open no files. A picture
        is valid until the next one is asked for.
        """


def same_times(columns: Videos, sample: int, frames: list[int], seconds: Array) -> None:
    """Raise Undecodable where a reader's times of frames are half a step or more from the manifest's."""
    pts = columns.pts(sample)
    tick = columns.time_base_num[sample] / columns.time_base_den[sample]
    step = np.diff(pts).min(initial=1 << 30) * tick
    apart = np.abs(seconds - pts[frames] * tick)
    if not (apart < step / 2).all():
        raise Undecodable(
            f"frame {frames[int(apart.argmax())]} is {apart.max():.3f} s from its place"
        )


MakeReader = Callable[[Videos], Reader]
"""columns -> Reader."""


REFUSED = ", refused"
"""Ends the sort of a file that a backend should decode, and could not, or had other times for its frames."""
LOST = ", lost"
"""Ends the sort of one that pyav could not decode either."""
REASON = 200
"""Characters of a reason that are told."""


def reason(backend: str, error: Exception) -> str:
    """Return why a backend refused a file, on one line."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    shown = printable(words[0].strip().encode("utf-8", "surrogatepass"))
    return f"{backend}: {shown[:REASON]}"


@dataclass(slots=True)
class ClipsDone:
    """What a worker says of a part."""

    # places of the rows that failed, in the part
    lost: list[int] = field(default_factory=list)
    # sorts of file that pyav decoded instead, one entry a clip
    fallbacks: list[str] = field(default_factory=list)
    # sort that ends in REFUSED or LOST -> why, of the first clip
    refusals: dict[str, str] = field(default_factory=dict)
    decoded: int = 0  # frames that a decoder went through
    delivered: int = 0
    seconds: float = 0.0  # that it took


def count(loader: Loader, parts: Sequence[ClipsDone]) -> None:
    """Add what the parts of a batch tell to the loader's Counts, once the batch is handed over."""
    counts = loader.counts
    for result in parts:
        counts.decoded += result.decoded
        counts.delivered += result.delivered
        counts.fallbacks.update(result.fallbacks)
        counts.refusals = result.refusals | counts.refusals


class ClipLoader(Staging[Videos]):
    """contracts.Loader, with Counts: pyav is the other decoder, and frames are counted by passed().

    The sort of a file that was refused ends in REFUSED or LOST. `notes`: what is known of that before
    training.
    """

    def __init__(
        self,
        feed: Feed[Videos],
        backend: str,
        make_reader: MakeReader,
        make_pyav: MakeReader | None,
    ) -> None:
        super().__init__(feed)
        compile_kernels()
        self.notes = notes(backend, feed.columns, exact(backend, feed.columns))
        largest = largest_upright(feed.plan)
        self._workers = Workers(
            lambda: Decoding(feed, backend, make_reader, make_pyav),
            workers=feed.workers,
            batch_size=feed.plan.batches.rows,
            part_bytes=lambda rows: rows * math.prod(largest),
            part_rows=feed.plan.batches.same_frames,  # they meet in one worker, which decodes them once
            row_bytes=lambda rows: math.prod(slot_shape(rows)[1:]),
            pinned=feed.device.type == "cuda" and feed.pinned,
            name_of=feed.source.name,
            stages=self.stages,
        )
        self.in_flight = self._workers.in_flight + 2

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        self._stager.wait_for_copies()  # of the sequence before: workers write these slots again
        for slot, its_rows, parts in self.stages.waited(self._workers.run(rows)):
            shape = slot_shape(upright(its_rows))
            pixels = torch.from_numpy(slot[: np.prod(shape)].reshape(shape))
            valid = its_rows.valid.copy()
            for part, result in enumerate(parts):
                valid[
                    [part * self._workers.part_rows + place for place in result.lost]
                ] = False
            # not by the ids of what failed: another clip of the same video is as good as in a batch of its
            # own
            staged = self._stager.stage(
                pixels, its_rows, valid, pinned=self._workers.pinned
            )
            staged.count = partial(count, self, parts)
            yield staged


def slot_shape(rows: Rows) -> tuple[int, ...]:
    """Return B, T, H, W, 3 of what these upright rows are decoded to."""
    assert rows.frames is not None, "a plan of clips says which frames"
    return (*rows.frames.shape, *rows.padded, 3)


def clips(rows: Rows, views: int) -> list[Array]:
    """Return the places of neighbours that show the same frames of one sample, at most `views` together.

    A batch may begin in the middle of a clip.
    """
    assert rows.frames is not None, "a plan of clips says which frames"
    same = (
        (rows.ids[1:] == rows.ids[:-1])
        & (rows.valid[1:] == rows.valid[:-1])
        & (rows.frames[1:] == rows.frames[:-1]).all(axis=1)
    )
    runs = np.split(np.arange(len(rows)), np.flatnonzero(~same) + 1)
    return [clip[at : at + views] for clip in runs for at in range(0, len(clip), views)]


def checked(source: Source, sample: int) -> Any:
    """Return the path of a file that is as the manifest says, or its bytes where the source has no files.

    That is `read_delay_s` later than the storage told. Raises UserError.
    """
    if not source.files:
        return memoryview(read(source, sample))
    path = cast(FileSource, source).path(sample)
    mark(sample)
    try:
        status = storage.patiently(partial(os.stat, path), partial(source.name, sample))
    except OSError as error:
        raise changed(path, error) from None
    require_regular(status, path)
    source.check(sample, status.st_size)
    if source.read_delay_s:
        time.sleep(source.read_delay_s)
    return path


class Decoding(Work):
    """Decodes upright rows, in a worker, into their places in part of a slot; tells what became of them.

    Rows that are padding or fail, and what no place covers, stay as they were: _staging.py blackens them.
    """

    def __init__(
        self,
        feed: Feed[Videos],
        backend: str,
        make_reader: MakeReader,
        make_pyav: MakeReader | None,
    ) -> None:
        self._feed = feed
        self._backend = backend
        self._able = exact(backend, feed.columns)
        self._reader = make_reader(feed.columns)
        self._pyav = None if make_pyav is None else make_pyav(feed.columns)

    def __call__(self, rows: Rows, slot: Array) -> ClipsDone:
        assert rows.frames is not None
        shape = slot_shape(rows)
        out = slot[: np.prod(shape)].reshape(shape)
        done = ClipsDone()
        began = time.monotonic()
        for same in clips(rows, len(rows)):
            sample, places = int(rows.ids[same[0]]), same.tolist()
            if not rows.valid[same[0]]:
                continue
            decode = partial(self._decode, sample, rows, places, out, done)
            try:
                storage.patiently(decode, partial(self._feed.source.name, sample))
                done.delivered += rows.frames[places].size
            except (Undecodable, OSError) as error:
                done.lost += places
                sort = sort_of(self._feed.columns, sample) + LOST
                done.refusals.setdefault(sort, reason("pyav", error))
        done.seconds = time.monotonic() - began
        return done

    def _decode(
        self,
        sample: int,
        rows: Rows,
        places: list[int],
        out: Array,
        done: ClipsDone,
    ) -> None:
        """Fill the places of a sample; pyav has the last word.

        Raises Undecodable, and OSError where it is the storage that a decoder has failed of.
        """
        path = checked(self._feed.source, sample)
        lap("read")
        refused = ""
        try:
            if self._able[sample]:
                try:
                    done.decoded += self._fill(
                        self._reader, sample, path, rows, places, out
                    )
                    return
                except Undecodable as error:
                    if self._pyav is None:
                        raise
                    refused = reason(self._backend, error)
            assert self._pyav is not None, "pyav is exact for everything"
            done.decoded += self._fill(self._pyav, sample, path, rows, places, out)
        except (Undecodable, OSError):
            lap("decode")
            if self._feed.source.files:
                storage.read_through(path)
            raise
        sort = sort_of(self._feed.columns, sample)
        if refused:
            sort += REFUSED
            done.refusals.setdefault(sort, refused)
        done.fallbacks += [sort] * len(places)

    def _fill(
        self,
        reader: Reader,
        sample: int,
        path: bytes,
        rows: Rows,
        places: list[int],
        out: Array,
    ) -> int:
        """Decode what the views of a clip need in one go, into each view that shows a frame.

        Returns the frames decoded.
        """
        shown = places_of_frames(rows, places)
        columns = self._feed.columns
        displayed = int(columns.height[sample]), int(columns.width[sample])
        fitters: dict[Any, Fitter] = {}
        corners = rows.placed.tolist()
        for frame, picture in reader(sample, path, sorted(shown)):
            lap("decode")
            if picture.shape != displayed:
                raise Undecodable(
                    f"a frame has {picture.shape} pixels, its file said {displayed}"
                )
            for i, t in shown[frame]:
                left, top, right, bottom = corners[i]
                which = i, picture.layout
                if which not in fitters:
                    fitters[which] = Fitter(
                        picture,
                        rows.regions[i],
                        rows.windows[i],
                        (bottom - top, right - left),
                    )
                fitters[which].fill(out[i, t, top:bottom, left:right], picture)
            lap("resize")
        if reader.decoded is not None:
            return reader.decoded
        return passed(columns.keys(sample), np.array(sorted(shown)))


def places_of_frames(
    rows: Rows, places: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return for each frame of these rows where it is shown: (place of the row, place in its clip)."""
    assert rows.frames is not None, "a plan of clips says which frames"
    shown: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in places:
        for t, frame in enumerate(rows.frames[place].tolist()):
            shown[frame].append((place, t))
    return shown
