"""Clips of one batch from two sides at once: threads that decode on the device, and worker processes that decode on the CPU.

    rows -> [deal] -> units -> [thread: decode, resize, normalise on a stream of its own] -> its rows of the batch's slot on the device
                            -> [worker: as loaders/_clips.py] -> uint8 -> [copy, normalise] -> its rows of the same slot

A unit is a clip with all its views. What the device's decoders are not exact for goes to the workers; of the rest they get a share, which
grows while they are done first. So the share changes who decodes a clip, never which frames it has, nor the order of batches.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import torch

from contracts import Feed, Rows
from loaders._clips import Decoding, MakeReader, Told, kind, notes, slot_shape, views_together
from loaders._planes import compile_kernels
from loaders._readers import Undecodable
from loaders._staging import DTYPES, Staged, Stager, Staging, _Slot, sleeping_event
from loaders._workers import HELD, Workers, some
from loaders.pyav import Pyav

Array = np.ndarray[Any, Any]

WINDOW = 3
"""Batches that threads may fill at the same time, so that none of them waits for the last clip of another."""
AHEAD = 256
"""Batches that are dealt before they are begun, at most, in search of work for the workers: each takes 3 ms."""
STEP = 1 / 3200
"""Of the share, for each unit of a batch: small, since up to 64 units wait in front of the workers before a change is felt."""
NARROW = (0.05, 0.95)
"""Between which the share stays: neither side is left without work, so that its rate stays known."""
WAITED_S = 0.002
"""A wait for the workers that is longer than this was one."""


class Share:
    """The part of the units that the workers decode. It moves by a small step towards the side that was done first."""

    def __init__(self, value: float, least: float, most: float) -> None:
        self.value, self._least, self._most, self._rest = value, least, most, 0.0

    def take(self, count: int) -> int:
        """How many of the next `count` units: rounded so that they add up to the share."""
        self._rest += self.value * count
        whole = int(self._rest)
        self._rest -= whole
        return whole

    def learn(self, *, workers_last: bool, device_last: bool, count: int) -> None:
        """From a batch of `count` units for which one side was waited for."""
        if workers_last != device_last:
            self.value = min(max(self.value + (STEP if device_last else -STEP) * count, self._least), self._most)


@dataclass(frozen=True, slots=True)
class Dealt:
    """A batch; the places of each unit's rows in it."""

    rows: Rows
    host: tuple[Array, ...]
    device: tuple[Array, ...]


class Deal(Sequence[Rows]):
    """Deals out the units of an epoch's batches, one batch after the other. As a sequence: the workers' units, for Workers.run.

    `able`: bool, by sample, what the device's decoders are exact for.
    """

    def __init__(self, rows: Sequence[Rows], views: int, able: Array, share: Share) -> None:
        self._rows, self._views, self._able, self._share = rows, views, able, share
        self._dealt: deque[Dealt] = deque()
        self._next, self._units = 0, deque[Rows]()

    def __len__(self) -> int:
        """More than are asked for: units without a clip come between the others too."""
        return 1 << 40 if len(self._rows) else 0

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rows]: ...
    def __getitem__(self, index: int | slice) -> Rows | list[Rows]:
        """The next unit, whatever the index: they are asked for once, in order.

        A unit without a clip where there is none within AHEAD batches, and behind the last one.
        """
        assert isinstance(index, int)
        while not self._units:
            if self._next == len(self._rows) or len(self._dealt) >= AHEAD:
                return idle(self._rows[0], self._views)
            self._deal()
        return self._units.popleft()

    def batch(self) -> Dealt | None:
        """The next one; None behind the last."""
        if not self._dealt:
            if self._next == len(self._rows):
                return None
            self._deal()
        return self._dealt.popleft()

    def _deal(self) -> None:
        rows = self._rows[self._next]
        self._next += 1
        places = np.arange(len(rows))
        units = [unit for at in range(0, len(rows), self._views) if rows.valid[unit := places[at : at + self._views]].any()]
        fit = [bool(self._able[rows.ids[unit][rows.valid[unit]]].all()) for unit in units]
        # those of the workers lie spread among the others, as they are decoded at the same time
        free = [unit for unit, fits in zip(units, fit, strict=True) if fits]
        taken = set(np.linspace(0, len(free), self._share.take(len(free)), endpoint=False).astype(int).tolist())
        host = [unit for unit, fits in zip(units, fit, strict=True) if not fits] + [free[i] for i in sorted(taken)]
        device = [unit for i, unit in enumerate(free) if i not in taken]
        self._dealt.append(Dealt(rows, tuple(host), tuple(device)))
        self._units.extend(some(rows, unit) for unit in host)


