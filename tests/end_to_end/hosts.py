"""Hosts of a test, as network namespaces of this machine with names of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.end_to_end.runs import Process, Runner, importable

STORE = ":733C "
"""MASTER_PORT 29500 in /proc/net/tcp."""


def ip(words: str) -> int:
    return subprocess.run(["ip", *words.split()], stderr=subprocess.DEVNULL).returncode


class Host:
    """A network namespace."""

    def __init__(self, number: int, train: Runner) -> None:
        self.name = f"h{number}-{os.getpid()}"
        self.link = f"veth-{number}"
        self.address = f"10.99.0.{number + 1}"
        self.number = number
        self._train = train
        self.folder = train.cwd
        # as many cores, and so threads, as each of two ranks on one host
        cores = sorted(os.sched_getaffinity(0))
        self._cores = cores[: max(1, len(cores) // 2)]

    def fork(self, *words: object, **variables: str) -> Process:
        """Start what `python WORDS` starts on this host, with imports that were made before."""
        env = {"GLOO_SOCKET_IFNAME": self.link, **variables}
        return self._train.python(
            *words,
            env=importable({**self._train.env, **env}),
            cwd=self.folder,
            host=(self.name, self._cores),
        )

    def agent(
        self, first: Host, *words: object, program: str = "-m torch.distributed.run"
    ) -> Process:
        """Start torchrun, or the entry point, with one rank; the rendezvous is at the `first` host."""
        meets = f"--rdzv-backend c10d --rdzv-endpoint {first.address}:29400 --local-addr {self.address}"
        meets += f" --rdzv-conf is_host={int(first is self)}"
        torchrun = f"{program} --nnodes 2 --max-restarts 1 {meets}"
        return self.fork(*torchrun.split(), *words)

    def processes(self) -> list[psutil.Process]:
        listed = ["ip", "netns", "pids", self.name]
        pids = subprocess.run(listed, capture_output=True, text=True).stdout.split()
        return [psutil.Process(int(pid)) for pid in pids]

    def rank(self) -> psutil.Process:
        """The process of train.py that torchrun has started."""
        here = self.processes()
        (agent,) = (p for p in here if p.ppid() not in {one.pid for one in here})
        (rank,) = agent.children()
        return rank

    def has_store(self) -> bool:
        """Whether a store listens on the host."""
        tables = "/proc/net/tcp", "/proc/net/tcp6"
        command = ["ip", "netns", "exec", self.name, "cat", *tables]
        listed = subprocess.run(command, capture_output=True, text=True).stdout
        return any(STORE in line and " 0A " in line for line in listed.splitlines())

    def cut(self) -> None:
        """Take the host off the network."""
        ip(f"-n {self.name} link set {self.link} down")

    def join(self) -> None:
        """Put it there, again too."""
        ip(f"-n {self.name} addr replace {self.address}/24 dev {self.link}")
        for link in ("lo", self.link):
            ip(f"-n {self.name} link set {link} up")

    def kill(self) -> None:
        """Kill all of its processes."""
        for process in self.processes():
            process.kill()


@contextmanager
def network(count: int, train: Runner) -> Iterator[list[Host]]:
    """So many hosts that reach each other inside, through a bridge in a namespace of its own."""
    switch = f"switch-{os.getpid()}"
    if ip(f"netns add {switch}"):
        pytest.skip("only root makes network namespaces, by `ip netns add`")
    found = [Host(number, train) for number in range(count)]
    try:
        assert not ip(f"-n {switch} link add bridge type bridge")
        ip(f"-n {switch} link set bridge up")
        for host in found:
            ip(f"netns add {host.name}")
            ends = f"{host.link} netns {host.name} type veth peer name {host.link}"
            assert not ip(f"link add {ends} netns {switch}")
            ip(f"-n {switch} link set {host.link} master bridge up")
            host.join()
        yield found
    finally:
        for host in found:
            host.kill()
            ip(f"netns del {host.name}")
        ip(f"netns del {switch}")
