"""`pip install`, of a wheel, of a source distribution and of a checkout that stays editable: what is installed
trains in an environment of its own, far from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
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


def built(how: str, tree: Path, folder: Path, env: dict[str, str]) -> Path:
    """The wheel that pip makes of a checkout, in a new folder."""
    folder.mkdir()
    build = f"from setuptools import build_meta as b; b.build_{how}({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=tree, env=env)
    (made,) = folder.iterdir()
    if how != "sdist":
        return made
    with tarfile.open(made) as files:
        files.extractall(folder, filter="data")
    (unpacked,) = folder.glob("*/")
    return built("wheel", unpacked, folder / "wheel", env)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sdist", "editable"])
def test_what_is_installed_trains_the_demo_set(how: str, tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    wheel = built(how, tree, tmp_path / "built", clean)
    # an environment without our packages, but for those of requirements.txt
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path, env=clean)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
        checksums = {one.filename: one.CRC for one in files.infolist()}
    tops = {name.partition("/")[0] for name in checksums}
    if how == "editable":
        assert "saturate" not in tops
    else:
        assert tops == {"saturate", f"saturate_training-{__version__}.dist-info"}
        # a wheel of the checkout is the same one
        with zipfile.ZipFile(built("wheel", tree, tmp_path / "wheel", clean)) as files:
            assert {one.filename: one.CRC for one in files.infolist()} == checksums

    home = tmp_path / "home"
    home.mkdir()
    # a user's own modules, which have names of ours
    for name in ("dataset", "loaders", "models", "plan", "train"):
        (home / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    demo_set.write(home / "shapes", 4, 2, progress=False)
    words = "train --config configs/demo.yaml --data shapes --output run --epochs 1"
    words += " --arch squeezenet1_1 --image-size 32 --ceilings false --workers 1 --precision fp32"
    command = (venv / "bin/python", "-c", ANSWERS)
    said = run(*command, *words.split(), cwd=home, env=clean)
    assert said.startswith(f"{__version__}\n")
    train = "saturate train" if how == "sdist" else f"python {tree / 'train.py'}"
    assert f"predict:      {train} --predict FOLDER --resume" in said
    told = run(*command, "train", "--help", cwd=home, env=clean)
    assert f"  {train} --data PHOTOS" in told
    if how == "sdist":
        told = run(*command, "pack", "--help", cwd=home, env=clean)
        # the line may be broken anywhere
        assert "`saturatepackTO" in "".join(told.split())
    assert (home / "run/last.pt").exists()
