"""Everything a run tells, in one place: console, TensorBoard, metrics.jsonl, summary.json.

Every rank calls it, because some figures are sums over the ranks; rank 0 alone speaks. Must not know how a
figure came about.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contracts import Batch, Counts, Loader, Pixels, RateWindow, Reported, World
from report import pictures, summary
from report.advice import told_bound
from report.console import Bar, Console, figures, number, took
from report.hardware import (
    READINGS,
    Sampler,
    device_memory,
    host_gib,
    over_ranks,
    versions,
)
from report.meter import Meter, bound, bound_of, too_high
from report.record import FAILED, REJECTED, RESULTS, Record
from report.sinks import Boards
from report.summary import PHASES
from report.tensorboard import SETTINGS, layout, metrics

NOT_IN_SUMMARY = (
    "settings",
    "title",
    "config",
    "log",
    "unit",
    "rejected",
    *summary.DETECTION,
)
"""Entries of a run's description that summary.json does not take over as they are."""
SAID = 5
"""Samples that could not be decoded, of one check, that are said by name."""


class Reporter:
    """What engine/loop.py tells: receives points, windows, validations and ceilings, and writes the
    summary at the end.

    `task` says how its figures are shown; `compared` are figures of all tasks, by which TensorBoard's
    HPARAMS page compares runs.
    """

    def __init__(
        self,
        output: Path,
        *,
        world: World,
        console: Console,
        meter: Meter,
        description: Mapping[str, Any],
        task: Reported,
        compared: Sequence[str],
        pixels: Pixels,
        resumed_at: int | None,
    ) -> None:
        """Open the run's files below `output`, and say its title.

        `description` is what `describe` returns, `pixels` the mean and std that images were normalised with,
        `resumed_at` the step of the checkpoint, None for a fresh run.
        """
        here = world.rank == 0
        self._record = record = Record(output, enabled=here, resume_step=resumed_at)
        record.config(description["config"])
        if rejected := description.get("rejected"):
            record.file(REJECTED, rejected)
        if kept := record.kept_metrics:
            console.warn(
                f"--resume auto: no last.pt is there, and the run begins anew; its metrics: {kept}"
            )
        if untold := record.untold:
            steps = (
                f"steps {untold[0]} to {untold[-1]}"
                if len(untold) > 1
                else f"step {untold[0]}"
            )
            why = "the ranks could not meet to add them up before last.pt was saved"
            console.warn(f"metrics.jsonl has no losses of {steps}: {why}")
        first_new = None if resumed_at is None else resumed_at + 1
        self._board = Boards(
            output, description, enabled=here, purge_step=first_new, warn=console.warn
        )
        self._world = world
        self._console = console
        self._meter = meter
        self._description = dict(description)
        self._task = task
        self._pixels = pixels
        self._resumed_at = resumed_at or 0
        self._rate_unit = self._description.get("unit", "img/s")
        self._item = self._rate_unit.removesuffix("/s")  # what is counted: img, clip
        self._sampler = Sampler(
            world.device, cores=description["hardware"]["cores"]
        ).start()
        self._bar: Bar | None = None  # of the epoch
        self._rate: float | None = None  # of the last window
        self._ceilings: dict[str, dict[str, Any] | None] = {
            "compute": None,
            "loader": None,
        }
        self._memory: dict[str, float | None] = {}  # the highest so far
        self._load: list[dict[str, float | None]] = []  # of each window
        self._ended_with: list[int] = []  # the step with which each window ended
        # of each step since the run, or this part of it, began; nan where it had none
        self._steps = {name: array("d") for name in PHASES}
        self._train_losses: list[float] = []  # since the last validation
        self._lr: float | None = None
        self._validation = (
            record.validation
        )  # of a resumed run, until it validates again
        self._validation_reader = ""
        self._validation_counts = Counts()
        self._validation_s: Mapping[str, float] | None = None
        self._early_stop: dict[str, int] | None = None
        self._finished = False
        settings = self._description["settings"]
        self._board.layout(layout(task))
        shown = {
            name: settings[name] for name in SETTINGS if settings.get(name) is not None
        }
        self._board.hparams(shown, metrics(compared))
        console.info(self._description["title"])

    # -- called by the loop ----------------------------------------------------------------------------------

    @contextmanager
    def epoch(
        self, epoch: int, epochs: int, samples: int, consumed: int
    ) -> Iterator[None]:
        """Show a bar inside, from `consumed` to `samples`."""
        # read, so that the load of validation and ceilings is no part of the next window
        self._measure_memory(self._sampler.read()["host_gib"])
        title = f"epoch {epoch + 1}/{epochs}"
        with self._console.epoch(
            title=title, total=samples, item=self._item, first=consumed
        ) as self._bar:
            yield
        self._bar = None

    @contextmanager
    def validation(self, samples: int) -> Iterator[Callable[[int], None]]:
        """Show a bar inside; its callback gets the samples of this rank that are done."""
        done = 0
        began = time.perf_counter()
        with self._console.epoch(
            title="validation", total=samples, item=self._item
        ) as bar:

            def add(count: int) -> None:
                nonlocal done
                done += count * self._world.size
                bar.update(
                    samples=min(done, samples),
                    rate=done / (time.perf_counter() - began),
                )

            yield add

    def train(
        self,
        points: list[dict[str, float]],
        *,
        progress: Mapping[str, Any],
        skipped_steps: int,
        phases: dict[str, float],
        steps: list[dict[str, float]],
    ) -> None:
        """Tell the steps since the last call.

        `points`: step, lr, loss, grad_norm, loss_scale of each step, and the terms of the loss by name.
        `phases`: means, milliseconds a step; `steps`: the same of each step that the device has passed since,
        in order.
        A loss is nan where no sample of the step was valid; it is left out of the mean.
        """
        last = points[-1]
        step = int(last["step"])
        means, norm = summary.of_points(points)
        loss = means.pop("loss")
        self._train_losses += [
            point["loss"] for point in points if not np.isnan(point["loss"])
        ]
        self._lr = last["lr"]
        if self._world.rank == 0:
            for name, column in self._steps.items():
                column.extend(one.get(name, np.nan) for one in steps)
        timed = [name for name in PHASES if any(name in one for one in steps)]
        self._record.point(
            "train",
            step,
            {
                "epoch": progress["epoch"],
                "consumed": progress["consumed"],
                "losses": [point["loss"] for point in points],
                **({"parts": means} if means else {}),
                "lr": last["lr"],
                "lrs": [point["lr"] for point in points],
                "grad_norm": norm,
                "loss_scale": last["loss_scale"],
                "skipped_steps": skipped_steps,
                "ms": phases,
                "steps_ms": {
                    name: [one.get(name, 0.0) for one in steps] for name in timed
                },
            },
        )
        self._board.scalars(
            {
                "train/loss": loss,
                **{f"loss/{name}": mean for name, mean in sorted(means.items())},
                "train/lr": last["lr"],
                "train/grad_norm": norm,
                "train/loss_scale": last["loss_scale"],
                "train/skipped_steps": skipped_steps,
                **{
                    f"time/{name}_ms": phases[name] for name in PHASES if name in phases
                },
            },
            step,
        )
        if self._bar is not None:
            self._bar.update(
                samples=progress["consumed"],
                rate=self._rate,
                loss=loss,
                wait_ms=phases.get("data_wait"),
            )

    def window(self, window: RateWindow, *, step: int, mib_per_s: float) -> None:
        """Tell a closed window of the rate, and what the machine was doing meanwhile."""
        self._rate = window.rate
        self._ended_with.append(step)
        load = self._sampler.read()
        self._load.append(load)
        self._measure_memory(load["host_gib"])
        compute = self._ceiling("compute")
        loader = self._ceiling("loader")
        efficiency, _ = bound(window.rate, compute, loader)
        values = {
            "throughput/samples_per_s": window.rate,
            "throughput/per_gpu": window.rate / self._world.size,
            "throughput/compute_ceiling": compute,
            "throughput/loader_ceiling": loader,
            "throughput/efficiency": efficiency,
            "io/mib_per_s": mib_per_s or None,  # 0: the task does not know
            "gpu/utilisation": load["gpu_utilisation"],
            "gpu/power_w": load["power_w"],
            "gpu/sm_mhz": load["sm_mhz"],
            **{f"memory/{name}": value for name, value in self._memory.items()},
        }
        self._board.scalars(values, step)
        figures_of_window = {
            "samples": window.samples,
            "seconds": window.seconds,
            "rate": window.rate,
            "epoch": window.epoch,
        }
        self._record.point("window", step, {**figures_of_window, **load})

    def ceilings(
        self, *, compute: dict[str, Any], loader: dict[str, Any], step: int
    ) -> None:
        """Tell measured ceilings; where they are measured again, the larger one stands."""
        for name, ceiling in (("compute", compute), ("loader", loader)):
            if (self._ceiling(name) or 0.0) < ceiling["rate"]:
                self._ceilings[name] = ceiling
        tags = {
            f"throughput/{name}_ceiling": self._ceiling(name)
            for name in ("compute", "loader")
        }
        self._board.scalars(tags, step)
        self._record.point("ceilings", step, {"compute": compute, "loader": loader})
        rates = (
            f"compute {number(compute['rate'])}/s, loader {number(loader['rate'])}/s"
        )
        self._console.info(f"ceilings: {rates}")

    def above_ceiling(self) -> bool:
        """Whether the rate is higher than a ceiling can allow: the machine's speed has changed since that was
        measured.
        """
        efficiency, _ = bound_of(
            self._meter.result(), self._ceiling("compute"), self._ceiling("loader")
        )
        return too_high(efficiency)

    def validated(
        self,
        result: Mapping[str, Any],
        *,
        averaged: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        step: int,
        epoch: int | None,
        reader: str = "",
        counts: Counts | None = None,
    ) -> None:
        """Tell the figures of a validation; a mean over no loss at all is left out.

        `averaged`: the figures of the weights' average, None without --ema. `epoch`: the last one that was
        trained, None when there was none. `reader`, `counts`: of its loader.
        `files`: what is written into the run's folder. `extras` of rank 0's result: {"scalars": {tag:
        number}, "images": {tag: uint8 [N, H, W, 3]}}.
        """
        own_figures = summary.figures_of(result)
        of_ema = summary.figures_of(averaged or {})
        self._validation = own_figures | {
            f"ema_{name}": value for name, value in of_ema.items()
        }
        self._validation_s = result.get("seconds")
        self._validation_reader = reader
        self._validation_counts = counts or Counts()
        extras: Mapping[str, Mapping[str, Any]] = result.get("extras", {})
        tags = {f"val/{name}": value for name, value in self._validation.items()}
        self._board.scalars({**tags, **extras.get("scalars", {})}, step)
        self._record.point(
            "val",
            step,
            {"epoch": epoch, **self._validation, "failed": result["failed"]},
        )
        trained = {
            "train_loss": summary.mean(self._train_losses),
            "lr": self._lr,
            "rate": self._rate,
        }
        names = [figure.name for figure in self._task.figures]
        names += [f"ema_{name}" for name in names] if averaged else []
        figures_of_row = {name: self._validation.get(name) for name in names}
        self._record.row(
            RESULTS, {"epoch": epoch, "step": step, **trained, **figures_of_row}
        )
        self._train_losses.clear()
        for name, content in (files or {}).items():
            self._record.file(name, content)
        for tag, images in extras.get("images", {}).items():
            self._board.images(tag, images, step, once=False)
        which = "" if epoch is None else f" epoch {epoch + 1}"
        line = figures(own_figures, self._task.figures)
        self._console.info(f"validated{which}: {line}{took(self._validation_s)}")
        if of_ema:
            self._console.info(
                f"validated its average: {figures(of_ema, self._task.figures)}"
            )

    def images(self, batch: Batch) -> None:
        """Show a grid of augmented training images, or of the middle frames of clips, once a run."""
        if self._world.rank == 0:
            mean = torch.tensor(self._pixels.mean)
            std = torch.tensor(self._pixels.std)
            self._board.images("augmented", pictures.augmented(batch, mean, std), 0)

    def info(self, line: str) -> None:
        """Say a line."""
        self._console.info(line)

    def warn(self, line: str) -> None:
        """Say a line that asks for attention."""
        self._console.warn(line)

    def stopped_early(self, progress: Mapping[str, Any]) -> None:
        """Tell that --patience has ended the run before its time. Epochs are told from 1 on."""
        epoch = progress["epoch"]
        best = progress["best_epoch"] + 1
        stale = progress["stale"]
        self._early_stop = {"epoch": epoch, "best_epoch": best, "validations": stale}
        self._console.info(
            f"stopped early after epoch {epoch}, as --patience asks: the best was epoch {best}, and "
            f"{stale} validations since were no better"
        )

    def failed(self, split: str, names: Sequence[str]) -> None:
        """Tell which samples could not be decoded: the first ones are said, all are in failed.txt."""
        for name in names[:SAID]:
            self.warn(f"cannot be decoded, left out: {name}")
        if len(names) > SAID:
            self.warn(
                f"and {len(names) - SAID} more, in {self._record.folder / FAILED}"
            )
        self._record.lines(FAILED, [f"{split}\t{name}" for name in names])

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(
        self,
        progress: Mapping[str, Any],
        *,
        failed: set[int],
        finished: bool,
        loader: Loader | None = None,
    ) -> dict[str, Any]:
        """Write and return the summary; rank 0 prints it as a table when the run came to its end.

        `progress` is the loop's, `failed` the ids of training samples that could not be decoded, `loader` the
        training's.
        """
        validation = self._validation
        early = self._early_stop
        if (
            finished
            and not self._meter.total_samples()
            and (earlier := self._record.earlier_summary())
        ):
            remedy = f"{'a larger --patience goes' if early else 'more --epochs or --steps go'} on from here"
            until = earlier.get("steps")
            whose = (
                ""
                if until == progress["step"]
                else f" of the part that ended at step {until}"
            )
            self._console.info(
                f"nothing was left to train, its rates{whose} stay as they were: {remedy}"
            )
            values = {
                **earlier,
                "finished": True,
                **summary.trained(progress, failed),
                "early_stop": early,
            }
            values |= summary.best(progress, self._task.figures[0], self._record.folder)
            if (
                validation and validation != earlier["validation"]
            ):  # of a part that was killed before its end
                values |= {"validation": validation, "validation_s": self._validation_s}
            self._record.summary(values)
            # the events were cut behind that step
            self._tell_rate(
                earlier["rate"]["steady"], earlier["efficiency"], step=progress["step"]
            )
            self._finished = True
            return values
        rate = self._meter.result(self._rate_unit)
        clips = self._clips(loader, rate["steady"])
        detection = summary.detection(self._description, rate["steady"])
        efficiency, bound_by = bound_of(
            rate, self._ceiling("compute"), self._ceiling("loader")
        )
        if (
            self._memory.get("host_gib") is None
        ):  # the run was over before the sampler's first reading
            self._measure_memory(host_gib())
        # what is said of the machine and of a step is of the same windows as the rate
        warm = rate["warmup_windows"]
        first = (
            self._ended_with[warm - 1] - self._resumed_at
            if 0 < warm <= len(self._ended_with)
            else 0
        )
        steps = {name: np.array(column) for name, column in self._steps.items()}
        steady_steps = {name: column[first:] for name, column in steps.items()}
        host_gib_of_all = self._world.sum(np.array([self._memory["host_gib"] or 0.0]))[
            0
        ]
        own_gpu = {
            name: summary.mean_load(self._load, reading, warm)
            for name, reading in READINGS.items()
        }
        busy = summary.mean_load(self._load, "cpu_utilisation", warm)
        values = {
            **{
                name: value
                for name, value in self._description.items()
                if name not in NOT_IN_SUMMARY
            },
            "reader": self._description.get("reader") or self._validation_reader,
            "finished": finished,
            **summary.trained(progress, failed),
            "early_stop": early,
            **summary.best(progress, self._task.figures[0], self._record.folder),
            "versions": versions(),
            "rate": rate,
            "ceiling": self._ceilings,
            "efficiency": efficiency,
            "bound": told_bound(
                bound_by, remote=bool(self._description.get("remote")), busy=busy
            ),
            "check": summary.check(efficiency),
            "data_wait": summary.data_wait(steady_steps),
            "step_ms": summary.step_times(steps, warmup=first),
            "split_ms": summary.split(steady_steps),
            "validation": validation,
            "validation_s": self._validation_s,  # of the last one
            "memory": self._memory | {"host_gib": float(host_gib_of_all)},
            "gpu": over_ranks(self._world.gather(own_gpu)),
            "cpu": {
                "utilisation": busy,
                "steal": summary.mean_load(self._load, "cpu_steal", warm),
            },
            **({"clips": clips} if clips else {}),
            **({"detection": detection} if detection else {}),
        }
        self._record.summary(values)
        self._finished = finished
        if not finished:
            remedy = "run it again" if loader is None else self._record.how_to_resume
            self._console.info(f"stopped at step {progress['step']}; {remedy}")
        if finished:
            self._tell_rate(rate["steady"], efficiency, step=progress["step"])
            self._console.result(values, self._task, folder=self._record.folder)
            if too_high(efficiency):
                why = "so the rate or a ceiling is wrong"
                self._console.warn(
                    f"check failed: efficiency {efficiency:.1%} is above 103 %, {why}"
                )
        return values

    def _tell_rate(
        self, rate: float | None, efficiency: float | None, *, step: int
    ) -> None:
        """Write the last point of each throughput, which is what HPARAMS shows."""
        throughput = {
            "samples_per_s": rate,
            "per_gpu": rate and rate / self._world.size,
            "efficiency": efficiency,
        }
        self._board.scalars(
            {f"throughput/{name}": value for name, value in throughput.items()},
            step + 1,
        )

    def _clips(
        self, loader: Loader | None, rate: float | None
    ) -> dict[str, Any] | None:
        """Sum over all ranks what loaders of clips have done; None for another task.

        That is frames/s, frames decoded for one delivered, and what another decoder had to do.
        """
        frames = self._description.get("clip_frames")
        if not frames:
            return None
        local = loader.counts if loader else Counts(), self._validation_counts
        training, validation = zip(*self._world.gather(local), strict=True)
        return summary.clips(training, validation, frames=frames, rate=rate)

    def close(self) -> None:
        """Close the files; again without effect. The run counts as finished when `finish` said so."""
        self._sampler.stop()
        self._board.close(finished=self._finished)
        self._record.close()

    def _ceiling(self, name: str) -> float | None:
        ceiling = self._ceilings[name]
        return None if ceiling is None else float(ceiling["rate"])

    def _measure_memory(self, host: float | None) -> None:
        for name, value in {
            **device_memory(self._world.device),
            "host_gib": host,
        }.items():
            known = [
                reading
                for reading in (self._memory.get(name), value)
                if reading is not None
            ]
            self._memory[name] = max(known, default=None)
