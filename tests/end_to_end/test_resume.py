"""A run that was stopped anywhere and resumed: the same losses, each sample of an epoch once."""

from __future__ import annotations

import random
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from saturate.report import record
from tests.end_to_end.runs import (
    STOPPING,
    TIMEOUT_S,
    Process,
    Runner,
    kept,
    losses,
    points,
    reached,
    session,
    steps,
    summary,
    until,
)

N, EPOCHS, STEP = 96, 2, 8  # samples of an epoch, epochs, samples of a step
STEPS = EPOCHS * N // STEP
# `workers` is a rank's
SMALL = f"""--loader torchvision --arch tests.end_to_end.networks:tiny --image-size 32 --workers 1 --epochs {EPOCHS}
    --ceilings false --log-every 1"""
GROWING = """--arch tests.end_to_end.networks:forgetful --image-size 64 --image-size-start 32
    --image-size-ramp 0 1"""


def start(
    train: Runner, data: Path, output: str, flags: str = "", *, ranks: int = 1
) -> list[Process]:
    where = ("--data", data, f"--output {output} --resume auto")
    return train.ranks(ranks, *where, f"{SMALL} --batch-size {STEP // ranks} {flags}")


def test_killed_at_random_steps(train: Runner, pictures: Path) -> None:
    """By SIGTERM, then by SIGKILL, until the run comes to its end; also where images grow."""
    ranks, flags = 2, GROWING
    for process in start(train, pictures, "whole", flags, ranks=ranks):
        process.done()
    whole, killed = train.cwd / "whole", train.cwd / "killed"
    assert len(losses(whole)) == STEPS

    draws = random.Random(ranks)
    for how in (signal.SIGTERM, signal.SIGKILL):
        more = f"{flags} --workers 2 --save-every-steps {draws.randint(1, 3)}"
        processes = start(train, pictures, "killed", more, ranks=ranks)
        reached(killed, steps(killed) + draws.randint(5, 8), processes[0])
        # one rank hears SIGTERM, all stop
        for process in processes if how == signal.SIGKILL else processes[-1:]:
            process.send(how)
        codes = {process.wait() for process in processes}
        ended = -how if how == signal.SIGKILL else 128 + how
        assert codes == {ended}, [process.err for process in processes]
    for process in start(train, pictures, "killed", flags, ranks=ranks):
        process.done()
    assert losses(killed) == losses(whole)
    assert points(killed, "val") == points(whole, "val")
    first, second = kept(whole / "last.pt"), kept(killed / "last.pt")
    assert first["progress"] == second["progress"]
    for name, value in first["model"].items():
        assert torch.equal(value, second["model"][name])
    for point in points(killed, "train"):
        assert point["epoch"] * N + point["consumed"] == point["step"] * STEP


def test_two_processes_and_one_killed_before_the_first_checkpoint(
    train: Runner, pictures: Path
) -> None:
    """A scheduler may start them so. Without a checkpoint --resume auto starts anew."""
    (first,) = start(train, pictures, "run", "--read-delay-ms 60")
    reached(train.cwd / "run", 2, first)
    (second,) = start(train, pictures, "run")
    assert "--output run: another run is writing there" in second.mistake()
    assert first.poll() is None
    first.send(signal.SIGKILL)
    first.wait()
    start(train, pictures, "run", "--steps 3 --val-every 0")[0].done()
    assert len(losses(train.cwd / "run")) == 3


def test_ctrl_c_in_a_run_whose_storage_does_not_answer(
    train: Runner, pictures: Path
) -> None:
    """It waits for its first batch: it gives up, saves, and ends the workers that hang in a read."""
    (process,) = start(train, pictures, "run", "--read-delay-ms 1e8")
    status = Path(f"/proc/{process.pid}/status")

    def hears() -> int:
        caught = int(status.read_text().split("SigCgt:")[1].split()[0], 16)
        return caught & 1 << signal.SIGTERM - 1

    until(hears, TIMEOUT_S, "the run to listen")
    process.interrupt()
    process.send(signal.SIGTERM)
    assert (process.wait(15), process.err) == (130, STOPPING)
    assert kept(train.cwd / "run/last.pt")["progress"]["step"] == 0
    assert session(process.pid) == []


