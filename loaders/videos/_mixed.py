"""Clips of one batch from two sides: threads that decode on the device, worker processes on the CPU.

    rows -> [deal] -> units -> [worker: read] -> [thread: decode, resize on its own stream] -> levels
                            -> [worker: as loaders/videos/_worker.py] -> uint8 -> [copy]    -> levels
    the levels of a whole batch, in one slot -> Stager.finish

A unit is a clip with its views: _scheduler.py says who gets it, _reading.py reads, _pool.py has the workers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch

from saturate.contracts import Array, Feed, Rows
from saturate.dataset.videos.columns import Videos
from saturate.loaders import Undecodable
from saturate.loaders._stages import Stages
from saturate.loaders._staging import COPIES, Slot, Staged, Staging, sleeping_event
from saturate.loaders.videos._planes import compile_kernels
from saturate.loaders.videos._pool import Pool
from saturate.loaders.videos._reading import MOST_BYTES, Read, ReadClip, ReadUnit
from saturate.loaders.videos._scheduler import Deal, Dealt, Pace, Unit
from saturate.loaders.videos._worker import (
    REFUSED,
    ClipsDone,
    Decoding,
    count,
    reason,
    slot_shape,
)
from saturate.loaders.videos.exact import notes, sort_of
from saturate.loaders.videos.pyav import Pyav
from saturate.plan.bundles import some
from saturate.plan.geometry import largest_upright, upright

LEAST_WINDOW = 3
"""Batches that threads fill at the same time, at least: none then waits for the last clip of another.

