"""The run's files are whole at any time."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.report.record import (
    BEGUN,
    VALIDATED,
    Record,
    claimed,
    keep_aside,
    unwritable,
)
from saturate.system import storage
from tests.unit.folders import contents


def lines(folder: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def claim(folder: Path, resuming: bool = False) -> None:
    with claimed(folder, resuming=resuming):
        (folder / "left").touch()


def test_points_are_there_at_once_bit_for_bit_and_what_is_not_finite_is_valid_json(
    tmp_path: Path,
) -> None:
    record = Record(tmp_path)
    exact = {"loss": 0.1 + 0.2, "tiny": 5e-324, "n": 2**62, "none": None}
    given = {"n": np.int64(2**62), "third": np.float32(1 / 3), "path": Path("x")}
    given |= {"nan": math.nan, "in": {"deep": [math.inf, -math.inf]}}
    record.point("train", 7, exact | given)
    (point,) = lines(tmp_path)  # not closed yet
    read = {"third": np.float32(1 / 3).item(), "path": "x", "nan": "nan"}
    read |= {"in": {"deep": ["inf", "-inf"]}}
    assert point == {"kind": "train", "step": 7, **exact, **read}
    record.close()


def test_resume_keeps_each_step_once_whatever_the_kill_left(tmp_path: Path) -> None:
    record = Record(tmp_path)
    for step in range(1, 11):
        record.point("train", step, {"loss": step / 3})
    record.point("val", 6, {"top1": 0.5})
    record.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    resumed = Record(tmp_path, resume_step=6)
    # repeated: the checkpoint came before the validation
    resumed.point("val", 6, {"top1": 0.5})
    resumed.point("window", 6, {"rate": 1.0})
    for step in range(7, 13):
        resumed.point("train", step, {"loss": step / 3})
    resumed.close()
    points = lines(tmp_path)
    assert [(p["step"], p["loss"]) for p in points if p["kind"] == "train"] == [
        (step, step / 3) for step in range(1, 13)
    ]
    others = [(p["kind"], p["step"]) for p in points if p["kind"] != "train"]
    assert others == [("val", 6), ("window", 6)]


def test_a_fresh_run_does_not_mix_with_another_or_touch_it(tmp_path: Path) -> None:
    name = "events.out.tfevents.17.host.1"
    (tmp_path / "notes.txt").write_text("x")
    claim(tmp_path)
    (tmp_path / name).write_text("precious")
    with pytest.raises(UserError, match=f"{name}.*--resume auto, or name another"):
        claim(tmp_path)
    claim(tmp_path, resuming=True)
    left = {"left": b"", "notes.txt": b"x", name: b"precious"}
    assert contents(tmp_path) == left, "the probe is gone"


OTHERS = """best.pt top1-0.81250-step-000000200.pt best.onnx predictions.csv results.png results.csv
summary.json mistakes.png report.html detections.json"""


@pytest.mark.parametrize("name", OTHERS.split())
def test_no_run_begins_beside_what_another_has_left(name: str, tmp_path: Path) -> None:
    """Be it a new one, or --resume auto without a checkpoint to go on from, but for figures."""
    (tmp_path / name).write_text("precious")
    is_figure = any(fnmatch(name, pattern) for pattern in VALIDATED)
    for may_hold in ((), BEGUN if is_figure else BEGUN + VALIDATED):
        with (
            pytest.raises(UserError, match="name another folder") as caught,
            claimed(tmp_path, resuming=False, may_hold=may_hold),
        ):
            pass
        assert name in str(caught.value) and "--resume auto" not in str(caught.value)
        is_checkpoint = name.endswith(".pt")
        assert is_checkpoint == (f"--resume {tmp_path / name}" in str(caught.value))
    claim(tmp_path, resuming=True)
    assert (tmp_path / name).read_text() == "precious"


def test_figures_without_a_checkpoint_are_kept_where_a_run_begins_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a run that was killed while its first last.pt was written, or whose disk had no room for it."""
    keep_aside(tmp_path)
    assert contents(tmp_path) == {}
    files = dict.fromkeys(("results.csv", "mistakes.png", "summary.json"), b"figures")
    files["metrics.jsonl"] = b"points"
    for name, content in {**files, "notes.txt": b"mine"}.items():
        (tmp_path / name).write_bytes(content)
    with claimed(tmp_path, resuming=False, may_hold=BEGUN + VALIDATED):
        keep_aside(tmp_path)
    (aside,) = tmp_path.glob("earlier-*")
    assert contents(aside) == files and str(aside) in capfd.readouterr().err
    here = {path.name for path in tmp_path.iterdir()}
    assert here == {aside.name, "metrics.jsonl", "notes.txt"}


def test_a_run_that_was_ended_before_its_first_checkpoint_begins_anew(
    tmp_path: Path,
) -> None:
    for name in ("config.yaml", "metrics.jsonl", "rejected.txt", "my.pt", "my.csv"):
        (tmp_path / name).touch()
    with claimed(tmp_path, resuming=False, may_hold=BEGUN):
        pass
    with pytest.raises(UserError, match="continue it with --resume auto"):
        claim(tmp_path)
    (tmp_path / "step-000000007.pt").touch()
    with pytest.raises(UserError, match=r"continue it with --resume auto"):
        claim(tmp_path)


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    with claimed(run, resuming=False):
        for resuming in (False, True):
            with pytest.raises(UserError, match="another run is writing there; wait"):
                claim(run, resuming)
        claim(tmp_path / "other")
        assert run.is_dir(), "those who were refused leave it alone"
    assert not (tmp_path / "new").exists(), "a new folder that stays empty goes again"
    claim(run)


