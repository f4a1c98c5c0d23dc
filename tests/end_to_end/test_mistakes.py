"""Each mistake of a user, and limits of a machine: exit code 2, and one line that says what was got, or what to
do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.end_to_end.runs import ROOT, Runner, draw, kept

SMALL = """--loader torchvision --arch squeezenet1_1 --image-size 32 --batch-size 8 --workers 0 --epochs 1
    --ceilings false"""

# flags behind a run that would work -> parts of the line; unit tests have each mistake of a module
VALUES = {
    "--arch resnet18 --image-size 8 --batch-size 1": "--batch-size 1 | more than 1 value per channel",
    "--arch fcos_tiny": "--arch got 'fcos_tiny', which is for --task detection",
    "--loader tochvision": "'tochvision' | did you mean torchvision | dali-cpu, dali-gpu, dali-fed",
    "--batch-size 50 --accumulate 97": "4850 samples a step | the data has 96 training samples; take fewer",
    "--evaluate": "--evaluate | --resume | --weights",
    "--manifest-dir text": "text | --manifest-dir",
}


@pytest.mark.parametrize("flags", VALUES)
def test_value(train: Runner, pictures: Path, flags: str) -> None:
    (train.cwd / "text").write_text("no checkpoint, no folder")
    (train.cwd / "set").symlink_to(pictures)
    before = {path.name for path in train.cwd.iterdir()}
    line = train(f"--data set {SMALL} {flags}").mistake()
    assert all(part in line for part in VALUES[flags].split(" | ")), line
    after = {path.name for path in train.cwd.iterdir()}
    assert after == {*before, "process-0"} and not (pictures / "new").exists()


def test_checkpoints_of_other_runs(train: Runner, pictures: Path) -> None:
    """What is refused leaves the run as it was."""
    line = train().mistake()
    assert "--data is missing" in line and "--loader synthetic" in line
    run = train.cwd / "run"
    train("--data", pictures, f"{SMALL} --steps 1 --output run").done()
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    content = kept(run / "last.pt")
    # as a vision transformer's position embedding differs by image size
    content["model"]["classifier.1.bias"] = torch.zeros(9)
    torch.save(content, train.cwd / "shape.pt")
    names = ("blue", "green", "red", "white")
    draw(train.cwd / "more", classes=names, train=25, val=2)
    for flags, said in {
        "--resume run --arch resnet18": "architecture is squeezenet1_1 | resnet18 in this run",
        "--resume run --data more": "training data (manifest fingerprint) is ",
        "--weights run/last.pt --arch resnet18": "does not fit --arch resnet18",
        "--output run": "holds a run | --resume auto",
        "--resume auto --output run --optimizer adamw": "--optimizer is sgd in the checkpoint, adamw in this run",
        "--resume shape.pt": "--image-size | torch.Size([9]) | torch.Size([4])",
    }.items():
        line = train("--data", pictures, f"{SMALL} {flags}").mistake()
        assert all(part in line for part in said.split(" | ")), line
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_files_that_changed_since_the_scan(train: Runner) -> None:
    data = draw(train.cwd / "data", classes=("a", "b"), train=12, val=2)
    flags = f"{SMALL} --steps 1"
    train("--data", data, f"{flags} --val-every 0 --output before").done()
    for path in data.glob("train/*/*.jpg"):
        path.write_bytes(path.read_bytes() + b"more")
    line = train("--data", data, f"{SMALL} --workers 1 --output after").mistake()
    assert str(data / "train") in line and ".jpg" in line and "--rescan" in line
    train("--data", data, f"{flags} --rescan true --output again").done()


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("AS", 5 << 30, "ulimit -v allows 5 GiB of addresses"),
        ("NOFILE", 40, "ulimit -n allows 40 open files"),
        ("NOFILE", 150, "--workers 4 need about 160 open files, in a validation"),
        # no file may grow beyond it, as on a disk that is full
        ("FSIZE", 1000, "cannot be written"),
    ],
)
def test_a_limit_that_is_too_low(
    train: Runner, pictures: Path, limit: str, most: int, said: str
) -> None:
    flags = f"{SMALL} --workers 4 --output full"
    limits = {f"RLIMIT_{limit}": most}
    assert said in train("--data", pictures, flags, limits=limits).mistake()


UNDER_ANY_LIMIT = f"""
import runpy; from saturate.system import limits
limits.LEAST_ADDRESSES = 0
runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""


def test_a_batch_that_does_not_fit_into_memory(train: Runner) -> None:
    assert train.zygote
    train("--loader none").mistake()  # all is imported then
    status = Path(f"/proc/{train.zygote.pid}/status").read_text()
    mapped = int(status.split("VmSize:")[1].split()[0]) << 10
    limits = {"RLIMIT_AS": mapped + (1 << 29)}
    flags = "--loader synthetic --steps 1 --val-every 0 --precision fp32 --batch-size"
    words = f"{SMALL} {flags} 60000".split()
    process = train.python("-c", UNDER_ANY_LIMIT, *words, limits=limits)
    line = process.mistake()
    assert "--batch-size 60000 does not fit" in line and "--accumulate" in line
