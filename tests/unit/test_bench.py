"""Running the points of a suite, whose points do what their name says."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from benchmarks import _process, _show, _suite
from benchmarks._process import ending_on_signals
from benchmarks._suite import (
    ROOT,
    Column,
    Common,
    Point,
    Row,
    Suite,
    figures_of,
    merged,
    results,
    run,
)
from contracts import UserError
from scripts import bench

PROGRAM = """
import json, sys, time
what, folder = sys.argv[1], sys.argv[2]
figures = {"figures": {"rate": 100.0, "bound": "compute"}}
figures |= {"spread": {"rate": {"n": 5, "min": 90.0, "max": 110.0, "iqr": 8.0}}}
figures |= {"versions": {"torch": "2"}, "hardware": {"gpu": None, "cpu": "a CPU", "cores": 2, "ram_gib": 4.0}}
if what == "short":
    figures["spread"]["rate"]["n"] = 2
if what == "oom":
    sys.exit("train.py: --batch-size 9 does not fit (CUDA out of memory)")
if what == "crash":
    print("first line")
    sys.exit("the last line")
if what == "slow":
    time.sleep(60)
if what != "silent":
    open(folder + "/figures.json", "w").write(json.dumps(figures))
"""


class Settings(Common):
    names: tuple[str, ...] = ("good",)


def suite(**changes: Any) -> Suite:
    def points(settings: Settings) -> list[Point]:
        return [{"name": name, "size": 8} for name in settings.names]

    def command(settings: Settings, point: Point, folder: Path) -> list[str]:
        return [sys.executable, "-c", PROGRAM, point["name"], str(folder)]

    columns: tuple[Column, ...] = (
        Column(key="name", title="name"),
        Column(key="size", title="size"),
        Column(key="rate", title="img/s", form="{:,.1f}"),
    )
    columns += (
        Column(key="bound", title="bound", detail=True),
        Column(key="power_w", title="W"),
    )
    fields: dict[str, Any] = {
        "name": "fake",
        "about": "about it",
        "settings": Settings,
        "points": points,
        "command": command,
    }
    return Suite(
        **(
            fields
            | {
                "read": figures_of,
                "columns": columns,
                "rate": "rate",
                "over": ("size",),
                "curves": ("rate",),
            }
            | changes
        )
    )


def ran(folder: Path, *names: str, limit_s: float = 30.0, **changes: Any) -> list[Row]:
    return run(
        suite(**changes),
        Settings(names=names, output=folder, limit_s=limit_s),
        folder,
        lambda *_: None,
    )


def test_each_end_is_a_row(tmp_path: Path) -> None:
    rows = ran(tmp_path, "good", "oom", "crash", "silent", "short", "slow", limit_s=3.0)
    assert {row["point"]["name"]: row["status"] for row in rows} == {
        "good": "ok",
        "oom": "oom",
        "crash": "failed",
        "silent": "failed",
        "short": "short",
        "slow": "timeout",
    }
    errors = {row["point"]["name"]: row["error"] for row in rows}
    assert errors["crash"] == "exit code 1: the last line"
    assert (
        errors["oom"].endswith("(CUDA out of memory)")
        and "left no figures" in errors["silent"]
    )
    assert errors["slow"] == "took longer than --limit-s 3"
    assert results(tmp_path) == json.loads(json.dumps(rows))


@pytest.mark.parametrize(
    "said", ["--data: no image in it", "train.py: --data: no image in it"]
)
def test_data_that_no_point_can_use_ends_a_suite(said: str, tmp_path: Path) -> None:
    refuses = lambda *_: [  # noqa: E731
        sys.executable,
        "-c",
        f"import sys; print('{said}', file=sys.stderr); sys.exit(2)",
    ]
    with pytest.raises(UserError, match=r"^--data: no image in it$"):
        ran(tmp_path, "good", "crash", command=refuses)
    assert [row["status"] for row in results(tmp_path)] == ["failed"]
    assert [row["status"] for row in ran(tmp_path, "good")] == ["ok"]


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when",
        "Can't allocate 77 bytes on device 0.",
        "DALI ran out of the GPU's memory: a",
        "[Errno 12] Cannot allocate memory",
        "what():  std::bad_alloc",
    ],
)
def test_a_library_that_gets_no_memory_is_out_of_memory(
    said: str, tmp_path: Path
) -> None:
    program = f'print("{said}"); print("the end"); exit(1)'
    (row,) = ran(tmp_path, "good", command=lambda *_: [sys.executable, "-c", program])
    assert (row["status"], row["error"]) == ("oom", said)


@pytest.mark.parametrize(
    "ends",
    [
        "exit('libgomp: Thread creation failed: Resource temporarily unavailable')",
        'raise RuntimeError("can\'t start new thread")',
        "exit('train.py: a worker process was killed, as the system does when memory is short')",
        "import os; print('an ordinary line', flush=True); os.kill(os.getpid(), 9)",
    ],
)
def test_no_thread_or_a_kill_is_out_of_memory_where_that_is_looked_for(
    ends: str, tmp_path: Path
) -> None:
    """Elsewhere these have other reasons too, which must not be hidden."""
    (failed,), (oom,) = (
        ran(
            tmp_path / str(asks),
            "good",
            command=lambda *_: [sys.executable, "-c", ends],
            asks_what_fits=asks,
        )
        for asks in (False, True)
    )
    assert (failed["status"], oom["status"]) == ("failed", "oom")


def test_going_on_measures_what_is_left(tmp_path: Path) -> None:
    """A point that failed is tried again, once; what is there, or named twice, is not."""
    ran(tmp_path, "good", "crash", "good")
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"point": {"na')  # a kill in mid-write
    said: list[str] = []
    settings = Settings(names=("good", "crash", "good"), output=tmp_path)
    rows = run(suite(), settings, tmp_path, lambda *told: said.append(told[2]))
    assert [line.partition(":")[0] for line in said] == ["crash-8", "crash-8"]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 4
    for found in (rows, results(tmp_path)):
        assert [row["point"]["name"] for row in found] == ["good", "crash"]


def test_a_short_one_is_measured_again_and_shown_nowhere(tmp_path: Path) -> None:
    rows = ran(tmp_path, "short")
    _show.show(suite(), rows, tmp_path, Console(file=io.StringIO()))
    assert not list(tmp_path.rglob("events.out.tfevents.*"))
    (again,) = ran(tmp_path, "short")
    assert again["began"] > rows[0]["began"]


def test_a_folder_where_nothing_was_measured_holds_the_next_command_alone(
    tmp_path: Path,
) -> None:
    ran(tmp_path, "crash")
    ran(tmp_path, "good")
    assert [row["point"]["name"] for row in results(tmp_path)] == ["good"]


def test_an_error_is_no_markup(tmp_path: Path) -> None:
    rows = ran(tmp_path, "crash")
    rows[0]["error"] = (
        "exit code 1: [rank0]: [/__w/pytorch/pair.cc:561] Connection closed by peer"
    )
    said = io.StringIO()
    _show.show(suite(), rows, tmp_path, Console(file=said, width=300))
    assert "[rank0]: [/__w/pytorch/pair.cc:561]" in said.getvalue()


def test_ranks_end_too(tmp_path: Path) -> None:
    """Ranks are as torchrun starts them: in sessions of their own, and deaf to SIGTERM."""
    rank = (
        "import signal, os, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    launcher = (
        "import subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-c', {rank!r}], start_new_session=True).wait()"
    )
    (row,) = ran(
        tmp_path,
        "good",
        limit_s=2.0,
        command=lambda *_: [sys.executable, "-c", launcher],
    )
    assert row["status"] == "timeout"
    pid = int((tmp_path / row["folder"] / "log.txt").read_text())
    assert (
        not os.path.exists(f"/proc/{pid}")
        or "zombie" in Path(f"/proc/{pid}/status").read_text()
    )


def test_a_folder_is_of_one_command(tmp_path: Path) -> None:
    ran(tmp_path, "good")
    with pytest.raises(
        UserError, match=r"--names \['good'\], this is \['oom'\]; name another folder"
    ):
        ran(tmp_path, "oom")


def test_points_that_depend_on_rows(tmp_path: Path) -> None:
    def follow(settings: Any, rows: Sequence[Row]) -> list[Point]:
        return (
            [{"name": "good", "size": 9}]
            if any(row["status"] == "oom" for row in rows)
            else []
        )

    rows = ran(tmp_path, "oom", follow=follow)
    assert [(row["point"]["size"], row["status"]) for row in rows] == [
        (8, "oom"),
        (9, "ok"),
    ]


def test_an_interrupt_ends_the_point_and_keeps_the_rows(tmp_path: Path) -> None:
    """SIGTERM to the program, in mid-point: exit code 130, the child is gone, the row before is there."""
    script = (
        "import sys; from scripts import bench; import tests.unit.test_bench as here;"
        "bench.SUITES['fake'] = 'tests.unit.test_bench'; here.SUITE = here.suite();"
        "sys.exit(bench.main(sys.argv[1:]))"
    )
    flags = ["--names", "good", "slow", "--output", str(tmp_path / "out")]
    command = [sys.executable, "-c", script, "fake", *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while (
        not list(tmp_path.glob("out/runs/slow-8/log.txt")) and time.monotonic() < until
    ):
        time.sleep(0.05)
    time.sleep(0.3)
    (child,) = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
    ).stdout.split()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and f"--output {tmp_path / 'out'} goes on" in said
    assert f"python -m scripts.report {tmp_path / 'out'} makes the table" in said
    assert not os.path.exists(f"/proc/{child}")
    assert [row["point"]["name"] for row in results(tmp_path / "out")] == ["good"]


def test_repeats_are_processes_in_turns(tmp_path: Path) -> None:
    """Their medians and spread are the point's; fewer than three that went well are no figure."""
    settings = Settings(names=("good", "crash"), output=tmp_path, repeats=3)
    rows = run(suite(), settings, tmp_path, lambda *_: None)
    assert [(row["point"]["name"], row["point"]["repeat"]) for row in rows] == [
        (n, k) for k in range(3) for n in ("good", "crash")
    ]
    for row, rate in zip(rows[::2], (90.0, 100.0, 120.0), strict=True):
        row["figures"]["rate"] = rate
    good, crash = merged(rows)
    assert good["point"] == {"name": "good", "size": 8}
    assert (
        good["figures"].items()
        >= {"rate": 100.0, "repeats": 3, "bound": "compute"}.items()
    )
    assert good["spread"]["rate"].items() >= {"n": 3, "min": 90.0, "max": 120.0}.items()
    assert crash["status"] == "failed"
    assert merged(rows[:3])[0]["status"] == "short"
    with pytest.raises(
        UserError,
        match="--repeats 2: of fewer than 3 no figure is shown; 1, or 3 and more",
    ):
        run(
            suite(),
            settings.model_copy(update={"repeats": 2}),
            tmp_path / "other",
            lambda *_: None,
        )
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match="is a search"):
        run(suite(follow=lambda *_: []), settings, tmp_path / "other", lambda *_: None)


