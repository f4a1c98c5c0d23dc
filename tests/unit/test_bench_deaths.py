"""benchmarks deaths: which process is killed, and the seconds until the next step, by a program that only waits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.deaths import killed, logged, main, step_of

AGENT = """
import subprocess, sys, time
trainer, spare = (subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2))
print(trainer.pid, flush=True)
if sys.argv[1] == "1":
    trainer.wait()
    line = '{{"kind": "{}", "spent": {{"at": {}, "seconds": {{"start": {}}}}}}}\\n'
    with open(sys.argv[2], "a") as log:
        log.write(line.format("attempt", time.time(), 7.0))
        log.flush()
        time.sleep(0.3)
        log.write(line.format("train", time.time(), 7.25) + '{"kind": "tr')
time.sleep(60)
"""
"""A trainer, then a warm spare. When the trainer of rank 1 has ended, the next attempt makes a step 0.3 s later."""
TORCHRUN = """
import subprocess, sys, time
for rank in range(2):
    subprocess.Popen([sys.executable, "-c", sys.argv[1], str(rank), sys.argv[2]])
time.sleep(60)
"""


def test_the_trainer_of_a_rank_dies_and_the_next_step_is_waited_for(
    tmp_path: Path,
) -> None:
    log = tmp_path / "metrics.jsonl"
    lines = [
        {"kind": "attempt", "spent": {"at": 1.0, "seconds": {}}},
        {"kind": "train", "spent": {"at": 2.0, "seconds": {"start": 7.0}}},
        {"kind": "val"},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = step_of(tmp_path, 1)
    assert first == lines[1] and step_of(tmp_path, 2) is None
    words = [sys.executable, "-c", TORCHRUN, AGENT, str(log)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as run:
        try:
            assert run.stdout is not None
            trainers = {int(run.stdout.readline()) for _ in range(2)}
            began = time.monotonic()
            found = killed(run, tmp_path, 1, 2)
            assert 0.3 <= found["next step"] <= time.monotonic() - began
            assert found["start"] == pytest.approx(0.25)
            alive = {pid for pid in trainers if _lives(pid)}
            assert len(alive) == 1  # rank 0's
        finally:
            for child in psutil.Process(run.pid).children(recursive=True):
                child.kill()
            run.kill()
    assert [line["kind"] for line in logged(tmp_path)] == ["attempt", "train"] * 2


def _lives(pid: int) -> bool:
    return (
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    )


def test_flags_without_unkillable_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["out", "--", "--data", "x"])
    assert ended.value.code == 2
    assert "FLAGS need --unkillable" in capsys.readouterr().err
