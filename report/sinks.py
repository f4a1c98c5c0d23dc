"""Trackers beside TensorBoard: each gets the scalars that TensorBoard gets, and the settings of the run.

A tracker whose package is not installed is named in one line; one that fails is left out, and the run goes on.
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
"""File of the run's folder that says which run of a tracker is this one's, for a resume."""


class Sink(Protocol):
    """Where finite scalars go beside TensorBoard. Rank 0 alone has one.

    A sink is made of the run's folder, its settings, and the tracker's id of the run, None for a new run.
    One with such an id has it as `id`.
    """

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Keep one point a tag."""

    def close(self, *, finished: bool) -> None:
        """Bring everything where it belongs."""


class Csv:
    """scalars.csv: a line a point, step, tag, value."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], run: str | None
    ) -> None:
        new = not (folder / "scalars.csv").exists()
        self._file = Appender(folder / "scalars.csv")
        if new:
            self._file.append(b"step,tag,value\n")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        text = io.StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        lines.writerows([step, tag, value] for tag, value in values.items())
        self._file.append(text.getvalue().encode())

    def close(self, *, finished: bool) -> None:
        self._file.close()


class Wandb:
    """A run of Weights & Biases, in the folder; WANDB_MODE=offline and its other variables hold."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], run: str | None
    ) -> None:
        import wandb

        self._run = wandb.init(
            dir=str(folder),
            project=os.environ.get("WANDB_PROJECT", "saturate"),
            name=folder.name,
            id=None if "WANDB_RUN_ID" in os.environ else run,
            resume=os.environ.get("WANDB_RESUME", "allow"),
        )
        self.id = self._run.id
        # a resumed run may have other settings
        self._run.config.update(dict(settings), allow_val_change=True)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        # `step` is an axis of its own, since some points come later than others
        self._run.log({**values, "step": step})

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MlFlow:
    """A run of MLflow: MLFLOW_TRACKING_URI says where, else mlflow.db in the folder.

    MLFLOW_RUN_ID names a run that goes on.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], run: str | None
    ) -> None:
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        self._mlflow = mlflow
        started = mlflow.start_run(
            run_id=None if "MLFLOW_RUN_ID" in os.environ else run, run_name=folder.name
        )
        self.id = started.info.run_id
        known = started.data.params
        # MLflow refuses another value of a parameter: it is a tag of that name, as it is now
        texts = {name: str(value) for name, value in settings.items()}
        mlflow.log_params({name: texts[name] for name in texts.keys() - known.keys()})
        mlflow.set_tags(
            {
                name: text
                for name, text in texts.items()
                if known.get(name, text) != text
            }
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        self._mlflow.end_run("FINISHED" if finished else "KILLED")


class Trackio:
    """A run of trackio, in TRACKIO_DIR or where its other variables say."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], run: str | None
    ) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "saturate"),
            name=run or folder.name,
            config=dict(settings),
            resume="allow" if run else "never",
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.id = self._run.name

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Path, Mapping[str, Any], str | None], Sink]] = {
    "csv": Csv,
    "wandb": Wandb,
    "mlflow": MlFlow,
    "trackio": Trackio,
}
"""--log -> its class."""


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
        if not enabled or not names:
            return
        settings = {
            name: value
            for name, value in description["settings"].items()
            if value is not None
        }
        path = folder / TRACKED
        runs: dict[str, str] = {}
        # a run that begins anew is another run to its trackers
        with contextlib.suppress(OSError, ValueError):
            if purge_step is not None:
                runs = json.loads(path.read_text(encoding="utf-8"))
        for name in names:
            with self._guarded(name):
                sink = self._sinks[name] = SINKS[name](folder, settings, runs.get(name))
                if run := getattr(sink, "id", None):
                    runs[name] = run
        if runs or path.exists():
            replace(path, json.dumps(runs).encode())

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
        finite = {
            tag: float(value)
            for tag, value in values.items()
            if value is not None and math.isfinite(value)
        }
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
            super().close()
