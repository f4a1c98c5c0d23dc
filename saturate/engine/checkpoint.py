"""Checkpoints: written beside training under a new name, synced, renamed; read without running code; and how a
run goes on from one."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import BaseModel, InstanceOf, ValidationError
from torch import nn

from saturate.contracts import Figure, NotFinite, Reporter, UserError, counted
from saturate.engine import ema, optimizers, unkillable
from saturate.engine import precision as precisions
from saturate.engine.distributed import ProcessWorld
from saturate.engine.step import Step
from saturate.engine.stop import notify
from saturate.settings.config import FACTS_OF
from saturate.settings.run import Run
from saturate.system import storage, torch_files

FORMAT = 2
"""The format of what is written, and the only one that is read."""
WEIGHTS_ALONE = "--weights takes over the weights alone"
TENSORS = ("model", "ema", "optimizer", "scaler")
"""Parts of a checkpoint that are large, and that a network, its optimiser and its loss scale hold."""
OF_A_STEP = re.compile(r"(?:step|\w+--?\d+\.\d{5}-step)-(\d{9})\.pt")
"""Names of the files of --keep and --keep-best."""
Tensors = dict[str, InstanceOf[torch.Tensor]]


@dataclass
class Progress:
    """Progress of a run. (epoch, consumed) is all that a loader needs to go on."""

    epoch: int = 0
    consumed: int = 0  # samples of this epoch, all ranks
    step: int = 0  # optimiser steps of the whole run
    best: float = float("-inf")  # the figure of best.pt
    best_epoch: int = -1  # the epoch that it was validated after; -1: there is none
    best_of: str = ""  # with --ema the weights that it is of, of torch_files.BEST_OF
    stale: int = 0  # validations since then
    reached: str = ""  # the figure of --until that a validation has reached
    comparable_since: int = -1  # figures of steps up to here are of other validations
    dropped: int = 0  # samples that were the tail of an epoch
    samples: int = 0  # rows of all steps
    lost: int = 0  # those of them that could not be decoded
    # training samples that could not be decoded, each once
    failed: tuple[int, ...] = ()


class Content(BaseModel):
    """What a checkpoint holds by name, beside its `format`. Without --ema there is no `ema`, and last.pt has
    no `best_of`.
    """

    arch: str
    classes: tuple[str, ...]  # empty where a task has none
    manifest: str
    val_manifest: str = ""  # of the data that validate; "": not known
    model: Tensors
    ema: Tensors | None = None
    best_of: str | None = None
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    progress: Progress
    config: dict[str, Any]
    used: dict[str, Any] = {}
    ordering: str = ""
    samples_a_step: int = 0  # 0: not known
    loader: str = ""


# --- writing ----------------------------------------------------------------------------------------------


class Upload(Protocol):
    """What uploads a run's folder: dataset.stores.mirror has it."""

    def __call__(self) -> None:
        """Upload what is new. Raises UserError."""

    def hurry(self) -> None:
        """Have uploads given up where the storage is silent."""


