"""Watches, in a thread of its own, whether a run goes on; hears SIGTERM while the main thread hangs in a library.

A main thread that waits in a library, for another rank or for the device, hears no signal, because Python's
handlers run in it alone. The system tells this thread of signals through a pipe.

    waits 30 s for a batch             one line: rank, worker, file
    asked to stop, and waits           alone: the wait ends, and the run saves as usual
                                       else: all leave, and last.pt stays as it is
    other ranks do not come            after --timeout-minutes the same, with a line that names them; not where a
                                       rank may be slow
    a rank or the ranks' store is lost the same: engine/ranks.py finds it within 45 s
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from saturate.contracts import Batch, Counts, Loader, counted, do_nothing
from saturate.engine.distributed import ProcessWorld
from saturate.engine.ranks import RESUME
from saturate.engine.stop import SIGNALS, StopRequest, notify
from saturate.system import exit_codes

WARN_S = 30.0
"""Seconds without a batch that are told of."""
GIVES_UP_S = 1.0
"""Seconds that a run which was asked to stop waits for a batch."""
LEAVES_S = 3.0
"""Seconds after which a run that was asked to stop leaves without meeting the other ranks: with what it then
saves that is within 5. Where steps, or batches of validation, are slow it has the time of two of them."""
WARM_UP = 3
"""Steps that may be slow: code is compiled in the first ones, on some ranks for longer than on others."""
LOOK_S = 0.2


class WatchedLoader:
    """A contracts.Loader whose batches are waited for under a Watch."""

    def __init__(self, loader: Loader, watch: Watch) -> None:
        self._loader = loader
        self._watch = watch
        self.in_flight = loader.in_flight
        self.notes = loader.notes
        self.reader = loader.reader
        self.decoded_again = loader.decoded_again
        self.stage_seconds = loader.stage_seconds
        self.awaited = loader.awaited
        self.close = loader.close

    @property
    def counts(self) -> Counts:
        return self._loader.counts

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self._loader.counts = counts

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        return self._watch.batches(self._loader, self._loader.batches(epoch, first))

    def __enter__(self) -> WatchedLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(kw_only=True)
class Watch:
    """The watch of one run."""

    world: ProcessWorld
    stop: StopRequest
    # held while a checkpoint is written, which may take its time
    writing: threading.Lock
    leave: Callable[[int], None] = os._exit
    # says where the run goes on
    last_words: Callable[[], object] = do_nothing

    _beat_s: float = field(default=0.0, init=False)  # when the run went on last
    _step_s: float = field(default=0.0, init=False)  # how long that had taken
    _in_steps: bool = field(default=False, init=False)
    _beats: int = field(default=0, init=False)  # since the steps began
    _slow: int = field(default=0, init=False)  # how many `slow`s the main thread is in
    # the loader whose batch the main thread waits for
    _waits: Loader | None = field(default=None, init=False)
    _since_s: float = field(default=0.0, init=False)
    _has_warned: bool = field(default=False, init=False)
    # the signal that has come, and when
    _heard: tuple[int, float] | None = field(default=None, init=False)

    # -- called by the main thread ---------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch inside."""
        reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        ended = threading.Event()
        main = threading.main_thread()
        here = threading.current_thread() is main
        before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False) if here else -1
        self._beat_s = time.monotonic()
        thread = threading.Thread(
            target=self._run, args=(reads, ended, main.ident), daemon=True
        )
        thread.name = "saturate-watch"
        thread.start()
        ends, self.world.on_end = self.world.on_end, self._end
        try:
            yield
        finally:
            self.world.on_end = ends
            if here:
                signal.set_wakeup_fd(before)
            ended.set()
            os.write(writes, b"\0")
            thread.join(1.0)  # it may be saving, for good
            os.close(reads)
            os.close(writes)

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Say that the run goes on step by step inside, or batch by batch, and `beat`s."""
        self._step_s = 0.0
        self._beats = 0
        self._in_steps = True
        try:
            yield
        finally:
            self._in_steps = False
            self.beat()

    def beat(self) -> None:
        """Say that the run goes on."""
        now = time.monotonic()
        self._step_s = now - self._beat_s
        self._beat_s = now
        self._beats += 1

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Let what is inside take longer than the time-out, as long as all ranks live. All ranks enter it."""
        self._slow += 1
        try:
            yield
        finally:
            self._beat_s = time.monotonic()  # no `beat`: it was no step
            self._slow -= 1

    def batches(self, loader: Loader, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches of a loader. Raises Asked where one does not come, and the run is asked to stop."""
        while True:
            self._since_s = time.monotonic()
            self._waits = loader
            self._has_warned = False
            try:
                with self.stop.may_give_up():
                    batch = next(batches, None)
            finally:
                self._waits = None
            if batch is None:
                return
            yield batch

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self, reads: int, ended: threading.Event, main: int) -> None:
        excused_s = 0.0  # when all ranks were found to live
        came = select.poll()  # select knows the first 1,024 files of a process alone
        came.register(reads, select.POLLIN)
        while not ended.is_set():
            ready = came.poll(1000 * LOOK_S)
            numbers = (
                [number for number in os.read(reads, 4096) if number in SIGNALS]
                if ready
                else []
            )
            if self.stop.signal is not None:
                # it may have come before the pipe was there
                numbers.append(self.stop.signal)
            now = time.monotonic()
            if self._heard is None and numbers:
                self._heard = SIGNALS[signal.Signals(numbers[0])], now
            self.world.wait_for(self._awaited() if self._waits else "")
            self._tell(now)
            if self.writing.locked():
                continue
            if self._heard is not None:
                self._let_go(self._heard, now, main)
            elif (
                self.world.size > 1
                and now - max(self._beat_s, excused_s) > self.world.timeout_s
            ):
                excused_s = now
                self._give_up_others(now)

    def _tell(self, now: float) -> None:
        if (
            self._waits is not None
            and not self._has_warned
            and now - self._since_s > WARN_S
        ):
            self._has_warned = True
            notify(
                f"{self.world.named} has waited {WARN_S:.0f} s for a batch: {self._awaited()}"
            )

    def _let_go(self, heard: tuple[int, float], now: float, main: int) -> None:
        """End a wait, or the process, once it was asked to stop and does not get there."""
        number, heard_s = heard
        quiet_s = now - max(self._beat_s, heard_s)
        alone = self.world.size == 1
        if (
            self._waits is not None
            and alone
            and not self.stop.gives_up
            and quiet_s > GIVES_UP_S
        ):
            self.stop.gives_up = True
            # its handler raises Asked there; where the wait has just ended it is ignored, and SIGINT would be
            # taken for the second Ctrl-C
            signal.pthread_kill(main, signal.SIGTERM)
        most_s = max(LEAVES_S, 2 * self._step_s) if self._in_steps else LEAVES_S
        if quiet_s > most_s and (not alone or self._waits is not None):
            waits = (
                f"waits for {self._awaited()}"
                if self._waits is not None
                else "cannot meet the others"
            )
            line = f"{self.world.named} {waits}; {RESUME}"
            self._leave(exit_codes.of_signal(number), line)

    def _give_up_others(self, now: float) -> None:
        """End this process, whose peers live and do not come; not where they may be slow."""
        waits = self._waits is not None
        may_be_slow = self._slow > 0 or (self._in_steps and self._beats < WARM_UP)
        has_waited = waits and now - self._since_s > self.world.timeout_s
        if may_be_slow and not has_waited:
            return
        why = (
            f"{self.world.named} waits for {self._awaited()}"
            if waits
            else self.world.blame()
        )
        minutes = counted(self.world.timeout_s / 60, "minute")
        problem = (
            f"{self.world.named} has not gone on for {minutes} (--timeout-minutes)"
        )
        self._leave(exit_codes.FAILED, f"{problem}: {why}; {RESUME}")

    def _end(self, code: int, line: str) -> None:
        if self._heard is not None and code == exit_codes.FAILED:
            code = exit_codes.of_signal(self._heard[0])
        self._leave(code, line)

    def _leave(self, code: int, line: str) -> None:
        if line:
            notify(line)
        with self.writing:  # a write beside training ends
            self.last_words()
            self.leave(code)

    def _awaited(self) -> str:
        loader = self._waits
        awaited = loader.awaited() if loader is not None else ""
        return awaited or "a batch"
