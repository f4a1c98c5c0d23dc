"""The README's examples are run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]


def test_a_loader_in_ones_own_loop(tmp_path: Path) -> None:
    """The Python block, in a process of its own, on a folder of ImageNet's layout."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]) <= 15
    for name in ("n01", "n02"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for i in range(70):
            Image.new("RGB", (40 + i, 50), (i, 2 * i, 3)).save(tmp_path / "train" / name / f"{i}.JPEG")
    script = tmp_path / "own_loop.py"
    script.write_text(code.replace("IMAGENET", str(tmp_path)), encoding="utf-8")
    said = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) == 4, "140 samples make two batches of 64 an epoch"
    assert "torch.Size([64, 3, 224, 224])" in lines[0]
    assert lines[0] != lines[2], "another epoch, another order"


def test_docker_keeps_the_runs() -> None:
    """The folder that `docker run` mounts is the one below which a run is written."""
    (folder,) = re.findall(r"^WORKDIR (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert f"/runs:{folder}/runs" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_pages_that_are_named_exist() -> None:
    """docs/... in any page or comment."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*.py")]
    named = {name for page in pages for name in re.findall(r"\bdocs/[\w/]+\.(?:md|png)", page.read_text(encoding="utf-8"))}
    assert {name for name in named if not (ROOT / name).is_file()} == set() != named
