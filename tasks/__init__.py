"""What a batch MEANS. One task a file: what it trains on, its plans, targets, losses and figures, and its defaults."""

from __future__ import annotations

from importlib import import_module
from typing import Any

TASKS = {
    "classification": "tasks.classification",
    "detection": "tasks.detection",
    "video": "tasks.video",
}
"""--task -> module with ARCH UNIT CPU_PRECISION, splits(), plans(), tasks(), building(), facts(), bytes_read()."""


def task_named(name: str) -> Any:
    """The module of a task."""
    return import_module(TASKS[name])
