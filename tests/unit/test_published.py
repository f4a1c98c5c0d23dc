"""`python -m scripts.published`: reports are read and checked, and figures compared by their ratios."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks._flags import asked
from contracts import UserError
from scripts import published
from scripts.bench import suite_of

TABLES = [
    (name, table) for name in published.names() for table in published.read(name).tables
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "published.md"
INDEX = PAGE.parent / "benchmarks" / "README.md"


def row(point: dict[str, Any], **figures: float) -> dict[str, Any]:
    return {
        "point": point,
        "status": "ok",
        "error": None,
        "figures": figures,
        "spread": {},
    }


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(
    ("name", "table"), TABLES, ids=[f"{name}-{table.name}" for name, table in TABLES]
)
def test_a_table_is_one_of_its_suite(
    name: str, table: published.Table, gpus: int
) -> None:
    suite = suite_of(table.suite)
    flags, count = published.settled(table, gpus)
    asked(suite.settings, published.words(flags), prog=suite.name)
    assert count > 0 and table.baseline in [line.name for line in table.lines]
    known = {column.key for column in suite.columns} | {"epoch_s"}
    assert set(table.figures) <= known
    for line in table.lines:
        assert set(line.published) <= set(table.figures)
        for point in filter(None, (line.by_hand, line.ours)):
            assert set(point) <= known


def test_figures_are_compared_with_their_own_baselines() -> None:
    table = next(table for name, table in TABLES if name == "slow-storage")
    rows = [
        row({"loader": "pytorch+opencv"}, total_s=10.0),
        row({"loader": "dali-by-hand"}, total_s=14.0),
        row({"loader": "dali-fed"}, total_s=10.1)
        | {"spread": {"total_s": {"min": 9.96, "max": 10.5}}},
        row({"loader": "torchvision"}, total_s=10.0)
        | {"status": "failed", "error": "why"},
    ]
    told = {line[0]: line[1:] for line in published.cells(table, "total_s", rows, 0)}
    assert told["DataLoader"] == [
        "11.1 (1.00 x)",
        "10 (1.00 x)",
        "not measured: failed: why",
    ]
    assert told["DALI that reads by itself"][:2] == ["14.16 (1.28 x)", "14 (1.40 x)"]
    assert told["DALI that reads by itself"][2] == published.LEFT_OUT
    assert told["DALI fed by a DataLoader"] == [
        "10.3 (0.93 x)",
        "-",
        "10.1 (1.01 x; 9.96 to 10.5)",
    ]
    assert (
        told["DALI that reads by itself, on a GPU"][2]
        == "cannot run here: it needs 1 GPU"
    )


def test_the_page_has_the_reports_figures() -> None:
    """The page has them as the command shows them; GPU busy and W of `superres` are on its suite's page."""
    beside = (INDEX.parent / "superres.md").read_text()
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    pages = {section.partition(":")[0]: section for section in sections}
    assert set(pages) == set(published.names()) - {"recipes"}, (
        "which docs/recipes.md has"
    )
    second = (PAGE.parents[1] / "README.md").read_text().split("\n\n")[2]
    assert "[published](docs/published.md)" in second
    for name, table in TABLES:
        for figure in table.figures if name in pages else ():
            for _, theirs, *_ in published.cells(table, figure, [], 0):
                said = theirs.partition(" ")[0]
                there = re.search(
                    rf"(?<![\d.,]){re.escape(said)}(?![\d.])", pages[name] + beside
                )
                assert said == "-" or there, f"{name}, {table.name}: {figure} {said}"


def test_columns_apart_have_their_own_baselines_and_the_reports_unit() -> None:
    table = next(
        table for _, table in TABLES if table.apart and "epoch_s" in table.figures
    )
    by_hand = {"loader": "by hand: torchvision"}
    rows = [
        row({"loader": "paired", "batch_size": 8}, epoch_s=60.0),
        row({"loader": "paired", "batch_size": 128}, epoch_s=30.0),
        row(by_hand | {"batch_size": 8}, epoch_s=600.0),
        row(by_hand | {"batch_size": 128}, epoch_s=120.0),
        row(by_hand | {"batch_size": 16})
        | {"status": "absent", "error": "no GPU is here"},
    ]
    told = {line[0]: line[1:] for line in published.cells(table, "epoch_s", rows, 1)}
    assert told["batch 8"] == ["16 (5.33 x)", "10 (5.00 x)", "1 (2.00 x)"]
    assert told["batch 16"][1:] == [
        "cannot run here: no GPU is here",
        published.LEFT_OUT,
    ]
    assert published.cells(table, "power_w", rows, 1)[0][3] == "not measured"


