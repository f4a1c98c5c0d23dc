"""What a run imports, and what its imports cost: programs of their own, for a process that others share has
imported everything already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = "--loader synthetic --batch-size 2 --steps 1 --val-every 0 --ceilings false --log-every 1"
NEVER = (
    "cv2 nvidia.dali nvidia.nvimgcodec timm av decord lmdb pyarrow datasets pandas scipy "
    "onnx onnxruntime pycocotools wandb mlflow torch._inductor.compile_fx"
)
"""What only other loaders, readers, sources or settings need."""
RUNS = {
    "classification": "--arch shufflenet_v2_x0_5 --image-size 32",
    "superres": "",
    "video": "--image-size 32 --clip-frames 2",
}
"""Task -> flags that make its run small."""
PROGRAM = """
import atexit, gc, json, runpy, sys
importing = []
def collected(phase, info):
    if "torch" in sys.modules and "saturate.tasks.initial_state" not in sys.modules:
        importing.append(phase)
gc.callbacks.append(collected)
left, sys.argv = sys.argv[1], sys.argv[2:]
def leave():
    facts = dict(modules=list(sys.modules), importing=importing, frozen=gc.get_freeze_count(), on=gc.isenabled())
    with open(left, "w") as file:
        json.dump(facts, file)
atexit.register(leave)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("task", RUNS)
def test_a_run_imports_what_it_needs(task: str, tmp_path: Path) -> None:
    flags = f"--task {task} {RUNS[task]} --profile true"
    facts = begun(tmp_path, *flags.split())
    unwanted = tuple(f"{name}." for name in NEVER.split())
    assert [one for one in facts["modules"] if f"{one}.".startswith(unwanted)] == []
    # no cycle is looked for among modules, and later the collector is as Python left it
    assert (facts["importing"], facts["frozen"], facts["on"]) == ([], 0, True)
    parts = json.loads((tmp_path / "run" / "summary.json").read_text())["start_s"]
    assert next(iter(parts)) == "imports" and list(parts)[-1] == "first step"
    (line,) = [line for line in facts["out"].splitlines() if "start, s:" in line]
    assert all(f"{part} {seconds:.2f}" in line for part, seconds in parts.items())


def begun(folder: Path, *flags: str) -> dict[str, Any]:
    """Run train.py in a process of its own; return what it left in memory, and its output."""
    left = folder / "left.json"
    words = ["train.py", *TINY.split(), *flags, "--output", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(left), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {**json.loads(left.read_text()), "out": done.stdout + done.stderr}
