"""torchrun as a user types it, with two processes; signals reach all of them."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import torch

from tests.end_to_end.runs import (
    ROOT,
    STOPPING,
    TIMEOUT_S,
    Runner,
    losses,
    points,
    session,
    until,
)

TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    2,
    ROOT / "train.py",
)
SMALL = (
    *("--loader", "torchvision"),
    "--arch",
    "squeezenet1_1",
    "--image-size",
    32,
    "--batch-size",
    4,
    "--workers",
    1,
    "--ceilings",
    "false",
    "--log-every",
    1,
)


def ours(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("train.py: ")]


def test_sigterm_ends_in_one_checkpoint(train: Runner, pictures: Path) -> None:
    """All ranks stop at the same step, long before torchrun would kill (30 s)."""
    output = train.cwd / "run"
    with train.command(
        *TORCHRUN,
        "--data",
        pictures,
        *SMALL,
        "--epochs",
        100_000,
        "--val-every",
        0,
        "--output",
        "run",
    ) as process:
        until(lambda: len(points(output, "train")) > 3, TIMEOUT_S, "three steps")
        process.terminate()
        _, said = process.communicate(timeout=25)
        assert process.returncode != 0
        until(lambda: session(process.pid) == [], 60, "every process to end")
    assert ours(said) == STOPPING.splitlines()
    assert "Warning" not in said, said
    progress = torch.load(output / "last.pt", weights_only=True)["progress"]
    assert progress["step"] == len(losses(output))
    assert progress["epoch"] * 96 + progress["consumed"] == progress["step"] * 8
    assert not (output / "best.pt").exists()


def test_a_mistake_is_said_once(train: Runner, pictures: Path) -> None:
    first, second = train.ranks(2, "--data", pictures, *SMALL, "--accumulate", 49)
    assert (
        "there are 96 training samples; too few samples for this many ranks"
        in first.mistake()
    )
    time.sleep(2)
    assert second.err == "", "by then torchrun has ended it"


def test_a_loss_that_is_not_finite(train: Runner, pictures: Path) -> None:
    flags = (
        "--epochs",
        2,
        "--lr",
        1e30,
        "--warmup-epochs",
        0,
        "--save-every-steps",
        1,
        "--precision",
        "fp32",
        "--output",
        "run",
    )
    processes = train.ranks(2, "--data", pictures, *SMALL, *flags)
    assert processes[0].wait() == 3
    (line,) = processes[0].err.splitlines()
    assert (
        line.startswith("train.py: the loss is ")
        and "step 2" in line
        and "samples [" in line
        and "--lr" in line
    )
    step = int(line.split("at step ")[1].split(";")[0])
    assert step == 2 and not (train.cwd / "run" / "last.pt").exists(), (
        "the first one is written once step 2 is known to be sound"
    )


def test_a_rank_that_is_killed(train: Runner, pictures: Path) -> None:
    processes = train.ranks(
        2,
        "--data",
        pictures,
        *SMALL,
        "--epochs",
        1000,
        "--save-every-steps",
        1,
        "--output",
        "run",
    )
    until(lambda: len(points(train.cwd / "run", "train")) > 3, TIMEOUT_S, "three steps")
    processes[1].send(signal.SIGKILL)
    assert processes[0].mistake().startswith("another rank has ended: ")
    assert (
        torch.load(train.cwd / "run" / "last.pt", weights_only=True)["progress"]["step"]
        > 0
    )


def test_ctrl_c(train: Runner, pictures: Path) -> None:
    """A terminal sends it to every process of the run, loader workers too."""
    process = train(
        "--data", pictures, *SMALL, "--epochs", 1000, "--workers", 2, "--output", "run"
    )
    until(lambda: len(points(train.cwd / "run", "train")) > 3, TIMEOUT_S, "three steps")
    process.interrupt()
    assert (process.wait(), process.err) == (130, STOPPING)
    progress = torch.load(train.cwd / "run" / "last.pt", weights_only=True)["progress"]
    assert progress["step"] == len(losses(train.cwd / "run"))
    assert session(process.pid) == []


def test_ctrl_c_while_it_imports(train: Runner) -> None:
    with train.command(ROOT / "train.py", *SMALL, "--loader", "synthetic") as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "numpy" in maps.read_text(), TIMEOUT_S, "the first imports")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said) == (130, "")
    assert not (train.cwd / "runs").exists()
