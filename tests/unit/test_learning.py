"""What the end of a run says of the learning: a table of summaries by hand, and the line of each."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from saturate.dataset.open import fewest
from saturate.report.facts import FACTS
from saturate.tasks.superres import KIND as SUPERRES
from tests.unit.coco_files import document, opened, write_coco

ROWS = {fact.key: fact for fact in FACTS if fact.key.startswith("learning.")}


def validations(*losses: float | None, name: str = "loss") -> dict[str, Any]:
    told = [
        (at, {} if loss is None else {name: loss}) for at, loss in enumerate(losses)
    ]
    return {"now": {"validations": told}}


def psnr(network: float, bicubic: float, **more: Any) -> dict[str, Any]:
    return {"validation": {"psnr": network, "psnr_bicubic": bicubic}, **more}


def least(samples: int) -> dict[str, Any]:
    return {"learning": {"fewest": {"class": "cat", "samples": samples}}}


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("overfits", validations(1.0, 0.5, 0.4), ""),
        ("overfits", validations(0.4, 0.5, 0.415), ""),  # they differ by as much
        (
            "overfits",
            validations(1.0, 0.5, 0.7, 0.8),
            "rises since epoch 2, 0.5 to 0.8",
        ),
        (
            "overfits",
            validations(0.5, None, math.nan, 0.8),
            "since epoch 1, 0.5 to 0.8",
        ),
        ("overfits", validations(1.0, 2.0, name="ema_loss"), "since epoch 1, 1 to 2"),
        # a run that went on with --ema: 1.71 is the network's loss, and both fall
        (
            "overfits",
            {
                "now": {
                    "validations": [
                        (0, {"loss": 1.71}),
                        (0, {"loss": 1.7, "ema_loss": 6.85}),
                        (1, {"loss": 1.6, "ema_loss": 2.48}),
                    ]
                }
            },
            "",
        ),
        ("overfits", {"now": {"validations": [(None, {"loss": 1.0})]}}, ""),
        ("fewest", {}, ""),
        ("fewest", least(20), ""),
        ("fewest", least(7), "7 samples of class 'cat' to train on"),
        ("fewest", least(1), "1 sample of class 'cat'"),
        ("bicubic", {"validation": {"top1": 0.5}}, ""),
        ("bicubic", psnr(30.0, 29.0), ""),
        ("bicubic", psnr(28.0, 29.0, best={"value": 30.0}), ""),
        ("bicubic", psnr(math.nan, math.nan), ""),
        (
            "bicubic",
            psnr(28.5, 29.25),
            "28.50 dB, and bicubic interpolation alone has 29.25",
        ),
        (
            "one_answer",
            {"learning": {"one_answer": "bee"}},
            "took all samples for 'bee'",
        ),
    ],
)
def test_lines(key: str, values: dict[str, Any], said: str) -> None:
    fact = ROWS[f"learning.{key}"]
    assert fact.line is not None
    line = fact.line.text(fact.value(values), values)
    assert said in line and bool(line) == bool(said)


def test_figures_of_bicubic_have_the_names_that_are_read() -> None:
    assert {"psnr", "psnr_bicubic"} <= {figure.name for figure in SUPERRES.figures}
    assert SUPERRES.figures[0].name == "psnr"


def test_the_class_with_the_fewest_samples() -> None:
    labels = np.array([0, 0, 0, 2, 2])
    of_one = SimpleNamespace(classes=("ant", "bee", "cat"), label=labels, several=None)
    columns: Any = of_one
    assert fewest(columns) == {"class": "cat", "samples": 2}, "bee has a warning"
    # three images have both, two have cat alone
    columns.several = np.array([[1, 1, 1], [0, 0, 0], [0, 0, 1]], bool)
    assert fewest(columns) == {"class": "ant", "samples": 3}
    columns = SimpleNamespace(classes=())
    assert fewest(columns) == {}


def test_of_boxes_the_class_with_the_fewest_of_them(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "data")
    known = document(root, "train2017")
    names = {one["id"]: one["name"] for one in known["categories"]}
    boxes = Counter(
        names[one["category_id"]]
        for one in known["annotations"]
        if not one["iscrowd"] and min(one["bbox"][2:]) > 0
    )
    found = fewest(opened(root))
    assert found["samples"] == min(boxes.values()) == boxes[found["class"]]
