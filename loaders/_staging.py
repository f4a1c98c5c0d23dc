"""From decoded pixels on the host to a Batch on the device: what every loader that decodes on the CPU shares.

On CUDA a slot is (pinned bytes, device bytes, device output); a thread fills slots ahead of the consumer:

    thread   [copy to pinned 1][copy to pinned 2]...          waits for `done` of the slot's last user
    stream          [to device 1][normalise 1][to device 2]...
    consumer                     step 0 ......[wait ready 1] step 1 ......

Must not know where the pixels come from.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from contracts import Batch, Feed, Rows

Item = TypeVar("Item")
COPIES = 2
"""Copies to the device that may be under way: page-locked memory that was staged three batches ago is free again."""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def sleeping_event(*, timed: bool = False) -> torch.cuda.Event:
    """An event that a host thread sleeps on: the default spins, and takes a core from the workers."""
    return torch.cuda.Event(enable_timing=timed, blocking=True)


@dataclass(slots=True)
class Staged:
    """A batch with the two events that guard its memory."""

    batch: Batch
    ready: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


@dataclass
class _Slot:
    pinned: torch.Tensor | None = None
    bytes_: torch.Tensor | None = None
    images: torch.Tensor | None = None
    copied: torch.cuda.Event | None = None
    done: torch.cuda.Event = field(default_factory=sleeping_event)


class Stager:
    """uint8 [B, H, W, 3] on the host -> Batch. `ahead` batches may be staged before the consumer asks."""

    def __init__(self, feed: Feed, *, ahead: int = 2) -> None:
        self._feed = feed
        self._cuda = feed.device.type == "cuda"
        self._dtype = DTYPES[feed.pixels.dtype]
        mean, std = torch.tensor(feed.pixels.mean), torch.tensor(feed.pixels.std)
        self._scale = (1 / (255 * std)).to(feed.device)
        self._shift = (-mean / std).to(feed.device)
        # one being written, `ahead` waiting, one with the consumer, one whose step may still run
        self._slots = [_Slot() for _ in range(ahead + 3)] if self._cuda else []
        self._next = 0
        self._recent: deque[_Slot] = deque()
        self._stream = torch.cuda.Stream(feed.device) if self._cuda else None

    def stage(self, pixels: torch.Tensor, rows: Rows, failed: tuple[int, ...] = (), *, pinned: bool = False) -> Staged:
        """Copy, normalise, attach the targets. May be called from a thread of its own.

        `pinned`: `pixels` is page-locked and stays as it is until three more batches were staged; else it may be written
        again as soon as this returns.
        """
        valid = rows.valid & ~np.isin(rows.ids, failed)
        if not self._cuda:
            return Staged(self._batch(self._normalise(pixels), rows, valid, failed))
        slot = self._take(pixels.shape)
        assert self._stream is not None and slot.bytes_ is not None and slot.images is not None
        if not pinned and self._feed.pinned:
            if slot.pinned is None or slot.pinned.shape != pixels.shape:
                slot.pinned = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=True)
            pixels = slot.pinned.copy_(pixels)
        begin, slot.copied, ready = torch.cuda.Event(enable_timing=True), sleeping_event(timed=True), torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(slot.done)
            begin.record()
            slot.bytes_.copy_(pixels, non_blocking=True)
            slot.copied.record()
            slot.images.copy_(self._normalise(slot.bytes_).permute(0, 2, 3, 1))
            batch = self._batch(slot.images.permute(0, 3, 1, 2), rows, valid, failed)
            batch.transfer = (begin, slot.copied)
            ready.record()
        return Staged(batch, ready, slot.done)

    def close(self) -> None:
        """Until nothing on the device reads or writes the slots any more; then they may go."""
        if self._cuda:
            torch.cuda.synchronize(self._feed.device)
        self._slots = []

    def wait_for_copies(self) -> None:
        """Until no copy to the device reads host memory any more."""
        for slot in self._slots:
            if slot.copied is not None:
                slot.copied.synchronize()

    def _take(self, shape: torch.Size) -> _Slot:
        """The next slot, once the device has copied what was in it; the copy of the batch HELD before this one is then over too."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        if slot.images is None or slot.images.shape != shape:
            slot.done.synchronize()  # memory that goes back to the allocator has no reader left
            slot.bytes_ = torch.empty(shape, dtype=torch.uint8, device=self._feed.device)
            slot.images = torch.empty(shape, dtype=self._dtype, device=self._feed.device)
        self._recent.append(slot)
        if len(self._recent) > COPIES and (before := self._recent.popleft().copied) is not None:
            before.synchronize()
        if slot.copied is not None:
            slot.copied.synchronize()
        return slot

    def on_device(self, images: torch.Tensor, rows: Rows, failed: tuple[int, ...] = ()) -> Staged:
        """A batch that a decoder has finished on the device: [B, H, W, 3], normalised, written on the current stream."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        if slot.images is None or slot.images.shape != images.shape:
            slot.done.synchronize()
            slot.images = torch.empty_like(images, dtype=self._dtype)
        stream, ready = torch.cuda.current_stream(), torch.cuda.Event()
        stream.wait_event(slot.done)
        slot.images.copy_(images)
        valid = rows.valid & ~np.isin(rows.ids, failed)
        batch = self._batch(slot.images.permute(0, 3, 1, 2), rows, valid, failed)
        ready.record()
        return Staged(batch, ready, slot.done)

    def _normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [B, H, W, 3] -> [B, 3, H, W] channels_last in the step's dtype, computed in fp32."""
        return torch.addcmul(self._shift, pixels.to(torch.float32), self._scale).to(self._dtype).permute(0, 3, 1, 2)

    def _batch(self, images: torch.Tensor, rows: Rows, valid: np.ndarray, failed: tuple[int, ...]) -> Batch:
        """Everything but the pixels; rows that are not valid get zero pixels."""
        if not valid.all():
            images[torch.from_numpy(np.flatnonzero(~valid)).to(images.device)] = 0
        targets = self._feed.targets(rows if not failed else _without(rows, valid))
        return Batch(
            images=images,
            sizes=self._to_device(rows.sizes),
            targets={name: self._to_device(value) for name, value in targets.items()},
            valid=self._to_device(valid),
            ids=rows.ids,
            failed=failed,
        )

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        return tensor.pin_memory().to(self._feed.device, non_blocking=True) if self._cuda else tensor


