"""Validation: exact whatever the number of processes; alone with --evaluate."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.runs import TIMEOUT_S, Process, Runner, points, summary, until

SMALL = (
    "--arch",
    "resnet18",
    "--image-size",
    32,
    "--workers",
    1,
    "--ceilings",
    "false",
    "--precision",
    "fp32",
)
BATCH_TOLERANCE = 1e-5
"""Difference of the loss between batch sizes: kernels differ by shape, so logits do in their last bits."""


def trained(train: Runner, pictures: Path) -> Process:
    return train(
        "--data", pictures, *SMALL, "--batch-size", 12, "--epochs", 1, "--lr", 0.01, "--output", "run"
    ).done()


def evaluated(
    train: Runner, pictures: Path, output: str, *flags: object, ranks: int = 1, resume: str = "run/last.pt"
) -> dict[str, float]:
    arguments = ("--data", pictures, *SMALL, "--batch-size", 12, "--evaluate", "true", "--output", output)
    for process in train.ranks(ranks, *arguments, *(("--resume", resume) if resume else ()), *flags):
        process.done()
    validation: dict[str, float] = summary(train.cwd / output)["validation"]
    return validation


def test_alone_and_in_company(train: Runner, pictures: Path) -> None:
    trained(train, pictures)
    in_training = summary(train.cwd / "run")["validation"]
    one = evaluated(train, pictures, "one")
    assert one == in_training
    assert one["samples"] == 44 and one["losses_not_finite"] == 0

    assert evaluated(train, pictures, "two", ranks=2) == one
    assert evaluated(train, pictures, "three", ranks=3) == one

    alone = train.cwd / "alone"
    alone.mkdir()
    (alone / "val").symlink_to(pictures / "val")
    assert evaluated(train, alone, "val-alone") == one, "no training data is needed"

    for size in (1, 7, 64):
        other = evaluated(train, pictures, f"by-{size}", "--val-batch-size", size)
        assert (other["top1"], other["top5"], other["samples"]) == (one["top1"], one["top5"], 44)
        assert other["loss"] == pytest.approx(one["loss"], rel=BATCH_TOLERANCE)


def test_an_evaluation_opens_one_loader(train: Runner, pictures: Path) -> None:
    """It is the validation's, with its two workers, and no others."""
    trained(train, pictures)
    flags = (
        *SMALL[:-4],
        "--workers",
        2,
        "--read-delay-ms",
        1e6,
        "--evaluate",
        "true",
        "--resume",
        "run/last.pt",
        "--output",
        "slow",
    )
    process = psutil.Process(train("--data", pictures, *flags).pid)
    until(lambda: len(process.children()) >= 2, TIMEOUT_S, "the workers")
    time.sleep(1)
    assert len(process.children()) == 2


def test_an_evaluation_leaves_its_run_alone(train: Runner, pictures: Path) -> None:
    trained(train, pictures)
    before = {path.name: path.read_bytes() for path in (train.cwd / "run").iterdir()}
    arguments = (
        "--data",
        pictures,
        *SMALL,
        "--batch-size",
        12,
        "--evaluate",
        "true",
        "--output",
        "run",
        "--resume",
        "auto",
    )
    said = train(*arguments).done().out
    assert "\nvalidated epoch 1: top1 " in said and "  samples 44  in " in said, "the epoch that was trained"
    table = said.split("-" * 80)[1].strip().splitlines()
    assert [line.split()[0] for line in table] == ["top-1", "samples"], "no row without a value"
    train(*arguments).done()
    folders = [path for path in (train.cwd / "run").iterdir() if path.is_dir()]
    assert len(folders) == 2
    assert {
        path.name: path.read_bytes() for path in (train.cwd / "run").iterdir() if path.is_file()
    } == before
    for folder in folders:
        assert summary(folder)["reader"] == summary(train.cwd / "run")["reader"] != ""
        assert summary(folder)["validation"] == summary(train.cwd / "run")["validation"]
        assert len(points(folder, "val")) == 1
        assert not (folder / "last.pt").exists()

    assert [point["epoch"] for point in points(folders[0], "val")] == [0]
    with_weights = evaluated(train, pictures, "weights", "--weights", "run/best.pt", resume="")
    assert with_weights == summary(train.cwd / "run")["validation"]
    assert "\nvalidated epoch 1: top1 " in train.started[-1].out, "a checkpoint knows, whatever flag names it"
    assert [point["epoch"] for point in points(train.cwd / "weights", "val")] == [0]
