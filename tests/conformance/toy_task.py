"""A task as someone might add it: guess the number of an image's class from its mean colour."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from saturate.contracts import Batch, Figure, Metric, Split, Task, World
from saturate.models import Loaded, Native
from saturate.models._weights import load
from saturate.tasks import _tables
from saturate.tasks.classification import Classification, ClassificationKind
from saturate.tasks.kind import Asked, Predicting, Splits

RMSE = Figure(
    name="rmse",
    title="RMSE",
    unit="classes",
    chart="error",
    larger_is_better=False,
)


class Registry:
    def names(self) -> list[str]:
        return ["mean"]

    def native(self, arch: str, weights: str | None = None) -> Native:
        return Native(32, (0.5,) * 3, (0.25,) * 3)

    def build(
        self, arch: str, *, shape: tuple[int, ...], weights: str | None = None
    ) -> tuple[nn.Module, Loaded]:
        module = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[1], 1)
        )
        return module, load(module, arch, weights) if weights else Loaded()

    def classes(self, arch: str, weights: str) -> tuple[str, ...]:
        return ()


class Guess(Classification):
    """contracts.Task: the squared error of a class's number. Targets and inputs are those of
    classification."""

    def losses(self, outputs: Any, batch: Batch) -> torch.Tensor:
        return torch.where(
            batch.valid, (outputs[:, 0].float() - batch.targets["labels"]) ** 2, 0.0
        )

    def metric(self, device: torch.device) -> Metric:
        return Errors()


class Errors:
    """contracts.Metric: squared errors in whole millionths, so that their sum does not depend on the
    order."""

    def __init__(self) -> None:
        self._counts = np.zeros(2, np.int64)

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        squares = (outputs[:, 0].double() - batch.targets["labels"])[batch.valid] ** 2
        self._counts += [int((1e6 * squares).round().long().sum()), len(squares)]

    def result(self, world: World) -> dict[str, Any]:
        total, samples = (int(count) for count in world.sum(self._counts))
        rmse = (total / 1e6 / samples) ** 0.5 if samples else math.nan
        return {"rmse": rmse, "samples": samples}


class Guessed(Guess):
    """contracts.Task of --predict: what is guessed of each file."""

    def metric(self, device: torch.device) -> Metric:
        return Guesses()


class Guesses:
    """contracts.Metric: the guess of each sample, by its id."""

    def __init__(self) -> None:
        self._guesses: dict[int, float] = {}

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        ids = batch.ids[batch.valid.cpu().numpy()].tolist()
        self._guesses |= zip(ids, outputs[batch.valid, 0].tolist(), strict=True)

    def result(self, world: World) -> dict[str, Any]:
        every: dict[int, float] = {}
        for guesses in world.gather(self._guesses):
            every |= guesses
        return {"guesses": every}


def write_guesses(folder: Path, found: Mapping[str, Any], asked: Asked) -> list[Path]:
    """Write predictions.* with a row a file: path, guess, error."""
    rows = [
        {
            "path": path,
            "guess": found["guesses"].get(sample),
            "error": asked.errors.get(place),
        }
        for place, (path, sample) in enumerate(
            zip(asked.names, asked.samples.tolist(), strict=True)
        )
    ]
    return [_tables.write(folder / "predictions", rows, asked.form)]


class GuessKind(ClassificationKind):
    """Images, and the number of their class; splits and plans are those of classification."""

    name = "toy"
    arch = "mean"
    registry = Registry()
    figures = (RMSE, Figure(name="samples"))
    also = (
        *("image_size", "val_image_size", "val_batch_size", "val_window", "val_resize"),
        *("interpolation", "mean", "std", "trust_list", "train_window"),
        *("crop_scale", "crop_ratio", "flip", "vflip"),
    )

    def tasks(self, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        return Guess(splits["train"].columns.label), Guess(splits["val"].columns.label)

    def predicting(
        self, found: Split, classes: tuple[str, ...], folder: Path
    ) -> Predicting:
        task = Guessed(found.columns.label)
        return Predicting(split=found, task=task, write=write_guesses)

    def building(self, columns: Any) -> dict[str, Any]:
        return {}


KIND = GuessKind()
