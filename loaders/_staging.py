"""Copies decoded pixels to the device, ahead of the step: what all loaders share.

What becomes of them there is said in loaders/_postprocess.py. On CUDA a slot is (pinned bytes, device
output); a thread fills slots ahead of the consumer:

    thread   [copy to pinned 1][copy to pinned 2]...
    stream          [to device 1][finish 1][to device 2]...   behind `done` of the slot's last user
    consumer                     step 0 ......[wait ready 1] step 1 ......

Must not know where the pixels come from.
"""

from __future__ import annotations

import atexit
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from saturate.contracts import (
    Array,
    Batch,
    C_co,
    Columns,
    Counts,
    Feed,
    Rows,
    StageSeconds,
    do_nothing,
)
from saturate.loaders._flips import images_shape
from saturate.loaders._memory import fitted, too_small
from saturate.loaders._postprocess import Finish
from saturate.loaders._stages import Laps, Stages

Item = TypeVar("Item")
# At most so many copies to the device are under way: the memory of the third-last batch may be reused.
COPIES = 2
# seconds that Ctrl-C may wait while no batch comes: Python misses a signal just before it waits
POLL_S = 1.0
AT_EXIT_S = 5.0  # seconds for the thread of a loader that nobody has closed, when the program ends


def sleeping_event(*, timed: bool = False) -> torch.cuda.Event:
    """Return an event that a host thread sleeps on: the default spins, and takes a core from the workers."""
    return torch.cuda.Event(enable_timing=timed, blocking=True)


@dataclass(slots=True)
class Staged:
    """A batch with the two events that guard its memory."""

    batch: Batch
    ready: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None
    # called when the batch is handed over; one that was staged ahead may never be
    count: Callable[[], None] = do_nothing


@dataclass
class Slot:
    """Memory of one batch: page-locked on the host, and on the device."""

    pinned: torch.Tensor | None = None
    # on the device, where several threads write batches at a time
    levels: torch.Tensor | None = None
    images: torch.Tensor | None = None
    copied: torch.cuda.Event | None = None
    done: torch.cuda.Event = field(default_factory=sleeping_event)


