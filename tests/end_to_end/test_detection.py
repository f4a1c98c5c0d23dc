"""Whole runs with detectors."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tests.end_to_end.runs import (
    TIMEOUT_S,
    Process,
    Runner,
    kept,
    losses,
    points,
    summary,
    until,
)
from tests.unit.coco_files import write_coco

TRAIN, VAL = 16, 9  # images; every fourth has no annotation
STEPS = 2 * 12 // 3
BOXES = (
    """--task detection --loader torchvision --image-size 64 --longer-side 96 --batch-size 3
    --workers 1 --precision fp32""",
)
SMALL = (
    *BOXES,
    "--arch fcos_tiny --ceilings false --log-every 1 --epochs 2 --lr 0.001",
)
LITE = (
    """--task detection --loader torchvision --arch ssdlite320_mobilenet_v3_large
    --image-size 96 --batch-size 4 --workers 1""",
)
MANY = (
    *LITE,
    "--precision fp32 --loader torchvision --ceilings false --epochs 1 --lr 0.01",
)
"""A detector that finds something in every image, however little it has learnt."""


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(
        tmp_path_factory.mktemp("shapes") / "data",
        splits={"train2017": TRAIN, "val2017": VAL},
    )


def test_pycocotools_scores_the_results_file_alike(train: Runner, shapes: Path) -> None:
    train(*MANY, "--data", shapes, "--keep-empty true --output run").done()
    assert summary(train.cwd / "run")["samples"] == TRAIN
    results = train.cwd / "run" / "detections.json"
    assert {"image_id", "category_id", "bbox", "score"} <= set(
        json.loads(results.read_text())[0]
    )
    truth = COCO(str(shapes / "annotations" / "instances_val2017.json"))
    scored = COCOeval(truth, truth.loadRes(str(results)), "bbox")
    scored.evaluate()
    scored.accumulate()
    scored.summarize()
    figures = summary(train.cwd / "run")["validation"]
    assert [figures["ap"], figures["ap50"]] == pytest.approx(scored.stats[:2])


def start(train: Runner, shapes: Path, output: str, *flags: object) -> Process:
    return train(*SMALL, "--data", shapes, "--output", output, "--resume auto", *flags)


def test_killed_and_resumed(train: Runner, shapes: Path) -> None:
    """Early in the second epoch, when the first one's boxes may still be scored: from the checkpoint the same
    samples come; losses, validations and weights are those of a run in one go.
    """
    sizes = ("--augment multiscale --short-sides 48 64 --save-every-steps 1",)
    whole, killed = (train.cwd / name for name in ("whole", "killed"))
    start(train, shapes, "whole", *sizes).done()
    process = start(train, shapes, "killed", "--read-delay-ms 50", *sizes)
    until(
        lambda: len(points(killed, "train")) > STEPS // 2,
        TIMEOUT_S,
        "a step of the second epoch",
    )
    process.send(signal.SIGKILL)
    process.wait()
    start(train, shapes, "killed", *sizes).done()
    assert losses(killed) == losses(whole) and len(losses(whole)) == STEPS
    assert points(killed, "val") == points(whole, "val")
    for name in ("last.pt", "best.pt"):
        first, second = (kept(run / name)["model"] for run in (whole, killed))
        assert all(torch.equal(value, second[key]) for key, value in first.items())
