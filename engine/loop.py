"""What happens over a run: epochs of steps, validation, checkpoints, stopping. Knows no loader, model or task by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from contracts import Batch, Loader, NotFinite, Plan, Task, UserError
from engine import checkpoint, memory
from engine.distributed import ProcessWorld, Vote
from engine.evaluate import Outcome, Validated, evaluate, told_by
from engine.recent import Recent
from engine.step import Step
from engine.stop import StopRequest


@dataclass
class Progress:
    """Where a run is. (epoch, consumed) is all that a loader needs to go on."""

    epoch: int = 0
    consumed: int = 0  # samples of this epoch, all ranks
    step: int = 0  # optimiser steps of the whole run
    best: float = float("-inf")
    dropped: int = 0  # samples that were the tail of an epoch


@dataclass(kw_only=True)
class Run:
    """Everything a run is made of, and its loop. `report` is called on every rank and speaks on rank 0."""

    world: ProcessWorld
    plan: Plan
    step: Step
    module: nn.Module  # the bare module, whose state is saved
    task: Task
    precision: str
    loader: Loader | None  # None: to validate alone
    open_validation: Callable[[], Loader] | None
    validation_plan: Plan
    learning_rate: Callable[[float], float]
    report: Any
    meter: Any
    phases: Any
    measure_ceilings: Callable[[Run, Batch], bool] | None  # whether it measured, and was not asked to stop
    profile: Any
    output: Path
    identity: dict[str, Any]  # arch, classes, manifest: what a checkpoint must agree with; config
    epochs: int
    steps: int | None
    seconds: float | None
    val_every: int
    log_every: int
    save_every_steps: int
    save_every_minutes: float
    bytes_of: Callable[[np.ndarray], int]
    name_of: Callable[[str, int], str]  # split, sample
    progress: Progress = field(default_factory=Progress)
    failed: set[int] = field(default_factory=set)
    stop: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        self.vote = Vote(self.world)
        self._recent = Recent(self.log_every, self.world)
        self._saved_at, self._asked = time.monotonic(), False
        self._skipped = 0
        self._kept: Batch | None = None  # the last of the epoch
        self._last_batch: Batch | None = None  # what ceilings are measured with
        self._last_scale: float | None = None
        self._epoch_failed: set[int] = set()
        self._failed_in_validation: set[int] = set()
        self._validation_noted = False
        self._outstanding: Validated | None = None
        self._read_bytes = 0
        self._measured = False
        self._time_is_up = False

    # -- the run ------------------------------------------------------------------------------------------------------

    def fit(self) -> bool:
        """Train to the end. False when a signal ended it early; a checkpoint has then been written."""
        with self._dropping():
            try:
                return self._fit()
            except NotFinite:  # on every rank
                self._settle()
                raise

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Of a validation whose figures are still being made when an error ends the run."""
        try:
            yield
        finally:
            if self._outstanding is not None:
                self._outstanding.outcome.drop()

    def _fit(self) -> bool:
        while self.progress.epoch < self.epochs and not self._enough():
            if not self._epoch():
                self.save()
                return False
            self.save()  # resumes into the validation
            if not self._ceilings():
                return False
            if self._enough() and self.plan.steps(self.progress.consumed) > 0:
                break  # --steps ended it in mid-epoch
            if not self._validate():
                return False
            self.progress = self._next_epoch()
            if self._outstanding is None:  # until its figures are known, last.pt resumes into the validation
                self.save()
        if self.progress.consumed and not self._validate():
            return False
        if self.progress.consumed or self._outstanding is not None:
            self.save()
        self.meter.flush()
        if self._last_batch is not None and self.report.above_ceiling():
            self.measure_ceilings(self, self._last_batch)  # type: ignore[misc]
        return True

    def _next_epoch(self) -> Progress:
        """Where the run is once this epoch is over; its tail is dropped."""
        now = self.progress
        return replace(now, epoch=now.epoch + 1, consumed=0, dropped=now.dropped + self.plan.samples - now.consumed)

    def _enough(self) -> bool:
        return self._time_is_up or (self.steps is not None and self.progress.step >= self.steps)

    def _epoch(self) -> bool:
        """The rest of an epoch. False when a signal ended it."""
        progress, total = self.progress, self.plan.steps(self.progress.consumed)
        if total == 0:
            return True
        kept: Batch | None = None
        assert self.loader is not None
        batches = self._noting(self.loader.batches(progress.epoch, progress.consumed))
        self._epoch_failed = set()
        self.module.train()
        self.phases.interrupt()
        self.meter.resume(progress.epoch)
        with self.report.epoch(
            progress.epoch, self.epochs, progress.consumed + total * self.plan.global_batch_size, progress.consumed
        ) as bar:
            closed: tuple[Any, int, int] | None = None
            decided, mistake = {"stop": False}, None
            for _ in range(total):
                epoch = progress.epoch + progress.consumed / self.plan.samples
                lr = self.learning_rate(epoch)
                logging = (progress.step + 1) % self.log_every == 0
                self._seen: list[Batch] = []
                try:
                    outcome = self.step(batches, lr=lr, epoch=progress.epoch, position=progress.consumed, want_norm=logging)
                except UserError as error:  # a file of the data is gone, or a worker
                    if self.plan.global_batch_size > self.plan.batch_size:
                        raise  # other ranks wait in their step, or this one is half done
                    mistake = error
                    break
                self.phases.step()
                progress.step += 1
                progress.consumed += self.plan.global_batch_size
                self._count(outcome)
                self.profile.step()
                kept = self._seen[-1]
                if progress.step == 1:
                    self.report.images(kept)
                self._asked = (due := self._save_due()) or self._asked  # the others decide a step later
                decided = self.vote.exchange(stop=self.stop(), window=self.meter.due(), save=due, enough=self._measured)
                self._time_is_up |= decided["enough"]
                if logging or self._recent.full():
                    self._log(lr, bar, everything=False)
                self._window(closed)  # of the step before: now the device has something to do meanwhile
                closed = self._closed(self.meter.point()) if decided["window"] else None
                if decided["stop"] or self._enough():
                    break
                if decided["save"]:
                    self._log(lr, bar)
                    self._window(self._closed(self.meter.pause()))
                    self.save()
                    self.phases.interrupt()
                    self.meter.resume(progress.epoch)
            last = self.vote.drain()  # an epoch may be one step long
            stopped = last["stop"] or decided["stop"]
            self._time_is_up |= last["enough"]
            self._window(closed)
            self._log(lr, bar)
            self._window(self._closed(self.meter.pause()))
        self._kept = kept
        if mistake is not None:
            self.save()
            raise mistake
        return not stopped

    def _ceilings(self) -> bool:
        """Once, after the first epoch, with its last batch. False when a signal has come."""
        if self.measure_ceilings is None or self._last_batch is not None or self._kept is None:
            return True
        self.vote.exchange(stop=self.stop())
        if self.vote.drain()["stop"]:
            return False
        self._last_batch = self._kept
        return self.measure_ceilings(self, self._kept)

    def _noting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches on their way into the step, remembered until it is counted."""
        for batch in batches:
            self._seen.append(batch)
            yield batch

    def _count(self, outcome: torch.Tensor) -> None:
        ids = [batch.ids for batch in self._seen]
        for batch in self._seen:
            self._epoch_failed.update(batch.failed)
            self.meter.add(batch.delivered)
            self._read_bytes += self.bytes_of(batch.ids[batch.ids >= 0])
        self._recent.add(self.progress.step, outcome, ids, self.step.parts)

    # -- telling ------------------------------------------------------------------------------------------------------

    def _log(self, lr: float, bar: Any, *, everything: bool = True) -> None:
        points = self._recent.read(everything=everything)
        if not points:
            return
        for point in points:
            if self._last_scale is not None and point["loss_scale"] < self._last_scale:
                self._skipped += 1
            self._last_scale = point["loss_scale"]
        self._check_failed()
        unread = self.progress.step - int(points[-1]["step"])
        self.report.train(
            points,
            progress=asdict(self.progress) | {"consumed": self.progress.consumed - unread * self.plan.global_batch_size},
            lr=lr,
            skipped_steps=self._skipped,
            phases=self.phases.read(),
            steps=self.phases.steps,
            bar=bar,
        )

    def _check_failed(self) -> None:
        """Every rank's failed samples; too many end the run. A sample may fail once an epoch, and is counted once."""
        failed = {sample for ids in self.world.gather(sorted(self._epoch_failed)) for sample in ids}
        new, self.failed = failed - self.failed, self.failed | failed
        self._judge(failed, new, self.plan.samples, "train")

    def _judge(self, failed: set[int], new: set[int], samples: int, split: str) -> None:
        if new:
            self.report.failed(split, [self.name_of(split, sample) for sample in sorted(new)])
        limit = max(10, samples // 100)
        if len(failed) > limit:
            named = ", ".join(self.name_of(split, sample) for sample in sorted(failed)[:3])
            raise UserError(f"{len(failed)} samples of {split} cannot be decoded in this epoch (more than {limit}), such as {named}")

    def _closed(self, window: Any) -> tuple[Any, int, int] | None:
        """A window that has just closed, the step it ends with, and the bytes that were read for it."""
        if window is None:
            return None
        read, self._read_bytes = self._read_bytes, 0
        return window, self.progress.step, read

    def _window(self, closed: tuple[Any, int, int] | None) -> None:
        if closed is not None:
            window, step, read = closed
            total = float(self.world.sum(np.array([read], np.float64))[0])
            self._measured = self.seconds is not None and self.meter.has_measured(self.seconds)
            self.report.window(window, step=step, mib_per_s=total / 2**20 / window.seconds)

    # -- validation and checkpoints -----------------------------------------------------------------------------------

    def _validate(self) -> bool:
        """False when a signal came; the epoch's checkpoint, already written, resumes into validation."""
        epoch = self.progress.epoch
        last = epoch + 1 >= self.epochs or self._enough()
        due = self.val_every > 0 and (last or (epoch + 1) % self.val_every == 0)
        if self.open_validation is None or not due:
            return True
        if not self._pass_over(picks=True):
            return False
        if self._outstanding is not None and not self._outstanding.outcome.later:
            self._settle()
        return True

    def validate(self) -> bool:
        """Validate, and tell the figures. False when a signal came."""
        with self._dropping():
            passed = self._pass_over(picks=False)
            self._settle()
        return passed

    def _pass_over(self, *, picks: bool) -> bool:
        """Open the validation loader, pass over it once, close it: it holds no memory while training runs. False when a signal came."""
        if self.open_validation is None:
            raise UserError("--evaluate needs --data: there is nothing to validate on")
        plan = self.validation_plan
        with memory.validating(plan.batch_size), self.open_validation() as loader, self.report.validation(plan.samples * plan.views) as bar:
            outcome = evaluate(
                self.module,
                loader.batches(0, 0),
                task=self.task,
                precision=self.precision,
                world=self.world,
                vote=self.vote,
                stop_requested=self.stop,
                progress=bar,
            )
            if outcome is not None:
                self._outstanding = self._validated(outcome, loader, picks=picks)
            notes = getattr(loader, "notes", ())
        del loader  # and with it all that it still holds
        for line in () if self._validation_noted else notes:
            self.report.info(f"val: {line}")
        self._validation_noted = True
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()  # what validation alone had needed goes back to the device
        if outcome is None:
            return False
        failed = set(outcome.failed)
        self._judge(failed, failed - self._failed_in_validation, plan.samples, "val")
        self._failed_in_validation |= failed
        return True

    def _validated(self, outcome: Outcome, loader: Loader, *, picks: bool) -> Validated:
        """With the state that was validated, if it may become best.pt."""
        progress = self.progress
        epoch = progress.epoch if progress.consumed else progress.epoch - 1  # at its start: of the one before
        state = None
        if picks and self.world.rank == 0:
            over = self.plan.steps(progress.consumed) == 0
            state = self._state(self._next_epoch() if over else progress)
            state = checkpoint.on_host(state) if outcome.later else state
        trained = epoch if epoch >= 0 else None
        return Validated(outcome=outcome, loading=told_by(loader), step=progress.step, epoch=trained, state=state, picks=picks)

    def _settle(self) -> None:
        """Wait for a validation's figures, tell them, and keep what was validated if it is the best. Every rank calls it."""
        if self._outstanding is None:
            return
        validated, self._outstanding = self._outstanding, None
        result = validated.outcome.result(self.world)
        self.report.validated(result, loading=validated.loading, step=validated.step, epoch=validated.epoch)
        best = self.task.best
        worst = -np.inf if best.larger_is_better else np.inf
        figure = float(np.nan_to_num(result[best.name], nan=worst))  # AP where there is nothing to find
        better = figure > self.progress.best if best.larger_is_better else figure < self.progress.best
        if validated.picks and (better or np.isneginf(self.progress.best)):
            self.progress.best = figure
            if validated.state is not None:
                validated.state["progress"]["best"] = figure
            self._write("best.pt", validated.state)

    def _save_due(self) -> bool:
        """Rank 0 says, once. When a validation's figures have come, what was trained since is kept with them; till then it would wait."""
        if self.world.rank != 0 or self._asked:
            return False
        if self._outstanding is not None:
            return self._outstanding.outcome.done()
        by_steps = self.save_every_steps > 0 and self.progress.step % self.save_every_steps == 0
        return by_steps or 0 < 60 * self.save_every_minutes <= time.monotonic() - self._saved_at

    def save(self) -> None:
        """Write last.pt from rank 0, once a validation is settled; the others wait. Nothing is saved past a loss that is not finite."""
        self._settle()
        self._recent.read()
        self._write("last.pt", self._state(self.progress) if self.world.rank == 0 else None)
        self._saved_at, self._asked = time.monotonic(), False

    def _write(self, name: str, state: dict[str, Any] | None) -> None:
        error = None
        if state is not None:
            try:
                checkpoint.write(self.output / name, state)
            except UserError as mistake:
                error = str(mistake)
        if (error := self.world.gather(error)[0]) is not None:
            raise UserError(error)

    def _state(self, progress: Progress) -> dict[str, Any]:
        return {
            "model": self.module.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "progress": asdict(progress),
            "ordering": self.plan.ordering,
            **self.identity,
        }

    def resume(self, content: dict[str, Any] | None) -> None:
        """Where a checkpoint left off; checkpoint.restore has taken up its tensors. None: from the beginning."""
        if content is None:
            return
        self.progress = Progress(**content["progress"])
        if self.loader is not None and (others := checkpoint.changed(content, self.identity.get("config", {}))):
            self.report.info(f"--resume: otherwise than in the checkpoint: {', '.join(others)}")
        ordering = content.get("ordering", self.plan.ordering)
        if ordering != self.plan.ordering and self.progress.consumed:
            orders = f"{ordering}; now {self.plan.ordering}"
            self.report.warn(f"--resume: this epoch was begun in another order ({orders}): some of its samples come twice, some not at all")
