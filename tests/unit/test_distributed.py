"""Processes that agree, with two and three gloo processes on this machine."""

from __future__ import annotations

import ctypes
import os
import pickle
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

from contracts import UserError
from engine import distributed
from engine.distributed import ProcessWorld, Vote, cores, leave, prepare_process
from system import resources
from system.resources import memory_bytes
from tests.end_to_end.runs import Runner
from tests.unit.test_step import Net, assert_alike, batch_of, step_of

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
HUGE = 2**53 + 1  # no float64 holds it
STOP_AT, SAVE_AT = 3, 5
NOTHING = dict.fromkeys(Vote.FLAGS, False)
VALID: list[list[list[int] | None]] = [  # [step][micro-batch of rank 0, of rank 1, ...]
    [None, [0], [1, 2, 3], [4]],
    [[0, 1], [], None, [5]],
    [[], [2], [3, 4], None],
]
"""Which samples of six count in each micro-batch of a step; None = all."""


def work(world: ProcessWorld) -> dict[str, Any]:
    """Everything that needs company, one after the other; a file a rank takes the findings home."""
    found: dict[str, Any] = {"rank": world.rank}
    vote = Vote(world)
    found["votes"] = [
        vote.exchange(
            stop=world.rank == 1 and k == STOP_AT, save=world.rank == 0 and k == SAVE_AT
        )
        for k in range(8)
    ]
    found["drained"] = vote.drain()
    vote.exchange(window=world.rank == world.size - 1)
    found["drained raised"] = vote.drain()

    found["sum"] = world.sum(np.array([HUGE, -1, world.rank], np.int64)).tolist()
    mine = np.array([1.0, 2.0])
    found["sum of floats"] = world.sum(mine).tolist()
    found["own array"] = mine.tolist()
    found["gather"] = world.gather({"rank": world.rank, "bytes": bytes(world.rank)})
    world.barrier()

    world.agree({"arch": "a", "manifest": "m"})
    try:
        world.agree(
            {"arch": "a", "classes": ["x"] * 1000, "manifest": f"m{world.rank // 2}"}
        )
        found["agree"] = "agreed"
    except UserError as mistake:
        found["agree"] = str(mistake)

    norm = nn.BatchNorm1d(2)
    norm(torch.full((4, 2), float(world.rank)) + torch.arange(4.0)[:, None])
    dict(norm.named_buffers())["num_batches_tracked"].add_(world.rank)
    world.broadcast_buffers(norm)
    found["buffers"] = {name: buffer.tolist() for name, buffer in norm.named_buffers()}
    found["training"] = train(world)
    return found


def train(world: ProcessWorld) -> dict[str, Any]:
    net, accumulate = Net(), len(VALID[0]) // world.size
    step = step_of(net, accumulate=accumulate, clip=0.5)
    step.world = world
    step.module = world.wrap(net, compiled=False)
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
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


def test_a_flag_of_any_rank_is_seen_by_all_one_step_later(
    ranks: list[dict[str, Any]],
) -> None:
    for found in ranks:
        assert found["votes"] == [
            {**NOTHING, "stop": k == STOP_AT + 1, "save": k == SAVE_AT + 1}
            for k in range(8)
        ]
        assert found["drained"] == NOTHING
        assert found["drained raised"] == {**NOTHING, "window": True}


def test_integers_are_summed_exactly_and_the_own_array_is_left_alone(
    ranks: list[dict[str, Any]],
) -> None:
    size = len(ranks)
    for found in ranks:
        assert found["sum"] == [size * HUGE, -size, sum(range(size))]
        assert found["sum of floats"] == [size * 1.0, size * 2.0] and found[
            "own array"
        ] == [1.0, 2.0]


def test_gather_is_in_rank_order_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["gather"] == [
            {"rank": rank, "bytes": bytes(rank)} for rank in range(len(ranks))
        ]


def test_every_rank_learns_that_one_sees_other_data_and_what(
    ranks: list[dict[str, Any]],
) -> None:
    for found in ranks:
        if len(ranks) == 2:
            assert found["agree"] == "agreed"
        else:
            assert (
                "manifest is m0 on rank 0, m1 on rank 2" in found["agree"]
                and "\n" not in found["agree"]
            )
            assert "classes" not in found["agree"], "which are alike"


def test_statistics_are_rank_0s(ranks: list[dict[str, Any]]) -> None:
    norm = nn.BatchNorm1d(2)
    norm(torch.zeros(4, 2) + torch.arange(4.0)[:, None])
    for found in ranks:
        assert found["buffers"] == {
            name: buffer.tolist() for name, buffer in norm.named_buffers()
        }


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
    for found in ranks:
        other = Net()
        with torch.no_grad():
            for p, value in zip(
                other.parameters(), found["training"]["weights"], strict=True
            ):
                p.copy_(torch.from_numpy(value))
        assert_alike(other, net)
        for mine, first in zip(
            found["training"]["weights"], ranks[0]["training"]["weights"], strict=True
        ):
            assert (mine == first).all()


