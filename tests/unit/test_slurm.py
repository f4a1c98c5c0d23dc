"""Processes that srun started without torchrun know each other, or say in a line why they do not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from saturate.contracts import UserError
from saturate.engine import slurm
from saturate.engine.slurm import (
    first_host,
    gpus_on_node,
    has_own_cores,
    torchrun_variables,
)
from tests.end_to_end.runs import ROOT, Runner

TASK = """JOB_ID=70001 NTASKS=5 PROCID=3 LOCALID=1 NODEID=1 NNODES=3 TASKS_PER_NODE=2(x2),1
    NODELIST=gpu[03-04,7],login"""


def variables(words: str = "") -> dict[str, str]:
    """Return those of TASK, with what `words` change, such as NTASKS=4; without a value it is taken away."""
    names = dict(f"SLURM_{word}".split("=") for word in f"{TASK} {words}".split())
    return {name: value for name, value in names.items() if value}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ("", "3 5 1 2 gpu03"),
        # the step of a job whose other nodes and tasks have nothing to do with it
        (
            "STEP_NUM_TASKS=4 STEP_TASKS_PER_NODE=1,3 STEP_NODELIST=b",
            "3 4 1 3 b",
        ),
        ("TASKS_PER_NODE= NNODES= NODEID= LOCALID=3", "3 5 3 5 gpu03"),
    ],
)
def test_a_task_of_several(changes: str, expected: str) -> None:
    found = torchrun_variables(variables(changes))
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR"
    assert " ".join(found.pop(name) for name in names.split(" ")) == expected
    assert found == {"MASTER_PORT": str(20_000 + 70_001 % 12_000)}
    # srun within a job's script
    step = variables("STEP_ID=0") | {"ENVIRONMENT": "BATCH"}
    assert torchrun_variables(step)["RANK"] == "3"
    own = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    assert torchrun_variables(variables() | own).items() >= own.items()


ALONE = ("NTASKS=1", "STEP_NUM_TASKS=1", "PROCID=")
"""A task alone, a step of one, salloc."""


def test_any_other_process_is_left_alone() -> None:
    others = [variables(words) for words in ALONE]
    others += [{}, variables() | {"ENVIRONMENT": "BATCH"}]
    for other in others:
        assert torchrun_variables(other) == {}
    assert torchrun_variables(variables() | {"RANK": "0", "PMI_SIZE": "2"}) == {}


def test_processes_of_mpi_do_not_train_alone() -> None:
    for name in slurm.OF_MPI:
        assert torchrun_variables({name: "1"}) == {}
        with pytest.raises(UserError, match=rf"one of 2 .*\({name}\).*torchrun"):
            torchrun_variables({name: "2"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("LOCALID=", "SLURM_LOCALID is missing"),
        ("TASKS_PER_NODE=many", "invalid literal"),
    ],
)
def test_what_slurm_does_not_say_is_one_line(changes: str, said: str) -> None:
    with pytest.raises(UserError, match=f"{said}.*srun --ntasks 1"):
        torchrun_variables(variables(changes))


def test_the_first_host() -> None:
    lists = "localhost a-1,b-2 tux[1-3,7] n[007] r[1-2]n[05,09]-ib,z a,b[1-2]"
    hosts = "localhost a-1 tux1 n007 r1n05-ib a"
    assert [first_host(nodes) for nodes in lists.split()] == hosts.split()


def test_cores_and_gpus_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm.os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    task = variables("CPUS_ON_NODE=8 GPUS_ON_NODE=2")
    assert has_own_cores(task) and gpus_on_node(task) == 2
    # all tasks have the same cores; torchrun's ranks share those of their task
    assert not has_own_cores(variables("CPUS_ON_NODE=4"))
    assert not has_own_cores(task | {"TORCHELASTIC_RUN_ID": "x"})
    assert not has_own_cores({}) and gpus_on_node({}) == 0


JOINS = """
from saturate.engine.distributed import ProcessWorld, prepare_process
world = ProcessWorld(prepare_process())
with world.joined():
    print(world.size, world.gather(world.rank))
"""


def test_two_tasks_meet(runner: Runner) -> None:
    """`srun -n 2` starts them so."""
    job = f"JOB_ID={os.getpid()} NTASKS=2 NNODES=1 TASKS_PER_NODE=2 NODEID=0 NODELIST=localhost"
    tasks = [variables(f"{job} PROCID={rank} LOCALID={rank}") for rank in range(2)]
    started = [runner.python("-c", JOINS, env=task) for task in tasks]
    assert [one.done().out.strip() for one in started] == ["2 [0, 1]"] * 2
    refused = runner(env={"SLURM_NTASKS": "2", "SLURM_PROCID": "0"})
    assert refused.wait() == 2 and len(refused.err.splitlines()) == 1
    assert refused.err.startswith("one of 2 tasks of Slurm, of unknown place")


SRUN = """#!/bin/bash
printf '%s ' "$@" >> said
[ -z "$SAVES" ] || date +%N > "$SAVES/last.pt"
exit "$CODE"
"""


@pytest.mark.parametrize(
    ("code", "restarts", "saves", "is_requeued"),
    [
        (143, 9, True, True),
        (143, 2, False, True),
        # the limit is shorter than a start
        (143, 3, False, False),
        # a rank has crashed, or was killed
        (1, 0, False, True),
        (137, 3, False, False),
        # it would be the same again
        (0, 0, True, False),
        (2, 0, True, False),
    ],
)
def test_a_job_is_requeued_while_that_may_help(
    tmp_path: Path, code: int, restarts: int, saves: bool, is_requeued: bool
) -> None:
    said = job(tmp_path, ["--output", "run"], code, restarts, saves="run" * saves)
    assert ("requeue 7" in said) is is_requeued


@pytest.mark.parametrize("output", [[], ["--output", "s3://bucket/run"]])
def test_where_no_checkpoint_can_be_looked_at_a_stop_is_requeued(
    tmp_path: Path, output: list[str]
) -> None:
    assert "requeue 7" in job(tmp_path, output, 143, restarts=9)


@pytest.mark.parametrize("output", [["--output", "run"], ["--output=run"]])
def test_tasks_of_an_array_have_an_output_each(
    tmp_path: Path, output: list[str]
) -> None:
    said = job(
        tmp_path,
        ["--lr", "1", *output],
        0,
        SLURM_ARRAY_TASK_ID="5",
        SLURM_CPUS_PER_TASK="12",
    )
    srun, started = said.split("train.py ")
    # srun is told the job's cores for a task, which it does not take from the job
    assert "--cpus-per-task=12 " in srun
    assert started.split() == [
        "--resume",
        "auto",
        "--lr",
        "1",
        *output,
        "--output",
        "run-5",
    ]


def job(
    folder: Path,
    words: list[str],
    code: int,
    restarts: int = 0,
    saves: str = "",
    **variables: str,
) -> str:
    """Run slurm.sh with a srun that ends with `code`; return what srun and scontrol were called with."""
    (folder / "run").mkdir()
    (folder / "run/last.pt").touch()
    for name, script in (("srun", SRUN), ("scontrol", SRUN.replace('"$CODE"', "0"))):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / "scripts/slurm.sh", *words],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": "7",
            "SLURM_RESTART_COUNT": str(restarts),
            "CODE": str(code),
            "SAVES": saves,
            **variables,
        },
        check=False,
    )
    assert done.returncode == code
    return (folder / "said").read_text()
