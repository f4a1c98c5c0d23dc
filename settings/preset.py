"""Reads a YAML preset, and shows what it holds; must not know any setting."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import yaml

from contracts import UserError
from system.user_files import open_bytes

LARGEST_PRESET = 1 << 20
"""Bytes of a preset that are read at most; the longest in configs/ has 2,000."""


def read_preset(path: Path) -> dict[str, Any]:
    """Return the flat keys of a YAML preset. Raises UserError when it is missing, does not parse or is no
    mapping."""
    try:
        with open_bytes(path) as file:
            text = file.read(LARGEST_PRESET + 1)
        if len(text) > LARGEST_PRESET:
            raise UserError(
                f"--config {path}: is larger than {LARGEST_PRESET:,} bytes, and no preset"
            )
        content = parsed(text.decode("utf-8"))
    except OSError as error:
        raise UserError(
            f"--config {path}: {error.strerror or error}; presets are in configs/"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(
            f"--config {path}: does not parse as YAML: {' '.join(str(error).split())}"
        ) from None
    except RecursionError:
        raise UserError(
            f"--config {path}: is nested too deep; a preset is a mapping 'setting: value'"
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            f"--config {path}: got {type(content).__name__ if content else 'nothing'}, a preset is a mapping "
            "'setting: value'"
        )
    return content


def parsed(text: str) -> Any:
    """Return what YAML holds. Raises YAMLError, RecursionError, and ValueError for values that are none."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise
    except (
        Exception
    ) as error:  # PyYAML raises whatever a tagged value makes it stumble over
        raise ValueError(f"a value is none of its type ({error!r})") from None


def shown(value: Any) -> str:
    """Return a value as messages show it, cut to a line.

    YAML's aliases make a nest of a few bytes that has gigabytes when it is written out.
    """
    short = reprlib.Repr()
    short.maxlevel = 2
    short.maxstring = short.maxother = 200
    return short.repr(value)
