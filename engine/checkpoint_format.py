"""What a checkpoint file holds: read without running code, and checked before anything relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, InstanceOf, Strict, TypeAdapter, ValidationError

from contracts import UserError
from system import torch_files

FORMAT = 2
"""What is written has this format: 2 has `used`, the settings as a run used them; 1 had those asked for."""
READ = (1, 2)
Name = Annotated[str, Strict()]
Whole = Annotated[int, Strict(), Field(gt=-(1 << 63), lt=1 << 63)]
Count = Annotated[Whole, Field(ge=0)]
Settings = dict[Name, Any]
State = Annotated[dict[Name, InstanceOf[torch.Tensor]], Field(min_length=1)]


class Group(BaseModel):
    """A group of parameters of an optimiser."""

    params: list[Any]


class Optimizer(BaseModel):
    """The state of an optimiser."""

    state: dict[Any, Any]
    param_groups: list[Group]


class Where(BaseModel, extra="forbid"):
    """Where a run is: engine.checkpoint.Progress."""

    epoch: Count = 0
    consumed: Count = 0
    step: Count = 0
    dropped: Count = 0
    samples: Count = 0
    lost: Count = 0
    stale: Count = 0
    best: Annotated[float, Strict()] | Whole = 0.0
    best_epoch: Whole = -1
    failed: list[Whole] | tuple[Whole, ...] = ()


CHECKED: dict[str, tuple[Any, str]] = {
    "arch": (Name, "a name"),
    "classes": (
        list[Name] | tuple[Name, ...],
        "a list of names",
    ),  # empty where a task has no classes
    "manifest": (Name, "a digest"),
    "model": (State, "a state dict"),
    "ema": (State, "an average's state dict"),
    "best_of": (Literal[*torch_files.BEST_OF], " or ".join(torch_files.BEST_OF)),
    "optimizer": (Optimizer, "an optimiser's state"),
    "scaler": (Settings, "a scaler's state"),
    "progress": (
        Where,
        "epoch, consumed, step, dropped and the like as whole numbers, and best",
    ),
    "config": (Settings, "settings by name"),
    "used": (Settings, "settings by name"),
    "ordering": (Name, "a name"),
    "loader": (Name, "a name"),
}
"""What a checkpoint has by name -> its type, and what it must be, in words."""
NOT_IN_1 = {"used"}
NOT_IN_ALL = {"ema", "best_of", "ordering", "loader"}
"""What a run without --ema does not write, or a last.pt, or an earlier version."""


def read(path: Path, *, flag: str = "--resume") -> dict[str, Any]:
    """Return the content of a checkpoint of this program. Raises UserError for anything else.

    `flag` has named it.
    """
    said = f"{flag} {path}"
    try:
        content = torch_files.load(path)
    except FileNotFoundError:
        remedy = "'--resume auto' starts anew when there is none"
        raise UserError(f"{said}: no checkpoint there; {remedy}") from None
    except torch_files.Unreadable as error:
        raise UserError(
            f"{said}: not a checkpoint that can be read ({error})"
        ) from None
    if not torch_files.is_ours(content):
        remedy = "to start from plain weights use --weights"
        raise UserError(f"{said}: not a checkpoint of this program; {remedy}")
    number = content["format"]
    if number not in READ:
        known = " and ".join(map(str, READ))
        remedy = f"this version reads {known}; --weights {path} starts from its weights alone"
        raise UserError(f"{said}: a checkpoint of format {_short(number)}; {remedy}")
    for name, (kind, must_be) in CHECKED.items():
        may_lack = NOT_IN_ALL | (NOT_IN_1 if number == 1 else set())
        if name not in content and name not in may_lack:
            raise UserError(f"{said}: a damaged checkpoint: it has no '{name}'")
        if name in content:
            try:
                TypeAdapter(kind).validate_python(content[name])
            except ValidationError:
                got = _short(content[name])
                wrong = f"'{name}' is {got}, and must be {must_be}"
                raise UserError(f"{said}: a damaged checkpoint: {wrong}") from None
    if damaged := torch_files.damaged(path):
        raise UserError(
            f"{said}: a damaged checkpoint: '{damaged}' in it is not what was written"
        )
    return dict(content)


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
