"""The plots of the suites, as matplotlib's objects: what is drawn, where the legend is, what an axis says. No
pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from benchmarks import _plots, workers

matplotlib.use("Agg")
from matplotlib import pyplot

LONG = (
    "img/s, dali-gpu, fp16, 8 processes, "
    "with the compute (line) and the loader (dots) ceiling of each network"
)


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
    assert sorted(patch.get_height() for patch in axes.patches) == [0.0, 2.0, 3.0], (
        "a 0 that was measured is one"
    )
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["a", "b"]
    assert axes.get_ylim()[1] > 4.0, "the first mark is inside"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["x", "y"]


def test_nothing_measured_is_an_empty_picture(drawn: list[Any]) -> None:
    _plots.bars(Path("x.png"), ["x"], {"a": [None]}, title="t", unit="s")
    assert not one(drawn).patches and not drawn[0].legends


@pytest.mark.parametrize("kind", ["bars", "stacked", "lines"])
def test_legends_are_below_the_axes_and_titles_inside_the_picture(kind: str, drawn: list[Any]) -> None:
    many = {f"a rather long name {number}": [1.0] for number in range(7)}
    if kind == "lines":
        _plots.lines(Path("x.png"), {name: [(1.0, 1.0)] for name in many}, title=LONG, x="n", y="img/s")
    else:
        getattr(_plots, kind)(Path("x.png"), ["x"], many, title=LONG, unit="s")
    axes, (legend,) = one(drawn), drawn[0].legends
    renderer, picture = drawn[0].canvas.get_renderer(), drawn[0].bbox
    below, title = legend.get_window_extent(renderer), axes.title.get_window_extent(renderer)
    labels = axes.get_tightbbox(renderer)
    assert below.y1 <= labels.y0 + 1 and below.x0 >= 0 and below.x1 <= picture.x1, (
        "it covers nothing, and nothing of it is cut off"
    )
    assert title.x0 >= 0 and title.x1 <= picture.x1 and "\n" in axes.get_title()


def test_a_figure_of_one_series_is_wide_enough(drawn: list[Any]) -> None:
    _plots.bars(Path("x.png"), ["1 process"], {"a": [1.0]}, title="t", unit="s")
    _plots.bars(
        Path("x.png"),
        [f"decoder-{number:02d}" for number in range(12)],
        {"a": [1.0] * 12},
        title="t",
        unit="s",
    )
    few, many = drawn
    assert few.get_figwidth() >= 6
    labels = [label.get_window_extent() for label in many.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(labels)), "no label runs into the next"


def test_powers_of_two_are_written_out(drawn: list[Any]) -> None:
    _plots.lines(
        Path("x.png"),
        {"a": [(128, 3.0), (8, 1.0)], "b": [(32, 2.0)]},
        title="t",
        x="batch size",
        y="img/s",
        log_x=True,
    )
    assert [tick.get_text() for tick in one(drawn).get_xticklabels()] == ["8", "32", "128"]


def test_lines_that_coincide_are_told_apart(drawn: list[Any]) -> None:
    _plots.lines(Path("x.png"), {name: [(1, 1.0), (2, 2.0)] for name in "abc"}, title="t", x="n", y="img/s")
    found = one(drawn).get_lines()
    assert len({line.get_marker() for line in found}) == 3
    widths = [line.get_linewidth() for line in found]
    assert widths == sorted(set(widths), reverse=True) and all(line.get_alpha() < 1 for line in found), (
        "the one below shows around it"
    )


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
