"""What a run says of detectors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts import Batch, RateWindow
from report import pictures
from report.console import figures, rows
from tasks.detection import KIND
from tests.unit.test_report_reporter import Told

RESULT = {
    "ap": 0.375,
    "ap50": 0.5,
    "ap75": 0.25,
    "ap_small": 0.125,
    "ar100": 0.5,
    "mask_ap": 0.25,
    "mask_ar_small": 0.1,
    "samples": 5000,
    "detections": 12_345,
}


def grid(value: int) -> Any:
    return np.full((2, 4, 6, 3), value, np.uint8)


def extras(value: int) -> dict[str, Any]:
    return {
        "files": {"detections.json": b"[%d]\n" % value},
        "scalars": {"val_ap/person": value / 10},
        "images": {"val/predictions": grid(value)},
    }


def test_the_line_has_what_one_looks_for() -> None:
    assert (
        figures(RESULT, KIND.figures)
        == "ap 37.50%  ap50 50.00%  ap75 25.00%  mask_ap 25.00%  samples 5,000  detections 12,345"
    )
    assert figures({"ap": math.nan, "samples": 3}, KIND.figures) == "ap -  samples 3"


def test_extras_are_written_once_and_are_no_figures(tmp_path: Path) -> None:
    """TensorBoard and the log have them once, also where a resumed run repeats a validation."""
    result = {
        **RESULT,
        "failed": [],
        "seconds": {"pass": 2.0, "score": 1.5, "waited": 0.5},
    }
    for resumed_at, steps in ((None, (10, 20)), (20, (20,))):
        told = Told(tmp_path, resumed_at, KIND)
        for step in steps:
            more = extras(step // 10)
            told.reporter.validated(
                {**result, "extras": more}, files=more["files"], step=step, epoch=step
            )
        told.reporter.close()
    assert (tmp_path / "detections.json").read_bytes() == b"[2]\n", "the last one"
    line = {"kind": "val", **RESULT, "failed": []}
    assert told.points() == [{**line, "step": step, "epoch": step} for step in (10, 20)]
    board = EventAccumulator(
        str(tmp_path), size_guidance={"images": 0, "scalars": 0}
    ).Reload()
    scalars = [
        (event.step, round(event.value, 3)) for event in board.Scalars("val_ap/person")
    ]
    assert scalars == [(10, 0.1), (20, 0.2)]
    assert [event.step for event in board.Images("val/predictions")] == [10, 20]
    assert {"val/ap", "val/ap_small", "val/mask_ar_small"} <= {*board.Tags()["scalars"]}


def test_the_summary_has_instances(tmp_path: Path) -> None:
    told = Told(tmp_path, None, KIND, instances_per_image=7.25, padding=0.0625)
    told.meter.windows.append(
        RateWindow(samples=40, own_samples=40, seconds=1.0, epoch=0)
    )
    told.meter.add(40)
    summary = told.finish()
    told.reporter.close()
    assert summary["detection"] == {
        "instances_per_image": 7.25,
        "padding": 0.0625,
        "instances_per_s": 290.0,
    }
    assert not {"padding", "instances_per_image"} & summary.keys()
    lines = dict(rows(summary, KIND))
    assert (
        lines["instances"]
        == "290 box/s   (7.2 an image, 6.2% of the pixels show no image)"
    )
    (tmp_path / "other").mkdir()
    other = Told(tmp_path / "other", None, KIND)
    assert "detection" not in other.finish()
    other.reporter.close()


def batch_of(images: torch.Tensor, **host: Any) -> Batch:
    count = len(images)
    sizes, ids = torch.ones(count, 2, dtype=torch.int64), np.arange(count)
    return Batch(
        images=images,
        sizes=sizes,
        targets={},
        valid=torch.ones(count, dtype=torch.bool),
        ids=ids,
        host=host,
    )


def shown(batch: Batch) -> Any:
    return pictures.augmented(batch, torch.tensor([0.5] * 3), torch.tensor([0.25] * 3))


def test_boxes_are_outlined_where_they_are() -> None:
    boxes = np.array([[2, 3, 10, 8], [0, 0, 20, 12], [-5, -5, 100, 100]], np.float32)
    batch = batch_of(
        torch.zeros(3, 3, 12, 20),
        boxes=boxes,
        labels=np.array([1, 2, 1]),
        offsets=np.array([0, 2, 2, 3]),
    )
    first, second, third = (shown(batch) != 128).any(axis=3)
    inner = np.zeros((12, 20), bool)
    inner[[3, 7], 2:10] = inner[3:8, [2, 9]] = True
    border = np.zeros((12, 20), bool)
    border[[0, -1]] = border[:, [0, -1]] = True
    np.testing.assert_array_equal(first, inner | border)
    assert not second.any()
    np.testing.assert_array_equal(third, border)
