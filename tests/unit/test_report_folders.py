"""scripts/report.py: which ratio is beyond noise, and what --fail-below is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks._suite import Row
from scripts import report
from scripts.bench import suite_of

HARDWARE = {"gpu": None, "cpu": "a CPU", "cores": 2, "ram_gib": 4.0}
Rate = tuple[float, float, float] | None
"""Median, smallest and largest of the repeats."""


def row(rate: Rate, arch: str = "resnet18", repeats: int = 5, **changes: Any) -> Row:
    figures: Row = {"repeats": repeats}
    spread = {}
    if rate:
        figures["rate"] = rate[0]
        spread["rate"] = {"n": 5, "min": rate[1], "max": rate[2], "iqr": 1.0}
    same: Row = {"suite": "train", "error": None, "began": 0.0, "hardware": HARDWARE}
    same |= {"status": "ok" if rate else "failed", "versions": {"torch": "2"}}
    point = {"arch": arch, "batch_size": 8}
    return same | {"point": point, "figures": figures, "spread": spread} | changes


def folder(path: Path, *rows: Row) -> Path:
    path.mkdir()
    (path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (path / "suite.json").write_text(json.dumps({"command": "bench", "note": ""}))
    return path


@pytest.mark.parametrize(
    ("a", "b", "speed", "beyond"),
    [
        ((100, 95, 105), (90, 88, 96), 0.9, False),  # the ranges overlap
        ((100, 98, 105), (90, 88, 96), 0.9, True),
        ((100, 98, 105), (110, 106, 112), 1.1, True),
        ((100, 98, 105), None, None, None),
    ],
)
def test_ratio_and_noise(a: Rate, b: Rate, speed: float, beyond: bool | None) -> None:
    train = suite_of("train")
    found = report.judged(train, row(a), row(b))
    assert found == (speed and pytest.approx(speed), beyond)
    # windows of one process say nothing of how runs differ
    assert report.judged(train, row(a, repeats=0), row(b))[1] is None


A = ((100, 98, 102), (50, 49, 51))
"""Rates of two points."""


@pytest.mark.parametrize(
    ("b", "code"),
    [
        (((99, 98, 100), (50, 49, 51)), 0),
        (((90, 89, 91), (50, 49, 51)), 1),  # slower, beyond noise
        (((90, 89, 100), (50, 49, 51)), 0),  # slower, within noise
        (((99, 98, 100), None), 1),  # a point is lost
        (((99, 98, 100),), 1),
        (((200, 199, 201), (60, 59, 61), None), 0),  # A has no third
    ],
)
def test_fail_below(b: tuple[Rate, ...], code: int, tmp_path: Path) -> None:
    archs = ("resnet18", "alexnet", "vgg11")
    words = [
        str(folder(tmp_path / name, *map(row, rates, archs)))
        for name, rates in (("a", A), ("b", b))
    ]
    assert report.main([*words, "--fail-below", "0.95"]) == code
    assert report.main(words) == 0, "without the flag it only tells"


@pytest.mark.parametrize(
    ("in_a", "in_b", "repeats", "code"),
    [
        (None, None, 5, 2),
        (None, A[0], 5, 2),
        (A[0], None, 5, 1),
        (A[0], A[0], 5, 0),
        (A[0], A[0], 0, 2),  # a check in CI that can never fail is a mistake
        (A[0], None, 0, 1),
    ],
)
def test_fail_below_compares_something(
    in_a: Rate,
    in_b: Rate,
    repeats: int,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a = folder(tmp_path / "a", row(in_a, repeats=repeats))
    b = folder(tmp_path / "b", row(in_b, repeats=repeats))
    assert report.main([str(a), str(b), "--fail-below", "0.95"]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == ("bench --repeats 3" in said) == (code == 2)


@pytest.mark.parametrize(
    ("fits", "most", "code"),
    [
        (960, 999, 0),  # both may be at 995
        (900, 991, 1),  # below all of what A's search leaves open
        (900, 992, 0),
        (1100, 1 << 30, 0),
    ],
)
def test_a_search_is_judged_by_its_tolerance(
    fits: int, most: int, code: int, tmp_path: Path
) -> None:
    def trial(fits: int, most: int) -> Row:
        spread = {"largest": {"n": 4, "min": fits, "max": most}}
        figures = {"largest": fits, "limited_to": fits}
        return row(None) | {
            "suite": "max-batch",
            "status": "ok",
            "figures": figures,
            "spread": spread,
        }

    a, b = (
        str(folder(tmp_path / name, trial(*ends)))
        for name, ends in (("a", (992, 1023)), ("b", (fits, most)))
    )
    assert report.main([a, b, "--fail-below", "0.98"]) == code
