"""Deaths of trainers, agents and hosts of a run with --unkillable on three hosts, drawn from a seed: no sample is lost
or comes twice, and the weights are those of a run that nobody has stopped.

    python -m tests.end_to_end.deaths --deaths 1000 --seed 7 --output deaths.jsonl

Each line of the file is a round: a run with --a-round deaths. Rounds that the file has are not run again, so a sweep
goes on where it has ended. It needs root, for network namespaces. Exit code 1: a round has failed, as its line says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psutil

from tests.end_to_end.hosts import Host, network
from tests.end_to_end.runs import Runner, draw, importable, until
from tests.end_to_end.test_cut_off import Cluster
from tests.end_to_end.test_unkillable import parts, same_as_planned

KINDS = {"trainer": 11, "agent": 4, "host": 3, "cut": 2}
"""What dies -> how often, of 20. `cut`: a host that is cut off, which ends by itself."""
NICE = 15
GOES_ON_S = 900.0
"""The most that a run may take to go on, or to end, on a machine that does other things first."""


def kill_trainer(pid: int) -> None:
    """Kill the trainer of the agent, once it has one, and leave its spare."""
    file = Path(f"/proc/{pid}/task/{pid}/children")
    end = time.monotonic() + GOES_ON_S
    while time.monotonic() < end and psutil.pid_exists(pid):
        for child in map(int, file.read_text().split()):
            with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended
                has_workers = bool(psutil.Process(child).children())
                if has_workers and os.getsid(child) == os.getsid(pid):
                    return os.kill(child, signal.SIGKILL)
        time.sleep(0.1)
    raise RuntimeError(f"the agent {pid} has no trainer")


def stores(cluster: Cluster) -> list[Host]:
    return [host for host in cluster.hosts if host.has_store()]


def die(cluster: Cluster, kind: str, host: Host, draws: random.Random) -> float:
    """Let it die, and have the run go on with all hosts; return the seconds to the next step."""
    process = cluster.there[host.number]
    before = len(parts(cluster.samples))
    now = time.time()
    if kind == "trainer":
        kill_trainer(process.pid)
        return cluster.go_on(before).began_s - now
    if kind == "agent":
        os.kill(process.pid, signal.SIGKILL)
    if kind == "host":
        host.cut()
        host.kill()
    if kind == "cut":
        host.cut()
    took_s = cluster.without(host).began_s - now
    process.wait(GOES_ON_S)
    host.kill()  # a store of its own, which outlives an agent: the others then move to another one
    others = [[other] for other in cluster.hosts if other is not host]
    until(lambda: stores(cluster) in others, GOES_ON_S, "one store, elsewhere")
    host.join()
    time.sleep(draws.random())
    (store,) = stores(cluster)
    before = len(parts(cluster.samples))
    cluster.start_on(host, store)
    # a generation may begin without it meanwhile
    while cluster.go_on(before).ranks < len(cluster.hosts):
        before += 1
    return took_s


def one_round(folder: Path, seed: int, number: int, deaths: int) -> dict[str, Any]:
    """Run a round in a new folder, and return its line."""
    draws = random.Random(f"{seed}/{number}")
    # what a round is compared with starts faster from there
    zygote = Popen(
        [sys.executable, "-m", "tests.end_to_end.zygote"],
        env=environment(folder),
        stdin=PIPE,
        stdout=PIPE,
        text=True,
    )
    train = Runner(folder, environment(folder), zygote)
    data = draw(folder / "data", classes=("a", "b", "c", "d"), train=24, val=2)
    flags = draws.choice(["", "--warm-spare true"])
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with network(3, train) as hosts:
        cluster = Cluster(train, data, hosts, flags, GOES_ON_S, slept_s=0)
        for _ in range(deaths):
            (kind,) = draws.choices([*KINDS], [*KINDS.values()])
            time.sleep(2 * draws.random())
            took[kind].append(round(die(cluster, kind, draws.choice(hosts), draws), 1))
        for rank in cluster.there.values():
            rank.send(signal.SIGTERM)
        for rank in cluster.there.values():
            rank.wait(GOES_ON_S)
        trained = parts(cluster.samples)
    same_as_planned(cluster)
    zygote.kill()
    steps = trained[-1].steps[-1]
    return {"flags": flags, "seconds": took, "steps": steps, "deaths": deaths}


def environment(folder: Path) -> dict[str, str]:
    """Return what a run sees of this program's environment."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    # of all rounds: a start has compiled modules for 10 s
    own["PYTHONPYCACHEPREFIX"] = str(folder.parent / "deaths-modules")
    return importable({"PATH": os.environ["PATH"], **own})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=1000)
    parser.add_argument("--a-round", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("deaths.jsonl"))
    options = parser.parse_args()
    os.nice(NICE)
    options.output.touch()
    lines = [json.loads(line) for line in options.output.read_text().splitlines()]
    done = {(line["seed"], line["round"]): line for line in lines}
    for number in range(-(-options.deaths // options.a_round)):
        place = options.seed, number
        if place not in done:
            folder = Path(tempfile.mkdtemp(prefix="deaths-"))
            try:
                found = one_round(folder, *place, options.a_round)
            except Exception:
                found = {"deaths": 0, "failed": traceback.format_exc()}
                found["folder"] = str(folder)
            done[place] = {"seed": options.seed, "round": number, **found}
            with options.output.open("a") as file:
                print(json.dumps(done[place]), file=file)
        of_seed = [line for line in done.values() if line["seed"] == options.seed]
        failed = sum("failed" in line for line in of_seed)
        counts = Counter[str]()
        for line in of_seed:
            counts.update({k: len(v) for k, v in line.get("seconds", {}).items()})
        total = sum(line["deaths"] for line in of_seed)
        print(
            f"{total} deaths {dict(counts)}, {failed} rounds have failed",
            file=sys.stderr,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
