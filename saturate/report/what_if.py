"""What the rate would be after a change, from what the run has measured. Pure.

    rate' = coupling * min(compute', loader', cores')

`compute` and `loader` are the two ceilings. `cores` is the rate at which all CPU cores would be busy: what an
image costs of CPU time is known. The coupling is what the run itself has lost against the lowest of them. A
change moves one or more of the three; what it does to the others is not known, and that is the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saturate.report.advice import (
    BASELINE,
    CORES_ALONE,
    DECODE_ON_GPU,
    GPU_ALONE,
    LIKE_OTHERS,
    SMALLER,
    WORTH,
    Cause,
    Summary,
    graphs_can_be_had,
    look_up,
    unit_of,
)
from saturate.report.meter import too_high
from saturate.report.stages import OF_WORKERS, WAITED

SHOWN = 3
"""Predictions that a run prints."""
LEAST_GAIN = 0.03
"""A change whose predicted gain is smaller is not worth a line."""
MODEL = 0.05
"""Uncertainty of the model itself, as a share of a rate, beside the spread that was measured."""
COMPUTE = ("parse", "decode", "resize")
"""Stages of workers that only compute."""
MOST_TIMES = 4
"""Workers are predicted up to so many times as many."""
SECOND_GPU = 0.95
"""Share of twice the rate that two ranks make, where gradients are shared beside the backward pass."""
FUSED_CONVOLUTIONS = (0.15, 0.3)
FUSED_PRODUCTS = (0.3, 0.55)
"""Share of the time in which a GPU moves memory rather than multiplies that torch.compile has saved: 0.22 of
ResNet-50, whose arithmetic is convolutions, 0.38 of ConvNeXt-T and 0.47 of ViT-S, where it is products of
matrices (H100, fp16, batch 256 and 512)."""
CLOSER = (0.0, 0.2, 0.4)
"""Share of the time of kernels, launched one by one, that a CUDA graph saves besides the launches, where these
are all that is waited for, from least to most: 0.06 of ShuffleNet at batch 16, 0.38 of MobileNetV3 at batch 32
(H100)."""

DECODES_BESIDE = 0.8
"""How much of a batch a GPU decodes while it computes a step: 0 where they take turns, 1 where the lower ceiling is
reached. 0.74 to 0.89 of six networks with `dali-gpu` (H200, fp16, batch 256): of ResNet-18 18,554 img/s, between 10,673
in turns and 21,309."""

PROGRESSIVE = (2.2, 1.8, 2.6)
"""Times the CPU time of a baseline JPEG that Pillow takes to decode a progressive one: the median, the least and the
most of two runs of `python -m benchmarks progressive` (Pillow 13.0, a core of an EPYC, photographs of ImageNet)."""
TAKES_TURNS = (1.0, 1.0, 1.25)
"""Times an even share of a GPU's time that a step gains, as above, when its neighbour goes: changing hands costs time.
A ceiling of 18,442 img/s was 7,766 beside one that was always busy (H200), 1.19 times less than half."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The three limits of a rate, samples a second of all ranks; None = not known, and no limit."""

    rate: float
    compute: float
    loader: float
    cores: float | None
    spread: float  # of the rate, as a share of it
    cpu_s: float | None  # of a sample, all processes
    summary: Summary
    # how much of a batch is loaded while a step computes: all, or nothing, as without workers
    overlap: float = 1.0

    def limit(self) -> float:
        """Return the lowest of the three; of a loader and a step that hinder each other, less than both."""
        in_turns = 1 / (1 / self.compute + 1 / self.loader)
        lowest = min(self.compute, self.loader)
        together = in_turns + self.overlap * (lowest - in_turns)
        return min(together, self.cores or together)

    def stage(self, name: str, what: str = "ms") -> float:
        """Return the seconds a sample of a stage of the loader; 0 where it has none."""
        return (look_up(self.summary, f"stages.{name}.{what}") or 0.0) / 1e3

    def busy(self, what: str = "ms") -> float:
        """Return the seconds a sample of all stages in which workers do something."""
        return sum(self.stage(name, what) for name in OF_WORKERS if name != "idle")

    def of_step(self, name: str) -> float | None:
        """Return a figure of the step alone; None = not known."""
        return look_up(self.summary, f"ceiling.compute.{name}")

    def coupling(self) -> float:
        """Return what is left of the lowest limit in the run itself."""
        return self.rate / self.limit()

    def faster(self, gain: float) -> Model:
        """Return the limits with a loader that is faster by this factor; a step that has its data has no use
        for it.
        """
        loader = gain * self.loader
        if decoder := look_up(self.summary, "ceiling.loader.decoder"):
            loader = min(loader, max(decoder, self.loader))
        wait = look_up(self.summary, "data_wait.share")
        # of several ranks one waits for data, and the others for that one; a step that waits for long is slow
        # for that too, since its threads sleep meanwhile
        alone = self.summary.get("world_size") == 1
        if wait is not None and wait < WAITED and alone:
            loader = min(loader, self.limit() / (1 - wait))
        return replace(self, loader=loader)

    def spared(self, stage: str, share: float = 1.0) -> Model:
        """Return the limits where this share of what a stage of workers takes is not there."""
        left = max(1 - share * self.stage(stage) / self.busy(), 1e-3)
        cores = self.without_cpu(share * self.stage(stage, "cpu_ms"))
        return replace(self, loader=self.loader / left, cores=cores)

    def stretched(self) -> float | None:
        """Return how many times as long as on a core of its own a worker computes; None without workers."""
        # those that only compute tell how long a worker waits for a core
        cpu = sum(self.stage(name, "cpu_ms") for name in COMPUTE)
        return max(sum(map(self.stage, COMPUTE)) / cpu, 1.0) if cpu else None

    def waits(self, *stages: str) -> float:
        """Return the seconds a sample in which a worker waits in these stages, and not for a core."""
        computes = sum(self.stage(name, "cpu_ms") for name in stages)
        waits = sum(map(self.stage, stages)) - (self.stretched() or 1.0) * computes
        return max(waits, 0.0)

    def by_workers(self, count: int, wait: float) -> float:
        """Return the rate of so many workers a rank that wait so many seconds a sample, nobody beside them."""
        cpu = max(self.busy("cpu_ms"), 1e-9)
        each = min(max(count, 1) / (wait + cpu), cores_of_a_rank(self.summary) / cpu)
        return int(self.summary.get("world_size") or 1) * each

    def without_cpu(self, seconds: float) -> float | None:
        """Return the limit of the cores once a sample takes so much CPU time less."""
        if self.cores is None or self.cpu_s is None:
            return None
        return self.cores * self.cpu_s / max(self.cpu_s - seconds, 1e-3 * self.cpu_s)


