"""scripts/report.py: which ratio is beyond noise, and what --fail-below is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks._suite import Row
from scripts import report
from scripts.bench import suite_of

TRAIN = suite_of("train")
HARDWARE = {"gpu": None, "cpu": "a CPU", "cores": 2, "ram_gib": 4.0}


def row(
    rate: float | None,
    low: float = 0.0,
    high: float = 0.0,
    arch: str = "resnet18",
    **changes: Any,
) -> Row:
    point = {
        "arch": arch,
        "batch_size": 8,
        "loader": "torchvision",
        "precision": "fp32",
        "gpus": 1,
    }
    spread = (
        {"rate": {"n": 5, "min": low or rate, "max": high or rate, "iqr": 1.0}}
        if rate
        else {}
    )
    found: Row = {
        "suite": "train",
        "point": point,
        "error": None,
        "folder": ".",
        "began": 0.0,
        "took_s": 1.0,
    }
    found |= {
        "status": "ok" if rate else "failed",
        "figures": {"rate": rate, "repeats": 5},
    }
    return (
        found
        | {"spread": spread, "versions": {"torch": "2"}, "hardware": HARDWARE}
        | changes
    )


def folder(path: Path, *rows: Row) -> Path:
    path.mkdir()
    (path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (path / "suite.json").write_text(
        json.dumps({"suite": "train", "command": "python -m scripts.bench train"})
    )
    return path


@pytest.mark.parametrize(
    ("a", "b", "speed", "beyond"),
    [
        ((100, 95, 105), (90, 88, 96), 0.9, False),  # the ranges overlap
        ((100, 98, 105), (90, 88, 96), 0.9, True),
        ((100, 98, 105), (110, 106, 112), 1.1, True),
        ((100, 98, 105), (None,), None, False),
    ],
)
def test_ratio_and_noise(a: Any, b: Any, speed: float | None, beyond: bool) -> None:
    (pair,) = report.pairs(TRAIN, [row(*a)], [row(*b)])
    assert pair.speed == (None if speed is None else pytest.approx(speed))
    assert pair.beyond_noise is beyond


def test_fail_below_refuses_what_nothing_tells_from_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check in CI that can never fail is a mistake; a point that is lost fails it all the same."""
    once: Any = {"figures": {"rate": 100.0}}
    a = folder(tmp_path / "a", row(100, **once), row(50, arch="alexnet"))
    b = folder(tmp_path / "b", row(10, **once))
    assert report.main([str(b), str(b), "--fail-below", "0.95"]) == 2
    said = capsys.readouterr().err
    assert "1 of 1 points ran fewer than 3 times in A or B" in said
    assert "bench --repeats 3" in said and said.count("\n") == 1
    assert report.main([str(a), str(b), "--fail-below", "0.95"]) == 1, (
        "alexnet has no figure in B"
    )
    nothing = folder(tmp_path / "nothing", row(None))
    assert report.main([str(nothing), str(b), "--fail-below", "0.95"]) == 2
    assert "no point has a figure in A and B" in capsys.readouterr().err


def trial(batch: int, status: str) -> Row:
    point = {
        "arch": "resnet18",
        "loader": "torchvision",
        "precision": "fp16",
        "batch_size": batch,
    }
    nothing: Row = {"figures": {}, "spread": {}, "versions": {}}
    return row(1.0) | nothing | {"suite": "max-batch", "point": point, "status": status}


@pytest.mark.parametrize(
    ("fits", "fails", "code"),
    [
        (960, 1000, 0),  # both may be at 990
        (900, 992, 1),  # below all of what A's search leaves open
        (900, 993, 0),
        (1100, None, 0),
    ],
)
def test_a_search_is_judged_by_its_tolerance(
    fits: int, fails: int | None, code: int, tmp_path: Path
) -> None:
    a = folder(tmp_path / "a", trial(992, "ok"), trial(1024, "oom"))
    b = folder(
        tmp_path / "b", trial(fits, "ok"), *([trial(fails, "oom")] if fails else [])
    )
    assert report.main([str(a), str(b), "--fail-below", "0.98"]) == code


@pytest.mark.parametrize(
    ("b", "code"),
    [
        ([row(99, 98, 100), row(50, arch="alexnet")], 0),
        ([row(90, 89, 91), row(50, arch="alexnet")], 1),  # slower, beyond noise
        ([row(90, 89, 100), row(50, arch="alexnet")], 0),  # slower, within noise
        ([row(99, 98, 100), row(None, arch="alexnet")], 1),  # a point is lost
        ([row(99, 98, 100)], 1),
        ([row(None)], 1),
        (
            [row(200, 199, 201), row(60, arch="alexnet"), row(None, arch="vgg11")],
            0,
        ),  # A has no vgg11
    ],
)
def test_fail_below(
    b: list[Row], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = folder(tmp_path / "a", row(100, 98, 102), row(50, arch="alexnet"))
    assert (
        report.main([str(a), str(folder(tmp_path / "b", *b)), "--fail-below", "0.95"])
        == code
    )
    assert ("fail --fail-below 0.95" in capsys.readouterr().out) == bool(code)
    assert report.main([str(a), str(tmp_path / "b")]) == 0, (
        "without the flag it only tells"
    )


@pytest.mark.parametrize(
    "names", [("none",), ("empty",), ("other",), ("a", "b", "c"), ()]
)
def test_mistakes_get_one_line(
    names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "summary.json").write_text(
        '{"rate": {}, "validation": {}, "efficiency": 1}'
    )
    assert report.main([str(tmp_path / name) for name in names]) == 2
    said = capsys.readouterr().err
    assert said.startswith("report: ") and said.count("\n") == 1


def test_other_machines_and_settings_are_named(tmp_path: Path) -> None:
    other = row(100, versions={"torch": "3"}, hardware={**HARDWARE, "cpu": "another"})
    assert report.differences([row(100)], [other]) == [
        "hardware differ: cpu a CPU / another",
        "versions differ: torch 2 / 3",
    ]
    a, b = folder(tmp_path / "a", row(100)), folder(tmp_path / "b", row(50))
    (b / "suite.json").write_text('{"suite": "train", "flags": "--image-size 64"}')
    (a / "suite.json").write_text('{"suite": "train", "flags": ""}')
    assert report.settings_apart(a, b) == ["settings differ: flags  / --image-size 64"]


def test_the_events_of_a_short_run_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        report,
        "read",
        lambda folder: (
            "train",
            [{**row(100, 98, 102), "status": "short", "folder": "."}],
        ),
    )
    (tmp_path / "events.out.tfevents.1.here").write_bytes(b"the run's")
    assert report.main([str(tmp_path)]) == 0
    assert (tmp_path / "events.out.tfevents.1.here").read_bytes() == b"the run's"


def test_a_folder_that_cannot_be_written_to_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = folder(tmp_path / "a", row(100, 98, 102))
    before = sorted(shown.iterdir())
    monkeypatch.setattr("os.access", lambda *_: False)
    assert report.main([str(shown)]) == 0
    said = capsys.readouterr()
    assert "100.0 (98.0 to 102.0, 5)" in said.out and "TensorBoard:" not in said.out
    assert said.err.splitlines() == [
        f"report: {shown} cannot be written to: table.md, plots and TensorBoard runs are as they were"
    ]
    assert sorted(shown.iterdir()) == before
