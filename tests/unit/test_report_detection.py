"""What a run says of detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import RateWindow
from saturate.tasks.detection import KIND
from tests.unit.test_report_reporter import Told
from tests.unit.test_report_tensorboard import read

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


def test_extras_are_written_once_and_are_no_figures(tmp_path: Path) -> None:
    result = {
        **RESULT,
        "failed": [],
        "seconds": {"loader": 1.0, "pass": 2.0, "score": 1.5, "waited": 0.5},
    }
    told = Told(tmp_path, None, KIND)
    for step in (10, 20):
        more = extras(step // 10)
        told.reporter.validated(
            {**result, "extras": more},
            files=more["files"],
            images=more["images"],
            step=step,
            epoch=step,
        )
    told.reporter.close()
    assert (tmp_path / "detections.json").read_bytes() == b"[2]\n", "the last one"
    line = {"kind": "val", **RESULT, "failed": []}
    begun, *validated = told.points()
    assert begun["kind"] == "attempt"
    assert validated == [{**line, "step": step, "epoch": step} for step in (10, 20)]
    board = read(tmp_path)
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
