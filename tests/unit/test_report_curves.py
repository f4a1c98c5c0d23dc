"""results.png: curves lie where their values are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor

from contracts import Figure
from report import curves

TOP1 = Figure(name="top1", title="top-1", unit="%")
BLUE, ORANGE = curves.COLOURS["run"], curves.COLOURS["validation"]
SUMMARY = {"epoch_steps": 10, "rate": {"unit": "img/s"}}


def drawn(folder: Path, *points: dict[str, Any]) -> np.ndarray:
    text = "".join(json.dumps(point) + "\n" for point in points)
    (folder / "metrics.jsonl").write_text(text)
    png = curves.png(folder, SUMMARY, TOP1)
    assert png
    return np.asarray(Image.open(io.BytesIO(png)))


def ends(chart: np.ndarray, colour: str) -> list[float]:
    """Where a curve of that colour begins, and the heights of its ends, below the legend."""
    right = (chart[60:] == ImageColor.getrgb(colour)).all(axis=2)
    columns = np.flatnonzero(right.any(axis=0))
    heights = [60 + np.flatnonzero(right[:, at]).mean() for at in columns[[0, -1]]]
    return [columns[0], *heights]


def test_curves_lie_where_their_values_are(tmp_path: Path) -> None:
    train = [
        {"kind": "train", "step": 10 * at, "losses": [loss, loss]}
        for at, loss in enumerate(["nan", 3.0, 2.0, 1.0], 1)
    ]
    val = [
        {"kind": "val", "step": step, "loss": 2.0, "top1": top1}
        for step, top1 in ((20, 0.0), (40, 1.0))
    ]
    picture = drawn(tmp_path, *train, *val)
    top, bottom = curves.TOP / 2, curves.BOTTOM / 2
    quarter = (curves.RIGHT - curves.LEFT) / 8
    left = curves.LEFT / 2
    middle = (top + bottom) / 2
    loss, top1 = picture[:, :500], picture[:, 500:1000]
    for chart, colour, expected in (
        (loss, BLUE, [left + 2 * quarter, top, bottom]),
        (loss, ORANGE, [left + 2 * quarter, middle, middle]),
        (top1, ORANGE, [left + 2 * quarter, bottom, top]),
    ):
        assert ends(chart, colour) == pytest.approx(expected, abs=5)


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert drawn(tmp_path, {"kind": "train", "step": 1, "losses": [1.0]}).any()
    (tmp_path / "metrics.jsonl").write_text('{"kind": "val", "step": 0, "loss": 1.0}')
    assert curves.png(tmp_path, SUMMARY, TOP1) is None
    assert curves.png(tmp_path, {}, TOP1) is None
