"""The README's first command, with fewer images in fewer epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo_set

ROOT = Path(__file__).parents[2]


def drawn(folder: Path, train: int, val: int) -> None:
    """Draw so many images of each class, which the demo takes for the whole set: that would take half a
    minute.
    """
    demo_set.write(folder, train, val, progress=False)
    stamp = {"seed": 0, "train": 200, "val": 50}
    (folder / "demo_set.json").write_text(json.dumps(stamp), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_ends_with_the_table(tmp_path: Path) -> None:
    """In one pass over few images by a small network."""
    drawn(tmp_path / "demo-data", 10, 2)
    here = {
        **os.environ,
        "SATURATE_PYTHON": sys.executable,
        "SATURATE_DEMO_DIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [
        "bash",
        "scripts/demo.sh",
        *["--epochs", "1", "--arch", "squeezenet1_1", "--image-size", "32"],
        *["--ceilings", "false"],
    ]
    said = subprocess.run(
        command,
        cwd=ROOT,
        env=here,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert said.returncode == 0, said.stdout[-2000:] + said.stderr[-2000:]
    assert f"{tmp_path / 'demo-data'}: already there" in said.stdout
    (summary,) = tmp_path.glob("demo-*/summary.json")
    found = json.loads(summary.read_text(encoding="utf-8"))
    assert found["validation"]["samples"] == 20
    for line in (
        "top-1",
        "rate",
        "compute ceiling",
        "loader ceiling",
        "efficiency",
        "bound by",
        "change first",
        "run folder",
        "tensorboard --logdir",
    ):
        assert line in said.stdout
