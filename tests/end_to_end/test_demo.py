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
@pytest.mark.parametrize(
    ("images", "val", "flags", "top1"),
    [
        (10, 2, "--epochs 1 --arch squeezenet1_1 --image-size 32", 0.0),
        (60, 15, "--epochs 4 --val-every 4 --warmup-epochs 1", 0.2),
    ],
    ids=["short", "learns"],
)
def test_the_demo_ends_with_the_table(
    images: int, val: int, flags: str, top1: float, tmp_path: Path
) -> None:
    """In few passes over fewer images: of `learns` a seventh of its steps. The time is for a machine that
    others share.
    """
    drawn(tmp_path / "demo-data", images, val)
    here = {
        **os.environ,
        "SATURATE_PYTHON": sys.executable,
        "SATURATE_DEMO_DIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [
        "bash",
        "scripts/demo.sh",
        *flags.split(),
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
    assert (
        found["validation"]["samples"] == 10 * val
        and found["validation"]["top1"] >= top1
    ), "chance is 10 %: four deviations above it"
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
