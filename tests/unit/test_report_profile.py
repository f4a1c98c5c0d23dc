"""The trace holds ten steps and opens; switched off, nothing is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

from saturate.report.profile import SKIPPED, STEPS, WARMUP, profiler


def run(folder: Path, steps: int) -> list[str]:
    """What it warned of."""
    weight, said = torch.ones(8, 8), list[str]()
    with profiler(folder, enabled=True, warn=said.append) as step:
        for _ in range(steps):
            with torch.profiler.record_function("one_step"):
                torch.mm(weight, weight)
            step()
    return said


def test_ten_steps_are_traced(tmp_path: Path) -> None:
    assert run(tmp_path, steps=SKIPPED + WARMUP + STEPS + 4) == []
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == [
        "operators-rank0.txt",
        "trace-rank0.json.gz",
    ]
    with gzip.open(tmp_path / "profile" / "trace-rank0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert (
        sum(
            event.get("name") == "one_step" and event.get("cat") == "user_annotation"
            for event in events
        )
        == STEPS
    )
    assert "aten::mm" in (tmp_path / "profile" / "operators-rank0.txt").read_text()


def test_a_run_shorter_than_the_trace_says_so(tmp_path: Path) -> None:
    (line,) = run(tmp_path, steps=SKIPPED + WARMUP - 1)
    assert "not written: it takes 18 steps and there were 7;" in line
    assert not list(tmp_path.iterdir())
