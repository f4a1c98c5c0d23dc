"""Reads a YAML preset, and shows what it holds; must not know any setting."""

from __future__ import annotations

import reprlib
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from saturate.contracts import UserError
from saturate.system.urls import masked
from saturate.system.user_files import read_text


def read_preset(path: Path) -> dict[str, Any]:
    """Return the flat keys of a YAML preset. Raises UserError when it is missing, does not parse or is no
    mapping."""
    origin = f"--config {path}"
    try:
        text = read_text(path)
        content = parsed(text)
        twice = _twice(text)
    except OSError as error:
        raise UserError(
            f"{origin}: {error.strerror or error}; presets are in configs/"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = masked(" ".join(str(error).split()))
        raise UserError(f"{origin}: does not parse as YAML: {reason}") from None
    if not isinstance(content, dict):
        got = type(content).__name__ if content else "nothing"
        raise UserError(f"{origin}: got {got}, a preset is a mapping 'setting: value'")
    if twice:
        raise UserError(
            f"{origin}: key {shown(twice[0])} is there twice; leave the one that is meant"
        )
    return content


def _twice(text: str) -> list[str]:
    """Return the settings that a preset has more than once, of which YAML would take the last."""
    root = yaml.compose(text, yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    names = (str(key.value).replace("-", "_") for key, _ in pairs)
    # YAML has as many merges as there are
    times = Counter(name for name in names if name != "<<")
    return [name for name, count in times.items() if count > 1]


def parsed(text: str) -> Any:
    """Return what YAML holds. Raises YAMLError, RecursionError, and ValueError for values that are none."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise
    except Exception as error:
        # PyYAML raises whatever a tagged value makes it stumble over
        raise ValueError(f"a value is none of its type ({error!r})") from None


def shown(value: object) -> str:
    """Return a value as messages show it, cut to a line.

    YAML's aliases make a nest of a few bytes that has gigabytes when it is written out.
    """
    short = reprlib.Repr()
    short.maxlevel = 2
    short.maxstring = short.maxother = 200
    return short.repr(value)
