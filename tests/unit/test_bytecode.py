"""A start that compiles its packages again says so: by a package of two lines, and by what Python leaves of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from saturate.run import _probes
from saturate.system import bytecode

ROOT = Path(__file__).resolve().parents[2]
ASK = "import package; from saturate.system import bytecode; print(bytecode.compiled_anew(package))"


@pytest.mark.parametrize(
    ("environment", "flags", "said"),
    [
        ({}, [], ""),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, [], "PYTHONDONTWRITEBYTECODE forbids"),
        ({}, ["-B"], "-B or"),
        # no user can write there, not even root
        ({"PYTHONPYCACHEPREFIX": "/proc/kept"}, [], "cannot be kept in /proc/kept"),
    ],
)
def test_it_is_said_where_nothing_is_kept(
    environment: dict[str, str], flags: list[str], said: str, tmp_path: Path
) -> None:
    package(tmp_path)
    answer = asked(tmp_path, *flags, **environment)
    assert said in answer
    kept = [*(tmp_path / "package").glob("__pycache__/*.pyc")]
    # what Python has left there is the truth
    assert bool(answer) is not bool(kept)


def test_what_is_kept_of_another_source_counts_for_nothing(tmp_path: Path) -> None:
    """A copy without its times has such files. Python's own words, at -v, say that it does not take them."""
    source = package(tmp_path)
    assert asked(tmp_path) == ""
    os.utime(source, (1e9, 1e9))
    done = python(tmp_path, "-v", "-B", "-c", "import package")
    assert "bytecode is stale for 'package'" in done.stderr
    assert "compiles package" in asked(tmp_path, "-B")
    # what Python keeps by a hash has no time
    words = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    python(tmp_path, *words, str(source.parent))
    assert asked(tmp_path, "-B") == ""


def package(folder: Path) -> Path:
    source = folder / "package" / "__init__.py"
    source.parent.mkdir()
    source.write_text("A = 1\nB = 2\n")
    return source


def asked(folder: Path, *flags: str, **environment: str) -> str:
    return python(folder, *flags, "-c", ASK, **environment).stdout.strip()


def python(
    folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={"PYTHONPATH": f"{folder}:{ROOT}", **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def test_the_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, state in (("", "ok"), ("each start compiles it", "warn")):
        monkeypatch.setattr(bytecode, "compiled_anew", lambda _, said=said: said)
        row = _probes.torch_and_torchvision()
        assert row.state == state and said in row.consequence
