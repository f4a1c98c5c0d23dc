"""The search for the largest batch, over simulated memory; and one run of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks import max_batch
from benchmarks.max_batch import GRID, MaxBatch, search
from tests.end_to_end.runs import draw


def found(
    limit: int, *, above: str = "oom", **how: Any
) -> tuple[int, int | None, list[int]]:
    """The search on a device on which `limit` is the largest batch, and what it tried."""
    tried: list[int] = []

    def outcome(batch: int) -> str:
        assert batch not in tried and 1 <= batch <= how["largest"] and len(tried) < 60
        tried.append(batch)
        return "ok" if batch <= limit else above

    return *search(outcome, **how), tried


@given(
    limit=st.integers(0, 20_000),
    start=st.integers(1, 20_000),
    largest=st.integers(1, 20_000),
    tolerance=st.floats(0.0, 1.0),
)
@example(limit=0, start=64, largest=16384, tolerance=0.05)  # not even one sample
@example(limit=5, start=4096, largest=16384, tolerance=0.0)
@example(limit=10_000, start=64, largest=2000, tolerance=0.05)
@example(limit=64, start=64, largest=64, tolerance=0.05)
def test_the_search_finds_the_largest_within_the_tolerance(
    limit: int, start: int, largest: int, tolerance: float
) -> None:
    fits, fails, _ = found(limit, start=start, largest=largest, tolerance=tolerance)
    if fails is None:
        assert fits == largest <= limit
    else:
        assert fits <= limit < fails
        assert fails - fits <= max(tolerance * fits, GRID if fails > GRID else 1)


def test_a_failure_above_a_batch_that_trains_is_too_large_and_one_before_any_ends_the_search() -> (
    None
):
    how: dict[str, Any] = {"start": 512, "largest": 4096, "tolerance": 0.05}
    fits, fails, _ = found(700, above="failed", **how)
    assert fits <= 700 < (fails or 0)
    assert found(0, above="failed", **how)[2] == [512]


TRIAL = """
import json, os, pathlib, sys
batch, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if batch > 8:
    os.kill(os.getpid(), 9)
folder.mkdir()
(folder / "summary.json").write_text(json.dumps({"batch_size": batch, "memory": {"host_gib": batch}}))
(folder / "last.pt").touch()
"""


def test_a_trial_that_is_killed_was_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(_: MaxBatch, point: dict[str, Any], folder: Path) -> list[str]:
        return [sys.executable, "-c", TRIAL, str(point["batch_size"]), str(folder)]

    monkeypatch.setattr(max_batch, "command", command)
    settings = MaxBatch(loaders=("synthetic",), archs=("resnet18",), start=4)
    found = max_batch.measure(settings, {"loader": "synthetic"}, tmp_path)
    wanted = {"largest": 8, "trials": 3, "host_gib": 8}
    assert (
        found.figures.items() >= wanted.items() and "killed" in found.figures["ended"]
    )
    assert not list(tmp_path.rglob("*.pt"))
    (tmp_path / "all").mkdir()
    all_fit = settings.model_copy(update={"largest": 8})
    found = max_batch.measure(all_fit, {"loader": "synthetic"}, tmp_path / "all")
    assert found.figures["ended"] == "all of --largest 8"
    monkeypatch.setattr(
        max_batch, "command", lambda *_: ["sh", "-c", "echo no; exit 2"]
    )
    with pytest.raises(SystemExit, match="batch 4: exit code 2: no"):
        max_batch.measure(settings, {"loader": "synthetic"}, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("prompt_ran")
def test_a_search_on_the_cpu_ends_at_the_last_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    data = draw(tmp_path / "data", classes=("red", "blue"), train=12, val=3)
    settings = MaxBatch(
        data=str(data),
        archs=("squeezenet1_1",),
        loaders=("torchvision",),
        start=24,
        steps=2,
        tolerance=1.0,
        flags="--image-size 32 --workers 1",
    )
    (point,) = max_batch.points(settings)
    figures = max_batch.measure(settings, point, tmp_path).figures
    assert figures["largest"] == 24
    assert figures["ended"] == "too few samples, batches were 24, at 48"
    assert "validated" in (tmp_path / "24.txt").read_text()
    assert json.loads((tmp_path / "24/summary.json").read_text())["finished"]
