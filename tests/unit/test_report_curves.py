"""results.png: what is drawn of a run's metrics.jsonl."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from contracts import Figure
from report import curves

TOP1 = Figure(name="top1", title="top-1", unit="%")
SUMMARY = {"epoch_steps": 10, "rate": {"unit": "img/s"}}


def write(folder: Path, *points: dict[str, Any]) -> None:
    text = "".join(json.dumps(point) + "\n" for point in points)
    (folder / "metrics.jsonl").write_text(text)


def test_curves_are_of_epochs_and_what_is_not_finite_is_no_point(
    tmp_path: Path,
) -> None:
    train = [
        {"kind": "train", "step": 10 * at, "losses": [loss, loss]}
        for at, loss in enumerate(["nan", 3.0, 2.0], 1)
    ]
    val = {"kind": "val", "step": 20, "loss": 2.5, "top1": 0.5, "ema_top1": 0.75}
    write(tmp_path, *train, val, {"kind": "window", "step": 5, "rate": 80.0})
    ceiling = {"ceiling": {"compute": {"rate": 90.0}}}
    assert curves.read(tmp_path, SUMMARY | ceiling, TOP1) == {
        "loss": {"training": [(2, 3.0), (3, 2.0)], "validation": [(2, 2.5)]},
        "top-1 %": {"validation": [(2, 50.0)], "weights' average": [(2, 75.0)]},
        "rate img/s": {"run": [(0.5, 80.0)], "compute ceiling": [(0, 90), (3, 90)]},
    }


def test_a_picture_of_a_run_that_has_trained(tmp_path: Path) -> None:
    write(tmp_path, {"kind": "train", "step": 1, "losses": [1.0]})
    png = curves.png(tmp_path, SUMMARY, TOP1)
    assert png and Image.open(io.BytesIO(png)).size == (1500, 440)
    write(tmp_path, {"kind": "val", "step": 0, "loss": 1.0})
    assert curves.png(tmp_path, SUMMARY, TOP1) is None


@pytest.mark.parametrize("last", [10, 20, 25, 1000])
def test_ticks_are_whole_epochs(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Any]()
    monkeypatch.setattr(
        "matplotlib.backends.backend_agg.FigureCanvasAgg.print_png",
        lambda canvas, _: drawn.extend(canvas.figure.axes),
    )
    points = [{"kind": "train", "step": at, "losses": [1.0]} for at in (5, last)]
    write(tmp_path, *points)
    curves.png(tmp_path, SUMMARY, TOP1)
    ticks = [tick for axes in drawn for tick in axes.get_xticks()]
    assert len(drawn) == 3 and all(tick == round(tick) for tick in ticks)
