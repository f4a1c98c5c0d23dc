"""Processes that srun started without torchrun know each other, or say in a line why they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contracts import UserError
from engine import slurm
from engine.slurm import first_host, gpus_on_node, has_own_cores, torchrun_variables
from tests.end_to_end.runs import Runner

ROOT = Path(__file__).resolve().parents[2]
TASK = {
    "SLURM_JOB_ID": "70001",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "3",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODELIST": "gpu[03-04,7],login",
}


def test_a_task_of_several() -> None:
    assert torchrun_variables(TASK) == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": str(20_000 + 70_001 % 12_000),
    }
    own = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    assert torchrun_variables(TASK | own).items() >= own.items()
    # the step of a job whose other nodes and tasks have nothing to do with it
    step = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "1,3",
        "SLURM_STEP_NODELIST": "b",
    }
    found = torchrun_variables(TASK | step)
    assert (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"], found["MASTER_ADDR"]) == (
        "4",
        "3",
        "b",
    )
    here = {
        name: TASK[name] for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_NODELIST")
    }
    assert torchrun_variables(here | {"SLURM_LOCALID": "3"})["LOCAL_WORLD_SIZE"] == "5"


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "0"},
        {"SLURM_NTASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"ENVIRONMENT": "BATCH"},
        {"SLURM_PROCID": None},
    ],
    ids=["torchrun", "one task", "a step of one", "the job's script", "salloc"],
)
def test_any_other_process_is_left_alone(changes: dict[str, str | None]) -> None:
    changed = {**TASK, **changes}
    assert (
        torchrun_variables({name: value for name, value in changed.items() if value})
        == {}
    )


@pytest.mark.parametrize(
    "job", [{}, TASK | {"ENVIRONMENT": "BATCH"}], ids=["alone", "in a job's script"]
)
@pytest.mark.parametrize("name", slurm.OF_MPI)
def test_processes_of_mpi_do_not_train_alone(name: str, job: dict[str, str]) -> None:
    with pytest.raises(
        UserError, match=rf"one of 2 processes that MPI started \({name}\).*torchrun"
    ):
        torchrun_variables(job | {name: "2"})
    assert (
        torchrun_variables(job | {name: "1"})
        == {}
        == torchrun_variables({name: "2", "RANK": "0"})
    )


def test_srun_within_a_jobs_script() -> None:
    assert (
        torchrun_variables({**TASK, "ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "0"})[
            "RANK"
        ]
        == "3"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SLURM_LOCALID": None}, "SLURM_LOCALID is missing"),
        ({"SLURM_NODELIST": ""}, "the list of nodes is ''"),
        ({"SLURM_TASKS_PER_NODE": None}, "SLURM_TASKS_PER_NODE is missing"),
        ({"SLURM_TASKS_PER_NODE": "5"}, "index out of range"),
        ({"SLURM_TASKS_PER_NODE": "many"}, "invalid literal"),
        (
            {"SLURM_PROCID": "7"},
            "contradict each other .task 7 of 5, 1 of 2 on its node",
        ),
        ({"SLURM_LOCALID": "2"}, "contradict each other"),
    ],
)
def test_what_slurm_does_not_say_is_one_line(
    changes: dict[str, str | None], said: str
) -> None:
    changed = {**TASK, **changes}
    with pytest.raises(UserError, match=f"{said}.*srun --ntasks 1") as caught:
        torchrun_variables(
            {name: value for name, value in changed.items() if value is not None}
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("localhost", "localhost"),
        ("a-1,b-2", "a-1"),
        ("tux[1-3,7]", "tux1"),
        ("n[007]", "n007"),
        ("r[1-2]n[05,09]-ib,z", "r1n05-ib"),
        ("a,b[1-2]", "a"),
    ],
)
def test_the_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_cores_and_gpus_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    task = {"SLURM_PROCID": "1", "SLURM_CPUS_ON_NODE": "8", "SLURM_GPUS_ON_NODE": "2"}
    assert has_own_cores(task) and gpus_on_node(task) == 2
    assert not has_own_cores(task | {"SLURM_CPUS_ON_NODE": "4"}), (
        "all tasks have the same"
    )
    assert not has_own_cores(task | {"TORCHELASTIC_RUN_ID": "x"}), (
        "torchrun's ranks share those of their task"
    )
    assert not has_own_cores({}) and gpus_on_node({}) == 0


JOINS = """
from engine.distributed import ProcessWorld, prepare_process
world = ProcessWorld(prepare_process())
with world.joined():
    print(world.size, world.gather(world.rank))
"""


def test_two_tasks_meet(runner: Runner) -> None:
    """`srun -n 2` starts them so."""
    task = {
        "SLURM_NTASKS": "2",
        "SLURM_NODELIST": "localhost",
        "SLURM_JOB_ID": str(os.getpid()),
    }
    places = [
        {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)
    ]
    started = [runner.python("-c", JOINS, env=task | place) for place in places]
    assert [one.done().out.strip() for one in started] == ["2 [0, 1]"] * 2
    refused = runner(env={"SLURM_NTASKS": "2", "SLURM_PROCID": "0"})
    assert refused.wait() == 2 and len(refused.err.splitlines()) == 1
    assert refused.err.startswith("one of 2 tasks of Slurm, of unknown place")