@dataclass(frozen=True)
class Change:
    """A change, the settings of train.py that make it ({}: none does), and the limits after it."""

    what: str
    settings: Mapping[str, Any]
    after: Model
    # the limits after it where it does the least and the most, if it is not known how much it does
    least: Model | None = None
    most: Model | None = None


def model_of(summary: Summary) -> Model | None:
    """Return what the run has measured; None without a rate and both ceilings, or where one of them is wrong."""
    rate = look_up(summary, "rate.steady")
    compute = look_up(summary, "ceiling.compute.rate")
    loader = look_up(summary, "ceiling.loader.rate")
    if not (rate and compute and loader) or look_up(summary, "rate.short"):
        return None
    if too_high(rate / min(compute, loader)):
        return None
    count = cores_of_a_rank(summary) * int(summary.get("world_size") or 1)
    cpu_s = cpu_of_a_sample(summary, cores=count, rate=rate, compute=compute)
    overlap = 0.0 if summary.get("takes_turns") else 1.0
    if summary.get("loader") in DECODE_ON_GPU and look_up(summary, "hardware.gpu"):
        overlap = DECODES_BESIDE
    return Model(
        rate=rate,
        compute=compute,
        loader=loader,
        cores=count / cpu_s if cpu_s else None,
        spread=(look_up(summary, "rate.spread.iqr") or 0.0) / rate,
        cpu_s=cpu_s,
        summary=summary,
        overlap=overlap,
    )


def cpu_of_a_sample(
    summary: Summary, *, cores: float, rate: float, compute: float
) -> float | None:
    """Return the seconds of a core that a sample takes in all processes of the run; None = not known."""
    busy = look_up(summary, "cpu.utilisation")
    others = look_up(summary, "cpu.others") or 0.0
    measured = max(busy * cores - others, 0.0) / rate if busy else None
    stages = summary.get("stages") or {}
    # DALI's threads are in no stage
    if not stages or "dali" in stages:
        return measured
    loads = sum(stage["cpu_ms"] for stage in stages.values()) / 1e3
    # a step on a GPU is launched by one core of each rank, and on a CPU all cores compute it
    on_gpu = look_up(summary, "hardware.gpu")
    steps = (summary.get("world_size") or 1) / rate if on_gpu else cores / compute
    # where it is not known what others take, it is in what is measured
    return min(loads + steps, measured or loads + steps)


def cores_of_a_rank(summary: Summary) -> float:
    """Return the CPU cores of each rank: those of the machine are shared."""
    return float(
        summary.get("cores_a_rank") or look_up(summary, "hardware.cores") or 1.0
    )