class Stager:
    """Makes Batches of levels [B, H, W, 3], or [B, T, H, W, 3].

    `waiting` batches may be staged before the consumer asks. Where an epoch has one shape, the images' memory on a
    GPU is allocated in the constructor, from the stream that is current there, so that a validation can reuse
    what a training step has freed. `scale`: how much longer sides are than the plan's.
    """

    def __init__(
        self, feed: Feed[Columns], *, waiting: int = 2, scale: int = 1
    ) -> None:
        self._feed = feed
        self._cuda = feed.device.type == "cuda"
        self.finish = Finish(feed)
        # one being written, `waiting` of them, one with the consumer, one whose step may still run
        self._slots = [Slot() for _ in range(waiting + 3)] if self._cuda else []
        self._next = 0
        self._recent: deque[Slot] = deque()
        self.stream = torch.cuda.Stream(feed.device) if self._cuda else None
        # one buffer is enough: the stream copies and finishes one batch after the other
        self._levels: torch.Tensor | None = None
        if self._cuda and not feed.plan.batches.varies:
            numbers = (
                feed.plan.batches.rows
                * math.prod(feed.plan.batches.sample_shape)
                * scale**2
            )
            # threads write them, which are not in the inference mode that the caller may be in
            with torch.inference_mode(False):
                for slot in self._slots:
                    slot.images = torch.empty(
                        numbers, dtype=self.finish.dtype, device=feed.device
                    )
            # other streams write them, and kernels that had this memory before may not have ended
            torch.cuda.current_stream(feed.device).synchronize()

    def stage(
        self, pixels: torch.Tensor, rows: Rows, valid: Array, *, pinned: bool = False
    ) -> Staged:
        """Return the batch of uint8 levels on the host: copied, and finished on the device.

        `valid`: bool [B], which of the rows that were valid were also decoded. `pinned`: `pixels` is
        page-locked and stays as it is until three more batches were staged; else it may be written again as
        soon as this returns. It may be called from a thread of its own.
        """
        if not self._cuda:
            return Staged(self.finish(pixels, rows, valid))
        slot = self._free(images_shape(pixels.shape, rows))
        self._levels = self._roomy(self._levels, pixels.shape, torch.uint8)
        assert self.stream is not None
        # only from page-locked memory the copy does not hold up the host
        if not pinned and self._feed.pinned:
            slot.pinned = fitted(
                slot.pinned, pixels.shape, dtype=torch.uint8, pin_memory=True
            )
            pixels = slot.pinned.copy_(pixels)
        begin = torch.cuda.Event(enable_timing=True)
        slot.copied = sleeping_event(timed=True)
        ready = torch.cuda.Event()
        with torch.cuda.stream(self.stream):
            # the step that had the slot last may still read it; waiting for it is no part of the transfer,
            # which for pairs ends behind the second copy
            self.stream.wait_event(slot.done)
            begin.record()
            self._levels.copy_(pixels, non_blocking=True)
            slot.copied.record()
            batch = self.finish(self._levels, rows, valid, into=slot.images)
            batch.transfer = (begin, slot.copied)
            ready.record()
        return Staged(batch, ready, slot.done)

    def close(self) -> None:
        """Wait until nothing on the device reads or writes the slots any more; then they may go."""
        if self._cuda:
            torch.cuda.synchronize(self._feed.device)
        self._slots = []
        self._levels = None
        self._recent.clear()

    def wait_for_copies(self) -> None:
        """Wait until no copy to the device reads host memory any more."""
        for slot in self._slots:
            if slot.copied is not None:
                slot.copied.synchronize()

    def take(self, shape: Sequence[int], rows: Rows) -> Slot:
        """Return the next slot, with memory for levels of this shape and for their images, once the device
        has copied what was in it.

        The copy of the batch COPIES before this one is then over too.
        """
        slot = self._free(images_shape(shape, rows))
        slot.levels = self._roomy(slot.levels, shape, torch.uint8, slot.done)
        return slot

    def _free(self, shape: Sequence[int]) -> Slot:
        """Return the next slot, with memory for images of this shape, once the device has copied what was in
        it.
        """
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.images = self._roomy(slot.images, shape, self.finish.dtype, slot.done)
        self._recent.append(slot)
        if (
            len(self._recent) > COPIES
            and (before := self._recent.popleft().copied) is not None
        ):
            before.synchronize()
        if slot.copied is not None:
            slot.copied.synchronize()
        return slot

    def _roomy(
        self,
        memory: torch.Tensor | None,
        shape: Sequence[int],
        dtype: torch.dtype,
        last_user: torch.cuda.Event | None = None,
    ) -> torch.Tensor:
        """Return this memory at this shape, or new memory on the device where it is too small.

        `last_user`: the event behind the last work that uses it; None where all of that is on this stream.
        """
        if not too_small(memory, shape):
            return fitted(memory, shape)
        assert self.stream is not None
        if last_user is not None:
            last_user.synchronize()  # memory that goes back to the allocator has no reader left
        with torch.cuda.stream(self.stream):
            memory = fitted(memory, shape, dtype=dtype, device=self._feed.device)
        self.stream.synchronize()  # no kernel has it any more: other streams may write it now
        return memory

    def on_device(
        self, pixels: torch.Tensor, rows: Rows, valid: Array, *, normalised: bool
    ) -> Staged:
        """Return the batch of what a decoder has written on the current stream, as `finish` takes it."""
        slot = self._free(images_shape(pixels.shape, rows))
        ready = torch.cuda.Event()
        torch.cuda.current_stream().wait_event(slot.done)
        batch = self.finish(
            pixels, rows, valid, into=slot.images, normalised=normalised
        )
        ready.record()
        return Staged(batch, ready, slot.done)


def without(rows: Rows, failed: Sequence[int]) -> Array:
    """Return bool [B], the valid rows but those of these samples."""
    valid: Array = rows.valid & ~np.isin(rows.ids, failed)
    return valid


def hand_over(
    staged: Iterator[Staged], launched: Callable[[], None] = do_nothing
) -> Generator[Batch]:
    """Yield batches to the consumer's thread, and to the stream that is current there: see contracts.Batch.

    The host waits for the step of two batches ago, which bounds how far it runs ahead of the device.
    """
    running: deque[torch.cuda.Event] = deque()
    for item in staged:
        batch = item.batch
        batch.launched = launched
        item.count()
        stream = torch.cuda.current_stream() if item.done is not None else None
        if item.ready is not None and stream is not None:
            stream.wait_event(item.ready)
            for tensor in (batch.sizes, batch.valid, *batch.targets.values()):
                # small ones come from the allocator, images from a slot
                tensor.record_stream(stream)
        try:
            yield batch
        finally:
            # also when the consumer breaks off: what it has launched may still read the batch
            if item.done is not None:
                item.done.record(stream)
        if item.done is not None:
            running.append(item.done)
            if len(running) > 2:
                running.popleft().synchronize()


