"""What a checkpoint file holds: read without running code, and checked before anything relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from contracts import UserError
from system import torch_files

FORMAT = 2
"""What is written has this format: 2 has `used`, the settings as a run used them; 1 had those asked for."""
READ = (1, 2)
WHERE = {"epoch", "consumed", "step", "dropped", "samples", "lost", "stale"}
"""Whole numbers of a checkpoint's progress."""


def _is_state(value: Any) -> bool:
    """Whether it is a state dict."""
    return bool(_is_named(value) and value) and all(isinstance(one, torch.Tensor) for one in value.values())


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_names(value: Any) -> bool:
    """Whether it is a list of names, which is empty where a task has no classes."""
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number that tensors and arrays have too."""
    return type(value) is int and abs(value) < 1 << 63


def _is_progress(value: Any) -> bool:
    known = {*WHERE, "best", "best_epoch", "failed"}
    if not _is_named(value) or not value.keys() <= known or isinstance(value.get("best"), bool):
        return False
    failed = value.get("failed", ())
    if not isinstance(failed, list | tuple) or not all(map(_is_whole, failed)):
        return False
    whole = [value.get(name, 0) for name in WHERE]
    best = value.get("best", 0.0)
    if not _is_whole(value.get("best_epoch", -1)):
        return False
    return (isinstance(best, float) or _is_whole(best)) and all(_is_whole(n) and n >= 0 for n in whole)


def _is_optimizer(value: Any) -> bool:
    groups = value.get("param_groups") if isinstance(value, Mapping) else None
    if not isinstance(groups, list) or not isinstance(value.get("state"), Mapping):
        return False
    return all(_is_named(group) and isinstance(group.get("params"), list) for group in groups)


CHECKED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "arch": (_is_text, "a name"),
    "classes": (_is_names, "a list of names"),
    "manifest": (_is_text, "a digest"),
    "model": (_is_state, "a state dict"),
    "ema": (_is_state, "an average's state dict"),
    "best_of": (lambda value: value in tuple(torch_files.BEST_OF), " or ".join(torch_files.BEST_OF)),
    "optimizer": (_is_optimizer, "an optimiser's state"),
    "scaler": (_is_named, "a scaler's state"),
    "progress": (_is_progress, "epoch, consumed, step, dropped and the like as whole numbers, and best"),
    "config": (_is_named, "settings by name"),
    "used": (_is_named, "settings by name"),
    "ordering": (_is_text, "a name"),
    "loader": (_is_text, "a name"),
}
"""What a checkpoint has by name -> whether it is that, and what it must be."""
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
        raise UserError(f"{said}: not a checkpoint that can be read ({error})") from None
    if not torch_files.is_ours(content):
        remedy = "to start from plain weights use --weights"
        raise UserError(f"{said}: not a checkpoint of this program; {remedy}")
    number = content["format"]
    if number not in READ:
        known = " and ".join(map(str, READ))
        remedy = f"this version reads {known}; --weights {path} starts from its weights alone"
        raise UserError(f"{said}: a checkpoint of format {_short(number)}; {remedy}")
    for name, (is_right, must_be) in CHECKED.items():
        may_lack = NOT_IN_ALL | (NOT_IN_1 if number == 1 else set())
        if name not in content and name not in may_lack:
            raise UserError(f"{said}: a damaged checkpoint: it has no '{name}'")
        if name in content and not is_right(content[name]):
            got = _short(content[name])
            raise UserError(f"{said}: a damaged checkpoint: '{name}' is {got}, and must be {must_be}")
    if damaged := torch_files.damaged(path):
        raise UserError(f"{said}: a damaged checkpoint: '{damaged}' in it is not what was written")
    return dict(content)


def _short(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
