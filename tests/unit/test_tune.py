"""The search of scripts.tune: a lever after the other, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from saturate.contracts import UserError
from saturate.run import tune
from saturate.run.tune import Choice, Trial
from saturate.settings.config import parse

RATES = {"torchvision": 100.0, "dali-cpu": 90.0, "dali-gpu": 200.0, "dali-fed": 150.0}
RECIPE = parse(["--data", "photos"])


def machine(
    gains: dict[str, float],
    *,
    fails: str = "",
    drift: float = 1.0,
    slowest: float = 0.99,
    what_if: Sequence[dict[str, Any]] = (),
) -> Any:
    """Return a `measure` of a machine on which settings multiply a loader's rate by `gains`.

    It is cold at first, and has become faster by `drift` when something is measured again.
    """
    cold = [True]

    def measure(lever: str, choice: Choice) -> Trial:
        used: Choice = {"loader": "torchvision", "workers": 7, "compile": False}
        used |= {"graphs": True, **choice}
        if used["loader"] == "auto":
            used["loader"] = max(RATES.keys() - {fails}, key=RATES.__getitem__)
        if used["loader"] == fails:
            return Trial(lever=lever, choice=choice, why="not here")
        rate = RATES[used["loader"]]
        rate *= 0.1 if cold else drift if lever == tune.AGAIN else 1.0
        cold.clear()
        for name, value in choice.items():
            rate *= gains.get(f"{name}={value}", 1.0)
        figures: Any = {"rate": rate, "least": slowest * rate, "most": rate}
        figures["what_if"] = list(what_if)
        return Trial(lever=lever, choice=choice, unit="img/s", used=used, **figures)

    return measure


def searched(
    measure: Any, fixed: tuple[str, ...] = ("batch_size",), **asked: Any
) -> tuple[list[Trial], Trial]:
    trials: list[Trial] = []
    asked = {"gpu": True, "fixed": fixed, "announce": trials.append, **asked}
    return trials, tune.search(RECIPE, measure, **asked)


def test_each_lever_stands_on_the_best_before() -> None:
    gains = {"compile=True": 1.2, "graphs=False": 0.5, "pin_memory=False": 1.02}
    trials, best = searched(machine(gains))
    assert best.choice == {"loader": "dali-gpu", "compile": True}, "2 % is noise"
    assert trials[0].rate == 100, "the cold run does not count"
    assert {"loader": "dali-gpu", "pin_memory": False} in [t.choice for t in trials]
    assert trials[1].over == 100.0 and "the lever gave +100.0%" in str(trials[1])


def test_what_promises_the_most_for_its_time_comes_first() -> None:
    def one(rate: float, **settings: Any) -> dict[str, Any]:
        return {"settings": settings, "rate": rate, "gain": rate / 100 - 1}

    promised = [one(170, compile=True), one(130, graphs=False), one(90, workers=1)]
    measure = machine({"compile=True": 1.6, "graphs=False": 1.3}, what_if=promised)
    trials, best = searched(measure, fixed=("loader", "batch_size"))
    levers = [trial.lever for trial in trials if trial.lever not in ("", tune.AGAIN)]
    assert levers[:2] == ["graphs", "compile"], (
        "a trial that compiles takes four times as long"
    )
    assert levers[-1] == "workers", "what promises a loss comes last"
    assert best.choice == {"graphs": False, "compile": True}
    assert "; 130 were predicted, +0%" in str(trials[1])


@pytest.mark.parametrize(
    ("noise", "kept"),
    [({}, True), ({"drift": 1.18}, False), ({"slowest": 0.8}, False)],
    ids=["quiet", "drift", "overlap"],
)
def test_a_gain_is_more_than_the_noise(noise: dict[str, Any], kept: bool) -> None:
    measure = machine({"compile=True": 1.2}, **noise)
    trials, best = searched(measure, fixed=("loader", "batch_size"))
    assert best.choice == ({"compile": True} if kept else {})
    assert not any("loader" in trial.choice for trial in trials), "flags fix it"


def test_what_fails_or_has_no_time_is_a_line() -> None:
    trials, best = searched(machine({}, fails="dali-gpu"))
    assert best.choice == {"loader": "dali-fed"}
    trials, _ = searched(machine({}), gpu=False)
    levers = {trial.lever for trial in trials}
    assert levers <= {"", "again", "loader", "workers", "decode_threads"}
    trials, best = searched(machine({}), may_begin=lambda: False)
    assert (trials[0], best.choice) == (best, {})
    assert all("the time was over" in str(trial) for trial in trials[1:])
    assert {"compile", "pin_memory"} <= {trial.lever for trial in trials}
    with pytest.raises(UserError, match="the first trial failed: not here"):
        searched(machine({}, fails="torchvision"))


def test_a_batch_grows_until_it_gains_nothing() -> None:
    rates = {96: 1.3, 128: 1.5, 192: 1.6, 256: 1.7, 384: 1.71, 512: 9.0}
    gains = {f"batch_size={size}": gain for size, gain in rates.items()}
    trials, best = searched(machine(gains), fixed=("loader",))
    assert best.choice == {"batch_size": 256}
    tried = [t.choice["batch_size"] for t in trials if t.lever == "batch_size"]
    assert tried == [96, 128, 192, 256, 384]
    recipe, _ = tune.recipe_of(tune.Tune(batch_size="auto"))
    assert recipe.loading.batch_size == 64


def test_a_recipe_that_accumulates_keeps_its_step() -> None:
    recipe = parse(["--data", "photos", "--batch-size", "64", "--accumulate", "6"])
    sizes = tune._batch_sizes(recipe)
    assert sizes == [96, 128, 192, 384]
    for size in sizes:
        change = tune.changes_of("batch_size", size, recipe)
        assert change["batch_size"] * change["accumulate"] == 64 * 6
    assert tune.changes_of("batch_size", 128, RECIPE) == {"batch_size": 128}
    recipe = parse(["--data", "photos", "--global-batch-size", "256"])
    assert tune._batch_sizes(recipe) == [128, 256]


def test_a_search_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial begins only if it and its comparison would be over by then; a scan before does not count."""
    now = [0.0]
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    measure = machine({"compile=True": 1.2})
    limits = []

    def timed(_: object, __: object, lever: str, choice: Choice, limit_s: float) -> Any:
        limits.append(limit_s)
        now[0] += 900.0 if lever == "warm-up" else 18.0
        return measure(lever, choice)

    monkeypatch.setattr(tune, "measured", timed)
    tune.fastest(tune.Tune(minutes=100 / 60), RECIPE, set())
    assert limits[0] == tune.FIRST_LIMIT_S > limits[1] and len(limits) >= 5
    assert now[0] - 900.0 <= 100.0 < now[0] - 900.0 + 36


