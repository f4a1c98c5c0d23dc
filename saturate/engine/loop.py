"""What happens over a run: epochs of steps, validation, checkpoints, stopping. Knows no loader, model or task
by name.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from saturate.contracts import (
    Batch,
    Loader,
    Meter,
    NotFinite,
    Plan,
    RateWindow,
    Reporter,
    UserError,
    counted,
    do_nothing,
)
from saturate.engine import schedules, unkillable
from saturate.engine.checkpoint import Checkpoints, Progress
from saturate.engine.distributed import ProcessWorld, Vote, leave, leave_within
from saturate.engine.failures import Failures, never_blank
from saturate.engine.loss_log import LossLog
from saturate.engine.ranks import is_lost_peer
from saturate.engine.step import Step
from saturate.engine.stop import Asked, StopRequest, notify_after_torchrun
from saturate.engine.validation import Validation
from saturate.engine.watch import Watch, WatchedLoader
from saturate.settings.optimisation import Optimisation
from saturate.settings.run import Run
from saturate.system import exit_codes

CLOSING_S = 4.0
"""Seconds that closing may take in a run that was asked to stop: a thread may hang in a read."""
CEILINGS_S = 5.0
CEILINGS_STEPS = 20
"""Seconds and steps that measuring the two ceilings takes, at least (report/ceilings.py)."""
ClosedWindow = tuple[RateWindow, int, int]
"""(window of the rate, step that the window ends with, bytes that this rank has read in the window). The loop
reports a window one step after the window was closed."""


@dataclass(kw_only=True)
class Training:
    """The loop of a run, and all that takes part in it. Every rank runs it; `report` speaks on rank 0."""

    world: ProcessWorld
    plan: Plan
    loader: Loader | None  # None: to validate alone
    step: Step
    validation: Validation
    checkpoints: Checkpoints
    failures: Failures  # of training
    report: Reporter
    meter: Meter
    profiler_step: Callable[[], None]
    # report.ceilings.measure: the step alone and the loader alone; returns None if a signal stopped it
    measure_ceilings: Callable[..., dict[str, dict[str, Any]] | None]
    run: Run
    optimisation: Optimisation
    bytes_of: Callable[[np.ndarray], int]  # of the files of these samples
    progress: Progress = field(default_factory=Progress)
    stop: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        self.vote = Vote(self.world)
        self.watch = Watch(
            world=self.world,
            stop=self.stop,
            writing=self.checkpoints.writing,
            last_words=self.checkpoints.notify_where if self.loader else do_nothing,
        )
        self._losses = LossLog(
            self.run.log_every, self.world, precision=self.step.precision
        )
        self._saved_at = time.monotonic()
        self._save_is_asked_for = False
        self._skipped_steps = 0
        self._last_scale: float | None = None
        self._batches: list[Batch] = []  # those of the step under way, or of the last
        # those of the next epoch, once its first ones are being read
        self._next_epochs_batches: Iterator[Batch] | None = None
        # the batch and the epoch that ceilings were measured with, once they were measured
        self._ceiling_inputs: tuple[Batch, int] | None = None
        # whether they are measured at all; None before the first epoch is over
        self._wants_ceilings: bool | None = None
        self._whole = 0  # samples of the run; 0: not known
        self._began_at = 0  # the epoch that this part of the run began in
        # where this epoch, or the part of it that is trained, began
        self._epoch_start = self.progress
        self._failed_in_epoch: set[int] = set()
        self.failures.ids.update(self.progress.failed)
        self._trained_on: list[np.ndarray] = []  # ids of each batch in the open window
        self._has_measured = False  # this rank's rate, for --seconds
        self._time_is_up = False  # all ranks agreed that --seconds is reached
        self._stopped_mid_step = False  # the run was ended within a step

    # -- the run ---------------------------------------------------------------------------------------------

    def fit(self) -> bool:
        """Train to the end. Returns False when a signal ended it early; a checkpoint was then written."""
        with self.validation.cancelled_on_error(), self.watch.running():
            try:
                finished = self._fit()
                if not finished:
                    self.checkpoints.hurry()
                return finished
            except NotFinite:  # on every rank
                self.world.ends_itself()
                with self.watch.slow():
                    self.validation.settle(self.progress)
                raise
            except RuntimeError as error:
                if is_lost_peer(error):
                    self.checkpoints.wait()
                    self.checkpoints.notify_where()
                if is_lost_peer(error) and self.stop():
                    leave(exit_codes.of_signal(self.stop.signal or 0))
                raise
            finally:
                self.checkpoints.wait()

    def validate(self) -> bool:
        """Validate, tell the figures, and keep nothing. Returns False when a signal came."""
        with self.validation.cancelled_on_error(), self.watch.running():
            passed = self._start_validation(None)
            with self.watch.slow():
                self.validation.settle(self.progress)
        return passed

    def stopped_by(self) -> int:
        """Say where a run that a signal has ended goes on, and return the signal. Every rank calls it.

        The process ends within CLOSING_S, whatever closing waits for.
        """
        remedy = self.checkpoints.where if self.loader else "run it again"
        line = f"stopped at step {self.progress.step}; {remedy}"
        self.report.info(line)
        if self.world.rank == 0 and self.stop.signal == signal.SIGINT:
            notify_after_torchrun(line)
        number: int = max(self.world.gather(self.stop.signal or 0))
        leave_within(CLOSING_S, exit_codes.of_signal(number))
        return number

    def require_finite(self) -> None:
        """Raise NotFinite where an evaluation's outputs were no numbers."""
        if self.run.evaluate and self.validation.not_finite:
            count = counted(self.validation.not_finite, "sample")
            raise NotFinite(f"--evaluate: the output is no number for {count}")

    def _fit(self) -> bool:
        self._began_at = self.progress.epoch
        trains = self.progress.epoch < self.optimisation.epochs and not self._enough()
        warnings = (
            schedules.warmup_warning(self.optimisation, self.plan.steps(0)),
            schedules.drop_warning(self.optimisation),
            schedules.growth_warning(self.optimisation, self.plan),
        )
        for warned in filter(None, warnings if trains else ()):
            self.report.warn(warned)
        while self.progress.epoch < self.optimisation.epochs and not self._enough():
            if not self._epoch():
                self._save_whole(last=True)
                return False
            if self._validation_is_due() or self._ceilings_are_due:
                self.save()  # a run that is ended meanwhile resumes into the validation, or behind the epoch
            if not self._first_ceilings():
                return False
            if self._enough() and self.plan.steps(self.progress.consumed) > 0:
                break  # --steps ended it in mid-epoch
            if not self._validate():
                return False
            self.progress = self._next_epoch()
            # until its figures are known, last.pt resumes into the validation
            if not self.validation.unsettled:
                self.save()
            self._forecast()
        is_whole = (
            self.progress.epoch >= self.optimisation.epochs or self._steps_are_taken()
        )
        # asked before the closing validation, which may be the one that uses patience up
        gave_up = self._patience_is_over() and not is_whole
        if self.progress.consumed and not self._validate():
            return False
        if self.progress.consumed or self.validation.unsettled:
            self.save(last=True)
        if gave_up:
            self.report.stopped_early(asdict(self.progress))
        self.meter.flush()
        # one of the figures is wrong, mostly since a shared machine's speed has changed in between
        if self._ceiling_inputs is not None and self.report.above_ceiling():
            self._measure_ceilings(*self._ceiling_inputs)
        return True

    def _forecast(self) -> None:
        """Tell when the run will end, behind an epoch that is over."""
        epoch_steps = self.plan.steps(0)
        length = schedules.run_steps(self.optimisation, epoch_steps) / epoch_steps
        epoch, every = self.progress.epoch, self.run.val_every
        last = math.ceil(length) - 1 if math.isfinite(length) else 0
        if epoch > last or self._enough():
            return
        validated = self.validation.possible and every > 0
        self.report.forecast(
            self.plan.pixels(epoch - 1),
            self._rest(length),
            done=epoch - self._began_at,
            validations=sum(
                validated and (one == last or (one + 1) % every == 0)
                for one in range(epoch, last + 1)
            ),
        )

    def _growth(self, length: float) -> float:
        """Return how much longer the rest of a run of so many epochs takes than with images of this epoch's size, if a
        step takes as long as it has pixels.
        """
        epoch = self.progress.epoch
        if math.isinf(length):
            return 1.0
        whole = sum(size * epochs for size, epochs in self._rest(length).items())
        return whole / self.plan.pixels(epoch) / (length - epoch)

    def _rest(self, length: float) -> dict[int, float]:
        """Return how many epochs of each number of pixels are left of a run of `length` epochs."""
        rest: dict[int, float] = {}
        for epoch in range(self.progress.epoch, math.ceil(length)):
            size = self.plan.pixels(epoch)
            rest[size] = rest.get(size, 0.0) + min(length - epoch, 1.0)
        return rest

    def _next_epoch(self) -> Progress:
        """Return where the run is once this epoch is over; its tail is dropped."""
        now = self.progress
        tail = max(self.plan.samples - now.consumed, 0)
        return replace(now, epoch=now.epoch + 1, consumed=0, dropped=now.dropped + tail)

    def _enough(self) -> bool:
        """Whether --seconds, --steps, --patience or --until end the run."""
        return (
            self._time_is_up
            or self._patience_is_over()
            or self._steps_are_taken()
            or self._figure_is_reached()
        )

    def _figure_is_reached(self) -> bool:
        until = self.optimisation.until
        return until is not None and until == self.progress.reached

    def _patience_is_over(self) -> bool:
        return 0 < self.optimisation.patience <= self.progress.stale

    def _steps_are_taken(self) -> bool:
        steps = self.optimisation.steps
        return steps is not None and self.progress.step >= steps

    # -- an epoch --------------------------------------------------------------------------------------------

    def _epoch(self) -> bool:
        """Train the rest of an epoch. Returns False when a signal ended it."""
        progress = self.progress
        steps = self.plan.steps(progress.consumed)
        if steps == 0:
            return True
        batches = self._begin_epoch()
        # without the tail, where that is no step
        trained = min(
            progress.consumed + steps * self.plan.global_batch_size, self.plan.samples
        )
        epoch_steps = self.plan.steps(0)
        run_steps = schedules.run_steps(self.optimisation, epoch_steps)
        self._whole = 0
        if math.isfinite(run_steps):
            self._whole = round(run_steps / epoch_steps * trained)
        began = time.monotonic()
        bar = self.report.epoch(
            progress.epoch,
            self.optimisation.epochs,
            trained,
            progress.consumed,
            self._whole,
            self._growth(run_steps / epoch_steps),
        )
        with bar, self.watch.steps():
            stopped, ended, pending = self._take_steps(batches, steps)
            last = self.vote.drain()  # an epoch may be one step long
            self._time_is_up |= last["enough"]
            # Drop a pending save request: the epoch's end saves, else _save_due asks again.
            self._save_is_asked_for = False
            self._report_window(pending)
            stopped |= last["stop"]
            if self._wants_ceilings is None and not (ended or stopped):
                self._wants_ceilings = self._is_worth_ceilings(time.monotonic() - began)
            if not (ended or stopped) and self._begin_next_epoch():
                # the clocks go on: what is read while a checkpoint is written is not for nothing
                self._log()
                self._report_window(self._closed(self.meter.point()))
            else:
                self._pause()
        if isinstance(ended, UserError):
            self._save_whole()
            raise ended
        return not (stopped or ended)

    def _begin_epoch(self) -> Iterator[Batch]:
        """Return the batches of the rest of an epoch, and start the clocks."""
        progress = self.progress
        assert self.loader is not None
        ahead = self._next_epochs_batches
        self._next_epochs_batches = None
        begun = ahead or self.loader.batches(progress.epoch, progress.consumed)
        batches = self._remembering(never_blank(self.watch.batches(self.loader, begun)))
        self._failed_in_epoch = set()
        self._epoch_start = replace(progress)
        self.checkpoints.module.train()
        if progress.epoch in self.plan.first_epochs[1:]:
            self.meter.begin_anew()  # larger images than before
            self._trained_on = []
        if ahead:
            self.step.phases.interrupt()
            self.meter.goes_on(progress.epoch)
        else:
            self._start_clocks()
        return batches

    def _take_steps(
        self, batches: Iterator[Batch], steps: int
    ) -> tuple[bool, Exception | None, ClosedWindow | None]:
        """Take the steps of an epoch; return whether a signal has stopped them, the error of this rank that has ended
        them, and the window that is still to be reported.
        """
        progress = self.progress
        pending: ClosedWindow | None = None
        epoch_steps = self.plan.steps(0)
        for left in range(steps, 0, -1):
            # steps are counted, not samples: those of a dropped tail are never trained on
            lr = schedules.learning_rate(
                progress.epoch + (epoch_steps - left) / epoch_steps, self.optimisation
            )
            logging = (progress.step + 1) % self.run.log_every == 0
            self._batches = []
            try:
                outcome = self.step(
                    batches,
                    lr=lr,
                    epoch=progress.epoch,
                    position=progress.consumed,
                    want_norm=logging,
                )
            # asked to stop in a wait, or a file of the data is gone, or a worker
            except (Asked, UserError) as error:
                if self.world.size > 1:
                    raise
                # a part of an --accumulate step has moved the running statistics
                self._stopped_mid_step = bool(self._batches)
                return False, error, pending
            self._count(outcome, lr)
            decided = self._vote()
            # all but the last two steps: the host must not wait for the one it has just launched
            if logging or self._losses.full():
                self._log(everything=False)
            # the window closed one step before: the device has something to do meanwhile now
            self._report_window(pending)
            pending = self._closed(self.meter.point()) if decided["window"] else None
            if decided["stop"] or self._enough():
                return decided["stop"], None, pending
            self._keep(asked=decided["save"], is_last=left == 1)
        return False, None, pending

    def _keep(self, *, asked: bool, is_last: bool) -> None:
        """Write last.pt behind a step where a rank has `asked` for it or --save-every-steps does; or leave a
        snapshot in memory (--unkillable).
        """
        step = self.progress.step
        every = self.run.save_every_steps
        # every rank counts steps, and no vote is needed; behind the last one the epoch's end saves
        by_steps = every > 0 and not is_last and step % every == 0
        # No snapshot, and no save by steps, while a validation is pending: it would lose its figures.
        settled = not self.validation.unsettled
        if asked or (by_steps and settled):
            self._pause()
            self.save()
            self._start_clocks()
        elif self.run.unkillable and step % self.run.unkillable == 0 and settled:
            self._pause()
            self.checkpoints.into_memory(self.progress)
            self._start_clocks()

    def _begin_next_epoch(self) -> bool:
        """Have the loader read the next epoch's first batches while the device ends this one's steps and a
        checkpoint is written, where nothing but that comes between two epochs. Returns whether it reads them.

        In a validation its workers and threads would be in the way, and the rate would count batches whose reading
        took none of its time.
        """
        assert self.loader is not None
        epoch = self.progress.epoch + 1
        is_last = epoch >= self.optimisation.epochs or self._enough()
        grows = epoch in self.plan.first_epochs
        if is_last or self._ceilings_are_due or grows or self._validation_is_due():
            return False
        # what is wrong is said by the epoch itself, behind this one's checkpoint
        with suppress(UserError):
            self._next_epochs_batches = self.loader.batches(epoch, 0)
        return self._next_epochs_batches is not None

    def _pause(self) -> None:
        """Stop the clocks, and tell all steps so far."""
        self._log()
        self._report_window(self._closed(self.meter.pause()))

    def _start_clocks(self) -> None:
        # what went on since the last step is no wait for data
        self.step.phases.interrupt()
        self.meter.resume(self.progress.epoch)

    def _remembering(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Pass batches on to the step, and remember them until it is counted."""
        for batch in batches:
            self._batches.append(batch)
            if unkillable.memory is not None:
                ids = batch.ids.tolist()
                unkillable.memory.enter(
                    self.progress.step + 1, ids, self.failures.name_of
                )
            yield batch

    def _count(self, outcome: torch.Tensor, lr: float) -> None:
        """Count a step that was taken with that learning rate, and its batches."""
        self.step.phases.step()
        self.progress.step += 1
        # less the rows that fill a step up
        taken = min(
            self.plan.global_batch_size, self.plan.samples - self.progress.consumed
        )
        self.progress.consumed += taken
        self.progress.samples += taken
        self.watch.beat()
        for batch in self._batches:
            self._failed_in_epoch.update(batch.failed)
            self.meter.add(batch.delivered)
            self._trained_on.append(batch.ids)
        ids = [batch.ids for batch in self._batches]
        self._losses.add(self.progress.step, outcome, ids, self.step.loss_terms, lr)
        self.profiler_step()
        if self.progress.step == 1:
            last = self._batches[-1]
            self.report.images(replace(last, images=self.step.task.shown(last)))

    def _vote(self) -> dict[str, bool]:
        """All-reduce this rank's flags; return the result of the previous step (one step late)."""
        save = self._save_due()
        # the others decide a step later, and until then nobody asks again
        self._save_is_asked_for |= save
        decided = self.vote.exchange(
            stop=self.stop(),
            window=self.meter.due(),
            save=save,
            enough=self._has_measured,
        )
        self._time_is_up |= decided["enough"]
        return decided

    # -- ceilings --------------------------------------------------------------------------------------------

    @property
    def _ceilings_are_due(self) -> bool:
        return bool(self._wants_ceilings) and self._ceiling_inputs is None

    def _is_worth_ceilings(self, seconds: float) -> bool:
        """Whether to measure the ceilings: `auto` does where the training takes longer than that, by the `seconds` of
        its first epoch.
        """
        asked = self.run.ceilings
        if asked != "auto" or not self._whole:
            return bool(asked)
        step_s = seconds / (self.progress.step - self._epoch_start.step)
        # by rank 0's clock: all ranks measure, or none
        step_s = self.world.gather(step_s)[0]
        run_s = step_s * self._whole / self.plan.global_batch_size
        if run_s > CEILINGS_S + CEILINGS_STEPS * step_s:
            return True
        self.report.info(
            f"ceilings: not measured, which takes longer than these {run_s:.0f} s of training; --ceilings true does it"
        )
        return False

    def _first_ceilings(self) -> bool:
        """Measure the ceilings once, after the first epoch; where images grow, after the first one of the
        last size, or of the size that the run ends with. Returns False when a signal has come.
        """
        if not self._ceilings_are_due or not self._batches:
            return True
        epoch = self.progress.epoch
        grows_later = epoch < self.plan.first_epochs[-1]
        if grows_later and epoch + 1 < self.optimisation.epochs and not self._enough():
            return True
        # ceilings are measured by all ranks together, so a signal on any of them is all ranks' reason to
        # leave
        self.vote.exchange(stop=self.stop())
        if self.vote.drain()["stop"]:
            return False
        # the next epoch's samples, which nobody has read yet, where they have the same size
        self._ceiling_inputs = self._batches[-1], epoch if grows_later else epoch + 1
        return self._measure_ceilings(*self._ceiling_inputs)

    def _measure_ceilings(self, batch: Batch, epoch: int) -> bool:
        """Measure and tell; the loader with images of `epoch`. Returns False when a signal came."""
        assert self.loader is not None
        self.report.info("measuring the two ceilings: the step alone, the loader alone")
        try:
            with self.watch.slow(), self.meter.pause_for("ceilings"):
                ceilings = self.measure_ceilings(
                    batch,
                    epoch=epoch,
                    stop=self.stop,
                    step=self.step,
                    loader=cast("Loader", WatchedLoader(self.loader, self.watch)),
                    plan=self.plan,
                    world=self.world,
                )
        except Asked:
            return False
        if ceilings is None:
            return False
        self.report.ceilings(
            compute=ceilings["compute"],
            loader=ceilings["loader"],
            step=self.progress.step,
        )
        return True

    # -- telling ---------------------------------------------------------------------------------------------

    def _log(self, *, everything: bool = True) -> None:
        """Tell the steps whose outcomes are there, or with `everything` wait for all of them."""
        points = self._losses.read(
            everything=everything, failed=len(self._failed_in_epoch)
        )
        if not points:
            return
        for point in points:
            if self._last_scale is not None and point["loss_scale"] < self._last_scale:
                self._skipped_steps += 1  # the scale was too high
            self._last_scale = point["loss_scale"]
        # failures are counted over all ranks, so that all of them end when there are too many
        failed: set[int] = set()
        if self._losses.failed:
            failed.update(*self.world.gather(sorted(self._failed_in_epoch)))
        self.failures.check(failed)
        began = self._epoch_start
        self.progress.lost = began.lost + len(failed)
        self.progress.failed = tuple(sorted(self.failures.ids))
        # the bar stands where the figures do: at the last step that was read
        steps = int(points[-1]["step"]) - began.step
        consumed = began.consumed + steps * self.plan.global_batch_size
        consumed = min(consumed, self.plan.samples)
        phases = self.step.phases
        self.report.train(
            points,
            progress=asdict(self.progress) | {"consumed": consumed},
            skipped_steps=self._skipped_steps,
            phases=phases.read(),
            steps=phases.steps,  # of this read
        )

    def _closed(self, window: RateWindow | None) -> ClosedWindow | None:
        if window is None:
            return None
        ids = np.concatenate(self._trained_on)
        self._trained_on = []
        return window, self.progress.step, self.bytes_of(ids[ids >= 0])

    def _report_window(self, pending: ClosedWindow | None) -> None:
        if pending is None:
            return
        window, step, own_bytes = pending
        read_bytes = float(self.world.sum(np.array([own_bytes], np.float64))[0])
        seconds = self.optimisation.seconds
        self._has_measured = seconds is not None and self.meter.has_measured(seconds)
        mib_per_s = read_bytes / 2**20 / window.seconds
        self.report.window(window, step=step, mib_per_s=mib_per_s)

    # -- validation and checkpoints --------------------------------------------------------------------------

    def _validate(self) -> bool:
        """Validate if it is due. Returns False when a signal came; last.pt, already written, resumes into
        validation.
        """
        if not self._validation_is_due():
            return True
        epoch_is_over = self.plan.steps(self.progress.consumed) == 0
        resumes_at = self._next_epoch() if epoch_is_over else self.progress
        return self._start_validation(resumes_at)

    def _validation_is_due(self) -> bool:
        epoch = self.progress.epoch
        is_last = epoch + 1 >= self.optimisation.epochs or self._enough()
        every = self.run.val_every
        return (
            self.validation.possible
            and every > 0
            and (is_last or (epoch + 1) % every == 0)
        )

    def _start_validation(self, best_resumes_at: Progress | None) -> bool:
        # its figures may take minutes
        with self.watch.slow(), self.meter.pause_for("validation"):
            return self.validation.start(
                self.progress,
                best_resumes_at=best_resumes_at,
                vote=self.vote,
                stop=self.stop,
                watch=self.watch,
            )

    def _save_due(self) -> bool:
        """Whether rank 0 wants a checkpoint, by the clock or for figures, and has not said so yet."""
        if self.world.rank != 0 or self._save_is_asked_for:
            return False
        if self.validation.unsettled:
            # the checkpoint is written with the figures; saving before they are there would block on them
            return self.validation.figures_are_there()
        return 0 < 60 * self.run.save_every_minutes <= time.monotonic() - self._saved_at

    def _save_whole(self, *, last: bool = False) -> None:
        """Write last.pt, unless a step was left in its middle: then the earlier one stays."""
        if not self._stopped_mid_step:
            self.save(last=last)

    def save(self, *, last: bool = False) -> None:
        """Write last.pt beside what follows, once a validation is settled; the run's `last` one is for `finish`.

        Raises NotFinite in place of saving after a loss, or a state, that is not finite.
        """
        # first: its figure is a part of the progress that is saved
        with self.watch.slow(), self.meter.pause_for("validation"):
            self.validation.settle(self.progress)
        with self.watch.slow(), self.meter.pause_for("checkpoint"):
            # a NaN loss of any step before must not get into last.pt
            self._losses.read()
            content = self.checkpoints.content(self.progress)
            self.checkpoints.write("last.pt", content, last=last)
            # rank 0 may have waited for the write before, for longer than a step may take
            self.world.barrier()
            self.checkpoints.into_memory(self.progress)
        self._saved_at = time.monotonic()
        self._save_is_asked_for = False
