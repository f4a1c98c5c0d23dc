"""Programs of scripts/: Ctrl-C, and URLs that they do not take."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_doctor_ends_with_its_children() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.doctor"],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    try:
        tasks, deadline = Path(f"/proc/{process.pid}/task"), time.monotonic() + 100
        while (
            not any(map(_hears, (begun := _children(tasks))))
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        assert begun, "no child began"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60)[1] == b"" and process.returncode == 130
        while time.monotonic() < deadline and any(_alive(child) for child in begun):
            time.sleep(0.05)
        assert not any(_alive(child) for child in begun)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "words",
    [
        "pack s3://b/p --from photos",
        "imagenet TO --from https://host/p",
        "export best.pt --output s3://b/best.onnx",
        "demo_set s3://b/p",
        "tune --data photos --output s3://b/lr.yaml",
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


def _children(tasks: Path) -> list[int]:
    return [
        int(word)
        for file in tasks.glob("*/children")
        for word in file.read_text().split()
    ]


def _hears(pid: int) -> bool:
    try:
        caught = re.findall(r"SigCgt:\t(\S+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:  # it has ended
        return False
    return bool(int(caught[0], 16) & 1 << signal.SIGINT - 1)


def _alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
