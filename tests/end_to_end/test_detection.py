"""Training detectors, whole runs: what is said, resuming, validation over ranks, the results file, damage,
and mistakes in one line.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.end_to_end.runs import STOPPING, TIMEOUT_S, Process, Runner, losses, points, summary, until
from tests.unit.coco_files import write_coco

TRAIN, VAL = 16, 9  # images; every fourth has no annotation
STEPS = 2 * 12 // 3
BOXES = (
    "--task",
    "detection",
    "--image-size",
    64,
    "--longer-side",
    96,
    "--batch-size",
    3,
    "--workers",
    1,
    "--precision",
    "fp32",
)
SMALL = (
    *BOXES,
    "--arch",
    "fcos_tiny",
    "--loader",
    "torchvision",
    "--ceilings",
    "false",
    "--log-every",
    1,
    "--epochs",
    2,
    "--lr",
    0.001,
)
LITE = (
    "--task",
    "detection",
    "--arch",
    "ssdlite320_mobilenet_v3_large",
    "--image-size",
    96,
    "--batch-size",
    4,
    "--workers",
    1,
)
MANY = (
    *LITE,
    "--precision",
    "fp32",
    "--loader",
    "torchvision",
    "--ceilings",
    "false",
    "--epochs",
    1,
    "--lr",
    0.01,
)
"""A detector that finds something in every image, however little it has learnt."""
TWELVE = (
    "ap",
    "ap50",
    "ap75",
    "ap_small",
    "ap_medium",
    "ap_large",
    "ar1",
    "ar10",
    "ar100",
    "ar_small",
    "ar_medium",
    "ar_large",
)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training and 9 validation images in COCO's layout."""
    return write_coco(tmp_path_factory.mktemp("shapes") / "data", splits={"train2017": TRAIN, "val2017": VAL})


def test_what_is_said_of_boxes(train: Runner, shapes: Path) -> None:
    windows = (
        "--epochs",
        2,
        "--val-every",
        2,
        "--log-every",
        2,
        "--min-window-s",
        0.01,
        "--lr",
        0.001,
        "--arch",
        "fcos_tiny",
    )
    said = (
        train(
            *BOXES,
            "--data",
            shapes,
            *windows,
            "--augment",
            "multiscale",
            "--short-sides",
            48,
            64,
            "--output",
            "run",
        )
        .done()
        .out
    )
    found = summary(train.cwd / "run")
    assert (found["task"], found["arch"], found["loader"], found["rate"]["unit"]) == (
        "detection",
        "fcos_tiny",
        "torchvision",
        "img/s",
    )
    assert (found["steps"], found["samples"], found["samples_failed"]) == (STEPS, 3 * STEPS, [])
    boxes = found["detection"]
    assert boxes["instances_per_s"] == pytest.approx(found["rate"]["steady"] * boxes["instances_per_image"])
    assert 0 <= boxes["padding"] < 1
    val = found["validation"]
    assert val["samples"] == VAL and {"ap", "ap50", "ap75", "ar100"} <= set(val)
    assert all(0 <= val[name] <= 1 for name in TWELVE if name in val)
    assert {"compute", "loader"} <= set(found["ceiling"]) and found["efficiency"] > 0
    assert "AP50" in said and "instances" in said
    for point in points(train.cwd / "run", "train"):
        assert set(point["parts"]) == {"classification", "bbox_regression", "bbox_ctrness"}
        assert sum(point["parts"].values()) == pytest.approx(np.mean(point["losses"]), rel=1e-5)


def test_the_results_file_is_scored_alone(train: Runner, shapes: Path) -> None:
    """By both evaluators, as in the run that wrote it."""
    train(*MANY, "--data", shapes, "--output", "run").done()
    results = train.cwd / "run" / "detections.json"
    assert {"image_id", "category_id", "bbox", "score"} <= set(json.loads(results.read_text())[0])
    told = []
    for name in ("faster-coco-eval", "pycocotools"):
        said = (
            train("--task", "detection", "--data", shapes, "--score", results, "--evaluator", name)
            .done()
            .out.splitlines()
        )
        told.append(said[said.index("boxes:") :])  # the first reads the headers
    assert told[0] == told[1]
    ap50 = summary(train.cwd / "run")["validation"]["ap50"]
    assert any(line.split() == ["ap50", f"{ap50:.2%}"] for line in told[0]), (ap50, told[0])


def start(train: Runner, shapes: Path, output: str, *flags: object) -> Process:
    return train(*SMALL, "--data", shapes, "--output", output, "--resume", "auto", *flags)


