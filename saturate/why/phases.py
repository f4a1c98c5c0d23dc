"""What a program is put through under `saturate why`: in turns its own loop, the step alone and the loader alone.

    own      batches as the loader gives them                              -> rate
    replay   the step gets batches again that it has had, on the host      -> compute ceiling
    drain    batches are taken as fast as they come, and no step is made   -> loader ceiling

Each takes as many batches on every rank, which agree through the store of the group that the program has made.
Turns, since another program on the machine slows what it meets: the figures are medians over the turns.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import math
import multiprocessing
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from saturate.system import neighbours
from saturate.system.resources import cores
from saturate.why import decoders, hooks, restore, step, trials, undo
from saturate.why.batches import (
    KeptBatch,
    is_endless,
    is_seen,
    length_of,
    samples_of,
    settings_of,
    signature,
)

TURNS = 3
RANKS_WAIT_S = 300.0
"""Ranks wait for each other so long at most: each may be within a validation."""
WARM_UP_BATCHES = 16
"""Batches before anything is measured, and the least of a window."""
PROBE_BATCHES = 8
"""Batches of a phase by which its length is told."""
STEPS_OF_TRAINING = 4
"""Steps of an optimiser after a batch of a loader, by which it is the one that feeds training."""
BATCHES_WITHOUT_STEP = 64
"""Batches without any step of an optimiser, after which batches alone are counted."""
KEPT = 2
"""Batches that the step gets again."""
MOST_PASSED_OVER = 64
"""Batches with fewer samples than the largest that are not kept; then any is."""
STEPS_OF_OTHERS = 512
"""Steps in a row without a batch of the loader that is measured, by which its training is over."""
BATCHES_OF_REPLAY = 256
"""Most batches of a window in which the step gets batches again: the program's epochs and validations go on."""
MOST_OF_A_TRIAL = 32
"""Most steps of a block in which a change is tried, or nothing."""
BATCHES_OF_VALIDATION = 2
"""Batches of another loader in a row by which it is a validation's, and not one that feeds the step, too."""
COUNTED = ("samples", "batches", "epochs", "epochs_s", "wait", "pause", "gap")
"""What is counted of a window: samples, batches, samples and seconds of whole epochs, and seconds of the wait for
batches, of validations, and of the begin of epochs.
"""
SAME_OBJECT = "what is no DataLoader has to be the same object in all epochs"
NEXT, KEEP, END = object(), object(), object()
"""In place of a batch: the loader's next one, the same that is to be given again, and the end of an epoch."""


def notify(what: str) -> None:
    """Tell the user, once for all ranks, what happens to the program."""
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"saturate why: {what}", file=sys.stderr, flush=True)


class NotMeasured(Exception):
    """Has the program go on as without us, for a reason that is told in the end."""


class Measured(KeyboardInterrupt):
    """Ends the program as Ctrl-C would, once it has been measured."""


@dataclass
class Epoch:
    """An epoch of the loader, in the program."""

    # the mark of the iterator that has begun it (hooks.py); None where it has none, or before its first batch
    begun: Any = None

    # when the one before it has ended, until its own first batch is there
    gap_since: float | None = None
    given: int = 0  # batches
    # whether the program's iterator has given fewer batches than that
    iterator_is_behind: bool = False
    # the iterator that a drain has begun, in place of the program's own
    other_iterator: Any = None


@dataclass
class Follower:
    """A loader that may be the one which feeds steps, made anew: a step behind its first batches shows it."""

    loader: Any
    others: int  # batches that other loaders have given since training's last one
    # when its first batch was asked for, and was there
    asked_at: float
    came_at: float
    batches: int = 0
    samples: int = 0


