"""Hosts of a run with --unkillable are cut off, or lost with all of their processes: a majority goes on, or half of
them with the lock of a shared --output, and the others end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.hosts import Host, network
from tests.end_to_end.runs import TIMEOUT_S, Process, Runner, reached, until
from tests.end_to_end.test_unkillable import (
    EVERY,
    LOGGED,
    SMALL,
    Part,
    Ranks,
    parts,
    same_as_planned,
)

WORDS = f"{SMALL} --unkillable {EVERY} --output run"


class Cluster(Ranks):
    """A rank on each host. The first one has the store."""

    def __init__(
        self,
        train: Runner,
        data: Path,
        hosts: list[Host],
        flags: str = "",
        limit_s: float = TIMEOUT_S,
        slept_s: float = 0.25,
    ) -> None:
        super().__init__(train, data, "run")
        self.limit_s = limit_s
        self.hosts = hosts
        self.flags = flags
        self.slept_s = slept_s
        for host in hosts:
            self.start_on(host)
        self.go_on(0)

    def start_on(self, host: Host, store: Host | None = None) -> None:
        """Start the host's rank, which meets the others at the `store` of that host, the first one's by default."""
        first = store or self.hosts[0]
        common = {"WORLD_SIZE": str(len(self.hosts)), "LOCAL_WORLD_SIZE": "1"}
        common |= {"LOCAL_RANK": "0", "RANK": str(host.number), "MASTER_PORT": "29500"}
        common |= {"MASTER_ADDR": first.address, "SAMPLES": str(self.samples)}
        common |= {"SLEPT_S": str(self.slept_s)}
        # of two hosts no other one may come meanwhile
        common |= {"ALONE_S": "4"} if len(self.hosts) == 2 else {}
        # else pages of frames where a store is lost
        common |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        words = f"{WORDS} {self.flags} --data {self.data}".split()
        self.there[host.number] = host.fork(LOGGED, *words, **common)

    def without(self, lost: Host) -> Part:
        """Return the next generation of those that are left."""
        before = len(parts(self.samples))
        self.there.pop(lost.number)
        return self.go_on(before)


@pytest.fixture
def three(train: Runner) -> Iterator[list[Host]]:
    with network(3, train) as hosts:
        yield hosts


def end(process: Process) -> tuple[int, str]:
    """Return the exit code of a rank, and what it has said."""
    return process.wait(), process.err


@pytest.mark.parametrize("lost", [0, 2], ids=["with the store", "another"])
def test_of_three_hosts_two_go_on(
    train: Runner, pictures: Path, three: list[Host], lost: int
) -> None:
    cluster = Cluster(train, pictures, three)
    cut_off = cluster.there[lost]
    left = [host for host in three if host.number != lost]
    now = time.time()
    three[lost].cut()
    went_on = cluster.without(three[lost])
    took_s = went_on.began_s - now
    print(f"{took_s:.1f} s to the next step")
    assert went_on.ranks == 2 and took_s < 40
    code, said = end(cut_off)
    assert code == 1
    alone = "1 of 3 hosts left, neither a majority nor the lock of a shared --output"
    assert f"--unkillable: {alone}; others may go on" in said
    newest = parts(cluster.samples)[-1].ranks
    assert newest == 2, "who is cut off trains on"
    if lost == 0:  # it is started again, and has no store of its own
        before = len(parts(cluster.samples))
        three[0].kill()
        three[0].join()
        cluster.start_on(three[0], three[1])
        assert cluster.go_on(before).ranks == 3
        assert [host.has_store() for host in three] == [False, True, False]
        left.append(three[0])
    cluster.there[left[1].number].send(signal.SIGTERM)
    ends = [end(cluster.there[host.number]) for host in left]
    assert {code for code, _ in ends} == {143}
    for host, (_, said) in zip(left[:2], ends, strict=False):
        named = f"rank {lost} on {three[lost].name} was killed, or its host is lost"
        assert f"{named} or cut off; goes on with 2 of 3 ranks" in said, said
        moved = f"the store at {three[0].address} does not answer; MASTER_ADDR is {three[1].address} now"
        assert (moved in said) == (lost == 0), host.name
    same_as_planned(cluster)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "not shared"])
def test_of_two_hosts_who_has_the_lock_goes_on(
    train: Runner, pictures: Path, shared: bool
) -> None:
    with network(2, train) as hosts:
        if not shared:
            hosts[1].folder = train.cwd / "elsewhere"
            hosts[1].folder.mkdir()
        cluster = Cluster(train, pictures, hosts, slept_s=0.1)
        before = len(parts(cluster.samples))
        hosts[0].cut()
        ranks = [*cluster.there.values()]
        until(lambda: any(rank.poll() for rank in ranks), TIMEOUT_S, "an end")
        alone = "--unkillable: 1 of 2 hosts left, neither a majority nor the lock of a shared --output"
        if not shared:
            ends = [end(rank) for rank in ranks]
            assert [code for code, _ in ends] == [1, 1]
            assert all(alone in said for _, said in ends)
            assert len(parts(cluster.samples)) == before, "one has trained on"
            return
        (other,) = (rank for rank in ranks if rank.poll())
        code, said = end(other)
        assert code == 1 and alone in said
        (winner,) = (rank for rank in ranks if rank is not other)
        cluster.there = {0: winner}
        assert cluster.go_on(before).ranks == 1
        reached(train.cwd / "run", 30)  # an epoch has 24 steps at most
        winner.send(signal.SIGTERM)
        assert winner.wait() == 143
        same_as_planned(cluster)