@dataclass(kw_only=True)
class Checkpoints:
    """The checkpoint files of a run, last.pt and best.pt, which rank 0 writes beside training.

    A write that fails ends nothing: the files stay as they were, a line says so, and it is tried again with
    the next one. Of a run with --keep each last.pt stays as a file of its step, too; with --keep-best the best
    validations have files of their own.
    """

    folder: Path
    world: ProcessWorld
    module: nn.Module  # the bare module, without DDP and torch.compile
    step: Step
    # arch, classes, manifest, ordering, config (what was asked for) and used (what came of it): what Resume
    # compares, and an evaluation begins from
    about: dict[str, Any]
    keep: int = 0
    keep_best: int = 0
    upload: Upload | None = None
    saved: int = 0  # the step of last.pt, 0: there is none
    # held while files are written
    writing: threading.Lock = field(default_factory=threading.Lock)

    # by name, in the order in which they have to be written: last.pt knows the figure of best.pt
    _unwritten: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    # of the last validation; it comes after last.pt, whose room it may not take
    _ranked: tuple[dict[str, Any], Figure, float] | None = field(
        default=None, init=False
    )
    _thread: threading.Thread | None = field(default=None, init=False)
    # buffers that are not finite by design, such as masks of -inf
    _masks: set[str] = field(default_factory=set, init=False)
    _uploading: threading.Thread | None = field(default=None, init=False)
    _upload_is_due: bool = field(default=False, init=False)
    _hurries: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._masks = {*_not_finite(dict(self.module.named_buffers()))}

    def content(self, progress: Progress) -> dict[str, Any] | None:
        """Copy what a checkpoint holds from which a run goes on at `progress` to the host's memory; None but on
        rank 0. All ranks call it together.

        Raises NotFinite, on every rank, where a part of it is not finite.
        """
        self.wait()  # and its copy is freed
        self._require_finite(progress)
        return on_host(self._live(progress)) if self.world.rank == 0 else None

    def _require_finite(self, progress: Progress) -> None:
        """Raise NotFinite, on every rank, where rank 0 has a weight, a buffer or a state of the optimiser that is
        not finite. The loss does not show it where the gradient alone was none, or in statistics of a batch norm.
        """
        wrong: list[str] = []
        if self.world.rank == 0:
            wrong = _not_finite(self._state())
        # a checkpoint waits for the device anyhow, so a step need not look
        if wrong := self.world.gather(wrong[:1])[0]:
            self.wait()  # `saved` is that of the write under way
            problem = f"{wrong[0]} is not finite after step {progress.step:,}"
            retained = (
                f"last.pt has step {self.saved:,}" if self.saved else "no last.pt"
            )
            remedy = precisions.remedy(self.step.precision)
            raise NotFinite(f"{problem}; nothing was saved of it, {retained}. {remedy}")

    def _state(self) -> dict[str, torch.Tensor]:
        """Return all tensors of a checkpoint that have to be finite, by what messages call them."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        average = self.step.ema
        weights = dict(self.module.state_dict())
        averages = {} if average is None else average.state_dict()
        tensors = {n: t for n, t in weights.items() if n not in self._masks}
        for name, tensor in averages.items():
            if name.removeprefix(ema.PREFIX) not in self._masks:
                tensors[f"{name} (--ema)"] = tensor
        for parameter, state in self.step.optimizer.state.items():
            parameter_name = names.get(id(parameter), "a parameter")
            tensors |= {
                f"{key} of {parameter_name}": value for key, value in state.items()
            }
        return tensors

    def _live(self, progress: Progress) -> dict[str, Any]:
        average = self.step.ema
        return {
            "model": self.module.state_dict(),
            **({"ema": average.state_dict()} if average is not None else {}),
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "progress": asdict(progress),
            **self.about,
        }

    def into_memory(self, progress: Progress) -> None:
        """Leave a snapshot to this rank's agent, where there is one (--unkillable). All ranks call it together.

        Raises NotFinite as `content` does; the snapshot before it stays.
        """
        if unkillable.memory is None:
            return
        # what each rank has for itself becomes rank 0's, which last.pt has
        own = [*self.module.buffers()]
        own += self.step.ema.tensors() if self.step.ema is not None else []
        self.world.broadcast(own)
        self._require_finite(progress)
        whole = {"format": FORMAT, **self._live(progress)}
        unkillable.memory.write(lambda file: torch.save(whole, file))

    def write(
        self, name: str, content: dict[str, Any] | None, *, last: bool = False
    ) -> None:
        """Write rank 0's `content` (others give None) in a thread, once the write before has ended.

        Of the run's `last` one, which `finish` tries again, an error is not said here.
        """
        if content is None:
            return
        self.wait()
        self._unwritten.pop(name, None)
        self._unwritten[name] = content
        # not with a best.pt, whose last.pt follows at once
        work = partial(self._write_beside, is_last_pt=name == "last.pt", last=last)
        self._thread = threading.Thread(target=work, name="saturate-checkpoint")
        self._thread.start()

    def rank(self, content: dict[str, Any], figure: Figure, value: float) -> None:
        """Have the checkpoint of a validation kept with the next write, where it is one of the --keep-best by
        `figure`. Rank 0 calls it.
        """
        if math.isfinite(value):
            self._ranked = (content, figure, value)

    def wait(self) -> None:
        """Wait until the write under way has ended, well or not."""
        if self._thread is not None:
            self._thread.join()

    def finish(self, *, stopped: bool = False) -> None:
        """Write and upload what could not be, or is new. Raises UserError on every rank if that fails; of a run that
        was `stopped` a line says that the storage has not taken all.
        """
        self.wait()
        self.world.first(lambda: self._finish(stopped))

    def _finish(self, stopped: bool) -> None:
        if stopped:
            self.end_upload()
        for pause_s in (*storage.ENDING_S, None):
            try:
                self._write_all(ranked=True)
                break
            except UserError:
                if pause_s is None:
                    raise
            time.sleep(pause_s)
        if self.upload is None:
            return
        if self._uploading is not None:
            self._uploading.join()
        try:
            self.upload()
        except storage.StorageFault as error:
            if not stopped:
                raise
            notify(f"{error}, and --resume auto there uploads it")

    def hurry(self) -> None:
        """Have uploads given up from now on where the storage is silent: the run ends before its time."""
        self._hurries = True
        if self.upload is not None:
            self.upload.hurry()

    def end_upload(self) -> None:
        """Wait for the upload under way, in a hurry."""
        self.hurry()
        if self._uploading is not None:
            self._uploading.join()

    @property
    def where(self) -> str:
        """Say, on rank 0, where the run goes on once it has ended."""
        self.wait()
        if not self.saved:
            return "there is no last.pt yet: the same command begins anew"
        again = f"the same command and --output {self.folder} --resume auto"
        return f"last.pt has step {self.saved:,}: go on with {again}"

    def notify_where(self) -> None:
        """Say `where` after a run that has lost a rank; not where --unkillable goes on by itself."""
        self.end_upload()
        if self.world.rank == 0 and unkillable.memory is None:
            notify(self.where)

    def _write_beside(self, *, is_last_pt: bool, last: bool) -> None:
        try:
            self._write_all(ranked=is_last_pt)
        except Exception as error:  # a thread's would be lost
            if not last:
                _notify_retry(error)
        else:
            if is_last_pt and self.upload is not None:
                self._upload_beside()

    def _upload_beside(self) -> None:
        """Upload in a thread of its own, or again behind an upload that is under way: no write waits for a storage
        that is silent. What comes in between two looks of that thread is left to the next checkpoint."""
        self._upload_is_due = True
        if self._uploading is None or not self._uploading.is_alive():
            self._uploading = threading.Thread(target=self._upload_due, daemon=True)
            self._uploading.start()

    def _upload_due(self) -> None:
        assert self.upload is not None
        while self._upload_is_due:
            self._upload_is_due = False
            try:
                self.upload()
            except storage.Superseded:
                # all ranks save and leave, and `finish` says why
                if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                    os.kill(os.getpid(), signal.SIGTERM)
            except Exception as error:
                if not self._hurries:  # else `finish` says it
                    _notify_retry(error)
                return

    def _write_all(self, *, ranked: bool) -> None:
        with self.writing:
            for name, content in list(self._unwritten.items()):
                path = self.folder / name
                write(path, content)
                if name == "last.pt":
                    self.saved = content["progress"]["step"]
                if name == "last.pt" and self.keep:
                    keep(path, content["progress"]["step"], self.keep)
                del self._unwritten[name]
            # behind last.pt alone, not behind the best.pt of the same validation
            if ranked and self._ranked is not None:
                keep_best(self.folder, *self._ranked, self.keep_best)
                self._ranked = None


def _notify_retry(error: Exception) -> None:
    reason = str(error).partition(";")[0]
    notify(f"{reason}; training goes on, and the next checkpoint tries again")


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace `path` by `content` as one act: a kill or a full disk leaves the old file.

    Raises UserError when it cannot be written.
    """
    # one name, so that what a kill leaves is written over
    new = path.with_name(f".{path.name}.new")
    try:
        whole = {"format": FORMAT, **content}
        storage.replace(path, new, lambda file: torch.save(whole, file))
    except (OSError, RuntimeError) as error:
        # torch and the file's own end raise others in the wake of the first OSError
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        reason = getattr(cause, "strerror", None) or f"{cause}".partition("\n")[0]
        remedy = f"there is no {path.name} yet: mend it, or name another folder"
        if path.is_file():
            remedy = (
                f"the earlier {path.name} is untouched: mend it, then --resume auto"
            )
        raise UserError(
            f"--output {path.parent}: cannot write {path.name}: {reason}; {remedy}"
        ) from error


