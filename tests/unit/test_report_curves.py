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


def ends(chart: np.ndarray, colour: str) -> tuple[int, int]:
    """The heights at which a curve of that colour begins and ends, below the legend."""
    right = (chart[60:] == ImageColor.getrgb(colour)).all(axis=2)
    columns = np.flatnonzero(right.any(axis=0))
    first, last = (np.flatnonzero(right[:, at]).mean() for at in columns[[0, -1]])
    return round(first) + 60, round(last) + 60


def test_curves_lie_where_their_values_are(tmp_path: Path) -> None:
    losses = [3.0, 2.0, "nan", 1.0]
    train = [
        {"kind": "train", "step": 10 * at, "losses": [loss, loss]}
        for at, loss in enumerate(losses, 1)
    ]
    val = [
        {"kind": "val", "step": 10 * at, "loss": 2.0, "top1": top1}
        for at, top1 in ((1, 0.0), (4, 1.0))
    ]
    windows = [{"kind": "window", "step": 10 * at, "rate": 500.0} for at in (1, 4)]
    picture = drawn(tmp_path, *train, *val, *windows)
    assert picture.shape == (440, 1500, 3)
    top, bottom = curves.TOP // 2, curves.BOTTOM // 2
    loss, top1, rate = picture[:, :500], picture[:, 500:1000], picture[:, 1000:]
    for chart, colour, expected in (
        (loss, BLUE, (top, bottom)),
        (loss, ORANGE, ((top + bottom) // 2,) * 2),
        (top1, ORANGE, (bottom, top)),
        (rate, BLUE, (top, top)),
    ):
        assert ends(chart, colour) == pytest.approx(expected, abs=3), colour


def test_no_validation_and_no_training(tmp_path: Path) -> None:
    only = {"kind": "train", "step": 1, "losses": [1.0]}
    assert drawn(tmp_path, only).shape == (440, 1500, 3)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "val", "step": 0, "loss": 1.0}')
    assert curves.png(tmp_path, SUMMARY, TOP1) is None
    assert curves.png(tmp_path, {}, TOP1) is None
