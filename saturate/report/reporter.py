"""Everything a run tells: builds summary.json, and feeds console, TensorBoard and metrics.jsonl.

Every rank calls it, because some figures are sums over the ranks; rank 0 alone speaks. Must not know how a
figure came about.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import (
    Batch,
    Counts,
    Loader,
    Pixels,
    RateWindow,
    Reported,
    World,
)
from saturate.report import curves, facts, page, pictures, stages, summary
from saturate.report.advice import look_up
from saturate.report.console import Bar, Console
from saturate.report.facts import EMA, PHASES, mean
from saturate.report.hardware import (
    Sampler,
    device_memory,
    host_gib,
    versions,
)
from saturate.report.meter import Meter, too_high
from saturate.report.record import (
    FAILED_SAMPLES,
    REJECTED,
    RESULTS,
    TRAIN_BATCH,
    VAL_BATCH,
    Record,
)
from saturate.report.sinks import Boards
from saturate.report.tensorboard import GLANCE, PAGES
from saturate.report.words import ends, figures, number
from saturate.system import drawing, fonts
from saturate.system.timeline import Timeline

NOT_IN_SUMMARY = (
    "settings",
    "asked",
    "title",
    "limits",
    "config",
    "log",
    "unit",
    "rejected",
    *summary.DETECTION,
)
"""Entries of a run's description that summary.json does not take over as they are."""
OF_START = {"data": "scan", "graphs": "compile"}
"""Parts of the start that have a name in the goodput."""
OF_VAL_BATCH = ("val/predictions", "val/crops")
"""Tags of the pictures of a validation that are a file of the run as well."""
FORECAST_WITHIN = 0.03
"""The end of a run is said again where it moves by more than this share of the run."""
SAID = 5
"""Samples that could not be decoded, of one check, that are said by name."""


def _ran_s(spent: Mapping[str, float]) -> float:
    """Return the seconds of all attempts to run, without those between them."""
    return sum(spent.values()) - spent.get("down", 0.0)


