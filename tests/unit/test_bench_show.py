"""Tables, Markdown, conclusions and TensorBoard of a suite."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks import _plots, _show
from benchmarks._suite import Column, Rates, Row
from tests.unit.test_bench import ran, suite


def test_the_tables(tmp_path: Path) -> None:
    rows = ran(tmp_path, "good", "oom", "short")
    console = Console(width=200, record=True, file=io.StringIO())
    _show.show(suite(), rows, tmp_path, console)
    shown = console.export_text()
    assert "100.0 (90.0 to 110.0, 5)" in shown and "out of memory" in shown and "too short" in shown
    assert "More columns in table.md: bound." in shown and "bound" not in shown.partition("More columns")[0]
    text = (tmp_path / "table.md").read_text()
    assert "| name | img/s | bound |" in text
    assert "| good | 100.0 (90.0 to 110.0, 5) | compute |" in text
    short = "| short | too short: no figure; 2 of 3 windows or passes; more --seconds, or data | - |"
    assert short in text and "100" not in text.partition("| short |")[2]
    for line in (
        "The same for all: size 8.",
        "2 cores of a CPU, 4 GiB, no GPU used",
        "torch 2",
        "within 8.0% of its median",
        "scripts.bench",
    ):
        assert line in text


def test_a_rate_that_never_got_steady_is_named_and_concludes_nothing(tmp_path: Path) -> None:
    steady, *_ = ran(tmp_path, "good")
    wild = steady | {
        "point": {**steady["point"], "name": "wild"},
        "spread": {"rate": {"n": 5, "min": 19.0, "max": 222.0, "iqr": 60.0}},
    }
    telling = suite(
        remarks=lambda rows: [f"{len(rows)} are there"],
        conclude=lambda rows: [f"of {row['point']['name']}" for row in rows],
    )
    text = _show.markdown(telling, [steady, wild], tmp_path)
    assert (
        "- 2 are there\n" in text and "- of good\n" in text and "of wild" not in text.partition("| wild")[2]
    )
    assert "Unsteady, so no conclusion is drawn from it; measure it again on a quiet machine: wild-8." in text


@pytest.mark.parametrize(
    ("number", "said", "told"),
    [
        (signal.SIGKILL, "epoch 1, 100 img/s", "killed, as the system does when memory is short"),
        (signal.SIGABRT, "free(): invalid pointer", "SIGABRT; free(): invalid pointer"),
        (signal.SIGRTMIN + 1, "", f"signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_a_point_that_a_signal_ended_names_it(number: int, said: str, told: str, tmp_path: Path) -> None:
    program = f"import os; print({said!r}, flush=True); os.kill(os.getpid(), {int(number)})"
    (row,) = ran(tmp_path, "good", command=lambda *_: [sys.executable, "-c", program])
    assert row["error"] == f"exit code -{int(number)}: {told}"


def test_titles_have_the_unit_of_the_rows(tmp_path: Path) -> None:
    (row,) = ran(tmp_path, "good")
    told = replace(
        suite(), columns=(Column(key="name", title="name"), Column(key="rate", title="{unit} a GPU"))
    )
    assert _show.cells(told, [row], detail=False)[0] == ["img/s a GPU"]
    row["figures"]["unit"] = "clip/s"
    assert _show.cells(told, [row], detail=False)[0] == ["clip/s a GPU"]


def test_rates_have_tenths_below_a_thousand() -> None:
    shown = [Rates().format(rate) for rate in (3.14, 96.25, 999.94, 999.96, 15216.4)]
    assert shown == ["3.1", "96.2", "999.9", "1,000", "15,216"]


def test_tensorboard_has_rows_and_plots(tmp_path: Path) -> None:
    def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
        grid = [{**row, "figures": {"rate": row["figures"]["rate"]}} for row in rows]
        series: _plots.Series = {"a": [1.0, None], "b": [2.0, 3.0]}
        return [
            _plots.heat_map(folder / "heat.png", grid, x="name", y="size", figure="rate", title="t"),
            _plots.bars(
                folder / "bars.png", ["x", "y"], series, title="t", unit="img/s", marks={"ceiling": series}
            ),
            _plots.lines(folder / "lines.png", {"a": [(1.0, 2.0), (2.0, 3.0)]}, title="t", x="n", y="img/s"),
        ]

    rows = ran(tmp_path, "good", plots=plots)
    for _ in range(2):  # showing again adds nothing
        _show.show(suite(plots=plots), rows, tmp_path, Console(file=io.StringIO()))
    (run_,) = (EventAccumulator(str(tmp_path / "runs" / "good-8")).Reload(),)
    assert [event.value for event in run_.Scalars("fake/rate")] == [100.0]
    assert "_hparams_/session_start_info" in run_.summary_metadata
    images = EventAccumulator(str(tmp_path / "plots")).Reload()
    assert images.Tags()["images"] == ["fake/heat", "fake/bars", "fake/lines"]
    assert all(len(images.Images(tag)) == 1 for tag in images.Tags()["images"])


def test_the_time_left_is_the_mean_of_what_has_ended_in_this_run_times_what_is_left() -> None:
    now = 100.0
    left = _show.Left(clock=lambda: now)
    assert str(left) == "-:--:--"
    left.tell(5, 10)  # of an earlier run
    now += 60
    assert str(left) == "-:--:--"
    left.tell(6, 10)
    assert str(left) == "0:04:00"
    now += 10
    assert str(left) == "0:03:50"
    now += 70
    assert str(left) == "0:03:00", "the others do not get shorter by one that takes long"
    left.tell(7, 11)
    assert str(left) == "0:04:40"
    left.tell(11, 11)
    assert str(left) == "0:00:00"
