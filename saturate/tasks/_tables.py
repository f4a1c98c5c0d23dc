"""Tables as files: CSV, JSON lines or parquet. Must not know what a row means."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from saturate.contracts import utf8

Rows = Sequence[dict[str, Any]]
"""Every row has the same names; None is an empty cell."""
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def write(path: Path, rows: Rows, form: str) -> Path:
    """Write the rows to a file whose name ends with the format, a name of FORMATS; return its path."""
    path = path.with_name(f"{path.name}.{form}")
    path.write_bytes(written(rows, form))
    return path


def written(rows: Rows, form: str = "csv") -> bytes:
    """Return the rows as a file of that format, a name of FORMATS; b"" of none."""
    return FORMATS[form](rows) if rows else b""


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula in spreadsheets, which may run programs. The last four are =+-@ in full width."""


def inert(cell: object) -> object:
    """Return a cell of a CSV; a text that is a formula gets a ' before it, by which spreadsheets show it.

    https://owasp.org/www-community/attacks/CSV_Injection. Names of files and classes may be a stranger's.
    """
    if (
        not isinstance(cell, str)
        or not cell.startswith(FORMULA)
        or NUMBER.fullmatch(cell)
    ):
        return cell
    return f"'{cell}"


def _csv(rows: Rows) -> bytes:
    lines: list[str] = []
    # before Python 3.11.9 a cell with CR is quoted only where rows end with CR, too (CPython issue 67044)
    table = csv.writer(SimpleNamespace(write=lines.append))
    table.writerow(map(inert, rows[0]))
    table.writerows([inert(row[name]) for name in rows[0]] for row in rows)
    text = "".join(line.removesuffix("\r\n") + "\n" for line in lines)
    return utf8(text).encode()


def _text(cell: object) -> object:
    return utf8(cell) if isinstance(cell, str) else cell


def _json_lines(rows: Rows) -> bytes:
    texts = ({utf8(name): _text(row[name]) for name in row} for row in rows)
    return b"".join(json.dumps(row).encode() + b"\n" for row in texts)


def _parquet(rows: Rows) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = {
        utf8(name): pyarrow.array([_text(row[name]) for row in rows])
        for name in rows[0]
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "csv": _csv,
    "jsonl": _json_lines,
    "parquet": _parquet,
}
