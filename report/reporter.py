"""Everything a run tells, in one place: console, TensorBoard, metrics.jsonl, summary.json. Must not know how a figure came about.

Every rank calls it, because some figures are sums over the ranks; rank 0 alone speaks.
"""

from __future__ import annotations

import shlex
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config import Config
from contracts import Array, Batch, Counts, Reported, World
from report import pictures
from report.console import Bar, Console, figures, number, took
from report.hardware import Sampler, device_gib, hardware, host_gib, over_ranks, versions
from report.meter import Meter, Window, bound, bound_of, too_high
from report.record import FAILED, Record
from report.tensorboard import SETTINGS, Board, layout, metrics


def facts(config: Config, *, loader: Any, loader_name: str, world: World, cores: float, **named: Any) -> dict[str, Any]:
    """What a summary says of a run before it has begun; `settings` is its row of the HPARAMS page, `title` its first line."""
    told = {"task": config.model.task, **named, "loader": loader_name, "world_size": world.size, "batch_size": config.loading.batch_size}
    settings = {**config.flat(), **told, "reader": getattr(loader, "reader", ""), "gpu": _device_name(world.device)}
    factors = [world.size, config.loading.batch_size, *([config.optimisation.accumulate] if config.optimisation.accumulate > 1 else [])]
    title = (
        f"{told['arch']} · {told['loader']} · {told['precision']} · {told['image_size']} px · "
        f"{' x '.join(str(n) for n in factors)} samples a step · {_device_name(world.device)}"
    )
    machine = hardware(world.device, cores)
    return {
        **told,
        "reader": settings["reader"],
        "compile": config.model.compile_mode if config.model.compile else None,
        "accumulate": config.optimisation.accumulate,
        "command": shlex.join(sys.argv),
        "hardware": machine,
        "settings": settings,
        "title": title,
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


GPU = {"utilisation": "gpu_utilisation", "power_w": "power_w", "sm_mhz": "sm_mhz", "throttled": "throttled"}
DETECTION = ("instances_per_image", "padding")  # of the facts: what tasks/detection.py tells of its plan
NO_LOSS = {"step", "grad_norm", "loss_scale"}  # of a point; the rest is the loss and its parts
SAID = 5  # samples of a check that are said by name
PHASES = ("data_wait", "transfer", "forward", "backward", "update")


class Reporter:
    """Receives points, windows, validations and ceilings from the loop; writes the summary at the end.

    `task` says how its figures are shown; `compared` are figures of all tasks, by which TensorBoard's HPARAMS page compares runs.
    """

    @staticmethod
    def opened(
        output: Path, *, world: World, console: Console, meter: Meter, facts: Mapping[str, Any], config_text: str, **rest: Any
    ) -> Reporter:
        """Opens the run's files. `resumed_at`: the step of the checkpoint, None for a fresh run."""
        resumed_at: int | None = rest.pop("resumed_at")
        here = world.rank == 0
        record = Record(output, enabled=here, resume_step=resumed_at)
        record.config(config_text)
        board = Board(output, enabled=here, purge_step=None if resumed_at is None else resumed_at + 1)
        return Reporter(world=world, console=console, board=board, record=record, meter=meter, facts=facts, resumed_at=resumed_at, **rest)

    def __init__(
        self,
        *,
        world: World,
        console: Console,
        board: Board,
        record: Record,
        meter: Meter,
        facts: Mapping[str, Any],
        task: Reported,
        compared: Sequence[str],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        resumed_at: int | None = None,
    ) -> None:
        self._channel_mean, self._channel_std = torch.tensor(mean), torch.tensor(std)
        self._world, self._console, self._board, self._record, self._meter = world, console, board, record, meter
        self._facts = dict(facts)
        self._task = task
        self._unit = self._facts.get("unit", "img/s").removesuffix("/s")
        self._sampler = Sampler(world.device, cores=facts["hardware"]["cores"]).start()
        self._ceilings: dict[str, dict[str, Any] | None] = {"compute": None, "loader": None}
        self._memory: dict[str, float | None] = {}
        self._load: list[dict[str, float | None]] = []
        self._steps = {name: array("d") for name in PHASES}  # of each step since the run, or this part of it, began; nan where it had none
        self._ended_with: list[int] = []  # the step with which each window ended
        self._resumed_at = resumed_at or 0
        self._rate: float | None = None
        self._validation: dict[str, Any] = {}
        self._validated_with: Mapping[str, Any] = {}  # what its loader has told
        self._validation_s: Mapping[str, float] | None = None
        self._finished = False
        board.layout(layout(task))
        settings = {name: value for name in SETTINGS if (value := self._facts["settings"].get(name)) is not None}
        board.hparams(settings, metrics(compared))
        console.info(self._facts["title"])

    # -- called by the loop -------------------------------------------------------------------------------------------

    @contextmanager
    def epoch(self, epoch: int, epochs: int, samples: int, consumed: int) -> Iterator[Bar]:
        self._measure_memory(self._sampler.read()["host_gib"])  # the load of validation and ceilings is no part of the next window
        with self._console.epoch(title=f"epoch {epoch + 1}/{epochs}", total=samples, unit=self._unit, first=consumed) as bar:
            yield bar

    @contextmanager
    def validation(self, samples: int) -> Iterator[Callable[[int], None]]:
        done = 0
        began = time.perf_counter()
        with self._console.epoch(title="validation", total=samples, unit=self._unit) as bar:

            def add(count: int) -> None:
                nonlocal done
                done += count * self._world.size
                bar.update(step=0, samples=min(done, samples), rate=done / (time.perf_counter() - began))

            yield add

    def train(
        self,
        points: list[dict[str, float]],
        *,
        progress: Mapping[str, Any],
        lr: float,
        skipped_steps: int,
        phases: dict[str, float],
        steps: list[dict[str, float]],
        bar: Bar,
    ) -> None:
        """`points`: step, loss, grad_norm, loss_scale of each step since the last call, and the parts of the loss by name. `phases`:
        means, milliseconds a step; `steps`: the same of each step that the device has passed since, in order.

        A loss is nan where no sample of the step was valid; it is left out of the mean.
        """
        last, counted = points[-1], [point for point in points if not np.isnan(point["loss"])]
        means = {name: float(np.mean([point[name] for point in counted])) if counted else None for name in last.keys() - NO_LOSS}
        loss = means.pop("loss")
        norm = next((point["grad_norm"] for point in reversed(points) if not np.isnan(point["grad_norm"])), None)
        step = int(last["step"])
        for name, column in self._steps.items() if self._world.rank == 0 else ():
            column.extend(one.get(name, np.nan) for one in steps)
        self._record.point(
            "train",
            step,
            {
                "epoch": progress["epoch"],
                "consumed": progress["consumed"],
                "losses": [point["loss"] for point in points],
                **({"parts": means} if means else {}),
                "lr": lr,
                "grad_norm": norm,
                "loss_scale": last["loss_scale"],
                "skipped_steps": skipped_steps,
                "ms": phases,
                "steps_ms": {name: [one.get(name, 0.0) for one in steps] for name in PHASES if any(name in one for one in steps)},
            },
        )
        self._board.scalars(
            {
                "train/loss": loss,
                **{f"loss/{name}": mean for name, mean in sorted(means.items())},
                "train/lr": lr,
                "train/grad_norm": norm,
                "train/loss_scale": last["loss_scale"],
                "train/skipped_steps": skipped_steps,
                **{f"time/{name}_ms": phases[name] for name in PHASES if name in phases},
            },
            step,
        )
        bar.update(step=step, samples=progress["consumed"], rate=self._rate, loss=loss, wait_ms=phases.get("data_wait"))

    def window(self, window: Window, *, step: int, mib_per_s: float) -> None:
        """One closed window of the rate, and what the machine was doing meanwhile."""
        self._rate = window.rate
        self._ended_with.append(step)
        load = self._sampler.read()
        self._load.append(load)
        self._measure_memory(load["host_gib"])
        compute, loader = (self._ceiling(name) for name in ("compute", "loader"))
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
        self._record.point(
            "window", step, {"samples": window.samples, "seconds": window.seconds, "rate": window.rate, "epoch": window.epoch, **load}
        )

    def ceilings(self, *, compute: dict[str, Any], loader: dict[str, Any], step: int) -> None:
        """Measured ceilings; measured again, the larger one stands."""
        for name, found in (("compute", compute), ("loader", loader)):
            if (self._ceiling(name) or 0.0) < found["rate"]:
                self._ceilings[name] = found
        self._board.scalars({f"throughput/{name}_ceiling": self._ceiling(name) for name in ("compute", "loader")}, step)
        self._record.point("ceilings", step, {"compute": compute, "loader": loader})
        self._console.info(f"ceilings: compute {number(compute['rate'])}/s, loader {number(loader['rate'])}/s")

    def above_ceiling(self) -> bool:
        """Whether the rate is higher than a ceiling can allow: the machine's speed has changed since that was measured."""
        efficiency, _ = bound_of(self._meter.result(), self._ceiling("compute"), self._ceiling("loader"))
        return too_high(efficiency)

    def validated(self, result: Mapping[str, Any], *, step: int, epoch: int | None, loading: Mapping[str, Any] | None = None) -> None:
        """`epoch`: the last one that was trained, None when there was none. `loading`: reader and Counts of the loader. A mean
        over no loss at all is left out.

        `extras` of rank 0's result: {"files": {name: bytes}, "scalars": {tag: number}, "images": {tag: uint8 [N, H, W, 3]}}.
        """
        known = {name: value for name, value in result.items() if isinstance(value, int | float)}
        if known.get("losses_not_finite", 0) == known.get("samples"):
            known.pop("loss", None)
        self._validation, self._validated_with, self._validation_s = known, loading or {}, result.get("seconds")
        extras: Mapping[str, Mapping[str, Any]] = result.get("extras", {})
        self._board.scalars({**{f"val/{name}": value for name, value in known.items()}, **extras.get("scalars", {})}, step)
        self._record.point("val", step, {"epoch": epoch, **known, "failed": result["failed"]})
        for name, content in extras.get("files", {}).items():
            self._record.file(name, content)
        for tag, images in extras.get("images", {}).items():
            self._board.images(tag, images, step, once=False)
        self._console.info(
            f"validated{'' if epoch is None else f' epoch {epoch + 1}'}: {figures(known, self._task.figures)}{took(self._validation_s)}"
        )

    def images(self, batch: Batch) -> None:
        """A grid of augmented training images, or of the middle frames of clips, once."""
        if self._world.rank == 0:
            self._board.images("augmented", pictures.augmented(batch, self._channel_mean, self._channel_std), 0)

    def info(self, line: str) -> None:
        self._console.info(line)

    def warn(self, line: str) -> None:
        self._console.warn(line)

    def failed(self, split: str, names: Sequence[str]) -> None:
        """Samples that could not be decoded: the first ones are said, all are in failed.txt."""
        more = [f"and {len(names) - SAID} more, in {self._record.folder / FAILED}"] if len(names) > SAID else []
        for line in (*(f"cannot be decoded, left out: {name}" for name in names[:SAID]), *more):
            self.warn(line)
        self._record.lines(FAILED, [f"{split}\t{name}" for name in names])

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, *, progress: Mapping[str, Any], failed: set[int], finished: bool, loader: Any = None) -> dict[str, Any]:
        """Write and return the summary; rank 0 prints it as a table when the run came to its end."""
        validation = self._validation
        if finished and not self._meter.total_samples() and (earlier := self._record.earlier_summary()):
            self._console.info("nothing was left to train, its figures stay as they were: more --epochs or --steps go on from here")
            summary = {**earlier, "finished": True, "epochs": progress["epoch"], "validation": validation or earlier["validation"]}
            self._record.summary(summary)
            self._tell_rate(earlier["rate"]["steady"], earlier["efficiency"], step=progress["step"])  # the events were cut behind that step
            self._finished = True
            return summary
        rate = self._meter.result(self._facts.get("unit", "img/s"))
        clips, detection = self._clips(loader, rate["steady"]), self._detection(rate["steady"])
        efficiency, bound_by = bound_of(rate, self._ceiling("compute"), self._ceiling("loader"))
        if not self._memory:
            self._measure_memory(host_gib())
        warm = rate["warmup_windows"]  # what is said of the machine and of a step is of the same windows as the rate
        first = self._ended_with[warm - 1] - self._resumed_at if 0 < warm <= len(self._ended_with) else 0
        kept = {name: np.array(column)[first:] for name, column in self._steps.items()}
        summary = {
            **{name: value for name, value in self._facts.items() if name not in ("settings", "title", "unit", *DETECTION)},
            "reader": self._facts.get("reader") or self._validated_with.get("reader", ""),
            "finished": finished,
            "epochs": progress["epoch"],
            "steps": progress["step"],
            "samples": self._meter.total_samples(),
            "samples_dropped": progress["dropped"],
            "samples_failed": sorted(failed),
            "versions": versions(),
            "rate": rate,
            "ceiling": self._ceilings,
            "efficiency": efficiency,
            "bound": bound_by,
            "check": None if efficiency is None else "failed: efficiency above 103 %" if too_high(efficiency) else "passed",
            "data_wait": data_wait(kept),
            "step_ms": step_times(kept),
            "split_ms": {name: float(np.nansum(its)) / len(its) for name, its in kept.items() if not np.isnan(its).all()},
            "validation": validation,
            "validation_s": self._validation_s,  # of the last one
            "memory": self._memory | {"host_gib": float(self._world.sum(np.array([self._memory["host_gib"] or 0.0]))[0])},
            "gpu": over_ranks(self._world.gather({name: self._mean(read, warm) for name, read in GPU.items()})),
            "cpu": {"utilisation": self._mean("cpu_utilisation", warm), "steal": self._mean("cpu_steal", warm)},
            **({"clips": clips} if clips else {}),
            **({"detection": detection} if detection else {}),
        }
        self._record.summary(summary)
        self._finished = finished
        if not finished:
            self._console.info(f"stopped at step {progress['step']}; {self._record.go_on if loader is not None else 'run it again'}")
        if finished:
            self._tell_rate(rate["steady"], efficiency, step=progress["step"])
            self._console.result(summary, self._task, folder=self._record.folder)
            if too_high(efficiency):
                self._console.warn(f"check failed: efficiency {efficiency:.1%} is above 103 %, so the rate or a ceiling is wrong")
        return summary

    def _tell_rate(self, rate: float | None, efficiency: float | None, *, step: int) -> None:
        """What HPARAMS shows: the last point of each."""
        throughput = {"samples_per_s": rate, "per_gpu": rate and rate / self._world.size, "efficiency": efficiency}
        self._board.scalars({f"throughput/{name}": value for name, value in throughput.items()}, step + 1)

    def _clips(self, loader: Any, rate: float | None) -> dict[str, Any] | None:
        """Of a loader of clips, all ranks: frames/s, frames decoded for one delivered, and what another decoder had to do."""
        frames = self._facts.get("clip_frames")
        if not frames:
            return None
        own = getattr(loader, "counts", Counts()), self._validated_with.get("counts", Counts())
        training, validation = zip(*self._world.gather(own), strict=True)
        decoded, delivered = (sum(getattr(one, name) for one in training) for name in ("decoded", "delivered"))
        fallbacks, of_validation = (dict(sum((one.fallbacks for one in its), Counter[str]())) for its in (training, validation))
        refusals, val_refusals = (
            dict(chain.from_iterable(one.refusals.items() for one in reversed(its))) for its in (training, validation)
        )
        return {
            "frames": frames,
            "frames_per_s": rate and rate * frames,
            "decoded_per_delivered": decoded / delivered if delivered else None,
            "fallbacks": fallbacks,
            "val_fallbacks": of_validation,  # of the last validation
            "refusals": refusals,
            "val_refusals": val_refusals,
        }

    def _detection(self, rate: float | None) -> dict[str, Any] | None:
        """Boxes to learn, an image and a second, and the share of pixels that is padding."""
        if not all(name in self._facts for name in DETECTION):
            return None
        told = {name: self._facts[name] for name in DETECTION}
        return {**told, "instances_per_s": rate and rate * told["instances_per_image"]}

    def close(self) -> None:
        """Idempotent; the run counts as finished when `finish` said so."""
        self._sampler.stop()
        self._board.close(finished=self._finished)
        self._record.close()

    def _ceiling(self, name: str) -> float | None:
        found = self._ceilings[name]
        return None if found is None else float(found["rate"])

    def _mean(self, name: str, warm: int) -> float | None:
        values = [value for load in self._load[warm:] or self._load if (value := load[name]) is not None]
        return float(np.mean(values)) if values else None

    def _measure_memory(self, host: float | None) -> None:
        gib = 2**30
        cuda = self._world.device.type == "cuda"
        now = {
            "allocated_gib": torch.cuda.max_memory_allocated() / gib if cuda else None,
            "reserved_gib": torch.cuda.max_memory_reserved() / gib if cuda else None,
            "device_gib": device_gib(self._world.device),
            "host_gib": host,
        }
        self._memory = {
            name: max((known for known in (self._memory.get(name), value) if known is not None), default=None)
            for name, value in now.items()
        }


def durations(steps: Mapping[str, Array]) -> Array:
    """Milliseconds from the end of the step before to the end of each; the transfer runs beside it."""
    found: Array = np.nansum([its for name, its in steps.items() if name != "transfer"], axis=0)
    return found


def step_times(steps: Mapping[str, Array]) -> dict[str, float] | None:
    """Number, median and 99th percentile, milliseconds."""
    found = durations(steps)
    return {"n": len(found), **{f"p{p}": float(np.percentile(found, p)) for p in (50, 99)}} if len(found) else None


def data_wait(steps: Mapping[str, Array]) -> dict[str, float] | None:
    """Mean over the steps, milliseconds, and as a share of their time."""
    wait, whole = float(np.nansum(steps["data_wait"])), float(durations(steps).sum())
    count = len(steps["data_wait"])
    return {"ms": wait / count, "share": wait / whole if whole else 0.0} if count else None
