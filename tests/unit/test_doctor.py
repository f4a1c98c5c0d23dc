"""The doctor: what its probes say of what they read, its processes, and one run for real.

Nothing large is imported here: the processes that doctor starts for the probes of this module import it too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import _probes, doctor
from scripts._probes import PROBES, Probe, Row

ROOT = Path(__file__).resolve().parents[2]


def _row(name: str, data: str = "") -> Row:
    """Return what a probe gives, or what doctor makes of its error."""
    probe = (PROBES | _probes.OF_DATA)[name]
    try:
        return probe.ask(data) if data else probe.ask()
    except Exception as error:
        return _probes.lost(probe, str(error))


@pytest.mark.parametrize(("lost", "state"), [(0, "ok"), (1, "bad")])
def test_numbers_are_summed_over_all_gpus(
    lost: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def all_reduce(each: list[torch.Tensor]) -> None:
        total = torch.stack(each).sum(0)
        for one in each[lost:]:
            one.copy_(total)

    full = torch.full
    monkeypatch.setattr(torch, "full", lambda size, value, device: full(size, value))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (4 << 30, 8 << 30))
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 30, 7))
    monkeypatch.setattr("torch.cuda.nccl.all_reduce", all_reduce)
    row = _row("NCCL")
    assert row.state == state and "2.30.7" in row.found


def test_dali_that_does_not_decode_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "DALI decodes, CPU"
    assert _row(name).state == "ok"
    monkeypatch.setattr(_probes, "COLOUR", (100, 200, 50))
    grey = _probes.jpeg()
    monkeypatch.setattr(_probes, "COLOUR", (200, 100, 50))
    for content in (b"no JPEG", grey):
        monkeypatch.setattr(_probes, "jpeg", lambda content=content: content)
        assert _row(name).state == "bad"
    two = ["nvidia-dali-cuda120 2", "nvidia-dali-cuda130 2"]
    monkeypatch.setattr(_probes, "builds", lambda prefix: two)
    assert "overwrite each other" in _row(name).found
    monkeypatch.setattr(_probes, "has", lambda _: False)
    assert _row(name).state == "absent"


def test_files_are_taken_from_everywhere_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _row("--data: reading", str(tmp_path)).state == "bad", "no file"
    for folder in range(5):
        (tmp_path / str(folder)).mkdir()
        for file in range(80):
            (tmp_path / str(folder) / f"{file}.JPEG").write_bytes(bytes(1000))
        (tmp_path / str(folder) / ".hidden").write_bytes(b"x")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "0" / "broken").symlink_to(tmp_path / "gone")
    paths = _probes.some_files(str(tmp_path))
    assert len({*paths}) == 200 and len({Path(path).parent.name for path in paths}) == 5
    (tmp_path / "circle").unlink()
    assert not any("circle" in path or ".hidden" in path for path in paths)
    assert _probes.read(paths)[:2] == (200, 200_000 / (1 << 20))
    row = _row("--data: reading", str(tmp_path))
    assert row.state == "ok" and "200 files of 1 KiB" in row.found
    monkeypatch.setattr(_probes, "read", lambda paths: (100, 1.0, 1.0))
    assert _row("--data: reading", str(tmp_path)).state == "warn", "10 ms a file"
    monkeypatch.setattr(_probes, "read", lambda paths: (100, 600.0, 1.0))
    assert _row("--data: reading", str(tmp_path)).state == "ok", "large files"


# --- processes ----------------------------------------------------------------

CHILD = """
import os, signal, sys, time
from scripts import _probes
from scripts._probes import Probe, Row

def fine():
    print("a library says something")
    return Row("ok", "here", "")

def fails():
    raise LookupError("no such\\nthing")

def crashes():
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

def slow():
    time.sleep(1.6)
    return Row("ok", "here", "")

def hangs():
    time.sleep(600)

def quits():
    print("{", end="", flush=True)
    os._exit(0)

for name in sys.argv[2:]:
    of = {"fails": fails, "crashes": crashes, "hangs": hangs, "quits": quits, "leaves": lambda: os._exit(7)}
    of |= {"slow": slow, "slower": slow}
    _probes.PROBES[name] = Probe(of.get(name, fine), "mend it", "bad")
_probes.main("", sys.argv[2:])
"""


def test_a_probe_that_fails_is_a_row_and_not_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    names = ("a", "fails", "crashes", "slow", "slower", "hangs", "leaves", "quits", "c")
    probes = {
        name: Probe(lambda: Row("ok", "", ""), "mend it", "bad") for name in names
    }
    rows = doctor.ask(probes, limit_s=3.0, child=(sys.executable, "-c", CHILD))
    assert tuple(rows) == names
    found = {name: row.found for name, row in rows.items()}
    for name in ("a", "slow", "slower", "c"):
        assert rows[name] == Row("ok", "here", "")
    assert rows["fails"] == Row("bad", "LookupError: no such", "mend it")
    assert re.match("its process was ended by SIGSEGV: .", found["crashes"])
    assert found["hangs"].startswith("no answer within 3 s")
    assert found["leaves"].startswith("its process ended with code 7")
    assert found["quits"].startswith("its process ended before it answered")
    assert capfd.readouterr() == ("", "")


def test_exit_code_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = {"x": Row("ok", "f", ""), "y": Row("bad", "g", "mend it")}
    monkeypatch.setattr(doctor, "diagnose", lambda _: rows)
    assert doctor.main([]) == 1
    table = capsys.readouterr().out
    assert table.index("mend it") < table.index("x: f"), "what to change comes first"
    assert table.splitlines()[-1] == "bad: y"
    assert doctor.main(["--json"]) == 1
    expected = {"what": "y", "found": "g", "state": "bad", "consequence": "mend it"}
    assert json.loads(capsys.readouterr().out)[1] == expected
    rows.pop("y")
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.endswith("nothing to change\n")
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--data", str(tmp_path / "gone")])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("doctor: --data ")


def test_it_runs_here(tmp_path: Path) -> None:
    (tmp_path / "train" / "ant").mkdir(parents=True)
    for i in range(3):
        (tmp_path / "train" / "ant" / f"{i}.JPEG").write_bytes(_probes.jpeg())
    words = [sys.executable, "-m", "scripts.doctor", "--json", "--data", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    rows = {row["what"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == PROBES.keys() | _probes.OF_DATA.keys() and done.stderr == ""
    assert done.returncode == int(any(row["state"] == "bad" for row in rows.values()))
    for name in ("torch, torchvision", "DALI decodes, CPU", "CPU reader", "memory"):
        assert rows[name]["state"] == "ok", rows[name]
    for row in rows.values():
        assert row["consequence"] not in ("", _probes.LIMITS), row
    assert "3 files of 1 KiB" in rows["--data: reading"]["found"]


def test_this_process_imports_nothing_that_could_be_broken() -> None:
    heavy = ("torch", "numpy", "nvidia", "cv2", "pynvml", "rich")
    code = f"import sys, scripts.doctor; print({{*{heavy}}} & {{*sys.modules}})"
    words = [sys.executable, "-c", code]
    assert subprocess.check_output(words, cwd=ROOT, text=True) == "set()\n"
