"""The way from a bare machine to a run, where every other program is a fake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
COREUTILS = (
    "bash cat cp date dirname env mkdir mv nproc realpath rm sed sha256sum sleep tail"
)
"""All that the scripts call besides a Python and uv."""


def program(name: str) -> str:
    """A linter of requirements-dev.txt: beside this Python, or on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (its wheel is in requirements-dev.txt)")
    return found


def test_scripts_pass_shellcheck_and_are_executable() -> None:
    assert all(os.access(script, os.X_OK) for script in SCRIPTS)
    done = subprocess.run(
        [program("shellcheck"), *SCRIPTS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


FAKE_PYTHON = """\
#!{bash}
# A Python that makes empty environments and installs nothing; $FAKES says what goes wrong.
case "$*" in
  --version) echo Python 3.6.9 ;;
  *version_info*) [[ $FAKES != *old* ]] ;;
  '-c import ensurepip, venv') [[ $FAKES != *no-venv* ]] ;;
  '-m venv '*)
    echo "python $*" >>"$LOG"; mkdir -p "${{@: -1}}/bin"; cp "$0" "${{@: -1}}/bin/python" ;;
  '-m pip --version' | '-m ensurepip') ;;
  '-m pip install --quiet uv') echo 'pip install uv' >>"$LOG" ;;
  '-m pip install '*) echo 'pip install' "${{@: -1}}" >>"$LOG"; [[ $FAKES != *pip-fails* ]] ;;
  '-m '*) echo "$*" >>"$LOG"; [[ $FAKES != *"fails:$2 "* ]] ;;
  *) exec {python} "$@" ;;
esac
"""
FAKE_UV = """\
#!{bash}
case "$*" in
  --version) [[ $FAKES != *no-uv* ]] ;;
  venv*) echo "uv venv" >>"$LOG"; mkdir -p "${{@: -1}}/bin"; cp "$PYTHON" "${{@: -1}}/bin/python" ;;
  'pip install '*)
    echo 'uv pip install' "${{@: -1}}" >>"$LOG"; sleep "${{UV_S:-0}}"; [[ $FAKES != *uv-fails* ]] ;;
esac
"""


class Machine:
    """A checkout with the scripts alone, on a machine that has coreutils, a fake Python and a fake uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"  # a space: nothing may fall apart there
        self.log = folder / "log"
        self.bin = folder / "bin"
        self.python = self.root / ".venv" / "bin" / "python"
        for made in (self.root, self.bin):
            made.mkdir()
        others = shutil.ignore_patterns("*.py", "__pycache__")
        for name in ("scripts", ".ci"):
            shutil.copytree(ROOT / name, self.root / name, ignore=others)
        for name in ("requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, self.root)
        for tool in COREUTILS.split():
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        for name, text in (("python3", FAKE_PYTHON), ("uv", FAKE_UV)):
            fake = text.format(bash=shutil.which("bash"), python=sys.executable)
            (self.bin / name).write_text(fake)
            (self.bin / name).chmod(0o755)

    def start(
        self, script: str, *arguments: str, **environment: str
    ) -> subprocess.Popen[str]:
        here = {
            "PATH": str(self.bin),
            "HOME": str(self.bin),
            "LOG": str(self.log),
            "FAKES": "",
            "PYTHON": str(self.bin / "python3"),
        }
        return subprocess.Popen(
            [self.root / script, *arguments],
            env=here | environment,
            cwd=self.bin,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *arguments: str, **environment: str
    ) -> tuple[int, str, str]:
        with self.start(script, *arguments, **environment) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def calls(self) -> list[str]:
        """What was called since the last look."""
        said = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.replace(f"{self.root}/", "") for line in said]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_setup_makes_the_environment_once(machine: Machine) -> None:
    both = [machine.start("scripts/setup.sh", UV_S="0.3") for _ in range(2)]
    for process in both:
        with process:
            out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, f"{machine.python}\n")
    assert machine.calls() == ["uv venv", "uv pip install requirements.txt"]
    for _ in range(2):
        assert machine.run("scripts/setup.sh", "--dev")[0] == 0
    assert machine.calls() == ["uv pip install requirements-dev.txt"]
    with (machine.root / "requirements.txt").open("a") as file:
        file.write("another>=1\n")
    machine.run("scripts/setup.sh")
    assert machine.calls() == ["uv pip install requirements.txt"]


def test_a_failed_installation_leaves_no_stamp_and_is_tried_again(
    machine: Machine,
) -> None:
    code, out, err = machine.run("scripts/setup.sh", FAKES="uv-fails pip-fails")
    assert (code, out) == (1, "")
    assert "the installation failed" in err.splitlines()[-1]
    assert not [*(machine.root / ".venv").glob(".installed-*")]
    assert machine.calls()[1:] == [
        "uv pip install requirements.txt",
        "pip install requirements.txt",
    ]
    assert machine.run("scripts/setup.sh")[0] == 0
    assert machine.calls() == ["uv pip install requirements.txt"]


@pytest.mark.parametrize(
    ("fakes", "code", "last"),
    [
        ("no-uv old", 1, "no Python 3.11 or newer found (python3 is Python 3.6.9)"),
        ("no-uv no-venv", 1, "install python3-venv"),
        ("no-uv", 0, "installing requirements.txt"),
    ],
)
def test_a_machine_without_uv(
    fakes: str, code: int, last: str, machine: Machine
) -> None:
    done, _, err = machine.run("scripts/setup.sh", FAKES=fakes)
    assert done == code and last in err.splitlines()[-1]
    calls = ["python -m venv --clear .venv", "pip install uv"]
    calls.append("pip install requirements.txt")
    assert machine.calls() == ([] if code else calls)
