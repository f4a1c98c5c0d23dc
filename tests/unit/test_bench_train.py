"""The suite `train`, and loops by hand by the same rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks import train
from benchmarks._suite import LEAST_STEPS, run
from benchmarks.baselines import train as loop_by_hand
from benchmarks.train import BY_HAND, Train, command, derive, measured, points, read
from saturate.settings.config import parse
from tests.end_to_end.runs import draw


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "data"
    return draw(folder, classes=("blue", "red"), train=24, val=2)


def asked_of(settings: Train, point: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings with which train.py is called."""
    return parse(command(settings, point, folder)[2:]).flat()


def test_points_are_commands_of_train_py(data: Path, tmp_path: Path) -> None:
    same: dict[str, Any] = {"archs": ("alexnet",), "batch_sizes": (8,)}
    same |= {"data": str(data.parent), "sets": (data.name,)}
    settings = Train(
        **same, loaders=("synthetic",), gpus=(1, 2), flags="--image-size 64"
    )
    one, two = points(settings)
    wanted = {"arch": "alexnet", "batch_size": 8, "loader": "synthetic"}
    wanted |= {"image_size": 64, "seconds": settings.seconds, "data": str(data)}
    asked = asked_of(settings, one, tmp_path)
    assert asked.items() >= wanted.items() and asked["output"] == str(tmp_path)
    words = command(settings, two, tmp_path)
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2"
    assert " ".join(words[1:6]) == launcher
    assert words[7:] == command(settings, one, tmp_path)[2:]

    settings = Train(**same, recipes=("plain", "augmented", "ema"))
    plain, augmented, ema = (
        asked_of(settings, one, tmp_path) for one in points(settings)
    )
    assert ema == plain | {"ema": 0.9999}
    assert min(augmented[name] for name in ("mixup", "cutmix", "erase")) > 0
    assert plain["mixup"] == 0 and augmented["auto_augment"].startswith("rand-")

    axes = Train(
        **same,
        loaders=("torchvision",),
        by_hand=("torchvision",),
        workers=(0, 2),
        steps=("eager", "compile+graphs"),
    )
    found = points(axes)
    assert [one["loader"] for one in found] == ["torchvision"] * 4 + [
        BY_HAND + "torchvision"
    ] * 2
    last = asked_of(axes, found[3], tmp_path)
    wanted = {"workers": 2, "compile": True, "graphs": True}
    assert last.items() >= wanted.items()
    by_hand = command(axes, found[5], tmp_path)
    told = dict(word.split("=") for word in by_hand[3:])
    wanted = {"--workers": "2", "--image-size": "224", "--loader": "torchvision"}
    assert told.items() >= (wanted | {"--data": str(data)}).items()


@pytest.mark.parametrize("task", ["classification", "superres"])
def test_a_loop_by_hand_trains_without_a_gpu(task: str, tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / "train" / str(i)).mkdir(parents=True)
        picture = Image.new("RGB", (32, 32), (40 * i, 9, 0))
        picture.save(tmp_path / "train" / str(i) / "a.png")
    words = f"--data {tmp_path} --task {task} --loader torchvision --arch squeezenet1_1"
    words += " --batch-size 2 --workers 0 --image-size 64"
    asked = loop_by_hand.asked_of(words.split())
    cpu = torch.device("cpu")
    model, loss = loop_by_hand.OF_TASK[task](asked, cpu)
    loss().backward()
    grads = [p.grad for p in model.parameters()]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)
    if task == "classification":
        batches = loop_by_hand.torchvision_batches(tmp_path / "train", asked, cpu)
        images, labels = next(batches)
        assert images.shape == (2, 3, 64, 64)
        assert labels.shape == (2,)


