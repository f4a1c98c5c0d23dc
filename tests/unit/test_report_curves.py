"""results.png: what is drawn of a run's metrics.jsonl."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saturate.contracts import Figure
from saturate.report import curves

TOP1 = Figure(name="top1", title="top-1", unit="%")
SUMMARY = {"epoch_samples": 40, "rate": {"unit": "img/s"}}


def write(folder: Path, *points: dict[str, Any]) -> None:
    text = "".join(json.dumps(point) + "\n" for point in points)
    (folder / "metrics.jsonl").write_text(text)


def train(step: int, epoch: int, consumed: int, *losses: Any) -> dict[str, Any]:
    place = {"epoch": epoch, "consumed": consumed}
    return {"kind": "train", "step": step, **place, "losses": losses or [1.0]}


def test_curves_are_of_epochs_and_what_is_not_finite_is_no_point(
    tmp_path: Path,
) -> None:
    points = [
        train(10 * at, at - 1, 40, loss, loss)
        for at, loss in enumerate(["nan", 3.0, 2.0], 1)
    ]
    val = {"kind": "val", "step": 20, "loss": 2.5, "top1": 0.5, "ema_top1": 0.75}
    write(tmp_path, *points, val, {"kind": "window", "step": 5, "rate": 80.0})
    ceiling = {"ceiling": {"compute": {"rate": 90.0}}}
    assert curves.read(tmp_path, SUMMARY | ceiling, TOP1) == {
        "loss": {"training": [(2, 3.0), (3, 2.0)], "validation": [(2, 2.5)]},
        "top-1 %": {"validation": [(2, 50.0)], "weights' average": [(2, 75.0)]},
        "rate img/s": {"run": [(0.5, 80.0)], "compute ceiling": [(0, 90), (3, 90)]},
    }


def test_epochs_are_those_of_samples_where_a_resume_has_changed_the_batch(
    tmp_path: Path,
) -> None:
    """Batches of 4, then of 8; the third epoch has not come to its end."""
    points = [train(5, 0, 20), train(10, 0, 40), train(15, 1, 40), train(18, 2, 24)]
    vals = [{"kind": "val", "step": at, "loss": 2.0} for at in (10, 15)]
    write(tmp_path, *points, *vals, {"kind": "window", "step": 12, "rate": 9.0})
    found = curves.read(tmp_path, SUMMARY, TOP1)
    assert [at for at, _ in found["loss"]["training"]] == [0.5, 1, 2, 2.6]
    assert [at for at, _ in found["loss"]["validation"]] == [1, 2]
    ((at, _),) = found["rate img/s"]["run"]
    assert at == pytest.approx(1.4)


def test_a_picture_of_a_run_that_has_trained(tmp_path: Path) -> None:
    write(tmp_path, train(1, 0, 4))
    png = curves.png(tmp_path, SUMMARY, TOP1)
    assert png and Image.open(io.BytesIO(png)).size == (1500, 440)
    write(tmp_path, {"kind": "val", "step": 0, "loss": 1.0})
    assert curves.png(tmp_path, SUMMARY, TOP1) is None


@pytest.mark.parametrize("last", [10, 20, 25, 1000])
def test_ticks_are_whole_epochs_and_axes_have_titles(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[Any]()
    monkeypatch.setattr(
        "matplotlib.backends.backend_agg.FigureCanvasAgg.print_png",
        lambda canvas, _: drawn.extend(canvas.figure.axes),
    )
    points = [train(at, at // 10, at % 10 * 4) for at in (5, last)]
    write(tmp_path, *points)
    curves.png(tmp_path, SUMMARY, TOP1)
    ticks = [tick for axes in drawn for tick in axes.get_xticks()]
    assert len(drawn) == 3 and all(tick == round(tick) for tick in ticks)
    titles = [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn]
    assert titles == [("epoch", of) for of in ("loss", "top-1 %", "rate img/s")]