class Ahead:
    """Runs an iterator in a thread, at most `depth` items ahead. `close` closes it there and ends the thread.

    The place of an item that was taken is free after `release`, or when the next one is asked for. Not at
    once: a consumer that launches hundreds of small kernels needs the interpreter's lock for each of them,
    and each of the two would wait for the other. In the backward pass nobody needs it.
    """

    def __init__(
        self,
        make: Callable[[], Generator[Item]],
        *,
        depth: int,
        device: torch.device,
        laps: Laps,
    ) -> None:
        self._laps = laps
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._places = threading.Semaphore(depth)
        self._taken = False
        self._stopping = threading.Event()
        self._device = device
        self._thread = threading.Thread(
            target=self._run, args=(make,), name="saturate-loader", daemon=True
        )
        self._thread.start()
        atexit.register(self._end, AT_EXIT_S)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.release()
            try:
                kind, value = self._queue.get(timeout=POLL_S)
            except queue.Empty:
                continue
            self._taken = True
            if kind == "error":
                raise value
            if kind == "end":
                return
            yield value

    def release(self) -> None:
        """Free the place of the item that was taken; again without effect. Only for the thread that takes."""
        if self._taken:
            self._taken = False
            self._places.release()

    def close(self) -> None:
        """Close the iterator in its thread, and return once the thread has ended."""
        atexit.unregister(self._end)
        self._end()
        # a batch that somebody keeps holds this object
        self._queue = queue.SimpleQueue()

    def _end(self, timeout_s: float | None = None) -> None:
        self._stopping.set()
        self._places.release()  # wakes a thread that waits for a place
        self._thread.join(timeout_s)

    def _run(self, make: Callable[[], Generator[Item]]) -> None:
        iterator: Generator[Item] | None = None
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            iterator = make()
            self._laps.start()
            for item in iterator:
                self._laps.lap("finish")
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))  # the consumer's thread raises it
        finally:
            if iterator is not None:
                iterator.close()

    def _put(self, entry: tuple[str, Any]) -> bool:
        self._places.acquire()
        self._laps.lap("full")
        if self._stopping.is_set():
            return False
        self._queue.put(entry)
        return True


class Staging(Generic[C_co]):
    """contracts.Loader but for `_staged`: a thread fills slots, and the consumer takes them in order.

    At most `depth` batches are filled ahead; at most `window` of them are begun at the same time.
    """

    in_flight: int
    decoded_again: Callable[[int], Generator[Batch]] | None = None
    notes: Sequence[str] = ()
    reader = ""
    # loaders._workers.Workers, where it has some
    _workers: Any = None

    def __init__(self, feed: Feed[C_co], *, depth: int = 2, window: int = 1) -> None:
        self.counts = Counts()
        self.stages = Stages(feed.workers)
        self._feed = feed
        self._depth = depth
        self._stager = Stager(feed, waiting=depth + window - 1)
        self._ahead: Ahead | None = None
        self._handed: Generator[Batch] | None = None

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        """Yield staged batches. It runs in the thread, and is closed there when the sequence is abandoned."""
        raise NotImplementedError

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self._stop()
        rows = self._feed.plan.rows(epoch, first)
        self._ahead = Ahead(
            lambda: self._staged(rows),
            depth=self._depth,
            device=self._feed.device,
            laps=self.stages.thread,
        )
        self._handed = hand_over(iter(self._ahead), self._ahead.release)
        return self._handed

    def stage_seconds(self, *, anew: bool = False) -> StageSeconds:
        return self.stages.seconds(anew=anew)

    def awaited(self) -> str:
        return self._workers.awaited() if self._workers else ""

    def close(self) -> None:
        if self._workers:
            self._workers.stop()
        self._stop()
        self._stager.close()
        self._let_go()
        if self._workers:
            self._workers.close()

    def _let_go(self) -> None:
        """End what else reads the workers' memory, before that goes."""

    def __enter__(self) -> Staging[C_co]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stop(self) -> None:
        ahead = self._ahead
        handed = self._handed
        self._ahead = None
        self._handed = None
        if ahead is not None and handed is not None:
            ahead.close()
            handed.close()