def repeated(folder: Path, *statuses: str) -> list[Row]:
    (good,) = ran(folder, "good")
    named = [
        {**good, "point": {**good["point"], "repeat": number}, "status": status}
        for number, status in enumerate(statuses)
    ]
    return [
        row
        if row["status"] == "ok"
        else {**row, "error": "it broke", "figures": {}, "versions": {}}
        for row in named
    ]


def test_a_repeat_that_is_lost_is_shown(tmp_path: Path) -> None:
    rows = repeated(tmp_path, "ok", "oom", "ok", "ok")
    (row,) = merged(rows)
    assert (row["status"], row["figures"]["repeats"], row["figures"]["lost"]) == (
        "ok",
        3,
        1,
    )
    assert row["error"] == "1 of 4 processes without a figure: oom: it broke"
    _show.show(suite(), rows, tmp_path, Console(file=io.StringIO()))
    assert (
        "| 100.0 (100.0 to 100.0, 3); 1 of 4 processes without a figure: oom: it broke |"
        in (tmp_path / "table.md").read_text()
    )
    _show.show(suite(), rows[:3], tmp_path, Console(file=io.StringIO()))
    text = (tmp_path / "table.md").read_text()
    assert (
        "| too short: no figure; 1 of 3 processes without a figure: oom: it broke |"
        in text
    )
    (whole,) = merged(repeated(tmp_path / "whole", "ok", "ok", "ok"))
    assert whole["error"] is None and whole["figures"]["lost"] == 0