def keep(last: Path, step: int, count: int) -> None:
    """Give `last` the name of its step, too, and remove all such files but the newest `count`."""
    path = last.with_name(f"step-{step:09}.pt")
    new = last.with_name(".step.new")
    try:
        new.unlink(missing_ok=True)
        try:
            os.link(last, new)
        except OSError:  # not every file system can
            shutil.copyfile(last, new)
        os.replace(new, path)
        for old in step_checkpoints(last.parent)[:-count]:
            old.unlink()
    except OSError as error:
        notify(f"--output {last.parent}: cannot keep {path.name}: {error.strerror}")


def keep_best(
    folder: Path, content: dict[str, Any], figure: Figure, value: float, count: int
) -> None:
    """Write a checkpoint as FIGURE-VALUE-step-STEP.pt if it is one of the best `count`, and remove what no longer is.

    Of equals the earlier one is better, as with best.pt. Files of other validations (Progress.comparable_since) stay.
    """
    step = content["progress"]["step"]
    since = content["progress"].get("comparable_since", -1)
    path = folder / f"{figure.name}-{value:.5f}-step-{step:09}.pt"
    own = re.compile(rf"{figure.name}-(-?\d+\.\d{{5}})-step-(\d{{9}})\.pt")
    sign = -1 if figure.larger_is_better else 1
    ranked = [(sign * round(value, 5), step, path)]
    try:
        for other in folder.iterdir():
            match = own.fullmatch(other.name)
            if match is not None and int(match[2]) == step:
                other.unlink()  # a run was resumed into this validation
            elif match is not None and int(match[2]) > since:
                ranked.append((sign * float(match[1]), int(match[2]), other))
        ranked.sort()
        for _, _, other in ranked[count:]:
            other.unlink(missing_ok=True)
        if path in [best for _, _, best in ranked[:count]]:
            # under one name first, so that what a kill leaves is written over
            new = folder / ".ranked.pt"
            write(new, content)
            os.replace(new, path)
    except (OSError, UserError) as error:
        reason = str(error).partition(";")[0]
        notify(f"--keep-best: cannot keep {path.name}: {reason}")


