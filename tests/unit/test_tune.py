"""The search of scripts.tune: a lever after the other, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from contracts import UserError
from scripts import _trials, tune
from scripts.tune import Choice, Trial
from settings.config import parse
from settings.run import Run

RATES = {"torchvision": 100.0, "dali-cpu": 90.0, "dali-gpu": 200.0, "dali-fed": 150.0}
RECIPE = parse(["--data", "photos"])


def machine(
    gains: dict[str, float],
    *,
    fails: str = "",
    drift: float = 1.0,
    slowest: float = 0.99,
) -> Any:
    """Return a `measure` of a machine on which settings multiply a loader's rate by `gains`.

    It is cold at first, and has become faster by `drift` when something is measured again.
    """
    cold = [True]

    def measure(lever: str, choice: Choice) -> Trial:
        loader = choice.get("loader", "torchvision")
        if loader == fails:
            return Trial(lever=lever, choice=choice, why="not here")
        rate = (
            RATES[loader]
            * (0.1 if cold else 1.0)
            * (drift if lever == tune.AGAIN else 1.0)
        )
        cold.clear()
        for name, value in choice.items():
            rate *= gains.get(f"{name}={value}", 1.0)
        used = {
            "loader": loader,
            "workers": 1,
            "compile": False,
            "graphs": True,
        } | choice
        figures: Choice = {"rate": rate, "least": slowest * rate, "most": rate}
        return Trial(lever=lever, choice=choice, unit="img/s", used=used, **figures)

    return measure


def searched(measure: Any, **asked: Any) -> tuple[list[Trial], Trial]:
    trials: list[Trial] = []
    return trials, tune.search(RECIPE, measure, trials, **{"gpu": True, **asked})


def test_each_lever_stands_on_the_best_before() -> None:
    gains = {"compile=True": 1.2, "graphs=False": 0.5, "pin_memory=False": 1.02}
    trials, best = searched(machine(gains))
    assert best.choice == {"loader": "dali-gpu", "compile": True}, "2 % is noise"
    assert trials[0].rate == 100, "the cold run does not count"
    assert trials[-1].choice == best.choice | {"pin_memory": False}
    assert max(trial.rate or 0.0 for trial in trials) == pytest.approx(1.02 * 240)


@pytest.mark.parametrize(
    ("noise", "kept"),
    [({}, True), ({"drift": 1.18}, False), ({"slowest": 0.8}, False)],
    ids=["quiet", "drift", "overlap"],
)
def test_a_gain_is_more_than_the_noise(noise: dict[str, Any], kept: bool) -> None:
    trials, best = searched(machine({"compile=True": 1.2}, **noise), fixed=("loader",))
    assert best.choice == ({"compile": True} if kept else {})
    assert not any("loader" in trial.choice for trial in trials), "flags fix it"


def test_a_loader_that_cannot_run_is_a_row() -> None:
    trials, best = searched(machine({}, fails="dali-gpu"))
    assert best.choice == {"loader": "dali-fed"}
    assert [trial.why for trial in trials if trial.rate is None] == ["not here"]
    assert tune.table(trials, best).row_count == len(trials)


def test_without_a_gpu_and_without_time() -> None:
    trials, _ = searched(machine({}), gpu=False)
    assert {trial.lever for trial in trials} <= {
        "as it is",
        "again",
        "loader",
        "workers",
        "decode_threads",
    }
    assert not any(trial.choice.get("loader") == "dali-gpu" for trial in trials)
    trials, best = searched(machine({}), may_begin=lambda: False)
    assert (trials[0], best.choice) == (best, {})
    assert {trial.why for trial in trials[1:]} == {tune.LATE}, (
        "what was left out is a row"
    )
    assert {"compile", "graphs", "pin_memory"} <= {trial.lever for trial in trials}
    lines = tune.left_out(
        RECIPE, {"loader": "torchvision"}, gpu=False, fixed=("workers", "graphs")
    )
    assert lines[0] == "not tried, since flags behind -- set them: workers"
    assert (
        "loader dali-gpu" in lines[1]
        and lines[2] == "not tried, without a GPU: compile, pin_memory"
    )


def test_a_batch_grows_until_it_gains_nothing() -> None:
    gains = {
        "batch_size=128": 1.5,
        "batch_size=256": 1.7,
        "batch_size=512": 1.71,
        "batch_size=1024": 9.0,
    }
    trials, best = searched(machine(gains), any_batch=True, fixed=("loader",))
    assert best.choice == {"batch_size": 256}
    tried = [
        trial.choice["batch_size"] for trial in trials if trial.lever == "batch_size"
    ]
    assert tried == [128, 256, 512]
    assert trials[1].over == 100.0 and "+50.0%" in list(
        tune.table(trials, best).columns[3].cells
    )
    assert not any(
        trial.lever == "batch_size" for trial in searched(machine(gains))[0]
    ), "it stays"
    recipe, _ = tune.recipe_of(tune.Tune(batch_size="auto"))
    assert recipe.loading.batch_size == 64


def test_two_cores_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner tries as many workers as there are cores, as under `taskset -c 0,1`, and one less."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("system.resources.CGROUP", Path("nowhere"))
    found = dict(tune.levers(RECIPE, {"loader": "dali-fed", "workers": 1}, gpu=True))
    assert found["workers"] == [{"workers": 2}]
    assert found["decode_threads"] == [{"decode_threads": 2}]
    assert [*found] == [
        "loader",
        "workers",
        "decode_threads",
        "compile",
        "graphs",
        "pin_memory",
    ]


def test_a_search_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial begins only if it and its comparison would be over by then; a scan before does not count."""
    now = [0.0]
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = tune.Clock(100.0)
    measure = machine({"compile=True": 1.2})
    limits = []

    def timed(lever: str, choice: Choice) -> Trial:
        with clock.trial() as limit_s:
            limits.append(limit_s)
            now[0] += 900.0 if lever == "warm-up" else 18.0
            return measure(lever, choice)

    searched(timed, may_begin=clock.has_time)
    assert limits[0] == tune.FIRST_LIMIT_S > limits[1] and len(limits) >= 5
    assert clock.passed_s <= 100.0 < clock.passed_s + 36