def test_the_commit_is_each_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_suite, "_commit", lambda: "one")
    (before,) = ran(tmp_path, "good")
    monkeypatch.setattr(_suite, "_commit", lambda: "other+")
    (after,) = ran(tmp_path / "after", "good")
    assert [row["versions"]["commit"] for row in (before, after)] == ["one", "other+"]
    assert "- commit one / other+, torch 2\n" in _show.markdown(
        suite(), [before, {**after, "point": {"name": "b", "size": 8}}], tmp_path
    )
    turns = [
        {**row, "point": {**row["point"], "repeat": number}}
        for number, row in enumerate((before, after, before))
    ]
    assert "- commit one / other+, torch 2\n" in _show.markdown(
        suite(), merged(turns), tmp_path
    )


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_a_point_is_ended_is_heard_once_it_is(tmp_path: Path) -> None:
    """`timeout` sends a signal once, to a point that has its time to end. Under nohup, which ignores
    another.
    """
    send = (
        "[os.kill(os.getppid(), number) for number in (signal.SIGHUP, signal.SIGTERM)]"
    )
    deaf = f"import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: {send}); time.sleep(60)"
    began, before = time.monotonic(), psutil.Process().children()
    with pytest.MonkeyPatch.context() as patched, (tmp_path / "log").open("wb") as log:
        patched.setattr(_process, "PATIENCE_S", 1.0)
        hangs_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with ending_on_signals(), pytest.raises(KeyboardInterrupt):
                _process.ran([sys.executable, "-c", deaf], log, 3.0)
        finally:
            signal.signal(signal.SIGHUP, hangs_up)
    assert 4.0 <= time.monotonic() - began < 30, "it was given its time all the same"
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("short",), 1),
        (("absent", "short"), 1),
        (("oom",), 1),
        (("ok", "absent"), 0),
        (("ok", "oom"), 0),
        (("ok", "failed"), 1),
    ],
)
def test_without_a_figure_it_failed(
    statuses: tuple[str, ...],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (good,) = ran(tmp_path, "good")
    rows = [
        {**good, "point": {"name": str(number), "size": 8}, "status": status}
        for number, status in enumerate(statuses)
    ]
    monkeypatch.setattr(bench, "suite_of", lambda _: suite())
    monkeypatch.setattr(bench, "run", lambda *_: rows)
    assert bench.main(["fake", "--output", str(tmp_path)]) == code
    assert ("bench: no point has a figure" in capsys.readouterr().err) == (
        "ok" not in statuses
    )


def test_damaged_results_are_passed_over(tmp_path: Path) -> None:
    ran(tmp_path, "good")
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"point": {"name": "x"}}\n\xff\xfe\n[1]\nnull\n')
    assert [row["point"]["name"] for row in results(tmp_path)] == ["good"]
    (tmp_path / "suite.json").write_text("[1]")
    with pytest.raises(UserError, match=r"suite.json is damaged"):
        ran(tmp_path, "good")