def _not_finite(tensors: Mapping[str, Any]) -> list[str]:
    """List the names of those floating-point tensors that hold an inf or a nan."""
    floats = {
        name: tensor.detach()
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.numel()
    }
    # the largest magnitude of all, which a nan or an inf becomes: one wait, and no copy of a tensor
    largest = nn.utils.get_total_norm([*floats.values()], math.inf)
    if largest.isfinite():
        return []
    return [name for name, tensor in floats.items() if not tensor.isfinite().all()]


def set_aside(folder: Path, step: int, copied: Sequence[str]) -> None:
    """Move the checkpoints of later steps than `step` into a folder below `folder`, in which a run goes on from
    there: it would replace or remove them. Of its files that it cuts there, `copied`, they get a copy.

    A line names what is moved. Raises UserError.
    """
    later = [path for path in sorted(folder.glob("*.pt")) if _step(path) > step]
    if not later:
        return
    aside = folder / f"later-than-step-{step:09}"
    while aside.exists():
        aside = aside.with_name(f"{aside.name}-")
    try:
        storage.keep_aside(aside, later, map(folder.joinpath, copied))
    except OSError as error:
        problem = f"--output {folder}: checkpoints of later steps cannot be kept aside"
        raise UserError(f"{problem}: {error.strerror}; mend it, or move them") from None
    moved = ", ".join(path.name for path in later)
    notify(
        f"--resume goes on from step {step:,}: later checkpoints are in {aside}: {moved}"
    )