def _without(rows: Rows, valid: np.ndarray) -> Rows:
    """The same rows with `valid` narrowed, for targets to ignore them."""
    return Rows(
        ids=rows.ids,
        regions=rows.regions,
        windows=rows.windows,
        sizes=rows.sizes,
        flips=rows.flips,
        valid=valid,
        frames=rows.frames,
        colour=rows.colour,
    )


def hand_over(staged: Iterator[Staged]) -> Generator[Batch]:
    """Yield batches to the consumer's thread and stream, keeping both events: see contracts.Batch.

    The host waits for the step of two batches ago, which bounds how far it runs ahead of the device.
    """
    running: deque[Any] = deque()
    for item in staged:
        if item.ready is not None:
            stream, batch = torch.cuda.current_stream(), item.batch
            stream.wait_event(item.ready)
            for tensor in (batch.sizes, batch.valid, *batch.targets.values()):
                tensor.record_stream(stream)  # small ones come from the allocator, images from a slot
        try:
            yield item.batch
        finally:
            if item.done is not None:
                item.done.record(torch.cuda.current_stream())
        if item.done is not None:
            running.append(item.done)
            if len(running) > 2:
                running.popleft().synchronize()


class Ahead:
    """Runs an iterator in a thread, at most `depth` items ahead. `close` ends the thread; the iterator is closed in it."""

    def __init__(self, make: Callable[[], Iterator[Item]], *, depth: int, device: torch.device) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._stopping = threading.Event()
        self._make, self._device = make, device
        self._thread = threading.Thread(target=self._run, name="saturate-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            kind, value = self._queue.get()
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value

    def close(self) -> None:
        """Returns once the thread has ended."""
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _run(self) -> None:
        iterator: Any = None
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            iterator = self._make()
            for item in iterator:
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))
        finally:
            if hasattr(iterator, "close"):
                iterator.close()

    def _put(self, entry: tuple[str, Any]) -> bool:
        while not self._stopping.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


class Staging:
    """contracts.Loader but for `_staged`: a thread fills slots, at most `depth` batches ahead, and the consumer takes them in order."""

    in_flight: int

    def __init__(self, feed: Feed, *, depth: int = 2) -> None:
        self._feed, self._depth = feed, depth
        self._stager = Stager(feed, ahead=depth)
        self._ahead: Ahead | None = None
        self._handed: Generator[Batch] | None = None

    def _staged(self, rows: Sequence[Rows]) -> Iterator[Staged]:
        """Runs in the thread; is closed there when the sequence is abandoned."""
        raise NotImplementedError

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self._stop()
        rows = self._feed.plan.rows(epoch, first)
        self._ahead = Ahead(lambda: self._staged(rows), depth=self._depth, device=self._feed.device)
        self._handed = hand_over(iter(self._ahead))
        return self._handed

    def close(self) -> None:
        self._stop()
        self._stager.close()

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stop(self) -> None:
        ahead, handed, self._ahead, self._handed = self._ahead, self._handed, None, None
        if ahead is not None and handed is not None:
            ahead.close()
            handed.close()