There are more where a batch has few clips.
"""
THREADS_A_CORE = 2
"""Threads of the device and their readers, a core: they keep less than that busy, but need it at once."""


class Fills(Protocol):
    """Decodes on the device, for one thread at a time, in which its stream is the current one."""

    @property
    def decoded(self) -> int:
        """Return the number of frames that the decoder went through, so far."""

    def __call__(
        self, read: Read, rows: Rows, places: Array, out: torch.Tensor
    ) -> None:
        """Fill out[place], of uint8 [B, T, H, W, 3], with the levels of these upright rows.

        They show the same frames. Raises Undecodable.
        """

    def close(self) -> None: ...


MakeFills = Callable[[int], Fills]
"""(raw stream of the thread, 0 = none) -> Fills."""
Job = Future[tuple[ClipsDone, torch.cuda.Event | None]]
"""What a thread has done of a unit, `lost` as places of the batch, and the event behind its last write."""


@dataclass(slots=True)
class _Batch:
    """A batch under way."""

    dealt: Dealt
    rows: Rows  # of it, upright
    levels: torch.Tensor  # uint8 [B, T, H, W, 3], of the upright rows
    slot: Slot | None
    jobs: list[Job] = field(default_factory=list)


class _Thread:
    """What one of the threads owns."""

    def __init__(
        self,
        feed: Feed[Videos],
        backend: str,
        readers: Pool,
        make: MakeFills,
    ) -> None:
        self._backend = backend
        self._readers = readers
        self._columns = feed.columns
        self._host = Decoding(feed, "pyav", Pyav, None)
        cuda = feed.device.type == "cuda"
        self._stream = torch.cuda.Stream(feed.device) if cuda else None
        self._fills = make(self._stream.cuda_stream if self._stream else 0)

    def run(
        self, unit: Unit, batch: _Batch
    ) -> tuple[ClipsDone, torch.cuda.Event | None]:
        if self._stream is None:
            return self._decode(batch.rows, unit, batch.levels), None
        with torch.cuda.stream(self._stream):
            assert batch.slot is not None
            # the step that had the slot last may still read it
            self._stream.wait_event(batch.slot.done)
            done = self._decode(batch.rows, unit, batch.levels)
            written = torch.cuda.Event()
            written.record()
            return done, written

    def _decode(self, rows: Rows, unit: Unit, out: torch.Tensor) -> ClipsDone:
        places = unit.places
        sample = int(rows.ids[places[0]])
        began = time.monotonic()
        before = self._fills.decoded
        try:
            self._read_and_fill(rows, unit, out)
            return ClipsDone(
                decoded=self._fills.decoded - before,
                delivered=len(places) * out.shape[1],
                seconds=time.monotonic() - began,
            )
        except (Undecodable, OSError) as error:
            refused = reason(self._backend, error)
        # pyav has the last word; axes: [views, T, H, W, 3]
        its_rows = some(rows, places)
        pixels = np.empty(slot_shape(its_rows), np.uint8)
        done = self._host(its_rows, pixels.reshape(-1))
        good = np.delete(np.arange(len(places)), done.lost)
        for place, clip in zip(places[good].tolist(), pixels[good], strict=True):
            out[place] = torch.from_numpy(clip).to(out.device)
        sort = sort_of(self._columns, sample) + REFUSED
        if len(good):
            done.refusals[sort] = refused
        done.lost = places[done.lost].tolist()
        done.fallbacks = [sort] * len(good)
        done.seconds = time.monotonic() - began
        return done

    def _read_and_fill(self, rows: Rows, unit: Unit, out: torch.Tensor) -> None:
        slot, (size, read) = self._readers.result(unit)
        if not len(read.data):
            read = read._replace(data=self._readers.slots[slot][:size])
        try:
            self._fills(read, rows, unit.places, out)
        finally:
            self._readers.release(slot)

    def close(self) -> None:
        self._fills.close()


class MixedLoader(Staging[Videos]):
    """contracts.Loader, with ClipLoader's Counts.

    `fallbacks` are clips that the device's decoders are not exact for, or refused.
    """

    def __init__(
        self,
        feed: Feed[Videos],
        backend: str,
        make_read: Callable[[], ReadClip],
        make_fills: MakeFills,
        able: Array,
        *,
        threads: int,
        beside: bool = False,
    ) -> None:
        """Take `able`, bool by sample: what `backend` is exact for on this device.

        `beside`: pyav gets a share of the clips that it is exact for.
        """
        compile_kernels()

        self._views = feed.plan.batches.same_frames
        units = max(feed.plan.batches.rows // self._views, 1)
        self._window = max(LEAST_WINDOW, 1 + math.ceil(2 * threads / units))
        super().__init__(feed, window=self._window)
        self.notes = notes(backend, feed.columns, able)
        self._able = able
        # slots of the pool that the device may still read
        self._copied: deque[tuple[torch.cuda.Event, int]] = deque()
        self._pool: Pool | None = None
        self._pace: Pace | None = None
        # both kinds of workers are forked before there are threads that may hold a lock of FFmpeg's; who
        # reads waits more than it works
        # units that the device gets, with the rows of their batch
        self._to_read: deque[tuple[Rows, Unit]] = deque()
        workers = max(feed.workers, 1)
        self.stages = Stages(2 * workers)  # of both kinds, at most
        self._readers = Pool(
            lambda: ReadUnit(feed.source, make_read()),
            workers=min(threads, workers) if beside else workers,
            # slots that threads decode from, that wait for them, that workers fill
            slots=2 * threads + workers,
            slot_bytes=min(int(feed.columns.size.max(initial=1)), MOST_BYTES),
            pinned=False,
            name_of=feed.source.name,
            stages=self.stages,
        )
        if beside or not able.all():
            if beside:
                # the threads, and who reads for them, take cores too: with a worker on each of them both
                # sides were slower than with fewer
                workers = max(workers - math.ceil(threads / THREADS_A_CORE), 1)
                self._pace = Pace(workers=workers, threads=threads)
            self._pool = Pool(
                lambda: Decoding(feed, "pyav", Pyav, None),
                workers=workers,
                slot_bytes=self._views * math.prod(largest_upright(feed.plan)),
                pinned=feed.device.type == "cuda" and feed.pinned,
                name_of=feed.source.name,
                stages=self.stages,
                first=max(feed.workers, 1),
            )
        # clips that workers have ready lie in batches far ahead; what counts is how many batches they would
        # fill
        ready = math.ceil(len(self._pool.slots) / units) if self._pool else 0
        self.in_flight = self._window + self._depth + ready
        self._all = [
            _Thread(feed, backend, self._readers, make_fills) for _ in range(threads)
        ]
        self._idle = list(self._all)
        self._threads = ThreadPoolExecutor(
            threads, "saturate-device", initializer=_enter, initargs=(feed.device,)
        )

    @property
    def _pools(self) -> list[Pool]:
        return [pool for pool in (self._readers, self._pool) if pool is not None]

    def awaited(self) -> str:
        return next((busy for pool in self._pools if (busy := pool.awaited())), "")

    def close(self) -> None:
        # first of all: threads that wait for a reader or a worker then meet an error, and so can be joined
        for pool in self._pools:
            pool.stop()
        super().close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for thread in self._all:
            thread.close()
        for pool in self._pools:
            pool.close()

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        deal = Deal(rows, self._views, self._able, self._pace)
        self._stager.wait_for_copies()  # of the sequence before: workers write these slots again
        self._release(0)
        self._to_read.clear()
        self._readers.serve(self._next_to_read)
        if self._pool is not None:
            self._pool.serve(deal.unit)
        under_way: deque[_Batch] = deque()
        try:
            while True:
                while (
                    len(under_way) < self._window
                    and (dealt := deal.batch()) is not None
                ):
                    under_way.append(self._begin(dealt))
                if not under_way:
                    return
                yield self._finish(under_way[0])
                under_way.popleft()
        finally:
            # all of them before any is waited for: else threads would begin the next ones meanwhile
            jobs = [job for batch in under_way for job in batch.jobs]
            for job in [job for job in jobs if not job.cancel()]:
                job.exception()  # waits: it writes into a slot

    def _begin(self, dealt: Dealt) -> _Batch:
        rows = upright(dealt.rows)
        shape = slot_shape(rows)
        if self._feed.device.type == "cuda":
            slot = self._stager.take(shape, dealt.rows)
            assert slot.levels is not None
            batch = _Batch(dealt, rows, slot.levels, slot)
        else:
            batch = _Batch(dealt, rows, torch.zeros(shape, dtype=torch.uint8), None)
        self._to_read.extend((dealt.rows, unit) for unit in dealt.device)
        for pool in self._pools:
            pool.fill()
        batch.jobs = [
            self._threads.submit(self._run, unit, batch) for unit in dealt.device
        ]
        return batch

    def _next_to_read(self) -> tuple[Rows, Unit] | None:
        if not self._to_read:
            return None
        rows, unit = self._to_read.popleft()
        return some(rows, unit.places), unit

    def _run(
        self, unit: Unit, batch: _Batch
    ) -> tuple[ClipsDone, torch.cuda.Event | None]:
        """Decode a unit in one of the threads, with what it owns: there are as many of these as threads."""
        # no lock: a list's pop and append are one step of the interpreter each
        thread = self._idle.pop()
        try:
            return thread.run(unit, batch)
        finally:
            self._idle.append(thread)

    def _finish(self, batch: _Batch) -> Staged:
        """Wait for all of its units."""
        stream = self._stager.stream
        rows = batch.dealt.rows
        valid = rows.valid.copy()
        parts: list[ClipsDone] = []
        for job in batch.jobs:
            done, written = job.result()
            self._learn("thread", done)
            parts.append(done)
            valid[done.lost] = False
            # the device waits for the thread's stream; the host goes on
            if written is not None and stream is not None:
                stream.wait_event(written)
        for unit in batch.dealt.workers:
            if self._pace is not None:
                self._pace.met(late=not unit.done.done())
            assert self._pool is not None, "these units are for workers"
            slot, done = self._pool.result(unit)
            self._place(slot, unit, batch)
            self._learn("worker", done)
            valid[unit.places[done.lost]] = False
            if not unit.able:
                sort = sort_of(self._feed.columns, int(rows.ids[unit.places[0]]))
                done.fallbacks = [sort] * (len(unit.places) - len(done.lost))
            parts.append(done)
        self.stages.thread.lap("clips")
        staged = self._staged_batch(batch, valid)
        staged.count = partial(count, self, parts)
        return staged

    def _learn(self, side: str, done: ClipsDone) -> None:
        if self._pace is not None:
            self._pace.learn(side, done.seconds)

    def _place(self, slot: int, unit: Unit, batch: _Batch) -> None:
        """Bring what a worker has decoded to its rows of the levels on the device."""
        assert self._pool is not None
        shape = slot_shape(some(batch.rows, unit.places))
        pixels = self._pool.slots[slot][: np.prod(shape)].reshape(shape)
        clips = list(zip(unit.places.tolist(), torch.from_numpy(pixels), strict=True))
        stream = self._stager.stream
        if batch.slot is None or stream is None:
            for place, clip in clips:
                batch.levels[place] = clip
            self._pool.release(slot)
            return
        with torch.cuda.stream(stream):
            stream.wait_event(batch.slot.done)
            for place, clip in clips:
                # the host does not wait where the memory is page-locked
                batch.levels[place].copy_(clip, non_blocking=True)
            self._copied.append((sleeping_event(), slot))
            self._copied[-1][0].record()
        self._release(COPIES)

    def _release(self, left: int) -> None:
        """Give slots back to the workers, once no more than so many are still being copied."""
        while self._copied and (len(self._copied) > left or self._copied[0][0].query()):
            copied, slot = self._copied.popleft()
            copied.synchronize()
            assert self._pool is not None
            self._pool.release(slot)

    def _staged_batch(self, batch: _Batch, valid: Array) -> Staged:
        rows = batch.dealt.rows
        stream = self._stager.stream
        if batch.slot is None or stream is None:
            return Staged(self._stager.finish(batch.levels, rows, valid))
        ready = torch.cuda.Event()
        with torch.cuda.stream(stream):
            stream.wait_event(batch.slot.done)
            made = self._stager.finish(
                batch.levels, rows, valid, into=batch.slot.images
            )
            ready.record()
            # if nobody takes the batch, threads may write these levels again then; else hand_over records it
            # once more
            batch.slot.done.record()
        return Staged(made, ready, batch.slot.done)


def _enter(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
