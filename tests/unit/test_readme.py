"""The examples of the pages are run as they stand, and the pages that they name exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.end_to_end.runs import Runner

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCKS = re.findall(
    r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```",
    (ROOT / "docs" / "own-loop.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE | re.DOTALL,
)
SAMPLES = 140
"""In the folder that the examples read: two batches of 64 and 12 samples more."""


def said_by(code: str, folder: Path, runner: Runner | None = None) -> list[str]:
    """Run an example in a process of its own, a fresh one but with a runner, and return its lines.

    The example lies in `folder`, beside a settings.py that is not ours and 140 images in two class folders,
    IMAGENET/train and IMAGENET/val; FLAT is one of these class folders.
    """
    for name in ("n01", "n02"):
        (folder / "train" / name).mkdir(parents=True)
        for i in range(SAMPLES // 2):
            Image.new("RGB", (40 + i, 50), (i, 2 * i, 3)).save(
                folder / "train" / name / f"{i}.JPEG"
            )
    (folder / "val").symlink_to(folder / "train")
    (folder / "settings.py").write_text(
        "raise RuntimeError('this settings.py is none of saturate')\n", encoding="utf-8"
    )
    script = folder / "own_loop.py"
    script.write_text(
        code.replace("IMAGENET", str(folder)).replace(
            '"FLAT"', f'"{folder}/train/n01"'
        ),
        encoding="utf-8",
    )
    here = {
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    if runner is not None:
        return runner.python(script, env=here).done().out.splitlines()
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=here,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def example(title: str) -> str:
    """The Python block below a heading of docs/own-loop.md."""
    return dict(BLOCKS)[title]


def test_every_example_has_a_test() -> None:
    python = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(
            r"^```python$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    # tests/unit/test_drills_store.py
    of_data = [page for page, _ in python if page == "data.md"]
    assert len(of_data) == 1 and len(BLOCKS) + 1 == len(python), (
        "an example that no test runs"
    )
    assert {title for title, _ in BLOCKS} == {
        "Training",
        "Validation",
        "A flat folder without labels",
    }


def test_a_loader_in_ones_own_loop(tmp_path: Path) -> None:
    code = example("Training")
    statements = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)
    ]
    assert (
        len(
            [
                node
                for node in statements
                if not isinstance(node, ast.Import | ast.ImportFrom)
            ]
        )
        <= 12
    )
    lines = said_by(code, tmp_path)
    assert len(lines) == 4, "140 samples make two batches of 64 an epoch"
    assert "torch.Size([64, 3, 224, 224])" in lines[0]
    assert lines[0] != lines[2], "another epoch, another order"


def test_a_validation_of_ones_own_counts_each_sample_once(
    tmp_path: Path, runner: Runner
) -> None:
    (line,) = said_by(example("Validation"), tmp_path, runner)
    right, seen, there = (int(number) for number in re.findall(r"\d+", line))
    assert right <= seen == there == SAMPLES


def test_a_flat_folder(tmp_path: Path, runner: Runner) -> None:
    lines = said_by(example("A flat folder without labels"), tmp_path, runner)
    assert {line.rpartition("/")[2] for line in lines} == {
        f"{i}.JPEG" for i in range(SAMPLES // 2)
    }
    assert [int(line.split()[0]) for line in lines] == list(range(SAMPLES // 2))


def test_a_config_of_ours_would_be_missed(tmp_path: Path) -> None:
    """The plant: an own loop that needs our settings finds the user's."""
    with pytest.raises(AssertionError, match="none of saturate"):
        said_by("import settings\n", tmp_path)


def test_docker_keeps_the_runs() -> None:
    (folder,) = re.findall(
        r"^WORKDIR (\S+)",
        (ROOT / "Dockerfile").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert f"/runs:{folder}/runs" in (ROOT / "README.md").read_text(encoding="utf-8")


def missing(page: Path, text: str) -> set[str]:
    """What a page names that is not there: docs/... from the root, and links as they are resolved from the
    page.
    """
    named = {ROOT / name for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|png)", text)}
    if page.suffix == ".md":
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        named |= {page.parent / link for link in links if "://" not in link}
    return {str(path) for path in named if not path.exists()}


def test_pages_that_are_named_exist() -> None:
    pages = [*PAGES, *ROOT.glob("*/*.py")]
    assert {
        name
        for page in pages
        for name in missing(page, page.read_text(encoding="utf-8"))
    } == set()


@pytest.mark.parametrize(
    "text",
    [
        "see docs/no-such-page.md",
        "[a page](no-such-page.md)",
        "[a part](no-such-page.md#part)",
    ],
)
def test_a_planted_link_is_found(text: str) -> None:
    assert missing(ROOT / "README.md", text)


def test_the_readme_stays_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 165
    fenced = False
    for line in lines:
        fenced ^= line.startswith("```")
        prose = not fenced and not line.startswith(("|", "!", "```"))
        assert not prose or len(line) <= 110, line
