"""The way from a bare machine to a run, where every other program is a fake."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]

# All that the scripts call besides a Python and uv.
COREUTILS: tuple[str, ...] = (
    "bash",
    "cat",
    "cp",
    "date",
    "dirname",
    "env",
    "mkdir",
    "mv",
)
COREUTILS += ("nproc", "realpath", "rm", "sed", "sha256sum", "sleep", "tail")


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
    echo "python $*" >>"$LOG"; mkdir -p "${{@: -1}}/bin"; cp "$0" "${{@: -1}}/bin/python"
    [[ $FAKES != *venv-fails* ]] ;;
  '-m pip --version' | '-m ensurepip') [[ $FAKES != *no-pip* ]] ;;
  '-m pip install --quiet uv')
    echo 'pip install uv' >>"$LOG"; [[ $FAKES == *pip-has-uv* ]] && cp "$UV" "${{0%/*}}/uv" ;;
  '-m pip install '*) echo 'pip install' "${{@: -1}}" >>"$LOG"; [[ $FAKES != *pip-fails* ]] ;;
  '-m '*) echo "$*" >>"$LOG"; [[ $FAKES != *"fails:$2 "* ]] ;;
  *) exec {python} "$@" ;;
esac
"""
FAKE_UV = """\
#!{bash}
trap 'exit 2' INT  # as uv does: the caller sees a failure, not a signal
case "$*" in
  --version) ;;
  venv*) echo "uv venv" >>"$LOG"; mkdir -p "${{@: -1}}/bin"; cp "$PYTHON" "${{@: -1}}/bin/python" ;;
  'pip install '*)
    if read -r; then echo 'uv was given a terminal' >>"$LOG"; fi
    echo 'uv pip install' "${{@: -1}}" >>"$LOG"
    # not one long sleep: a signal between its fork and its exec is lost
    for ((i = 0; i < ${{UV_TENTHS:-0}}; i++)); do sleep 0.1; done
    [[ $FAKES != *uv-fails* ]] ;;
esac
"""


class Machine:
    """A checkout with the scripts alone, on a machine that has coreutils, a Python and maybe uv: all of them
    ours.
    """

    def __init__(self, folder: Path, *, uv: bool) -> None:
        self.root = folder / "check out"  # a space: nothing may fall apart there
        self.log = folder / "log"
        self.bin = folder / "bin"
        spare = folder / "spare"
        for made in (self.root, self.bin, spare):
            made.mkdir()
        others = shutil.ignore_patterns("*.py", "__pycache__")
        for name in ("scripts", ".ci"):
            shutil.copytree(ROOT / name, self.root / name, ignore=others)
        for name in ("requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, self.root)
        for tool in COREUTILS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        for name, text in (("python3", FAKE_PYTHON), ("uv", FAKE_UV)):
            (spare / name).write_text(
                text.format(bash=shutil.which("bash"), python=sys.executable)
            )
            (spare / name).chmod(0o755)
        (self.bin / "python3").symlink_to(spare / "python3")
        if uv:
            (self.bin / "uv").symlink_to(spare / "uv")
        self.python = self.root / ".venv" / "bin" / "python"
        self.environment = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "LOG": str(self.log),
            "FAKES": "",
        }
        self.environment |= {"UV": str(spare / "uv"), "PYTHON": str(spare / "python3")}

    def start(
        self, script: str, *arguments: str, **environment: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / script, *arguments],
            env=self.environment | environment,
            cwd=self.bin,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
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

    def stamps(self) -> set[str]:
        return {path.name for path in (self.root / ".venv").glob(".installed-*")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, uv=True)


def test_setup_makes_the_environment_once(machine: Machine):
    assert machine.run("scripts/setup.sh")[:2] == (0, f"{machine.python}\n")
    assert machine.calls() == ["uv venv", "uv pip install requirements.txt"]
    before = os.times()
    assert machine.run("scripts/setup.sh")[:2] == (0, f"{machine.python}\n")
    now = os.times()
    # seconds of the processor
    assert (
        now.children_user
        + now.children_system
        - before.children_user
        - before.children_system
        < 1
    )
    assert machine.calls() == []
    machine.run("scripts/setup.sh", "--dev")
    assert machine.calls() == ["uv pip install requirements-dev.txt"]
    machine.run("scripts/setup.sh")
    machine.run("scripts/setup.sh", "--dev")
    assert machine.calls() == []
    with (machine.root / "requirements.txt").open("a") as file:
        file.write("another>=1\n")
    machine.run("scripts/setup.sh")
    assert machine.calls() == ["uv pip install requirements.txt"]


def test_a_failed_installation_leaves_no_stamp_and_is_tried_again(machine: Machine):
    code, out, err = machine.run("scripts/setup.sh", FAKES="uv-fails pip-fails")
    assert (code, out) == (1, "")
    assert "the installation failed" in err.splitlines()[-1]
    assert machine.stamps() == set()
    machine.calls()
    assert machine.run("scripts/setup.sh")[0] == 0
    assert machine.calls() == ["uv pip install requirements.txt"]
    before = (machine.root / "requirements.txt").read_text()
    (machine.root / "requirements.txt").write_text(before + "another>=1\n")
    assert machine.run("scripts/setup.sh", FAKES="uv-fails pip-fails")[0] == 1
    (machine.root / "requirements.txt").write_text(
        before
    )  # half of the update may be in .venv
    machine.calls()
    machine.run("scripts/setup.sh")
    assert machine.calls() == ["uv pip install requirements.txt"]


