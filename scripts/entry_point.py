"""The entry point of the Docker image: `torchrun --standalone` with caches of the user's own.

    docker run ... saturate --nproc-per-node 8 train.py --data /data    arguments of torchrun
    docker run ... saturate python -m scripts.doctor                    or a command of the image

Below $SATURATE_CACHES, a folder that users may share, each user has one of their own, named by the uid: what
is kept there is run later (compiled kernels) or believed (manifests, weights). Exit codes: torchrun's, 128 +
the number of the signal that ended it, 2 for a folder that others may write. Must not import the harness: a
command of the image may be any program.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

CACHES = {
    "XDG_CACHE_HOME": "",  # manifests, and torch's weights
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
}
"""Variables, and the folder of each below the user's own. A variable that is set already stays as it is."""


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
    """Run `torchrun --standalone` with these arguments in this process, and return its exit code."""
    # late, since other commands need no torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as run

    try:
        run(["--standalone", *arguments])
    except SignalException as ended:
        # torchrun's own program ends with a traceback and 1
        return 128 + ended.sigval
    return 0


def main(arguments: Sequence[str]) -> int:
    """Set the caches, then run a command of the image or torchrun; return the exit code."""
    shared = Path(os.environ["SATURATE_CACHES"])
    try:
        own = own_folder(shared)
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
