"""Tables as files: CSV, JSON lines or parquet. Must not know what a row means."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from contracts import UserError

Rows = Sequence[dict[str, Any]]
"""Every row has the same names; None is an empty cell."""


def require(form: str) -> None:
    """Raise UserError where a package that the format needs is not installed."""
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            remedy = "pip install pyarrow, or --predict-format csv"
            raise UserError(f"--predict-format parquet needs the package pyarrow: {remedy}") from None


def written(rows: Rows, form: str) -> bytes:
    """Return the rows as a file of that format, a name of FORMATS."""
    return FORMATS[form](rows)


def _csv(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    # names of files may be no UTF-8: they are written back as they are
    return text.getvalue().encode("utf-8", "surrogateescape")


def _json_lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _parquet(rows: Rows) -> bytes:
    import pyarrow
    import pyarrow.parquet

    def cell(value: Any) -> Any:  # its text is UTF-8 alone
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    columns = {name: pyarrow.array([cell(row[name]) for row in rows]) for name in rows[0]}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Rows], bytes]] = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}
