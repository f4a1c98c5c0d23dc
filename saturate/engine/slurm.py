"""The place of this process among the tasks of a Slurm job step, in torchrun's words; must not know torch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from saturate.contracts import UserError
from saturate.system import exit_codes

PORTS = range(20_000, 32_000)
"""Ports for MASTER_PORT, below those that Linux hands out by itself."""
OF_MPI = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
)
"""Variables in which Open MPI, MPICH and Intel, MVAPICH, and jsrun say how many processes they have started."""
REMEDY = "start with torchrun in each task, or as one task: srun --ntasks 1"


def set_variables() -> None:
    """Set torchrun_variables in this process. Ends it with MISTAKE and a line where they cannot be told."""
    try:
        os.environ.update(torchrun_variables(os.environ))
    except UserError as error:  # before any program can take it
        print(error, file=sys.stderr, flush=True)
        os._exit(exit_codes.MISTAKE)


def torchrun_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would have set for a task that `srun` started beside others, or {} for any other
    process: torchrun's own, one alone, or a job's script, which runs once however many tasks there are.

    The user's MASTER_ADDR and MASTER_PORT stay. Raises UserError where Slurm's variables do not say it, and
    for one of several processes that MPI started.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "1")
    script = environ.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in environ
    if "RANK" in environ:
        return {}
    if "SLURM_PROCID" not in environ or tasks == "1" or script:
        for name in OF_MPI:
            if environ.get(name, "1") != "1":
                raise UserError(
                    f"one of {environ[name]} processes that MPI started ({name}), which would each train "
                    "alone: start with torchrun, or one process with torchrun on each node"
                )
        return {}
    lists = (environ.get(f"SLURM_{scope}NODELIST") for scope in ("STEP_", "", "JOB_"))
    nodes = next((nodes for nodes in lists if nodes), "")
    try:
        port = PORTS[int(environ.get("SLURM_JOB_ID", 0)) % len(PORTS)]
        return {
            "RANK": str(int(environ["SLURM_PROCID"])),
            "WORLD_SIZE": str(int(tasks)),
            "LOCAL_RANK": str(int(environ["SLURM_LOCALID"])),
            "LOCAL_WORLD_SIZE": str(_tasks_here(environ, int(tasks))),
            "MASTER_ADDR": environ.get("MASTER_ADDR") or first_host(nodes),
            "MASTER_PORT": environ.get("MASTER_PORT") or str(port),
        }
    except (KeyError, ValueError, IndexError) as error:
        reason = (
            f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        )
        raise UserError(
            f"one of {tasks} tasks of Slurm, of unknown place among them ({reason}); {REMEDY}"
        ) from None


def _tasks_here(environ: Mapping[str, str], size: int) -> int:
    """Return how many tasks this node has: of "2(x3),1" two on each of three nodes, and one on the last."""
    counts_text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get(
        "SLURM_TASKS_PER_NODE", ""
    )
    counts: list[int] = []
    for part in counts_text.split(",") if counts_text else []:
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.removesuffix(")") or 1)
    if counts:
        return counts[int(environ.get("SLURM_NODEID", 0))]
    if environ.get("SLURM_NNODES", "1") == "1":
        return size
    raise ValueError("SLURM_TASKS_PER_NODE is missing")


def first_host(nodes: str) -> str:
    """Return the first host of a list such as "gpu[003-007,9],login1". Raises ValueError for an empty one."""
    first = re.match(r"(?:[^,\[\]\s]|\[[^\[\]]+\])+", nodes)
    if first is None:
        raise ValueError(f"the list of nodes is {nodes!r}")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def has_own_cores(environ: Mapping[str, str]) -> bool:
    """Whether this rank is a task that Slurm has bound to cores of the node that other tasks do not share."""
    here = environ.get("SLURM_CPUS_ON_NODE", "")
    is_task = "SLURM_PROCID" in environ and "TORCHELASTIC_RUN_ID" not in environ
    return is_task and here.isdecimal() and len(os.sched_getaffinity(0)) < int(here)


def gpus_on_node(environ: Mapping[str, str]) -> int:
    """Return how many GPUs the step has on this node, of which a task may see its own alone; 0: not said."""
    here = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(here) if here.isdecimal() else 0
