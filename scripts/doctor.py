"""Show what is installed and works here, and what to change first.

`python -m scripts.doctor [--data FOLDER|URL] [--json]`. Every question (scripts/_probes.py) is asked in a
child process with a time limit, so that a driver that hangs or a library that crashes becomes a row. This
process imports nothing that could be broken. Exit code 1 when a row is bad, 2 for a mistake of the caller.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # also as `python scripts/doctor.py`

from scripts import Parser
from scripts._probes import (
    CACHE,
    IF_LOST,
    LANES,
    OF_DATA,
    Probe,
    Row,
    State,
    behind_url,
    first_line,
)

LIMIT_S = 60.0
"""Seconds for one question; the first of a child also pays for its imports, which a slow disk makes long."""
COLOURS: dict[State, str] = {
    "bad": "bold red",
    "warn": "yellow",
    "ok": "green",
    "absent": "dim",
}
"""In the order of the table: what to change comes first."""
PLAIN_WIDTH = 140
SPAWN = get_context(
    "spawn"
)  # a fork would inherit what this process has imported, and each asks anew


def answer(probes: Mapping[str, Probe], rows: Connection, output: str) -> None:
    """Run in a child: send the rows in order; what libraries print goes into the file `output`."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    for name, probe in probes.items():
        sys.stdout.flush()
        os.ftruncate(
            file, 0
        )  # the last words of a process are those of the probe that ended it
        try:
            row = replace(probe(), what=name)
        except Exception as error:
            text = "could not be looked at; if another row is bad, mend that first"
            row = Row(
                what=name, found=first_line(error), state="warn", consequence=text
            )
        rows.send(row)


def ask(probes: Mapping[str, Probe], limit_s: float = LIMIT_S) -> list[Row]:
    """Return a row for each probe, whatever it does.

    A fresh process takes over from one that ended in a probe, or exceeded the time.
    """
    rows: list[Row] = []
    while len(rows) < len(probes):
        left = dict(list(probes.items())[len(rows) :])
        answers, end = _ask_a_child(left, limit_s)
        rows += answers
        if len(answers) < len(left):
            what = list(left)[len(answers)]
            text = "it would end a run likewise: reinstall what the row names; its last words are on the left"
            rows.append(
                Row(
                    what=what,
                    found=end,
                    state="bad",
                    consequence=IF_LOST.get(what, text),
                )
            )
    return rows


def _ask_a_child(probes: Mapping[str, Probe], limit_s: float) -> tuple[list[Row], str]:
    """Return the rows that a child gave, in order, and how it ended, for when there are too few."""
    rows: list[Row] = []
    receiver, sender = SPAWN.Pipe(duplex=False)
    with (
        tempfile.TemporaryFile() as output
    ):  # it has no name to be left behind, but the child finds it
        path = f"/proc/{os.getpid()}/fd/{output.fileno()}"
        child = SPAWN.Process(target=answer, args=(probes, sender, path), daemon=True)
        child.start()
        sender.close()
        end = f"no answer within {limit_s:.0f} s"
        try:
            while len(rows) < len(probes) and receiver.poll(limit_s):
                rows.append(receiver.recv())
            if len(rows) == len(probes):
                child.join(2)
        except (EOFError, OSError):  # OSError: it ended in the middle of an answer
            child.join(5)
            code = child.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else ""
            end = (
                f"its process was ended by {name}"
                if name
                else f"its process ended with exit code {code}"
            )
        child.kill()
        child.join(5)
        words = output.read().decode(errors="replace").strip().splitlines()
    return rows, f"{end}: {words[-1][:200]}" if words else end


def diagnose(data: str | None) -> list[Row]:
    """Return all rows, in the order of the tables; `data` is a folder or a URL."""
    # a child that Ctrl-C ends before it has its file would print a traceback to the terminal
    terminal = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with ThreadPoolExecutor(len(LANES)) as lanes:
            rows = [row for lane in lanes.map(ask, LANES) for row in lane]
        if data is not None:
            of_data = {
                name: partial(probe, Path(data)) for name, probe in OF_DATA.items()
            }
            if "://" in data:
                of_data = {"--data: reading": partial(behind_url, data)}
            rows += ask(of_data | CACHE)
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
    return rows


def show(rows: list[Row]) -> None:
    """Print the table, plain lines where rich is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        for row in rows:
            print(f"{row.state:6}  {row.what}: {row.found}; {row.consequence}")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    ratios = {
        "what": None,
        "found": 5,
        "state": None,
        "consequence, and what to change first": 6,
    }
    for heading, ratio in ratios.items():
        table.add_column(heading, ratio=ratio, no_wrap=ratio is None)
    for row in sorted(rows, key=lambda row: list(COLOURS).index(row.state)):
        cells = (
            Text(row.what),
            Text(row.found),
            Text(row.state, COLOURS[row.state]),
            Text(row.consequence),
        )
        table.add_row(*cells, style="dim" if row.state == "absent" else None)
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)


def summary(rows: list[Row]) -> str:
    """Return the last line: the names of the rows that are bad or warn."""
    names = {
        state: ", ".join(row.what for row in rows if row.state == state)
        for state in ("bad", "warn")
    }
    return (
        "; ".join(f"{state}: {text}" for state, text in names.items() if text)
        or "nothing to change"
    )


def leave(*_: object) -> None:
    """End at Ctrl-C and SIGTERM, and the children too, at once: the lanes would start the next ones."""
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
    parser.add_argument(
        "--json", action="store_true", help="the rows as JSON, instead of the table"
    )
    options = parser.parse_args(arguments)
    if (
        options.data is not None
        and "://" not in options.data
        and not os.path.isdir(options.data)
    ):
        what = "is not a folder" if os.path.exists(options.data) else "no such folder"
        parser.error(
            f"--data {options.data}: {what}; name the one that holds train/ and val/"
        )
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
