"""Runs of train.py for tests: start one, watch it, stop it, read what it left."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0
STOPPING = "train.py: stopping after this step; Ctrl-C 3 s from now or later ends without a checkpoint\n"
"""On stderr, once SIGTERM or Ctrl-C has come."""


def draw(folder: Path, *, classes: Sequence[str], train: int, val: int) -> Path:
    """An image folder of small JPEGs; a class is a colour in noise. Counts are of a class."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                height, width = rng.integers(40, 90, 2)
                pixels = rng.integers(0, 128, (height, width, 3), dtype=np.uint8)
                pixels[..., label % 3] += 100
                Image.fromarray(pixels).save(
                    folder / split / name / f"{i:03d}.jpg", quality=90
                )
    return folder


@dataclass
class Process:
    pid: int
    folder: Path  # of its stdout, stderr, status

    def poll(self) -> int | None:
        """The exit status (-signal when one ended it), None while it runs."""
        status = self.folder / "status"
        return int(status.read_text()) if status.exists() else None

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        until(lambda: self.poll() is not None, timeout_s, f"process {self.pid} to end")
        code = self.poll()
        assert code is not None
        return code

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to every process of the run."""
        os.killpg(self.pid, signal.SIGINT)

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    def done(self) -> Process:
        """Waits, and requires that it went well and that nothing was said on stderr."""
        assert (self.wait(), self.err) == (0, ""), self.out[-2000:]
        return self

    def mistake(self) -> str:
        """Waits, requires a user's mistake as it must look, and returns its line."""
        assert self.wait() == 2, (
            f"exit {self.wait()}: {self.err[-3000:] or self.out[-1000:]}"
        )
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("train.py: "), self.err
        assert len(lines[0]) < 600, "too long for one line"
        return lines[0].removeprefix("train.py: ")


def until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.01)


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with this project's modules before the packages of its PYTHONPATH."""
    paths = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": paths}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def meeting(ranks: int) -> list[dict[str, str]]:
    """Return the variables by which ranks of this machine meet, as torchrun sets them for each."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    meet |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    return [
        meet | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(ranks)
    ]


@contextmanager
def zygote_of(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start zygote.py in this environment; kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.end_to_end.zygote"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()  # a process that a test has forked may hold stdin open: its end never comes


def forked(zygote: subprocess.Popen[str], order: dict[str, Any]) -> int:
    assert zygote.stdin and zygote.stdout
    zygote.stdin.write(json.dumps(order) + "\n")
    zygote.stdin.flush()
    return int(zygote.stdout.readline())


def started_anew(order: dict[str, Any]) -> int:
    assert not order["limits"] and not order["host"], "only the zygote sets them"
    with open(order["stdout"], "a") as out, open(order["stderr"], "a") as err:
        process = subprocess.Popen(
            [sys.executable, *order["argv"]],
            cwd=order["cwd"],
            env=order["env"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    status = Path(order["status"])
    threading.Thread(
        target=lambda: note_end(status, process.wait()), daemon=True
    ).start()
    return process.pid


def note_end(status: Path, code: int) -> None:
    new = status.with_name("status.new")
    new.write_text(str(code))
    new.rename(status)


@dataclass
class Runner:
    """`run = Runner(...); run("--arch resnet18 --lr 0.1")` starts train.py in `cwd` with this environment.

    Without a `zygote` each process is started anew: a fork of a process that has asked for CUDA has none.
    """

    cwd: Path
    env: dict[str, str]
    zygote: subprocess.Popen[str] | None
    started: list[Process] = field(default_factory=list)

    def __call__(
        self,
        *argv: object,
        limits: dict[str, int] | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        words: list[object] = []
        for word in argv:
            is_flags = isinstance(word, str) and word.startswith("-")
            words += word.split() if is_flags else [word]  # type: ignore[attr-defined]
        return self.python(ROOT / "train.py", *words, limits=limits, env=env, cwd=cwd)

    def python(
        self,
        *argv: object,
        limits: dict[str, int] | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        host: tuple[str, list[int]] | None = None,
    ) -> Process:
        """Start what `python ARGV` starts: the zygote forks it, and has imported PyTorch already.

        `host`: the name and cores of one of hosts.py.
        """
        folder = self.cwd / f"process-{len(self.started)}"
        folder.mkdir()
        for name in ("stdout", "stderr"):
            (folder / name).touch()
        order = {
            "argv": [str(word) for word in argv],
            "cwd": str(cwd or self.cwd),
            "env": {**self.env, **(env or {})},
            "limits": limits or {},
            "host": host,
            **{name: str(folder / name) for name in ("stdout", "stderr", "status")},
        }
        pid = forked(self.zygote, order) if self.zygote else started_anew(order)
        self.started.append(Process(pid, folder))
        return self.started[-1]

    def ranks(
        self,
        count: int,
        *argv: object,
        missing: int | None = None,
        folders: Sequence[Path] = (),
        last: str = "",
    ) -> list[Process]:
        """Start the command in `count` processes that meet, as torchrun would; one of them may be missing.

        Each is in its one of `folders`, or all are in `cwd`; `last` are more flags of the last rank.
        """
        environments = meeting(count)
        return [
            self(
                *argv,
                *([last] if last and rank == count - 1 else []),
                env=env,
                cwd=folders[rank] if folders else None,
            )
            for rank, env in enumerate(environments)
            if rank != missing
        ]

    def evaluated(self, ranks: int, *argv: object) -> dict[str, Any]:
        output = f"evaluated-{len(self.started)}"
        more = ("--evaluate", "true", "--resume", "run/last.pt", "--output", output)
        for process in self.ranks(ranks, *argv, *more):
            process.wait()
            assert process.poll() == 0, process.err
        found: dict[str, Any] = summary(self.cwd / output)["validation"]
        return found

    @contextmanager
    def command(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        """A real command line in a new session, its stderr piped; killed with its children at the end."""
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=self.cwd,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end_session(process.pid)
            process.communicate()

    def end(self) -> None:
        for process in self.started:
            end_session(process.pid)


def end_session(pid: int) -> None:
    for member in session(pid):
        os.kill(member, signal.SIGKILL)


def session(leader: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if (
                folder.name.isdigit()
                and os.getsid(int(folder.name)) == leader
                and " Z " not in (folder / "stat").read_text()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def points(output: Path, kind: str) -> list[dict[str, Any]]:
    """Whole lines of metrics.jsonl of that kind."""
    try:
        lines = (output / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [
        point
        for line in lines
        if line.endswith("\n") and (point := json.loads(line))["kind"] == kind
    ]


def steps(output: Path) -> int:
    """The last step that was logged, 0 before the first."""
    return max((point["step"] for point in points(output, "train")), default=0)


def reached(output: Path, step: int, *processes: Process) -> None:
    """Wait until this step was logged, or until one of the processes has ended."""

    def there() -> bool:
        ended = any(process.poll() is not None for process in processes)
        return ended or steps(output) >= step

    until(there, TIMEOUT_S, f"step {step}")


def kept(path: Path) -> Any:
    """The content of a checkpoint."""
    import torch  # which few of the tests need

    return torch.load(path, weights_only=True)


def losses(output: Path) -> list[float]:
    """The loss of every step; each step must be there once, in order."""
    found: list[float] = []
    for point in points(output, "train"):
        found += point["losses"]
        assert point["step"] == len(found), (
            f"step {point['step']} after {len(found)} losses"
        )
    return found


def rows(table: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by its header."""
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def summary(output: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return content
