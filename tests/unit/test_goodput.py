"""The goodput of a run over its attempts, held against times that are added up by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saturate.report.facts import rows
from saturate.report.record import Record
from saturate.report.summary import spent_before
from saturate.tasks.classification import KIND
from tests.unit.test_report_console import SUMMARY


def test_what_a_kill_has_cost_stays_known(tmp_path: Path) -> None:
    """The first attempt begins at 1,000 s and is killed behind step 30, the second resumes from step 20 and is killed
    before it saves, the third resumes from step 20 as well.
    """

    def attempt(began_s: float, step: int | None) -> dict[str, float]:
        record = Record(tmp_path, resume_step=step)
        before = spent_before(record.spent, step or 0, began_s)
        tell(record, "attempt", step or 0, began_s, before)
        return before

    def tell(
        record: Record, kind: str, step: int, at: float, seconds: dict[str, float]
    ) -> None:
        record.point(kind, step, {"spent": {"at": at, "seconds": seconds}})
        record.close()

    def trains(step: int, at: float, seconds: dict[str, float]) -> None:
        line = {"kind": "train", "step": step, "spent": {"at": at, "seconds": seconds}}
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    assert attempt(1000.0, None) == {}
    trains(10, 1100.0, {"start": 20.0, "steps": 75.0, "other": 5.0})
    trains(20, 1200.0, {"start": 20.0, "steps": 170.0, "other": 10.0})
    trains(30, 1290.0, {"start": 20.0, "steps": 260.0, "other": 10.0})
    kept = {"start": 20.0, "steps": 170.0, "other": 10.0}
    second = attempt(1350.0, 20)
    assert second == {**kept, "repeated": 90.0, "down": 60.0}
    trains(25, 1400.0, {**second, "start": 45.0, "steps": 195.0})
    third = attempt(1402.0, 20)
    # all of the second one was for nothing
    assert third == {**kept, "repeated": 140.0, "down": 62.0}
    assert sum(third.values()) == 402.0
    # an older checkpoint: what the first one has made since counts no more
    assert attempt(1410.0, 10) == {
        "start": 20.0,
        "steps": 75.0,
        "other": 5.0,
        "repeated": 302.0,
        "down": 8.0,
    }


def test_the_table_says_the_share_and_the_rest() -> None:
    seconds = {"steps": 5400.0, "start": 600.0, "down": 900.0, "repeated": 300.0}
    found = {"share": 0.75, "seconds": seconds}
    said = dict(rows({**SUMMARY, "goodput": found}, KIND))["goodput"]
    rest = "down 15:00 min, start 10:00 min, repeated 5:00 min"
    assert said == f"75.0% of 2:00 h (the rest: {rest})"


@pytest.mark.parametrize("lines", ["", '{"kind": "train", "step": 3}\n'])
def test_a_run_of_an_earlier_version_has_none(tmp_path: Path, lines: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert spent_before(Record(tmp_path, resume_step=3).spent, 3, 50.0) == {}
