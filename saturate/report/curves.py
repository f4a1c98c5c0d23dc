"""results.png: loss, figure and rate of a run over its epochs, drawn from its metrics.jsonl.

Must not know: how a figure is measured, TensorBoard.
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from saturate.contracts import Figure
from saturate.report.advice import look_up

RESULTS = "results.png"
FEW = 100
"""Points of a curve, up to which each is a dot."""
Curves = dict[str, list[tuple[float, float]]]
"""Name -> (epoch, value)."""


def png(folder: Path, summary: Mapping[str, Any], figure: Figure) -> bytes | None:
    """Draw the run in `folder`: three charts side by side as a PNG file; None where it has trained nothing.

    `figure` is the one that picks best.pt.
    """
    charts = read(folder, summary, figure)
    if not charts:
        return None
    # once on a machine it says that it looks for fonts
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # here: a run that has ended can wait for it, one that begins cannot
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    sheet = Sheet(figsize=(15, 4.4), dpi=100)
    # by hand: a layout that matplotlib computes takes twice the time of all else
    sheet.subplots_adjust(left=0.05, right=0.99, bottom=0.13, top=0.96, wspace=0.22)
    for axes, (title, curves) in zip(
        sheet.subplots(1, len(charts)), charts.items(), strict=True
    ):
        for name, points in curves.items():
            mark = "o" if len(points) <= FEW else ""
            axes.plot(*zip(*points, strict=True), marker=mark, label=name)
        axes.set(xlabel="epoch", ylabel=title)
        axes.set_xlim(0)
        axes.locator_params("x", integer=True)
        if "run" in curves:
            axes.set_ylim(0, 1.05 * axes.dataLim.y1)
        axes.grid(alpha=0.3)
        if curves:
            axes.legend()
    buffer = io.BytesIO()
    FigureCanvasAgg(sheet).print_png(buffer)
    return buffer.getvalue()


def read(folder: Path, summary: Mapping[str, Any], figure: Figure) -> dict[str, Curves]:
    """Return the curves of each chart that have points, by its title; {} of a run that has trained nothing."""
    with (folder / "metrics.jsonl").open(encoding="utf-8") as file:
        points = [json.loads(line) for line in file]
    steps, epochs = _epochs(points, summary.get("epoch_samples", 0))
    loss: Curves = {"training": [], "validation": []}
    figures: Curves = {"validation": [], "weights' average": []}
    rates: Curves = {"run": [], "compute ceiling": []}

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
        elif point["kind"] == "window":
            add(rates["run"], point["rate"])
        elif point["kind"] == "val":
            add(loss["validation"], point.get("loss"))
            for prefix, curve in zip(("", "ema_"), figures.values(), strict=True):
                value = point.get(prefix + figure.name)
                add(curve, value, 100 if figure.unit == "%" else 1)
    if not loss["training"]:
        return {}
    if height := look_up(summary, "ceiling.compute.rate"):
        rates["compute ceiling"] = [(0, height), (loss["training"][-1][0], height)]
    charts = {
        "loss": loss,
        f"{figure.title} {figure.unit}": figures,
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
