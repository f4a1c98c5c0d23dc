"""The entry point of the Docker image: torchrun whose exit code is the failed rank's and which starts no mistake again,
with caches of the user's own.

    docker run ... saturate --nproc-per-node 8 train.py --data /data    arguments of torchrun
    docker run ... saturate python -m scripts.doctor                    or a command of the image
    python scripts/entry_point.py --nnodes 2 ... train.py               without Docker: $SATURATE_CACHES is not set

Below $SATURATE_CACHES, a folder that users may share, each user has one of their own, named by the uid: what
is kept there is run later (compiled kernels) or believed (manifests, weights). Exit codes: that of the rank which
failed first on this host, where torchrun's is always 1; after a signal that of a rank which failed all the same, else
128 + the signal's number, 143 for SIGUSR1 and SIGUSR2; 2 for a folder that others may write. Must not import the
harness: a command of the image may be any program.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CACHES = {
    "XDG_CACHE_HOME": "",  # manifests, and torch's weights
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
}
"""Variables, and the folder of each below the user's own. A variable that is set already stays as it is."""

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
"""Signals that torchrun passes on to its ranks; it would leave them alone with the last two."""

MEETS = ("--nnodes", "--rdzv", "--master", "PET_NNODES", "PET_RDZV", "PET_MASTER")
"""How torchrun's flags begin that say how machines meet, and the variables which it takes for them."""

AGAIN_THE_SAME = {2, 3}
"""Exit codes of train.py after which --max-restarts starts nothing: a mistake, and a loss that is not finite."""


def own_folder(shared: Path) -> Path:
    """Return shared/<uid>, made with mode 0700 where it is missing.

    Raises ValueError for one that another user made, or that others may enter.
    """
    folder = shared / str(os.getuid())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        rights = shared.stat().st_mode
        status = folder.lstat()
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; mount one to write in") from None
    # else another user could put a folder of theirs in this one's place, once it was looked at
    if rights & stat.S_IWOTH and not rights & stat.S_ISVTX:
        raise ValueError(f"{shared}: anyone may rename what is in it; chmod +t")
    alone = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
    if status.st_uid != os.getuid() or not alone:
        raise ValueError(
            f"{folder}: made by uid {status.st_uid} with mode {status.st_mode:o}: others could plant code in "
            "it; remove it"
        )
    return folder


def torchrun(arguments: Sequence[str]) -> int:
    """Run torchrun with these arguments in this process, and return the exit code of the rank that failed first.

    Without an argument or a variable that says how machines meet it is `torchrun --standalone`.
    """
    # else pages of frames where the host of the rendezvous has ended first
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # late, since other commands need no torch
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.agent.server.local_elastic_agent import (
        LocalElasticAgent,
    )
    from torch.distributed.elastic.multiprocessing.api import (
        SignalException,
        SubprocessContext,
    )
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run

    # ranks then hear them too: Slurm sends one of them before a job's time is over
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", SIGNALS)
    # else an agent may send its ranks to the store of a host that was rank 0 in an earlier attempt
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    codes: list[int] = []
    close = SubprocessContext.close

    def noting(ranks: SubprocessContext, *how: Any, **more: Any) -> None:
        close(ranks, *how, **more)
        codes[:] = [each.proc.returncode for each in ranks.subprocess_handlers.values()]

    SubprocessContext.close = noting  # type: ignore[assignment, method-assign]
    monitor = LocalElasticAgent._monitor_workers

    def ending(agent: LocalElasticAgent, group: Any) -> RunResult:
        result = monitor(agent, group)
        if AGAIN_THE_SAME.intersection(codes):
            agent._remaining_restarts = 0
        return result

    LocalElasticAgent._monitor_workers = ending  # type: ignore[method-assign]
    meets = any(word.startswith(MEETS) for word in (*arguments, *os.environ))
    try:
        run([*([] if meets else ["--standalone"]), *arguments])
    # torchrun's own program ends with a traceback and 1 for either
    except SignalException as ended:
        # train.py takes those for SIGTERM
        asked = ended.sigval in (signal.SIGUSR1, signal.SIGUSR2)
        stopped = 128 + (signal.SIGTERM if asked else ended.sigval)
        # a rank that could not save, or failed otherwise, has not been stopped as it was asked
        return next((code for code in codes if code and 0 < code < 128), stopped)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        code = first.exitcode if first.exitcode > 0 else 128 - first.exitcode
        print(
            f"entry point: rank {rank} failed first, exit code {code}", file=sys.stderr
        )
        return code
    return 0


def main(arguments: Sequence[str]) -> int:
    """Set the caches, then run a command of the image or torchrun; return the exit code."""
    shared = os.environ.get("SATURATE_CACHES")
    if shared is None:
        return torchrun(arguments)
    try:
        own = own_folder(Path(shared))
    except ValueError as error:
        print(f"entry point: {error}", file=sys.stderr)
        return 2
    for variable, folder in CACHES.items():
        os.environ.setdefault(variable, str(own / folder))
    # torch has precompiled headers in /tmp/torchinductor_$USER, wherever its cache is: one name for all users
    # would let the first of them in a container shut out the others.
    os.environ["USER"] = f"uid-{os.getuid()}"
    if arguments and "/" not in arguments[0] and shutil.which(arguments[0]):
        os.execvp(arguments[0], list(arguments))
    return torchrun(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
