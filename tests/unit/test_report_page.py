"""report.html: what stands where, read by an HTML parser."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from saturate.report.page import page
from saturate.tasks.classification import KIND
from tests.unit.test_report_console import SUMMARY

ABOUT: dict[str, Any] = {
    "finished": True,
    "ended": "2026-11-29 12:05",
    "duration_s": 130.4,
    "start_s": {"imports": 4.0},
    "pauses": {"validation": 20.0},
    "world_size": 2,
    "command": "train.py --data <photos>",
    "hardware": {"gpu": "H100", "cpu": "EPYC", "cores": 16.0},
    "versions": {"torch": "2.15"},
    "split_ms": {"forward": 2.0, "backward": 4.0},
}


class Elements(HTMLParser):
    """Every element with its attributes, and the texts of those that are asked for."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.texts.setdefault(self.found[-1][0], []).append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.found if found == tag]


def test_the_title_says_which_run_it_is_and_the_best_figure_stands_first(
    tmp_path: Path,
) -> None:
    found = Elements(page(tmp_path, SUMMARY | ABOUT, KIND, "", data="/sets/photos"))
    about = "2026-11-29 12:05 · 2:10 min · 2 x H100"
    assert found.texts["title"][0] == f"resnet18 on photos · {about}"
    assert found.texts["div"][0] == f"{about} · {tmp_path}"
    # the best of all validations, not the last one, which is in the table
    assert found.texts["b"][:2] == ["92.00%", " top-1 after epoch\N{NO-BREAK SPACE}7"]
    tags = [tag for tag, _ in found.found]
    assert tags.index("b") < tags.index("h2") < tags.index("table")
    cpu = {"hardware": {"gpu": None, "cpu": "EPYC"}, "finished": False}
    found = Elements(page(tmp_path, SUMMARY | ABOUT | cpu, KIND, "", data=None))
    assert found.texts["title"][0].endswith("2:10 min · EPYC · not finished")


def test_pictures_are_in_the_page_and_nobody_is_asked(tmp_path: Path) -> None:
    kinds = {"val_batch.jpg": "jpeg", "mistakes.png": "png"}
    for name, kind in kinds.items():
        (tmp_path / name).write_bytes(kind.encode())
    said = page(tmp_path, SUMMARY | ABOUT, KIND, "<svg></svg>", data="a").decode()
    for kind in kinds.values():
        content = base64.b64encode(kind.encode()).decode()
        assert f"data:image/{kind};base64,{content}" in said
    assert not re.search(r"https?:|<script|<link|@import", said)
