"""Bottlenecks that are planted in runs of train.py, and what their summaries name; more of them need a GPU
(benchmarks/planted.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import planted
from tests.end_to_end.runs import Runner, summary
from tests.end_to_end.test_rates import check_rates

FLAGS = """--arch benchmarks.planted:light --image-size 32 --batch-size 8 --workers 1 --epochs 1000 --min-window-s 0.2
    --save-every-minutes 0 --loader torchvision --precision fp32"""
TRAINS = "--seconds 1 --val-every 0 --ceilings false"
WAITS = "--transforms benchmarks.planted:waits"


@pytest.mark.parametrize(
    ("flags", "side", "stage"),
    [
        (f"{TRAINS} --read-delay-ms 10", "loader", "read"),
        (f"{TRAINS} {WAITS}", "loader", "transforms"),
        (
            # in steps: within seconds a busy machine may do one or two, which wait for their first batch
            "--steps 6 --val-every 0 --ceilings false --arch squeezenet1_1 --batch-size 16 --image-size 160",
            "step",
            "backward",
        ),
        (
            "--steps 4 --val-every 0 --ceilings false --save-every-steps 1 --arch benchmarks.planted:heavy",
            "pause",
            "checkpoint",
        ),
    ],
)
def test_what_was_planted_is_named(
    train: Runner, pictures: Path, flags: str, side: str, stage: str
) -> None:
    train(FLAGS, "--data", pictures, "--output run", flags).done()
    told = summary(train.cwd / "run")
    binds = told["binds"]
    assert (binds["side"], binds["stage"]) == (side, stage), told["stages"]
    if side == "loader":
        assert binds["share"] > 0.5


def test_a_case_that_fails_is_no_earlier_run(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = planted.Planted(data=pictures, output=tmp_path, change=False)
    assert (planted.ROOT / f"configs/planted/{settings.cases}.yaml").exists()
    folder = tmp_path / "runs/00"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    case = {"name": "a", "binds": ["read"], "flags": "--no-such-flag"}
    assert "unknown flag '--no-such-flag'" in planted.tried(case, 0, settings)["failed"]
    slow = ("timeout", "took longer than 0.1 s")
    monkeypatch.setattr(planted, "ran", lambda *_: slow)
    assert "longer than 0.1 s" in planted.tried(case, 0, settings)["failed"]


def test_the_rank_that_is_late_is_named_with_its_stage(
    train: Runner, pictures: Path
) -> None:
    late = "--transforms benchmarks.planted:waits_on_rank_1"
    ranks = train.ranks(2, FLAGS, "--data", pictures, "--output run", TRAINS, late)
    for process in ranks:
        process.done()
    slow = summary(train.cwd / "run")["slowest_rank"]
    assert (slow["rank"], slow["why"]) == (1, "transforms")


def rate_of(train: Runner, pictures: Path, name: str, flags: str) -> dict[str, Any]:
    # windows of many batches: two workers deliver in bursts
    longer = "--val-every 0 --seconds 2 --min-window-s 0.5"
    train(FLAGS, "--data", pictures, "--output", name, longer, flags).done()
    return json.loads((train.cwd / name / "summary.json").read_text())


def test_a_second_worker_is_worth_what_was_predicted(
    train: Runner, pictures: Path
) -> None:
    """Reads of 20 ms bind before and after: nobody makes more than 50 images a second a worker.

    How much less it is depends on who else uses the machine.
    """
    slow = rate_of(train, pictures, "slow", "--read-delay-ms 20")
    assert slow["bound"] in ("loader", "contention")
    before = slow["rate"]["steady"]
    assert before < 1.02 / 20e-3 and slow["data_wait"]["share"] > 0.5
    check_rates(train.cwd / "slow")
    (more,) = (one for one in slow["what_if"] if one["what"] == "--workers 2")
    measured = rate_of(
        train, pictures, "more", "--read-delay-ms 20 --workers 2 --ceilings false"
    )
    assert measured["rate"]["steady"] < 2.04 / 20e-3
    # docs/planted.md has how close predictions are to what is measured
    assert before < more["rate"] < 2.04 * before
