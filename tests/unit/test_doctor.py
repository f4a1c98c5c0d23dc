"""The doctor: what its probes say of what they read, its processes, and one run for real.

Nothing large is imported here: the processes that doctor starts for the probes of this module import it too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from saturate.run import _probes, doctor
from saturate.run._probes import PROBES, Row
from tests.end_to_end.runs import Runner

ROOT = Path(__file__).resolve().parents[2]


def _row(name: str) -> Row:
    """Return what a probe gives, or what doctor makes of its error."""
    probe = PROBES[name]
    try:
        return probe.ask()
    except Exception as error:
        return _probes.lost(probe, str(error))


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


@pytest.mark.parametrize(
    ("capability", "state"), [((6, 1), "bad"), ((7, 0), "bad"), ((7, 5), "ok")]
)
def test_a_gpu_that_is_older_than_torchs_kernels(
    capability: tuple[int, int], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A V100 has 7.0 and a GTX 1080 6.1; torch 2.15 for CUDA 13.2 has kernels from 7.5 on."""
    import torch

    major, minor = capability
    device = SimpleNamespace(name="it", major=major, minor=minor, total_memory=2**33)
    fakes = {
        "init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_properties": lambda _: device,
        "get_arch_list": lambda: ["sm_75", "sm_80", "sm_90a", "sm_120"],
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    row = _probes.gpu()
    assert row.state == state
    assert ("needs 7.5" in row.consequence) == (state == "bad")


# --- processes ----------------------------------------------------------------

CHILD = """
import os, signal, sys, time
from saturate.run import _probes
from saturate.run._probes import Probe, Row

def ask():
    print("last words", flush=True)
    if sys.argv[1] == "NCCL":
        raise LookupError("no such\\nthing")
    if sys.argv[1] == "/dev/shm":
        os._exit(0)
    if sys.argv[1] == "memory":
        os.kill(os.getpid(), signal.SIGSEGV)
    if sys.argv[1] == "NVDEC":
        time.sleep(600)
    return Row("ok", "here", "")

_probes.PROBES = dict.fromkeys(_probes.PROBES, Probe(ask, "mend it", "bad"))
_probes.main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("GPU", "here"),
        ("NCCL", "LookupError: no such"),
        ("memory", "its process ended with SIGSEGV: last words"),
        ("NVDEC", "no answer within 1 s"),
        ("/dev/shm", "its process ended with code 0: last words"),
    ],
)
def test_a_probe_that_fails_is_a_row(name: str, found: str) -> None:
    limit_s = 1.0 if name == "NVDEC" else 30.0
    row = doctor.ask(name, limit_s=limit_s, child=(sys.executable, "-c", CHILD))
    assert row.found == found and (row.state == "ok") == (name == "GPU")


def test_it_runs_here(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(name: str) -> Row:
        """In a process that has imported PyTorch already."""
        process = runner.python("-m", "saturate.run._probes", name, cwd=ROOT)
        assert process.wait() == 0, process.err
        return Row(**json.loads(process.out))

    monkeypatch.setattr(doctor, "AT_ONCE", 1)
    monkeypatch.setattr(doctor, "ask", ask)
    code = doctor.main(["--json"])
    rows = {row.pop("what"): row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == PROBES.keys()
    assert code == int(any(row["state"] == "bad" for row in rows.values()))
    for name in ("torch, torchvision", "DALI decodes, CPU", "CPU reader", "memory"):
        assert rows[name]["state"] == "ok", rows[name]
    for row in rows.values():
        assert row["consequence"] not in ("", _probes.LIMITS), row
    found = {name: Row(**row) for name, row in rows.items()}
    doctor.show({**found, "x": Row("bad", "g", "mend it")})
    table = capsys.readouterr().out
    assert table.startswith("bad     x: g\n          mend it")
    assert "bad: x" in table.splitlines()[-1]


def test_this_process_imports_nothing_that_could_be_broken() -> None:
    heavy = ("torch", "numpy", "nvidia", "cv2", "pynvml", "rich")
    code = f"import sys, scripts.doctor; print({{*{heavy}}} & {{*sys.modules}})"
    words = [sys.executable, "-c", code]
    assert subprocess.check_output(words, cwd=ROOT, text=True) == "set()\n"
