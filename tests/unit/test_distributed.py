"""Processes that agree, with two and three gloo processes on this machine."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from saturate.contracts import NotFinite, UserError
from saturate.engine import distributed
from saturate.engine.distributed import (
    ProcessWorld,
    Vote,
    cores,
    leave,
    prepare_process,
)
from saturate.engine.loss_log import LossLog
from saturate.system import resources
from saturate.system.resources import memory_bytes
from tests.end_to_end.runs import Runner, free_port
from tests.unit.test_step import Net, assert_alike, batch_of, step_of

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
HOST = socket.gethostname()
HUGE = 2**53 + 1  # no float64 holds it
STEPS, STOP_AT, SAVE_AT = 12, 3, 5
NOTHING = dict.fromkeys(Vote.FLAGS, False)
VALID: list[list[list[int] | None]] = [  # [step][micro-batch of rank 0, of rank 1, ...]
    [None, [0], [1, 2, 3], [4]],
    [[0, 1], [], None, [5]],
    [[], [2], [3, 4], None],
]
"""Which samples of six count in each micro-batch of a step; None = all."""

LAYOUTS: dict[str, Any] = {
    "channels last": torch.arange(24.0)
    .view(2, 3, 2, 2)
    .to(memory_format=torch.channels_last),
    "expanded": torch.arange(3.0).expand(2, 3),
    "a part": torch.arange(12).view(3, 4)[:, 1:3],
    "nested": [(torch.tensor(True), torch.zeros(0, 3)), "a word"],
    "bf16": torch.ones(3).bfloat16(),
}
"""What rank 0 may have, of a checkpoint."""


def sent(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # one with gaps comes without
        return value.dtype, torch.empty_like(value).stride(), value.tolist()
    return [sent(each) for each in value] if isinstance(value, list | tuple) else value


def memory() -> int:
    """Bytes that this process has needed at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def work(world: ProcessWorld) -> dict[str, Any]:
    """Everything that needs company, one after the other; a file a rank takes the findings home."""
    found: dict[str, Any] = {"every": {}, "sum": []}
    mine = np.array([HUGE, -1, world.rank], np.int64)
    for ranks_a_step in (64, 1):
        distributed.RANKS_A_STEP = ranks_a_step
        vote = Vote(world)
        votes = []
        for k in range(STEPS):
            stop = world.rank == 1 and k == STOP_AT
            save = world.rank == 0 and k == SAVE_AT
            votes.append(vote.exchange(stop=stop, save=save))
        votes.append(vote.drain())
        vote.exchange(window=world.rank == world.size - 1)
        found["every"][vote.every] = [*votes, vote.drain()]
        found["sum"].append(world.sum(mine).tolist())
    assert mine.tolist() == [HUGE, -1, world.rank]
    log, ids = LossLog(4, world, precision="fp32"), [np.array([world.rank])]
    log.add(1, torch.tensor([1.0 + world.rank, 1.0, 0.0, 1.0]), ids)
    found["loss"] = [log.read(failed=world.rank)[0]["loss"], log.failed]
    loss = torch.inf if world.rank == 1 else 1.0
    log.add(2, torch.tensor([loss, 1.0, 0.0, 1.0]), ids)
    try:
        log.read()
    except NotFinite as mistake:
        found["not finite"] = str(mistake)
    found["gather"] = world.gather({"rank": world.rank, "bytes": bytes(world.rank)})
    world.barrier()
    identity: dict[str, Any] = {"arch": "a", "classes": ["x"] * 1000}
    try:
        world.agree({**identity, "manifest": f"m{world.rank // 2}"})
    except UserError as mistake:
        found["agree"] = str(mistake)
    content = LAYOUTS | {"large": torch.full((1 << 25,), 7.0)}
    before = memory()
    content = world.first(lambda: content)
    found["memory"] = (memory() - before) / content["large"].nbytes
    assert bool((content.pop("large") == 7.0).all())
    found["layouts"] = {name: sent(value) for name, value in content.items()}
    norm = nn.BatchNorm1d(2)
    norm(torch.full((4, 2), float(world.rank)) + torch.arange(4.0)[:, None])
    world.broadcast(norm.buffers())
    found["buffers"] = {name: buffer.tolist() for name, buffer in norm.named_buffers()}
    found["training"] = train(world)
    return found