def test_trials_do_not_measure_loaders() -> None:
    assert tune.trial_of(RECIPE, {}, 3.0).loading.loader in ("torchvision", "dali-gpu")
    assert (
        tune.trial_of(RECIPE, {"loader": "dali-cpu"}, 3.0).loading.loader == "dali-cpu"
    )
    best = Trial(lever="as it is", choice={}, rate=1.0, used={"loader": "dali-fed"})
    assert "loader: dali-fed" in tune.preset(RECIPE, best, [best])


def test_the_first_trial_has_to_run() -> None:
    with pytest.raises(UserError, match="the first trial failed: not here"):
        searched(machine({}, fails="torchvision"))


def test_the_preset_is_the_recipe_and_what_was_kept(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(
        "arch: alexnet\nbatch_size: 256\nepochs: 7\nlr: 0.3\nseed: 5\nworkers: 3\nsteps: 9\n"
    )
    settings = tune.Tune(
        batch_size=8, flags=f"--optimizer adamw --crop-scale 0.2 1 --config {base}"
    )
    recipe, fixed = tune.recipe_of(settings)
    assert "optimizer" in fixed and "workers" not in fixed
    trials, best = searched(machine({}))
    written = tune.preset(recipe, best, trials)
    assert "2.00 times the settings given" in written
    path = tmp_path / "tuned.yaml"
    path.write_text(written)
    flat = parse(["--config", str(path)]).flat()
    wanted = {
        "arch": "alexnet",
        "batch_size": 8,
        "epochs": 7,
        "lr": 0.3,
        "optimizer": "adamw",
    }
    wanted |= {"crop_scale": [0.2, 1.0], "workers": 3, "loader": "dali-gpu"}
    assert {name: flat[name] for name in wanted} == wanted
    assert (
        not {*Run.model_fields, "steps", "seconds", "data"}
        & yaml.safe_load(written).keys()
    )
    trial = tune.trial_of(recipe, {"compile": True}, 3.0)
    assert (trial.optimisation.lr, trial.optimisation.steps, trial.model.compile) == (
        1e-3,
        None,
        True,
    )
    assert (
        tune.trial_of(parse(["--task", "detection"]), {}, 3.0).optimisation.lr == 1e-5
    )


@pytest.mark.usefixtures("prompt_ran")
def test_a_real_trial_and_one_without_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse(
        ["--arch", "squeezenet1_1", "--batch-size", "2", "--image-size", "32"]
    )
    trial = tune.measured(
        recipe,
        0.2,
        "as it is",
        {"loader": "synthetic", "workers": 1, "pin_memory": False},
    )
    assert trial.rate and trial.used["loader"] == "synthetic", trial.why

    def short(command: list[str], *_: Any) -> int:
        output = Path(command[-1])
        output.mkdir()
        (output / "summary.json").write_text(
            json.dumps({"rate": {"steady": None, "short": False}})
        )
        return 0

    monkeypatch.setattr(_trials, "ran", short)
    assert (
        tune.measured(recipe, 0.2, "loader", {}).why
        == "the run was shorter than a window of 0.1 s"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--", "--steps", "3"], "--steps behind -- is what this program sets itself"),
        (
            ["--", "--batch_size=3"],
            "--batch-size behind -- is what this program sets itself",
        ),
        (
            ["--batch-size", "0"],
            "--batch-size got '0': input should be greater than 0 or 'auto'\n",
        ),
        (
            ["--output", "no/such/folder.yaml"],
            "--output no/such/folder.yaml: No such file",
        ),
    ],
    ids=["steps", "batch-size", "one-of-two-kinds", "output"],
)
def test_mistakes_are_told_before_a_trial(
    argv: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tune, "require_data", lambda *_: None)
    monkeypatch.setattr(tune, "measured", lambda *_: pytest.fail("a trial"))
    assert tune.main(argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (OSError(28, "disk full"), 2)],
    ids=["ctrl-c", "disk"],
)
def test_an_end_in_the_middle(
    error: BaseException,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(
        recipe: Any, seconds: float, lever: str, choice: Choice, limit_s: float
    ) -> Trial:
        if choice:
            raise error
        return Trial(lever=lever, choice=choice, rate=123.0, used={"workers": -1})

    monkeypatch.setattr(tune, "measured", measured)
    output = tmp_path / "tuned.yaml"
    assert tune.main(["--output", str(output), "--", "--loader", "synthetic"]) == code
    told = capsys.readouterr()
    assert ("123" in told.out) == (code == 130) and "--output" not in told.err
    assert not output.exists()
