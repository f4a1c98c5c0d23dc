"""A run that was stopped anywhere and resumed: the same losses, each sample of an epoch once."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.end_to_end.runs import (
    STOPPING,
    TIMEOUT_S,
    Process,
    Runner,
    losses,
    points,
    session,
    summary,
    until,
)

N, EPOCHS, STEP = 96, 2, 8  # samples of an epoch, epochs, samples of a step
STEPS = EPOCHS * N // STEP
SMALL = (
    *("--loader", "torchvision"),
    "--arch",
    "squeezenet1_1",
    "--image-size",
    32,
    "--workers",
    1,
    "--epochs",
    EPOCHS,
    "--ceilings",
    "false",
    "--log-every",
    1,
)
"""squeezenet1_1 has dropout; `workers` is a rank's."""


def start(
    train: Runner,
    pictures: Path,
    output: str,
    *,
    ranks: int = 1,
    flags: Sequence[object] = (),
) -> list[Process]:
    where = ("--data", pictures, "--output", output, "--resume", "auto")
    return train.ranks(ranks, *where, *SMALL, "--batch-size", STEP // ranks, *flags)


def steps(output: Path) -> int:
    found = points(output, "train")
    return found[-1]["step"] if found else 0


def reached(output: Path, step: int, process: Process) -> None:
    until(
        lambda: steps(output) >= step or process.poll() is not None,
        TIMEOUT_S,
        f"step {step}",
    )


def check_same(uninterrupted: Path, resumed: Path) -> None:
    assert losses(resumed) == losses(uninterrupted)
    assert points(resumed, "val") == points(uninterrupted, "val")
    first, second = (
        torch.load(output / "last.pt", weights_only=True)
        for output in (uninterrupted, resumed)
    )
    assert first["progress"] == second["progress"]
    assert all(
        torch.equal(value, second["model"][name])
        for name, value in first["model"].items()
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_at_random_steps(train: Runner, pictures: Path, ranks: int) -> None:
    """SIGTERM and SIGKILL in turns, until the run comes to its end."""
    for process in start(train, pictures, "whole", ranks=ranks):
        process.done()
    whole, killed = train.cwd / "whole", train.cwd / "killed"
    assert len(losses(whole)) == STEPS

    draws, interrupted = random.Random(ranks), 0
    for number, at in enumerate(sorted(draws.sample(range(1, STEPS), 3))):
        flags = ("--workers", 2, "--save-every-steps", draws.randint(1, 3))
        processes = start(train, pictures, "killed", ranks=ranks, flags=flags)
        reached(killed, max(at, steps(killed) + 1), processes[0])
        how = (signal.SIGTERM, signal.SIGKILL)[number % 2]
        # one rank hears SIGTERM, all stop
        for process in processes if how == signal.SIGKILL else processes[-1:]:
            process.send(how)
        codes = {process.wait() for process in processes}
        ended = -how if how == signal.SIGKILL else 128 + how
        assert codes <= {ended, 0}, [process.err for process in processes]
        interrupted += ended in codes
    assert interrupted >= 2, "the others had come to their end before the signal"
    for process in start(train, pictures, "killed", ranks=ranks):
        process.done()
    check_same(whole, killed)
    for point in points(killed, "train"):
        assert point["epoch"] * N + point["consumed"] == point["step"] * STEP


def test_images_that_grow_go_on_at_their_size(train: Runner, pictures: Path) -> None:
    """Stopped in the epoch of small images, and in that of large ones."""
    flags = ("--image-size", 64, "--image-size-start", 32, "--image-size-ramp", 0, 1)
    start(train, pictures, "whole", flags=flags)[0].done()
    for until_step in (5, 18):
        start(
            train,
            pictures,
            "run",
            flags=(*flags, "--steps", until_step, "--val-every", 0),
        )[0].done()
    start(train, pictures, "run", flags=flags)[0].done()
    assert losses(train.cwd / "run") == losses(train.cwd / "whole")
    first, second = (
        torch.load(train.cwd / name / "last.pt", weights_only=True)["model"]
        for name in ("whole", "run")
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_two_processes_and_one_killed_before_the_first_checkpoint(
    train: Runner, pictures: Path
) -> None:
    """A scheduler may start them so. Without a checkpoint --resume auto starts anew."""
    (first,) = start(train, pictures, "run", flags=("--read-delay-ms", 30))
    until(lambda: steps(train.cwd / "run") > 1, TIMEOUT_S, "two steps")
    (second,) = start(train, pictures, "run")
    assert "--output run: another run is writing there" in second.mistake()
    assert first.poll() is None
    first.send(signal.SIGKILL)
    first.wait()
    start(train, pictures, "run")[0].done()
    assert len(losses(train.cwd / "run")) == STEPS


def test_ctrl_c_in_a_run_whose_storage_does_not_answer(
    train: Runner, pictures: Path
) -> None:
    """It waits for its first batch: it gives up, saves, and ends the workers that hang in a read."""
    (process,) = start(train, pictures, "run", flags=("--read-delay-ms", 1e8))
    status = Path(f"/proc/{process.pid}/status")
    heard = 1 << signal.SIGTERM - 1  # proc(5), SigCgt
    until(
        lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & heard,
        TIMEOUT_S,
        "the run to listen",
    )
    process.interrupt()
    process.send(signal.SIGTERM)
    assert (process.wait(15), process.err) == (130, STOPPING)
    assert (
        torch.load(train.cwd / "run" / "last.pt", weights_only=True)["progress"]["step"]
        == 0
    )
    assert session(process.pid) == []


def test_stopped_while_validating(train: Runner, pictures: Path) -> None:
    """A checkpoint at an epoch's end resumes into validation; the next one into the next epoch."""
    slow = ("--val-batch-size", 1, "--read-delay-ms", 20)
    (process,) = start(train, pictures, "run", flags=slow)
    until(
        lambda: steps(train.cwd / "run") == N // STEP, TIMEOUT_S, "the end of the epoch"
    )
    until(lambda: (train.cwd / "run" / "last.pt").exists(), TIMEOUT_S, "its checkpoint")
    process.send(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert points(train.cwd / "run", "val") == []
    progress = torch.load(train.cwd / "run" / "last.pt", weights_only=True)["progress"]
    assert (progress["epoch"], progress["consumed"], progress["step"]) == (
        0,
        N,
        N // STEP,
    )

    start(train, pictures, "run")[0].done()
    assert [
        (point["epoch"], point["step"]) for point in points(train.cwd / "run", "val")
    ] == [
        (0, N // STEP),
        (1, STEPS),
    ]
    assert len(losses(train.cwd / "run")) == STEPS
    assert summary(train.cwd / "run")["samples_dropped"] == 0


def test_files_that_are_gone_for_a_while_cost_no_step(
    train: Runner, pictures: Path
) -> None:
    """The run ends with a checkpoint of its last whole step, and goes on once they are put back."""
    data = train.cwd / "data"
    shutil.copytree(pictures, data)
    start(train, data, "whole")[0].done()
    (process,) = start(train, data, "run", flags=("--read-delay-ms", 30))
    reached(train.cwd / "run", 3, process)
    one = min(folder for folder in (data / "train").iterdir())
    one.rename(data / "away")
    assert "is gone" in process.mistake()
    (data / "away").rename(one)
    step = torch.load(train.cwd / "run" / "last.pt", weights_only=True)["progress"][
        "step"
    ]
    assert 3 <= step < STEPS
    start(train, data, "run")[0].done()
    check_same(train.cwd / "whole", train.cwd / "run")


def test_stopped_while_ceilings_are_measured(train: Runner, pictures: Path) -> None:
    slow = ("--ceilings", "true", "--read-delay-ms", 30)
    (process,) = start(train, pictures, "run", flags=slow)
    until(
        lambda: "measuring the two ceilings" in process.out, TIMEOUT_S, "the ceilings"
    )
    process.send(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert (
        points(train.cwd / "run", "ceilings") == points(train.cwd / "run", "val") == []
    )
    assert summary(train.cwd / "run")["ceiling"] == {"compute": None, "loader": None}

    start(train, pictures, "run", flags=("--ceilings", "true"))[0].done()
    assert len(points(train.cwd / "run", "ceilings")) == 1
    assert len(losses(train.cwd / "run")) == STEPS


def test_stopped_while_validating_after_the_last_step(
    train: Runner, pictures: Path
) -> None:
    """--steps ends training in mid-epoch: what was trained is saved before the validation, not after it."""
    flags = ("--steps", 5)
    (process,) = start(
        train,
        pictures,
        "run",
        flags=(*flags, "--val-batch-size", 1, "--read-delay-ms", 20),
    )
    until(lambda: (train.cwd / "run" / "last.pt").exists(), TIMEOUT_S, "the checkpoint")
    process.send(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert points(train.cwd / "run", "val") == []
    start(train, pictures, "run", flags=flags)[0].done()
    assert [point["step"] for point in points(train.cwd / "run", "val")] == [5]


def test_other_batch_and_world_size_go_on_with_the_tail(
    train: Runner, pictures: Path
) -> None:
    """3 steps of 8 samples, 1 of 2 x 12 (15 would leave a short one), 1 of 7; of the 41 left 5 steps of
    8, and the last sample: none is dropped.
    """
    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 8, 3, 24),
        (2, 15, 4, 48),
        (1, 7, 5, 55),
        (1, 8, 11, 96),
    )
    for ranks, batch, step, consumed in stages:
        flags = ("--batch-size", batch, "--steps", step, "--val-every", 0)
        for process in start(train, pictures, "run", ranks=ranks, flags=flags):
            process.done()
        last = points(train.cwd / "run", "train")[-1]
        assert (last["step"], last["consumed"]) == (step, consumed)
    assert len(losses(train.cwd / "run")) == 11
    found = summary(train.cwd / "run")
    assert (found["samples"], found["samples_dropped"]) == (96, 0), "of the whole run"


def test_best_and_last_and_a_finished_run_stays_as_it_was(
    train: Runner, pictures: Path
) -> None:
    """best.pt is the first of the best epochs; last.pt is at the end of everything."""
    flags = ("--epochs", 4, "--lr", 0.02)
    start(train, pictures, "run", flags=flags)[0].done()
    top1 = [point["top1"] for point in points(train.cwd / "run", "val")]
    assert len(top1) == 4
    best, last = (
        torch.load(train.cwd / "run" / name, weights_only=True)["progress"]
        for name in ("best.pt", "last.pt")
    )
    assert best["best"] == last["best"] == max(top1)
    assert best["epoch"] == top1.index(max(top1)) + 1 and best["consumed"] == 0
    assert best["step"] == best["epoch"] * N // STEP
    assert last["epoch"] == 4 and last["step"] == 4 * N // STEP
    before = (train.cwd / "run" / "summary.json").read_bytes()
    process = start(train, pictures, "run", flags=flags)[0].done()
    assert "nothing was left to train" in process.out
    assert (train.cwd / "run" / "summary.json").read_bytes() == before
    start(train, pictures, "run", flags=(*flags, "--epochs", 5, "--steps", 49))[
        0
    ].done()
    assert summary(train.cwd / "run")["steps"] == len(losses(train.cwd / "run")) == 49
