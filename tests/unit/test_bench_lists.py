"""The suite `lists`: every method gives each line once, memory is the kernel's, and what is told."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import lists
from benchmarks._suite import Row
from benchmarks.baselines import lists as by_hand
from contracts import UserError

# a test has one core where several run side by side
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
LINES = 5_000
EPOCH = {"batch_size": 50, "workers": 2}


@pytest.fixture(autouse=True)
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at processes forked from one that has imported all of this takes a tenth of a second each."""
    monkeypatch.setattr(lists, "WINDOWS", 4)
    monkeypatch.setattr(lists, "EVERY_S", 5.0)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("list") / "data" / "train.csv"
    lists.write_list(path, LINES)
    return path


@pytest.mark.parametrize("method", [method for method in lists.METHODS if method != "pandas"])
def test_every_method_gives_each_line_once(method: str, listed: Path) -> None:
    epoch = (
        lists.ours(listed, listed.parents[1] / "cache", **EPOCH)
        if method == lists.OURS
        else lists.hand_made(by_hand.DATASETS[method](listed), **EPOCH)
    )
    watch = lists.Watch(reserve_gib=0.0)
    samples, total, rates = lists.passed(epoch, lines=LINES, batch_size=50, most_s=60.0, watch=watch)
    watch.close()
    assert (samples, total, len(rates)) == (LINES, lists.expected_sum(LINES), lists.WINDOWS)
    assert len(watch.peaks) >= 2, "other tests' processes may not have ended yet"
    assert all(peak["anonymous"] > 1 for peak in watch.peaks.values())


@pytest.mark.parametrize("short", [False, True])
def test_an_epoch_is_broken_off(short: bool, listed: Path) -> None:
    """When it takes too long, or where memory is short."""
    epoch = lists.hand_made(by_hand.PythonList(listed), **EPOCH)
    watch = lists.Watch(reserve_gib=1e6 if short else 0.0)
    samples, *_ = lists.passed(epoch, lines=LINES, batch_size=50, most_s=60.0 if short else 0.0, watch=watch)
    watch.close()
    assert (samples, watch.short) == (LINES // lists.WINDOWS, short)


def test_memory_is_what_the_kernel_says() -> None:
    before = lists.rollup(os.getpid())
    own = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not from freed memory
    own.write(b"x" * (8 << 20))
    shared = mmap.mmap(-1, 16 << 20)
    shared.write(b"x" * (16 << 20))
    after = lists.rollup(os.getpid())
    assert after["Anonymous"] - before["Anonymous"] == pytest.approx(8, abs=2)
    assert after["Pss_Shmem"] - before["Pss_Shmem"] == pytest.approx(16, abs=2)


def kinds(own: float) -> dict[str, float]:
    return {"own": own, "anonymous": 0.0, "shared": 0.0, "file": 0.0}


def test_growth_is_over_an_empty_worker() -> None:
    grown = lists.growth({1: kinds(30.0), 2: kinds(12.0)}, {3: kinds(9.0), 4: kinds(11.0)})
    assert grown["own"] == [20.0, 2.0]


def row(method: str, own: float, workers: int) -> Row:
    point = {"method": method, "workers": workers, "lines": LINES}
    figures = {"own_mib": own, "shared_mib": 0.5}
    return {"point": point, "status": "ok", "figures": figures, "spread": {}, "versions": {}}


def test_remarks_come_from_the_rows() -> None:
    said = lists.remarks([row("ours", 2.0, 1), row("python-list", 900.0, 1), row("ours", 20.0, 16)])
    begin = "Own and shared memory of a worker, over an empty one, --workers"
    assert said == [
        f"{begin} 1: ours 2.5 MiB, python-list 900.5 MiB.",
        "ours keeps the bound of 20 MiB.",
        f"{begin} 16: ours 20.5 MiB.",
        "ours does not keep the bound of 20 MiB.",
    ]


def test_a_point_has_all_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "prepare_process", lambda: None)
    settings = lists.Lists(lines=2_000, workers=(2,), methods=("ours",))
    (point,) = lists.points(settings)
    found = lists.measure(settings, point, tmp_path / "runs" / "point")
    assert found.error is None and found.spread["rate"]["n"] >= 3
    assert {"rate", *(column.key for column in lists.SUITE.columns)} <= {*found.figures, *point}
    made: Any = {"point": point, "status": "ok", "figures": found.figures}
    assert [path.name for path in lists.plots([made], tmp_path)] == ["own.png"]


def test_mistakes() -> None:
    with pytest.raises(UserError, match="--lines 2001 are no whole batches"):
        lists.points(lists.Lists(lines=2001))
    with pytest.raises(UserError, match="--methods got 'panda'"):
        lists.points(lists.Lists(methods=("panda",)))
