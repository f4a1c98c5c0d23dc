"""--evaluate scores what was trained, whatever the number of ranks; no head is random."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.end_to_end.conftest import CLASSES
from tests.end_to_end.runs import Process, Runner, draw, kept, points, summary

VAL = 5  # images of a class
HERE = ("--workers 0 --ceilings false",)
"""What every run says; nothing of it changes a figure."""
TRAINED = (
    """--loader torchvision --arch shufflenet_v2_x0_5 --image-size 32 --batch-size 12
    --precision fp32 --lr 0.01""",
)


@pytest.fixture(scope="module")
def home(of_module: Runner) -> Runner:
    """A folder with data/, and run/ of a classifier that was trained on it."""
    draw(of_module.cwd / "data", classes=CLASSES, train=12, val=VAL)
    of_module("--data data", *HERE, *TRAINED, "--epochs 1 --output run").done()
    return of_module


def evaluate(run: Runner, *flags: object) -> tuple[Process, Path]:
    """Start an evaluation; return it, and the folder that it fills."""
    output = run.cwd / f"evaluated-{len(run.started)}"
    return run(*HERE, "--evaluate", "true", "--output", output, *flags), output


def figures(run: Runner, *flags: object) -> dict[str, Any]:
    process, output = evaluate(run, *flags)
    process.done()
    found: dict[str, Any] = summary(output)["validation"]
    return found


def trained_figures(run: Runner, folder: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = summary(run.cwd / folder)["validation"]
    return found


def selected(run: Runner, name: str, classes: Mapping[str, str]) -> Path:
    """Make a folder whose validation has these classes, each under another name, and nothing to train on."""
    root = run.cwd / name
    (root / "val").mkdir(parents=True)
    for own, there in classes.items():
        (root / "val" / there).symlink_to(run.cwd / "data" / "val" / own)
    return root


def test_settings_are_the_checkpoints(home: Runner) -> None:
    """Nobody has to repeat how a network was trained; ranks change nothing, batch sizes next to nothing."""
    whole = trained_figures(home)
    assert whole["samples"] == 4 * VAL and whole["losses_not_finite"] == 0
    process, output = evaluate(home, "--weights run/last.pt")
    assert "\nvalidated epoch 1: top1 " in process.done().out
    assert (
        summary(output)["validation"] == whole
        and points(output, "val")[0]["epoch"] == 0
    )
    assert home.evaluated(2, *HERE) == whole
    other = home.evaluated(1, *HERE, "--val-batch-size 7")
    assert other == whole | {"loss": pytest.approx(whole["loss"], rel=1e-5)}
    used = kept(home.cwd / "run" / "last.pt")["used"]
    assert used["image_size"] == 32 and used["val_resize"] == 32 * 256 // 224
    assert used["mean"] == [0.485, 0.456, 0.406] and used["val_window"] == "center"


def test_an_evaluation_leaves_its_run_alone(home: Runner) -> None:
    run = home.cwd / "run"
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    arguments = (
        "--data data",
        *HERE,
        "--evaluate true --output run --resume auto",
    )
    said = home(*arguments).done().out
    assert "\nvalidated epoch 1: top1 " in said and "  samples 20  in " in said
    _, table, commands = said.split("-" * 80)
    line, *_ = table.strip().splitlines()
    assert line.startswith("top-1 ") and line.endswith(" of 20 samples")
    assert "--predict FOLDER --resume run/last.pt\n" in commands
    home(*arguments).done()
    folders = [path for path in run.iterdir() if path.is_dir()]
    assert len(folders) == 2
    assert {
        path.name: path.read_bytes() for path in run.iterdir() if path.is_file()
    } == before
    for folder in folders:
        assert summary(folder)["reader"] == summary(run)["reader"] != ""
        assert summary(folder)["validation"] == trained_figures(home)
        assert [point["epoch"] for point in points(folder, "val")] == [0]
        assert not (folder / "last.pt").exists()


def test_a_split_is_evaluated_by_its_name(home: Runner) -> None:
    """test/ has what val/ has; to train, a split is not chosen."""
    (home.cwd / "data" / "test").symlink_to("val")
    flags = "--resume run/last.pt"
    assert figures(home, flags, "--split test") == trained_figures(home)
    assert figures(home, flags, "--split train")["samples"] == 4 * 12
    said = home(*HERE, "--data data --split test").mistake()
    assert "--split is for --evaluate" in said


def test_classes_are_matched_by_name(home: Runner) -> None:
    """Any of the classes will do, in any order: the checkpoint's numbers are what counts."""
    parts = [{"blue": "blue", "white": "white"}, {"green": "green"}, {"red": "red"}]
    found = [
        figures(home, "--resume run/last.pt --data", selected(home, f"part-{i}", part))
        for i, part in enumerate(parts)
    ]
    whole = trained_figures(home)
    assert [one["samples"] for one in found] == [2 * VAL, VAL, VAL]
    for name in ("top1", "loss"):
        assert sum(one[name] * one["samples"] for one in found) == pytest.approx(
            whole[name] * 4 * VAL
        )
    assert len({one["top1"] for one in found}) > 1


def test_no_head_is_random(home: Runner) -> None:
    state = kept(home.cwd / "run" / "last.pt")["model"]
    torch.save(state, home.cwd / "plain.pth")
    flags = ("--weights plain.pth", *TRAINED)
    process, output = evaluate(home, "--data data", *flags)
    assert "plain.pth does not name its classes" in process.done().out
    assert summary(output)["validation"] == trained_figures(home)
    fewer = selected(home, "fewer", {"blue": "blue", "red": "red"})
    refused, _ = evaluate(home, "--data", fewer, *flags)
    assert (
        "plain.pth is for other classes, fc.weight, fc.bias would be random"
        in refused.mistake()
    )


def test_a_network_whose_output_is_no_number(home: Runner) -> None:
    content = kept(home.cwd / "run" / "last.pt")
    content["model"]["conv5.1.running_var"][7] = torch.nan
    torch.save(content, home.cwd / "broken.pt")
    process, output = evaluate(home, "--resume broken.pt")
    assert process.wait() == 3
    assert (
        process.err
        == f"train.py: --evaluate: the output is no number for {4 * VAL} samples\n"
    )
    assert f"the output is no number for {4 * VAL} of {4 * VAL} samples" in process.out
    found = summary(output)["validation"]
    assert (found["top1"], found["outputs_not_finite"]) == (0.0, 4 * VAL)
