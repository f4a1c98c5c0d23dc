"""results.png and results.svg: loss, figure, learning rate and rate of a run over its epochs, from its metrics.jsonl.

Must not know: how a figure is measured, TensorBoard.
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from saturate.contracts import Figure
from saturate.report.advice import look_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Sheet

RESULTS = "results"
"""Name of the files, without their endings."""
WIDTH, HEIGHT = 5.5, 3.5
"""Inches of a chart."""
UNSAID = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""Metadata that an SVG file leaves out: the day, and addresses of standards."""
FEW = 100
"""Points of a curve, up to which each is a dot."""
BEST = "best"
"""Curve of one point: the validation that best.pt is of."""
GREY = "#7f7f7f"
COLOURS = {
    **dict.fromkeys(("training", "run"), "#1f77b4"),
    "validation": "#d95f02",
    "weights' average": "#1b9e77",
    "compute ceiling": GREY,
    BEST: "#000000",
}
"""Curve -> its colour, which is that of the split in every chart."""
Curves = dict[str, list[tuple[float, float]]]
"""Name -> (epoch, value)."""


def files(
    folder: Path, summary: Mapping[str, Any], figure: Figure
) -> tuple[dict[str, bytes], str]:
    """Return the files of the run in `folder` by name, and the charts as a part of a page; nothing of a run that has
    trained nothing.

    `figure` is the one that picks best.pt.
    """
    charts = read(folder, summary, figure)
    if not charts:
        return {}, ""
    sheet = drawn(charts)
    import matplotlib

    made = {}
    # letters as letters: small, and a browser's own; the same file for the same run
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": RESULTS}):
        for form, about in (("png", None), ("svg", UNSAID)):
            buffer = io.BytesIO()
            sheet.savefig(buffer, format=form, metadata=about)
            made[f"{RESULTS}.{form}"] = buffer.getvalue()
    return made, _inline(made[f"{RESULTS}.svg"].decode(), charts)


def drawn(charts: Mapping[str, Curves]) -> Sheet:
    """Draw four charts, two a row."""
    # once on a machine it says that it looks for fonts
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # here: a run that has ended can wait for it, one that begins cannot
    from matplotlib.figure import Figure as Sheet

    sheet = Sheet(figsize=(2 * WIDTH, 2 * HEIGHT), dpi=100)
    # by hand: a layout that matplotlib computes takes twice the time of all else
    sheet.subplots_adjust(0.08, 0.07, 0.99, 0.96, wspace=0.18, hspace=0.26)
    best = [at for curves in charts.values() for at, _ in curves.get(BEST, ())]
    for place, (title, curves) in enumerate(charts.items()):
        axes = sheet.add_subplot(2, 2, place + 1)
        axes.set_facecolor("none")
        for name, points in curves.items():
            style = "*" if name == BEST else "o-" if len(points) <= FEW else "-"
            axes.plot(
                *zip(*points, strict=True),
                style,
                color=COLOURS[name],
                label=name,
                markersize=14 if name == BEST else 4,
            )
        axes.set(xlabel="epoch", ylabel=title)
        axes.set_xlim(0)
        axes.locator_params("x", integer=True)
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))
        if "run" in curves:
            axes.set_ylim(0, 1.05 * axes.dataLim.y1)
        for epoch in best:
            axes.axvline(epoch, color=GREY, linestyle=":")
        axes.grid(alpha=0.3)
        if curves:
            axes.legend(frameon=False)
    return sheet


def _inline(svg: str, charts: Mapping[str, Curves]) -> str:
    """Return each chart of results.svg as a picture of its own, in the page's ink, with what it shows in words."""
    inside = svg[svg.index(">", svg.index("<svg")) + 1 :].replace("</svg>", "")
    inside = inside.replace("#000000", "currentColor").replace("#ffffff", "none")
    parts = [f'<svg class="hidden"><g id="curves">{inside}</g></svg>']
    for place, (title, curves) in enumerate(charts.items()):
        ends = ", ".join(f"{name} {curve[-1][1]:.4g}" for name, curve in curves.items())
        # points, of which an inch has 72
        width, height = 72 * WIDTH, 72 * HEIGHT
        left, top = place % 2 * width, place // 2 * height
        parts.append(
            f'<svg role="img" aria-label="{escape(title)}: {escape(ends)}" '
            f'viewBox="{left:g} {top:g} {width:g} {height:g}"><use href="#curves"/></svg>'
        )
    return "".join(parts)


def read(folder: Path, summary: Mapping[str, Any], figure: Figure) -> dict[str, Curves]:
    """Return the curves of each chart that have points, by its title; {} of a run that has trained nothing."""
    with (folder / "metrics.jsonl").open(encoding="utf-8") as file:
        points = [json.loads(line) for line in file]
    steps, epochs = _epochs(points, summary.get("epoch_samples", 0))
    loss: Curves = {"training": [], "validation": []}
    figures: Curves = {"validation": [], "weights' average": [], BEST: []}
    scale = 100 if figure.unit == "%" else 1
    learning_rates: Curves = {"training": []}
    rates: Curves = {"run": [], "compute ceiling": []}
    best = summary.get("best") or {}

    def add(
        to: list[tuple[float, float]], value: float | str | None, scale: int = 1
    ) -> None:
        # what is not finite is text there
        if value is not None and math.isfinite(number := float(value)):
            at = float(np.interp(point["step"], steps, epochs))
            to.append((at, number * scale))

    for point in points:
        if point["kind"] == "train":
            add(loss["training"], fmean(map(float, point["losses"])))
            add(learning_rates["training"], point.get("lrs", [None])[-1])
        elif point["kind"] == "window":
            add(rates["run"], point["rate"])
        elif point["kind"] == "val":
            add(loss["validation"], point.get("loss"))
            add(figures["validation"], point.get(figure.name), scale)
            add(figures["weights' average"], point.get(f"ema_{figure.name}"), scale)
            if best.get("epoch") and point.get("epoch") == best["epoch"] - 1:
                add(figures[BEST], best["value"], scale)
    if not loss["training"]:
        return {}
    if height := look_up(summary, "ceiling.compute.rate"):
        rates["compute ceiling"] = [(0, height), (loss["training"][-1][0], height)]
    charts = {
        "loss": loss,
        f"{figure.title} {figure.unit}": figures,
        "learning rate": learning_rates,
        f"rate {look_up(summary, 'rate.unit')}": rates,
    }
    return {
        title: {name: points for name, points in curves.items() if points}
        for title, curves in charts.items()
    }


def _epochs(
    points: Sequence[Mapping[str, Any]], epoch_samples: int
) -> tuple[list[int], list[float]]:
    """Return steps, ascending, and the epochs that were over with each; between them it is linear.

    A step of a run that was resumed may have another batch size than those before: samples are counted.
    `epoch_samples`: how many the last epoch has once it is over.
    """
    trained = [point for point in points if point["kind"] == "train"]
    ends = {point["epoch"]: point["consumed"] for point in trained}
    if trained:
        last = trained[-1]["epoch"]
        ends[last] = max(ends[last], epoch_samples)
    epochs = [
        point["epoch"] + point["consumed"] / ends[point["epoch"]] for point in trained
    ]
    return [0, *(point["step"] for point in trained)], [0.0, *epochs]
