"""Trials: train.py in a process of its own, of which nothing is left when it ends, with flags that only measure.
Must not know a suite.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from saturate.contracts import UserError
from saturate.dataset.open import holds, require_splits
from saturate.run._reasons import reason
from saturate.settings.config import Config
from saturate.system import programs
from saturate.tasks import kind_of

"""Where the package lies: a process finds it there, whatever its folder is."""
TRAIN = (sys.executable, "-m", "saturate", "train")
"""Words that start train.py."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 35.0
"""torchrun gives its ranks 30 s."""


MEASURED_ONLY = {
    "epochs": 1_000_000,
    "save_every_minutes": 0,
    "lr": 1e-3,
    "warmup_epochs": 0,
    "schedule": "constant",
}
"""Settings of a run that is only measured: as many epochs as it takes, and a learning rate that neither
learns nor diverges.
"""
FULL_SIZE = {"image_size_start": None, "image_size_ramp": None}
"""Settings with which images that grow have their last size from the start: a short run stands for that."""
GENTLER = {"detection": {"lr": 1e-5}}
"""--task -> what differs: detectors start from nothing here, and their losses are sums over many boxes."""


def ran(command: list[str], log: Path, limit_s: float) -> tuple[str, str]:
    """Run a command, whose words go to the file `log`; return how it ended, and why if that is not "ok": "oom",
    "failed", or "timeout". Whatever it has started is gone when this returns.
    """
    path = os.environ.get("PYTHONPATH", "")
    if (programs.CHECKOUT / "train.py").exists():  # an installed package is found
        path = f"{programs.CHECKOUT}{os.pathsep}{path}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,  # else a child could take the terminal's keys
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # one signal then reaches whatever it forks
        )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return "timeout", f"took longer than {limit_s:g} s"
    finally:
        _end(process)
    return reason(code, log.read_text(encoding="utf-8", errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to all that the process has started, and SIGKILL to what is then left."""
    # torchrun's ranks are sessions of their own; listed first, for who has lost its parent is nobody's child
    family: list[psutil.Process] = []
    if process.poll() is None:
        with suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    for child in family:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(family, timeout=5.0)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end like Ctrl-C inside: the point under way is ended too, and the
    rows so far stay. A signal that is ignored, as under nohup, stays so.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    changed = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    try:
        for number in changed:
            signal.signal(number, interrupt)
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])


def with_flags(argv: list[str]) -> list[str]:
    """Return the arguments with all that follows a bare '--', flags of train.py, as the one value of
    --flags.
    """
    at = argv.index("--") if "--" in argv else len(argv)
    behind = argv[at + 1 :]
    return argv[:at] + ([f"--flags={shlex.join(behind)}"] if behind else [])


def behind_dashes(flags: str, taken: Collection[str]) -> tuple[list[str], set[str]]:
    """Return the words of flags of train.py, and the names of the settings that they set.

    Raises UserError for words that cannot be told apart, and for settings that are `taken`.
    """
    try:
        given = shlex.split(flags)
    except ValueError as error:
        raise UserError(f"--flags {flags}: {error}") from None
    names = set()
    for word in given:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            names.add(name)
            if name in taken:
                raise UserError(f"{word} behind -- is what this program sets itself")
    return given, names


def require_data(
    data: str | None,
    loaders: Collection[str],
    config: Config,
    *,
    validates: bool = False,
) -> None:
    """Raise UserError when there is nothing for them to train on, as far as names of files tell.

    `config` are the other settings of the runs, which need no val where none of them `validates`.
    """
    content = kind_of(config).content
    if data is not None:
        chosen = config.data.model_copy(update={"data": data})
        require_splits(chosen, content, validates=validates)
    elif {*loaders} != {"synthetic"}:
        must_be = holds(content, config.data.source)
        raise UserError(f"--data is missing: {must_be}, or the loader synthetic alone")


def words(flags: Mapping[str, Any]) -> list[str]:
    """Return settings as flags; None leaves one out, and a list has several values."""
    arguments: list[str] = []
    for name, each in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(each, list):
            arguments += [flag, *map(str, each)]
        elif each is not None:
            value = str(each).lower() if isinstance(each, bool) else each
            # --flags has words that begin like flags
            arguments.append(f"{flag}={value}")
    return arguments