def _step(path: Path) -> float:
    """Return the step of a checkpoint that a run may replace; inf where it cannot be read, -inf of other files."""
    if named := OF_A_STEP.fullmatch(path.name):
        return int(named[1])
    if path.name not in ("last.pt", "best.pt"):
        return -math.inf
    taken = torch_files.progress(path)
    return math.inf if taken is None else taken[0]


def on_host(content: object) -> Any:
    """Copy tensors to the host, where later steps do not change them; a GPU's go to pinned memory."""
    copied = _copied(content)
    # copies are on the stream of the steps: a step before is in them, and the next one waits
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    return copied


def _copied(content: object) -> Any:
    if isinstance(content, torch.Tensor):
        host = torch.empty_like(content, device="cpu", pin_memory=content.is_cuda)
        return host.copy_(content.detach(), non_blocking=True)
    if isinstance(content, list):
        return [_copied(value) for value in content]
    if isinstance(content, dict):
        copied = copy(content)  # with a state dict's versions
        copied.update((name, _copied(value)) for name, value in content.items())
        return copied
    return content


def step_checkpoints(folder: Path) -> list[Path]:
    """List the files of --keep, by their steps."""
    return sorted(folder.glob("step-*.pt"))


def newest(folder: Path) -> Path | None:
    """Return the file that --resume auto takes: last.pt, or if that is damaged the newest of --keep that is not, with
    a warning. None where there is none.
    """
    paths = [folder / "last.pt", *reversed(step_checkpoints(folder))]
    paths = [path for path in paths if path.is_file()]
    for path in paths[:-1]:  # `read` has a line for the last one
        if torch_files.damaged(path) is None:
            return path
        notify(f"--resume auto: {path} is damaged, and the one before it is tried")
    return paths[-1] if paths else None


def read(path: Path, *, flag: str = "--resume") -> dict[str, Any]:
    """Return the content of a checkpoint of this program. Raises UserError for anything else.

    `flag` has named it.
    """
    origin = f"{flag} {path}"
    try:
        content = torch_files.load(path)
    except FileNotFoundError:
        others = ", ".join(sorted(file.name for file in path.parent.glob("*.pt")))
        remedy = "'--resume auto' starts anew when there is none"
        if others:
            remedy = f"its folder has {others}"
        raise UserError(f"{origin}: no checkpoint there; {remedy}") from None
    except torch_files.Unreadable as error:
        raise UserError(
            f"{origin}: not a checkpoint that can be read ({error})"
        ) from None
    if not torch_files.is_ours(content):
        remedy = "to start from plain weights use --weights"
        raise UserError(f"{origin}: not a checkpoint of this program; {remedy}")
    if content["format"] != FORMAT:
        remedy = f"this version reads format {FORMAT}; {WEIGHTS_ALONE}"
        number = str(content["format"])[:60]
        raise UserError(f"{origin}: a checkpoint of format {number}; {remedy}")
    try:
        Content.model_validate(content)
    except ValidationError as error:
        name = error.errors()[0]["loc"][0]
        wrong = f"'{name}' in it is missing, or not what was written"
        raise UserError(f"{origin}: a damaged checkpoint: {wrong}") from None
    if damaged := torch_files.damaged(path):
        wrong = f"'{damaged}' in it is not what was written"
        raise UserError(f"{origin}: a damaged checkpoint: {wrong}")
    return dict(content)


