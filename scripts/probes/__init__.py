"""The questions that `scripts/doctor.py` asks a machine, one small function a row; knows nothing of
processes, tables and exit codes.

A probe takes nothing (those of system/storage.py: the data folder) and returns a Row. It imports what is
heavy or may crash inside itself: doctor runs it in a child process.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util
from typing import Literal

State = Literal["ok", "warn", "bad", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. ok; warn: works, but slower or not for everything; bad: a run fails; absent: not
    here, not needed."""

    what: str = ""  # filled in by doctor, which has the names
    found: str
    state: State
    consequence: str = ""  # and what to change first


def installed() -> dict[str, str]:
    """Return distribution -> version, of every one that is installed, names as pip writes them. Imports
    none."""
    return {
        str(dist.metadata["Name"]).lower().replace("_", "-"): dist.version
        for dist in metadata.distributions()
        if dist.metadata
    }


def has(module: str) -> bool:
    """Whether a module could be imported; only its parents are."""
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def first_line(error: BaseException) -> str:
    """Say an error as one short line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
