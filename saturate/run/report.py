"""`python -m scripts.report RUN --html`: report.html of a finished run anew, from what is in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from saturate.contracts import UserError, utf8
from saturate.report import curves, page
from saturate.report.record import replace
from saturate.run.program import Parser
from saturate.settings.config import GROUP_OF, build
from saturate.settings.preset import read_preset
from saturate.system.exit_codes import of_program
from saturate.tasks import kind_of


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
    kind = kind_of(build(known))
    _, charts = curves.files(folder, summary, kind.figures[0])
    content = page.page(folder, summary, kind, charts, data=known.get("data"))
    replace(folder / page.REPORT, content)
    print(utf8(f"{folder / page.REPORT}"))
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
