"""Pages are read at once: sentences are short, figures are few; the site's links lead somewhere, offline."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks import chart
from saturate.settings import config
from scripts import make_settings
from scripts.make_pictures import IMAGES, PICTURES, RUNS
from tests.end_to_end.runs import Runner

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if page.name not in ("map.md", "settings.md")  # written by programs of scripts/
}
FOLD = re.compile(r"<details.*?</details>", re.DOTALL)
"""How figures were measured."""
FOLDED = '\n\n<details markdown="1"><summary>How</summary>\n\n```sh\n1 2\n```\n{}\n</details>'


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, but for tables, headings, pictures and code; `code` is one word."""
    text = re.sub(r"^ *```.*?^ *```", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *(?:[|#!<].*)?$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    parts = (
        part
        for block in text.split("\n\n")
        for part in re.split(r"[.!?]\s", block + " ")
    )
    return [part for part in parts if re.search(r"\w", part)]


def faults(text: str) -> list[str]:
    """Return what makes a page hard to read: long sentences, folded or not, and many numbers."""
    found = sentences(FOLD.sub("\n", text))
    words = sum(len(sentence.split()) for sentence in found)
    numbers = len(re.findall(r"(?<![\w.,-])\d[\d,.]*", " ".join(found)))
    # in folds they are not counted: the conditions of a measurement are numbers
    limits = [("numbers a hundred words", 100 * numbers / max(words, 100), 6)]
    folded = sentences("\n\n".join(FOLD.findall(text)))
    for where, among in (("", found), (" of folds", folded)):
        lengths = sorted(len(sentence.split()) for sentence in among) or [0]
        tenth = lengths[int(0.9 * len(lengths[1:]))]
        limits += [
            (f"words in the median sentence{where}", median(lengths), 16),
            (f"words in nine of ten sentences{where}", tenth, 28),
        ]
    return [f"{got:.3g} {what}, not {most}" for what, got, most in limits if got > most]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_read_at_once(page: str) -> None:
    found = faults(PAGES[page])
    assert not found, f"{page} has {'; '.join(found)}"


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("", ""),
        ("\n\n| 1 | 2 | 3 | 4 | 5 |\n\n```bash\n1 2 3 4 5\n```\n", ""),
        ("\n\n" + "Short. " * 6 + ("word " * 29 + ". ") * 2, "nine of ten"),
        (("\n\n- " + "word " * 17) * 3, "median"),
        ("\n\nIt made 1,234 (1 to 2), 3.5, 4, 5, 6 and 7.", "numbers"),
        (FOLDED.format("It made 1,234 (1 to 2), 3.5, 4, 5, 6 and 7."), ""),
        (FOLDED.format("Short. " * 6 + ("word " * 29 + ". ") * 2), "nine of ten"),
        (FOLDED.format("two cores; " * 9), "median sentence of folds"),
    ],
)
def test_a_planted_page_is_seen(planted: str, fault: str) -> None:
    found = faults("The rate is high.\nIt is bound by `compute`." + planted)
    assert [fault in line for line in found] == [True] * bool(fault)


def test_the_page_of_settings_has_every_flag_that_help_has(runner: Runner) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == make_settings.page(), "python -m scripts.make_settings"
    helped = runner.python(ROOT / "train.py", "--help-all").done().out
    flags = re.findall(r"^ {2,4}(--[a-z][\w-]*)", helped, re.MULTILINE)
    assert len(flags) > 100
    assert re.findall(r"^### (.*)", page, re.MULTILINE) == flags
    # the command line takes the examples, beside the flags that they are for
    facts = dict(zip(flags, re.split(r"^### .*", page, flags=re.M)[1:], strict=True))
    examples = {
        flag: shlex.split(re.findall(r"^- example: `(.*)`$", said, re.M)[0])
        for flag, said in facts.items()
    }
    for flag, words in examples.items():
        assert words[0] == flag and (words[1:] or "true or false" in facts[flag]), flag
        for other, value in re.findall(
            r"^- beside: `(--\S+)`(?: `([^`]*)`)?", facts[flag], re.M
        ):
            words = [*words, *([other, value] if value else examples[other])]
        config.parse(words)
    # a name of PyTorch's, by which people search
    assert "num_workers" in page.partition("### --workers\n")[2].partition("###")[0]


