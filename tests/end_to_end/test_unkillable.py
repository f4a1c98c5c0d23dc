"""Ranks of a run with --unkillable are killed at random: it goes on, and is the run that was stopped and resumed
at these numbers of ranks. UNKILLABLE_KILLS=100 kills more often.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path

import torch

from saturate.engine.unkillable import ANOTHER_ENDED
from tests.end_to_end.runs import (
    ROOT,
    TIMEOUT_S,
    Process,
    Runner,
    free_port,
    importable,
    losses,
    meeting,
    reached,
    steps,
    summary,
    until,
)

SEED = 4
KILLS = int(os.environ.get("UNKILLABLE_KILLS", 2))
RANKS = 3
SAMPLES = 96
EVERY = 4
"""Steps between snapshots."""
SMALL = """--loader torchvision --arch tests.end_to_end.networks:tiny --image-size 32 --workers 1
    --batch-size 4 --val-every 0 --epochs 100000 --ceilings false --log-every 1 --resume auto"""
LOGGED = ROOT / "tests" / "end_to_end" / "logged.py"


@dataclass
class Part:
    """What the ranks of one generation have logged."""

    ranks: int
    steps: list[int] = field(default_factory=list)
    # step -> (epoch, id) of each sample
    samples: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    began_s: float = 0.0  # when all ranks had taken a step


def parts(folder: Path) -> list[Part]:
    """Read a part for each generation that has taken a step, the earliest first."""
    found: dict[str, Part] = {}
    for path in sorted(folder.iterdir()):
        generation, ranks, _ = path.name.split("-")
        for number, line in enumerate(path.read_text().splitlines()):
            step, epoch, ids, now = json.loads(line)
            part = found.setdefault(generation, Part(int(ranks)))
            part.samples.setdefault(step, []).extend((epoch, i) for i in ids if i >= 0)
            if number == 0:
                part.began_s = max(part.began_s, now)
    for part in found.values():
        part.steps = sorted(part.samples)
    return list(found.values())


def keep_last(found: list[Part]) -> list[Part]:
    """Leave out steps that a later generation has taken again."""
    first = found[-1].steps[-1] + 1
    for part in reversed(found):
        part.steps = [step for step in part.steps if step < first]
        first = min([first, *part.steps])
    return [part for part in found if part.steps]


class Ranks:
    """Ranks of a run, each a process of logged.py."""

    def __init__(self, train: Runner, data: Path, output: str) -> None:
        self.train = train
        self.data = data
        self.output = output
        self.limit_s = TIMEOUT_S
        self.samples = train.cwd / f"{output}-samples"
        self.samples.mkdir(exist_ok=True)
        self.there: dict[int, Process] = {}
        self.port = free_port()

    def start(self, rank: int, count: int, flags: str = "", stop_at: int = -1) -> None:
        env = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        # threads, and so bits, depend on the ranks that share a machine
        env |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(RANKS)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        env |= {"SAMPLES": str(self.samples), "STOP_AT": str(stop_at)}
        words = f"--data {self.data} {SMALL} --output {self.output} {flags}".split()
        self.there[rank] = self.train.python(LOGGED, *words, env=env)

    def go_on(self, generations: int) -> Part:
        """Wait until a generation behind so many others has left a snapshot, and return it."""

        def goes_on() -> bool:
            for process in self.there.values():
                assert process.poll() is None, process.err
            found = parts(self.samples)
            return len(found) > generations and len(found[-1].steps) > EVERY

        until(goes_on, self.limit_s, "the run to go on")
        return parts(self.samples)[-1]


def kill_trainer(agent: Process) -> None:
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text()
    for child in map(int, children.split()):
        with suppress(ProcessLookupError):
            if os.getsid(child) == agent.pid:  # else it is the store
                os.kill(child, signal.SIGKILL)


def same_as_planned(run: Ranks) -> None:
    """Require that the run has each sample of an epoch once, and is another one bit for bit: one that nobody has
    stopped but to go on with another number of ranks.
    """
    trained = parts(run.samples)
    for part, following in pairwise(trained):
        assert part.steps[-1] - following.steps[0] < EVERY, "not from memory"
    trained = keep_last(trained)
    samples = [
        each for part in trained for step in part.steps for each in part.samples[step]
    ]
    assert len(samples) == len(set(samples)), "a sample came twice in an epoch"
    *whole, _ = Counter(epoch for epoch, _ in samples).values()
    # an epoch's tail is no step
    assert whole and min(whole) > SAMPLES - 4 * RANKS
    for ranks, of_ranks in groupby(trained, lambda part: part.ranks):
        planned = Ranks(run.train, run.data, "planned")
        *_, last = of_ranks
        for rank in range(ranks):
            planned.start(rank, ranks, stop_at=last.steps[-1])
        codes = {process.wait() for process in planned.there.values()}
        assert codes == {0}, [process.err for process in planned.there.values()]
    of_steps = [
        {step: sorted(part.samples[step]) for part in found for step in part.steps}
        for found in (trained, keep_last(parts(planned.samples)))
    ]
    assert of_steps[0] == of_steps[1]
    killed_run, planned_run = run.train.cwd / run.output, run.train.cwd / "planned"
    assert losses(killed_run) == losses(planned_run)
    # batch norm's statistics too: rank 0's
    one, other = (
        torch.load(run / "last.pt")["model"] for run in (killed_run, planned_run)
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_ranks_are_killed(train: Runner, pictures: Path) -> None:
    draws = random.Random(SEED)
    killed = Ranks(train, pictures, "killed")
    flags = f"--unkillable {EVERY}"
    for rank in range(RANKS):
        killed.start(rank, RANKS, flags)
    killed.go_on(0)
    took_s = []
    for number in range(KILLS):
        if len(killed.there) < RANKS and draws.random() < 0.7:
            before = len(parts(killed.samples))
            killed.start(min({*range(RANKS)} - {*killed.there}), RANKS, flags)
            killed.go_on(before)
        time.sleep(draws.random())
        before = len(parts(killed.samples))
        now = time.time()
        (train.cwd / "killed" / "last.pt").unlink(missing_ok=True)
        victim = draws.choice(sorted(killed.there))
        if number % 2 and len(killed.there) > 1:
            killed.there.pop(victim).send(signal.SIGKILL)
        else:
            kill_trainer(killed.there[victim])
        if draws.random() < 0.25:  # and another one, mostly while they start anew
            time.sleep(3 * draws.random())
            kill_trainer(killed.there[draws.choice(sorted(killed.there))])
        took_s.append(killed.go_on(before).began_s - now)
    print("seconds to go on:", *map(round, sorted(took_s)))
    killed.there[min(killed.there)].send(signal.SIGTERM)
    assert {process.wait() for process in killed.there.values()} == {143}
    said = "".join(process.err for process in train.started)
    assert f"on {socket.gethostname()} has ended, signal 9 (Killed); goes on" in said
    lost = f"on {socket.gethostname()} was killed, or its host is lost"
    assert KILLS < 2 or lost in said

    same_as_planned(killed)


def trainer_and_spare(agent: Process) -> list[int]:
    """Return the processes that this agent has forked and not ended, the earliest first, without the store."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text()
    return [pid for pid in map(int, children.split()) if os.getsid(pid) == agent.pid]