def predictions(summary: Summary) -> list[dict[str, Any]]:
    """Return what is predicted of each change that can be made, the largest gain first.

    Each has `what`, `settings` (of train.py), `rate`, `low` and `high` (samples/s of all ranks), and `gain`.
    """
    model = model_of(summary)
    if model is None:
        return []
    listed = [
        predicted(model, change) for changes in CHANGES for change in changes(model)
    ]
    return sorted(listed, key=lambda one: -one["gain"])


def predicted(model: Model, change: Change) -> dict[str, Any]:
    """Return what `predictions` has of a change."""
    rates = [
        model.coupling() * after.limit()
        for after in (change.after, change.least, change.most)
        if after is not None
    ]
    unsure = MODEL + model.spread
    return {
        "what": change.what,
        "settings": dict(change.settings),
        "rate": rates[0],
        "low": min(rates) * max(1 - unsure, 0.0),
        # where another limit is met less is lost against it, at best nothing
        "high": max(max(rates) * (1 + unsure), change.after.limit()),
        "gain": rates[0] / model.rate - 1,
    }


# --- the changes ----------------------------------------------------------------


def _workers(model: Model) -> Iterator[Change]:
    """More or fewer worker processes: each waits for storage, and decodes while it has a core."""
    workers = model.summary.get("workers") or 0
    if not (workers or not model.overlap) or not model.busy():
        return
    wait = model.waits("read", "transforms")
    now = model.by_workers(workers, wait)
    cores = max(int(cores_of_a_rank(model.summary)), 1)
    counts = {max(workers // 2, 1), 2 * workers, MOST_TIMES * workers, cores}
    for count in sorted(counts - {workers, 0}):
        gain = model.by_workers(count, wait) / now
        yield Change(
            f"--workers {count}",
            {"workers": count},
            replace(model.faster(gain), overlap=model.overlap or 1.0),
        )


def _storage(model: Model) -> Iterator[Change]:
    """Storage that keeps no reader waiting: a local disk, or a cache."""
    wait = model.waits("read")
    if not wait:
        return
    workers = model.summary.get("workers") or 1
    others = model.waits("transforms")
    now = model.by_workers(workers, wait + others)
    gain = model.by_workers(workers, others) / now
    remote = bool(model.summary.get("remote"))
    yield Change(
        "--cache-dir, once filled" if remote else "storage without latency",
        {"cache_dir": "FOLDER"} if remote else {},
        model.faster(gain),
    )


def _transforms(model: Model) -> Iterator[Change]:
    """The functions of --transforms made fast."""
    if model.stage("transforms"):
        after = model.spared("transforms")
        yield Change("--transforms that take no time", {}, after)


def _causes(model: Model) -> Iterator[Change]:
    """The remedies of what is no setting: neighbours on the machine, and files that are slow to decode."""
    for cause, after in REMEDIES.items():
        if cause.says(value := look_up(model.summary, cause.key), model.summary):
            yield from (
                Change(cause.remedy, {}, *limits) for limits in after(model, value)
            )


Limits = Iterator[tuple[Model, ...]]
"""The limits after a change, then those where it does the least and the most; nothing where they are not known."""


def _gpu_alone(model: Model, shared: Any) -> Limits:
    # a neighbour takes turns with the step, so half of the time at most
    even = 1 / (1 - min(shared["busy"], 0.5))
    decodes = model.summary.get("loader") in DECODE_ON_GPU
    yield tuple(
        replace(
            model,
            compute=model.compute * even * more,
            loader=model.loader * (even * more if decodes else 1.0),
        )
        for more in TAKES_TURNS
    )


def _cores_alone(model: Model, others: Any) -> Limits:
    # no more is gained than others have taken, nor than workers have waited for a core
    cores = look_up(model.summary, "hardware.cores")
    gain = cores / max(cores - others, WORTH * cores)
    if busy := look_up(model.summary, "cpu.utilisation"):
        # torch's threads and workers fill a core each; other threads of the program are not counted
        used = max(busy * cores - others, WORTH)
        threads = look_up(model.summary, "cpu.threads") or cores
        gain = min(gain, min(cores, max(threads, math.ceil(used))) / used)
    on_gpu = look_up(model.summary, "hardware.gpu")
    stretched = model.stretched() or gain
    loader = min(gain, stretched) * model.loader
    if cpu := model.busy("cpu_ms"):
        # what workers wait for storage stays
        computes = min(stretched * cpu / model.busy(), 1.0)
        loader = model.loader / (1 - computes * (1 - 1 / min(gain, stretched)))
    compute = model.compute if on_gpu else gain * model.compute
    yield replace(model, compute=compute, loader=loader), model


def _baseline(model: Model, share: Any) -> Limits:
    # of a GPU's decoders nobody has measured it
    if model.stage("decode"):
        # of the time of decoding, as much as they take more than baseline files
        yield tuple(
            model.spared("decode", 1 - 1 / (1 + share * (times - 1)))
            for times in PROGRESSIVE
        )


def _like_others(model: Model, large: Any) -> Limits:
    yield from _smaller(model, large["above_median"])


def _smaller(model: Model, share: Any) -> Limits:
    # decoding takes as long as there are pixels
    if model.stage("decode"):
        yield (model.spared("decode", share),)
    else:
        # of what DALI's time goes to nothing is known
        yield model.faster(1 / (1 - share)), model


REMEDIES: dict[Cause, Callable[[Model, Any], Limits]] = {
    GPU_ALONE: _gpu_alone,
    CORES_ALONE: _cores_alone,
    BASELINE: _baseline,
    LIKE_OTHERS: _like_others,
    SMALLER: _smaller,
}


def _loaders(model: Model) -> Iterator[Change]:
    """Other loaders, as --loader auto has measured them with the step."""
    own = model.summary.get("loader")
    measured = look_up(model.summary, "loader_auto.measured") or {}
    before = look_up(measured, f"{own}.rate")
    for name, figures in measured.items():
        rate = figures.get("rate")
        if name != own and rate and before:
            # both were measured with the step beside them: what is lost so is in their rates already
            limit = model.limit() * rate / before
            after = replace(model, compute=limit, loader=limit, cores=None, overlap=1.0)
            yield Change(f"--loader {name}", {"loader": name}, after)


def _graphs(model: Model) -> Iterator[Change]:
    """The step as one CUDA graph: nobody launches its kernels one by one."""
    kernels = model.of_step("kernel_ms")
    step = model.of_step("step_ms")
    if not (kernels and step and graphs_can_be_had(model.summary)):
        return

    def closer(share: float) -> Model:
        kernel_ms = kernels * (1 - share * waits)
        return replace(model, compute=model.compute * step / kernel_ms)

    waits = max(1 - kernels / step, 0.0)
    least, likely, most = map(closer, CLOSER)
    yield Change("--graphs true", {"graphs": True}, likely, least, most)


def _compile(model: Model) -> Iterator[Change]:
    """torch.compile: fewer passes over memory. How many fewer depends on the network."""
    kernels = model.of_step("kernel_ms")
    arithmetic = model.of_step("arithmetic_ms")
    step = model.of_step("step_ms")
    if not (kernels and arithmetic and step) or model.summary.get("compile"):
        return
    if not model.summary.get("one_shape"):  # each would be compiled
        return
    memory = max(kernels - arithmetic, 0.0)

    def saving(share: float) -> Model:
        return replace(model, compute=model.compute * step / (step - share * memory))

    convolutions = model.of_step("convolutions") or 0.0
    least, most = FUSED_CONVOLUTIONS if convolutions > 0.5 else FUSED_PRODUCTS
    yield Change(
        "--compile true",
        {"compile": True},
        saving((least + most) / 2),
        saving(least),
        saving(most),
    )


def _batch(model: Model) -> Iterator[Change]:
    """Twice the batch: a host that launches kernels one by one does so half as often a sample."""
    kernels = model.of_step("kernel_ms")
    step = model.of_step("step_ms")
    size = model.summary.get("batch_size")
    if not (kernels and step and size):
        return
    after = replace(model, compute=model.compute * 2 * step / max(step, 2 * kernels))
    yield Change(
        f"--batch-size {2 * size}, another recipe", {"batch_size": 2 * size}, after
    )


def _gpus(model: Model) -> Iterator[Change]:
    """Twice the GPUs on this host have twice the decoders, and share the CPU cores that there are."""
    if not look_up(model.summary, "hardware.gpu"):
        return
    on_cores = model.stage("workers") or model.stage("decode")
    loader = model.loader if on_cores else 2 * model.loader
    after = replace(model, compute=2 * SECOND_GPU * model.compute, loader=loader)
    ranks = int(model.summary.get("world_size") or 1)
    yield Change(f"{2 * ranks} GPUs for {ranks}", {}, after)


CHANGES: tuple[Callable[[Model], Iterator[Change]], ...] = (
    _workers,
    _storage,
    _transforms,
    _causes,
    _loaders,
    _graphs,
    _compile,
    _batch,
    _gpus,
)
"""A kind of change a line. The `settings` of a Change are those of train.py; run/tune.py tries its levers among
them."""


def sentence(listed: Sequence[Mapping[str, Any]], summary: Summary) -> str:
    """Say the best predictions that gain something, each with its range."""
    unit = unit_of(summary)
    return "; ".join(
        f"{one['what']}: {one['rate']:,.0f} {unit} ({one['low']:,.0f} to {one['high']:,.0f}), {one['gain']:+.0%}"
        for one in listed[:SHOWN]
        if one["gain"] > LEAST_GAIN
    )
