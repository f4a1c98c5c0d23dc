"""Settings -> what a run is made of. Training, evaluation, prediction and export are all put together here.

resolve      settings -> Resolved: what they name is found and checked, before any data is read
open_data    Resolved -> columns and bytes, of the data of a checkpoint or of other data
open_files   Resolved and files without classes -> the same of these
build        Resolved and data -> Assembly: plans, tasks, the network and the feeds of loaders
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saturate.contracts import Feed, Pixels, Plan, Split, Task, UserError
from saturate.dataset.open import Console, are_files
from saturate.dataset.unlabelled import Unlabelled, open_unlabelled
from saturate.dataset.val_split import Trained
from saturate.engine import memory, precision, schedules
from saturate.engine.checkpoint import Resume
from saturate.engine.distributed import ProcessWorld
from saturate.loaders import LOADERS, require_files, usable
from saturate.models import AUXILIARY_WEIGHTS, Native, Registry
from saturate.settings.cli import one_of
from saturate.settings.config import FACTS_OF, Config
from saturate.settings.optimisation import Optimisation
from saturate.tasks import architecture, kind_of
from saturate.tasks.batching import Batching
from saturate.tasks.distillation import Distilled, read_teacher
from saturate.tasks.initial_state import Start
from saturate.tasks.kind import Opening, Splits, TaskKind


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The settings of a run, with what they name or leave open."""

    start: Start
    kind: TaskKind
    loaders: tuple[str, ...]  # candidates: auto measures them, else there is one
    registry: Registry
    arch: str  # as the registry has it
    native: Native  # the network's input, with --image-size and the like
    precision: str  # fp16, bf16 or fp32
    workers: int
    batching: Batching  # of this rank, which makes its share of --global-batch-size
    device: torch.device

    @property
    def config(self) -> Config:
        """The settings as they were asked for, which the run's files keep."""
        return self.start.config

    @property
    def pixels(self) -> Pixels:
        """What loaders make of decoded pixels."""
        return Pixels(
            mean=self.native.mean,
            std=self.native.std,
            dtype=precision.dtype_of(self.precision),
            interpolation=self.native.interpolation,
        )


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What has to be alike on all ranks, and what a checkpoint holds of it."""

    arch: str
    classes: list[str]
    manifest: str  # fingerprint of the training data
    val_manifest: str  # and of the data that validate
    precision: str
    ordering: str  # what the order of the samples depends on
    samples_a_step: int

    def agreed(self) -> dict[str, Any]:
        """Return it by the words of a message."""
        return {
            "arch": self.arch,
            "classes": self.classes,
            "manifest": self.manifest,
            "manifest of the validation": self.val_manifest,
            "precision": self.precision,
            "order of the samples": self.ordering,
            "samples a step": self.samples_a_step,
        }

    def kept(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, by its keys: a run may go on in another precision."""
        return {
            name: value for name, value in vars(self).items() if name != "precision"
        }


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What a run is made of. No loader is open yet, and the network is on the device."""

    settings: Resolved
    identity: RunIdentity
    # --lr and the warm-up for the data and the ranks, and what to say of that
    optimisation: Optimisation
    messages: list[str]
    splits: Splits
    plan: Plan
    val_plan: Plan
    task: Task
    val_task: Task
    module: nn.Module
    feed: Feed[Any]
    val_feed: Feed[Any]


def resolve(start: Start, world: ProcessWorld) -> Resolved:
    """Return the settings of a run with what they name on this machine. Raises UserError, and Unusable."""
    config = start.config
    kind = kind_of(config)
    batching = Batching.from_config(config, **world.place)
    loaders = may_open(kind, config, gpu=world.device.type == "cuda")
    registry, arch = architecture(kind, config.model.arch)
    native = start.native(registry, arch)
    _require_crop(config, native)
    return Resolved(
        start=start,
        kind=kind,
        loaders=loaders,
        registry=registry,
        arch=arch,
        native=native,
        precision=precision.choose(
            config.model.precision, world.device, on_cpu=kind.cpu_precision
        ),
        workers=world.workers(config.loading.workers),
        batching=batching,
        device=world.device,
    )


def _require_crop(config: Config, native: Native) -> None:
    """Raise UserError for flags of a validation's crop where the network's own window has none.

    A preset may keep what --arch has made idle, and a checkpoint says its --val-window.
    """
    drawn = config.augmentation
    if config.run.config or drawn.val_window or native.window != "stretch":
        return
    for name in ("val_resize", "val_crop_share"):
        if getattr(drawn, name) is not None:
            raise UserError(
                f"--{name.replace('_', '-')} is for --val-window center, and this network's own is stretch; leave it "
                "out, or give --val-window center"
            )


def may_open(kind: TaskKind, config: Config, *, gpu: bool) -> tuple[str, ...]:
    """Return the loaders of which a run opens one: what --loader names; of auto, all that can run here.

    The first is the likeliest to be the fastest, and what an evaluation takes. Raises UserError for an
    unknown name.
    """
    openable = can_open(kind, config, gpu=gpu)
    asked = config.loading.loader
    if asked != "auto" or not openable:
        files = are_files(config.data, kind.content)
        likeliest = kind.default_loader(gpu=gpu, files=files)
        return (one_of("--loader", asked, kind.loaders, auto=likeliest),)
    return openable[:1] if config.run.evaluate else openable


def can_open(kind: TaskKind, config: Config, *, gpu: bool) -> tuple[str, ...]:
    """Return the loaders that can run here on --data, the likeliest to be the fastest first."""
    if config.data.data is None:
        return ()
    files = are_files(config.data, kind.content)
    likeliest = kind.default_loader(gpu=gpu, files=files)
    names = [likeliest, *(other for other in kind.loaders if other != likeliest)]
    transforms = config.augmentation.transforms and kind.reads("transforms")
    if transforms and not config.run.evaluate:
        names = [name for name in names if LOADERS[name].transforms]
    if config.loading.reader != "auto" and kind.reads("reader"):
        names = [name for name in names if name in FACTS_OF["reader"].needs]
    return tuple(name for name in names if usable(name, gpu=gpu, files=files))


def open_data(
    settings: Resolved, world: ProcessWorld, console: Console, trained: Trained | None
) -> tuple[Resolved, Splits]:
    """Open the data to train and to validate on; return them with the settings with which they could be opened.

    `trained` is what a checkpoint says of its data. Raises UserError.
    """
    model = settings.start.classes(settings.registry, settings.arch)

    def opened(config: Config) -> tuple[Resolved, Splits]:
        resolved = resolve(replace(settings.start, config=config), world)
        how = Opening.from_config(config, resolved.loaders[0], console, model, trained)
        return resolved, resolved.kind.splits(how)

    start, (settings, splits) = settings.start.on_its_data(opened)
    # files that cannot be read are said here, and not first in the validation
    require_files(settings.loaders[0], [split.source for split in splits.values()])
    return replace(settings, start=start), splits


def open_files(
    settings: Resolved, named: Path, console: Console, *, flag: str
) -> Unlabelled:
    """Open the files without classes that `named`, the value of `flag`, is. Raises UserError."""
    config = settings.config
    with console.counting("predict") as progress:
        return open_unlabelled(
            named,
            config.data,
            content="videos" if settings.kind.medium == "videos" else "images",
            read_delay_s=config.loading.read_delay_ms / 1e3,
            progress=progress,
            flag=flag,
        )


def build(
    settings: Resolved,
    splits: Splits,
    world: ProcessWorld,
    console: Console,
    *,
    resume: Resume | None = None,
    predicted: Task | None = None,
) -> Assembly:
    """Make what a run is made of. Every rank calls it, once the ranks have joined.

    `resume` is the checkpoint that has to fit, `predicted` what a batch of files without labels means. Raises
    UserError, and Unusable.
    """
    start, kind, config = settings.start, settings.kind, settings.config
    columns = splits["train"].columns
    plan, val_plan = kind.plans(splits, settings.native, settings.batching)
    if predicted:
        task = val_task = predicted
    else:
        auxiliary_weight = AUXILIARY_WEIGHTS.get(settings.arch, 0.0)
        task, val_task = kind.tasks(splits, auxiliary_weight)
    accumulate = {"accumulate": settings.batching.accumulate}
    optimisation, messages = schedules.of_plan(
        config.optimisation.model_copy(update=accumulate), plan
    )
    identity = RunIdentity(
        arch=settings.arch,
        classes=list(columns.classes),
        manifest=columns.fingerprint,
        val_manifest=splits["val"].columns.fingerprint,
        precision=settings.precision,
        ordering=plan.ordering,
        samples_a_step=plan.global_batch_size,
    )
    # before a network is built: ranks that differ would wait for each other in it
    world.agree(identity.agreed())
    if resume is not None:
        resume.fits(
            task=kind.name,
            arch=identity.arch,
            classes=identity.classes,
            manifest=identity.manifest,
            config=config.flat(),
            world=world,
        )
    heads = kind.building(columns)
    module = start.network(
        settings.registry,
        settings.arch,
        (plan.batches.rows, *plan.batches.sample_shape),
        heads,
        console,
        world.file,
        columns.classes if not config.run.uses else (),
    )
    module = _placed(module, plan, world.device)
    if optimisation.teacher:
        task = _taught(task, settings, identity.classes, plan, world)
    feed, val_feed = _feeds(settings, splits, (plan, val_plan), (task, val_task))
    return Assembly(
        settings=settings,
        identity=identity,
        optimisation=optimisation,
        messages=messages,
        splits=splits,
        plan=plan,
        val_plan=val_plan,
        task=task,
        val_task=val_task,
        module=module,
        feed=feed,
        val_feed=val_feed,
    )


def training_feed(settings: Resolved, data: Split[Any]) -> Feed[Any]:
    """Return what a loader is opened with to train on a split, without a network. Raises UserError."""
    splits = {"train": data, "val": data}
    plans = settings.kind.plans(splits, settings.native, settings.batching)
    return _feeds(settings, splits, plans, settings.kind.tasks(splits, 0.0))[0]


def _placed(module: nn.Module, plan: Plan, device: torch.device) -> nn.Module:
    layout = memory.CHANNELS_LAST[1 + len(plan.batches.sample_shape)]
    return module.to(device).to(memory_format=layout)


def _taught(
    task: Task, settings: Resolved, classes: list[str], plan: Plan, world: ProcessWorld
) -> Task:
    """Return the task with which the network also learns from --teacher. Raises UserError, and Unusable."""
    asked = settings.config.optimisation
    with world.file(asked.teacher) as path:
        teacher = read_teacher(
            str(path),
            settings.kind,
            settings.native,
            classes,
            (plan.batches.rows, *plan.batches.sample_shape),
            settings.config.augmentation.image_size_start,
        )
    teacher = _placed(teacher, plan, world.device)
    return Distilled(task, teacher, asked.teacher_share, asked.teacher_temperature)


def _feeds(
    settings: Resolved,
    splits: Splits,
    plans: tuple[Plan, Plan],
    tasks: tuple[Task, Task],
) -> tuple[Feed[Any], Feed[Any]]:
    """Return what a loader is opened with, to train and to validate. Raises UserError."""
    config = settings.config
    load = config.loading
    drawn = config.augmentation
    transforms: dict[str, Any] = {"train": {}, "val": {}}
    if drawn.transforms and settings.kind.reads("transforms") and not config.run.uses:
        # imported by a run that has them
        from saturate.loaders.images.transforms import Transform

        transforms["train"] = {drawn.transforms_on: Transform(drawn.transforms)}
    train, val = (
        Feed(
            plan=plan,
            source=splits[name].source,
            columns=splits[name].columns,
            targets=task.targets,
            pixels=settings.pixels,
            device=settings.device,
            workers=settings.workers,
            threads=load.decode_threads or settings.workers,
            reader=load.reader,
            pinned=load.pin_memory,
            transforms=transforms[name],
        )
        for name, plan, task in zip(("train", "val"), plans, tasks, strict=True)
    )
    return train, val