@pytest.mark.parametrize(
    ("rank", "waited"), [(0, []), (1, [distributed.ALONE_AFTER_S])]
)
def test_a_mistake_is_said_by_rank_0_or_by_who_is_still_there(
    rank: int,
    waited: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    slept: list[float] = []
    monkeypatch.setattr(distributed.time, "sleep", slept.append)
    ProcessWorld(CPU).complain("a mistake")
    assert slept == waited
    assert capsys.readouterr().err == "a mistake\n"


def test_a_vote_alone_has_the_same_delay() -> None:
    vote = Vote(ProcessWorld(CPU))
    assert vote.drain() == NOTHING
    assert vote.exchange(stop=True)["stop"] is False
    assert vote.exchange()["stop"] is True
    assert vote.exchange(save=True)["stop"] is False
    assert vote.drain() == {**NOTHING, "save": True}
    assert vote.drain() == NOTHING, "a vote is read once"


PREPARED = """
import os
from engine.distributed import cores, prepare_process
device = prepare_process()
import torch
connections = os.environ["CUDA_DEVICE_MAX_CONNECTIONS"]
policy = ":".join(os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"))
allocator = os.environ.get("PYTORCH_ALLOC_CONF", "-")
registers = os.environ.get("NCCL_GRAPH_REGISTER", "-")
print(device.type, connections, torch.get_num_threads(), cores(), policy, registers, allocator)
"""


OURS = (
    "CUDA_",
    "GLIBC_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "OMP_",
    "LOCAL_",
    "NCCL_",
    "PYTORCH_",
)
"""How the names of variables begin that decide what a process is given."""


def printed(program: str, **environment: str) -> list[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(OURS)
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=clean | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def prepared(**environment: str) -> list[str]:
    return printed(PREPARED, **environment)


def test_a_process_is_prepared_before_cuda_starts() -> None:
    device, connections, threads, room, policy, _, allocator = prepared(
        OMP_NUM_THREADS="1"
    )
    assert (device, connections, policy) == ("cpu", "32", "ACTIVE:1000:1")
    assert allocator == "expandable_segments:True"
    assert int(threads) == max(1, int(float(room))), (
        "all cores for one process, although torchrun says OMP_NUM_THREADS=1"
    )


def test_what_the_user_has_set_stays_and_ranks_share_the_cores() -> None:
    _, connections, threads, room, policy, *_ = prepared(
        CUDA_DEVICE_MAX_CONNECTIONS="1",
        OMP_WAIT_POLICY="PASSIVE",
        LOCAL_WORLD_SIZE="2",
        LOCAL_RANK="1",
        OMP_NUM_THREADS="1",
    )
    assert (connections, policy) == ("1", "PASSIVE:1000:1")
    assert int(threads) == max(1, int(float(room)) // 2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("PYTORCH_ALLOC_CONF", "backend:native"), ("PYTORCH_CUDA_ALLOC_CONF", "-")],
)
def test_an_allocator_that_the_user_has_set_up_stays(name: str, expected: str) -> None:
    assert prepared(**{name: "backend:native"})[-2:] == ["-", expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "0"),
        (
            {
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"
            },
            "0",
        ),
        ({"NCCL_GRAPH_REGISTER": "1"}, "1"),
    ],
)
def test_nccl_maps_no_segment_that_grows(given: dict[str, str], expected: str) -> None:
    assert prepared(**given)[-2] == expected


FAULTS = """
import resource
from engine.distributed import prepare_process
prepare_process()
import torch
faults = []
for _ in range(20):  # some pieces, until one is always free
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)  # 64 MiB, 16,384 pages
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults)[len(faults) // 2])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc")
@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)],
    ids=["ours", "the user's"],
)
def test_memory_that_a_step_frees_is_kept_for_the_next(
    given: dict[str, str], kept: bool
) -> None:
    (faults,) = printed(FAULTS, **given)
    assert (int(faults) < 1000) is kept


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8.0),
        ({"cpu.max": "max 100000"}, 8.0),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "9900000 100000"}, 8.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8.0),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
    ],
)
def test_cores_respect_the_containers_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    expected: float,
) -> None:
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert cores() == expected
    world = ProcessWorld(CPU)
    assert world.workers(None) == max(1, int(expected) - 1)
    world.local_size = 3
    assert world.workers(None) == (
        1 if expected < 6 else max(1, int(expected) // 3 - 1)
    )


@pytest.mark.parametrize(
    ("count", "gpu", "expected"),
    [
        (1.0, True, 1),
        (2.0, True, 2),
        (2.0, False, 1),
        (2.9, True, 2),
        (3.0, True, 2),
        (16.0, True, 15),
    ],
)
def test_with_two_cores_a_gpu_has_both(
    monkeypatch: pytest.MonkeyPatch, count: float, gpu: bool, expected: int
) -> None:
    """A step on a CPU takes the second core itself."""
    monkeypatch.setattr(distributed, "cores", lambda: count)
    assert distributed.default_workers(gpu=gpu) == expected
    world = ProcessWorld(torch.device("cuda" if gpu else "cpu"))
    assert world.workers(None) == expected
    monkeypatch.setattr(distributed, "cores", lambda: 2 * count)
    world.local_size = 2
    assert world.workers(None) == expected


@pytest.mark.parametrize(
    ("files", "least"),
    [
        ({}, False),
        ({"memory.max": "max"}, False),
        ({"memory.max": "4096"}, True),
        ({"memory/memory.limit_in_bytes": "4096"}, True),
    ],
)
def test_memory_is_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], least: bool
) -> None:
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert memory_bytes() == (4096 if least else psutil.virtual_memory().total)


def test_workers_as_asked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than cores hide the latency of slow reads."""
    for count, most in ((2.0, 256), (16.0, 1024)):
        monkeypatch.setattr(distributed, "cores", lambda count=count: count)
        world = ProcessWorld(CPU)
        assert [world.workers(asked) for asked in (0, 1, most)] == [0, 1, most]
        with pytest.raises(
            UserError,
            match=f"--workers {most + 1}: at most {most} a rank on {count:.0f} cores",
        ):
            world.workers(most + 1)