def test_what_no_line_shows_is_not_measured() -> None:
    """Each loader that a table asks for has a line; on two GPUs those on the GPU alone have. Without a GPU
    lines that need one are not shown."""
    on_gpus = ("dali", "dali-gpu", "nvdec")
    for table in (table for name, table in TABLES if name == "sharded"):
        loaders = table.flags["loaders"]
        points = [
            {"loader": loader, "gpus": gpus, "workers": 8}
            for gpus in (1, 2)
            for loader in loaders
        ]
        kept = published.named(table, points, 2)
        assert [point["loader"] for point in kept if point["gpus"] == 1] == loaders
        assert [point["loader"] for point in kept if point["gpus"] == 2] == [
            loader for loader in loaders if loader in on_gpus
        ]
        assert [point["loader"] for point in published.named(table, points, 0)] == [
            loader for loader in loaders if loader not in (*on_gpus, "nvdec+pyav")
        ]


def test_pictures_become_png_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (3, 2), 7).save(tmp_path / "data" / name / "one.jpg")
    table = next(table for _, table in TABLES if table.set == "png")
    settings = published.Published(data=tmp_path / "data")
    for _ in range(2):  # the second time it is there
        made, said = published.data_for(table, 9, settings, tmp_path / "out")
        assert said.endswith("2 of them as PNG files")
    found = sorted(made.rglob("*.png")) if made else []
    assert [path.parent.name for path in found] == ["a", "b"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)


def test_a_report_that_lacks_something_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "REPORTS", tmp_path)
    (tmp_path / "one.yaml").write_text("title: a\nsource: b\ntables: []\n")
    with pytest.raises(UserError, match=r"one\.yaml: hardware: Field required"):
        published.read("one")
    with pytest.raises(UserError, match="REPORT got 'two'"):
        published.read("two")


def test_a_report_of_which_nothing_can_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    words = ["dali-training", "--tables", "networks", "--output"]
    assert published.main([*words, str(tmp_path / "new" / "out")]) == 0
    assert (
        "Cannot run here: it needs a GPU."
        in (tmp_path / "new" / "out" / "published.md").read_text()
    )
    (tmp_path / "file").touch()
    assert published.main([*words, str(tmp_path / "file")]) == 2
    assert "--output" in capsys.readouterr().err


def test_flags_are_checked_before_a_set_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drawn(*_: object) -> None:
        raise AssertionError("a set was drawn")

    monkeypatch.setattr(published, "data_for", drawn)
    assert (
        published.main(
            ["slow-storage", "--output", str(tmp_path), "--", "--step-ms", "x"]
        )
        == 2
    )
    assert "--step-ms got 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", re.findall(r"^\| (\[.*) \|$", INDEX.read_text(), re.MULTILINE)
)
def test_the_index_quotes_what_its_page_has(line: str) -> None:
    """Every figure of a line of docs/benchmarks/README.md stands on the page that it leads to."""
    page = re.match(r"\[[^]]*\]\(([^)]*)\)", line)
    assert page
    text = (INDEX.parent / page[1]).read_text()
    if "not yet measured" in line:
        assert "not yet measured" in text.lower(), f"{page[1]} is measured by now"
    figures = re.findall(
        r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)(?: ?(%|times|img/s|clip/s|s|min|W|GiB|MiB|ms)(?!\w))",
        line.split(" | ", 1)[1],
    )
    assert (
        figures
        or re.search("max-batch|soak|image", page[1])
        or "not yet measured" in line
    )  # no rate
    for figure, unit in figures:
        # in a sentence
        said = rf"(?<![\d.,]){re.escape(figure)} ?{re.escape(unit)}(?!\w)"
        cell = rf"\| {re.escape(figure)}[ %(|]"
        assert re.search(f"{said}|{cell}", text), (
            f"{page[1]} does not have {figure} {unit}"
        )


def test_the_index_has_every_page() -> None:
    listed = re.findall(r"^\| \[[^]]*\]\(([^)]*)\)", INDEX.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(
        path.name for path in INDEX.parent.glob("*.md") if path != INDEX
    )