def idle(rows: Rows, count: int) -> Rows:
    """Rows like these without a sample."""
    few = some(rows, np.arange(min(count, len(rows))))
    return replace(few, ids=np.full(len(few), -1), valid=np.zeros(len(few), bool))


class Fills(Protocol):
    """Decodes on the device, for one thread at a time, in which its stream is the current one."""

    @property
    def decoded(self) -> int:
        """Frames that the decoder went through, so far."""

    def __call__(self, sample: int, path: bytes, rows: Rows, places: Array, out: torch.Tensor) -> None:
        """Fill out[place], of [B, T, H, W, 3], with the sample's frames, normalised. Raises Undecodable."""

    def close(self) -> None: ...


Normalise = Callable[[torch.Tensor], torch.Tensor]
"""Grey levels [N, H, W, 3] -> what a batch holds, of the same shape."""
MakeFills = Callable[[int, Normalise], Fills]
"""(raw stream of the thread, 0 = none) -> Fills."""


class Done(NamedTuple):
    """Of a unit on the device."""

    told: Told  # `lost` are places of the batch
    written: torch.cuda.Event | None  # behind its last write


@dataclass(slots=True)
class _Batch:
    """Under way."""

    dealt: Dealt
    images: torch.Tensor  # [B, T, H, W, 3]
    slot: _Slot | None
    jobs: list[Future[Done]] = field(default_factory=list)


class _Thread:
    """What one of the threads owns."""

    def __init__(self, feed: Feed, make: MakeFills, normalise: Normalise, stream: Any) -> None:
        self._feed, self._normalise, self._stream = feed, normalise, stream
        self._host = Decoding(feed, "pyav", Pyav, None)
        self._fills = make(stream.cuda_stream if stream else 0, normalise)

    def run(self, rows: Rows, unit: Array, batch: _Batch) -> Done:
        if self._stream is None:
            return Done(self._decode(rows, unit, batch.images), None)
        with torch.cuda.stream(self._stream):
            assert batch.slot is not None
            self._stream.wait_event(batch.slot.done)
            told, written = self._decode(rows, unit, batch.images), torch.cuda.Event()
            written.record()
            return Done(told, written)

    def _decode(self, rows: Rows, unit: Array, out: torch.Tensor) -> Told:
        found = Told([], [], 0, 0)
        for sample in dict.fromkeys(rows.ids[unit][rows.valid[unit]].tolist()):
            places = unit[rows.valid[unit] & (rows.ids[unit] == sample)]
            before = self._fills.decoded
            try:
                self._fills(sample, self._host.checked(sample), rows, places, out)
                told = Told([], [], self._fills.decoded - before, len(places) * out.shape[1])
            except (Undecodable, OSError):
                told = self._by_pyav(sample, some(rows, places), places, out)
            found = Told(
                found.lost + told.lost, found.fallbacks + told.fallbacks, found.decoded + told.decoded, found.delivered + told.delivered
            )
        return found

    def _by_pyav(self, sample: int, rows: Rows, places: Array, out: torch.Tensor) -> Told:
        """Which has the last word on a file."""
        pixels = np.empty(slot_shape(rows), np.uint8)
        told = self._host(rows, pixels.reshape(-1))
        if told.lost:
            return told._replace(lost=places[told.lost].tolist())
        for place, clip in zip(places.tolist(), pixels, strict=True):
            out[place, :, : clip.shape[1], : clip.shape[2]] = self._normalise(torch.from_numpy(clip).to(out.device))
        return told._replace(fallbacks=[kind(self._feed.columns, sample) + ", refused"] * len(places))

    def close(self) -> None:
        self._fills.close()


