"""`pip install .`: what the wheel holds trains in an environment of its own, far from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from saturate import __version__
from scripts import demo_set
from tests.unit.drills import copied

ANSWERS = """
import sys
from importlib.metadata import entry_points, version
print(version("saturate-training"))
(command,) = [each for each in entry_points(group="console_scripts") if each.name == "saturate"]
sys.argv[0] = "saturate"
sys.exit(command.load()())
"""
"""What the script does that pip makes of [project.scripts]."""


def run(*words: object, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_trains_the_demo_set(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    build = "from setuptools import build_meta as b; b.build_wheel('dist')"
    (tree / "dist").mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    run(sys.executable, "-c", build, cwd=tree, env=clean)
    (wheel,) = (tree / "dist").glob("saturate_training-*.whl")
    # an environment without our packages, but for those of requirements.txt
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path, env=clean)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
        tops = {name.partition("/")[0] for name in files.namelist()}
    assert tops == {"saturate", f"saturate_training-{__version__}.dist-info"}

    home = tmp_path / "home"
    home.mkdir()
    # a user's own modules, which have names of ours
    for name in ("dataset", "loaders", "models", "plan", "train"):
        (home / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    demo_set.write(home / "shapes", 4, 2, progress=False)
    words = "train --config configs/demo.yaml --data shapes --output run --epochs 1"
    words += " --arch squeezenet1_1 --image-size 32 --ceilings false"
    said = run(
        venv / "bin/python",
        *("-c", ANSWERS, *words.split()),
        cwd=home,
        env=clean,
    )
    assert said.startswith(f"{__version__}\n")
    assert "predict:      saturate train --predict FOLDER --resume" in said
    assert (home / "run/last.pt").exists()
