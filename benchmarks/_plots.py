"""Plots of the suites, each a PNG: bars, lines. Must not know what is measured.

`path` is where the picture goes, and what is returned.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PLOT_DPI = 110
MARKERS = "osD^vXPh"
LETTERS_AN_INCH = 9
"""Letters of a title on an inch."""
LEGEND_MORE = 9
"""Letters whose room the mark before a name of the legend takes."""


Series = dict[str, list[float | None]]
"""name -> a value for each group, None where there is none."""


def bars(
    path: Path, groups: Sequence[str], series: Series, *, title: str, unit: str
) -> Path:
    """Draw groups of bars, one colour a series. What is missing is left out, and no bar of height 0."""
    letters = max(map(len, groups), default=0)
    drawing, axes = _figure(
        width=2 + len(groups) * max(0.45 * len(series), 0.2 + 0.07 * letters)
    )
    width = 0.8 / len(series)
    for number, (name, heights) in enumerate(series.items()):
        left = np.arange(len(groups)) + (number - len(series) / 2) * width
        there = [
            (at, height)
            for at, height in zip(left, heights, strict=True)
            if height is not None
        ]
        if there:
            across, up = zip(*there, strict=True)
            axes.bar(
                across, up, width * 0.92, align="edge", label=name, color=f"C{number}"
            )
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    return _finished(drawing, axes, path, title)


def lines(
    path: Path,
    series: dict[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
) -> Path:
    """Draw one line a series, through its points (x, y). Lines that lie on each other are told apart: each is
    thinner than the one below it."""
    drawing, axes = _figure()
    for number, (name, points) in enumerate(series.items()):
        below = (len(series) - 1 - number) / max(len(series) - 1, 1)
        marker = MARKERS[number % len(MARKERS)]
        across, up = zip(*sorted(points), strict=True)
        axes.plot(
            across,
            up,
            marker=marker,
            label=name,
            alpha=0.75,
            linewidth=1.3 + 2.4 * below,
            markersize=5 + 5 * below,
        )
    values = sorted({at for points in series.values() for at, _ in points})
    if (
        values[0] > 0 and values[-1] >= 8 * values[0] and len(values) < 12
    ):  # as batch sizes are
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    return _finished(drawing, axes, path, title)


def _figure(*, width: float = 0.0, height: float = 4.4) -> tuple[Any, Any]:
    """Begin a figure of this size in inches; it is never narrower than a title needs."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(max(width, 6.5), height), layout="constrained")


def _finished(drawing: Any, axes: Any, path: Path, title: str) -> Path:
    """Save a drawing with a title, and the legend below the axes, where it covers nothing."""
    _titled(axes, title)
    handles, names = axes.get_legend_handles_labels()
    if names:
        each = max(map(len, names)) + LEGEND_MORE
        columns_ = max(
            1, min(len(names), int(LETTERS_AN_INCH * drawing.get_figwidth() / each))
        )
        drawing.legend(
            handles, names, loc="outside lower center", ncols=columns_, fontsize=8
        )
    return _saved(drawing, path)


def _titled(axes: Any, title: str) -> None:
    axes.set_title(
        textwrap.fill(title, int(LETTERS_AN_INCH * axes.figure.get_figwidth())),
        fontsize=10,
    )


def _saved(drawing: Any, path: Path) -> Path:
    from matplotlib import pyplot

    drawing.savefig(path, dpi=PLOT_DPI)
    pyplot.close(drawing)
    return path
