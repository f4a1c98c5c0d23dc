"""Architecture name -> module, for every registry of torchvision. Imports nothing of ours."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

REGISTRIES = {
    "classification": "models.classification",
    "detection": "models.detection",
    "video": "models.video",
}
"""--task -> module with names(), native(), build(), auxiliary_weight()."""


class Native(NamedTuple):
    """The input that an architecture was published for."""

    size: int  # side of the images, pixels; of detectors the shorter one
    mean: tuple[float, float, float]  # of RGB in [0, 1]
    std: tuple[float, float, float]
    # of detectors: the longer side at most; None = images are stretched to size x size
    longer: int | None = None
    # of classifiers: length of the shorter side before the validation's crop, over the side of the crop
    zoom: float = 256 / 224


class Unusable(ValueError):
    """An architecture or weights that cannot be used as asked, in one line."""


def elsewhere(arch: str) -> str | None:
    """The --task whose registry has an architecture, as a flag; None = no registry has it."""
    return next((f"--task {task}" for task in REGISTRIES if arch in registry_of(task).names()), None)


def registry_of(task: str) -> Any:
    """The registry of a task's architectures."""
    return import_module(REGISTRIES[task])
