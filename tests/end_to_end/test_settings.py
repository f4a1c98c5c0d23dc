"""Settings that change how a step is made: each runs, and is told."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import OptimizedModule

from engine import checkpoint_format
from engine.distributed import ProcessWorld
from engine.schedules import learning_rate
from settings.optimisation import Optimisation
from tests.end_to_end.runs import ROOT, TIMEOUT_S, Runner, draw, losses, points, summary

SMALL = (
    *("--loader", "torchvision"),
    "--arch",
    "squeezenet1_1",
    "--image-size",
    32,
    "--batch-size",
    8,
    "--workers",
    0,
    "--ceilings",
    "false",
    "--val-every",
    0,
)


def run(train: Runner, pictures: Path, output: str, *flags: object) -> Path:
    train(
        "--data",
        pictures,
        *SMALL,
        "--log-every",
        1,
        "--epochs",
        1,
        "--output",
        output,
        *flags,
    ).done()
    return train.cwd / output


def test_precisions(train: Runner, pictures: Path) -> None:
    first: dict[str, float] = {}
    for precision in ("fp32", "bf16", "fp16"):
        output = run(train, pictures, precision, "--precision", precision, "--steps", 2)
        assert summary(output)["precision"] == precision
        first[precision] = losses(output)[0]
        scales = {point["loss_scale"] for point in points(output, "train")}
        assert (scales == {1.0}) == (precision != "fp16"), scales
    assert first["bf16"] == pytest.approx(first["fp32"], rel=2e-2)
    assert first["fp16"] == pytest.approx(first["fp32"], rel=5e-3)
    assert first["bf16"] != first["fp32"] != first["fp16"]


def test_fp16_resumes_with_its_loss_scale(train: Runner, pictures: Path) -> None:
    """Which by then is lower than the one that a run begins with."""
    whole = run(train, pictures, "whole", "--precision", "fp16", "--steps", 6)
    run(train, pictures, "parts", "--precision", "fp16", "--steps", 3)
    first = points(train.cwd / "parts", "train")[-1]["loss_scale"]
    parts = run(
        train,
        pictures,
        "parts",
        "--precision",
        "fp16",
        "--steps",
        6,
        "--resume",
        "auto",
    )
    assert losses(parts) == losses(whole)
    assert (
        points(parts, "train")[-1]["loss_scale"]
        == points(whole, "train")[-1]["loss_scale"]
        <= first
        < 2**16
    )


def test_seconds(train: Runner, pictures: Path) -> None:
    """The run ends in mid-epoch once its steady windows are that long, and counts as finished."""
    flags = ("--min-window-s", 0.05, "--seconds", 0.5, "--epochs", 10_000)
    output = run(train, pictures, "run", *flags)
    told = summary(output)
    windows = points(
        output, "window"
    )  # all of them: later ones may have moved the end of the warm-up
    assert told["finished"] and told["epochs"] < 10_000
    assert sum(window["seconds"] for window in windows) >= 0.5 and told["rate"][
        "warmup_windows"
    ] < len(windows)
    few = draw(train.cwd / "few", classes=("a", "b"), train=4, val=1)
    assert summary(run(train, few, "short", *flags))["finished"], "an epoch of one step"
    assert (
        told["step_ms"]["n"] >= 1
        and 0 < told["step_ms"]["p50"] <= told["step_ms"]["p99"]
    )


def test_patience_counts_validations_without_a_better_figure_also_over_a_resume(
    train: Runner, pictures: Path
) -> None:
    # at this rate no weight moves, and the first figure stays the best
    still = (
        "--optimizer",
        "adamw",
        "--lr",
        1e-30,
        "--weight-decay",
        0,
        "--warmup-epochs",
        0,
    )
    flags = (
        *still,
        "--batch-size",
        32,
        "--epochs",
        9,
        "--val-every",
        1,
        "--patience",
        2,
    )
    output = run(train, pictures, "run", *flags)
    assert summary(output)["epochs"] == 3 and summary(output)["finished"]
    assert summary(output)["early_stop"] == {
        "epoch": 3,
        "best_epoch": 1,
        "validations": 2,
    }
    run(train, pictures, "parts", *flags, "--steps", 2 * 3)
    parts = run(train, pictures, "parts", *flags, "--resume", "auto")
    assert summary(parts)["epochs"] == 3
    assert summary(parts)["early_stop"] == summary(output)["early_stop"]


def test_accumulation(train: Runner, pictures: Path) -> None:
    """12 micro-batches of 8 in steps of 16; the learning rate is that of the samples consumed."""
    rate = (
        "--lr",
        0.005,
        "--lr-per",
        8,
        "--warmup-epochs",
        0,
        "--schedule",
        "constant",
    )
    output = run(
        train, pictures, "run", "--accumulate", 2, "--clip-grad-norm", 0.5, *rate
    )
    assert len(losses(output)) == 6
    assert {round(point["lr"], 9) for point in points(output, "train")} == {0.01}
    assert points(output, "train")[-1]["consumed"] == 96
    assert summary(output)["samples"] == 96


def test_adamw_resumes_exactly(train: Runner, pictures: Path) -> None:
    flags = ("--optimizer", "adamw", "--lr", 1e-3, "--norm-weight-decay", 1e-5)
    whole = run(train, pictures, "whole", *flags, "--steps", 6)
    run(train, pictures, "parts", *flags, "--steps", 3)
    assert losses(
        run(train, pictures, "parts", *flags, "--steps", 6, "--resume", "auto")
    ) == losses(whole)


def test_a_recipe_resumes_exactly(train: Runner, pictures: Path) -> None:
    """Operations, partners and repeats are those of the place in training, wherever a run was cut."""
    flags = (
        *(
            "--auto-augment",
            "rand-m9-mstd0.5-inc1",
            "--erase",
            0.5,
            "--erase-mode",
            "pixel",
            "--repeats",
            2,
        ),
        *(
            "--mixup",
            0.8,
            "--cutmix",
            1,
            "--color-jitter",
            0.3,
            "--interpolation",
            "bicubic",
        ),
    )
    whole = run(train, pictures, "whole", *flags, "--steps", 6)
    run(train, pictures, "parts", *flags, "--steps", 3)
    assert losses(
        run(train, pictures, "parts", *flags, "--steps", 6, "--resume", "auto")
    ) == losses(whole)
    plain = run(train, pictures, "plain", "--steps", 2)
    assert losses(plain)[0] != losses(whole)[0]


def probabilities(table: Path) -> dict[str, Any]:
    with table.open(newline="") as file:
        return {
            row["path"]: pytest.approx(float(row["probability"]), abs=1e-5)
            for row in csv.DictReader(file)
        }


def test_an_average_is_validated_and_saved(train: Runner, pictures: Path) -> None:
    """Its figures stand beside the network's, best.pt is of the better one and says of which, and an
    evaluation finds both again.
    """
    flags = (
        "--arch",
        "shufflenet_v2_x0_5",
        "--ema",
        0.5,
        "--val-every",
        1,
        "--steps",
        3,
    )
    whole = run(train, pictures, "whole", "--batch-size", 32, *flags)
    (told,) = points(whole, "val")
    best = torch.load(whole / "best.pt", weights_only=True)
    assert best["progress"]["best"] == max(told["top1"], told["ema_top1"])
    assert best["best_of"] == (
        "network" if told["top1"] >= told["ema_top1"] else "average"
    )
    assert best.keys() == {"format", *checkpoint_format.CHECKED}, (
        "what a run reads again, and nothing else"
    )
    train(
        "--predict", pictures / "val", "--resume", whole / "best.pt", "--output", "new"
    ).done()
    assert probabilities(train.cwd / "new/predictions.csv") == probabilities(
        whole / "val_predictions.csv"
    )
    last = whole / "last.pt"
    train(
        "--data",
        pictures,
        "--evaluate",
        "true",
        "--resume",
        last,
        "--output",
        "evaluated",
    ).done()
    again = summary(train.cwd / "evaluated")["validation"]
    assert [again[name] for name in ("loss", "ema_loss")] == [
        told["loss"],
        told["ema_loss"],
    ]
    assert again["loss"] != again["ema_loss"]


def test_schedule(train: Runner, pictures: Path) -> None:
    """The rate of each step is the schedule at the samples consumed before it."""
    settings: dict[str, Any] = {
        "schedule": "step",
        "lr": 0.01,
        "epochs": 3,
        "warmup_epochs": 0.5,
    }
    settings |= {"lr_step_epochs": 1, "lr_gamma": 0.5}
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    output = run(train, pictures, "run", "--batch-size", 48, *flags)
    rates = {point["step"]: point["lr"] for point in points(output, "train")}
    assert max(rates) == 6
    for step, rate in rates.items():
        assert rate == pytest.approx(
            learning_rate((step - 1) / 2, Optimisation(**settings))
        )


def test_the_seed_decides_everything(train: Runner, pictures: Path) -> None:
    first, again, other = (
        losses(run(train, pictures, name, "--steps", 2, "--seed", seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again and first[0] != other[0]


def test_profile(train: Runner, pictures: Path) -> None:
    flags = (
        "--log-every",
        20,
        "--epochs",
        1,
        "--batch-size",
        4,
        "--profile",
        "true",
        "--output",
        "run",
    )
    assert (
        train("--data", pictures, *SMALL, *flags).wait() == 0
    )  # the profiler says a line on stderr
    output = train.cwd / "run"
    assert (output / "profile" / "trace-rank0.json.gz").stat().st_size > 1000
    assert "conv" in (output / "profile" / "operators-rank0.txt").read_text()


def test_the_module_that_a_step_calls_is_compiled() -> None:
    bare, world = torch.nn.Linear(2, 3), ProcessWorld(torch.device("cpu"))
    called = world.wrap(bare, compiled=True)
    assert isinstance(called, OptimizedModule) and called._orig_mod is bare
    assert world.wrap(bare, compiled=False) is bare


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler"
)
def test_compile(train: Runner) -> None:
    kernels = train.cwd / "kernels"
    train.env = {**train.env, "TORCHINDUCTOR_CACHE_DIR": str(kernels)}
    small = (
        "--task",
        "video",
        "--arch",
        "r3d_tiny",
        "--image-size",
        16,
        "--clip-frames",
        4,
        "--batch-size",
        2,
        "--loader",
        "synthetic",
    )
    flags = (
        *small,
        "--workers",
        0,
        "--precision",
        "fp32",
        "--steps",
        2,
        "--val-every",
        0,
        "--log-every",
        1,
        "--ceilings",
        "false",
    )
    train(*flags, "--output", "plain").done()
    plain = train.cwd / "plain"
    assert not list(kernels.rglob("*.so"))
    arguments = (*flags, "--compile", "true", "--output", "compiled")
    with train.command(ROOT / "train.py", *arguments) as process:
        process.communicate(timeout=3 * TIMEOUT_S)
        assert process.returncode == 0
    assert list(kernels.rglob("*.so"))
    compiled = train.cwd / "compiled"
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-3)
    names = [
        list(torch.load(output / "last.pt", weights_only=True)["model"])
        for output in (plain, compiled)
    ]
    assert names[0] == names[1]
