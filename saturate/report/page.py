"""report.html: a run on one page that needs no network, for a screen, a phone or paper; other pages look alike.

It has the best figure, what to change first, the closing table, the curves, pictures, what a step and the loader's
time are made of, the command and the versions; pictures are read from the run's folder.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from saturate.contracts import Reported, utf8
from saturate.report.advice import look_up
from saturate.report.facts import rows
from saturate.report.words import duration, number

REPORT = "report.html"
PICTURES = {
    "val_batch.jpg": (
        "Validation",
        "Images of the last validation: what is there, and what the network makes of them",
    ),
    "mistakes.png": (
        "Worst mistakes",
        "The most confident mistakes; below each its label, the answer and its file",
    ),
    "confusion.png": (
        "Confusion",
        "How often each class, a row, was taken for each, a column; confusion.csv has the numbers",
    ),
    "train_batch.jpg": (
        "What the network is given",
        "Images of the first training batch, as they are augmented",
    ),
}
"""File of a run -> title of its section, and what stands for it where it is not seen."""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
:root {{ --ink: #222; --faint: #595959; --blue: #08519c; --box: #eaf2fa; --paper: #fff }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e4e4e4; --faint: #a8a8a8; --blue: #6baed6; --box: #1d2b3a; --paper: #15181c }} }}
@media print {{
  * {{ -webkit-print-color-adjust: exact; print-color-adjust: exact }} section {{ break-inside: avoid }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 }}
main {{ max-width: 1100px; margin: 2em auto; padding: 0 1em; overflow-wrap: break-word }}
h1 {{ font-size: 1.5em; margin: 0 }} h2 {{ font-size: 1.15em; margin: 2em 0 .5em }}
.faint, th {{ color: var(--faint) }} .best {{ margin: .5em 0 }} .best b {{ font-size: 3em; line-height: 1.2 }}
img {{ max-width: 100%; background: #fff }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24em), 1fr)); gap: 1em }}
svg {{ width: 100%; height: auto; fill: currentColor }} .hidden {{ position: absolute; width: 0; height: 0 }}
.photos {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(9em, 1fr)); gap: 1em; margin: 1em 0 }}
figure {{ margin: 0; font-size: .8em; overflow-wrap: anywhere }} figure img {{ display: block; width: 100% }}
table {{ border-spacing: 0 }} th, td {{ padding: .1em 1.5em .1em 0; vertical-align: top; text-align: left }}
th {{ font-weight: normal; white-space: nowrap }}
pre {{ white-space: pre-wrap }} td, pre {{ overflow-wrap: anywhere }} .number {{ white-space: nowrap }}
.first {{ background: var(--box); border-left: 4px solid var(--blue); padding: .6em 1em }}
.bar {{ width: 20em; max-width: 30vw }} .bar div {{ background: var(--blue); height: .9em; margin-top: .3em }}
@media (max-width: 40em) {{
  .facts th, .facts td {{ display: block; padding: 0 }} .facts td {{ padding-bottom: .5em }} }}
</style></head><body><main>
<h1>{heading}</h1>
<div class="faint">{about}</div>
<p class="best"><b>{best}</b> {behind}</p>
{body}
</main></body></html>
"""


def page(
    folder: Path,
    summary: Mapping[str, Any],
    task: Reported,
    charts: str,
    *,
    data: str | None,
) -> bytes:
    """Return the report of a run as HTML; a part of which the run has nothing is left out.

    `charts` are what curves.files gives, `data` is --data.
    """
    # a summary of an earlier version may lack what is asked for with a default
    machine = summary.get("hardware", {})
    lines = dict(rows(summary, task))
    first = lines.pop("change first", "")
    value = lines.get("best") or next(iter(lines.values()), "-")
    title = task.figures[0].title
    if value == "-":
        title, value = "rate", lines.get("rate", "-")
    # of the best validation without the checkpoint's path
    best, _, behind = value.partition(": ")[0].partition(" ")
    # a narrow screen would end its line before the number
    behind = behind.replace("epoch ", "epoch\N{NO-BREAK SPACE}")
    stages = summary.get("stages") or {}
    shares = {name: 100 * one["share"] for name, one in stages.items()}
    parts = {
        "Change first": first and f'<p class="first">{escape(first)}</p>',
        "What was learnt, how fast, and what held it back": table(lines),
        "Curves": charts and f'<div class="charts">{charts}</div>',
        **{
            title: _image(folder / name, alt) for name, (title, alt) in PICTURES.items()
        },
        "Where the time went": bars(look_up(summary, "goodput.seconds") or {}, "s"),
        "Parts of a step": bars(summary.get("split_ms") or {}, "ms"),
        "Stages of the loader, of its workers' or its thread's time": bars(shares, "%"),
        "Command": f"<pre>{escape(summary.get('command', ''))}</pre>",
        "Machine and versions": table({**machine, **summary.get("versions", {})}),
    }
    name = f"{summary.get('arch')} on {Path(data).name if data else 'synthetic data'}"
    gpus = f"{summary.get('world_size')} x {machine.get('gpu')}"
    about = [
        summary.get("ended"),
        duration(summary.get("duration_s", 0.0)),
        gpus if machine.get("gpu") else machine.get("cpu"),
        "" if summary["finished"] else "not finished",
        str(folder),
    ]
    return document([name, *filter(None, about)], best, f"{title} {behind}", parts)


def document(
    about: Sequence[str], best: str, behind: str, parts: Mapping[str, str]
) -> bytes:
    """Return a page: what it is of in words, a large figure and what is `behind` it, and sections, title -> HTML.

    A section without HTML is left out. All but the HTML is escaped.
    """
    sections = (
        f"<section><h2>{escape(title)}</h2>\n{part}</section>"
        for title, part in parts.items()
        if part
    )
    return utf8(
        PAGE.format(
            title=escape(" · ".join(about[:-1])),
            heading=escape(about[0]),
            about=escape(" · ".join(about[1:])),
            best=escape(best),
            behind=escape(behind),
            body="\n".join(sections),
        )
    ).encode()


def table(cells: Mapping[str, Any]) -> str:
    """Return a row a cell, its name before it; "" without cells."""
    lines = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in cells.items()
    )
    return f'<table class="facts">{"".join(lines)}</table>' if cells else ""


def bars(values: Mapping[str, float], unit: str) -> str:
    """Return a bar a value, the longest of the largest; "" without values."""
    largest = max(values.values(), default=0) or 1
    lines = (
        f'<tr><th scope="row">{escape(name)}</th>'
        f'<td class="bar"><div style="width: {100 * value / largest:.1f}%"></div></td>'
        f'<td class="number">{number(value)} {unit}</td></tr>'
        for name, value in values.items()
    )
    return f"<table>{''.join(lines)}</table>" if values else ""


def _image(path: Path, alt: str) -> str:
    if not path.exists():
        return ""
    kind = "png" if path.suffix == ".png" else "jpeg"
    return image(path.read_bytes(), alt, kind)


def image(content: bytes, alt: str, kind: str = "jpeg") -> str:
    """Return a picture of the page; `alt` stands for it where it is not seen."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{escape(alt)}" src="data:image/{kind};base64,{data}">'
