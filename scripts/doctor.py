"""Show what is installed and works here, and what to change first.

`python -m scripts.doctor [--data FOLDER|URL] [--json]`. Every question (scripts/probes/) is asked in a child
process with a time limit, so that a driver that hangs or a library that crashes becomes a row. This process
imports nothing that could be broken. Exit code 1 when a row is bad, 2 for a mistake of the caller.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python scripts/doctor.py`

from scripts import Parser
from scripts.probes import Row, State, decoders, first_line, machine, storage, training

Probe = Callable[[], Row]

LANES: tuple[dict[str, Probe], ...] = (
    {
        "GPU": training.gpu,
        "NCCL": training.nccl,
        "DALI": decoders.dali,
        "DALI decodes, CPU": decoders.dali_cpu,
        "DALI decodes, GPU": decoders.dali_gpu,
        "nvJPEG's engine": decoders.nvjpeg_engine,
        "CPU reader": decoders.reader,
        "NVDEC": decoders.nvdec,  # with PyAV's FFmpeg, behind all that is not to meet it
    },
    {
        "torch, torchvision": training.torch_and_torchvision,
        "apex": training.apex,
        "variables": machine.environment,  # before engine/distributed.py is imported and sets its own
        "CPU cores": machine.cores,
        "memory": machine.memory,
        "/dev/shm": machine.shm,
        "open files": machine.open_files,
        "locked memory": machine.locked_memory,
    },
    {"decord": decoders.decord},
    {"PyAV": decoders.pyav},
    {"torchcodec": decoders.torchcodec},
)
"""Name -> probe, in the order of the table. Lanes are asked side by side, each in a process of its own:
decord, PyAV and torchcodec bring an FFmpeg each, and NVDEC's takes PyAV's. All that uses a GPU is in the
first: one in exclusive mode takes one process."""
OF_DATA: dict[str, Callable[[Path], Row]] = {
    "--data: file system": storage.file_system,
    "--data: reading": storage.reading,
    "--data: size": storage.size,
}
MANIFESTS: dict[str, Probe] = {"manifest cache": storage.manifest_cache}
"""Asked with --data, after everything else: a speed is not taken beside other work."""

IF_LOST = {"NCCL": training.NCCL_HANGS}
"""Name -> the consequence where the question ends its process, or gets no answer in time."""
LIMIT_S = 60.0
"""Seconds for one question; the first one of a child also pays for its imports, which a slow disk makes
long."""
COLOURS: dict[State, str] = {"bad": "bold red", "warn": "yellow", "ok": "green", "absent": "dim"}
"""In the order of the table: what to change comes first."""
PLAIN_WIDTH = 140
SPAWN = get_context("spawn")  # a fork would inherit what this process has imported, and each asks anew


def examine(name: str, probe: Probe) -> Row:
    """Return the probe's row; when it raises, a row that says so."""
    try:
        return replace(probe(), what=name)
    except Exception as error:
        said = "could not be looked at; if another row is bad, mend that first"
        return Row(what=name, found=first_line(error), state="warn", consequence=said)