class Reporter:
    """Receives points, windows, validations and ceilings from engine/loop.py, and writes the summary at the end.

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
        evaluated: Mapping[str, str] | None = None,
        classes: Sequence[str] = (),
        timeline: Timeline | None = None,
        validates_anew: bool = False,
    ) -> None:
        """Open the run's files below `output`, and say its title, what was chosen and what it leaves out.

        `description` is what `describe` returns, `pixels` the mean and std that images were normalised with,
        `resumed_at` the step of the checkpoint, None for a fresh run, `classes` the names of the labels.
        `evaluated`: the `checkpoint` that is evaluated, and which weights it is `of`, average or network.
        `timeline` gets a mark at the first step. A run that `validates_anew` says no earlier figures.
        """
        here = world.rank == 0
        self._world = world
        self._console = console
        self._meter = meter
        self._description = dict(description)
        self._task = task
        self._pixels = pixels
        self._classes = classes
        self._resumed_at = resumed_at or 0
        self._evaluated = evaluated or {}
        self._timeline = timeline or Timeline()
        self._record = Record(output, here, resumed_at, anew=validates_anew)
        self.validates_anew = validates_anew
        self._record.file("config.yaml", description["config"].encode())
        if rejected := description.get("rejected"):
            self._record.file(REJECTED, rejected)
        self._board = Boards(
            output,
            description,
            enabled=here,
            purge_step=None if resumed_at is None else resumed_at + 1,
            warn=console.warn,
        )
        self._compared = compared
        self._sampler = Sampler(
            world.device, cores=description["hardware"]["cores"]
        ).start()
        # of the part of the run before this one
        self._earlier = (self._record.earlier_summary() if resumed_at else None) or {}
        self._energy_before_j = self._sampler.energy_j()
        self._rate_unit = description.get("unit", "img/s")
        self._item = self._rate_unit.removesuffix("/s")  # what is counted: img, clip
        self._bar: Bar | None = None  # of the epoch
        self._before = 0  # samples of the run that the bar has had before the epoch
        # facts of the last moment that told them, by their keys
        self._now: dict[str, Any] = {
            "rate.steady": self._record.rate,
            "now.lr": self._record.lr,
        }
        self._ceilings: dict[str, dict[str, Any]] = {}
        self._memory: dict[str, float | None] = {}  # the highest so far
        self._load: list[dict[str, float | None]] = []  # of each window
        self._ended_with: list[int] = []  # the step with which each window ended
        # milliseconds of each step since the run, or this part of it, began; nan where it had no such phase
        self._steps = {name: array("d") for name in PHASES}
        self._train_losses = self._record.train_losses  # since the last validation
        self._new_rate = self._record.new_rate  # where no validation has begun since
        self._rate_of_row: float | None = None
        # a resumed run has the figures of its earlier part until it validates again
        self._validations = self._record.validations
        self._validation = self._validations[-1][1] if self._validations else {}
        self._of_last_pass: Mapping[str, Any] = {}  # what it says of the learning
        self._validation_reader = ""
        self._validation_counts = Counts()
        self._validation_s: Mapping[str, float] | None = None
        self._early_stop: dict[str, int] | None = None
        self._finished = False
        self._passes = 0  # validations of this part of the run
        self._forecast: dict[str, Any] | None = None
        self._sample_s: dict[int, float] = {}  # pixels -> seconds a sample
        self._reached: dict[str, Any] | None = None
        self._begin_attempt()
        self._begin()

    def _begin_attempt(self) -> None:
        """Write when this attempt to run has begun, and what earlier ones were spent for."""
        began_s = time.time() - self._timeline.passed_s()
        self._spent_before = summary.spent_before(
            self._record.spent, self._resumed_at, began_s
        )
        # what all of them have used, those too that were killed; an earlier version has told the seconds alone
        last = self._record.spent[-1][1] if self._record.spent else {}
        kwh = look_up(self._earlier, "energy.run_kwh") or 0.0
        self._earlier_j: float = last.get("joules", kwh * 3.6e6)
        self._energy = (-math.inf, self._energy_before_j)  # when it was read, and what
        self._earlier_s = _ran_s(self._spent_before)
        of_all = self._world.size * self._earlier_s
        self._earlier_gpu_s: float = last.get("gpu_s", of_all)
        # seconds of this attempt
        self._spent_in = {"steps": 0.0, "waiting": 0.0}
        spent = {
            "at": began_s,
            "seconds": self._spent_before,
            "gpu_s": self._earlier_gpu_s,
            "joules": self._earlier_j,
        }
        self._record.point("attempt", self._resumed_at, {"spent": spent})

    def _begin(self) -> None:
        """Write the row and the charts of the run and its first card, and say its title."""
        about = self._description
        preset = self._record.folder / "config.yaml"
        self._settings()
        # the title names the GPU, too
        rows = (
            ("command", f"`{about.get('command')}`"),
            ("settings", f"{about['title']}; all are in {preset}"),
            ("machine", f"{about['hardware']['cores']:g} CPU cores"),
            *PAGES,
        )
        self._board.card(f"{GLANCE}/start_here", rows, self._resumed_at)
        self._console.begin(about)
        if self._record.enabled and (line := fonts.unseen(self._classes)):
            self._console.warn(line)

    # -- called by the loop ----------------------------------------------------

    @contextmanager
    def epoch(
        self,
        epoch: int,
        epochs: int,
        samples: int,
        consumed: int,
        whole: int,
        growth: float,
    ) -> Iterator[None]:
        """Show a bar inside: of a run that takes `whole` samples, or of the epoch where that is 0. The rest of it takes
        `growth` times as long as with images of this size.
        """
        # read, so that the load of validation and ceilings is no part of the next window
        self._measure_memory(self._sampler.read()["host_gib"])
        self._before = epoch * samples if whole else 0
        with self._console.epoch(
            title=f"epoch {epoch + 1}/{epochs}",
            total=whole or samples,
            item=self._item,
            first=self._before + consumed,
            rate=self._now["rate.steady"],
            stretch=growth * self._meter.stretch() if whole else 0.0,
        ) as self._bar:
            yield
        self._bar = None

    @contextmanager
    def validation(self, samples: int) -> Iterator[Callable[[int], None]]:
        """Show a bar inside; its callback gets the samples of this rank that are done."""
        # the row of this validation may come when the next epoch has been measured; none was where an epoch is
        # shorter than a window
        if self._new_rate is not None:
            self._rate_of_row, self._new_rate = self._new_rate, None
        done = 0
        began = time.perf_counter()
        with self._console.epoch(
            title="validation", total=samples, item=self._item, stays=False
        ) as bar:

            def add(count: int) -> None:
                nonlocal done
                done += count * self._world.size
                rate = done / (time.perf_counter() - began)
                bar.update(samples=min(done, samples), rate=rate)

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
        # the first one is a part of the start
        for one in steps[not self._steps["data_wait"] :]:
            for name in one.keys() - summary.BESIDE:
                part = "waiting" if name == "data_wait" else "steps"
                self._spent_in[part] += one[name] / 1000
        for name, column in self._steps.items():
            column.extend(one.get(name, np.nan) for one in steps)
        state = {
            "lr": last["lr"],
            "grad_norm": norm,
            "loss_scale": last["loss_scale"],
            "skipped_steps": skipped_steps,
        }
        timed = [name for name in PHASES if any(name in one for one in steps)]
        line = {
            "epoch": progress["epoch"],
            "consumed": progress["consumed"],
            "losses": [point["loss"] for point in points],
            **({"parts": means} if means else {}),
            "lrs": [point["lr"] for point in points],
            **state,
            "ms": phases,
            "steps_ms": {name: [one.get(name, 0.0) for one in steps] for name in timed},
            "spent": self._used(),
        }
        self._record.point("train", step, line)
        parts = {f"loss/{name}": mean for name, mean in sorted(means.items())}
        self._points({"now": {"loss": loss, **state}, "split_ms": phases}, step, parts)
        if self._bar is not None:
            self._bar.update(
                samples=self._before + progress["consumed"],
                rate=self._now["rate.steady"],
                loss=loss,
                wait_ms=phases.get("data_wait"),
                steps=len(points),
            )

    def window(self, window: RateWindow, *, step: int, mib_per_s: float) -> None:
        """Tell a closed window of the rate, and what the machine was doing meanwhile."""
        self._ended_with.append(step)
        load = self._sampler.read()
        self._load.append(load)
        self._new_rate = window.rate
        self._measure_memory(load["host_gib"])
        share = stages.shares(
            window.stages, window.seconds, self._description.get("workers", 0)
        )
        now = {
            "per_gpu": window.rate / self._world.size,
            "share": facts.shares(window.rate, self._ceilings),
            "mib_per_s": mib_per_s or None,  # 0: the task does not know
        }
        values = {
            "rate": {"steady": window.rate},
            "ceiling": self._ceilings,
            "now": now,
            "stages": {name: {"share": value} for name, value in share.items()},
            **summary.mean_loads([load], warm=0),
            "memory": self._memory,
        }
        self._points(values, step)
        line = {
            "samples": window.samples,
            "seconds": window.seconds,
            "rate": window.rate,
            "epoch": window.epoch,
            **load,
        }
        self._record.point("window", step, line)

    def ceilings(
        self, *, compute: dict[str, Any], loader: dict[str, Any], step: int
    ) -> None:
        """Tell measured ceilings; where they are measured again, the larger one stands."""
        load = self._sampler.read()
        self._measure_memory(load["host_gib"])
        beside = {"other_cores": load["other_cores"]}
        measured = {"compute": compute | beside, "loader": loader | beside}
        for name, ceiling in measured.items():
            self._ceilings[name] = max(
                self._ceilings.get(name, ceiling), ceiling, key=itemgetter("rate")
            )
        self._points({"ceiling": self._ceilings}, step)
        self._record.point("ceilings", step, measured)
        rates = f"compute {number(compute['rate'])}, loader {number(loader['rate'])}"
        self._console.info(f"ceilings: {rates} {self._rate_unit}")

    def above_ceiling(self) -> bool:
        """Whether the rate is higher than a ceiling can allow: the machine's speed has changed since that was
        measured.
        """
        measured = {"rate": self._meter.result(), "ceiling": self._ceilings}
        return too_high(facts.bound_of(measured)[0])

    def _points(
        self,
        values: Mapping[str, Any],
        step: int,
        others: Mapping[str, float | None] | None = None,
    ) -> None:
        """Write a point of each curve of the facts in `values`, which has the form of a summary, and of `others`."""
        known = facts.at(values)
        self._now |= {key: value for key, (_, value) in known.items()}
        self._board.scalars({**dict(known.values()), **(others or {})}, step)

    def validated(
        self,
        result: Mapping[str, Any],
        *,
        averaged: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        images: Mapping[str, Any] | None = None,
        step: int,
        epoch: int | None,
        reader: str = "",
        counts: Counts | None = None,
        best: str = "",
    ) -> None:
        """Tell the figures of a validation; a mean over no loss at all is left out.

        `averaged`: the figures of the weights' average, None without --ema. `epoch`: the last one that was
        trained, None when there was none. `reader`, `counts`: of its loader. `best`: network or average, where
        best.pt is one of the two from now on.
        `files`: what is written into the run's folder; what is b"" goes there. `images`: uint8 [N, H, W, 3] by tag,
        of the better one of the two. `extras` of rank 0's result:
        {"scalars": {tag: number}, "learning": {name: what facts.FACTS tells}}.
        """
        self._passes += 1
        of_weights = summary.figures_of(result)
        of_average = summary.figures_of(averaged or {})
        self._validation = of_weights | {
            EMA + name: value for name, value in of_average.items()
        }
        self._validations.append((epoch, self._validation))
        self._of_last_pass = dict(result.get("extras", {}).get("learning", {}))
        if averaged:  # what is told has to be so of both
            told = averaged.get("extras", {}).get("learning", {}).items()
            self._of_last_pass = dict(self._of_last_pass.items() & told)
        self._validation_s = result.get("seconds")
        self._validation_reader = reader
        self._validation_counts = counts or Counts()
        extras: Mapping[str, Mapping[str, Any]] = result.get("extras", {})
        tags = {f"val/{name}": value for name, value in self._validation.items()}
        self._board.scalars({**tags, **extras.get("scalars", {})}, step)
        for tag, tiles in (images or {}).items():
            self._board.images(tag, tiles, step)
            if tag in OF_VAL_BATCH:
                self._record.file(VAL_BATCH, drawing.encoded(tiles[0], "JPEG"))
        line = {"epoch": epoch, **self._validation, "failed": result["failed"]}
        self._record.point("val", step, line)
        names = [figure.name for figure in self._task.figures]
        names += [EMA + name for name in names] if averaged else []
        self._now["now.train_loss"] = mean(self._train_losses)
        columns = {
            fact.column: self._now.get(fact.key) for fact in facts.FACTS if fact.column
        }
        columns["rate"], self._rate_of_row = self._rate_of_row, None
        values = {name: self._validation.get(name) for name in names}
        self._record.row(RESULTS, {"epoch": epoch, "step": step, **columns, **values})
        self._train_losses.clear()
        for name, content in (files or {}).items():
            self._record.file(name, content)
        which = "" if epoch is None else f" epoch {epoch + 1}"
        which += ", network (average)" if of_average else ""
        text = figures(of_weights, self._task.figures, of_average)
        if took := self._validation_s:  # what kept training waiting
            text += f"  in {took['loader'] + took['pass'] + took['waited']:.1f} s"
        text += f"  best.pt is of the {best}" if best else ""
        self._console.info(f"validated{which}: {text}")

    def images(self, batch: Batch) -> None:
        """Show augmented training images, or the middle frames of clips, with classes or boxes, once a run."""
        if self._world.rank == 0:
            tiles = pictures.augmented(batch, self._pixels, self._classes)
            # the pixels were copied to the host, behind the step
            self._timeline.mark("first step")
            if self._description["settings"].get("profile"):
                self._console.info(self._timeline.summary())
            small = drawing.sheet(tiles, across=4)
            self._record.file(TRAIN_BATCH, drawing.encoded(small, "JPEG"))
            self._board.images("augmented", drawing.sheet(tiles)[None], 0)

    def info(self, line: str) -> None:
        """Say a line."""
        self._console.info(line)

    def warn(self, line: str) -> None:
        """Say a line that asks for attention."""
        self._console.warn(line)

    def stopped_early(self, progress: Mapping[str, Any]) -> None:
        """Tell that --patience has ended the run before its time. Epochs are told from 1 on."""
        self._early_stop = {
            "epoch": progress["epoch"],
            "best_epoch": progress["best_epoch"] + 1,
            "validations": progress["stale"],
        }

    def reached(self, figure: str, epoch: int | None) -> None:
        """Tell that the figure of --until is reached, and what it took. Every rank calls it."""
        costs = self._costs(0.0)
        self._reached = {"figure": figure, "epoch": (epoch or 0) + 1, **costs}
        self._console.info(f"reached {facts.reached(self._reached, {})}")

    def forecast(
        self, pixels: int, rest: Mapping[int, float], *, done: int, validations: int
    ) -> None:
        """Say when the run will end, behind its first epoch, and where it will end otherwise than was said. Every rank
        calls it.

        An epoch takes its samples at the mean rate of the steady windows of its size; of a size that has not come yet
        by the two nearest, or as it has pixels. Checkpoints and validations take what they have taken so far.
        """
        windows = self._meter.steady_windows()
        if not windows:
            return
        samples = sum(window.samples for window in windows)
        self._sample_s[pixels] = sum(window.seconds for window in windows) / samples
        pauses = self._meter.pauses
        left_s = sum(
            epochs
            * self._description["epoch_samples"]
            * summary.at_size(self._sample_s, size)
            for size, epochs in rest.items()
        )
        left_s += sum(rest.values()) * pauses.get("checkpoint", 0.0) / done
        left_s += validations * pauses.get("validation", 0.0) / max(self._passes, 1)
        counted = not validations or self._passes > 0
        forecast = {"validations": counted, **self._costs(left_s)}
        before = self._forecast
        if before and counted == before["validations"]:
            off = forecast["duration_s"] / before["duration_s"] - 1
            if abs(off) <= FORECAST_WITHIN:
                return
        self._forecast = forecast
        without = "" if counted else ", validations not counted"
        self._console.info(
            f"the run ends {ends(left_s)}: {facts.spent(forecast)} in all{without}"
        )

    def _costs(self, more_s: float) -> dict[str, float | None]:
        """Return seconds, kWh and dollars of the run so far, and of `more_s` that follow. Every rank calls it."""
        duration_s = self._duration_s()
        joules = self._world.gather(self._joules())
        kwh = None
        if None not in joules:
            # of this part, which goes on as it has begun
            part = sum(joules) - self._earlier_j
            goes_on = 1 + more_s / self._timeline.passed_s()
            kwh = (self._earlier_j + part * goes_on) / 3.6e6
        duration_s += more_s
        price = self._description["settings"].get("gpu_price")
        dollars = price and price * self._gpu_s(duration_s) / 3600
        return {"duration_s": duration_s, "kwh": kwh, "dollars": dollars}

    def failed(self, split: str, names: Sequence[str]) -> None:
        """Tell which samples could not be decoded: the first ones are said, all are in failed.txt."""
        for name in names[:SAID]:
            self.warn(f"cannot be decoded, left out: {name}")
        if len(names) > SAID:
            more = len(names) - SAID
            self.warn(f"and {more} more, in {self._record.folder / FAILED_SAMPLES}")
        self._record.lines(FAILED_SAMPLES, [f"{split}\t{name}" for name in names])

    def _spent(self) -> dict[str, float]:
        """Return the seconds of wall time of all attempts so far, by what they were spent for."""
        spent = defaultdict(float, self._spent_in | self._meter.pauses)
        for part, seconds in self._timeline.seconds.items():
            spent[OF_START.get(part, "start")] += seconds
        spent["other"] = max(self._timeline.passed_s() - sum(spent.values()), 0.0)
        for part, seconds in self._spent_before.items():
            spent[part] += seconds
        return spent

    def _gpu_s(self, duration_s: float) -> float:
        """Return the seconds of all attempts to run, together `duration_s`, times the ranks that each had."""
        return self._earlier_gpu_s + self._world.size * (duration_s - self._earlier_s)

    def _used(self, joules: float | None = None) -> dict[str, Any]:
        """Return what all attempts so far have used, as a line of metrics.jsonl keeps it for the next one.

        Without the `joules` of all ranks they are reckoned by this one's, read once a second at most.
        """
        if joules is None:
            read_at, now = self._energy
            if time.monotonic() - read_at > 1:
                now = self._sampler.energy_j()
                self._energy = (time.monotonic(), now)
            own = (now or 0.0) - (self._energy_before_j or 0.0)
            joules = self._earlier_j + self._world.size * own
        spent = self._spent()
        return {
            "at": time.time(),
            "seconds": spent,
            "gpu_s": self._gpu_s(_ran_s(spent)),
            "joules": joules,
        }

    def _duration_s(self) -> float:
        """Return the seconds of all attempts to run so far, without those between them."""
        return _ran_s(self._spent())

    # -- the end ---------------------------------------------------------------

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
        self._finished = finished
        step = progress["step"]
        first = self._task.figures[0]
        spent = self._spent()
        wall_s, steps_s = sum(spent.values()), spent["steps"]
        trained = {
            "finished": finished,
            "ended": time.strftime("%Y-%m-%d %H:%M"),
            "duration_s": self._duration_s(),
            "goodput": {"share": steps_s / wall_s, "seconds": spent}
            if steps_s
            else None,
            **summary.trained(progress, failed),
            "early_stop": self._early_stop,
            **summary.best(progress, first, self._record.folder),
            **summary.evaluated(self._evaluated, self._validation or {}, first),
        }
        trained["checkpoint"] = summary.checkpoint(trained, self._record.folder)
        values = None
        if finished and not self._meter.total_samples():
            values = self._of_earlier_part(trained)
        if values is None:
            values = self._summary(trained, loader)
        self._record.summary(values)
        kwh = look_up(values, "energy.run_kwh")
        self._record.point("end", step, {"spent": self._used(kwh and kwh * 3.6e6)})
        self._settings(values)
        if self._record.enabled:
            folder = self._record.folder
            # made of files that the storage may not say again
            with suppress(OSError):
                files, charts = curves.files(folder, values, first)
                for name, content in files.items():
                    self._record.file(name, content)
                data = self._description["settings"].get("data")
                content = page.page(folder, values, self._task, charts, data=data)
                self._record.file(page.REPORT, content)
        if finished:
            self._tell_rate(values, step=step)
            self._console.result(values, self._task, folder=self._record.folder)
            self._board.card("result", facts.rows(values, self._task), step)
            if too_high(values["efficiency"]):
                self.warn(
                    f"check failed: efficiency {values['efficiency']:.1%} is above 103 %, so the rate or a ceiling "
                    "is wrong"
                )
        return values

    def _settings(self, values: Mapping[str, Any] | None = None) -> None:
        """Write the run's row and charts; `values`: its summary, once it is over."""
        values = values or {}
        steady = look_up(values, "rate.steady")
        row = self._description["settings"] | {
            "bound": values.get("bound"),
            "rate": steady and round(steady),
        }
        self._board.settings(
            row,
            self._task,
            self._compared,
            finished=self._finished,
        )

    def _summary(
        self, trained: Mapping[str, Any], loader: Loader | None
    ) -> dict[str, Any]:
        """Return the content of summary.json, with figures of all ranks."""
        rate = self._meter.result(self._rate_unit)
        # the figures of the machine and of a step are of the same windows as the rate
        warm = rate["warmup_windows"]
        first = 0
        if 0 < warm <= len(self._ended_with):
            first = self._ended_with[warm - 1] - self._resumed_at
        steps = {name: np.array(column) for name, column in self._steps.items()}
        steady_steps = {name: column[first:] for name, column in steps.items()}
        load: dict[str, dict[str, Any]] = summary.mean_loads(self._load, warm)
        load["gpu"]["shared"] = look_up(self._ceilings, "compute.shared")
        if self._memory.get("host_gib") is None:
            # the run was over before the sampler's first reading
            self._measure_memory(host_gib())
        split = summary.split(steady_steps)
        of_loader = stages.of_windows(
            self._meter.steady_windows(), self._description.get("workers", 0)
        )
        about = {
            name: value
            for name, value in self._description.items()
            if name not in NOT_IN_SUMMARY
        }
        clips: dict[str, Any] = {}
        if frames := about.get("clip_frames"):
            clips["clips"] = {
                "frames": frames,
                "rate": rate["steady"],
                "training": loader.counts if loader else Counts(),
                "validation": self._validation_counts,
            }
        own = {
            **about,
            "reader": about.get("reader") or self._validation_reader,
            **trained,
            "settings": self._description["asked"],
            "versions": versions(),
            "rate": rate,
            "ceiling": self._ceilings or dict.fromkeys(("compute", "loader")),
            **dict.fromkeys(("efficiency", "bound", "check")),  # of the others
            "data_wait": summary.data_wait(steady_steps),
            "start_s": self._timeline.seconds,
            "step_ms": summary.step_times(steps, warmup=first),
            "split_ms": split,
            "stages": of_loader,
            "slowest_rank": {
                **split,
                "sm_mhz": load["gpu"]["sm_mhz"],
                "stages": of_loader,
            },
            "dollars": self._costs(0.0)["dollars"],
            "forecast": self._forecast,
            "reached": self._reached,
            "learning": {**about.get("learning", {}), **self._of_last_pass},
            facts.NOW: {"validations": self._validations},
            "pauses": self._meter.pauses,
            "validation": self._validation,
            "validation_s": self._validation_s,  # of the last one
            "memory": {**self._memory},
            **load,
            "energy": (self._joules(), load["gpu"]["power_w"], rate["steady"]),
            **dict.fromkeys(("binds", "what_if")),
            **clips,
            **summary.detection(self._description, rate["steady"]),
        }
        return facts.of_run(own, self._world)

    def _joules(self) -> float | None:
        """Return what this rank's GPU has used since the run began, of rank 0 with what all have used in the parts
        before; None where it does not count.
        """
        now = self._sampler.energy_j()
        if now is None or self._energy_before_j is None:
            return None
        return now - self._energy_before_j + self._earlier_j

    def _of_earlier_part(self, trained: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the summary of a run that was over before: its rates are of the part that trained."""
        earlier = self._earlier or self._record.earlier_summary()
        if not earlier:
            return None
        self._console.info(
            "nothing was left to train, its rates stay as they were: more --epochs or --steps, a larger "
            "--patience or another --until, to go on from here"
        )
        values = {**earlier, **trained}
        if earlier.get("finished"):
            values |= {
                name: earlier.get(name) for name in ("ended", "duration_s", "goodput")
            }
        if self._validation and self._validation != earlier["validation"]:
            # the figures of a part that was killed before its end
            values["validation"] = self._validation
            values["validation_s"] = self._validation_s
        return values

    def _tell_rate(self, values: Mapping[str, Any], *, step: int) -> None:
        """Write the last point of each throughput, which is what HPARAMS shows."""
        rate = look_up(values, "rate.steady")
        rates = {name: values.get(name) for name in ("rate", "efficiency", "energy")}
        now = {"per_gpu": rate and rate / self._world.size}
        self._points({**rates, "now": now}, step + 1)

    def close(self) -> None:
        """Close the files; again without effect. The run counts as finished when `finish` said so."""
        self._sampler.stop()
        # first: it waits for storage that fails for seconds
        self._record.close()
        self._board.close(finished=self._finished)

    @property
    def lost(self) -> bool:
        """Whether a full disk has not taken one of the run's files."""
        return self._record.lost

    def _measure_memory(self, host: float | None) -> None:
        now = device_memory(self._world.device) | {"host_gib": host}
        for name, value in now.items():
            highest = self._memory.get(name)
            if value is None or (highest is not None and highest > value):
                value = highest
            self._memory[name] = value
