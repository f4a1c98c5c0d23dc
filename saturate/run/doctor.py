"""Show what is installed and works here, and what to change first.

`python -m scripts.doctor [--json]`. Each row is the answer of a probe (saturate/run/_probes.py), which runs in a child
process and has LIMIT_S for it, so that a driver that hangs or a library that crashes becomes a row. This process
imports nothing that could be broken. Exit code 1 when a row is bad.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from saturate.run._probes import PROBES, Row, lost
from saturate.run.program import Parser

PATH = Path(__file__).resolve().parents[2]
"""Where the package lies."""

LIMIT_S = 120.0
"""Seconds for an answer of a child, whose imports a slow disk makes long."""
ENDS_S = 5.0
"""Seconds in which a child that was killed ends."""
ORDER = ("bad", "warn", "ok", "absent")
CHILD = (sys.executable, "-m", "saturate.run._probes")
AT_ONCE = 4


def ask(name: str, *, limit_s: float = LIMIT_S, child: Sequence[str] = CHILD) -> Row:
    """Return the row of a probe."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [*child, name], cwd=PATH, stdout=answer, stderr=words
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            # one that hangs in the kernel is left there
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDS_S)
            return lost(PROBES[name], f"no answer within {limit_s:.0f} s")
        answer.seek(0)
        words.seek(0)
        output, errors = answer.read(), words.read().decode(errors="replace")
    code = process.returncode
    if code == 0 and output.endswith(b"}\n"):
        return Row(**json.loads(output))
    end = signal.Signals(-code).name if code < 0 else f"code {code}"
    last = errors.strip().splitlines()[-1:]
    why = ": ".join([f"its process ended with {end}", *last])
    return lost(PROBES[name], why[:300])


def diagnose() -> dict[str, Row]:
    """Return all rows by name."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(PROBES, pool.map(ask, PROBES), strict=True))


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
        "--json", action="store_true", help="the rows as JSON, instead of the table"
    )
    options = parser.parse_args(arguments)
    rows = diagnose()
    if options.json:
        items = [{"what": name, **asdict(row)} for name, row in rows.items()]
        print(json.dumps(items, indent=2, ensure_ascii=False))
    else:
        show(rows)
    return int(any(row.state == "bad" for row in rows.values()))