def answer(probes: dict[str, Probe], rows: Connection, output: str) -> None:
    """Live a child's life: give the rows in order; what libraries print goes into the file `output`."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    for name, probe in probes.items():
        sys.stdout.flush()
        os.ftruncate(file, 0)  # the last words of a process are those of the probe that ended it
        rows.send(examine(name, probe))


def ask(probes: dict[str, Probe], limit_s: float = LIMIT_S) -> list[Row]:
    """Return a row for each probe, whatever it does. One that ends its process, or exceeds the time, is
    followed by a fresh process."""
    told: list[Row] = []
    while len(told) < len(probes):
        left = dict(list(probes.items())[len(told) :])
        rows, end = _ask_a_child(left, limit_s)
        told += rows
        if len(rows) < len(left):
            what = list(left)[len(rows)]
            said = IF_LOST.get(
                what,
                "it would end a run likewise: reinstall what the row names; its last words are on the left",
            )
            told.append(Row(what=what, found=end, state="bad", consequence=said))
    return told


def _ask_a_child(probes: dict[str, Probe], limit_s: float) -> tuple[list[Row], str]:
    """Return the rows that a child gave, in order, and how it ended, which matters when there are too few."""
    told: list[Row] = []
    receiver, sender = SPAWN.Pipe(duplex=False)
    with tempfile.TemporaryFile() as output:  # it has no name to be left behind, but the child finds it
        path = f"/proc/{os.getpid()}/fd/{output.fileno()}"
        child = SPAWN.Process(target=answer, args=(probes, sender, path), daemon=True)
        child.start()
        sender.close()
        end = f"no answer within {limit_s:.0f} s"
        try:
            while len(told) < len(probes) and receiver.poll(limit_s):
                told.append(receiver.recv())
            if len(told) == len(probes):
                child.join(2)
        except (EOFError, OSError):  # OSError: it ended in the middle of an answer
            child.join(5)
            code = child.exitcode or 0
            end = (
                f"its process was ended by {signal.Signals(-code).name}"
                if code < 0
                else f"its process ended with exit code {code}"
            )
        child.kill()
        child.join(5)
        words = output.read().decode(errors="replace").strip().splitlines()
    return told, f"{end}: {words[-1][:200]}" if words else end


def diagnose(data: str | None) -> list[Row]:
    """Return all rows, in the order of the tables; `data` is a folder or a URL."""
    with _unheard(), ThreadPoolExecutor(len(LANES)) as lanes:
        rows = [row for lane in lanes.map(ask, LANES) for row in lane]
        if data is not None:
            of_url = {"--data: reading": partial(storage.behind_url, data)}
            of_folder = {name: partial(probe, Path(data)) for name, probe in OF_DATA.items()}
            rows += ask((of_url if "://" in data else of_folder) | MANIFESTS)
    return rows


@contextmanager
def _unheard() -> Iterator[None]:
    """Start children without the terminal inside: one that Ctrl-C ends before it has its file would tell of
    it there."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def show(rows: list[Row]) -> None:
    """Print the table, plain lines where rich is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        print(
            "\n".join(
                f"{row.state:6}  {row.what}: {row.found}" + f"; {row.consequence}" * bool(row.consequence)
                for row in rows
            )
        )
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, share in (
        ("what", None),
        ("found", 5),
        ("state", None),
        ("consequence, and what to change first", 6),
    ):
        table.add_column(heading, ratio=share, no_wrap=share is None)
    for row in sorted(rows, key=lambda row: list(COLOURS).index(row.state)):
        cells = (Text(row.what), Text(row.found), Text(row.state, COLOURS[row.state]), Text(row.consequence))
        table.add_row(*cells, style="dim" if row.state == "absent" else None)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def summary(rows: list[Row]) -> str:
    """Return the last line."""
    named = {state: ", ".join(row.what for row in rows if row.state == state) for state in ("bad", "warn")}
    if not named["bad"] and not named["warn"]:
        return "nothing to change"
    return "; ".join(f"{state}: {names}" for state, names in named.items() if names)


def leave(*_: object) -> None:
    """End at Ctrl-C and SIGTERM, and the children too, at once, for the lanes would start the next ones."""
    for child in active_children():
        child.kill()
    os._exit(130)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("doctor", __doc__)
    parser.add_argument(
        "--data",
        help="also look at the disk below this folder, whose page cache is dropped for up to 200 files, or "
        "at the server of this URL",
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON, instead of the table")
    options = parser.parse_args(arguments)
    if options.data is not None and "://" not in options.data and not os.path.isdir(options.data):
        what = "is not a folder" if os.path.exists(options.data) else "no such folder"
        parser.error(f"--data {options.data}: {what}; name the one that holds train/ and val/")
    rows = diagnose(options.data)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False))
    else:
        show(rows)
        print(summary(rows))
    return int(any(row.state == "bad" for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    sys.exit(main())
