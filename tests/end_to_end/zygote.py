"""Starts programs quickly: imports once what train.py imports, then forks a process for each.

With saturate/why/start on PYTHONPATH it has imported torch alone, under the hooks of `saturate why`: commands of that
are forked then, and the programs that they measure, too.

The child runs a command line of Python's (FILE, -m MODULE or -c CODE, and arguments) in a session of its own.
One JSON object a line on stdin (see runs.Runner), the child's process id as the answer; its exit status goes
to a file.
"""

from __future__ import annotations

import ast
import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from PIL import Image

from saturate.why import hooks, launch
from tests.disk import unsynced
from tests.end_to_end.runs import note_end

BY_NAME = (
    *(
        "torch.utils.tensorboard.summary",
        "saturate.loaders.synthetic",
        "saturate.loaders.images.torchvision",
    ),
    *(
        "faster_coco_eval",
        "saturate.loaders.videos.pyav",
        "tensorboard.plugins.hparams.metadata",
    ),
    # a second of each run that ends
    *(f"matplotlib.{name}" for name in ("projections", "figure")),
    *(f"matplotlib.backends.backend_{name}" for name in ("agg", "svg")),
    *(f"saturate.dataset.stores.{place}" for place in ("arrow", "lmdb", "tar")),
)
"""What train.py imports when it knows what is asked for."""
ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "saturate/run/train.py"
ROOMS = "tasks", "models"
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000  # linux/sched.h


def imported_by(file: Path) -> list[str]:
    found = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module]
            found += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (ROOT / node.module.replace(".", "/") / f"{alias.name}.py").exists()
            ]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def move(name: str, cores: list[int]) -> None:
    """Go on in the network namespace of a host (hosts.py), which has that name, on these cores."""
    libc = ctypes.CDLL(None)
    with open(f"/run/netns/{name}") as file:
        assert not libc.setns(file.fileno(), CLONE_NEWNET)
    assert not libc.unshare(CLONE_NEWUTS)
    socket.sethostname(name)
    os.sched_setaffinity(0, cores)


def become(order: dict[str, Any]) -> None:
    """In the child: everything that a fresh process would have been given."""
    os.setsid()
    if order["host"]:
        move(*order["host"])
    for number, (file, how) in enumerate(
        (
            (os.devnull, os.O_RDONLY),
            *(
                (order[name], os.O_WRONLY | os.O_APPEND)
                for name in ("stdout", "stderr")
            ),
        )
    ):
        os.dup2(os.open(file, how), number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[1:1] = order["env"].get("PYTHONPATH", "").split(os.pathsep)
    # a limit of a file's size would cut what is compiled
    sys.dont_write_bytecode = bool(order["limits"])
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None  # of the zygote's environment


def run(words: list[str]) -> NoReturn:
    """The program as `__main__`, and what it leaves to the interpreter's own end."""
    code: Any = None
    interrupted = False
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        elif words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        interrupted = isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)  # giving back every object one by one takes a second


def tell(child: int, status: Path) -> None:
    """Wait for the child, and write how it ended."""
    _, how = os.waitpid(child, 0)
    note_end(status, os.waitstatus_to_exitcode(how))


class Forked(subprocess.Popen[bytes]):
    """What `python ARGV` starts, forked from this process, which has imported torch already."""

    def _execute_child(self, args: Any, *how: Any) -> None:
        if args[0] != sys.executable:
            super()._execute_child(args, *how)  # type: ignore[misc]
            return
        self._child_created = True
        before = dict(os.environ)
        # hooks.py looks for the folder of the run as this process forks
        os.environ.update(how[5])
        self.pid = os.fork()
        if self.pid == 0:
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if how[-2]:
                os.setsid()
            run([word for word in args[1:] if word != "-u"])
        os.environ.clear()
        os.environ.update(before)


def import_train() -> None:
    """Import what train.py does, and have its ranks and ceilings wait less than those of many hosts."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import (
        subprocess_handler,
    )

    from saturate.engine import ranks
    from saturate.loaders.videos._planes import compile_kernels
    from saturate.report import ceilings
    from saturate.settings.config import parse
    from saturate.tasks import TASKS

    of_tasks = (f"saturate.{room}.{task}" for task in TASKS for room in ROOMS)
    for module in (*imported_by(TRAIN), *BY_NAME, *of_tasks):
        importlib.import_module(module)
    compile_kernels()
    # the parser reads the docstrings of all settings once
    parse(["--loader", "synthetic"])
    Image.preinit()
    os.fsync = unsynced
    ceilings.LEAST_S = 1.0
    # ranks of one machine, whose store answers at once
    ranks.ALONE_AFTER_S = 1.0
    ranks.LOOK_S = 0.01
    ranks.BEAT_S = 0.5
    ranks.CLOSED_S = 1.0
    # torchrun forks its ranks
    subprocess_handler.Popen = Forked  # type: ignore[assignment, misc]


def import_measured() -> None:
    """Import what a program under `saturate why` does, and have that command fork its program, and take two turns, or
    as many as the variable TURNS has.
    """
    import torch

    # the first optimiser of a process imports for two seconds
    torch.optim.SGD([torch.zeros(1)])
    launch.subprocess = SimpleNamespace(Popen=Forked)  # type: ignore[assignment]
    phases = sys.modules["saturate.why.phases"]
    os.register_at_fork(
        after_in_child=lambda: setattr(phases, "TURNS", int(os.environ.get("TURNS", 2)))
    )


def main() -> None:
    (import_measured if hooks.FOLDER in os.environ else import_train)()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of this process
    # Ctrl-C ends pytest, and then our stdin
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            become(order)
            run(order["argv"])
        threading.Thread(
            target=tell, args=(child, Path(order["status"])), daemon=True
        ).start()
        print(child, flush=True)


if __name__ == "__main__":
    main()
