"""A start that compiles its packages again says so: by a package of two lines, and by what Python leaves of it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASK = "import package; from saturate.system import bytecode; print(bytecode.compiled_anew(package))"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, ""),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, "PYTHONDONTWRITEBYTECODE is set: unset it"),
        # no user can write there, not even root
        ({"PYTHONPYCACHEPREFIX": "/proc/kept"}, "nothing can be written to /proc/kept"),
    ],
)
def test_it_is_said_where_nothing_is_kept(
    environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("A = 1\nB = 2\n")
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in done.stdout
    kept = [*(tmp_path / "package").glob("__pycache__/*.pyc")]
    # what Python has left there is the truth
    assert bool(done.stdout.strip()) is not bool(kept)
