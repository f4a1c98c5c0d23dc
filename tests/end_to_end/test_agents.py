"""Two hosts, as network namespaces of this machine with names of their own: ranks are killed, a link is cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.hosts import Host, network
from tests.end_to_end.runs import ROOT, Runner, losses, reached
from tests.end_to_end.test_torchrun import SMALL, ours

FLAGS = f"{SMALL} --epochs 100 --val-every 0 --steps 20 --save-every-steps 2 --resume auto".split()
FOUND_S = 60.0
"""The most that it takes to find a lost host, where ranks are SILENT_S = 2.5 s for one; TCP gives up in minutes."""
IMPATIENT = f"""
import runpy, sys
from saturate.engine import distributed, ranks
ranks.BEAT_S, ranks.SILENT_S, ranks.CLOSED_S, ranks.ANSWERS_S = 0.5, 2.5, 1.0, 2.0
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
"""


@pytest.fixture
def hosts(train: Runner) -> Iterator[list[Host]]:
    with network(2, train) as found:
        yield found


def test_a_run_is_the_planned_one(
    train: Runner, hosts: list[Host], pictures: Path
) -> None:
    """Though a rank is killed, and agents restart at moments of their own."""
    words = (ROOT / "train.py", "--data", pictures, *FLAGS)
    planned, run = train.cwd / "planned", train.cwd / "run"
    for rank in train.ranks(2, *words[1:], "--output", planned):
        rank.done()
    agents = [host.agent(hosts[0], *words) for host in hosts]
    reached(run, 4)
    hosts[0].rank().kill()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert len(losses(run)) == 20 and losses(run) == losses(planned)


def test_a_host_that_is_lost(train: Runner, hosts: list[Host], pictures: Path) -> None:
    words = ("-c", IMPATIENT, "--data", pictures, *FLAGS)
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    common |= {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500"}
    ranks = [h.fork(*words, RANK=str(h.number), **common) for h in hosts]
    reached(train.cwd / "run", 4)
    began = time.monotonic()
    hosts[1].cut()
    codes = [rank.wait() for rank in ranks]
    assert time.monotonic() - began < FOUND_S
    for host, other, rank in zip(hosts, reversed(hosts), ranks, strict=True):
        line, *where = ours(rank.err)
        assert len(where) == (1 if host.number == 0 else 0), "rank 0's last words"
        assert f"rank {host.number} on {host.name} cannot go on: " in line
        assert f"rank {other.number} on {other.name} does not answer" in line
    assert codes == [1, 1]


def test_a_mistake_of_one_host_is_said_on_both_and_started_once(
    train: Runner, hosts: list[Host], pictures: Path
) -> None:
    """Each agent sees the exit code of its own rank, and --max-restarts 1 starts nothing."""
    program = str(ROOT / "scripts/entry_point.py")
    words = (ROOT / "train.py", "--data", pictures, *FLAGS)
    agents = [
        host.agent(hosts[0], *words, *more, program=program)
        for host, more in zip(hosts, ([], ["--lr", "0.7"]), strict=True)
    ]
    assert [agent.wait() for agent in agents] == [2, 2]
    differ = f"train.py: the ranks differ: --lr is 0.1 on rank 0, 0.7 on rank 1 on {hosts[1].name}"
    for rank, agent in enumerate(agents):
        assert ours(agent.err) == [f"{differ}; all need the same"]
        assert f"entry point: rank {rank} failed first, exit code 2" in agent.err
        assert "Traceback" not in agent.err
