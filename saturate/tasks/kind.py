"""A task as train.py sees it: its defaults, what it reads of the settings, and what its run is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from saturate.contracts import Array, Columns, Figure, Plan, Split, Task
from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.open import Console, Content, open_splits
from saturate.dataset.val_split import Trained
from saturate.loaders import Medium, default_loader, of_medium
from saturate.models import Native, Registry
from saturate.settings.config import FACTS_OF, Config
from saturate.settings.data import Data

if TYPE_CHECKING:
    from torch import nn

    from saturate.tasks.batching import Batching  # with NumPy's random generators

DEFAULTS = Config()
"""Settings of a TaskKind that stands for no run."""
Splits = Mapping[str, Split[Any]]
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
    # what it says in the end of what the metric returns, such as how many of each class there are
    summed_up: Callable[[Mapping[str, Any]], str] = lambda _: ""

    @property
    def splits(self) -> Splits:
        """Return the files in the place of the data to train and to validate on."""
        return {"train": self.split, "val": self.split}


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How the data of a run is opened, whatever its task is."""

    data: Data
    loader: str
    console: Console
    read_delay_s: float
    read_threads: int | None
    evaluate: bool
    split: str  # what validates, by its name in the data
    validates: bool
    # to evaluate a network with these classes, which the columns then have
    model: ModelClasses | None
    # what a checkpoint was trained on, whose --val-share stays
    trained: Trained | None

    @classmethod
    def from_config(
        cls,
        config: Config,
        loader: str,
        console: Console,
        model: ModelClasses | None = None,
        trained: Trained | None = None,
    ) -> Opening:
        """Return how the data of these settings is opened for a loader."""
        return cls(
            data=config.data,
            loader=loader,
            console=console,
            read_delay_s=config.loading.read_delay_ms / 1e3,
            read_threads=config.loading.read_threads,
            evaluate=config.run.evaluate,
            split=config.run.split,
            validates=config.run.val_every > 0,
            model=model,
            trained=trained,
        )

    def splits(self, content: Content) -> dict[str, Split[Any]]:
        """Open {"train": ..., "val": ...}. Raises UserError."""
        how = {name: value for name, value in vars(self).items() if name != "data"}
        return open_splits(self.data, content=content, **how)


@dataclass(frozen=True)
class TaskKind(ABC):
    """The entry of one --task. Its file exports one as KIND, and a line of tasks.TASKS names the file.

    Its fields are the groups of settings that the task reads, by their names in settings.config.Config. Those of
    KIND are the defaults; tasks.kind_of fills in a run's.
    """

    name: ClassVar[str]  # as --task has it, and TASKS
    arch: ClassVar[str]  # of --arch, where none is given
    registry: ClassVar[Registry]  # the architectures: a module of models/
    # what a name of --arch begins with -> another module of models/
    others: ClassVar[Mapping[str, str]] = {}
    # what the files hold, which says which loaders there are
    medium: ClassVar[Medium] = "images"
    # what the data set holds, which says how --data is read
    content: ClassVar[Content] = "images"
    unit: ClassVar[str] = "img/s"  # of the rate
    cpu_precision: ClassVar[str] = "auto"  # of --precision auto on a CPU
    # of a validation, in the order of the table; the first one picks best.pt
    figures: ClassVar[tuple[Figure, ...]]
    # settings that it reads beside those whose facts name it, or no task
    also: ClassVar[tuple[str, ...]] = ()
    loss_parts: ClassVar[bool] = False  # Task.parts names parts of the loss
    exports: ClassVar[bool] = False  # by saturate/run/export.py, which knows how
    # what --predict is not for, where that is not the whole task
    unpredicted: ClassVar[str] = ""
    # a checkpoint names what its outputs stand for
    has_classes: ClassVar[bool] = True
    # every batch has the same shape, so that a step can be a CUDA graph
    graphs: ClassVar[bool] = True

    @property
    def variant(self) -> TaskKind:
        """The entry for its settings, with which a task may have other figures."""
        return self

    @abstractmethod
    def splits(self, opening: Opening) -> dict[str, Split[Any]]:
        """Open {"train": ..., "val": ...}: columns and the bytes behind them. Raises UserError."""

    @abstractmethod
    def plans(
        self, splits: Splits, native: Native, batching: Batching
    ) -> tuple[Plan, Plan]:
        """Return the plans to train and to validate. Raises UserError."""

    @abstractmethod
    def tasks(self, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        """Return what a batch of training means, and one of validation."""

    def building(self, columns: Columns) -> dict[str, Any]:
        """Return what Registry.build takes beside shape and weights. `columns` are those of training."""
        return {"classes": len(columns.classes)}

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
            reason = first_line(error)
            raise Unusable(
                f"--arch {arch} cannot train on batches of shape {list(shape)}: {reason}"
            ) from None
        return module

    def used(self, plan: Plan) -> dict[str, Any]:
        """Return the resolved values of optional settings, JSON-serialisable; `plan` is that of validation."""
        return {}

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return a summary's facts about this task's data, JSON-serialisable; `plan` is that of training."""
        return {}

    def bytes_read(self, columns: Columns, ids: Array) -> int:
        """Return how many bytes the files of these samples have; 0 = not known."""
        return int(columns.size[ids].sum())

    def predicting(
        self, files: Split[Any], classes: tuple[str, ...], folder: Path
    ) -> Predicting:
        """Return what --predict does with the `files` to predict, for a network with these classes.

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

    @property
    def loaders(self) -> Collection[str]:
        """Return the names that --loader takes."""
        return of_medium(self.medium)

    def default_loader(self, *, gpu: bool, files: bool = True) -> str:
        """Return the loader that --loader auto is; `files`: each sample is a file of its own."""
        return default_loader(self.medium, gpu=gpu, files=files)

    def reads(self, setting: str) -> bool:
        """Return whether a setting means anything to this task."""
        tasks = FACTS_OF[setting].tasks
        return not tasks or self.name in tasks or setting in self.also