def test_the_preset_is_the_recipe_and_what_was_kept(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    given: dict[str, Any] = {"arch": "alexnet", "epochs": 7, "lr": 0.3, "workers": 3}
    given |= {"log_every": 10, "crop_scale": [0.2, 1.0]}
    base.write_text(yaml.safe_dump({**given, "batch_size": 256, "steps": 9}))
    settings = tune.Tune(batch_size=8, flags=f"--optimizer adamw --config {base}")
    recipe, fixed = tune.recipe_of(settings)
    assert "optimizer" in fixed and "workers" not in fixed
    written = yaml.safe_load(tune.preset(recipe, {"loader": "dali-gpu"}))
    wanted = {**given, "batch_size": 8, "optimizer": "adamw", "loader": "dali-gpu"}
    assert wanted.items() <= written.items()
    assert not {"config", "output", "steps", "seconds", "data"} & written.keys()
    trial = tune.trial_of(recipe, {"compile": True}, 3.0)
    assert (trial.optimisation.lr, trial.optimisation.steps) == (1e-3, None)
    assert trial.model.compile and trial.loading.loader != "auto"
    detection = tune.trial_of(parse(["--task", "detection"]), {}, 3.0)
    assert detection.optimisation.lr == 1e-5


@pytest.mark.usefixtures("prompt_ran")
def test_a_real_trial() -> None:
    small = "--arch squeezenet1_1 --batch-size 2 --image-size 32 --loader synthetic"
    recipe = parse(small.split())
    choice = {"workers": 1, "pin_memory": False}
    trial = tune.measured(recipe, 0.2, "", choice, tune.TRIAL_LIMIT_S)
    assert trial.rate and trial.used["loader"] == "synthetic", trial.why


def test_mistakes_are_told_before_a_trial(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "require_data", lambda *_: None)
    monkeypatch.setattr(tune, "measured", lambda *_: pytest.fail("a trial"))
    assert tune.main(["--", "--steps", "3"]) == 2
    assert "--steps behind -- is what this program sets" in capsys.readouterr().err
