"""Trackers beside TensorBoard: each gets the scalars that TensorBoard gets, and the settings of the run.

Must not know how a figure came about. A tracker whose package is not installed is named in one line.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from contracts import UserError
from report.record import Appender, replace
from report.tensorboard import Board

TRACKED = "trackers.json"
"""In the run's folder: which run of a tracker is this one's, for a resume."""


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
        csv.writer(text, lineterminator="\n").writerows(
            [step, tag, value] for tag, value in values.items()
        )
        self._file.append(text.getvalue().encode())

    def close(self, *, finished: bool) -> None:
        """Close the file; again without effect."""
        self._file.close()


class Wandb:
    """A run of Weights & Biases, in the folder; WANDB_MODE=offline and its other variables hold."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        again = None if "WANDB_RUN_ID" in os.environ else _tracked(folder).get("wandb")
        self._run = wandb.init(
            dir=str(folder),
            project=os.environ.get("WANDB_PROJECT", "saturate"),
            name=folder.name,
            id=again,
            resume=os.environ.get("WANDB_RESUME", "allow"),
        )
        _track(folder, "wandb", self._run.id)
        given = {name: value for name, value in settings.items() if value is not None}
        self._run.config.update(
            given, allow_val_change=True
        )  # a resumed run may have other settings

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the points; `step` is an axis of its own, since some come later than others."""
        self._run.log({**values, "step": step})

    def close(self, *, finished: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if finished else 1)


class MlFlow:
    """A run of MLflow: MLFLOW_TRACKING_URI says where, else mlflow.db in the folder.

    MLFLOW_RUN_ID names a run that goes on.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        self._client = mlflow
        again = (
            None if "MLFLOW_RUN_ID" in os.environ else _tracked(folder).get("mlflow")
        )
        run = mlflow.start_run(run_id=again, run_name=folder.name)
        _track(folder, "mlflow", run.info.run_id)
        given = {
            name: str(value) for name, value in settings.items() if value is not None
        }
        mlflow.log_params(
            {name: given[name] for name in given.keys() - run.data.params.keys()}
        )
        # MLflow refuses another value of a parameter: it is a tag of that name, as it is now
        mlflow.set_tags(
            {
                name: value
                for name, value in given.items()
                if run.data.params.get(name, value) != value
            }
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the points."""
        self._client.log_metrics(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        """End the run."""
        self._client.end_run("FINISHED" if finished else "KILLED")


def _tracked(folder: Path) -> dict[str, str]:
    """Return the run of each tracker that this folder's run has begun, by its name."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads((folder / TRACKED).read_text(encoding="utf-8"))
        return {str(name): str(run) for name, run in known.items()}
    return {}


def _track(folder: Path, name: str, run: str) -> None:
    replace(folder / TRACKED, json.dumps({**_tracked(folder), name: run}).encode())


SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {
    "csv": Csv,
    "wandb": Wandb,
    "mlflow": MlFlow,
}
"""--log -> (folder, settings) -> Sink."""


def require(names: Sequence[str]) -> None:
    """Raise UserError for a tracker whose package is not installed."""
    for name in names:
        package = None if name == "csv" else importlib.util.find_spec(name)
        # a folder of that name, which wandb leaves where it ran, has a specification without an origin
        if name != "csv" and (package is None or package.origin is None):
            raise UserError(
                f"--log {name} needs the package {name}: pip install {name}, or --log csv"
            )


class Boards(Board):
    """TensorBoard's event file, and the trackers of --log, which get the same scalars.

    A tracker never ends a run: at its first error a line says so, and the run goes on without it.
    """

    def __init__(
        self,
        folder: Path,
        description: Mapping[str, Any],
        *,
        enabled: bool,
        purge_step: int | None = None,
        warn: Callable[[str], None],
    ) -> None:
        """Open them below `folder`. `description` is of report.summary.describe. Raises UserError."""
        names: Sequence[str] = description.get("log", ())
        require(names)
        super().__init__(folder, enabled=enabled, purge_step=purge_step)
        self._warn = warn
        self._sinks: dict[str, Sink] = {}
        if not enabled:
            return
        if purge_step is None:  # a run that begins anew is another run to its trackers
            (folder / TRACKED).unlink(missing_ok=True)
        for name in names:
            with self._guarded(name):
                self._sinks[name] = SINKS[name](folder, description["settings"])

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # trackers raise what they like
            self._sinks.pop(name, None)
            reason = next(iter(str(error).strip().splitlines()), "")[:200]
            self._warn(
                f"--log {name}: {type(error).__name__}: {reason}; the run goes on without it, and "
                "TensorBoard has all figures"
            )

    def scalars(self, values: Mapping[str, float | int | None], step: int) -> None:
        """Write one point a tag, everywhere; None and what is not finite is left out."""
        super().scalars(values, step)
        known = {
            tag: float(value) for tag, value in values.items() if value is not None
        }
        finite = {tag: value for tag, value in known.items() if math.isfinite(value)}
        for name, sink in [*self._sinks.items()] if finite else ():
            with self._guarded(name):
                sink.scalars(finite, step)

    def close(self, *, finished: bool = True) -> None:
        """Close the event file and the trackers; again without effect."""
        try:
            for name in [*self._sinks]:
                with self._guarded(name):
                    self._sinks.pop(name).close(finished=finished)
        finally:
            super().close(finished=finished)
