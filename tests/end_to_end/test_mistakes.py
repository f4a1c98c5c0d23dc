"""Each mistake of a user: exit code 2, one line on stderr, once, that says what was got, what is allowed or
what to do.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch

from tests.end_to_end.runs import Runner, draw, losses, summary, until

SMALL = (
    "--arch",
    "squeezenet1_1",
    "--image-size",
    32,
    "--batch-size",
    8,
    "--workers",
    0,
    "--epochs",
    1,
    "--ceilings",
    "false",
)

# flags behind a run that would work, and what the line must say; tests/unit/test_config.py has what parsing
# refuses
VALUES = (
    (("--arch", "resnet"), ("'resnet'", "resnet50", "resnet18")),
    (("--arch", "alexnet", "--image-size", 32), ("--image-size 32", "alexnet", "224")),
    (
        ("--arch", "resnet18", "--image-size", 8, "--batch-size", 1),
        ("--batch-size 1", "more than 1 value per channel"),
    ),
    (
        ("--loader", "tochvision"),
        ("'tochvision'", "did you mean torchvision", "dali-cpu, dali-gpu, dali-fed"),
    ),
    (("--loader", "dali-gpu"), ("dali-gpu", "GPU", "dali-cpu", "dali-fed")),
    (("--batch-size", 97), ("97", "96 training samples", "the largest that fits is --batch-size 96")),
    (
        ("--batch-size", 50, "--accumulate", 2),
        ("100 samples a step", "the largest that fits is --batch-size 48"),
    ),
    (("--workers", 100_000), ("--workers 100000", "at most", "a rank")),
    (("--val-resize", 16), ("--val-resize 16", "--image-size 32")),
    (("--loader", "pyav"), ("'pyav'", "which is for --task video")),
    (("--evaluate", "true"), ("--evaluate", "--resume", "--weights")),
    (("--evaluate", "true", "--resume", "auto", "--output", "new"), ("--evaluate", "--resume", "--weights")),
    (("--resume", "auto"), ("--resume auto", "--output")),
    (("--resume", "nowhere.pt"), ("--resume nowhere.pt", "no checkpoint there")),
    (("--resume", "text"), ("--resume text", "not a checkpoint")),
    (("--resume", "dict.pt"), ("--resume dict.pt", "--weights")),
    (("--resume", "/dev/zero"), ("--resume /dev/zero", "not a regular file")),
    (("--weights", "/dev/zero"), ("--weights /dev/zero", "not a regular file")),
    (("--weights", "nowhere.pt"), ("nowhere.pt", "no such file", "IMAGENET1K_V1")),
    (("--weights", "text"), ("--weights text", "no checkpoint")),
    (("--weights", "dict.pt"), ("--weights dict.pt", "no state dict")),
    (("--output", "text"), ("--output text", "file", "name a folder")),
    (("--manifest-dir", "text"), ("text", "--manifest-dir")),
)


@pytest.mark.parametrize(("flags", "said"), VALUES, ids=[" ".join(map(str, flags)) for flags, _ in VALUES])
def test_value(train: Runner, pictures: Path, flags: tuple[object, ...], said: tuple[str, ...]) -> None:
    (train.cwd / "text").write_text("no checkpoint, no folder")
    torch.save({"a": 1}, train.cwd / "dict.pt")
    line = train("--data", pictures, *SMALL, *flags).mistake()
    assert all(part in line for part in said), line
    assert {path.name for path in train.cwd.iterdir()} == {"text", "dict.pt", "process-0"}, (
        "no folder of a run that never was"
    )


def test_presets(train: Runner) -> None:
    (train.cwd / "wrong.yaml").write_text("batch_size: 0\n")
    line = train("--config", "wrong.yaml").mistake()
    assert line.startswith("--config wrong.yaml: ") and "greater than 0" in line
    assert "presets are in configs/" in train("--config=nowhere.yaml").mistake()


def test_folders(train: Runner, pictures: Path, environment: dict[str, str]) -> None:
    def mistake(data: object, *more: object) -> str:
        return train("--data", data, *SMALL, *more).mistake()

    here = train.cwd
    for folder in (
        "no-train/val",
        "no-val/train",
        "no-classes/train",
        "no-classes/val",
        "no-images/train/a",
        "no-images/val/a",
    ):
        (here / folder).mkdir(parents=True)
    draw(here / "more", classes=("a", "b"), train=9, val=2)
    (here / "more" / "val" / "b").rename(here / "more" / "val" / "c")

    assert "--data nowhere: no such folder" in mistake("nowhere")
    assert "has no train/ folder" in mistake("no-train")
    assert "has no val/ folder" in mistake("no-val")
    assert "no class folders" in mistake("no-classes")
    assert "no image in" in mistake("no-images")
    line = mistake("more")
    assert "'c'" in line and "none of the 2 classes of the training data" in line
    inside = mistake(pictures, "--manifest-dir", pictures / "manifests")
    assert "inside --data" in inside and not (pictures / "manifests").exists()
    line = train().mistake()
    assert "--data is missing" in line and "--loader synthetic" in line


def test_checkpoints_of_other_runs(train: Runner, pictures: Path) -> None:
    start = train("--data", pictures, *SMALL, "--steps", 1, "--output", "run")
    data = {
        "renamed": draw(train.cwd / "renamed", classes=("blue", "green", "red", "yellow"), train=24, val=2),
        "five": draw(
            train.cwd / "five", classes=("blue", "green", "red", "white", "yellow"), train=24, val=2
        ),
        "other": draw(train.cwd / "other", classes=("blue", "green", "red", "white"), train=25, val=2),
    }
    start.done()
    checkpoint = (train.cwd / "run" / "last.pt").read_bytes()
    (train.cwd / "cut.pt").write_bytes(checkpoint[: len(checkpoint) // 2])

    def mistake(*flags: object, data: Path = pictures) -> str:
        return train("--data", data, *SMALL, *flags).mistake()

    line = mistake("--resume", "run/last.pt", "--arch", "resnet18")
    assert "architecture is squeezenet1_1 in the checkpoint, resnet18 in this run" in line
    line = mistake("--resume", "run", data=data["renamed"])
    assert "class" in line and "white" in line and "yellow" in line
    assert "number of classes is 4 in the checkpoint, 5 in this run" in mistake(
        "--resume", "run", data=data["five"]
    )
    assert "training data (manifest fingerprint) is " in mistake("--resume", "run", data=data["other"])
    assert "not a checkpoint that can be read" in mistake("--resume", "cut.pt")
    assert "does not fit --arch resnet18" in mistake("--weights", "run/last.pt", "--arch", "resnet18")
    line = mistake("--output", "run")
    assert "holds a run" in line and "--resume auto" in line
    before = {path.name: path.read_bytes() for path in (train.cwd / "run").iterdir()}
    line = mistake("--resume", "auto", "--output", "run", "--optimizer", "adamw")
    assert "--optimizer is sgd in the checkpoint, adamw in this run" in line and "--weights" in line
    assert {path.name: path.read_bytes() for path in (train.cwd / "run").iterdir()} == before, (
        "what is refused leaves the run as it was"
    )
    content = torch.load(train.cwd / "run" / "last.pt", weights_only=True)
    # as a vision transformer's position embedding differs by image size
    content["model"]["classifier.1.bias"] = torch.zeros(9)
    torch.save(content, train.cwd / "shape.pt")
    line = mistake("--resume", "shape.pt")
    assert "--image-size" in line and "torch.Size([9])" in line and "torch.Size([4])" in line


def test_files_that_changed_since_the_scan(train: Runner) -> None:
    data = draw(train.cwd / "data", classes=("a", "b"), train=12, val=2)
    train("--data", data, *SMALL, "--steps", 1, "--val-every", 0, "--output", "before").done()
    for path in data.glob("train/*/*.jpg"):
        path.write_bytes(path.read_bytes() + b"more")
    line = train("--data", data, *SMALL, "--workers", 1, "--output", "after").mistake()
    assert str(data / "train") in line and ".jpg" in line and "--rescan" in line
    train("--data", data, *SMALL, "--steps", 1, "--rescan", "true", "--output", "again").done()


def test_a_full_output_folder(train: Runner, pictures: Path) -> None:
    """No file may grow beyond 1000 bytes, as on a disk that is full."""
    line = train("--data", pictures, *SMALL, "--output", "full", limits={"RLIMIT_FSIZE": 1000}).mistake()
    assert "--output full" in line and "cannot be written" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_output_folder(train: Runner, pictures: Path) -> None:
    (train.cwd / "closed").mkdir(mode=0o500)
    assert (
        "cannot be written (permission denied)"
        in train("--data", pictures, *SMALL, "--output", "closed").mistake()
    )


def test_a_worker_that_is_killed(train: Runner, pictures: Path) -> None:
    """The system kills one when memory is short: what was trained is not lost."""
    process = train(
        "--data",
        pictures,
        *SMALL,
        "--workers",
        2,
        "--epochs",
        1000,
        "--log-every",
        1,
        "--val-every",
        0,
        "--output",
        "killed",
    )
    told = train.cwd / "killed" / "metrics.jsonl"
    until(lambda: told.exists() and '"train"' in told.read_text(), 60, "steps")
    for child in psutil.Process(process.pid).children():
        child.kill()
    line = process.mistake()
    assert (
        line.startswith("a worker process (pid")
        and "was ended by signal 9, Killed, busy with " in line
        and "fewer --workers" in line
    )
    saved = torch.load(train.cwd / "killed" / "last.pt", weights_only=True)["progress"]
    assert 0 < saved["step"] == len(losses(train.cwd / "killed"))


def test_a_batch_that_does_not_fit_into_memory(train: Runner, pictures: Path) -> None:
    """The message names a batch that fits, tried under the same limit; also for the loader's own memory."""
    train("--loader", "none").mistake()  # all is imported then
    status = Path(f"/proc/{train.zygote.pid}/status").read_text()
    mapped = int(status.split("VmSize:")[1].split()[0]) << 10
    limit = {"RLIMIT_AS": mapped + (1 << 29)}
    flags = ("--loader", "synthetic", *SMALL, "--steps", 1, "--val-every", 0, "--precision", "fp32")

    line = train(*flags, "--batch-size", 4000, limits=limit).mistake()
    assert "--batch-size 4000 does not fit" in line and "--accumulate" in line
    fits = line.split("--batch-size ")[2].split(" ")[0]
    assert 0 < int(fits) < 4000
    train(*flags, "--batch-size", fits, "--output", "fits", limits=limit).done()
    assert summary(train.cwd / "fits")["steps"] == 1

    assert (
        "--batch-size 400000 does not fit" in train(*flags, "--batch-size", 400_000, limits=limit).mistake()
    )
    line = train(
        "--data", pictures, *SMALL, "--workers", 8, "--batch-size", 96, "--image-size", 2000, limits=limit
    ).mistake()
    assert "memory" in line and "--workers" in line and "--batch-size" in line