def test_a_loop_by_hand_is_read_by_the_rule_of_ours(tmp_path: Path) -> None:
    left = {"windows": [[100, 2.0], [200, 2.0], [210, 2.0], [190, 2.0]], "steps": 70}
    (tmp_path / "figures.json").write_text(json.dumps(left))
    by_hand = read({"loader": BY_HAND + "dali"}, tmp_path)
    assert by_hand.figures == {"rate": 100.0, "steps": 70}
    assert by_hand.spread["rate"]["n"] == 3, "without the warm-up"


def test_a_summary_has_the_figures_of_its_task(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "rate": {"steady": 10.0, "unit": "clip/s", "spread": {"n": 1}}
    }
    told |= {"ceiling": {"compute": None, "loader": {"rate": 20.0, "spread": None}}}
    told |= {"data_wait": None, "batch_size": 8, "versions": {}, "hardware": {}}
    told |= {"start_s": {"imports": 2.0, "first step": 0.5}}
    clips = {"clips": {"frames_per_s": 160.0, "decoded_per_delivered": 3.1}}
    found = measured(told | clips)
    wanted = {"unit": "clip/s", "frames_per_s": 160.0, "decoded_per_delivered": 3.1}
    wanted |= {"rate": 10.0, "loader_ceiling": 20.0, "compute_ceiling": None}
    wanted |= {"start_s": 2.5}
    assert found.figures.items() >= (wanted | {"instances_per_s": None}).items()
    assert found.spread == {"rate": {"n": 1}}
    trained = told | {"validation": {"top1": 0.5, "ema_top1": 0.6}}
    (tmp_path / "summary.json").write_text(json.dumps(trained))
    found = read({"loader": "torchvision", "batch_size": 8}, tmp_path)
    assert (found.figures["top1"], found.figures["ema_top1"]) == (0.5, 0.6)
    assert not found.spread, "however few windows there were, its accuracy is shown"
    other = read({"loader": "torchvision", "batch_size": 16}, tmp_path)
    assert other.error == "--data has too few samples, batches were 8"


def test_the_bound_is_of_the_figures_that_are_shown() -> None:
    """A row of repeats has medians, and its bound is theirs."""
    named = ("rate", "compute_ceiling", "loader_ceiling")
    figures = [(99, 100, 200), (90, 200, 91), (200, 100, 200), (50, None, 90)]
    rows: list[dict[str, Any]] = [
        {"point": {}, "status": "ok", "figures": dict(zip(named, its, strict=True))}
        for its in figures
    ]
    bounds = [row["figures"]["bound"] for row in derive(rows)]
    assert bounds == ["compute", "loader", "check failed", None]
    assert derive(rows)[0]["figures"]["efficiency"] == 0.99


@pytest.mark.usefixtures("prompt_ran")
def test_a_run(data: Path, tmp_path: Path) -> None:
    """A machine too slow for 20 steps in the time is given more of it."""
    flags = "--workers 0 --image-size 32 --min-window-s 0.2 --log-every 5"
    asked = Train(
        data=str(data),
        archs=("squeezenet1_1",),
        batch_sizes=(4,),
        loaders=("torchvision",),
        precisions=("fp32",),
        flags=f"{flags} --manifest-dir {tmp_path / 'cache'}",
    )
    for seconds in (2, 8, 32):
        settings = asked.model_copy(update={"seconds": seconds})
        output = tmp_path / f"bench-{seconds}"
        (row,) = run(train.SUITE, settings, output, lambda _: None)
        if row["status"] != "short":
            break
    assert row["status"] == "ok", row
    told = json.loads((output / row["folder"] / "summary.json").read_text())
    figures = row["figures"]
    assert figures["rate"] == told["rate"]["steady"]
    assert figures["steps"] == told["step_ms"]["n"] >= LEAST_STEPS
    assert figures["data_wait_ms"] > 0 and figures["host_gib"] > 0
    assert row["spread"]["compute_ceiling"]["n"] > 0
    assert derive([row])[0]["figures"]["efficiency"] == pytest.approx(
        told["efficiency"]
    )
    assert not list(output.rglob("*.pt"))