ORPHAN = """
import os, signal, sys, time
from pathlib import Path
from saturate.report.record import claimed
with claimed(Path(sys.argv[1]), resuming=False):
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)  # the worker has come to run
        time.sleep(60)
        os._exit(0)
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_outlives_a_killed_run_does_not_hold_its_folder(
    tmp_path: Path,
) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with killed:
        assert killed.stdout is not None and killed.stdin is not None
        worker = int(killed.stdout.readline())
        killed.stdin.close()
        assert killed.wait() == -signal.SIGKILL
        try:
            claim(tmp_path, resuming=True)
        finally:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.ESTALE, "cannot be written (stale file handle)"),
    ],
)
def test_what_the_storage_does_not_take_waits(
    number: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Training goes on; what was there stays, and a piece is whole or not there. Storage that fails may not
    open, read or remove either, and what was open before may be stale for good."""
    monkeypatch.setattr(storage, "_notified", set())
    record = Record(tmp_path)
    record.point("train", 1, {"loss": 1.0})
    record.row("results.csv", {"step": 1, "a": 1})
    record.file("worst.csv", b"worst")
    before = contents(tmp_path)
    fails = MagicMock(side_effect=OSError(number, os.strerror(number)))
    really_write, parts = os.write, [5]

    def half(file: int, content: bytes) -> int:
        if parts:
            return really_write(file, content[: parts.pop()])
        raise OSError(number, os.strerror(number))

    def fill() -> None:
        monkeypatch.setattr(storage, "ENDING_S", (0, 0))
        monkeypatch.setattr("os.write", half)
        monkeypatch.setattr("os.fsync", fails)
        if reason != "no space left":
            for name in ("os.ftruncate", "os.unlink", "os.open"):
                monkeypatch.setattr(name, fails)
            monkeypatch.setattr(Path, "open", fails)
            monkeypatch.setattr(Path, "read_bytes", fails)

    fill()
    for step in (2, 3):
        record.point("train", step, {"loss": 2.0})
        record.row("results.csv", {"step": step, "a": step})
    record.summary({"steps": 3})
    record.file("worst.csv", b"")
    said = capsys.readouterr().err
    monkeypatch.undo()
    left = contents(tmp_path)
    points = left.pop("metrics.jsonl")
    # what a kill would leave here: a resume cuts half a line
    assert points.startswith(before.pop("metrics.jsonl")) and points.count(b"\n") == 1
    assert left.pop("results.csv") == before["results.csv"]
    assert "summary.json" not in left
    assert said.count(f"{reason}; training goes on") == said.count("goes on") == 1
    record.point("train", 4, {"loss": 3.0})
    record.row("results.csv", {"step": 4, "a": 4})
    assert [point["step"] for point in lines(tmp_path)] == [1, 2, 3, 4]
    table = (tmp_path / "results.csv").read_text()
    assert table == "step,a\n1,1\n2,2\n3,3\n4,4\n"
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 3}
    assert not (tmp_path / "worst.csv").exists()
    fill()
    record.point("train", 5, {"loss": 3.0})
    record.summary({"steps": 5})
    record.close()
    said = capsys.readouterr().err
    assert "metrics.jsonl: cannot be written, 1 piece lost" in said
    assert "summary.json: cannot be written, and is lost" in said
    assert record.lost, "the exit code is 2"
    monkeypatch.undo()
    assert len(lines(tmp_path)) == 4


def test_a_run_that_ends_while_the_storage_fails_for_seconds_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, fails = storage.replace, [1, 1]

    def replace(*words: Any) -> None:
        if fails:
            raise OSError(errno.EIO * fails.pop(), "input/output error")
        replaced(*words)

    monkeypatch.setattr(storage, "replace", replace)
    monkeypatch.setattr(storage, "ENDING_S", (0, 0))
    record = Record(tmp_path)
    record.summary({"steps": 3})
    assert not (tmp_path / "summary.json").exists()
    record.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"steps": 3}
    assert not record.lost


def test_a_full_disk_is_named_where_a_run_begins(tmp_path: Path) -> None:
    none_left = OSError(errno.ENOSPC, "No space left on device")
    assert "what is there" not in str(unwritable(tmp_path, none_left))
    (tmp_path / "last.pt").touch()
    assert "is there is complete" in str(unwritable(tmp_path, none_left))


def test_a_row_takes_the_place_of_later_ones(tmp_path: Path) -> None:
    """A spreadsheet may have saved the table; what a repeated validation does not know stays."""
    table = tmp_path / "results.csv"
    table.write_bytes("step,lr,a\n1,0.5,é\n2,0.25,b\n,,\n3,0,c\n".encode("latin-1"))
    Record(tmp_path, resume_step=2).row(table.name, {"step": 2, "lr": None, "a": "d"})
    assert table.read_text().splitlines()[1:] == ["1,0.5,\ufffd", "2,0.25,d"]


def test_lines_are_added_once(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.lines("failed.txt", ["train\ta\udcff.mp4", "train\tb\n\u2028c.mp4"])
    record.lines("failed.txt", ["val\ta.mp4", "train\ta\udcff.mp4"])
    expected = b"train\ta\\xff.mp4\ntrain\tb\\n\xe2\x80\xa8c.mp4\nval\ta.mp4\n"
    assert (tmp_path / "failed.txt").read_bytes() == expected


@pytest.mark.parametrize("content", ["{", "[]", '{"rate": {}}'])
def test_a_summary_that_is_no_runs_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(content)
    record = Record(tmp_path, resume_step=1)
    try:
        assert record.earlier_summary() is None
    finally:
        record.close()