@pytest.mark.parametrize(
    ("flags", "consumed", "validated"),
    [("", N, [(0, N // STEP), (1, STEPS)]), ("--steps 5", 5 * STEP, [(0, 5)])],
    ids=["epoch", "last step"],
)
def test_stopped_while_validating(
    train: Runner, pictures: Path, flags: str, consumed: int, validated: list[Any]
) -> None:
    """What was trained is saved before a validation, and resumes into it; the next one into the next epoch."""
    run = train.cwd / "run"
    slow = f"{flags} --val-batch-size 1 --read-delay-ms 20"
    (process,) = start(train, pictures, "run", slow)
    until((run / "last.pt").exists, TIMEOUT_S, "the checkpoint")
    process.send(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert points(run, "val") == []
    progress = kept(run / "last.pt")["progress"]
    assert (progress["epoch"], progress["consumed"]) == (0, consumed)
    start(train, pictures, "run", flags)[0].done()
    assert [(at["epoch"], at["step"]) for at in points(run, "val")] == validated
    assert len(losses(run)) == validated[-1][1]
    assert summary(run)["samples_dropped"] == 0


def test_files_that_are_gone_for_a_while_cost_no_step(
    train: Runner, pictures: Path
) -> None:
    """The run ends with a checkpoint of its last whole step, and goes on once they are put back."""
    data = train.cwd / "data"
    shutil.copytree(pictures, data)
    (process,) = start(train, data, "run", "--val-every 0 --read-delay-ms 30")
    reached(train.cwd / "run", 3, process)
    one = min((data / "train").iterdir())
    one.rename(data / "away")
    assert "is gone" in process.mistake()
    (data / "away").rename(one)
    assert 3 <= kept(train.cwd / "run/last.pt")["progress"]["step"] < STEPS
    start(train, data, "run", "--val-every 0")[0].done()
    assert len(losses(train.cwd / "run")) == STEPS


def test_the_step_stays_when_ranks_change(train: Runner, pictures: Path) -> None:
    """Parts of 2, 1 and 2 ranks take the steps of a run of one rank; without the flag it is said, and what is left
    of the epoch is taken in other steps: none is dropped.
    """
    plain = "--val-every 0 --warmup-epochs 1"
    flags = f"{plain} --global-batch-size 8"
    start(train, pictures, "whole", f"{flags} --steps 6")[0].done()
    for ranks, batch, step in ((2, 4, 2), (1, 4, 4), (2, 3, 6)):
        more = f"{flags} --batch-size {batch} --steps {step}"
        for process in start(train, pictures, "parts", more, ranks=ranks):
            assert "a step had" not in process.done().out
    runs = []
    for name in ("whole", "parts"):
        found = points(train.cwd / name, "train")
        rates = [rate for point in found for rate in point["lrs"]]
        runs.append((rates, found[-1]["consumed"]))
    assert runs[0] == runs[1] and len(runs[0][0]) == 6
    more = f"{plain} --batch-size 7 --steps 13"  # 6 of 7 samples, and the last 6
    (process,) = start(train, pictures, "parts", more)
    assert "a step had 8 samples and has 7 now" in " ".join(process.done().out.split())
    assert points(train.cwd / "parts", "train")[-1]["consumed"] == N
    told = summary(train.cwd / "parts")
    assert (told["samples"], told["samples_dropped"]) == (N, 0), "of the whole run"


def test_best_and_last_and_a_finished_run_stays_as_it_was(
    train: Runner, pictures: Path
) -> None:
    """best.pt is the first of the best epochs; last.pt is at the end of everything."""
    run = train.cwd / "run"
    start(train, pictures, "run", "--epochs 3 --lr 0.02")[0].done()
    top1 = [point["top1"] for point in points(run, "val")]
    best, last = (kept(run / f"{name}.pt")["progress"] for name in ("best", "last"))
    assert len(top1) == 3 and best["best"] == last["best"] == max(top1)
    assert best["epoch"] == top1.index(max(top1)) + 1 and best["consumed"] == 0
    assert best["step"] == best["epoch"] * N // STEP
    assert last["epoch"] == 3 and last["step"] == 3 * N // STEP
    before = (run / "summary.json").read_bytes()
    process = start(train, pictures, "run", "--epochs 3 --lr 0.02")[0].done()
    assert "nothing was left to train" in process.out
    assert (run / "summary.json").read_bytes() == before
    start(train, pictures, "run", "--epochs 4 --lr 0.02 --steps 37")[0].done()
    assert summary(run)["steps"] == len(losses(run)) == 37


def test_checkpoints_of_an_earlier_run_stay(train: Runner, pictures: Path) -> None:
    """No run begins beside them, and what is later than where one goes on is kept aside."""
    run = train.cwd / "run"
    keeps = "--save-every-steps 6 --keep 9 --keep-best 9"
    start(train, pictures, "run", keeps)[0].done()
    before = {path.name: path.read_bytes() for path in run.glob("*.pt")}
    (run / "last.pt").unlink()
    moved = {path.name: path for path in run.glob("step-*.pt")}
    for name, path in moved.items():
        path.rename(train.cwd / name)
    for resume in ("--resume auto", ""):
        fresh = train("--data", pictures, f"{SMALL} --output run {resume}").mistake()
        assert f"has no last.pt: go on from --resume {run.name}/best.pt" in fresh
    here = {path.name: path.read_bytes() for path in run.glob("*.pt")}
    assert here == {
        name: content
        for name, content in before.items()
        if name not in (*moved, "last.pt")
    }
    for name, path in moved.items():
        (train.cwd / name).rename(path)
    # by hand from an early step: all that is later was to be replaced
    first = min(moved)
    flags = f"{SMALL} {keeps} --batch-size {STEP} --output run --resume run/{first}"
    process = train("--data", pictures, flags, f"--steps {N // STEP - 1}")
    assert process.wait() == 0
    (aside,) = run.glob("later-than-step-*")
    assert str(aside.relative_to(train.cwd)) in process.err
    found = {path.name: path.read_bytes() for path in aside.glob("*.pt")}
    assert found == {
        name: content
        for name, content in before.items()
        if name not in ("last.pt", first)
    }
    assert points(aside, "train")[-1]["step"] == STEPS


def test_a_host_that_is_gone_and_a_damaged_checkpoint(
    train: Runner, pictures: Path
) -> None:
    """What was uploaded has the run; a damaged last.pt gives way to the file of its step."""
    bucket, whole = train.cwd / "bucket" / "run", train.cwd / "whole"
    start(train, pictures, "whole")[0].done()
    more = "--save-every-steps 3 --keep 2"
    (process,) = start(
        train, pictures, f"file://{bucket}", f"{more} --read-delay-ms 30"
    )
    until(lambda: (bucket / "last.pt").exists(), TIMEOUT_S, "an upload")
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.err
    step = kept(bucket / "last.pt")["progress"]["step"]
    assert step == len(losses(bucket)) < STEPS
    shutil.rmtree(train.cwd / "runs")
    damaged = bytearray((bucket / "last.pt").read_bytes())
    damaged[damaged.index(b"progress")] ^= 1
    (bucket / "last.pt").write_bytes(damaged)
    (process,) = start(train, pictures, f"file://{bucket}", more)
    assert process.wait() == 0
    assert "last.pt is damaged, and the one before it is tried" in process.err
    assert losses(bucket) == losses(whole)
    assert summary(bucket)["finished"]
    assert [path.name for path in sorted(bucket.glob("step-*"))][
        -1
    ] == f"step-{STEPS:09}.pt"
    (process,) = train.ranks(1, "--data", pictures, f"{SMALL} --output file://{bucket}")
    assert "holds a run; continue it with --resume auto" in process.mistake()


def test_a_url_is_not_fetched_over_a_run_that_goes_on(train: Runner) -> None:
    bucket = train.cwd / "bucket"
    here = train.cwd / "runs" / str(bucket).strip("/") / "last.pt"
    for path, content in ((bucket / "last.pt", "old"), (here, "new")):
        path.parent.mkdir(parents=True)
        path.write_text(content)
    with record.claimed(here.parent, resuming=True):
        flags = f"--loader synthetic --output file://{bucket} --resume auto"
        assert "another run is writing there" in train(flags).mistake()
    assert (here.read_text(), (bucket / "last.pt").read_text()) == ("new", "old")


def test_a_full_disk_ends_nothing(train: Runner, pictures: Path) -> None:
    """What could not be written is written with the next checkpoint; in the end that is a mistake."""

    def bound(size: int) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, -1))

    last = train.cwd / "run" / "last.pt"

    def saved() -> int:
        return int(kept(last)["progress"]["step"]) if last.exists() else 0

    # it takes megabytes
    flags = """--arch squeezenet1_1 --epochs 1000 --val-every 0 --save-every-steps 1
        --read-delay-ms 10"""
    (process,) = start(train, pictures, "run", flags)
    bound(2_000_000)
    until(lambda: "the next checkpoint tries again" in process.err, TIMEOUT_S, "a line")
    before = saved()  # a first one may have been written before the bound
    bound(-1)
    until(lambda: saved() > before, TIMEOUT_S, "a checkpoint")
    bound(2_000_000)
    process.send(signal.SIGTERM)
    assert process.wait() == 2
    said = process.err[process.err.index("stopping after") :].splitlines()[1:]
    assert "go on with" not in process.out
    # writes of steps before may end meanwhile, each with a line of its own
    *earlier, end = said
    assert all(line.endswith("the next checkpoint tries again") for line in earlier)
    assert "last.pt: File too large; the earlier last.pt is untouched" in end
    assert not end.endswith("tries again") and saved() > before