def site(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of `folder`/mkdocs.yml into `folder`/site, where a warning is an error."""
    pytest.importorskip("zensical", reason="needs pip install zensical")
    command = f"{sys.executable} -m zensical build --strict"
    return subprocess.run(command.split(), cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    built = site(tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {str(page.parent.name) for page in tmp_path.rglob("index.html")}
    assert {Path(name).stem for name in PAGES if "/" in name} - pages <= {
        "index",
        "README",
    }
    fetched = re.compile(r'<(?:script|img|link)[^>]*(?:src|href)="?https?://[^>]*>')
    for page in tmp_path.rglob("*.html"):
        assert not fetched.findall(page.read_text(encoding="utf-8")), page


def test_planted_links_end_the_build(tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text().partition("nav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "docs").mkdir()
    text = "# Start\n\n[a](gone.md) and [b](index.md#gone)\n"
    (tmp_path / "docs" / "index.md").write_text(text)
    built = site(tmp_path)
    assert built.returncode != 0
    for what in ("page", "anchor"):
        assert f"{what} does not exist" in built.stderr


def svg_texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


def test_the_chart_is_drawn_from_the_tables_figures(tmp_path: Path) -> None:
    """What benchmarks/chart.py draws is README's chart, and it has all rates and loader ceilings of the first table."""
    drawn = tmp_path / "rates.svg"
    page = ROOT / "docs" / "benchmarks" / "train.md"
    assert chart.main([str(page), str(drawn)]) == 0
    texts = [svg_texts(ROOT / "docs" / "images" / "rates.svg"), svg_texts(drawn)]
    assert texts[0] == texts[1], "python -m benchmarks chart draws it again"
    rows = chart.rows_of(page.read_text(encoding="utf-8"))
    assert len(rows) == 6
    for row in rows:
        assert f"{row['loader']} · {row['img/s'].partition(' ')[0]}" in texts[0]
        if row["loader ceiling"] != "-":
            assert row["loader ceiling"].partition(" ")[0] in texts[0]


def test_pictures_are_shown_small_and_said_in_words() -> None:
    """Each has a page which says what it shows, and those with a ground a dark variant."""
    shown = " ".join(PAGES.values())
    files = set[str]()
    for name, picture in PICTURES.items():
        stem, suffix = os.path.splitext(name)
        dark = [f"{stem}-dark{suffix}"] * picture.has_ground
        files |= {name, *dark}
        assert re.search(
            rf"{re.escape(picture.alt)}.*{name}|{name}.*{re.escape(picture.alt)}", shown
        ), name
        assert all(f"images/{one}" in shown for one in dark), name
    assert {path.name for path in IMAGES.iterdir()} == files
    sizes = [path.stat().st_size for path in IMAGES.iterdir()]
    assert max(sizes) <= 120_000 and sum(sizes) <= 1_500_000
    assert len(PICTURES) >= 15


def test_the_tutorial_has_the_commands_that_its_pictures_are_of() -> None:
    """What it says was printed by these; tests/unit/test_page_commands.py reads their flags."""
    blocks = re.findall(
        r"^```bash\n(.*?)\n```", PAGES["docs/tutorial.md"], re.MULTILINE | re.DOTALL
    )
    asked = ("drawn", "photos", "predicted", "exported", "served")
    assert [block for block in blocks if block in RUNS.values()] == [
        RUNS[name] for name in asked
    ]


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_a_screen(page: str) -> None:
    """A browser of 1280 pixels shows some 90 columns. Measured commands wrap by fits.css."""
    for block in re.findall(r"^ *```.*?^ *```", FOLD.sub("", PAGES[page]), re.M | re.S):
        assert max(map(len, block.splitlines())) <= 90, block
