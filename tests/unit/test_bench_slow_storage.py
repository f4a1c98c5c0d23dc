"""The suite `slow-storage`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import slow_storage
from benchmarks._suite import Row, merged, results
from benchmarks.slow_storage import SUITE, Epoch, SlowStorage, conclude, consume, measured
from contracts import UserError
from report.hardware import LOADS
from scripts import bench, report
from tests.end_to_end.runs import draw


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("pictures") / "data", classes=("a", "b"), train=24, val=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_waits_are_counted_apart_from_steps_and_from_the_first_batch() -> None:
    clock = Clock()

    def batches() -> Iterator[int]:
        for late_s in (4.0, 0.5, 0.0, 0.25):
            clock.sleep(late_s)
            yield 4
        clock.sleep(9.0)  # the end of an epoch is nobody's wait

    found, steps = consume(
        batches(), step_s=2.0, wait=lambda: clock.sleep(0.125), clock=clock, sleep=clock.sleep
    )
    assert steps == 4
    assert found == Epoch(first_batch_s=4.125, total_s=4 * 2.0 + 0.75 + 3 * 0.125, waited_s=0.75 + 3 * 0.125)


def test_figures_are_medians_of_the_repeats() -> None:
    found = [Epoch(3.0, 10.5, 0.5), Epoch(1.0, 10.25, 0.25), Epoch(1.0, 11.0, 1.0)]
    told = measured(found, floor_s=10.0, opening_s=0.5, device=torch.device("cpu"))
    figures = {
        "total_s": 10.5,
        "waited_s": 0.5,
        "first_batch_s": 1.0,
        "over_floor_s": 0.5,
        "all_s": 12.0,
        "floor_s": 10.0,
        "start_s": 3.5,
    }
    assert told.figures == figures
    assert told.spread["waited_s"] == {"n": 3, "min": 0.25, "max": 1.0, "iqr": 0.375}
    assert told.spread["first_batch_s"]["max"] == 3.0


def row(method: str, delay: float, waited_s: float, status: str = "ok") -> dict[str, Any]:
    figures = {"waited_s": waited_s, "floor_s": 10.0, "total_s": 10 + waited_s} if status == "ok" else {}
    point = {"method": method, "read_delay_ms": delay, "steps": 100}
    return {"point": point, "status": status, "figures": figures, "spread": {}, "versions": {}}


def test_the_conclusion_comes_from_the_rows() -> None:
    rows = [
        row("pytorch", 10, 1.1),
        row("dali-fed", 10, 0.25),
        row("torchvision", 10, 0.3),
        row("dali-cpu", 10, 0, "failed"),
    ]
    said = conclude([*rows, row("dali-fed", 50, 0.5)])
    assert said == [
        "10 ms a read, 100 steps of 10 s in all: "
        "kept by dali-fed 0.25 s, torchvision 0.30 s; lost by pytorch 1.10 s.",
        "50 ms a read, 100 steps of 10 s in all: kept by none; lost by dali-fed 0.50 s.",
        "Kept: waited for at most 3% of that time, the first batch apart.",
    ]
    assert conclude([]) == conclude(rows[3:]) == []


@pytest.mark.usefixtures("prompt_ran")
def test_reads_in_the_consumers_thread_are_waited_for(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvidia.dali")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = [
        "slow-storage",
        "--data",
        str(pictures),
        "--methods",
        "pytorch",
        "dali-by-hand",
        "--delays",
        "10",
    ]
    words += ["--steps", "24", "--batch-size", "2", "--step-ms", "20", "--image-size", "32", "--workers", "4"]
    words += ["--output", str(tmp_path / "out")]
    assert bench.main(words) == 0
    pytorch, dali = results(tmp_path / "out")
    assert pytorch["status"] == dali["status"] == "ok", (pytorch["error"], dali["error"])
    for good in (pytorch, dali):
        figures = good["figures"]
        assert figures["floor_s"] == pytest.approx(0.48)
        assert figures["total_s"] >= figures["floor_s"] + figures["waited_s"]
        assert good["spread"]["total_s"]["n"] == 3
        assert set(LOADS) <= set(figures) and figures["sm_mhz"] is None
    # twenty-four batches, three of them ahead of the consumer: twenty times two reads
    assert dali["figures"]["waited_s"] >= 20 * 2 * 0.010
    assert pytorch["figures"]["first_batch_s"] >= 2 * 0.010
    assert "lost by" in (tmp_path / "out" / "table.md").read_text()


def test_processes_of_a_point_are_what_a_change_is_judged_by() -> None:
    """The epochs of one process say nothing of how processes differ."""

    def folder(method: str, waits: tuple[float, ...]) -> list[Row]:
        rows = [row(method, 10, waited) for waited in waits]
        return merged(
            [{**one, "point": one["point"] | {"repeat": number}} for number, one in enumerate(rows)]
        )

    a = folder("dali-fed", (0.1, 0.2, 0.3))
    (slower,), (alike,) = (
        report.pairs(SUITE, a, folder("dali-fed", waits)) for waits in ((2.0, 2.1, 2.2), (0.3, 0.4, 0.5))
    )
    assert slower.beyond_noise and slower.judged and slower.speed == pytest.approx(10.2 / 12.1)
    assert alike.judged and not alike.beyond_noise
    (once,) = report.pairs(SUITE, [row("dali-fed", 10, 0.1)], [row("dali-fed", 10, 9.0)])
    assert not once.judged


def test_too_few_files_are_a_mistake(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for method in ("pytorch", "dali-by-hand", "torchvision"):
        settings = SlowStorage(data=pictures, methods=(method,), steps=26, batch_size=2)
        with pytest.raises(UserError, match="48 files and 52 are asked for"):
            slow_storage.measure(settings, {"method": method, "read_delay_ms": 0.0}, tmp_path)
