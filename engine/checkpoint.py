"""Checkpoints: written under a new name, synced, renamed; loaded without running code."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from config import Data, Run
from contracts import UserError

FORMAT = 1
FULL_BYTES = 1 << 20
"""Less is left of a disk that a checkpoint has filled."""
HOW_LONG, BY_HOW_MANY = {"steps", "seconds"}, {"workers", "decode_threads", "pin_memory", "read_delay_ms"}
TAKEN_UP_FREELY = HOW_LONG | BY_HOW_MANY | {*Data.model_fields, *Run.model_fields} - {"seed"}
"""Settings that a run which goes on may have anew without a word."""


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace `path` by `content` as one act: a kill or a full disk leaves the old file. Raises UserError when it cannot be written."""
    new = path.with_name(f".{path.name}.new")  # one name, so that what a kill leaves is written over
    try:
        with new.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError, in words of its own
        full = isinstance(error, RuntimeError) and shutil.disk_usage(path.parent).free < FULL_BYTES
        new.unlink(missing_ok=True)
        reason = "no space left" if full else getattr(error, "strerror", None) or str(error).splitlines()[0]
        kept = f"the earlier {path.name} is untouched: mend it, then --resume auto"
        none = f"there is no {path.name} yet: mend it, or name another folder"
        raise UserError(f"--output {path.parent}: cannot write {path.name}: {reason}; {kept if path.is_file() else none}") from error


def on_host(content: Any) -> Any:
    """A copy of what `write` takes, to be written later: its tensors are a CPU's, and stay as they are now."""
    if isinstance(content, torch.Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {name: on_host(value) for name, value in content.items()}
    return [on_host(value) for value in content] if isinstance(content, list) else content


def find(resume: str | None, output: Path | None, *, required: bool = False) -> Path | None:
    """The file that --resume names; `auto` is last.pt of the output folder where there is one. `required`: by --evaluate."""
    if required and (resume is None or (resume == "auto" and output and not (output / "last.pt").is_file())):
        raise UserError("--evaluate needs a model: --resume FILE, --resume auto with an --output that holds last.pt, or --weights")
    if resume is None:
        return None
    if resume == "auto":
        if output is None:
            raise UserError("--resume auto looks for last.pt in --output, which was not given; or name the checkpoint: --resume FILE")
        return last if (last := output / "last.pt").is_file() else None
    path = Path(resume)
    return path / "last.pt" if path.is_dir() else path


def read(path: Path, *, arch: str, classes: tuple[str, ...], manifest: str, evaluate: bool = False) -> dict[str, Any]:
    """A checkpoint that fits this run; to `evaluate` it may be of other training data. Raises UserError naming both values where not."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"--resume {path}: no checkpoint there; '--resume auto' starts anew when there is none") from None
    except OSError as error:
        raise UserError(f"--resume {path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # torch raises whatever the bytes make it stumble over
        reason = str(error).partition("\n")[0].split(". ")[0] if _is_archive(path) else "damaged, or another kind of file"
        raise UserError(f"--resume {path}: not a checkpoint that can be read ({reason})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or not {"arch", "classes", "manifest"} <= content.keys():
        raise UserError(f"--resume {path}: not a checkpoint of this program (format {FORMAT}); to start from plain weights use --weights")
    other_class = next((pair for pair in zip(content["classes"], classes, strict=False) if pair[0] != pair[1]), ("", ""))
    for what, there, here in (
        ("architecture", content["arch"], arch),
        ("number of classes", len(content["classes"]), len(classes)),
        ("a class", *other_class),
        ("training data (manifest fingerprint)", content["manifest"], content["manifest"] if evaluate else manifest),
    ):
        if there != here:
            instead = "" if what == "architecture" else f"; --weights {path} starts from its weights alone"
            if there == content["manifest"]:
                instead = f": files were added, removed or changed since{instead}"
            raise UserError(f"--resume {path}: {what} is {_short(there)} in the checkpoint, {_short(here)} in this run{instead}")
    return content


def changed(content: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What a run that goes on, with `config` of Config.flat(), has otherwise than its checkpoint: 'lr 0.1 -> 1.0'."""
    before = content.get("config", {})
    told = [name for name in config if name in before and name not in TAKEN_UP_FREELY and before[name] != config[name]]
    return [f"{name} {before[name]} -> {config[name]}" for name in told]


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (OSError, zipfile.BadZipFile):  # an end record that is damaged too
        return False


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def restore(content: dict[str, Any] | None, module: nn.Module, step: Any, optimizer: str) -> None:
    """The tensors of a checkpoint into a network and into the optimiser and scaler of its step; hyper-parameters stay as they are.

    `step`: None to evaluate, whatever trained it. `optimizer`: of --optimizer. Raises UserError. Nothing happens without a checkpoint.
    """
    if content is None:
        return
    try:
        module.load_state_dict(content["model"])
    except RuntimeError as error:  # such as the position embedding of a transformer
        said = str(error).splitlines()[-1].strip()
        raise UserError(f"--resume: the weights do not fit, was --image-size another one? {said}") from None
    if step is not None:
        load_optimizer(step.optimizer, step.scaler, content, optimizer)


def load_optimizer(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, content: dict[str, Any], name: str) -> None:
    """The state of a checkpoint's optimiser and scaler; hyper-parameters stay as they are. `name`: of --optimizer. Raises UserError."""
    there = content["config"]["optimizer"]
    if there != name:
        raise UserError(f"--resume: --optimizer is {there} in the checkpoint, {name} in this run; --weights takes over the weights alone")
    own = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    trained, trains = (
        [len(group["params"]) for group in groups] for groups in (content["optimizer"]["param_groups"], optimizer.param_groups)
    )
    if trained != trains:
        raise UserError(
            f"--resume: {sum(trained)} parameters were trained in the checkpoint, {sum(trains)} are in this run: give --weights, "
            "--weights-backbone and --trainable-layers as it had them"
        )
    optimizer.load_state_dict(content["optimizer"])
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
    if content["scaler"]:
        scaler.load_state_dict(content["scaler"])
