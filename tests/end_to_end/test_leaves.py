"""What a run leaves behind, and that measuring ceilings on the way changes nothing."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from report import record
from report.tensorboard import layout, metrics
from settings.config import parse
from settings.run import Run
from tasks import compared
from tasks.classification import KIND
from tests.end_to_end.runs import Runner, losses, points, summary
from tests.end_to_end.test_rates import check_rates

FLAGS = (
    *(
        "--loader",
        "torchvision",
        "--arch",
        "squeezenet1_1",
        "--image-size",
        32,
        "--batch-size",
        10,
    ),
    *("--workers", 1, "--epochs", 2, "--lr", 0.002),
)
WINDOWS = ("--log-every", 4, "--min-window-s", 0.05)
STEPS = 20
"""The last one of an epoch has 6 samples."""

NUMBER = (int, float)
OPTIONAL = (int, float, type(None))
SPREAD = {"n": int, "min": float, "max": float, "iqr": float}
CEILING = {"rate": float, "spread": SPREAD}
CONTRACT: dict[str, Any] = {
    **dict.fromkeys(("task", "arch", "loader", "precision", "command"), str),
    **dict.fromkeys(
        ("world_size", "batch_size", "epochs", "steps", "samples", "samples_dropped"),
        int,
    ),
    "samples_failed": list,
    "efficiency": float,
    "bound": (str, type(None)),
    "versions": {"python": str, "torch": str, "torchvision": str},
    "hardware": {"cpu": str, "cores": NUMBER},
    "rate": {
        "steady": float,
        "spread": SPREAD,
        "first_epoch": OPTIONAL,
        "per_rank": list,
        "unit": str,
    },
    "ceiling": {"compute": CEILING, "loader": CEILING},
    "data_wait": {"ms": float, "share": float},
    "validation": {"top1": float, "ece": float, "loss": float},
    "best": {"figure": str, "value": float, "epoch": int, "checkpoint": str},
    "validation_s": {"pass": float, "score": float, "waited": float},
    "memory": dict.fromkeys(
        ("allocated_gib", "reserved_gib", "device_gib", "host_gib"), OPTIONAL
    ),
    "gpu": {"utilisation": OPTIONAL, "power_w": OPTIONAL},
    "cpu": {"utilisation": OPTIONAL, "steal": OPTIONAL},
}
TAGS = {
    *(
        f"throughput/{name}"
        for name in (
            "samples_per_s",
            "per_gpu",
            "compute_ceiling",
            "loader_ceiling",
            "efficiency",
        )
    ),
    *(f"time/{name}_ms" for name in ("data_wait", "forward", "backward", "update")),
    *(
        f"train/{name}"
        for name in ("loss", "lr", "grad_norm", "loss_scale", "skipped_steps")
    ),
    *(f"val/{name}" for name in ("top1", "ece", "loss")),
    "memory/host_gib",
    "io/mib_per_s",
}


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    zygote: Any,
    pictures: Path,
) -> Iterator[Runner]:
    """A run in folder `run`, and the same without ceilings in folder `bare`."""
    runner = Runner(tmp_path_factory.mktemp("runs"), environment, zygote)
    runner(
        "--data",
        pictures,
        *FLAGS,
        "--log-every",
        1,
        "--ceilings",
        "false",
        "--output",
        "bare",
    ).done()
    runner("--data", pictures, *FLAGS, *WINDOWS, "--output", "run").done()
    yield runner
    runner.end()


def check(value: Any, kind: Any, name: str) -> None:
    if isinstance(kind, dict):
        assert isinstance(value, dict), name
        for part, its_kind in kind.items():
            assert part in value, f"{name}.{part}"
            check(value[part], its_kind, f"{name}.{part}")
    else:
        assert isinstance(value, kind), f"{name} is {value!r}"


def test_files(run: Runner) -> None:
    names = sorted(path.name for path in (run.cwd / "run").iterdir())
    events = [name for name in names if name.startswith("events.out.tfevents.")]
    assert len(events) == 1
    left = "best.pt classes.csv config.yaml confusion.csv confusion.png last.pt metrics.jsonl mistakes.png"
    left += " results.csv summary.json val_predictions.csv"
    assert [name for name in names if name not in events] == left.split()
    beside = {
        path.name for path in run.cwd.iterdir() if not path.name.startswith("process-")
    }
    assert beside == {"bare", "run"}


def test_summary_is_the_contract(run: Runner) -> None:
    found = summary(run.cwd / "run")
    check(found, CONTRACT, "summary")
    wanted = {
        "arch": "squeezenet1_1",
        "loader": "torchvision",
        "world_size": 1,
        "batch_size": 10,
    }
    wanted |= {
        "epochs": 2,
        "steps": STEPS,
        "samples": 2 * 96,
        "samples_dropped": 0,
        "epoch_steps": 10,
    }
    assert {name: found[name] for name in wanted} == wanted and found[
        "samples_failed"
    ] == []
    assert "--arch squeezenet1_1" in found["command"]
    assert 0 <= found["validation"]["top1"] <= found["best"]["value"] <= 1
    with (run.cwd / "run" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "10"), ("1", "20")]
    assert float(rows[-1]["top1"]) == found["validation"]["top1"]


def test_rates_are_consistent(run: Runner) -> None:
    output = run.cwd / "run"
    check_rates(output)
    assert points(output, "ceilings")[0]["step"] == STEPS // 2, "after the first epoch"


def test_points_of_the_curves(run: Runner) -> None:
    output = run.cwd / "run"
    for point in points(output, "train"):
        assert {
            "epoch",
            "consumed",
            "losses",
            "lr",
            "grad_norm",
            "loss_scale",
            "skipped_steps",
            "ms",
        } <= set(point)
    assert len(losses(output)) == STEPS
    validations = points(output, "val")
    assert [
        (point["epoch"], point["step"], point["samples"]) for point in validations
    ] == [
        (0, 10, 44),
        (1, 20, 44),
    ]
    assert summary(output)["validation"]["loss"] == validations[-1]["loss"]


def test_measuring_ceilings_changes_nothing(run: Runner) -> None:
    assert losses(run.cwd / "run") == losses(run.cwd / "bare")
    assert points(run.cwd / "bare", "ceilings") == []
    measured, bare = (
        torch.load(run.cwd / name / "last.pt", weights_only=True)
        for name in ("run", "bare")
    )
    assert all(
        torch.equal(value, bare["model"][name])
        for name, value in measured["model"].items()
    )


def test_tensorboard(run: Runner) -> None:
    board = EventAccumulator(
        str(run.cwd / "run"), size_guidance={"scalars": 0, "images": 0}
    )
    board.Reload()
    tags = board.Tags()
    assert set(tags["scalars"]) >= TAGS, TAGS - set(tags["scalars"])
    shown = {
        f"{group}/{name}"
        for group, charts in layout(KIND).items()
        for names in charts.values()
        for name in names
    }
    promised = {*metrics(compared()), *shown}
    missing = {
        tag
        for tag in promised - set(tags["scalars"])
        if not tag.startswith(("gpu/", "memory/"))
    }
    # of other tasks, and of more than five classes; the HPARAMS page takes its columns from the first run
    own = {figure.name for figure in KIND.figures}
    missing -= {f"val/{name}" for name in compared() if name not in own} | {"val/top5"}
    assert missing <= {"time/transfer_ms", "time/graph_ms", "time/transforms_ms"}, (
        "phases of others"
    )
    assert all(
        math.isfinite(event.value)
        for tag in tags["scalars"]
        for event in board.Scalars(tag)
    )
    for tag in ("train/loss", "val/top1"):
        steps = [event.step for event in board.Scalars(tag)]
        assert steps == sorted(set(steps)), tag
    assert sorted(tags["images"]) == ["augmented", "val/confusion", "val/mistakes"]
    (grid,) = board.Images("augmented")
    assert (grid.width, grid.height) == (8 * 32, 2 * 32), "ten images, eight in a row"
    plugins = board.summary_metadata
    assert (
        "_hparams_/session_start_info" in plugins
        and "_hparams_/session_end_info" in plugins
    )
    assert any("custom_scalars" in tag for tag in plugins)


def test_config_reads_back(run: Runner, pictures: Path) -> None:
    again = parse(["--config", str(run.cwd / "run" / "config.yaml")])
    flags = [
        str(word) for word in ("--data", pictures, *FLAGS, *WINDOWS, "--output", "run")
    ]
    assert again.flat() | {"config": None} == parse(flags).flat()
    stored = torch.load(run.cwd / "run" / "last.pt", weights_only=True)["config"]
    assert stored == again.flat() | {"config": None}


def test_console(run: Runner) -> None:
    said = run.started[0].out
    for words in (
        "epoch 1/2",
        "validated epoch 2: top1",
        "change first",
        "tensorboard --logdir",
    ):
        assert words in said
    assert "\x1b" not in said and "\r" not in said


def test_two_runs_of_one_second_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record.time, "strftime", lambda form: "now")
    monkeypatch.chdir(tmp_path)
    first = record.folder(Run(), None, name="resnet18")
    first.mkdir(parents=True)
    second = record.folder(Run(), None, name="resnet18")
    assert (str(first), str(second)) == ("runs/now-resnet18", "runs/now-resnet18-2")
