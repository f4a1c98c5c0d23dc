"""Trackers are told what TensorBoard is, in their own words: each of the table has a case."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from saturate.report import sinks


def wandb(package: Any, folder: Path, run: str | None) -> list[Any]:
    """Its run has an id and a config of its own, and its steps are a figure."""
    package.init.return_value.id = "seven"
    return [
        call.init(
            dir=str(folder), project="saturate", name="r50", id=run, resume="allow"
        ),
        call.init().config.update({"lr": 0.1}, allow_val_change=True),
        call.init().log({"loss": 0.5, "step": 3}),
        call.init().finish(exit_code=0),
    ]


def mlflow(package: Any, folder: Path, run: str | None) -> list[Any]:
    """A run that goes on has parameters, which are not told again."""
    started = package.start_run.return_value
    started.info.run_id = "seven"
    started.data.params = {} if run is None else {"lr": "0.1"}
    told = [call.log_params({"lr": 0.1})] if run is None else []
    return [
        call.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}"),
        call.start_run(run_id=run, run_name="r50"),
        *told,
        call.log_metrics({"loss": 0.5}, step=3),
        call.end_run("FINISHED"),
    ]


CASES = {"wandb": wandb, "mlflow": mlflow}
"""--log -> what its package is to be called with, in this order."""


@pytest.mark.parametrize("run", [None, "seven"])
@pytest.mark.parametrize("name", sinks.TRACKERS)
def test_a_tracker_is_told(
    name: str, run: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name in CASES, f"--log {name} has no case in CASES"
    for variable in ("WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    package = MagicMock()
    monkeypatch.setitem(sys.modules, name, package)
    folder = tmp_path / "r50"
    wanted = CASES[name](package, folder, run)
    package.reset_mock()
    tracker = sinks.TRACKERS[name](folder, {"lr": 0.1}, run)
    assert tracker.id == "seven"
    tracker.scalars({"loss": 0.5}, 3)
    tracker.close(finished=True)
    assert package.mock_calls == wanted