@pytest.mark.parametrize(
    ("uv", "fakes", "calls"),
    [
        (True, "uv-fails", ["uv venv", "uv pip install", "pip install"]),
        (
            False,
            "pip-has-uv",
            ["python -m venv --clear .venv", "pip install uv", "uv pip install"],
        ),
        (False, "", ["python -m venv --clear .venv", "pip install uv", "pip install"]),
    ],
)
def test_pip_stands_in_for_uv(
    uv: bool, fakes: str, calls: list[str], tmp_path: Path
) -> None:
    machine = Machine(tmp_path, uv=uv)
    assert machine.run("scripts/setup.sh", FAKES=fakes)[:2] == (
        0,
        f"{machine.python}\n",
    )
    assert [call.removesuffix(" requirements.txt") for call in machine.calls()] == calls


@pytest.mark.parametrize(
    ("fakes", "said"),
    [
        ("old", "no Python 3.11 or newer found (python3 is Python 3.6.9)"),
        ("no-venv", "install python3-venv"),
        ("venv-fails", "could not make"),
    ],
)
def test_what_the_machine_lacks_is_said_in_one_line(
    tmp_path: Path, fakes: str, said: str
):
    machine = Machine(tmp_path, uv=False)
    code, out, err = machine.run("scripts/setup.sh", FAKES=fakes)
    assert (code, out) == (1, "")
    assert said in err.splitlines()[-1]
    assert len([line for line in err.splitlines() if "making .venv" not in line]) == 1
    assert not machine.python.exists()


def test_two_calls_at_once_install_once(machine: Machine):
    both = [machine.start("scripts/setup.sh", UV_TENTHS="5") for _ in range(2)]
    for process in both:
        with process:
            out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, f"{machine.python}\n")
    assert machine.calls() == ["uv venv", "uv pip install requirements.txt"]


def test_ctrl_c_during_the_installation_ends_it_without_a_stamp(machine: Machine):
    with machine.start("scripts/setup.sh", UV_TENTHS="3000") as process:
        deadline = time.monotonic() + 60
        while "uv pip install" not in (
            machine.log.read_text() if machine.log.exists() else ""
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert machine.stamps() == set()
    assert machine.calls() == ["uv venv", "uv pip install requirements.txt"]


def test_an_environment_that_has_torch_is_used_as_it_is(
    machine: Machine, tmp_path: Path
):
    given = tmp_path / "python"
    given.write_text(
        f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -S "$@"\n'
    )
    given.chmod(0o755)
    code, out, err = machine.run("scripts/setup.sh", SATURATE_PYTHON=str(given))
    assert (code, out) == (1, "")
    assert "has no torch" in err
    (tmp_path / "site" / "torch").mkdir(parents=True)
    assert machine.run("scripts/setup.sh", "--dev", SATURATE_PYTHON=str(given)) == (
        0,
        f"{given}\n",
        "",
    )
    assert machine.calls() == []


def test_demo_of_another_task_says_so_in_one_line(machine: Machine) -> None:
    code, out, err = machine.run("scripts/demo.sh", "videos")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert (
        "unknown task 'videos': choose classification, detection, superres or video"
        in err
    )
    assert machine.calls() == []


@pytest.mark.parametrize(
    ("task", "drawn_by", "preset", "name"),
    [
        ("", "demo_set", "", "demo"),
        ("classification", "demo_set", "", "demo"),
        ("detection", "demo_coco", "coco/", "demo-detection"),
        ("superres", "demo_superres", "superres/", "demo-superres"),
        ("video", "demo_videos", "video/", "demo-video"),
    ],
)
def test_demo_makes_its_data_and_trains(
    machine: Machine, tmp_path: Path, task: str, drawn_by: str, preset: str, name: str
) -> None:
    # Relative to where the user stands, like every path on a command line.
    code, _, err = machine.run(
        "scripts/demo.sh",
        *task.split(),
        "--epochs",
        "1",
        SATURATE_DEMO_DIR="../my runs",
    )
    assert code == 0, err
    data = tmp_path / "my runs" / name
    *_, made, trained = machine.calls()
    assert made == f"-m scripts.{drawn_by} {data}-data"
    start = r"-m torch\.distributed\.run --standalone --nproc-per-node 1 train\.py"
    flags = rf"--config configs/{preset}demo\.yaml --data {data}-data --output {data}-\d{{8}}-\d{{6}}"
    assert re.fullmatch(f"{start} {flags} --epochs 1", trained)


def test_demo_ends_with_the_exit_code_of_what_failed(machine: Machine):
    assert machine.run("scripts/demo.sh", FAKES="fails:scripts.demo_set ")[0] == 1
    assert not any("torch.distributed.run" in call for call in machine.calls())
    assert machine.run("scripts/demo.sh", FAKES="fails:torch.distributed.run ")[0] == 1


@pytest.mark.parametrize("script", ["scripts/test.sh", ".ci/run"])
@pytest.mark.parametrize(
    ("fakes", "code", "last"),
    [("", 0, "all checks passed"), ("fails:mypy ", 1, "failed: [mypy]")],
)
def test_checks_all_run_and_the_failed_are_named(
    machine: Machine, script: str, fakes: str, code: int, last: str
):
    done, out, _ = machine.run(script, FAKES=fakes)
    assert (done, out.splitlines()[-1]) == (code, last)
    calls = [call for call in machine.calls() if call.startswith("-m ")]
    assert (
        calls[:2] == ["-m ruff check .", "-m ruff format --check ."]
        and "-m mypy" in calls
    )
    assert [
        call
        for call in calls
        if re.fullmatch(r"-m pytest -n [1-8] --dist worksteal", call)
    ]


def test_arguments_of_the_checks_go_to_pytest(machine: Machine):
    machine.run("scripts/test.sh", "-k", "plan", FAKES="fails:pytest ")
    assert any(
        call.startswith("-m pytest") and call.endswith(" -k plan")
        for call in machine.calls()
    )
