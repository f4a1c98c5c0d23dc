"""Programs of scripts/: Ctrl-C, and URLs that they do not take."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words",
    [
        "export s3://b/best.pt",
        "demo_set s3://b/p",
        "bench loader --data s3://b/p",
    ],
)
def test_a_url_that_a_program_does_not_take_is_refused_in_a_line(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    name, *arguments = words.split()
    try:
        code = import_module(f"scripts.{name}").main(arguments)
    except SystemExit as end:
        code = end.code
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and "is a URL; name a file or folder of this machine" in line
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.parametrize(
    ("words", "said"), [("", "it takes RUNS TO"), ("runs to", "runs: no run is below")]
)
def test_pictures_of_no_run_are_refused_in_a_line(
    words: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    script = ROOT / "scripts" / "tensorboard_pictures.sh"
    ended = subprocess.run(
        [script, *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and line.startswith(f"tensorboard_pictures: {said}")
    assert os.listdir(tmp_path) == ["runs"]
