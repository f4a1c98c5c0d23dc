"""Settings that change how a step is made: each runs, and is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from saturate.engine.checkpoint import Content
from tests.end_to_end.runs import Runner, draw, kept, losses, points, rows, summary

SMALL = """--loader torchvision --arch tests.end_to_end.networks:tiny --image-size 32 --batch-size 8 --workers 0
    --ceilings false --val-every 0 --epochs 1 --log-every 1"""


def run(train: Runner, pictures: Path, output: str, flags: str) -> Path:
    train("--data", pictures, f"{SMALL} --output {output} {flags}").done()
    return train.cwd / output


def test_seconds(train: Runner, pictures: Path) -> None:
    """The run ends in mid-epoch once its steady windows are that long, and counts as finished."""
    flags = "--min-window-s 0.05 --seconds 0.5 --epochs 10000"
    output = run(train, pictures, "run", flags)
    told = summary(output)
    # all of them: later ones may have moved the end of the warm-up
    windows = points(output, "window")
    assert told["finished"] and told["epochs"] < 10_000
    assert sum(window["seconds"] for window in windows) >= 0.5
    assert told["rate"]["warmup_windows"] < len(windows)
    assert told["step_ms"]["n"] >= 1
    assert 0 < told["step_ms"]["p50"] <= told["step_ms"]["p99"]
    few = draw(train.cwd / "few", classes=("a", "b"), train=4, val=1)
    assert summary(run(train, few, "short", flags))["finished"], "an epoch of one step"


def test_patience_counts_validations_without_a_better_figure_also_over_a_resume(
    train: Runner, pictures: Path
) -> None:
    # at this rate no weight moves, and the first figure stays the best
    flags = """--optimizer adamw --lr 1e-30 --weight-decay 0 --warmup-epochs 0 --batch-size 32 --epochs 9
        --val-every 1 --patience 2 --resume auto"""
    run(train, pictures, "run", f"{flags} --steps 6")
    told = summary(run(train, pictures, "run", flags))
    assert told["epochs"] == 3 and told["finished"]
    stop = {"epoch": 3, "best_epoch": 1, "validations": 2}
    assert told["early_stop"] == stop


def test_a_run_ends_with_the_figure_that_it_was_until_and_averages_two_views(
    train: Runner, pictures: Path
) -> None:
    flags = "--batch-size 32 --epochs 9 --val-every 1 --until top1=0 --tta flip"
    told = summary(run(train, pictures, "run", flags))
    assert told["epochs"] == 1 and told["finished"] and told["early_stop"] is None
    assert told["reached"]["figure"] == "top1=0" and told["reached"]["epoch"] == 1
    again = summary(run(train, pictures, "run", f"{flags} --resume auto"))
    assert again["epochs"] == 1 and again["reached"] == told["reached"]
    line = train("--data", pictures, "--until", "top3=0.5").mistake()
    assert "--until got 'top3'" in line
    line = train("--data", pictures, "--until", "top1=75.9").mistake()
    assert "--until got 'top1=75.9', and top1 is a share: top1=0.759" in line


def test_a_recipe_resumes_exactly(train: Runner, pictures: Path) -> None:
    """Operations, partners, repeats, moments and loss scale are those of the place in training."""
    # whose gradients overflow at the first loss scale
    flags = """--arch squeezenet1_1 --auto-augment rand-m9-mstd0.5-inc1 --erase 0.5 --erase-mode pixel --repeats 2
        --mixup 0.8 --cutmix 1 --color-jitter 0.3 --interpolation bicubic --optimizer adamw --lr 1e-3
        --precision fp16"""
    whole = run(train, pictures, "whole", f"{flags} --steps 6")
    run(train, pictures, "parts", f"{flags} --steps 3")
    parts = run(train, pictures, "parts", f"{flags} --steps 6 --resume auto")
    assert losses(parts) == losses(whole)
    scales = [points(output, "train")[-1]["loss_scale"] for output in (parts, whole)]
    assert scales[0] == scales[1] < 2**16


def probabilities(table: Path) -> dict[str, Any]:
    return {
        row["path"]: pytest.approx(float(row["probability"]), abs=1e-5)
        for row in rows(table)
    }


def test_an_average_is_validated_and_saved(train: Runner, pictures: Path) -> None:
    """Its figures stand beside the network's, best.pt is of the better one and says of which, and an
    evaluation finds both again.
    """
    flags = "--arch shufflenet_v2_x0_5 --ema 0.5 --val-every 1 --steps 3"
    whole = run(train, pictures, "whole", f"--batch-size 32 {flags}")
    (told,) = points(whole, "val")
    best = kept(whole / "best.pt")
    assert best["progress"]["best"] == max(told["top1"], told["ema_top1"])
    better = "network" if told["top1"] >= told["ema_top1"] else "average"
    assert best["best_of"] == better
    # what a run reads again, and nothing else
    assert best.keys() == {"format", *Content.model_fields}
    resume = ("--resume", whole / "best.pt", "--output new")
    train("--predict", pictures / "val", *resume).done()
    predicted = probabilities(train.cwd / "new/predictions.csv")
    assert predicted == probabilities(whole / "val_predictions.csv")
    resume = ("--resume", whole / "last.pt", "--output evaluated --evaluate")
    train("--data", pictures, *resume).done()
    found = summary(train.cwd / "evaluated")
    again = found["validation"]
    for name in ("loss", "ema_loss"):
        assert again[name] == told[name]
    assert again["loss"] != again["ema_loss"]
    of = {"of": "average", "checkpoint": str(whole / "last.pt")}
    figure = {"figure": "top1", "value": again["ema_top1"]}
    assert found["evaluated"] == of | figure
    own = summary(whole)["best"]
    assert (own["of"], own["value"]) == (better, best["progress"]["best"])
