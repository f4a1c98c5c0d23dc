"""Where a loader's time goes: held against work whose times are known, in threads, processes and pauses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saturate.contracts import RateWindow, Rows
from saturate.loaders import open_loader
from saturate.loaders._stages import OF_A_WORKER, OF_THE_THREAD, STAGES, Stages
from saturate.plan.images import ImagePlan
from saturate.plan.lazy import Lazy
from saturate.report import stages
from saturate.report.meter import Meter, added
from tests.conformance.pictures import jpeg, photograph
from tests.conformance.scenes import scene
from tests.unit.test_meter import Clock, alone


def test_a_lap_goes_to_its_stage_and_waiting_takes_no_cpu() -> None:
    counted = Stages(2)
    for number in (0, 1):
        laps = counted.of_worker(number)
        time.sleep(0.03)
        laps.lap("read")
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        laps.lap("decode")
    seconds = counted.seconds()
    assert seconds.keys() == {"read", "decode"}
    assert seconds["read"][0] >= 0.06 and seconds["read"][1] < 0.01
    assert seconds["decode"][0] >= seconds["decode"][1] >= 0.04
    rows = [counted.of_worker(number)._totals for number in (0, 1)]
    own = sum(row[STAGES.index("read")] for row in rows)
    assert own == pytest.approx(seconds["read"][0]), "each has a row of its own"


def test_the_report_knows_all_stages_and_whose_they_are() -> None:
    assert stages.NAMES == STAGES and stages.OWN_WORKERS == OF_A_WORKER


def test_a_wait_that_spans_a_pause_counts_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    times = SimpleNamespace(perf_counter=clock, thread_time=lambda: 0.0)
    monkeypatch.setattr("saturate.loaders._stages.time", times)
    counted = Stages(0)
    meter = Meter(
        alone(),
        min_window_s=2.0,
        synchronise=lambda: None,
        stage_seconds=counted.seconds,
        clock=clock,
    )
    clock.sleep(100)
    meter.resume(0)
    clock.sleep(3)
    meter.add(1)
    assert meter.point(), "a window may end in a wait, which is whole in the next one"
    clock.sleep(2)
    counted.thread.lap("full")
    clock.sleep(1)
    meter.add(1)
    window = meter.point()
    assert window and window.stages == {"full": (5.0, 0.0)}


@pytest.mark.parametrize("name", ["torchvision", "dali-cpu"])
def test_rows_are_drawn_in_the_plans_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("dali"):
        pytest.importorskip("nvidia.dali")
    files = {f"{at:02d}": jpeg(photograph(at, 40, 48)) for at in range(24)}
    feed = scene(tmp_path, files).feed(workers=1)
    drawn = ImagePlan.rows

    def late(plan: ImagePlan, epoch: int, first: int) -> Sequence[Rows]:
        rows = drawn(plan, epoch, first)

        def at(index: int) -> Rows:
            time.sleep(0.05)
            return rows[index]

        return Lazy(len(rows), at)

    monkeypatch.setattr(ImagePlan, "rows", late)
    with open_loader(name, feed) as loader:
        before = loader.stage_seconds()
        began = time.perf_counter()
        batches = sum(1 for _ in loader.batches(0, 0))
        took = time.perf_counter() - began
        seconds = {
            stage: wall
            for stage, (wall, _) in added({}, loader.stage_seconds(), before).items()
        }
    assert batches * 0.05 <= seconds["plan"]
    in_all = sum(seconds.get(stage, 0.0) for stage in OF_THE_THREAD)
    assert 0.5 * took < in_all <= took, "each second of the thread is one stage's"


def test_a_share_is_of_all_workers_where_a_loader_has_more_of_them() -> None:
    spent = {"idle": (2.0, 0.0), "read": (6.0, 0.0), "clips": (1.0, 0.0)}
    assert stages.shares(spent, 2.0, 2) == {"idle": 0.25, "read": 0.75, "clips": 0.5}


def test_shares_and_milliseconds_of_windows() -> None:
    window = RateWindow(100, 50, 2.0, 0, {"decode": (3.0, 2.5), "workers": (1.0, 0.0)})
    both = [window, replace(window, stages={"decode": (1.0, 1.0)})]
    told = stages.of_windows(both, workers=2)
    assert told["decode"] == {"share": 0.5, "ms": 40.0, "cpu_ms": 35.0}
    assert told["workers"]["share"] == 0.25, "the thread is one, however many workers"
    assert stages.of_windows([], workers=2) == {}


def of(**shares: float) -> dict[str, Any]:
    return {name: {"share": share, "ms": 1.0} for name, share in shares.items()}


FED = {"data_wait": {"share": 0.01}}
STARVED = {"data_wait": {"share": 0.4}}


SPLIT = {"split_ms": {"forward": 1.0}}
SHORT = STARVED | {"epoch_steps": 4}
DECODES: dict[str, Any] = {"stages": of(workers=0.9, decode=0.8)}


@pytest.mark.parametrize(
    ("summary", "side", "stage"),
    [
        (STARVED | {"stages": of(workers=0.9, idle=0.8, read=0.2)}, "loader", "read"),
        (STARVED | {"stages": of(workers=0.2, dali=0.7, read=0.9)}, "loader", "dali"),
        (STARVED, "loader", "data_wait"),
        (
            STARVED | {"stages": of(full=0.6), "split_ms": {"forward": 1.0}},
            "step",
            "forward",
        ),
        (
            FED | {"split_ms": {"forward": 2.0, "backward": 4.0, "data_wait": 9.0}},
            "step",
            "backward",
        ),
        (
            FED | {"split_ms": {"graph": 9.0}, "warm_up_ms": {"a": 3.0, "update": 5.0}},
            "step",
            "update",
        ),
        (FED | SPLIT | {"bound": "loader"}, "loader", "data_wait"),
        (SHORT | {"stages": of(workers=0.9, read=0.2)}, "loader", "read"),
        (SHORT | {"stages": of(workers=0.3, full=0.6)}, "loader", "first batches"),
        (SHORT | DECODES | {"bound": "loader"}, "loader", "decode"),
        (SHORT | DECODES | {"bound": "contention"}, "loader", "first batches"),
    ],
)
def test_the_one_stage_that_binds(
    summary: dict[str, Any], side: str, stage: str
) -> None:
    binds = stages.binds(summary)
    assert binds is not None
    assert (binds["side"], binds["stage"]) == (side, stage)
    assert 0 < binds["share"] <= 1


def test_nothing_is_named_where_nothing_was_measured() -> None:
    assert stages.binds({}) is None
    assert stages.binds(FED) is None


def rank(wait: float = 1.0, clock: float = 1900.0, **ms: float) -> dict[str, Any]:
    of_loader = {name: {"ms": value, "share": 0.5} for name, value in ms.items()}
    return {"data_wait": wait, "forward": 5.0, "sm_mhz": clock, "stages": of_loader}


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([rank()], None),
        ([rank(), rank(), rank(1.2)], None),
        ([rank(read=1), rank(), rank(9, read=9, decode=3)], (2, "read")),
        ([rank(decode=2), rank(30, read=1, decode=9, idle=99)], (1, "decode")),
        ([rank(), rank(clock=1200)], (1, "clock")),
        ([rank() | {"forward": 9.0}, rank()], (0, "forward")),
    ],
)
def test_the_rank_that_others_wait_for(
    ranks: list[dict[str, Any]], named: tuple[int, str] | None
) -> None:
    slow = stages.slowest(ranks)
    assert (slow and (slow["rank"], slow["why"])) == named
