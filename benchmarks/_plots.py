"""Plots of the suites, each a PNG: heat map, bars, lines. Must not know what is measured.

A row is one of results.jsonl (see _suite.py); `path` is where the picture goes, and what is returned.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks._suite import Row

PLOT_DPI = 110
MARKS: tuple[Literal["-", ":"], ...] = ("-", ":")
MARKERS = "osD^vXPh"
LETTERS_AN_INCH = 9
"""Letters of a title on an inch."""
LEGEND_MORE = 9
"""Letters whose room the mark before a name of the legend takes."""


def heat_map(path: Path, rows: Sequence[Row], *, x: str, y: str, figure: str, title: str) -> Path:
    """Draw a cell for each pair of values, from the best row of each; `x` and `y` are names of the point."""
    across, down = (_values(rows, name) for name in (x, y))
    grid = np.full((len(down), len(across)), np.nan)
    for row in rows:
        at = down.index(row["point"][y]), across.index(row["point"][x])
        found = row["figures"][figure]
        grid[at] = np.fmax(grid[at], np.nan if found is None else found)
    drawing, axes = _figure(width=1.8 + 1.1 * len(across), height=1.8 + 0.5 * len(down))
    # each line in its own scale: a small network is ten times faster than a large one
    axes.imshow(
        grid / np.fmax.reduce(grid, axis=1, keepdims=True), cmap="Blues", vmin=0, vmax=1.9, aspect="auto"
    )
    axes.set_xticks(range(len(across)), [str(one) for one in across])
    axes.set_yticks(range(len(down)), [str(one) for one in down])
    axes.set_xlabel(x.replace("_", " "))
    _titled(axes, title)
    for (i, j), found in np.ndenumerate(grid):
        axes.text(j, i, "-" if np.isnan(found) else f"{found:,.0f}", ha="center", va="center", fontsize=8)
    return _saved(drawing, path)


Series = dict[str, list[float | None]]
"""name -> a value for each group, None where there is none."""


def bars(
    path: Path,
    groups: Sequence[str],
    series: Series,
    *,
    title: str,
    unit: str,
    marks: dict[str, Series] | None = None,
) -> Path:
    """Draw groups of bars, one colour a series; `marks` are lines across the bars. What is missing is left
    out, and no bar of height 0."""
    drawing, axes = _figure(
        width=2 + len(groups) * max(0.45 * len(series), 0.2 + 0.07 * max(map(len, groups), default=0))
    )
    width = 0.8 / len(series)
    heights = list[float]()
    beyond = list[tuple[float, float]]()
    for number, (name, found) in enumerate(series.items()):
        left = np.arange(len(groups)) + (number - len(series) / 2) * width
        there = [(at, one) for at, one in zip(left, found, strict=True) if one is not None]
        if there:
            axes.bar(
                [at for at, _ in there],
                [one for _, one in there],
                width * 0.92,
                align="edge",
                label=name,
                color=f"C{number}",
            )
        heights += [one for _, one in there]
        for place, (style, levels) in enumerate(zip(MARKS, (marks or {}).values(), strict=False)):
            drawn = [(level, at) for level, at in zip(levels[name], left, strict=True) if level is not None]
            axes.hlines(
                [level for level, _ in drawn],
                [at for _, at in drawn],
                [at + width for _, at in drawn],
                "black",
                style,
            )
            # the first mark is shown whole; what lies above the picture is written
            heights += [level for level, _ in drawn if place == 0]
            beyond += [(at + width / 2, level) for level, at in drawn if place]
    highest = max(heights, default=0) or 1
    room = 1.35 if any(level > 1.1 * highest for _, level in beyond) else 1.1  # for what is written there
    top = room * highest
    axes.set_ylim(0, top)
    for at, level in beyond:
        if level > top:
            axes.text(
                at,
                0.99 * top,
                f"{level:,.0f} \N{RIGHTWARDS ARROW}",
                rotation=90,
                ha="center",
                va="top",
                fontsize=7,
            )
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    return _finished(drawing, axes, path, title)


def stacked(
    path: Path, names: Sequence[str], series: Mapping[str, Sequence[float | None]], *, title: str, unit: str
) -> Path:
    """Draw a lying bar for each name, from top to bottom, in which the series follow each other."""
    drawing, axes = _figure(height=1.8 + 0.26 * len(names))
    left = np.zeros(len(names))
    for name, found in series.items():
        lengths = [one or 0.0 for one in found]
        axes.barh(range(len(names)), lengths, 0.75, left=left, label=name)
        left += lengths
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    return _finished(drawing, axes, path, title)


def lines(
    path: Path,
    series: dict[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
) -> Path:
    """Draw one line a series, through its points (x, y). Lines that lie on each other are told apart: each is
    thinner than the one below it."""
    drawing, axes = _figure()
    for number, (name, found) in enumerate(series.items()):
        below = (len(series) - 1 - number) / max(len(series) - 1, 1)
        marker = MARKERS[number % len(MARKERS)]
        across, up = zip(*sorted(found), strict=True)
        axes.plot(
            across,
            up,
            marker=marker,
            label=name,
            alpha=0.75,
            linewidth=1.3 + 2.4 * below,
            markersize=5 + 5 * below,
        )
    if log_x:
        values = sorted({at for found in series.values() for at, _ in found})
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
        columns_ = max(1, min(len(names), int(LETTERS_AN_INCH * drawing.get_figwidth() / each)))
        drawing.legend(handles, names, loc="outside lower center", ncols=columns_, fontsize=8)
    return _saved(drawing, path)


def _titled(axes: Any, title: str) -> None:
    axes.set_title(textwrap.fill(title, int(LETTERS_AN_INCH * axes.figure.get_figwidth())), fontsize=10)


def _saved(drawing: Any, path: Path) -> Path:
    from matplotlib import pyplot

    drawing.savefig(path, dpi=PLOT_DPI)
    pyplot.close(drawing)
    return path


def _values(rows: Sequence[Row], name: str) -> list[Any]:
    """Return the values, in the order of their first row."""
    return list(dict.fromkeys(row["point"][name] for row in rows))