class Run:
    """What one process is put through. Its threads take batches and make steps; one loader feeds them."""

    autocast = ""  # the type it computes in; "": none was entered
    has_gradients = False  # whether any were computed so far
    refused = ""  # why it cannot be measured
    # of the program
    _loader: Any = None  # that feeds its steps, once that is known
    _signature: tuple[Any, ...] = ()
    _last_loader: Any = None
    _steps = 0
    _other_batches = 0  # batches of other loaders since the last one of this
    _paused_at: float | None = None  # when what is no training may have begun
    _stepped_first: Any = None  # the optimiser that was first to step since that batch
    _other_steps = 0  # steps of that optimiser
    _follower: Follower | None = None  # the one that had the last batch, if it may be
    # its last batches, one behind another, that had others before them
    _steps_of_several = 0
    _pulls = False  # its next batch, in which other loaders may have a part
    # of what it is put through
    _decision: Any = None  # what it gets next, where that is decided
    _iterator: Any = None  # that has been asked for a batch
    _drains = False
    _largest = 0  # samples of its batches so far, at most
    _passed_over = 0  # batches with fewer, that were not kept
    _shows_size = False  # a batch of a loader without a length has had its batch_size as that of a tensor
    _journal: undo.Journal | None = None  # from the first replay on
    _agreements = 0  # with the ranks of its group, where it has one

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        asked = json.loads(os.environ[hooks.ASKED])
        self.window_s: float = asked["seconds"]
        self.samples: int | None = asked["samples"]  # in a batch; None: as it says
        self.goes_on: bool = asked["then"] == hooks.GO_ON
        self.launcher: int = asked["launcher"]
        self.windows: dict[str, list[dict[str, float]]] = {}
        self.facts: dict[str, Any] = {"windows": self.windows}
        self._optimizers: set[Any] = set()
        # by a loader's id: batches, and steps after one of its batches
        self._taken: Counter[int] = Counter()
        self._stepped: Counter[int] = Counter()
        self._opened: dict[tuple[Any, ...], Any] = {}
        # when it had its last batch, or made its last step
        self._trained_at = time.perf_counter()
        self._epoch = Epoch()
        self._gaps_s: list[float] = []  # between two epochs of its own
        self._busy = hooks.Busy()  # what workers were, where the loader gave batches
        self._counts = dict.fromkeys(COUNTED, 0.0)  # of the window that is open
        self._phases = self._all()

    # -- called by the hooks -----------------------------------------------------------------------------------

    def opened(self, loader: Any) -> None:
        """Keep a DataLoader for as long as it is iterated: a program that makes it anew may have its iterator alone."""
        key = signature(loader)
        self._opened[key] = loader
        if self._loader is not None and key != self._signature:
            self._pause()

    def stepped(self, optimizer: Any) -> None:
        """Count a step of an optimiser."""
        self._optimizers.add(optimizer)
        self._steps += 1
        self._trained_at = time.perf_counter()
        if self._loader is None and self._last_loader is not None:
            key = id(self._last_loader)
            self._stepped[key] += 1
            if self._stepped[key] == STEPS_OF_TRAINING:
                self._choose(self._last_loader)
        elif self._follower is not None:
            self._follow(self._follower)
        elif self._loader is not None:
            # a program may have an optimiser for each parameter
            if self._stepped_first is None:
                self._stepped_first = optimizer
            self._other_steps += optimizer is self._stepped_first
            if self._other_steps == STEPS_OF_OTHERS:
                self._left()

    def _left(self) -> None:
        """Begin anew with the loader that feeds steps now, or refuse where none does, and where a replay was before."""
        if not self._other_batches:
            # no batch is asked for that could end the program
            words = f"{STEPS_OF_OTHERS} steps without another batch of the loader"
            self.refused = f"{words}: it keeps batches, as itertools.cycle does, or makes many steps of each"
            self._over(lambda: None)
        elif self._journal is not None:
            words = "its training went on with another loader before it was measured: measure that one alone"
            self.refused = f"{words}; {SAME_OBJECT}"
        else:
            notify(
                f"its training goes on with another loader, which is measured in place of the first one; {SAME_OBJECT}"
            )
            hooks.run = Run(self.folder)
            hooks.run._opened, hooks.run._agreements = self._opened, self._agreements
            hooks.run.autocast = self.autocast

    def take(self, batches: Any, loader: Any, pull: Callable[[], Any]) -> Any:
        """Return the batch that the program gets where it asks `loader` for the next one, which is pull()."""
        if self._drains or self._pulls or batches is self._epoch.other_iterator:
            return pull()
        if self._loader is None:
            return self._of_any(loader, pull)
        self._taken[id(loader)] += 1
        # without steps nothing else tells a validation apart, which may have the same but for the data
        if not self._steps and torch.is_grad_enabled() and self._may_follow(loader):
            self._loader = loader
        if loader is not self._loader:
            return self._of_other(loader, pull)
        self._follower = None
        self._steps_of_several += 1
        if not self._other_batches:
            self._steps_of_several = 0
        self._end_pause()
        begun = getattr(batches, "_saturate_epoch", None)
        if self._epoch.begun not in (None, begun) and self._epoch.gap_since is None:
            # the program has left the last one early
            self._epoch = Epoch(gap_since=self._trained_until())
        self._epoch.begun = begun
        if self._decided(batches) is END:
            return self._over(pull)
        is_replay = isinstance(self._decision, KeptBatch)
        if (
            (is_replay or self._epoch.iterator_is_behind)
            and self._epoch.given >= (length_of(loader) or math.inf)
            and not is_endless(loader, batches)
        ):
            # as long as in the program's own loop, which may count on it
            ended_at = step.synchronised() if is_replay else time.perf_counter()
            self._epoch = Epoch(gap_since=ended_at)
            raise StopIteration
        return self._next_batch(pull)

    def _of_any(self, loader: Any, pull: Callable[[], Any]) -> Any:
        """Return a batch of a loader that may be the one that feeds steps."""
        batch = pull()
        # else it is an evaluation before training
        if torch.is_grad_enabled():
            self._last_loader = loader
            self._taken[id(loader)] += 1
            many = self._taken[id(loader)] >= BATCHES_WITHOUT_STEP
            if many and self.has_gradients and not self._steps:
                self._choose(loader)
        return batch

    def _may_follow(self, loader: Any) -> bool:
        """Return whether a loader may be that of training, made anew for its next epoch."""
        # and none that is taken from beside the other
        is_next = (
            self._epoch.gap_since is not None or self._other_batches >= WARM_UP_BATCHES
        )
        return is_next and signature(loader) == self._signature

    def _of_other(self, loader: Any, pull: Callable[[], Any]) -> Any:
        """Return a batch of a loader that is not the one which feeds steps, or not known to be."""
        self._pause()
        if self.refused:
            return self._over(pull)
        if not self._other_batches:
            # an optimiser that steps no more would be waited for
            self._stepped_first, self._other_steps = None, 0
        asked_at = time.perf_counter()
        batch = pull()
        if not self._may_follow(loader):
            self._follower = None
        else:
            if self._follower is None or self._follower.loader is not loader:
                now = time.perf_counter()
                self._follower = Follower(loader, self._other_batches, asked_at, now)
            one = self._follower
            one.samples += self._samples_of(batch, one.batches)
            one.batches += 1
        self._other_batches += 1
        return batch

    def _follow(self, one: Follower) -> None:
        """Take a loader for the one that feeds steps, and count what it has given for these."""
        paused_at = self._paused_at or one.asked_at
        gap_since = self._epoch.gap_since or paused_at
        paused_s = 0.0
        if one.others >= BATCHES_OF_VALIDATION:
            paused_s = one.asked_at - paused_at
        gap_s = one.came_at - gap_since - paused_s
        self._counts["pause"] += paused_s
        self._counts["gap"] += gap_s
        self._counts["samples"] += one.samples
        self._counts["batches"] += one.batches
        self._gaps_s.append(gap_s)
        self._loader, self._epoch = one.loader, Epoch(given=one.batches)
        self._follower = self._paused_at = self._stepped_first = None
        self._other_batches = self._other_steps = 0

    def _choose(self, loader: Any) -> None:
        self._loader, self._signature = loader, signature(loader)
        self._epoch.given = self._taken[id(loader)]
        settings = settings_of(loader)
        self._workers = max(settings.get("num_workers", 0), 1)
        self.facts["loader"] = {"kind": type(loader).__name__, **settings}
        self.facts["is_guess"] = not (self.samples or "batch_size" in settings)

    def _trained_until(self) -> float:
        """Return when the last step was made: now, where the device had it still to do."""
        return time.perf_counter() if step.is_behind() else self._trained_at

    def _pause(self) -> None:
        """Note when the program begins what may be a validation."""
        if self._paused_at is None:
            self._paused_at = self._trained_until()

    def _end_pause(self) -> None:
        """Count what has passed since a validation began as no time of training."""
        paused_at, self._paused_at = self._paused_at, None
        if paused_at is not None and self._other_batches >= BATCHES_OF_VALIDATION:
            paused_s = step.synchronised() - paused_at
            self._counts["pause"] += paused_s
            if self._epoch.gap_since is not None:
                # a validation between two epochs is no part of their gap
                self._epoch.gap_since += paused_s
        self._stepped_first = None
        self._other_batches = self._other_steps = 0

    def _decided(self, batches: Any) -> Any:
        """Return what the program gets next: a batch that is kept, or one of NEXT, KEEP and END."""
        self._iterator = batches
        try:
            if self._decision is None:
                self._decision = next(self._phases, END)
        except NotMeasured as error:
            self.refused, self._decision = str(error), END
        # workers of an epoch that is over end as soon as the program lets go of them
        self._iterator = None
        return self._decision

    def _next_batch(self, pull: Callable[[], Any]) -> Any:
        """Return the batch that is decided on, counted; or raise StopIteration, where the program's epoch ends."""
        epoch, counts = self._epoch, self._counts
        asked_at = time.perf_counter()
        if isinstance(self._decision, KeptBatch):
            epoch.iterator_is_behind = True
            batch = self._decision.again()
        else:
            try:
                batch = self._following(pull)
            except StopIteration:
                # the program asks again, in its next epoch
                self._epoch = Epoch(gap_since=time.perf_counter())
                raise
        self._trained_at = time.perf_counter()
        if epoch.gap_since is None:
            counts["wait"] += self._trained_at - asked_at
        else:
            gap_s = self._trained_at - epoch.gap_since
            counts["gap"] += gap_s
            epoch.gap_since = None
            if not epoch.iterator_is_behind:
                self._gaps_s.append(gap_s)
        if isinstance(self._decision, KeptBatch):
            samples = self._decision.samples
        else:
            samples = self._samples_of(batch, epoch.given)
        self._largest = max(self._largest, samples)
        # an epoch's last one would stand for all
        is_whole = samples == self._largest or self.facts["is_guess"]
        if self._decision is KEEP and len(self._saved_batches) < KEPT:
            self._passed_over += not is_whole
            if is_whole or self._passed_over > MOST_PASSED_OVER:
                # before the loop has it, which may change it
                self._saved_batches.append(KeptBatch(batch, samples))
        counts["samples"] += samples
        epoch.given += 1
        self._decision = None
        return batch

    def _samples_of(self, batch: Any, given: int) -> int:
        """Return how many samples a batch has, before which its epoch has given so many batches."""
        if self.samples:
            return self.samples
        size = self.facts["loader"].get("batch_size")
        if length := length_of(self._loader):
            may_be_shorter = given + 1 == length  # an epoch's last one
        else:
            # an IterableDataset has one a worker, wherever: what batches show is taken once it was their size
            self._shows_size |= bool(size) and is_seen(batch, size)
            may_be_shorter = self._shows_size
        if size and not may_be_shorter:
            return int(size)
        return samples_of(batch, size)

    def _following(self, pull: Callable[[], Any]) -> Any:
        """Return the loader's next batch, of its next epoch where a drain has taken some of the program's."""
        epoch = self._epoch
        begun = epoch.other_iterator
        self._pulls = True
        try:
            return pull() if begun is None else next(begun)
        except StopIteration:
            # without a length it would end at a step at which it does not on other ranks, which then wait
            length = length_of(self._loader) or (math.inf if self._agreements else 0)
            if not epoch.iterator_is_behind or epoch.given >= length:
                raise
        finally:
            self._pulls = False
        following = self._next_epoch()
        if begun is not None or following is not self._iterator_of_loader():
            epoch.other_iterator = following
            return next(following)
        return pull()

    def _iterator_of_loader(self) -> Any:
        """Return the iterator of a DataLoader whose workers live on, or DALI's; None of others."""
        iterator = getattr(self._loader, "_iterator", None)
        # that of an IterableDataset has no length, which `or` would ask it for
        return self._loader if iterator is None else iterator

    def _over(self, pull: Callable[[], Any]) -> Any:
        """End the program as Ctrl-C would, or let it go on."""
        global _was_measured
        self.tell_unmeasured()
        hooks.run = None
        # what has trained on batches again, and was not put back, would lose all that it saves from now on
        if self._journal is None or self._journal.is_over:
            if self.refused:
                notify(f"not measured: {self.refused}; the program goes on")
            return pull()
        _was_measured = True
        hooks.around(
            sys,
            "excepthook",
            lambda whole, kind, *error: kind is Measured or whole(kind, *error),
        )
        if threading.current_thread() is threading.main_thread():
            raise Measured
        # wakes a main thread that waits for a batch of this one
        os.kill(os.getpid(), signal.SIGINT)
        raise StopIteration

    def tell_unmeasured(self) -> None:
        """Leave a line on why this program was not measured, for the case that it was not."""
        if batches := sum(self._taken.values()):
            few = f"it took {batches} batches and made {self._steps} steps, too few: more data or epochs"
            if self._other_batches and self._other_steps > WARM_UP_BATCHES:
                few = f"its last {self._other_steps} steps had batches of another loader; {SAME_OBJECT}"
            (self.folder / hooks.UNMEASURED).write_text(self.refused or few)

    # -- phases ------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[Any]:
        """Yield NEXT where the program gets the loader's next batch, and else the batch that it gets; then end it."""
        yield from [NEXT] * WARM_UP_BATCHES
        if not self._counts["samples"]:
            raise NotMeasured(
                "nobody can see how many samples a batch has: --samples N"
            )
        if self._steps_of_several >= PROBE_BATCHES:
            raise NotMeasured(
                "each step takes batches of several loaders, of which one alone can be held"
            )
        notify(f"measuring, in {3 * TURNS} windows of about {self.window_s:g} s")
        before, others = None, neighbours.cpu_time(self.launcher)
        for turn in range(TURNS):
            yield from self._measured("own", itertools.repeat(NEXT))
            if turn == 0:
                self._saved_batches: list[KeptBatch] = []
                # on all ranks as many, of which each waits for the others in a step
                while (
                    min(map(int, self._gathered(f"{len(self._saved_batches)}"))) < KEPT
                ):
                    yield KEEP
                # one ring: a loop that looks ahead by a batch has not changed the last one yet
                again = itertools.cycle(self._saved_batches)
                if self.goes_on and not restore.refuses():
                    before = restore.State(self._optimizers)
                self._journal = undo.Journal(self.folder / f"files-{os.getpid()}")
            yield from self._measured("replay", again)
            if turn == 0:
                self.facts |= yield from step.split(again, self._clock)
                replay = self.windows["replay"][0]
                step_s = replay["seconds"] / replay["batches"]
                self.facts |= step.conditions(self._optimizers, self.autocast)
                settings = self.facts["settings"]
                self.facts |= yield from step.on_device(
                    again, settings, step_s, self.launcher
                )
            begun = self._epoch.other_iterator
            self._drain("drain", self._iterator if begun is None else begun)
        self._drain_with_workers_kept()
        # below a quota, cores that others take are not missing here
        if cores() == len(os.sched_getaffinity(0)):
            now = neighbours.cpu_time(self.launcher)
            self.facts["other_cores"] = neighbours.cores_taken(others, now)
        workers = self.facts["loader"].get("num_workers", 0)
        self.facts["threads"] = torch.get_num_threads() + workers
        self.facts["epoch"] = {
            "batches": length_of(self._loader),
            "gap_s": self._gap_s(),
        }
        by_pillow = "decode Pillow" in self._busy.wall
        self.facts["decoders"] = decoders.measured(sorted(self._busy.files), by_pillow)
        self.facts["busy"] = vars(self._busy)
        self._write()
        if before is None:
            yield from self._tries(again, step_s)
        elif self._journal is not None:
            before.put_back()
            self._journal.is_over = True
            self._gathered("")
            # one of the ranks that have this folder
            with suppress(FileExistsError):
                (self.folder / "undone").mkdir()
                if changed := undo.back(self.folder).in_place:
                    notify(f"not undone: {undo.IN_PLACE}{', '.join(changed)}")
            self._gathered("")
            if self._agreements:
                # what was taken meanwhile is another number on each rank: their epoch ends here
                self._epoch.given = sys.maxsize
                yield NEXT

    def _tries(self, again: Iterator[KeptBatch], step_s: float) -> Iterator[Any]:
        """Yield batches for steps with each of the changes that can be tried, and write what these give."""
        step_s = max(map(float, self._gathered(repr(step_s))))
        steps = min(math.ceil(self.window_s / step_s / trials.BLOCKS), MOST_OF_A_TRIAL)
        gains = self.facts["gains"] = {}
        for name, trial in trials.that_apply(self.facts).items():
            notify(
                f"trying {name}; a program that cannot have it ends with an error here"
            )
            gains[name] = yield from trials.gains(
                again, trial, self._optimizers, steps, self._clock
            )
            self._write()

    def _measured(self, name: str, actions: Iterator[Any]) -> Iterator[Any]:
        """Yield actions for a window of about `window_s`, behind as many as show how long they take."""
        began = step.synchronised()
        probe = self._whole(PROBE_BATCHES)
        yield from itertools.islice(actions, probe)
        each_s = (step.synchronised() - began) / probe
        # short epochs take the time to begin them
        each_s = max(each_s, self._gap_s() / (length_of(self._loader) or math.inf))
        each_s = max(map(float, self._gathered(repr(each_s))))
        count = max(WARM_UP_BATCHES, math.ceil(self.window_s / each_s))
        if name == "replay":
            count = min(count, BATCHES_OF_REPLAY)
        count = self._whole(count)
        # to read it takes long where there are many processes, in which the queue of the workers fills
        cpu_s, since = sum(neighbours.tree(self.launcher).values()), time.perf_counter()
        yield from itertools.islice(actions, count // 4)
        steps = self._steps
        self._open()
        yield from itertools.islice(actions, count)
        counts = self._close(name)
        cpu_s = sum(neighbours.tree(self.launcher).values()) - cpu_s
        counts["cores"] = cpu_s / (time.perf_counter() - since)
        # beside those of a loader made anew, which it had before that was known
        counts["batches"] += count
        counts["steps"] = self._steps - steps

    def _open(self) -> None:
        """Begin a window."""
        self._busy_before = hooks.read(self.folder)
        self._counts = dict.fromkeys(COUNTED, 0.0)
        self._opened_at = step.synchronised()

    def _clock(self) -> float:
        """Return the time once the device has done what it was given, which stands still in validations and between
        epochs.
        """
        now, since = step.synchronised(), self._epoch.gap_since
        gap_s = 0.0 if since is None else now - since
        return now - gap_s - self._counts["gap"] - self._counts["pause"]

    def _gap_s(self) -> float:
        """Return the usual time from an epoch's end to the next one's first batch."""
        return statistics.median(self._gaps_s or [0.0])

    def _whole(self, count: int) -> int:
        """Return so many batches or a few more, that every worker makes as many: they begin and end together."""
        return self._workers * math.ceil(count / self._workers)

    def _close(self, name: str) -> dict[str, float]:
        """Return the counts of the window, which is over and one of a phase."""
        seconds = step.synchronised() - self._opened_at
        counts = {**self._counts, "seconds": seconds}
        self.windows.setdefault(name, []).append(counts)
        if name in ("own", "drain"):
            busy, before = hooks.read(self.folder), self._busy_before
            busy.wall -= before.wall
            busy.cpu -= before.cpu
            busy.batches -= before.batches
            self._busy.add(vars(busy))
        return counts

    def _drain(self, name: str, batches: Any) -> None:
        """Take batches as fast as they come, behind those that lie ready."""
        self._drains = True
        ready = self._workers * self.facts["loader"].get("prefetch_factor", 0)
        ready_s: list[float] = []  # what taking these took
        self._open()
        # they may be long in coming
        until = self._opened_at + (4 if ready else 1) * self.window_s
        samples_of_epoch, epoch_at, first_batches = 0, 0.0, 0
        given = self._epoch.given
        while True:
            counts, asked_at = self._counts, time.perf_counter()
            # in the end each worker has made as many
            if asked_at >= until and counts["batches"] % self._workers == 0:
                break
            batch = next(batches, END)
            if batch is END:
                if epoch_at:
                    counts["epochs"] += samples_of_epoch
                    counts["epochs_s"] += asked_at - epoch_at
                samples_of_epoch, epoch_at, first_batches = 0, asked_at, self._workers
                given = 0
                begun = self._next_epoch()
                # of DALI, and with persistent_workers, it is the program's own
                if begun is not batches:
                    batches = self._epoch.other_iterator = begun
                counts["gap"] += time.perf_counter() - asked_at
                continue
            took_s = time.perf_counter() - asked_at
            samples = self._samples_of(batch, given)
            given += 1
            samples_of_epoch += samples
            if first_batches:
                # one of each worker is made while the epoch begins
                first_batches -= 1
                counts["gap"] += took_s
            elif len(ready_s) < ready:
                ready_s.append(took_s)
                self._open()
                until = self._opened_at + self.window_s
                epoch_at = 0.0
            else:
                counts["samples"] += samples
                counts["batches"] += 1
        # not all lie ready where the loader is slow
        counts["queue"] = min(ready_s, default=0.0)
        self._close(name)
        self._drains, self._epoch.iterator_is_behind = False, True

    def _drain_with_workers_kept(self) -> None:
        """Drain the loader once more with workers that live on, where epochs are so short that one has ended."""
        loader = self._loader
        ends = self.facts["loader"].get("persistent_workers") is False
        if ends and loader.num_workers and self._gaps_s:
            begun = self._epoch.begun
            # PyTorch lets nobody change it by its name
            vars(loader)["persistent_workers"] = True
            self._drain("kept", self._next_epoch())
            vars(loader)["persistent_workers"] = False
            loader._iterator = self._epoch.other_iterator = None
            self._epoch.begun = begun

    def _next_epoch(self) -> Any:
        """Return an iterator of the loader's next epoch; a subclass's own would also move its batches."""
        base: Any = torch.utils.data.DataLoader
        if not isinstance(self._loader, base):
            if hasattr(self._loader, "reset"):  # DALI's
                self._loader.reset()
            return iter(self._loader)
        begun = base.__iter__(self._loader)
        if begun is self._iterator_of_loader():
            # it is the program's own, which has not begun another epoch
            self._epoch.begun = begun._saturate_epoch
        return begun

    def _write(self) -> None:
        """Write what all ranks have measured."""
        own = json.dumps(self.facts, default=list)
        # the same on every host: each has a rank that waits for it
        ranks = [json.loads(each) for each in self._gathered(own)]
        part = self.folder / f"{hooks.RESULT}-{os.getpid()}"
        part.write_text(json.dumps(ranks))
        part.replace(self.folder / hooks.RESULT)
        # the rank that has the store must not leave before the others have read it
        self._gathered("")

    def _gathered(self, value: str) -> list[str]:
        """Return what each rank gives, by the store of the program's own group."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return [value]
        store = dist.distributed_c10d._get_default_store()
        self._agreements += 1
        keys = [
            f"saturate.why/{self._agreements}/{rank}"
            for rank in range(dist.get_world_size())
        ]
        store.set(keys[dist.get_rank()], value)
        try:
            store.wait(keys, timedelta(seconds=RANKS_WAIT_S))
        except RuntimeError:
            raise NotMeasured("not every rank takes batches of a loader") from None
        return [store.get(key).decode() for key in keys]


_was_measured = False


def _leave() -> None:
    """End a program that was measured with exit code 0, whatever it does with Ctrl-C; of another leave its counts."""
    if hooks.run is not None:
        hooks.run.tell_unmeasured()
    if _was_measured:
        # a forkserver's would live on
        for worker in multiprocessing.active_children():
            worker.terminate()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _stepped(optimizer: Any, *_: Any) -> None:
    if hooks.run is not None:
        hooks.run.stepped(optimizer)


def begin(folder: Path) -> None:
    """Put this process through the phases, once a loader feeds steps."""
    if hooks.run is None:
        atexit.register(_leave)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(_stepped)
    hooks.run = Run(folder)
