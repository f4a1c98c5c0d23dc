"""scripts/slurm.sh under a real Slurm: one controller and three nodes on this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.runs import ROOT, Runner, kept, losses, points, summary, until

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("n1", "n2", "n3")
STARTS_S = 60.0
RUNS_S = 240.0
FLAGS = """--loader synthetic --arch squeezenet1_1 --image-size 32 --batch-size 4 --epochs 1000
    --val-every 0 --ceilings false --log-every 1"""
SUBMIT = "sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --gpus-per-node=0"
GOES_ON = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
CONFIG = """
ClusterName=saturate
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """Slurm's commands, run in the root of the repository."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env

    def __call__(self, *words: object) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=STARTS_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job: JobState, Restarts, ExitCode and so on."""
        words = self("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.fixture
def cluster(tmp_path: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not there: apt-get install slurm-wlm munge")
    # munge's socket has a short path, in a folder that others may enter and not write to
    folder = tmp_path / "slurm"
    for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o400)
    (folder / "munge").chmod(0o700)
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=folder,
            ports=free_ports(1 + len(NODES)),
        )
    )
    python = os.path.dirname(sys.executable)
    env = {
        **environment,
        "SLURM_CONF": str(config),
        "PATH": f"{python}:{os.environ['PATH']}",
        "MASTER_ADDR": "127.0.0.1",  # the nodes' names are in no name server
        "OMP_NUM_THREADS": "1",
    }
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    munge += [
        f"--{of}-file={folder}/munge/{of}" for of in ("key", "pid", "log", "seed")
    ]
    daemons = [
        munge,
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node] for node in NODES),
    ]
    started = []
    try:
        with open(folder / "daemons.log", "w") as log:
            for words in daemons:
                started.append(subprocess.Popen(words, env=env, stdout=log, stderr=log))
                if words is munge:
                    socket_file = folder / "munge.socket"
                    until(socket_file.exists, STARTS_S, "munge")
        found = Cluster(env)
        idle = ("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
        until(
            lambda: (
                subprocess.run(
                    idle, env=env, capture_output=True, text=True, check=False
                ).stdout.split()
                == list(NODES)
            ),
            STARTS_S,
            f"three idle nodes, see {folder}",
        )
        yield found
        subprocess.run(["scancel", "--user", getpass.getuser()], env=env, check=False)
        nothing = ("squeue", "--noheader")
        until(lambda: not found(*nothing), STARTS_S, "the last job to end")
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_is_told_to_stop_goes_on_where_it_was(
    train: Runner, cluster: Cluster
) -> None:
    """Asked to stop, as Slurm does before the time limit, it saves, is requeued and makes the losses of a run
    that nobody has stopped; scancel ends it for good.
    """
    output = train.cwd / "job"
    said = train.cwd / "job.log"
    script = (f"--output={said}", "scripts/slurm.sh", *FLAGS.split())
    job = cluster(*SUBMIT.split(), *script, "--output", output)

    def is_requeued() -> bool:
        found = cluster.job(job)
        assert found["JobState"] in GOES_ON, said.read_text()
        return found["Restarts"] == "1"

    until(lambda: len(points(output, "train")) > 3, RUNS_S, "three steps")
    cluster("scancel", "--signal=USR1", job)
    until(is_requeued, RUNS_S, "a requeue")
    stopped_at = len(losses(output))
    assert stopped_at > 3
    until(lambda: len(points(output, "train")) > stopped_at + 3, RUNS_S, "more steps")
    cluster("scancel", job)
    until(lambda: cluster.job(job)["JobState"] == "CANCELLED", RUNS_S, "the end")
    assert cluster.job(job)["Restarts"] == "1"
    assert summary(output)["world_size"] == 2

    def is_saved() -> bool:
        saved = kept(output / "last.pt")["progress"]["step"]
        return stopped_at < saved == len(losses(output))

    until(is_saved, RUNS_S, "a checkpoint")
    made = losses(output)
    whole = train.ranks(2, f"{FLAGS} --steps {len(made)} --output whole")
    assert [process.wait() for process in whole] == [0, 0], whole[0].err
    assert made == losses(train.cwd / "whole")


def rank(job: str, number: int) -> psutil.Process:
    """The process of that rank of a job."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            has = process.environ()
            is_it = (has.get("SLURM_JOB_ID"), has.get("SLURM_PROCID")) == (
                job,
                str(number),
            )
            # its workers have its variables, too
            parent = process.parent()
            if is_it and parent and parent.name() == "slurmstepd":
                return process
    raise AssertionError(f"no rank {number} of job {job}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_of_which_a_rank_is_killed_goes_on_from_its_checkpoint(
    train: Runner, cluster: Cluster
) -> None:
    """A rank of an array's task is killed, as for want of memory, and starts again; a mistake does not."""
    output = train.cwd / "job"
    said = train.cwd / "job.log"
    script = (f"--output={said}", "scripts/slurm.sh", *FLAGS.split())
    more = ("--save-every-steps", 2, "--output", output)
    job = cluster(*SUBMIT.split(), "--array=7", *script, *more)
    output = output.with_name("job-7")
    until(lambda: (output / "last.pt").exists(), RUNS_S, "a checkpoint")
    rank(cluster.job(f"{job}_7")["JobId"], 1).kill()
    until(
        lambda: cluster.job(f"{job}_7")["Restarts"] == "1",
        RUNS_S,
        f"a requeue, see {said}",
    )
    killed_at = len(points(output, "train"))
    until(
        lambda: len(points(output, "train")) > killed_at + 3,
        RUNS_S,
        f"more steps, see {said}",
    )
    cluster("scancel", job)
    losses(output)
    wrong = cluster(*SUBMIT.split(), *script, "--lr", "-1", "--output", train.cwd / "x")
    until(lambda: cluster.job(wrong)["JobState"] == "FAILED", RUNS_S, "a mistake")
    assert cluster.job(wrong)["ExitCode"] == "2:0"
    assert cluster.job(wrong)["Restarts"] == "0"