def train(world: ProcessWorld) -> dict[str, Any]:
    net, accumulate = Net(), len(VALID[0]) // world.size
    step = step_of(net, accumulate=accumulate, clip=0.5)
    step.world = world
    step.module = world.wrap(net, compiled=False, bucket_mib=1)
    outcomes = []
    for k, counted in enumerate(VALID):
        micro = [
            batch_of(10 * k + m, counted[m])
            for m in range(world.rank, len(counted), world.size)
        ]
        outcomes.append(
            step(iter(micro), lr=0.1, epoch=0, position=k, want_norm=True).tolist()
        )
    return {
        "outcomes": outcomes,
        "weights": [p.detach().numpy() for p in net.parameters()],
    }


def main(size: int, results: Path) -> None:
    children = []
    for rank in range(size):
        if not (child := os.fork()):
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            world = ProcessWorld(prepare_process())
            with world.joined():
                found = work(world)
            (results / f"{rank}.pickle").write_bytes(pickle.dumps(found))
            leave(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * size


def run(size: int, folder: Path, runner: Runner) -> list[dict[str, Any]]:
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }
    code = (
        "import pathlib, warnings; warnings.simplefilter('error'); "
        "warnings.filterwarnings('ignore', 'This process', DeprecationWarning); "
        "from tests.unit.test_distributed import main; "
        f"main({size}, pathlib.Path({str(folder)!r}))"
    )
    runner.python("-c", code, env=common).done()
    return [
        pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(size)
    ]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    zygote: subprocess.Popen[str],
) -> list[dict[str, Any]]:
    """What each of two and of three processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    return run(request.param, folder, Runner(folder, environment, zygote))


def test_what_ranks_tell_each_other(ranks: list[dict[str, Any]]) -> None:
    """Flags of any rank one step later, or of many ranks some steps, exact sums, losses of all ranks, values
    in rank order, data that differ, rank 0's statistics.
    """
    size = len(ranks)
    norm = nn.BatchNorm1d(2)
    norm(torch.zeros(4, 2) + torch.arange(4.0)[:, None])
    for found in ranks:
        assert sorted(found["every"]) == [1, size]
        for every, votes in found["every"].items():
            # sent with the last step of its `every`, read as many later, and when drained at the latest
            stop_at, save_at = (
                min((raised_at // every + 2) * every - 1, STEPS)
                for raised_at in (STOP_AT, SAVE_AT)
            )
            assert votes == [
                *(
                    {**NOTHING, "stop": k == stop_at, "save": k == save_at}
                    for k in range(STEPS + 1)
                ),
                {**NOTHING, "window": True},
            ]
        assert found["sum"] == [[size * HUGE, -size, sum(range(size))]] * 2
        assert found["loss"] == [(size + 1) / 2, sum(range(size))]
        assert found["not finite"].startswith("the loss is inf at step 2; samples [1];")
        told = [{"rank": rank, "bytes": bytes(rank)} for rank in range(size)]
        assert found["gather"] == told
        assert found["layouts"] == {
            name: sent(value) for name, value in LAYOUTS.items()
        }
        # the tensors themselves, and hardly a copy
        assert found["memory"] < 1.5
        said = f"the ranks differ: manifest is m0 on rank 0, m1 on rank 2 on {HOST}"
        said += "; all need the same"
        assert found.get("agree") == (said if size > 2 else None)
        for name, buffer in norm.named_buffers():
            assert found["buffers"][name] == buffer.tolist()


def test_training_on_several_ranks_is_training_on_one(
    ranks: list[dict[str, Any]],
) -> None:
    size = len(ranks)
    used = len(VALID[0]) // size * size
    net = Net()
    alone = step_of(net, accumulate=used, clip=0.5)
    for k, counted in enumerate(VALID):
        loss, valid, norm, _ = alone(
            iter([batch_of(10 * k + m, counted[m]) for m in range(used)]),
            lr=0.1,
            epoch=0,
            position=k,
            want_norm=True,
        ).tolist()
        outcomes = [found["training"]["outcomes"][k] for found in ranks]
        assert sum(outcome[0] for outcome in outcomes) == pytest.approx(loss, rel=1e-4)
        assert sum(outcome[1] for outcome in outcomes) == valid
        assert [outcome[2] for outcome in outcomes] == [
            pytest.approx(norm, rel=1e-3)
        ] * size
    first = ranks[0]["training"]["weights"]
    for found in ranks:
        other = Net()
        weights = found["training"]["weights"]
        for p, value, same in zip(other.parameters(), weights, first, strict=True):
            assert (value == same).all()
            p.data = torch.from_numpy(value)
        assert_alike(other, net)


PREPARED = """
import os
from saturate.engine.distributed import cores, prepare_process
device = prepare_process()
import torch
names = "CUDA_DEVICE_MAX_CONNECTIONS OMP_WAIT_POLICY GOMP_SPINCOUNT NCCL_GRAPH_REGISTER PYTORCH_ALLOC_CONF"
print(torch.get_num_threads() == max(1, int(cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
print(*(os.environ.get(name, "-") for name in names.split()))
"""
OURS = ("CUDA_", "GLIBC_", "GOMP_", "KMP_", "MALLOC_", "OMP_", "NCCL_", "PYTORCH_")
"""How the names of variables begin that decide what a process is given."""


def printed(program: str, given: str = "") -> list[str]:
    """Return the words that a program prints with these variables, as NAME=VALUE, and none of OURS."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith(OURS)}
    more = dict(word.split("=", 1) for word in given.split())
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**clean, "CUDA_VISIBLE_DEVICES": "", **more},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


GROWS = "expandable_segments:True"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_WAIT_POLICY=PASSIVE LOCAL_WORLD_SIZE=2",
            f"1 PASSIVE 1000 0 {GROWS}",
        ),
        # torchrun says OMP_NUM_THREADS=1, and one process takes all cores; NCCL maps no segment that grows
        (
            f"OMP_NUM_THREADS=1 PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:9,{GROWS}",
            "32 ACTIVE 1000 0 -",
        ),
    ],
)
def test_a_process_is_prepared_and_what_the_user_has_set_stays(
    given: str, expected: str
) -> None:
    assert printed(PREPARED, given) == ["True", *expected.split()]


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("", "", 8.0),
        ("cpu.max", "max 100000", 8.0),
        ("cpu.max", "150000 100000", 1.5),
        ("cpu/cpu.cfs_quota_us", "400000", 4.0),
        ("memory.max", "4096", 8.0),
        ("memory/memory.limit_in_bytes", "4096", 8.0),
    ],
)
def test_cores_and_memory_are_the_containers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    content: str,
    found: float,
) -> None:
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    if file:
        (tmp_path / file).write_text(content + "\n")
    assert cores() == found
    least = content == "4096"
    assert memory_bytes() == (4096 if least else psutil.virtual_memory().total)


@pytest.mark.parametrize(
    ("count", "gpu", "expected"),
    [
        (1.0, True, 1),
        (1.5, False, 1),
        (2.0, True, 2),
        (2.0, False, 1),
        (16.0, True, 15),
    ],
)
def test_with_two_cores_a_gpu_has_both(
    monkeypatch: pytest.MonkeyPatch, count: float, gpu: bool, expected: int
) -> None:
    """A step on a CPU takes the second core itself; ranks of a machine share its cores."""
    world = ProcessWorld(torch.device("cuda" if gpu else "cpu"))
    for ranks in (1, 2):
        monkeypatch.setattr(distributed, "cores", lambda ranks=ranks: ranks * count)
        world.local_size = ranks
        assert world.workers(None) == expected
