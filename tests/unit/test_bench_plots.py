"""The plots of the suites, as matplotlib's objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from benchmarks import _plots, workers

matplotlib.use("Agg")
from matplotlib import pyplot


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures, kept instead of saved."""
    kept: list[Any] = []

    def keep(drawing: Any, path: Path) -> Path:
        drawing.draw_without_rendering()
        kept.append(drawing)
        return path

    monkeypatch.setattr(_plots, "_saved", keep)
    yield kept
    pyplot.close("all")


def one(drawn: list[Any]) -> Any:
    (drawing,) = drawn
    return drawing.axes[0]


def test_what_is_missing_is_no_bar(drawn: list[Any]) -> None:
    series: _plots.Series = {"a": [3.0, None], "none": [None, None], "b": [0.0, 2.0]}
    _plots.bars(
        Path("x.png"),
        ["x", "y"],
        series,
        title="t",
        unit="img/s",
        marks={"ceiling": {"a": [4.0, None], "none": [None] * 2, "b": [None] * 2}},
    )
    axes = one(drawn)
    assert sorted(patch.get_height() for patch in axes.patches) == [0.0, 2.0, 3.0]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["a", "b"]
    assert axes.get_ylim()[1] > 4.0, "the first mark is inside"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["x", "y"]


def test_workers_draws_a_bar_for_each_row(drawn: list[Any], tmp_path: Path) -> None:
    rows = [
        {
            "point": {"image_size": 224, "memory": memory, "workers": count, "batch_size": batch},
            "figures": {
                "rate": 10.0 * batch,
                "data_wait_ms": 1.0,
                "forward_ms": 2.0,
                "backward_ms": None,
                "update_ms": 1.0,
            },
        }
        for batch in (64, 8)
        for count in (1, 15)
        for memory in ("pinned", "pageable")
    ]
    workers.plots(rows, tmp_path)
    axes = drawn[0].axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names[:3] == [
        "batch 8, 1 worker, pageable",
        "batch 8, 1 worker, pinned",
        "batch 8, 15 workers, pageable",
    ]
    assert len(names) == len(set(names)) == 8
    waits = [patch.get_width() for patch in axes.patches[:8]]
    assert waits == pytest.approx([125.0] * 4 + [15.625] * 4), "µs an image: 1 ms / 8 and / 64"


def test_a_heat_map_has_a_dash_where_nothing_is(drawn: list[Any]) -> None:
    rows = [
        {"point": {"a": a, "b": b}, "figures": {"rate": rate}}
        for a, b, rate in (("x", 1, 5.0), ("x", 2, None), ("y", 1, None))
    ]
    _plots.heat_map(Path("x.png"), rows, x="b", y="a", figure="rate", title="t")
    assert [text.get_text() for text in one(drawn).texts] == ["5", "-", "-", "-"]
