"""results.png: loss, figure and rate of a run over its epochs, drawn from its metrics.jsonl.

Must not know: how a figure is measured, TensorBoard.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from contracts import Figure
from report.advice import look_up
from report.console import number

RESULTS = "results.png"
WIDTH, HEIGHT = 1000, 880
"""Pixels of a chart while it is drawn; half as many in the file, so that lines are smooth."""
LEFT, RIGHT, TOP, BOTTOM = 130, 970, 150, 770
"""Edges of a chart's axes."""
FONT = ImageFont.load_default(40)
COLOURS = {
    "training": "#08519c",
    "validation": "#e6750f",
    "weights' average": "#08519c",
    "run": "#08519c",
    "compute ceiling": "#767676",
}
FEW = 100
"""Points of a curve, up to which each is a dot."""
Curves = dict[str, list[tuple[float, float]]]
"""Name, as in COLOURS -> (epoch, value)."""


def png(folder: Path, summary: Mapping[str, Any], figure: Figure) -> bytes | None:
    """Draw the run in `folder`: three charts side by side as a PNG file; None where it has trained nothing.

    `figure` is the one that picks best.pt.
    """
    epoch_steps = summary.get("epoch_steps")  # an evaluation has none
    loss: Curves = {"training": [], "validation": []}
    figures: Curves = {"validation": [], "weights' average": []}
    rates: Curves = {"run": [], "compute ceiling": []}

    def add(points: list[tuple[float, float]], value: Any, scale: int = 1) -> None:
        # what is not finite is text there
        if value is not None and math.isfinite(float(value)):
            points.append((point["step"] / epoch_steps, value * scale))

    with (folder / "metrics.jsonl").open(encoding="utf-8") as file:
        for point in map(json.loads, file if epoch_steps else ()):
            if point["kind"] == "train":
                add(loss["training"], fmean(map(float, point["losses"])))
            elif point["kind"] == "window":
                add(rates["run"], point["rate"])
            elif point["kind"] == "val":
                add(loss["validation"], point.get("loss"))
                for prefix, points in zip(("", "ema_"), figures.values(), strict=True):
                    value = point.get(prefix + figure.name)
                    add(points, value, 100 if figure.unit == "%" else 1)
    if not loss["training"]:
        return None
    end = loss["training"][-1][0]
    if height := look_up(summary, "ceiling.compute.rate"):
        rates["compute ceiling"] = [(0, height), (end, height)]
    charts = {
        "loss": loss,
        f"{figure.title} {figure.unit}": figures,
        f"rate {look_up(summary, 'rate.unit')}": rates,
    }
    sheet = Image.new("RGB", (len(charts) * WIDTH, HEIGHT), "white")
    for column, (title, curves) in enumerate(charts.items()):
        chart = _chart(title, curves, end=end)
        sheet.paste(chart, (column * WIDTH, 0))
    buffer = io.BytesIO()
    sheet.reduce(2).save(buffer, "PNG")
    return buffer.getvalue()


def _chart(title: str, curves: Curves, *, end: float) -> Image.Image:
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(picture)
    text = partial(draw.text, fill="black", font=FONT)
    values = [value for points in curves.values() for _, value in points] or [1.0]
    rows = _ticks(0 if "run" in curves else min(values), max(values))

    def place(epoch: float, value: float) -> tuple[float, float]:
        up = (value - rows[0]) / (rows[-1] - rows[0])
        return LEFT + (RIGHT - LEFT) * epoch / end, BOTTOM - (BOTTOM - TOP) * up

    text((LEFT, 10), title)
    text((RIGHT, HEIGHT - 10), "epoch", anchor="rd")
    for tick in rows:
        draw.line([place(0, tick), place(end, tick)], "#dddddd", 2)
        text(place(-0.01 * end, tick), number(tick), anchor="rm")
    for tick in _ticks(0, end):
        if tick <= end:
            text((place(tick, 0)[0], BOTTOM + 14), number(tick), anchor="ma")
    x = LEFT
    for name, points in curves.items():
        if points:
            dots = [place(*point) for point in points]
            draw.line(dots, COLOURS[name], 5)
            for at in dots if len(dots) <= FEW else ():
                draw.circle(at, 7, COLOURS[name])
            text((x, 70), name, fill=COLOURS[name])
            x += 40 + int(FONT.getlength(name))
    return picture


def _ticks(low: float, high: float) -> list[float]:
    """Return up to twelve round numbers, the first not above `low`, the last not below `high`."""
    high = high if high > low else low + 1
    size = 10 ** math.floor(math.log10(high - low))
    step = size / next(n for n in (5, 2, 1) if high - low <= 10 * size / n)
    return [n * step for n in range(math.floor(low / step), math.ceil(high / step) + 1)]
