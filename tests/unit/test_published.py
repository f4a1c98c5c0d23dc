"""`python -m benchmarks published`: reports are tables of suites, and figures are compared by their ratios."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import published
from benchmarks.bench import suite_of
from saturate.contracts import UserError
from saturate.settings.cli import flags as read_flags

TABLES = [
    (name, table)
    for name in published.names()
    for table in published.read(name)["tables"]
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "published.md"
INDEX = PAGE.parent / "benchmarks" / "README.md"
OF_A_TABLE = {"name", "about", "suite", "set", "count", "flags", "figures", "baseline"}
OPTIONAL = {"without_gpu", "gpus", "units", "apart"}


def row(point: dict[str, Any], **figures: float) -> dict[str, Any]:
    same: dict[str, Any] = {"status": "ok", "error": None, "spread": {}}
    return {"point": point, "figures": figures, **same}


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(
    ("name", "table"),
    TABLES,
    ids=[f"{name}-{table['name']}" for name, table in TABLES],
)
def test_a_table_is_one_of_its_suite(name: str, table: Any, gpus: int) -> None:
    assert {"title", "source", "hardware", "differs"} <= {*published.read(name)}
    assert {*table} - OPTIONAL == OF_A_TABLE | {"lines"}
    suite = suite_of(table["suite"])
    flags, count = published.settled(table, gpus)
    read_flags(suite.settings, published.words(flags), prog=suite.name)
    assert count > 0
    assert table["baseline"] in [line["name"] for line in table["lines"]]
    known = {*suite.columns, *suite.details, "epoch_s"}
    assert {*table["figures"]} <= known
    # an axis is a setting, or one value of several
    names = [*suite.settings.model_fields]
    axes = {*names, *(name.removesuffix("s") for name in names)}
    for line in table["lines"]:
        assert {*line} <= {"name", "published", "by_hand", "ours", "gpus"}
        assert {*line.get("published", {})} <= {*table["figures"]}
        for column in published.HERE:
            assert {*line.get(column, {})} <= axes


def test_figures_are_compared_with_their_own_baselines() -> None:
    table = next(table for name, table in TABLES if name == "slow-storage")
    rows = [
        row({"loader": "pytorch+opencv"}, total_s=10.0),
        row({"loader": "dali-by-hand"}, total_s=14.0),
        row({"loader": "dali-fed"}, total_s=10.1)
        | {"spread": {"total_s": {"min": 9.96, "max": 10.5}}},
        row({"loader": "torchvision"}) | {"status": "failed", "error": "why"},
    ]
    told = {line[0]: line[1:] for line in published.cells(table, "total_s", rows, 0)}
    why = "not measured: failed: why"
    assert told["DataLoader"] == ["11.1 (1.00 x)", "10 (1.00 x)", why]
    alone = ["14.16 (1.28 x)", "14 (1.40 x)", "-"]
    assert told["DALI that reads by itself"] == alone
    fed = ["10.3 (0.93 x)", published.LEFT_OUT, "10.1 (1.01 x; 9.96 to 10.5)"]
    assert told["DALI fed by a DataLoader"] == fed
    on_gpu = told["DALI that reads by itself; ours on a GPU"][2]
    assert on_gpu == "cannot run here: it needs 1 GPUs"


def test_sets_are_made_of_pictures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (3, 2), 7).save(tmp_path / "data" / name / "one.jpg")
    settings = published.Published(data=tmp_path / "data")
    for kind, count in (("images", 9), ("training", 18)):
        for _ in range(2):  # the second time it is there
            made, _ = published.data_for(kind, 9, settings, tmp_path / "out")
        files = [path for path in Path(str(made)).rglob("*") if path.is_file()]
        assert {path.parent.name for path in files} == {"a", "b"}
        assert len(files) == count


def test_a_report_of_which_nothing_can_run_says_so_and_flags_come_before_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    words = ["dali-training", "--tables", "networks", "--output", str(tmp_path / "out")]
    assert published.main(words) == 0
    text = (tmp_path / "out" / "published.md").read_text()
    assert "Cannot run here: it needs a GPU." in text
    monkeypatch.setattr(
        published, "data_for", lambda *_: pytest.fail("a set was drawn")
    )
    words = ["slow-storage", "--output", str(tmp_path / "new"), "--", "--step-ms", "x"]
    assert published.main(words) == 2 and "--step-ms" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert published.main([*words[:2], str(tmp_path / "file")]) == 2
    with pytest.raises(UserError, match="REPORT got 'two'"):
        published.read("two")


# --- pages ------------------------------------------------------------------------------------------------------


def test_the_page_has_the_reports_figures() -> None:
    """The page has them as the command shows them; GPU busy and W of `superres` are on its suite's page."""
    beside = (INDEX.parent / "superres.md").read_text()
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    pages = {section.partition(":")[0]: section for section in sections}
    # which docs/recipes.md has
    assert set(pages) == set(published.names()) - {"recipes"}
    for name, table in TABLES:
        for figure in table["figures"] if name in pages else ():
            for _, theirs, *_ in published.cells(table, figure, [], 0):
                said = theirs.partition(" ")[0]
                whole = rf"(?<![\d.,]){re.escape(said)}(?![\d.])"
                there = re.search(whole, pages[name] + beside)
                assert said == "-" or there, f"{name}, {table['name']}: {figure} {said}"