# --- going on ---------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Resume:
    """Where a run begins. `find` the checkpoint, see that it `fits`, load it `into` the network, go on at
    `progress`.

    Without a checkpoint the run begins anew: `fits` and `into` do nothing, and `progress` is at the start.
    """

    path: Path | None = None  # None: there is no checkpoint
    # --resume auto, which goes on in --output, be there a checkpoint or not
    auto: bool = False
    evaluate: bool = False  # the network alone is wanted, to validate it
    flag: str = "--resume"  # what named it
    # the checkpoint's content: `find` reads it to evaluate, else `fits`; `into` lets the tensors go
    content: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, run: Run, *, weights: str | None = None) -> Resume:
        """Find the checkpoint that --resume names; with `auto` that is last.pt of --output, where there is
        one.

        To evaluate, a checkpoint of ours that `weights` (--weights) names will do, and it is read at once:
        its settings are those of the evaluation. Raises UserError where --resume cannot be followed, or where
        --evaluate has neither it nor `weights`.
        """
        auto = run.resume == "auto"
        memory = unkillable.memory
        if run.unkillable and not (memory and auto):
            raise UserError(f"give {unkillable.FLAG} as a flag, with --resume auto")
        if run.warm_spare and not (memory and memory.is_warm):
            raise UserError(
                f"give {unkillable.SPARE} as a flag, with {unkillable.FLAG}"
            )
        last = run.folder / "last.pt" if run.folder else None
        path = None
        if auto and last is None:
            remedy = "or name the checkpoint: --resume FILE"
            problem = "--resume auto looks for last.pt in --output, which was not given"
            raise UserError(f"{problem}; {remedy}")
        if auto:
            path = newest(last.parent) if last is not None else None
            path = (memory and memory.path) or path
        elif run.resume is not None:
            path = Path(run.resume)
            if path.is_dir():
                is_best = run.predict and (path / "best.pt").exists()
                path /= "best.pt" if is_best else "last.pt"
        if not run.uses:
            return cls(path=path, auto=auto)
        if path is None and not weights:
            given = "--resume FILE, --resume auto with an --output that holds last.pt, or --weights"
            flag = "--predict" if run.predict else "--evaluate"
            raise UserError(f"{flag} needs a model: {given}")
        flag = "--resume"
        if path is None and weights and _is_checkpoint(Path(weights)):
            path = Path(weights)
            flag = "--weights"
        content = read(path, flag=flag) if path is not None else {}
        return cls(path=path, auto=auto, evaluate=True, flag=flag, content=content)

    @property
    def origin(self) -> str:
        """Return what the run begins from, to begin a message: '--resume runs/a/last.pt'."""
        return f"{self.flag} {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        """Return what rank 0 sends to the others of what it has found: no tensors, which `fits` sends."""
        light = {n: {} if n in TENSORS else v for n, v in self.content.items()}
        return {**vars(self), "content": light}

    def within(self, output: Path) -> bool:
        """Whether the run goes on in the folder `output`, which may then hold files of its earlier part."""
        if self.path is None:
            return False
        return self.auto or self.path.parent == output

    @property
    def progress(self) -> Progress:
        """Return where the run goes on."""
        return Progress(**self.content["progress"]) if self.content else Progress()

    def progress_in(
        self, output: Path, world: ProcessWorld, validates_anew: bool = False
    ) -> Progress:
        """Return where the run goes on in the folder `output`. Where that has no best.pt, such as in another
        folder than the checkpoint's, the best begins anew: else a run that stays below it never writes one. So
        it does where the run `validates_anew`: figures of other data, or of other crops, are not comparable.
        """
        progress = self.progress
        if validates_anew or not world.gather((output / "best.pt").is_file())[0]:
            progress = replace(
                progress, best=Progress.best, best_epoch=-1, best_of="", stale=0
            )
        if validates_anew:
            progress = replace(progress, reached="", comparable_since=progress.step)
        return progress

    def validates_otherwise(
        self, config: Mapping[str, Any], val_manifest: str
    ) -> list[str]:
        """Return what makes figures of this run's validations others than the checkpoint's best one: the data (their
        fingerprint is `val_manifest`) and settings (`config` is of Config.flat()).
        """
        if not self.content or self.progress.best_epoch < 0:
            return []
        is_other = (self.content.get("val_manifest") or val_manifest) != val_manifest
        defining = {name: config[name] for name in config if _defines_figures(name)}
        settings = _differ(self.content.get("config", {}), defining)
        return ["other files", *settings] if is_other else settings

    @property
    def resumed_at(self) -> int | None:
        """Return the step of the checkpoint, 0 where --resume auto has found none; None for a fresh run."""
        return self.progress.step if self.content or self.auto else None

    def of_data(self, world: ProcessWorld) -> dict[str, Any]:
        """Return what the checkpoint says of its data on all ranks, without tensors; {} where there is none.

        Raises UserError where rank 0 cannot read it.
        """

        def read_first() -> dict[str, Any]:
            if self.path is not None and not self.content:
                self.content = read(self.path)
            light = ("config", "manifest", "share_rule", "sketch")
            return {name: self.content[name] for name in light if name in self.content}

        return world.first(read_first)

    def fits(
        self,
        *,
        task: str,
        arch: str,
        classes: Sequence[str],
        manifest: str,
        config: Mapping[str, Any],
        world: ProcessWorld,
    ) -> None:
        """Read the checkpoint on rank 0, and compare it with this run on all ranks.

        An evaluation may be of other data (`manifest`).

        `config` is of Config.flat(). Raises UserError where it cannot be read, or naming both values where it
        does not fit.
        """
        if self.path is None:
            return
        path = self.path
        content = world.first(lambda: self.content or read(path))
        trained = content["classes"]
        anew = "" if self.evaluate else f"; {WEIGHTS_ALONE}"
        flags = [] if self.evaluate else _of_data(content["config"], config)
        because = f": {', '.join(flags)}{anew}" if flags else anew
        # two tasks may have one architecture and the same classes, and their figures cannot be compared
        compared = [
            ("task", content["config"].get("task", task), task, anew),
            ("architecture", content["arch"], arch, ""),
            ("number of classes", len(trained), len(classes), because),
            *(
                ("a class", *pair, because)
                for pair in zip(trained, classes, strict=False)
            ),
        ]
        if not self.evaluate:
            files = f": files were added, removed or changed since{anew}"
            what = "training data (manifest fingerprint)"
            why = because if flags else files
            compared.append((what, content["manifest"], manifest, why))
        for what, theirs, ours, instead in compared:
            if theirs != ours:
                values = f"{theirs!s:.60} in the checkpoint, {ours!s:.60} in this run"
                raise UserError(f"{self.origin}: {what} is {values}{instead}")
        self.content = content

    def into(self, module: nn.Module, step: Step, *, optimizer: str) -> None:
        """Load the tensors into the network and, to train, the step's optimiser and scaler; hyper-parameters
        stay.

        `optimizer` is --optimizer. Raises UserError where the weights, or the optimiser's state, are for
        another network.
        """
        if not self.content:
            return
        try:
            module.load_state_dict(self.content["model"])
        except RuntimeError as error:  # such as the position embedding of a transformer
            reason = str(error).splitlines()[-1].strip()
            asked = "was --image-size another one?"
            raise UserError(
                f"--resume: the weights do not fit, {asked} {reason}"
            ) from None
        if step.ema is not None and "ema" in self.content:
            step.ema.load_state_dict(self.content["ema"])
        elif step.ema is not None:
            step.ema.restart()  # with the weights that were loaded
        if not self.evaluate:
            load_optimizer(step.optimizer, step.scaler, self.content, optimizer)
        # module and optimiser have them now; the file's copy would be held for as long as the run
        for name in TENSORS:
            self.content.pop(name, None)

    def tell(
        self,
        report: Reporter,
        *,
        config: Mapping[str, Any],
        ordering: str,
        samples_a_step: int,
        val_manifest: str,
    ) -> None:
        """Say what is not as in the checkpoint: settings (`config` is of Config.flat()), the plan's `ordering` and
        samples a step, and the data that validate.
        """
        progress = self.progress
        if progress.step and not self.evaluate:
            report.info(
                f"{self.origin}: goes on in epoch {progress.epoch + 1}, at step {progress.step:,}"
            )
        others = [] if self.evaluate else self.changed(config)
        if others:
            report.info(
                f"--resume: otherwise than in the checkpoint: {', '.join(others)}"
            )
        before = self.content.get("samples_a_step") or samples_a_step
        if before != samples_a_step and not self.evaluate:
            report.warn(
                f"--resume: a step had {counted(before, 'sample')} and has {samples_a_step} now, for the same learning "
                f"rate: --global-batch-size {before} keeps them with any number of ranks"
            )
        anew = self.validates_otherwise(config, val_manifest)
        if anew and not self.evaluate:
            report.warn(
                f"--resume: validations are not as in the checkpoint ({', '.join(anew)}), and figures cannot be "
                "compared: best.pt, --keep-best, --patience and --until begin anew"
            )
        begun = self.content.get("ordering", ordering)
        if begun != ordering and self.progress.consumed:
            report.warn(
                f"--resume: the order is not the checkpoint's ({begun}; now {ordering}): "
                "of this epoch's samples some come twice, some not at all"
            )

    def changed(self, config: Mapping[str, Any]) -> list[str]:
        """List the settings that are not as in the checkpoint, such as 'lr 0.1 -> 1.0'."""
        compared = {
            name: value
            for name, value in config.items()
            if FACTS_OF[name].resume in ("named", "scanned")
        }
        if compared.get("loader") == "auto":  # keeps the checkpoint's
            del compared["loader"]
        return _differ(self.content.get("config", {}), compared)


def _defines_figures(name: str) -> bool:
    """Whether the figures of a validation depend on a setting, beside the network and the files."""
    facts = FACTS_OF[name]
    of_network = name in ("task", "arch", "precision")
    return facts.evaluation == "checkpoint" and not (facts.of_data or of_network)


def _differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the settings that are otherwise now, such as 'lr 0.1 -> 1.0'; those that `before` has not are
    left out.
    """
    return [f"{name} {old} -> {new}" for name, old, new in _others(before, now)]


