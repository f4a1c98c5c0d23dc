"""Show what is installed and works here, and what to change first.

`python -m scripts.doctor [--data FOLDER|URL] [--json]`. Each row is the answer of a probe (scripts/_probes.py),
which runs in a child process and has LIMIT_S for it, so that a driver that hangs or a library that crashes
becomes a row. This process imports nothing that could be broken. Exit code 1 when a row is bad, 2 for a mistake
of the caller.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

# also as `python scripts/doctor.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import Parser
from scripts._probes import OF_A_URL, OF_DATA, PROBES, Probe, Row, lost

ROOT = Path(__file__).resolve().parents[1]

LIMIT_S = 120.0
"""Seconds for one answer of a child, whose imports a slow disk makes long."""
ENDS_S = 5.0
"""Seconds in which a child that has answered, or was killed, ends; one that hangs in the kernel is left there."""
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
        end = "its process ended before it answered"
        with tempfile.TemporaryFile() as words:
            process = subprocess.Popen(
                [*child, data, *left], cwd=ROOT, stdout=subprocess.PIPE, stderr=words
            )
            assert process.stdout is not None
            try:
                answers = _lines(process.stdout, limit_s)
                for name, line in zip(left, answers, strict=False):
                    rows[name] = Row(**json.loads(line))
                code = process.wait(ENDS_S)
                if code < 0:
                    end = f"its process was ended by {signal.Signals(-code).name}"
                elif code:
                    end = f"its process ended with code {code}"
            except Empty:
                end = f"no answer within {limit_s:.0f} s"
            except subprocess.TimeoutExpired:
                pass
            finally:
                process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(ENDS_S)
            words.seek(0)
            last = words.read().decode(errors="replace").strip().splitlines()[-1:]
        for name in [name for name in left if name not in rows][:1]:
            rows[name] = lost(probes[name], ": ".join([end, *last])[:300])
    return rows


def _lines(pipe: IO[bytes], limit_s: float) -> Iterator[bytes]:
    """Yield the whole lines of a pipe until it is closed. Raises Empty where one takes longer than `limit_s`."""
    heard: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        with pipe:
            for line in pipe:
                heard.put(line)
        heard.put(b"")

    threading.Thread(target=listen, daemon=True).start()
    # the last line is none where the process ended within an answer
    while (line := heard.get(timeout=limit_s)).endswith(b"\n"):
        yield line


def diagnose(data: str | None) -> dict[str, Row]:
    """Return all rows by name; `data` is a folder or a URL."""
    rows = ask(PROBES)
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
