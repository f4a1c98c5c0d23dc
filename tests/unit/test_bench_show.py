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
from benchmarks._suite import Column, Rates, Row, of_baseline
from tests.unit.test_bench import ran, suite


def test_the_tables(tmp_path: Path) -> None:
    rows = ran(tmp_path, "good", "oom", "short")
    console = Console(width=200, record=True, file=io.StringIO())
    _show.show(suite(), rows, tmp_path, console)
    shown = console.export_text()
    assert (
        "100.0 (90.0 to 110.0, 5)" in shown
        and "out of memory" in shown
        and "too short" in shown
    )
    assert (
        "More columns in table.md: bound." in shown
        and "bound" not in shown.partition("More columns")[0]
    )
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


def test_a_rate_that_never_got_steady_is_named_and_concludes_nothing(
    tmp_path: Path,
) -> None:
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
        "- 2 are there\n" in text
        and "- of good\n" in text
        and "of wild" not in text.partition("| wild")[2]
    )
    assert (
        "Unsteady, so no conclusion is drawn from it; measure it again on a quiet machine: wild-8."
        in text
    )


@pytest.mark.parametrize(
    ("number", "said", "told"),
    [
        (
            signal.SIGKILL,
            "epoch 1, 100 img/s",
            "killed, as the system does when memory is short",
        ),
        (signal.SIGABRT, "free(): invalid pointer", "SIGABRT; free(): invalid pointer"),
        (signal.SIGRTMIN + 1, "", f"signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_a_point_that_a_signal_ended_names_it(
    number: int, said: str, told: str, tmp_path: Path
) -> None:
    program = (
        f"import os; print({said!r}, flush=True); os.kill(os.getpid(), {int(number)})"
    )
    (row,) = ran(tmp_path, "good", command=lambda *_: [sys.executable, "-c", program])
    assert row["error"] == f"exit code -{int(number)}: {told}"


def test_titles_have_the_unit_of_the_rows(tmp_path: Path) -> None:
    (row,) = ran(tmp_path, "good")
    told = replace(
        suite(),
        columns=(
            Column(key="name", title="name"),
            Column(key="rate", title="{unit} a GPU"),
        ),
    )
    assert _show.cells(told, [row], detail=False)[0] == ["img/s a GPU"]
    row["figures"]["unit"] = "clip/s"
    assert _show.cells(told, [row], detail=False)[0] == ["clip/s a GPU"]


def test_rates_have_tenths_below_a_thousand() -> None:
    shown = [Rates().format(rate) for rate in (3.14, 96.25, 999.94, 999.96, 15216.4)]
    assert shown == ["3.1", "96.2", "999.9", "1,000", "15,216"]


def test_tensorboard_has_rows_and_plots_and_curves(tmp_path: Path) -> None:
    """Over an axis of numbers a figure is lines, over names it is bars; showing again adds nothing."""

    def plots(rows: Sequence[Row], folder: Path) -> list[Path]:
        series: _plots.Series = {"a": [1.0, None], "b": [2.0, 3.0]}
        return [
            _plots.bars(folder / "own.png", ["x", "y"], series, title="t", unit="img/s")
        ]

    told = suite(plots=plots, over=("size", "name"))
    (good,) = ran(tmp_path, "good")
    larger = {**good, "point": {**good["point"], "size": 16}, "folder": "runs/gone"}
    larger["figures"] = good["figures"] | {"rate": 150.0}
    for _ in range(2):
        _show.show(told, [good, larger], tmp_path, Console(file=io.StringIO()))
    run_ = EventAccumulator(str(tmp_path / "runs" / "good-8")).Reload()
    assert [event.value for event in run_.Scalars("fake/rate")] == [100.0]
    assert "_hparams_/session_start_info" in run_.summary_metadata
    images = EventAccumulator(str(tmp_path / "plots")).Reload()
    assert images.Tags()["images"] == ["fake/rate", "fake/own"]
    assert all(len(images.Images(tag)) == 1 for tag in images.Tags()["images"])
    curve = EventAccumulator(str(tmp_path / "curves" / "fake")).Reload()
    assert [
        (event.step, event.value) for event in curve.Scalars("fake over size/rate")
    ] == [
        (8, 100.0),
        (16, 150.0),
    ]
    other = {**good, "point": {**good["point"], "name": "other"}}
    assert _show.series_of(told, [good, other]) == ("name", {"fake": [good, other]})
    assert _show.series_of(told, [good, other, larger])[1] == {
        "good": [good, larger],
        "other": [other],
    }
    _show.show(told, [good, other], tmp_path, Console(file=io.StringIO()))
    assert not list((tmp_path / "curves").rglob("events*")), "names are no steps"
    assert (tmp_path / "plots" / "rate.png").read_bytes().startswith(b"\x89PNG")


def test_a_ratio_is_to_the_point_that_differs_in_the_named_values_alone(
    tmp_path: Path,
) -> None:
    (good,) = ran(tmp_path, "good")
    rows = [
        {
            **good,
            "point": {"name": name, "size": size},
            "figures": {"rate": rate},
            "status": status,
        }
        for name, size, rate, status in (
            ("eager", 8, 50.0, "ok"),
            ("graphs", 8, 75.0, "ok"),
            ("eager", 16, 10.0, "short"),
            ("graphs", 16, 80.0, "ok"),
        )
    ]
    found = [
        row["figures"].get("of")
        for row in of_baseline(rows, "rate", {"of": {"name": "eager"}})
    ]
    assert found == [1.0, 1.5, None, None]
