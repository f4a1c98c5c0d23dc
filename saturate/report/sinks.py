"""Trackers beside TensorBoard: each gets the scalars that TensorBoard gets, and the settings of the run.

A tracker whose package is not installed is named in one line; one that fails is left out, and the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from saturate.contracts import UserError
from saturate.report.record import replace_in_time
from saturate.report.tensorboard import Board
from saturate.system.urls import masked

TRACKED = "trackers.json"
"""File of the run's folder that says which run of a tracker is this one's, for a resume."""


class Wandb:
    """A run of Weights & Biases, in the folder; WANDB_MODE=offline and its other variables hold.

    `run` is the tracker's id of the run, None for a new one.
    """

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
        """Keep one point a tag."""
        # `step` is an axis of its own, since some points come later than others
        self._run.log({**values, "step": step})

    def close(self, *, finished: bool) -> None:
        """Bring everything where it belongs."""
        self._run.finish(exit_code=0 if finished else 1)


class MlFlow:
    """A run of MLflow: MLFLOW_TRACKING_URI says where, else mlflow.db in the folder.

    MLFLOW_RUN_ID names a run that goes on, and so does `run`. Its parameters are those that it began with.
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
        # MLflow refuses another value of a parameter
        if not started.data.params:
            mlflow.log_params(dict(settings))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Keep one point a tag."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        """Bring everything where it belongs."""
        self._mlflow.end_run("FINISHED" if finished else "KILLED")


Tracker = Wandb | MlFlow
TRACKERS: dict[str, type[Tracker]] = {"wandb": Wandb, "mlflow": MlFlow}
"""--log -> its class."""


def require_trackers(names: Iterable[str]) -> None:
    """Raise UserError where the package of a tracker is not installed."""
    for name in names:
        package = find_spec(name)
        # a folder of that name, which wandb leaves where it ran, has a specification without an origin
        if package is None or package.origin is None:
            raise UserError(
                f"--log {name} needs the package {name}: pip install {name}"
            )


class Boards(Board):
    """TensorBoard's event file, and the trackers of --log, which get the same scalars.

    Rank 0 alone has trackers. None ends a run: at its first error a line says so, and the run goes on without it.
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
        """Open them below `folder`. `description` is of report.summary.describe."""
        names: Sequence[str] = description.get("log", ())
        super().__init__(folder, enabled=enabled, purge_step=purge_step)
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        if not enabled or not names:
            return
        path = folder / TRACKED
        runs: dict[str, str] = {}
        # a run that begins anew is another run to its trackers
        if purge_step is not None:
            with contextlib.suppress(OSError, ValueError):
                runs = json.loads(path.read_text(encoding="utf-8"))
        for name in names:
            with self._guarded(name):
                tracker = TRACKERS[name](
                    folder, description["settings"], runs.get(name)
                )
                self._trackers[name] = tracker
                runs[name] = tracker.id
        replace_in_time(path, json.dumps(runs).encode())

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # trackers raise what they like
            self._trackers.pop(name, None)
            # a tracker's own URL may have a password
            reason = masked(next(iter(str(error).strip().splitlines()), ""))[:200]
            self._warn(
                f"--log {name}: {type(error).__name__}: {reason}; the run goes on without it, and "
                "TensorBoard has all figures"
            )

    def scalars(
        self, values: Mapping[str, float | int | None], step: int
    ) -> dict[str, float]:
        """Write one point a tag, everywhere, and return them; None and what is not finite is left out."""
        finite = super().scalars(values, step)
        for name, tracker in [*self._trackers.items()] if finite else ():
            with self._guarded(name):
                tracker.scalars(finite, step)
        return finite

    def close(self, *, finished: bool = True) -> None:
        """Close the event file and the trackers; again without effect."""
        try:
            for name in [*self._trackers]:
                with self._guarded(name):
                    self._trackers.pop(name).close(finished=finished)
        finally:
            super().close()