def _others(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    both = [(name, before[name], now[name]) for name in now if name in before]
    return [(name, old, new) for name, old, new in both if old != new]


def _of_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List the flags by which the data set may be another one, such as '--val-share 0.2 -> 0.4'."""
    templates = {"scanned": " {} -> {}", "located": ""}  # a URL may hold a key
    return [
        f"--{name.replace('_', '-')}"
        + templates[FACTS_OF[name].resume].format(old, new)
        for name, old, new in _others(before, now)
        if FACTS_OF[name].resume in templates
    ]


def _is_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint of this program, and no other weights."""
    try:
        return torch_files.is_ours(torch_files.load(path))
    except (OSError, torch_files.Unreadable):
        return False


def _trains_others(problem: str) -> UserError:
    return UserError(
        f"--resume: {problem}: give --freeze, --no-decay, --layer-decay, --weights, --weights-backbone and "
        f"--trainable-layers as it had them; {WEIGHTS_ALONE}"
    )


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    content: dict[str, Any],
    name: str,
) -> None:
    """Load the state of a checkpoint's optimiser and scaler; hyper-parameters stay, but for the learning rate
    of its last step, which is saved again where no step is left. `name` is --optimizer.

    Raises UserError for another optimiser, or for other parameters.
    """
    theirs = content["config"].get("optimizer", name)
    saved = content["optimizer"]
    trained, trains = (
        [len(group["params"]) for group in groups]
        for groups in (saved["param_groups"], optimizer.param_groups)
    )
    # older checkpoints have no names
    names, own_names = (
        [name for group in groups for name in group.get("names", ())]
        for groups in (saved["param_groups"], optimizer.param_groups)
    )
    if theirs != name:
        problem = f"--optimizer is {theirs} in the checkpoint, {name} in this run"
        raise UserError(f"--resume: {problem}; {WEIGHTS_ALONE}")
    if trained != trains:
        counts = f"{trained} in the checkpoint, {trains} in this run"
        raise _trains_others(f"parameters are trained in groups of {counts}")
    for before, now in zip(names, own_names, strict=False):
        if before != now:
            raise _trains_others(
                f"{before} is trained in the checkpoint, {now} in this run"
            )
    own = [dict(group) for group in optimizer.param_groups]
    try:
        # load_state_dict takes over learning rate, momentum and decay, and `fused` and `capturable` tell it
        # where the state has to lie: those of this run stand
        groups = [
            {**settings, "params": group["params"]}
            for settings, group in zip(own, saved["param_groups"], strict=True)
        ]
        optimizer.load_state_dict({**saved, "param_groups": groups})
        rates = [float(group["lr"]) for group in saved["param_groups"]]
        optimizers.LearningRates(optimizer).write(rates)
        if content["scaler"]:
            scaler.load_state_dict(content["scaler"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"--resume: a damaged checkpoint: its optimiser's state is not one ({reason})"
        ) from None
    # a checkpoint has no state where all its steps were skipped
    optimizers.make_state(optimizer, name)