def test_stopped_and_resumed(train: Runner, shapes: Path) -> None:
    """SIGTERM leaves a checkpoint; from there the same samples come: losses, validations and weights are
    those of a run in one go.

    So they are behind a SIGKILL early in the second epoch, when the first one's boxes may still be scored.
    """
    sizes = ("--augment", "multiscale", "--short-sides", 48, 64)
    start(train, shapes, "whole", *sizes).done()
    whole, stopped, killed = (train.cwd / name for name in ("whole", "stopped", "killed"))
    process = start(train, shapes, "stopped", "--read-delay-ms", 50, *sizes)
    until(lambda: len(points(stopped, "train")) >= 2, TIMEOUT_S, "two steps")
    process.send(signal.SIGTERM)
    assert (process.wait(), process.err) == (128 + signal.SIGTERM, STOPPING)
    step = torch.load(stopped / "last.pt", weights_only=True)["progress"]["step"]
    assert 2 <= step < STEPS and step == len(losses(stopped))

    start(train, shapes, "stopped", *sizes).done()
    process = start(train, shapes, "killed", "--read-delay-ms", 50, *sizes)
    until(lambda: len(points(killed, "train")) > STEPS // 2, TIMEOUT_S, "a step of the second epoch")
    process.send(signal.SIGKILL)
    process.wait()
    start(train, shapes, "killed", *sizes).done()

    for output in (stopped, killed):
        assert losses(output) == losses(whole) and len(losses(whole)) == STEPS
        assert points(output, "val") == points(whole, "val")
        for name in ("last.pt", "best.pt"):
            first, second = (
                torch.load(folder / name, weights_only=True)["model"] for folder in (whole, output)
            )
            assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_an_epoch_in_another_order_is_said(train: Runner, shapes: Path) -> None:
    start(train, shapes, "run", "--steps", 2, "--val-every", 0).done()
    said = (
        start(
            train,
            shapes,
            "run",
            "--augment",
            "multiscale",
            "--short-sides",
            48,
            64,
            "--steps",
            3,
            "--val-every",
            0,
        )
        .done()
        .out
    )
    assert (
        "the order is not the checkpoint's (seed 0, sizes of flip 64 96; now seed 0, sizes of multiscale"
        in " ".join(said.split())
    )


def test_nothing_to_find(train: Runner, shapes: Path) -> None:
    """Without an annotation to validate on there is no AP, and best.pt is written all the same; without one
    to train on nothing begins.
    """
    data = train.cwd / "data"
    shutil.copytree(shapes, data)
    for split in ("val2017", "train2017"):
        file = data / "annotations" / f"instances_{split}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "annotations": []}))
        if split == "val2017":
            train(*SMALL, "--data", data, "--epochs", 1, "--output", "run").done()
            assert (train.cwd / "run" / "best.pt").exists()
    assert "has a box to learn" in train(*SMALL, "--data", data).mistake()


def test_validation_over_ranks(train: Runner, shapes: Path) -> None:
    """Each image once, whatever the number of ranks: the same figures to the last digit; also with an image
    that cannot be decoded.
    """
    data = train.cwd / "data"
    shutil.copytree(shapes, data)
    image = sorted((data / "val2017").iterdir())[0]
    image.write_bytes(image.read_bytes()[:-200])
    train(*MANY, "--data", data, "--output", "run").done()

    # one image a batch: kernels differ by shape
    one, two = (train.evaluated(ranks, *MANY, "--data", data, "--val-batch-size", 1) for ranks in (1, 2))
    assert one["samples"] == VAL - 1 and one["detections"] > 0
    assert two == one


def test_images_without_boxes(train: Runner, shapes: Path) -> None:
    train(*SMALL, "--data", shapes, "--keep-empty", "true", "--epochs", 1, "--output", "run").done()
    assert summary(train.cwd / "run")["samples"] == TRAIN // 3 * 3


@pytest.mark.parametrize("arch", ["maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn"])
@pytest.mark.slow
def test_masks_and_keypoints(train: Runner, shapes: Path, arch: str) -> None:
    flags = (
        "--arch",
        arch,
        "--loader",
        "torchvision",
        "--ceilings",
        "false",
        "--steps",
        1,
        "--image-size",
        32,
        "--longer-side",
        48,
    )
    train(*BOXES, *flags, "--data", shapes, "--output", "run").done()
    val = summary(train.cwd / "run")["validation"]
    assert {"ap", "mask_ap" if "mask" in arch else "keypoint_ap"} <= set(val)


MISTAKES: tuple[tuple[tuple[object, ...], tuple[str, ...]], ...] = (
    (("--loader", "pyav"), ("--loader", "'pyav'", "torchvision")),
    (("--arch", "resnet50"), ("--arch", "'resnet50'", "fcos_resnet50_fpn")),
    (
        ("--arch", "keypointrcnn_resnet50_fpn", "--trainable-layers", 6),
        ("--trainable-layers got 6", "0 to 5"),
    ),
    (("--weights-backbone", "nowhere.pt"), ("--weights-backbone nowhere.pt",)),
    (("--batch-size", 13), ("12 training samples", "--batch-size 12")),
)


@pytest.mark.parametrize(
    ("flags", "said"), MISTAKES, ids=[" ".join(map(str, flags)) for flags, _ in MISTAKES]
)
def test_mistakes(train: Runner, shapes: Path, flags: tuple[object, ...], said: tuple[str, ...]) -> None:
    line = train(*SMALL, "--data", shapes, *flags).mistake()
    assert all(part in line for part in said), line
    assert {path.name for path in train.cwd.iterdir()} == {"process-0"}, "no folder of a run that never was"


def test_mistakes_in_data(train: Runner, shapes: Path, pictures: Path) -> None:
    line = train(*SMALL, "--data", pictures).mistake()
    assert "annotations" in line
    data = train.cwd / "data"
    shutil.copytree(shapes, data)
    file = data / "annotations" / "instances_val2017.json"
    whole = file.read_text()
    file.write_text(whole[:-10])
    line = train(*SMALL, "--data", data).mistake()
    assert "instances_val2017.json" in line
    content = json.loads(whole)
    content["annotations"][0]["bbox"][0] = float("nan")
    content["annotations"][1]["category_id"] = 77
    file.write_text(json.dumps(content))
    said = train(*SMALL, "--data", data, "--epochs", 1, "--output", "run").done().out
    assert "val: 2 left out" in said
    line = train("--task", "video", "--data", data, "--score", "x.json").mistake()
    assert "--score" in line and "detection" in line
