"""Trackers beside TensorBoard: each gets the scalars that TensorBoard gets, and the settings of the run.

Must not know how a figure came about. A tracker whose package is not installed is named in one line.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from contracts import UserError
from report.record import Appender
from report.tensorboard import Board


class Sink(Protocol):
    """Where scalars go beside TensorBoard. Rank 0 alone has one."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Keep one point a tag; all values are finite."""

    def close(self, *, finished: bool) -> None:
        """Bring everything where it belongs."""


class Csv:
    """scalars.csv: a line a point, step, tag, value."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        new = not (folder / "scalars.csv").exists()
        self._file = Appender(folder / "scalars.csv")
        if new:
            self._file.append(b"step,tag,value\n")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add a line a tag."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([step, tag, value] for tag, value in values.items())
        self._file.append(text.getvalue().encode())

    def close(self, *, finished: bool) -> None:
        """Close the file; again without effect."""
        self._file.close()


class Wandb:
    """A run of Weights & Biases, in the folder; WANDB_MODE=offline and its other variables hold."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "saturate")
        config = {name: value for name, value in settings.items() if value is not None}
        self._run = wandb.init(dir=str(folder), project=project, name=folder.name, config=config)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the points; `step` is an axis of its own, since some come later than others."""
        self._run.log({**values, "step": step})

    def close(self, *, finished: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if finished else 1)


class MlFlow:
    """A run of MLflow: MLFLOW_TRACKING_URI says where, else mlflow.db in the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        self._client = mlflow
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params({name: value for name, value in settings.items() if value is not None})

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the points."""
        self._client.log_metrics(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        """End the run."""
        self._client.end_run("FINISHED" if finished else "KILLED")


SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {"csv": Csv, "wandb": Wandb, "mlflow": MlFlow}
"""--log -> (folder, settings) -> Sink."""


def require(names: Sequence[str]) -> None:
    """Raise UserError for a tracker whose package is not installed."""
    for name in names:
        if name != "csv" and importlib.util.find_spec(name) is None:
            raise UserError(f"--log {name} needs the package {name}: pip install {name}, or --log csv")


class Boards(Board):
    """TensorBoard's event file, and the trackers of --log, which get the same scalars."""

    def __init__(self, folder: Path, description: Mapping[str, Any], *, enabled: bool, **how: Any) -> None:
        """Open them below `folder`. `description` is of report.summary.describe. Raises UserError."""
        names: Sequence[str] = description.get("log", ())
        require(names)
        super().__init__(folder, enabled=enabled, **how)
        settings = description["settings"]
        self._sinks = [SINKS[name](folder, settings) for name in names] if enabled else []

    def scalars(self, values: Mapping[str, float | int | None], step: int) -> None:
        """Write one point a tag, everywhere; None and what is not finite is left out."""
        super().scalars(values, step)
        known = {tag: float(value) for tag, value in values.items() if value is not None}
        finite = {tag: value for tag, value in known.items() if math.isfinite(value)}
        for sink in self._sinks if finite else ():
            sink.scalars(finite, step)

    def close(self, *, finished: bool = True) -> None:
        """Close the event file and the trackers; again without effect."""
        with contextlib.ExitStack() as stack:
            stack.callback(super().close, finished=finished)
            while self._sinks:
                stack.callback(self._sinks.pop().close, finished=finished)
