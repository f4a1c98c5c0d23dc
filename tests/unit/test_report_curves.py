"""results.png: what is drawn of a run's metrics.jsonl."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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
    lines = {"losses": losses or [1.0], "lrs": [1.0, 0.5]}
    return {"kind": "train", "step": step, **place, **lines}


def test_curves_are_of_epochs_and_what_is_not_finite_is_no_point(
    tmp_path: Path,
) -> None:
    points = [
        train(10 * at, at - 1, 40, loss, loss)
        for at, loss in enumerate(["nan", 3.0, 2.0], 1)
    ]
    val = {"kind": "val", "step": 20, "epoch": 1, "loss": 2.5}
    val |= {"top1": 0.5, "ema_top1": 0.75}
    write(tmp_path, *points, val, {"kind": "window", "step": 5, "rate": 80.0})
    known = {
        "ceiling": {"compute": {"rate": 90.0}},
        "best": {"epoch": 2, "value": 0.75},
    }
    assert curves.read(tmp_path, SUMMARY | known, TOP1) == {
        "loss": {"training": [(2, 3.0), (3, 2.0)], "validation": [(2, 2.5)]},
        "top-1 %": {
            "validation": [(2, 50.0)],
            "weights' average": [(2, 75.0)],
            "best": [(2, 75.0)],
        },
        "learning rate": {"training": [(1, 0.5), (2, 0.5), (3, 0.5)]},
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
    files, charts = curves.files(tmp_path, SUMMARY, TOP1)
    assert [*files] == ["results.png", "results.svg"]
    assert Image.open(io.BytesIO(files["results.png"])).size == (1100, 700)
    assert ElementTree.fromstring(files["results.svg"]).tag.endswith("}svg")
    drawn, *parts = ElementTree.fromstring(f"<div>{charts.replace('xlink:', '')}</div>")
    # a quarter each of 11 x 7 inches, of 72 points
    assert [part.get("viewBox") for part in parts] == [
        *("0 0 396 252", "396 0 396 252", "0 252 396 252", "396 252 396 252"),
    ]
    assert parts[0].get("aria-label") == "loss: training 1"
    # the axes are in the page's ink, which may be light, on its paper
    assert "currentColor" in charts
    assert "#000000" not in charts and "#ffffff" not in charts
    assert drawn[0].get("id") == "curves" and len(drawn[0]) > 0
    write(tmp_path, {"kind": "val", "step": 0, "loss": 1.0})
    assert curves.files(tmp_path, SUMMARY, TOP1) == ({}, "")