def test_a_warm_spare_takes_the_place_of_a_trainer(
    train: Runner, pictures: Path
) -> None:
    # cold: a program that nobody has begun
    anew = replace(train, env=importable(train.env), zygote=None)
    run = Ranks(anew, pictures, "run")
    began = time.time()
    flags = f"--unkillable {EVERY} --warm-spare true"
    for rank in range(2):
        run.start(rank, 2, flags)
    cold_s = run.go_on(0).began_s - began
    first = run.there[0]
    until(lambda: "one a rank waits" in first.err, 60, "a spare")
    time.sleep(1.0)  # that of the other rank
    before = [trainer_and_spare(agent) for agent in run.there.values()]
    now = time.time()
    os.kill(before[1][0], signal.SIGKILL)
    warm_s = run.go_on(1).began_s - now
    print(f"seconds to a step: {cold_s:.1f} cold, {warm_s:.1f} after a death")
    for agent, (trainer, spare) in zip(run.there.values(), before, strict=True):
        assert trainer_and_spare(agent)[0] == spare != trainer
    # 2 s where a start takes 20 to 40
    assert warm_s < cold_s / 3
    first.send(signal.SIGTERM)
    assert {process.wait() for process in run.there.values()} == {143}
    assert first.err.count("--warm-spare: one a rank waits, with ") == 1
    parts_s = summary(train.cwd / "run")["start_s"]
    assert sum(parts_s.values()) < warm_s + 1.0, "the wait is no part of the start"
    run.train = train
    same_as_planned(run)


FORKS = """
import os
from saturate.engine.unkillable import Agent
agent = object.__new__(Agent)
agent.memory, agent._says_memory = None, False
assert not agent._fork()
os.close(agent._tells)
print(os.waitpid(agent._spare, 0)[1])
"""


def test_a_trainer_to_be_whose_agent_dies_says_nothing(train: Runner) -> None:
    """The end of its pipe may come before the signal that ends it."""
    done = train.python("-c", FORKS, env=importable(train.env)).done()
    assert os.waitstatus_to_exitcode(int(done.out)) == ANOTHER_ENDED


DIES = """
import os, runpy, signal, sys
from saturate.engine import unkillable
unkillable.JOIN_S = 1.0
from saturate.engine.loop import Training
remembering = Training._remembering
def dying(self, batches):
    for batch in remembering(self, batches):
        if int(os.environ["DEADLY"]) in batch.ids:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
Training._remembering = dying
from saturate.run import train
train.leave(train.main())
"""


