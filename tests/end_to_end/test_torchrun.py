"""torchrun as a user types it, with two processes; signals reach all of them."""

from __future__ import annotations

import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.runs import (
    ROOT,
    STOPPING,
    TIMEOUT_S,
    Runner,
    importable,
    kept,
    losses,
    reached,
    session,
    until,
)

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SMALL = """--loader torchvision --arch squeezenet1_1 --image-size 32 --batch-size 4 --workers 1
    --ceilings false --log-every 1 --output run"""


def ours(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("train.py: ")]


def test_sigterm_ends_in_one_checkpoint(train: Runner, pictures: Path) -> None:
    """All ranks stop at the same step, long before torchrun would kill (30 s)."""
    flags = f"{SMALL} --epochs 100000 --val-every 0".split()
    words = (*TORCHRUN, ROOT / "train.py", "--data", pictures, *flags)
    process = train.python(*words)
    reached(train.cwd / "run", 4)
    process.send(signal.SIGTERM)
    assert process.wait(25) != 0
    until(lambda: session(process.pid) == [], 60, "every process to end")
    assert ours(process.err) == STOPPING.splitlines()
    assert "Warning" not in process.err, process.err
    progress = kept(train.cwd / "run/last.pt")["progress"]
    assert progress["step"] == len(losses(train.cwd / "run"))
    assert progress["epoch"] * 96 + progress["consumed"] == progress["step"] * 8
    assert f"last.pt has step {progress['step']}: go on with" in process.out
    assert not (train.cwd / "run" / "best.pt").exists()


def test_after_ctrl_c_the_last_line_says_how_to_go_on(
    train: Runner, pictures: Path
) -> None:
    """torchrun's traceback comes behind all that its ranks say, so a process says the line behind it, and then ends.

    The command is the package's own, and starts its ranks as a user's does.
    """
    flags = f"{SMALL} --epochs 100000 --val-every 0".split()
    words = (*TORCHRUN, "-m", "saturate", "train", "--data", pictures, *flags)
    anew = replace(train, zygote=None)
    process = anew.python(*words, env=importable(train.env))
    reached(train.cwd / "run", 2, process)
    process.interrupt()
    assert process.wait() != 0
    step = kept(train.cwd / "run/last.pt")["progress"]["step"]
    said = f"train.py: stopped at step {step}; last.pt has step {step}: go on with"
    until(lambda: said in process.err, TIMEOUT_S, "the line behind torchrun's")
    *_, last = process.err.splitlines()
    assert last.startswith(said) and "--resume auto" in last
    assert process.err.count(said) == 1


def test_a_loss_that_is_not_finite(train: Runner, pictures: Path) -> None:
    flags = (
        "--epochs 2 --lr 1e30 --warmup-epochs 0 --save-every-steps 2 --precision fp32"
    )
    process, _ = train.ranks(2, "--data", pictures, f"{SMALL} {flags}")
    assert process.wait() == 3
    (line,) = process.err.splitlines()
    assert line.startswith("train.py: the loss is ") and "samples [" in line
    assert "at step 2;" in line and "--lr" in line
    # the first one would have been of step 2
    assert not (train.cwd / "run" / "last.pt").exists()


@pytest.mark.parametrize(
    ("flags", "file"),
    [
        ("--save-every-steps 1", "last.pt"),
        ("--save-every-steps 1", ".last.pt.new"),
        ("--read-delay-ms 50 --val-batch-size 1", "last.pt"),
    ],
    ids=["steps", "checkpoint", "validation"],
)
def test_a_rank_that_is_killed(
    train: Runner, pictures: Path, flags: str, file: str
) -> None:
    """The others blame it alone, and not each other, who leave because of it."""
    words = f"{SMALL} --epochs 1000 {flags}"
    first, killed, last = train.ranks(3, "--data", pictures, words)
    until((train.cwd / "run" / file).exists, TIMEOUT_S, file)
    killed.send(signal.SIGKILL)
    for process in first, last:
        assert process.wait() == 1
        lines = ours(process.err)
        told = f": rank 1 on {socket.gethostname()} does not answer; "
        assert [told in line for line in lines].count(True) == 1
        assert len(lines) == (2 if process is first else 1)
    if file == "last.pt":
        step = kept(train.cwd / "run/last.pt")["progress"]["step"]
        assert f"train.py: last.pt has step {step}: go on with" in first.err


def test_ctrl_c_while_it_imports(train: Runner) -> None:
    with train.command(ROOT / "train.py", "--loader", "synthetic") as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "numpy" in maps.read_text(), TIMEOUT_S, "the first imports")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, said) == (130, "")
    assert not (train.cwd / "runs").exists()
