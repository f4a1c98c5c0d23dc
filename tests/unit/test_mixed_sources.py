"""Training and validation may lie in other sources, and a run asks both before it trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.end_to_end.runs import ROOT, draw

PROGRAM = """
import sys
from pathlib import Path
from dataset.sources import SOURCES
from tests.conformance import toy
SOURCES["toy"] = "tests.conformance.toy"
data = Path(sys.argv[sys.argv.index("--data") + 1]).resolve()
below = data / "unpacked"
names = {path.relative_to(below).as_posix().encode(): path.read_bytes() for path in below.rglob("*.jpg")}
toy.STORED[data, "val"] = names
import train
if __name__ == "__main__":
    train.leave(train.main())
"""


def test_a_loader_that_opens_files_asks_validation_too(tmp_path: Path) -> None:
    data = draw(tmp_path / "data", classes=("a", "b"), train=2, val=1)
    (data / "val").rename(data / "unpacked")
    (data / "val.toy").touch()
    flags = f"--data {data} --manifest-dir {tmp_path / 'cache'} --output {tmp_path / 'run'} --workers 1"
    small = "--arch resnet18 --image-size 32 --batch-size 2 --epochs 1 --ceilings false"
    program = [sys.executable, "-c", PROGRAM, *f"{flags} {small} --loader dali-cpu".split()]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 2, run.stderr[-2000:] or run.stdout
    assert "--loader dali-cpu opens each sample's own file, and toy:a/000.jpg is none; choose" in run.stderr
    assert not (tmp_path / "run/metrics.jsonl").exists(), "nothing was trained before"
