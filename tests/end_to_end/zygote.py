"""Starts runs of train.py quickly: imports once what it imports, then forks a process for each run.

The child runs train.py as `__main__`, in a session of its own. One JSON object a line on stdin (see
runs.Runner), the child's process id as the answer; its exit status goes to a file.
"""

from __future__ import annotations

import ast
import atexit
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

from loaders.videos._planes import compile_kernels
from tasks import TASKS

BY_NAME = (
    *("torch.utils.tensorboard.summary", "loaders.synthetic", "loaders.images.torchvision"),
    *(f"{room}.{task}" for task in TASKS for room in ("tasks", "models")),
    *("faster_coco_eval", "loaders.videos.pyav"),
)
"""What train.py imports when it knows what is asked for."""
TRAIN = Path(__file__).resolve().parents[2] / "train.py"


def imported_by(file: Path) -> list[str]:
    found = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module]
            found += [
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (file.parent / node.module / f"{alias.name}.py").exists()
            ]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def become(order: dict[str, Any]) -> None:
    """In the child: everything that a fresh process would have been given."""
    os.setsid()
    for number, (file, how) in enumerate(
        ((os.devnull, os.O_RDONLY), *((order[name], os.O_WRONLY) for name in ("stdout", "stderr")))
    ):
        os.dup2(os.open(file, how), number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(TRAIN), *order["argv"]]


def run() -> NoReturn:
    """train.py as `__main__`, and what it leaves to the interpreter's own end."""
    code: Any = None
    try:
        runpy.run_path(str(TRAIN), run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # giving back every object one by one takes a second


def main() -> None:
    for module in (*imported_by(TRAIN), *BY_NAME):
        importlib.import_module(module)
    compile_kernels()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends pytest, and then our stdin
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    for line in sys.stdin:
        order = json.loads(line)
        told, tell = os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                become(order)
                run()
            os.write(tell, b"%d\n" % child)
            _, status = os.waitpid(child, 0)
            new = Path(order["status"] + ".new")
            new.write_text(str(os.waitstatus_to_exitcode(status)))
            new.rename(order["status"])
            os._exit(0)
        os.close(tell)
        with open(told) as answer:
            print(answer.readline().strip(), flush=True)


if __name__ == "__main__":
    main()