def wrong_ratios(section: str) -> list[str]:
    """Return the ratios of a section's prose that are not as the tables there have it.

    One is written "38.9 / 2.75 = 14.1 times": what it is of stands in cells, and is divided here.
    """
    text = re.sub(r"^```.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\|.*", text, re.MULTILINE)
    cells = {*re.findall(r"\d[\d,]*(?:\.\d+)?", " ".join(rows))}
    prose = " ".join(re.sub(r"^\|.*", "", text, flags=re.MULTILINE).split())
    wrong = []
    for before, said in re.findall(r"([\d.,]+ / [\d.,]+ = )?(\d[\d.,]*) times", prose):
        parts = before.split()[:3:2]
        known = {*parts} <= cells and len(parts) == 2
        above, below = (float(part.replace(",", "")) for part in parts or ("1", "1"))
        digits = len(said.partition(".")[2])
        if not known or f"{above / below:.{digits}f}" != said:
            wrong.append(f"{before}{said} times")
    return wrong


@pytest.mark.parametrize("section", PAGE.read_text().split("\n## ")[1:])
def test_a_ratio_in_the_prose_is_one_of_cells(section: str) -> None:
    assert not wrong_ratios(section)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("1,000 / 4.0 = 250 times", True),
        ("1,000 / 4.0 = 251 times", False),
        ("1,000 / 5 = 200 times", False),
        ("250 times", False),
    ],
)
def test_a_planted_ratio_is_seen(said: str, right: bool) -> None:
    table = "| 1,000 (1.00 x; 9 to 11) | 4.0 |"
    assert wrong_ratios(f"{table}\n\nOurs is\n{said} as fast.") == [said] * (not right)


@pytest.mark.parametrize(
    "line", re.findall(r"^\| (\[.*) \|$", INDEX.read_text(), re.MULTILINE)
)
def test_the_index_quotes_what_its_page_has(line: str) -> None:
    """Every figure of a line of docs/benchmarks/README.md stands on the page that it leads to."""
    page = re.match(r"\[[^]]*\]\(([^)]*)\)", line)
    assert page
    text = (INDEX.parent / page[1]).read_text()
    figures = re.findall(
        r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)(?: ?(%|times|img/s|clip/s|s|min|W|GiB|MiB|ms)(?!\w))",
        line.split(" | ", 1)[1],
    )
    assert figures or re.search("max-batch|soak|image", page[1])  # no rate
    for figure, unit in figures:
        # in a sentence
        said = rf"(?<![\d.,]){re.escape(figure)} ?{re.escape(unit)}(?!\w)"
        cell = rf"\| {re.escape(figure)}[ %(|]"
        assert re.search(f"{said}|{cell}", text), f"{page[1]} lacks {figure} {unit}"
