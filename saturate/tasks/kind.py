"""A task as train.py sees it: its defaults, what it reads of the settings, and what its run is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from saturate.contracts import Array, Columns, Feed, Figure, Pixels, Plan, Split, Task
from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.open import Console, Content, are_files
from saturate.loaders import LOADERS, Medium, default_loader, of_medium, usable
from saturate.models import Native, Registry
from saturate.settings.cli import one_of
from saturate.settings.config import FACTS, Config

if TYPE_CHECKING:
    import torch
    from torch import nn

C = TypeVar("C", bound=Columns)
Splits = Mapping[str, Split[C]]
"""{"train": ..., "val": ...}."""


Write = Callable[[Path, Mapping[str, Any], "Asked"], list[Path]]
"""(folder, what the metric of the pass has returned, what was asked for) -> the files that it wrote there. Lines for
the user may be `notes` of what the metric returns."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The n files that --predict is about, in their order, of which some cannot be read."""

    names: Sequence[str]  # [n], as the user writes them
    samples: Array  # int64 [n], the sample of each; -1 where it cannot be read
    errors: Mapping[int, str]  # place of a file -> why there is no answer
    form: str  # --predict-format


@dataclass(frozen=True, kw_only=True)
class Predicting:
    """What --predict does with a task: on which columns, and what it writes of the answers."""

    # with the classes of the model, and no label or box that means anything
    split: Split[Any]
    task: Task  # of a validation of it; what its metric returns is what `write` gets
    write: Write