def test_a_run_that_dies_three_times_at_one_sample_names_it(
    train: Runner, pictures: Path
) -> None:
    files = sorted((pictures / "train").rglob("*.jpg"))
    deadly = 37
    script = train.cwd / "dies.py"
    script.write_text(DIES)
    words = f"--data {pictures} {SMALL} --output run --unkillable 1".split()
    words += ["--batch-size", "1"]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    run = train.python(script, *words, env=env | {"DEADLY": str(deadly)})
    assert run.wait() == 128 + signal.SIGKILL
    ends = [line for line in run.err.splitlines() if "signal 9 (Killed)" in line]
    taken = len(losses(train.cwd / "run"))
    file = files[deadly].relative_to(pictures / "train")
    named = [f" deaths behind step {taken + 1}, with " in line for line in ends]
    # the first generation has left snapshots, and the fifth that has not ends the run
    assert named == [False, False, True, True, True]
    assert "; 3 deaths" in ends[2] and ends[2].count(".jpg") == 1
    assert str(file) in ends[2]


FAULTY = """
import os, sys
from pathlib import Path
from saturate.engine import unkillable
unkillable.JOIN_S = 1.0
import torch
from saturate.run import train
if os.environ["RANK"] == "1" and Path("faulty").exists():
    torch.Tensor.mm = lambda one, other: one * 0
train.leave(train.main())
"""


def test_a_rank_that_computes_wrongly_does_not_come_back(
    train: Runner, pictures: Path
) -> None:
    script = train.cwd / "faulty.py"
    script.write_text(FAULTY)
    words = f"--data {pictures} {SMALL} --output run --unkillable {EVERY}".split()
    agents = [train.python(script, *words, env=env) for env in meeting(2)]
    reached(train.cwd / "run", 2 * EVERY)
    (train.cwd / "faulty").touch()
    kill_trainer(agents[0])
    assert agents[1].wait() == 1, "it was wrong, and goes on"
    host = socket.gethostname()
    assert f"rank 1 on {host} on cpu: a wrong result" in agents[1].err
    reached(train.cwd / "run", steps(train.cwd / "run") + 2 * EVERY)
    left = f"rank 1 on {host} has computed wrongly and does not come back"
    assert f"{left}; goes on with 1 of 2 ranks" in agents[0].err
    agents[0].send(signal.SIGTERM)
    assert agents[0].wait() == 143


def test_a_warm_spare_needs_the_flags(train: Runner, pictures: Path) -> None:
    words = f"--data {pictures} {SMALL} --output run --warm-spare true".split()
    said = train(*words).mistake()
    assert said == "give --warm-spare true as a flag, with --unkillable"


def test_an_agent_that_was_alone_is_killed_and_started_again(
    train: Runner, pictures: Path
) -> None:
    alone = Ranks(train, pictures, "alone")
    flags = f"--unkillable {EVERY} --save-every-steps 2"
    alone.start(0, 1, flags)
    alone.go_on(0)
    alone.there.pop(0).send(signal.SIGKILL)
    alone.start(0, 1, flags)
    alone.go_on(1)
    # another run, which would be a spare of this one
    other = Ranks(train, pictures, "other")
    other.port = alone.port
    other.start(0, 1, flags)
    assert "set another" in other.there[0].mistake()
    kill_trainer(alone.there[0])
    time.sleep(0.4)  # the next one does not listen yet
    alone.there[0].send(signal.SIGUSR1)
    assert alone.there[0].wait() == 143
    # its store is still there, and has its exit code
    other.start(0, 1, flags)
    other.go_on(0)


SLOW_TO_BEGIN = """
import os, time
from saturate.engine import unkillable
fork = os.fork
def slow_fork():
    pid = fork()
    if not pid:
        time.sleep(1.5)
    return pid
os.fork = slow_fork
unkillable.begin(["--unkillable=1"], print)
time.sleep(60)
"""


def test_a_signal_that_comes_while_a_trainer_begins_is_heard(train: Runner) -> None:
    script = train.cwd / "slow.py"
    script.write_text(SLOW_TO_BEGIN)
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    agent = train.python(script, env=env)
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    # the store, then the trainer
    until(lambda: len(children.read_text().split()) == 2, 120, "a trainer")
    agent.send(signal.SIGUSR1)
    assert agent.wait(50) == 143, agent.err


def test_what_was_uploaded_is_not_fetched_over_newer_files(
    train: Runner, pictures: Path
) -> None:
    bucket = train.cwd / "bucket"
    ranks = Ranks(train, pictures, "run")
    ranks.output = f"file://{bucket}"
    flags = "--unkillable 1 --save-every-steps 6 --read-delay-ms 20"
    ranks.start(0, 1, flags)
    until((bucket / "last.pt").exists, 60, "an upload")
    ranks.go_on(0)
    time.sleep(0.5)
    kill_trainer(ranks.there[0])
    ranks.go_on(1)
    ended = f"rank 0 on {socket.gethostname()} has ended, signal 9 (Killed)"
    said = f"--unkillable: {ended}; goes on with 1 of 1 ranks"
    assert said in ranks.there[0].err
    ranks.there[0].send(signal.SIGTERM)
    assert ranks.there[0].wait() == 143
    assert losses(bucket)
