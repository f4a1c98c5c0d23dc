"""Show what is installed and works here, and what to change first.

`python -m scripts.doctor [--data FOLDER|URL] [--json]`. Each row is a probe (scripts/_probes.py) that
runs in a child process with a time limit, so that a driver that hangs or a library that crashes becomes a
row. This process imports nothing that could be broken. Exit code 1 when a row is bad, 2 for a mistake of
the caller.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

# also as `python scripts/doctor.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import Parser
from scripts._probes import OF_A_URL, OF_DATA, PROBES, Probe, Row, lost

ROOT = Path(__file__).resolve().parents[1]

LIMIT_S = 120.0
"""Seconds for one child, whose imports a slow disk makes long."""
ORDER = ("bad", "warn", "ok", "absent")
CHILD = (sys.executable, "-m", "scripts._probes")


def ask(
    probes: Mapping[str, Probe],
    data: str = "",
    *,
    limit_s: float = LIMIT_S,
    child: Sequence[str] = CHILD,
) -> dict[str, Row]:
    """Return the row of each probe; a fresh process takes over from one that a probe has ended."""
    rows: dict[str, Row] = {}
    while left := [name for name in probes if name not in rows]:
        try:
            done = subprocess.run(
                [*child, data, *left], cwd=ROOT, capture_output=True, timeout=limit_s
            )
            output, words = done.stdout, done.stderr
            end = f"its process ended with code {done.returncode}"
            if done.returncode < 0:
                end = (
                    f"its process was ended by {signal.Signals(-done.returncode).name}"
                )
        except subprocess.TimeoutExpired as error:
            output, words = error.stdout or b"", error.stderr or b""
            end = f"no answer within {limit_s:.0f} s"
        # the last line is none where the process ended within an answer
        lines = output.decode(errors="replace").split("\n")[:-1]
        rows |= dict(
            zip(left, (Row(**json.loads(line)) for line in lines), strict=False)
        )
        if len(lines) < len(left):
            last = words.decode(errors="replace").strip().splitlines()[-1:]
            name = left[len(lines)]
            rows[name] = lost(probes[name], ": ".join([end, *last])[:300])
    return rows


def diagnose(data: str | None) -> dict[str, Row]:
    """Return all rows by name; `data` is a folder or a URL."""
    rows = ask({name: probe for name, probe in PROBES.items() if not probe.alone})
    for name, probe in PROBES.items():
        if probe.alone:
            rows |= ask({name: probe})
    if data is not None:
        rows |= ask(OF_A_URL if "://" in data else OF_DATA, data)
    return rows


def show(rows: Mapping[str, Row]) -> None:
    """Print the rows, what to change first, and at the end the names of those."""
    for state in ORDER:
        for name, row in rows.items():
            if row.state == state:
                print(f"{state:6}  {name}: {row.found}\n          {row.consequence}")
    named = [
        f"{state}: {', '.join(names)}"
        for state in ("bad", "warn")
        if (names := [name for name, row in rows.items() if row.state == state])
    ]
    print("; ".join(named) or "nothing to change")


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("doctor", __doc__)
    parser.add_argument(
        "--data",
        help="also look at the disk below this folder, whose page cache is dropped for "
        "up to 200 files, or at the server of this URL",
    )
    parser.add_argument(
        "--json", action="store_true", help="the rows as JSON, instead of the table"
    )
    options = parser.parse_args(arguments)
    data = options.data
    if data is not None and "://" not in data:
        if not os.path.isdir(data):
            parser.error(
                f"--data {data}: no such folder; name one with train/ and val/"
            )
        data = os.path.abspath(data)
    rows = diagnose(data)
    if options.json:
        items = [{"what": name, **asdict(row)} for name, row in rows.items()]
        print(json.dumps(items, indent=2, ensure_ascii=False))
    else:
        show(rows)
    return int(any(row.state == "bad" for row in rows.values()))


def leave(*_: object) -> None:
    """End at SIGTERM as at Ctrl-C, which ends the child too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os._exit(130)
