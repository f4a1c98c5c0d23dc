"""The run's files are whole at any time."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import UserError
from report.record import LEFT_BY_A_RUN, Record, claimed, replace

ROOT = Path(__file__).parents[2]


def lines(folder: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [
        json.loads(line, parse_constant=refuse)
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def claim(folder: Path, resuming: bool) -> None:
    with claimed(folder, resuming=resuming):
        (folder / "left").touch()


def fail_with(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"report.record.{name}", fails)


def test_points_are_there_at_once_bit_for_bit_and_what_is_not_finite_is_valid_json(
    tmp_path: Path,
) -> None:
    record = Record(tmp_path)
    values = {
        "loss": 0.1 + 0.2,
        "tiny": 5e-324,
        "third": np.float32(1 / 3),
        "n": np.int64(2**62),
    }
    values |= {
        "path": Path("x"),
        "none": None,
        "nan": math.nan,
        "in": {"deep": [math.inf, -math.inf]},
    }
    record.point("train", 7, values)
    (point,) = lines(tmp_path)  # not closed yet
    floats = {
        "third": np.float32(1 / 3).item(),
        "path": "x",
        "nan": "nan",
        "in": {"deep": ["inf", "-inf"]},
    }
    assert point == {"kind": "train", "step": 7, **values, **floats}
    record.summary({"rate": {"steady": np.float32("nan")}})
    record.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "rate": {"steady": "nan"}
    }


@pytest.mark.parametrize(
    "torn", ["", '{"kind": "train", "st', '{"kind": "train", "step": 5}', "null\n"]
)
def test_resume_keeps_each_step_once_whatever_the_kill_left(
    tmp_path: Path, torn: str
) -> None:
    record = Record(tmp_path)
    for step in range(1, 11):
        record.point("train", step, {"loss": step / 3})
    record.point("val", 6, {"top1": 0.5})
    record.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)

    resumed = Record(tmp_path, resume_step=6)
    resumed.point(
        "val", 6, {"top1": 0.5}
    )  # repeated: the checkpoint came before the validation
    resumed.point("window", 6, {"rate": 1.0})
    for step in range(7, 13):
        resumed.point("train", step, {"loss": step / 3})
    resumed.close()
    trained = [point for point in lines(tmp_path) if point["kind"] == "train"]
    others = [
        (point["kind"], point["step"])
        for point in lines(tmp_path)
        if point["kind"] != "train"
    ]
    assert [(point["step"], point["loss"]) for point in trained] == [
        (step, step / 3) for step in range(1, 13)
    ]
    assert others == [("val", 6), ("window", 6)]


def test_a_fresh_run_does_not_mix_with_another_or_touch_it(tmp_path: Path) -> None:
    for name in (*LEFT_BY_A_RUN[:-1], "events.out.tfevents.17.host.1"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("precious")
        with pytest.raises(UserError) as caught:
            claim(folder, resuming=False)
        said = str(caught.value)
        assert all(
            part in said
            for part in (str(folder), name, "--resume auto", "another folder")
        )
        assert "\n" not in said
        assert {path.name: path.read_text() for path in folder.iterdir()} == {
            name: "precious"
        }
        claim(folder, resuming=True)
        assert {path.name for path in folder.iterdir()} == {name, "left"}, (
            "the probe is gone"
        )


@pytest.mark.parametrize("name", LEFT_BY_A_RUN[:-1])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_a_files_place_is_not_waited_for(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / name)
    for resuming in (True, False):
        with pytest.raises(
            UserError, match=f"^--output .*: {name} there is .* take it away"
        ):
            with claimed(tmp_path, resuming=resuming):
                raise AssertionError


def test_a_folder_of_other_things_is_welcome(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    claim(tmp_path, resuming=False)
    claim(tmp_path / "new" / "deep", resuming=False)
    assert (tmp_path / "new" / "deep").is_dir()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space"),
    ],
)
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    fail_with(monkeypatch, "os.fsync", number)
    with pytest.raises(UserError, match=said) as caught:
        claim(tmp_path / "run", resuming=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path / "run", resuming=False):
        for resuming in (False, True):
            with pytest.raises(
                UserError,
                match="another run is writing there; wait for its end, or name another folder",
            ):
                claim(tmp_path / "run", resuming=resuming)
        claim(tmp_path / "other", resuming=False)
        with claimed(tmp_path / "run", resuming=False, enabled=False):  # another rank
            pass
        assert (tmp_path / "run").is_dir(), "those who were refused leave it alone"
    claim(tmp_path / "run", resuming=False)


ORPHAN = """
import os, signal, sys, time
from pathlib import Path
from report.record import claimed
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
    program, pipe = [sys.executable, "-c", ORPHAN, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(
        program, cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    ) as killed:
        assert killed.stdout is not None and killed.stdin is not None
        worker = int(killed.stdout.readline())
        killed.stdin.close()
        assert killed.wait() == -signal.SIGKILL
        try:
            claim(tmp_path, resuming=True)
        finally:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail_with(monkeypatch, "fcntl.flock", number)
    claim(tmp_path / "run", resuming=False)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["left"]


def test_a_new_folder_that_stays_empty_goes_again(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("new", "new/deep", "old", "old/deep"):
        with (
            pytest.raises(UserError, match="refused"),
            claimed(tmp_path / name, resuming=False),
        ):
            raise UserError("refused")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    claim(tmp_path / "new" / "deep", resuming=False)
    assert (tmp_path / "new" / "deep" / "left").exists()


def test_a_full_disk_loses_nothing_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(tmp_path)
    record.point("train", 1, {"loss": 1.0})
    record.summary({"steps": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fail_with(monkeypatch, "os.fsync", errno.ENOSPC)
    with pytest.raises(UserError, match="no space left"):
        record.summary({"steps": 2})
    with pytest.raises(UserError, match="no space left"):
        record.config("lr: 1\n")
    really_write, calls = os.write, []

    def half(file: int, content: bytes) -> int:
        calls.append(file)
        if len(calls) == 1:
            return really_write(file, content[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("report.record.os.write", half)
    with pytest.raises(UserError, match="no space left"):
        record.point("train", 2, {"loss": 2.0})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    record.point("train", 3, {"loss": 3.0})
    record.close()
    assert [point["step"] for point in lines(tmp_path)] == [1, 3]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fail_with(monkeypatch, "os.replace", errno.ENOSPC)
    with pytest.raises(UserError, match="no space left"):
        Record(tmp_path, resume_step=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "saved", ["step,a\n1,é\n".encode("latin-1"), "step,a\n1,b\n".encode("utf-16")]
)
def test_a_table_that_a_spreadsheet_saved_is_gone_on_with(
    saved: bytes, tmp_path: Path
) -> None:
    (tmp_path / "results.csv").write_bytes(saved)
    Record(tmp_path, resume_step=1).row("results.csv", {"step": 2, "a": "c"})
    assert (tmp_path / "results.csv").read_text().endswith("\n2,c\n")


def test_a_summary_of_another_program_is_none(tmp_path: Path) -> None:
    for content in (
        "{}",
        '{"arch": 1}',
        "[1]",
        "cut",
        '{"rate": {}, "validation": {}}',
    ):
        (tmp_path / "summary.json").write_text(content)
        assert Record(tmp_path, enabled=False).earlier_summary() is None


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    record = Record(tmp_path / "run", enabled=False)
    record.config("x")
    record.point("train", 1, {})
    record.summary({})
    record.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("resumed_at", "untold"),
    [(7, [5, 6, 7]), (4, []), (3, [3]), (0, [])],
    ids=["rescued", "", "cut", "anew"],
)
def test_steps_without_a_line_are_known(
    resumed_at: int, untold: list[int], tmp_path: Path
) -> None:
    """Rank 0 may save steps alone whose losses the ranks could not add up."""
    first = Record(tmp_path)
    for step in (2, 4):
        first.point("train", step, {"losses": [0.5, 0.5]})
    first.point("ceilings", 4, {})
    first.close()
    assert list(Record(tmp_path, resume_step=resumed_at).untold) == untold
    assert list(Record(tmp_path / "..", enabled=False, resume_step=7).untold) == []


def test_lines_are_added_once(tmp_path: Path) -> None:
    Record(tmp_path, resume_step=0).lines(
        "failed.txt", ["train\ta\udcff.mp4", "train\tb\n\u2028c.mp4"]
    )
    Record(tmp_path, resume_step=0).lines(
        "failed.txt", ["val\ta.mp4", "train\ta\udcff.mp4"]
    )
    Record(tmp_path, enabled=False).lines("failed.txt", ["val\tother.mp4"])
    assert (
        tmp_path / "failed.txt"
    ).read_bytes() == b"train\ta\xff.mp4\ntrain\tb\\n\xe2\x80\xa8c.mp4\nval\ta.mp4\n"


def test_files_of_one_folder_may_be_written_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, inner = os.fsync, [True]

    def meanwhile(file: int) -> None:
        if inner.pop() if inner else False:
            replace(tmp_path / "operators-rank1.txt", b"one")
        sync(file)

    monkeypatch.setattr(os, "fsync", meanwhile)
    replace(tmp_path / "operators-rank0.txt", b"zero")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "operators-rank0.txt": b"zero",
        "operators-rank1.txt": b"one",
    }
