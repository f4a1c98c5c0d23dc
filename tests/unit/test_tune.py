"""The search of scripts.tune: a lever after the other, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from config import parse
from contracts import UserError
from scripts import tune
from scripts.tune import Choice, Trial

RATES = {"torchvision": 100.0, "dali-cpu": 90.0, "dali-gpu": 200.0, "dali-fed": 150.0}


def machine(gains: dict[str, float], fails: str = "") -> Any:
    """Return a `measure` of a machine on which settings multiply a loader's rate by `gains`."""

    def measure(lever: str, choice: Choice) -> Trial:
        loader = choice.get("loader", "torchvision")
        if loader == fails:
            return Trial(lever=lever, choice=choice, why="not here")
        rate = RATES[loader]
        for name, value in choice.items():
            rate *= gains.get(f"{name}={value}", 1.0)
        used = {"loader": loader, "workers": 1, "compile": False, "graphs": True} | choice
        return Trial(
            lever=lever, choice=choice, rate=rate, unit="img/s", least=0.99 * rate, most=rate, used=used
        )

    return measure


def test_each_lever_stands_on_the_best_before() -> None:
    gains = {"compile=True": 1.2, "graphs=False": 0.5, "pin_memory=False": 1.02}
    trials, kept = tune.search(parse([]), machine(gains), gpu=True)
    assert kept == {"loader": "dali-gpu", "compile": True}, "2 % is noise"
    assert trials[-1].choice == kept | {"pin_memory": False}
    assert max(trial.rate or 0.0 for trial in trials) == pytest.approx(1.02 * 240)


def test_a_loader_that_cannot_run_is_a_row() -> None:
    trials, kept = tune.search(parse([]), machine({}, fails="dali-gpu"), gpu=True)
    assert kept == {"loader": "dali-fed"}
    assert [trial.why for trial in trials if trial.rate is None] == ["not here"]
    drawn = tune.table(trials, kept)
    assert drawn.row_count == len(trials)


def test_without_a_gpu_and_without_time() -> None:
    trials, _ = tune.search(parse([]), machine({}), gpu=False)
    assert {trial.lever for trial in trials} <= {"as it is", "loader", "workers", "decode_threads"}
    assert not any(trial.choice.get("loader") == "dali-gpu" for trial in trials)
    trials, kept = tune.search(parse([]), machine({}), gpu=True, may_begin=lambda: False)
    assert (len(trials), kept) == (1, {})


def test_the_first_trial_has_to_run() -> None:
    with pytest.raises(UserError, match="the first trial failed: not here"):
        tune.search(parse([]), machine({}, fails="torchvision"), gpu=True)


def test_the_preset_is_the_recipe_and_what_was_kept(tmp_path: Path) -> None:
    settings = tune.Tune(arch="resnet18", batch_size=8, flags="--optimizer adamw --crop-scale 0.2 1")
    trials, kept = tune.search(parse(["--optimizer", "adamw"]), machine({}), gpu=True)
    written = tune.preset(settings, kept, trials)
    assert "2.00 times the settings given" in written
    path = tmp_path / "tuned.yaml"
    path.write_text(written)
    flat = parse(["--config", str(path)]).flat()
    found = [flat[name] for name in ("optimizer", "arch", "batch_size", "loader", "crop_scale")]
    assert found == ["adamw", "resnet18", 8, "dali-gpu", [0.2, 1.0]]
    assert yaml.safe_load(written)["task"] == "classification"


def test_a_real_trial_and_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tune.Tune(arch="squeezenet1_1", batch_size=2, seconds=0.2, flags="--image-size 32")
    trial = tune.measured(settings, "as it is", {"loader": "synthetic", "workers": 1})
    assert trial.rate and trial.used["loader"] == "synthetic", trial.why
    failed = tune.measured(settings, "loader", {"loader": "nothing"})
    assert failed.rate is None and "--loader" in failed.why
    assert tune.main(["--", "--epochs", "3"]) == 2
    assert "--epochs behind -- is what this program sets itself" in capsys.readouterr().err
