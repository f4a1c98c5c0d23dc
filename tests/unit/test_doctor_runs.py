"""The doctor's processes and the ways to call it: a probe that crashes or hangs, and one run for real.

Nothing large is imported here: the processes that doctor starts for the probes of this module import it too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from scripts import doctor
from scripts.probes import Row, decoders

ROOT = Path(__file__).resolve().parents[2]


def fine() -> Row:
    print("a library says something")
    return Row(found="here", state="ok")


def raise_an_error() -> Row:
    raise LookupError("no such\nthing")


def crash() -> Row:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def leave_early() -> Row:
    os._exit(7)


def leave_in_an_answer() -> Row:
    def half(connection: Connection, data: bytes, *_: Any) -> None:
        os.write(connection.fileno(), data[: len(data) // 2])
        os._exit(7)

    Connection._send = half  # type: ignore[attr-defined]
    return Row(found="here", state="ok")


def hang() -> Row:
    time.sleep(600)
    raise AssertionError


def test_a_probe_that_fails_is_a_row_and_not_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    probes = {"a": fine, "b": raise_an_error, "c": crash, "d": fine, "e": leave_early, "f": fine}
    probes["g"] = leave_in_an_answer
    rows = doctor.ask(probes)
    assert [row.what for row in rows] == [*probes]
    assert [row.state for row in rows] == ["ok", "warn", "bad", "ok", "bad", "ok", "bad"]
    found = {row.what: row.found for row in rows}
    assert found["b"] == "LookupError: no such"
    assert found["c"].startswith("its process was ended by SIGSEGV: ") and "last words" in found["c"]
    assert found["e"] == found["g"] == "its process ended with exit code 7"
    assert capfd.readouterr() == ("", "")


def test_a_probe_that_hangs_is_a_row() -> None:
    rows = doctor.ask({"a": fine, "NCCL": hang, "c": fine}, limit_s=3.0)
    assert [(row.what, row.state) for row in rows] == [("a", "ok"), ("NCCL", "bad"), ("c", "ok")]
    assert rows[1].found.startswith("no answer within 3 s") and "NCCL_P2P_DISABLE=1" in rows[1].consequence
    assert doctor.IF_LOST.keys() <= {name for lane in doctor.LANES for name in lane}


ROWS = [
    Row(what="x", found="f [red]", state="ok"),
    Row(what="y", found="g", state="bad", consequence="mend it"),
    Row(what="z", found="h", state="absent"),
]


def test_exit_code_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda _: ROWS)
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "f [red]" in said, "what is found is no markup"
    assert said.index("mend it") < said.index("f [red]"), "what to change comes first"
    assert said.splitlines()[-1] == "bad: y"
    assert doctor.main(["--json"]) == 1
    told = json.loads(capsys.readouterr().out)[1]
    assert told == {"what": "y", "found": "g", "state": "bad", "consequence": "mend it"}
    monkeypatch.setattr(doctor, "diagnose", lambda _: [ROWS[0], ROWS[2]])
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.endswith("nothing to change\n")


def test_without_rich_the_rows_are_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rich", *(name for name in sys.modules if name.startswith("rich."))):
        monkeypatch.setitem(sys.modules, name, None)
    doctor.show(ROWS)
    assert capsys.readouterr().out.splitlines()[1] == "bad     y: g; mend it"


@pytest.mark.parametrize("name", ["gone", "file"])
def test_a_wrong_folder_is_one_line(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemExit, match="2"):
        doctor.main(["--data", str(tmp_path / name)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"doctor: --data {tmp_path / name}: ")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "train" / "ant").mkdir(parents=True)
    for i in range(3):
        (tmp_path / "train" / "ant" / f"{i}.JPEG").write_bytes(decoders.jpeg())
    return tmp_path


def test_it_runs_here(data: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "scripts.doctor", "--json", "--data", str(data)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    seconds = time.monotonic() - began
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert list(rows) == [name for lane in doctor.LANES for name in lane] + [
        *doctor.OF_DATA,
        *doctor.MANIFESTS,
    ]
    assert done.stderr == ""
    assert done.returncode == int(any(row["state"] == "bad" for row in rows.values()))
    assert {
        rows[name]["state"] for name in ("torch, torchvision", "DALI", "DALI decodes, CPU", "CPU reader")
    } == {"ok"}
    told = [row["consequence"] for row in rows.values()]
    assert all(told) and not any("could not be looked at" in each for each in told)
    assert "3 files of 1 KiB" in rows["--data: reading"]["found"]
    assert seconds < 60, "4 to 5 s on two idle cores"


def test_this_process_imports_nothing_that_could_be_broken() -> None:
    heavy = ("torch", "numpy", "nvidia", "cv2", "pynvml", "rich")
    code = f"import sys, scripts.doctor; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