Beside = tuple[str, MakeReader, MakeReader | None]
"""Name of the CPU's reader, itself, and pyav unless it is pyav."""


class MixedLoader(Staging):
    """contracts.Loader, with ClipLoader's figures. `fallbacks`: clips that the device's decoders are not exact for, or refused."""

    def __init__(self, feed: Feed, backend: str, make_fills: MakeFills, able: Array, *, threads: int, beside: Beside | None = None) -> None:
        """`able`: bool by sample, what `backend` is exact for on this device. `beside`: the CPU's reader that gets a share of the clips."""
        super().__init__(feed)
        compile_kernels()
        self._stager = Stager(feed, ahead=self._depth + WINDOW - 1)
        self.fallbacks: Counter[str] = Counter()
        self.decoded, self.delivered = 0, 0
        self.notes = notes(backend, feed.columns, able)
        rows = feed.plan.rows(0, 0)
        self._views = views_together(rows[0]) if len(rows) else 1
        self._able, self._threads, self.in_flight = able, threads, WINDOW + self._depth
        self._share = Share(0.5, *NARROW) if beside else Share(0.0, 0.0, 0.0)
        self._copied: deque[torch.cuda.Event] = deque()
        self._workers: Workers | None = None
        if beside or not able.all():
            name, own, other = beside or ("pyav", Pyav, None)
            self._workers = Workers(
                lambda: Decoding(feed, name, own, other),
                workers=feed.workers,
                batch_size=self._views,
                part_bytes=lambda rows: rows * math.prod(feed.plan.sample_shape),
                part_rows=self._views,
                pinned=feed.device.type == "cuda" and feed.pinned,
            )
            if len(rows):  # forks them, before there are threads that may hold a lock of FFmpeg's
                for _ in self._workers.run([idle(rows[0], self._views)]):
                    pass
        streams = device_streams(feed.device, threads)
        self._idle = [_Thread(feed, make_fills, self._levels, stream) for stream in streams]
        self._all = list(self._idle)
        self._pool = ThreadPoolExecutor(threads, "saturate-device", initializer=_enter, initargs=(feed.device,))

    def close(self) -> None:
        if self._workers is not None:
            self._workers.stop()
        super().close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for thread in self._all:
            thread.close()
        if self._workers is not None:
            self._workers.close()

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        deal = Deal(rows, self._views, self._able, self._share)
        self._stager.wait_for_copies()
        self._wait_for_copies(0)
        units = None if self._workers is None else self._workers.run(deal)
        under_way: deque[_Batch] = deque()
        try:
            while True:
                while len(under_way) < WINDOW and (dealt := deal.batch()) is not None:
                    under_way.append(self._begin(dealt))
                if not under_way:
                    return
                yield self._finish(under_way[0], units)
                under_way.popleft()
        finally:
            for batch in under_way:
                for job in batch.jobs:
                    job.cancel()
            for batch in under_way:
                for job in batch.jobs:
                    if not job.cancelled():
                        job.exception()  # waits: it writes into a slot
            if isinstance(units, Generator):
                units.close()

    def _begin(self, dealt: Dealt) -> _Batch:
        shape = torch.Size(slot_shape(dealt.rows))
        if self._feed.device.type == "cuda":
            slot = self._stager._take(shape)
            assert slot.images is not None
            batch = _Batch(dealt, slot.images, slot)
        else:
            batch = _Batch(dealt, torch.zeros(shape, dtype=DTYPES[self._feed.pixels.dtype]), None)
        batch.jobs = [self._pool.submit(self._run, unit, batch) for unit in dealt.device]
        return batch

    def _run(self, unit: Array, batch: _Batch) -> Done:
        """In a thread of the pool, which has as many as there are things for them to own."""
        thread = self._idle.pop()
        try:
            return thread.run(batch.dealt.rows, unit, batch)
        finally:
            self._idle.append(thread)

    def _finish(self, batch: _Batch, units: Iterator[tuple[Array, Rows, list[Told]]] | None) -> Staged:
        """Wait for all of its units: the workers' first, which come in order."""
        stream, waited, valid = self._stager._stream, 0.0, batch.dealt.rows.valid.copy()
        for unit in batch.dealt.host:
            assert units is not None, "there are workers, unless the device can decode everything"
            began = time.monotonic()
            slot, its, told = self._next(units)
            waited = max(waited, time.monotonic() - began)
            self._place(slot, its, unit, batch)
            self._count(told, [kind(self._feed.columns, sample) for sample in its.ids[its.valid].tolist() if not self._able[sample]])
            valid[unit[told.lost]] = False
        device_last = any(not job.done() for job in batch.jobs)
        for job in batch.jobs:
            told, written = job.result()
            self._count(told, [])
            valid[told.lost] = False
            if written is not None and stream is not None:
                stream.wait_event(written)
        if batch.dealt.host and batch.jobs:
            count = len(batch.dealt.host) + len(batch.jobs)
            self._share.learn(workers_last=waited > WAITED_S and not device_last, device_last=device_last, count=count)
        return self._staged_batch(batch, valid)

    def _next(self, units: Iterator[tuple[Array, Rows, list[Told]]]) -> tuple[Array, Rows, Told]:
        """The next unit with a clip."""
        while True:
            slot, its, (told,) = next(units)
            if its.valid.any():
                return slot, its, told
            self._wait_for_copies(0)  # a unit without a clip was taken too: workers write again to where the last ones were

    def _count(self, told: Told, unable: list[str]) -> None:
        self.fallbacks.update(unable or told.fallbacks)
        self.decoded, self.delivered = self.decoded + told.decoded, self.delivered + told.delivered

    def _place(self, slot: Array, its: Rows, unit: Array, batch: _Batch) -> None:
        """Bring what a worker has decoded to its rows on the device."""
        shape = slot_shape(its)
        pixels = torch.from_numpy(slot[: np.prod(shape)].reshape(shape))
        if batch.slot is None:
            for place, clip in zip(unit.tolist(), pixels, strict=True):
                batch.images[place] = self._levels(clip)
            return
        assert self._workers is not None and self._stager._stream is not None and batch.slot.bytes_ is not None
        with torch.cuda.stream(self._stager._stream):
            self._stager._stream.wait_event(batch.slot.done)
            for place, clip in zip(unit.tolist(), pixels, strict=True):
                raw = batch.slot.bytes_[place]
                raw.copy_(clip, non_blocking=True)  # page-locked, or else it waits
                batch.images[place].copy_(self._levels(raw))
            self._copied.append(sleeping_event())
            self._copied[-1].record()
        self._wait_for_copies(HELD - 1)  # a worker writes there again when HELD more were taken

    def _wait_for_copies(self, left: int) -> None:
        while len(self._copied) > left:
            self._copied.popleft().synchronize()

    def _levels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        return self._stager._normalise(pixels).movedim(1, -1)

    def _staged_batch(self, batch: _Batch, valid: Array) -> Staged:
        rows, images = batch.dealt.rows, batch.images.movedim(-1, 1)
        if batch.slot is None:
            return Staged(self._stager._batch(images, rows, valid))
        ready = torch.cuda.Event()
        assert self._stager._stream is not None
        with torch.cuda.stream(self._stager._stream):
            self._stager._stream.wait_event(batch.slot.done)
            made = self._stager._batch(images, rows, valid)
            ready.record()
        return Staged(made, ready, batch.slot.done)


_streams: dict[torch.device, list[Any]] = {}


def device_streams(device: torch.device, count: int) -> list[Any]:
    """The threads' streams, the same for every loader: cuBLAS keeps 32 MiB for each stream that it has ever run on. None on a CPU."""
    if device.type != "cuda":
        return [None] * count
    kept = _streams.setdefault(device, [])
    kept += [torch.cuda.Stream(device) for _ in range(count - len(kept))]
    return kept[:count]


def _enter(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