class TaskKind(ABC, Generic[C]):
    """The entry of one --task, whose columns are of the class C.

    Its file exports one as KIND, and a line of tasks.TASKS names the file.
    """

    name: str  # as --task has it, and TASKS
    arch: str  # of --arch, where none is given
    registry: Registry  # the architectures: a module of models/
    # what a name of --arch begins with -> another module of models/
    others: Mapping[str, str] = {}
    medium: Medium = "images"  # what the files hold, which says which loaders there are
    unit: str = "img/s"  # of the rate
    cpu_precision: str = "auto"  # of --precision auto on a CPU
    # of a validation, in the order of the table; the first one picks best.pt
    figures: tuple[Figure, ...]
    # settings that it reads beside those whose facts name it, or no task
    also: tuple[str, ...] = ()
    loss_parts: bool = False  # Task.parts names parts of the loss
    unpredicted: str = ""  # what --predict is not for, where that is not the whole task
    has_classes: bool = True  # a checkpoint names what its outputs stand for
    # every batch has the same shape, so that a step can be a CUDA graph
    graphs: bool = True

    def of(self, config: Config) -> TaskKind[C]:
        """Return the entry for these settings, with which a task may have other figures."""
        return self

    @abstractmethod
    def splits(
        self,
        config: Config,
        loader: str,
        console: Console,
        model: ModelClasses | None = None,
    ) -> dict[str, Split[C]]:
        """Open {"train": ..., "val": ...}: columns and the bytes behind them. Raises UserError.

        `model`: to evaluate a network with these classes, which the columns then have. A task that reads
        --val-share is also given `trained`, a dataset.val_split.Trained, of a checkpoint that has one.
        """

    @abstractmethod
    def plans(
        self, config: Config, splits: Splits[C], native: Native, **ranks: int
    ) -> tuple[Plan, Plan]:
        """Return the plans to train and to validate. `ranks`: seed, world_size, rank. Raises UserError."""

    @abstractmethod
    def tasks(
        self, config: Config, splits: Splits[C], auxiliary_weight: float
    ) -> tuple[Task, Task]:
        """Return what a batch of training means, and one of validation."""

    def feeds(
        self,
        config: Config,
        splits: Splits[C],
        plans: tuple[Plan, Plan],
        tasks: tuple[Task, Task],
        *,
        pixels: Pixels,
        device: torch.device,
        workers: int,
    ) -> tuple[Feed[C], Feed[C]]:
        """Return what a loader is opened with, to train and to validate: `plans` and `tasks` are of both."""
        from saturate.tasks._plans import (
            transforms,  # with torch, which --help-all does without
        )

        load = config.loading
        asked = self.reads("transforms") and not config.run.uses
        own = {"train": transforms(config.augmentation) if asked else {}, "val": {}}
        train, val = (
            Feed(
                plan=plan,
                source=splits[name].source,
                columns=splits[name].columns,
                targets=task.targets,
                pixels=pixels,
                device=device,
                workers=workers,
                threads=load.decode_threads or workers,
                reader=load.reader,
                pinned=load.pin_memory,
                transforms=own[name],
            )
            for name, plan, task in zip(("train", "val"), plans, tasks, strict=True)
        )
        return train, val

    def building(self, config: Config, columns: C) -> dict[str, Any]:
        """Return what Registry.build takes beside shape and weights. `columns` are those of training."""
        depth = config.model.stochastic_depth
        return {"classes": len(columns.classes)} | (
            {} if depth is None else {"stochastic_depth": depth}
        )

    def adopted(
        self, module: nn.Module, arch: str, shape: tuple[int, ...]
    ) -> nn.Module:
        """Return the network that --arch package.module:function has built, as this task trains it.

        Raises Unusable when it cannot train on batches of `shape`.
        """
        from saturate.models import Unusable
        from saturate.models._weights import dry_run, first_line

        try:
            dry_run(module, shape)
        except Exception as error:  # a user's own code raises whatever it likes
            said = first_line(error)
            raise Unusable(
                f"--arch {arch} cannot train on batches of shape {list(shape)}: {said}"
            ) from None
        return module

    def used(self, plan: Plan) -> dict[str, Any]:
        """Return the resolved values of optional settings, JSON-serialisable; `plan` is that of validation."""
        return {}

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return a summary's facts about this task's data, JSON-serialisable; `plan` is that of training."""
        return {}

    def bytes_read(self, columns: C, ids: Array) -> int:
        """Return how many bytes the files of these samples have; 0 = not known."""
        return int(columns.size[ids].sum())

    def score(self, config: Config, console: Console) -> int | None:
        """Do what the settings ask for in place of a run, and return the exit code; None: they do not."""
        return None

    def predicting(
        self, config: Config, found: Split[Any], classes: tuple[str, ...], folder: Path
    ) -> Predicting:
        """Return what --predict does with the files that were `found`, for a network with these classes.

        What a task does not keep until the end goes into `folder` at once. Asked of a task that `predicts`.
        """
        raise NotImplementedError

    @property
    def predicts(self) -> bool:
        """Whether it has predictions: not those of a class above it, where it says anew what a batch means."""
        if type(self).predicting is TaskKind.predicting:
            return False
        predicting, tasks = (
            next(kind for kind in type(self).__mro__ if name in vars(kind))
            for name in ("predicting", "tasks")
        )
        return issubclass(predicting, tasks)

    def content(self, config: Config) -> Content:
        """Return what the data set holds, which says how --data is read."""
        return "videos" if self.medium == "videos" else "images"

    def are_files(self, config: Config) -> bool:
        """Return whether each sample will be a file of its own, which --loader auto depends on."""
        return are_files(config.data, self.content(config))

    @property
    def loaders(self) -> Collection[str]:
        """Return the names that --loader takes."""
        return of_medium(self.medium)

    def default_loader(self, *, gpu: bool, files: bool = True) -> str:
        """Return the loader that --loader auto is; `files`: each sample is a file of its own."""
        return default_loader(self.medium, gpu=gpu, files=files)

    def may_open(self, config: Config, *, gpu: bool) -> tuple[str, ...]:
        """Return the loaders of which a run opens one: what --loader names; of auto, all that can run here.

        The first is the likeliest to be the fastest, and what an evaluation takes. Raises UserError for an
        unknown name.
        """
        found = self.can_open(config, gpu=gpu)
        asked = config.loading.loader
        if asked != "auto" or not found:
            likeliest = self.default_loader(gpu=gpu, files=self.are_files(config))
            return (one_of("--loader", asked, self.loaders, auto=likeliest),)
        return found[:1] if config.run.evaluate else found

    def can_open(self, config: Config, *, gpu: bool) -> tuple[str, ...]:
        """Return the loaders that can run here on --data, the likeliest to be the fastest first."""
        if config.data.data is None:
            return ()
        files = self.are_files(config)
        likeliest = self.default_loader(gpu=gpu, files=files)
        names = [likeliest, *(other for other in self.loaders if other != likeliest)]
        if (
            config.augmentation.transforms
            and self.reads("transforms")
            and not config.run.evaluate
        ):
            names = [name for name in names if LOADERS[name].transforms]
        return tuple(name for name in names if usable(name, gpu=gpu, files=files))

    def reads(self, setting: str) -> bool:
        """Return whether a setting means anything to this task."""
        tasks = FACTS[setting].tasks
        return not tasks or self.name in tasks or setting in self.also
