"""Each mistake of a user: exit code 2, and one line that says what was got, or what to do."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from tests.end_to_end.runs import ROOT, Runner, draw, losses, until

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
    "--epochs",
    1,
    "--ceilings",
    "false",
)

# flags behind a run that would work, and what the line must say; unit tests have each mistake of a module
VALUES = (
    (("--arch", "alexnet", "--image-size", 32), ("--image-size 32", "alexnet", "224")),
    (
        ("--arch", "resnet18", "--image-size", 8, "--batch-size", 1),
        ("--batch-size 1", "more than 1 value per channel"),
    ),
    (
        ("--loader", "tochvision"),
        ("'tochvision'", "did you mean torchvision", "dali-cpu, dali-gpu, dali-fed"),
    ),
    (
        ("--batch-size", 50, "--accumulate", 97),
        ("4850 samples a step", "there are 96 training samples; too few"),
    ),
    (("--loader", "pyav"), ("--loader got 'pyav'", "which is unknown")),
    (("--evaluate", "true"), ("--evaluate", "--resume", "--weights")),
    (
        ("--evaluate", "true", "--resume", "auto", "--output", "new"),
        ("--evaluate", "--resume", "--weights"),
    ),
    (("--resume", "text"), ("--resume text", "not a checkpoint")),
    (("--sync-bn", "true"), ("--sync-bn is for GPUs, and there is none",)),
    (("--weights", "dict.pt"), ("--weights dict.pt", "no state dict")),
    (("--manifest-dir", "text"), ("text", "--manifest-dir")),
    (
        ("--config", "nowhere.yaml"),
        ("--config nowhere.yaml", "presets are in configs/"),
    ),
)


@pytest.mark.parametrize(
    ("flags", "said"), VALUES, ids=[" ".join(map(str, flags)) for flags, _ in VALUES]
)
def test_value(
    train: Runner, pictures: Path, flags: tuple[object, ...], said: tuple[str, ...]
) -> None:
    (train.cwd / "text").write_text("no checkpoint, no folder")
    torch.save({"a": 1}, train.cwd / "dict.pt")
    line = train("--data", pictures, *SMALL, *flags).mistake()
    assert all(part in line for part in said), line
    assert {path.name for path in train.cwd.iterdir()} == {
        "text",
        "dict.pt",
        "process-0",
    }


def test_folders(train: Runner, pictures: Path) -> None:
    assert (
        "--data nowhere: no such folder" in train("--data", "nowhere", *SMALL).mistake()
    )
    inside = train(
        "--data", pictures, *SMALL, "--manifest-dir", pictures / "manifests"
    ).mistake()
    assert "inside --data" in inside and not (pictures / "manifests").exists()
    line = train().mistake()
    assert "--data is missing" in line and "--loader synthetic" in line


def test_checkpoints_of_other_runs(train: Runner, pictures: Path) -> None:
    """What is refused leaves the run as it was."""
    train("--data", pictures, *SMALL, "--steps", 1, "--output", "run").done()
    before = {path.name: path.read_bytes() for path in (train.cwd / "run").iterdir()}
    content = torch.load(train.cwd / "run" / "last.pt", weights_only=True)
    # as a vision transformer's position embedding differs by image size
    content["model"]["classifier.1.bias"] = torch.zeros(9)
    torch.save(content, train.cwd / "shape.pt")
    more = draw(
        train.cwd / "more", classes=("blue", "green", "red", "white"), train=25, val=2
    )
    for flags, said in (
        (
            ("--resume", "run", "--arch", "resnet18"),
            ("architecture is squeezenet1_1", "resnet18 in this run"),
        ),
        (
            ("--resume", "run", "--data", more),
            ("training data (manifest fingerprint) is ",),
        ),
        (
            ("--weights", "run/last.pt", "--arch", "resnet18"),
            ("does not fit --arch resnet18",),
        ),
        (("--output", "run"), ("holds a run", "--resume auto")),
        (
            ("--resume", "auto", "--output", "run", "--optimizer", "adamw"),
            ("--optimizer is sgd in the checkpoint, adamw in this run", "--weights"),
        ),
        (
            ("--resume", "shape.pt"),
            ("--image-size", "torch.Size([9])", "torch.Size([4])"),
        ),
    ):
        line = train("--data", pictures, *SMALL, *flags).mistake()
        assert all(part in line for part in said), line
    assert {
        path.name: path.read_bytes() for path in (train.cwd / "run").iterdir()
    } == before


def test_files_that_changed_since_the_scan(train: Runner) -> None:
    data = draw(train.cwd / "data", classes=("a", "b"), train=12, val=2)
    train(
        "--data", data, *SMALL, "--steps", 1, "--val-every", 0, "--output", "before"
    ).done()
    for path in data.glob("train/*/*.jpg"):
        path.write_bytes(path.read_bytes() + b"more")
    line = train("--data", data, *SMALL, "--workers", 1, "--output", "after").mistake()
    assert str(data / "train") in line and ".jpg" in line and "--rescan" in line
    train(
        "--data", data, *SMALL, "--steps", 1, "--rescan", "true", "--output", "again"
    ).done()


def test_a_full_output_folder(train: Runner, pictures: Path) -> None:
    """No file may grow beyond 1000 bytes, as on a disk that is full."""
    line = train(
        "--data", pictures, *SMALL, "--output", "full", limits={"RLIMIT_FSIZE": 1000}
    ).mistake()
    assert "--output full" in line and "cannot be written" in line


def test_a_worker_that_is_killed(train: Runner, pictures: Path) -> None:
    long = ("--workers", 2, "--epochs", 1000, "--log-every", 1, "--val-every", 0)
    process = train("--data", pictures, *SMALL, *long, "--output", "killed")
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


UNDER_ANY_LIMIT = f"""
import runpy; from system import limits
limits.LEAST_ADDRESSES = 0
runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""


def test_a_batch_that_does_not_fit_into_memory(train: Runner, pictures: Path) -> None:
    """The message names a batch that fits; also for the loader's own memory."""
    assert train.zygote
    train("--loader", "none").mistake()  # all is imported then
    status = Path(f"/proc/{train.zygote.pid}/status").read_text()
    mapped = int(status.split("VmSize:")[1].split()[0]) << 10
    limit = {"RLIMIT_AS": mapped + (1 << 29)}
    flags = (
        *SMALL,
        "--loader",
        "synthetic",
        "--steps",
        1,
        "--val-every",
        0,
        "--precision",
        "fp32",
    )

    def mistake(*argv: object) -> str:
        return train.python("-c", UNDER_ANY_LIMIT, *argv, limits=limit).mistake()

    line = mistake(*flags, "--batch-size", 3000)
    assert "--batch-size 3000 does not fit" in line and "--accumulate" in line
    fits = line.split("--batch-size ")[2].split(" ")[0]
    assert 0 < int(fits) < 3000

    assert "--batch-size 60000 does not fit" in mistake(*flags, "--batch-size", 60_000)
    line = mistake(
        "--data",
        pictures,
        *SMALL,
        "--workers",
        8,
        "--batch-size",
        96,
        "--image-size",
        4000,
    )
    assert "memory" in line and "--workers" in line and "--batch-size" in line
