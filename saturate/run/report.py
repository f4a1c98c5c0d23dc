"""`python -m scripts.report RUN --html`: report.html of a finished run, one file that needs no network.

It has what was learnt, the curves, the rate and its ceilings, what a step and the loader's time are made of, the
worst mistakes, what to change first, the command and the versions; all are read from the run's folder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from saturate.contracts import Reported, UserError, utf8
from saturate.report import curves
from saturate.report.facts import rows
from saturate.report.record import replace
from saturate.report.words import number
from saturate.run.program import Parser
from saturate.settings.config import GROUP_OF, build
from saturate.settings.preset import read_preset
from saturate.system.exit_codes import of_program
from saturate.tasks import kind_of

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto; padding: 0 1em }}
h1 {{ font-size: 1.5em; margin: 0 }} h2 {{ font-size: 1.15em; margin: 2em 0 .5em }}
img {{ max-width: 100% }}
td {{ padding: .1em 1.5em .1em 0; vertical-align: top; overflow-wrap: anywhere }}
td:first-child {{ color: #666; white-space: nowrap }} pre {{ white-space: pre-wrap; overflow-wrap: anywhere }}
.first {{ background: #eaf2fa; border-left: 4px solid #08519c; padding: .6em 1em }}
.bar {{ width: 20em; max-width: 45vw }} .bar div {{ background: #08519c; height: .9em; margin-top: .3em }}
</style></head><body>
<h1>{title}</h1>{folder}
{body}
</body></html>
"""


def page(folder: Path, summary: Mapping[str, Any], task: Reported) -> str:
    """Return the report of a run as HTML; a part of which the run has nothing is left out."""
    lines = dict(rows(summary, task))
    first = lines.pop("change first", "")
    stages = summary.get("stages") or {}
    shares = {name: 100 * one["share"] for name, one in stages.items()}
    parts = {
        "What was learnt, how fast, and what held it back": _table(lines),
        "Change first": first and f'<p class="first">{escape(first)}</p>',
        "Curves": _image(folder / curves.RESULTS),
        "Parts of a step": _bars(summary.get("split_ms") or {}, "ms"),
        "Stages of the loader, of its workers' or its thread's time": _bars(
            shares, "%"
        ),
        "Worst mistakes": _image(folder / "mistakes.png"),
        "Confusion": _image(folder / "confusion.png"),
        "Command": f"<pre>{escape(summary['command'])}</pre>",
        "Machine and versions": _table({**summary["hardware"], **summary["versions"]}),
    }
    body = (f"<h2>{title}</h2>\n{part}" for title, part in parts.items() if part)
    return PAGE.format(
        title=escape(
            f"{summary['arch']} · {summary['loader']} · {summary['precision']}"
        ),
        folder=escape(str(folder)) + ("" if summary["finished"] else ", not finished"),
        body="\n".join(body),
    )


def _table(cells: Mapping[str, Any]) -> str:
    lines = (
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in cells.items()
    )
    return f"<table>{''.join(lines)}</table>"


def _bars(values: Mapping[str, float], unit: str) -> str:
    """Return a bar a value, the longest of the largest; "" without values."""
    largest = max(values.values(), default=0) or 1
    lines = (
        f'<tr><td>{escape(name)}</td><td class="bar"><div style="width: {100 * value / largest:.1f}%"></div></td>'
        f"<td>{number(value)} {unit}</td></tr>"
        for name, value in values.items()
    )
    return f"<table>{''.join(lines)}</table>" if values else ""


def _image(path: Path) -> str:
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="" src="data:image/png;base64,{data}">'


def write(folder: Path) -> int:
    """Return 0 once report.html is in a run's folder. Raises UserError for a folder without a summary."""
    if not (folder / "summary.json").exists():
        raise UserError(
            f"{folder}: no summary.json; name the folder of a run that ended"
        )
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    preset = read_preset(folder / "config.yaml")
    # a run of another version may have settings that are not here
    known = {name: value for name, value in preset.items() if name in GROUP_OF}
    content = page(folder, summary, kind_of(build(known)))
    replace(folder / "report.html", utf8(content).encode())
    print(utf8(f"{folder / 'report.html'}"))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 2 for a user's mistake."""
    parser = Parser("report", __doc__)
    parser.add_argument("run", type=Path, help="the folder of a run (--output)")
    parser.add_argument(
        "--html", action="store_true", help="the form, of which there is this one"
    )
    options = parser.parse_args(arguments)
    return of_program("report", lambda: write(options.run))
