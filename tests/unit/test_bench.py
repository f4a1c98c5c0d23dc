"""Running the points of a suite, whose points do what their name says; its tables; its flags."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import _show, _suite, bench
from benchmarks._suite import (
    RATE,
    Common,
    Point,
    Row,
    Suite,
    figures_of,
    merged,
    results,
    run,
)
from saturate.contracts import UserError
from saturate.run._reasons import LAUNCHER, reason

PROGRAM = """
import json, sys, time
what, folder = sys.argv[1], sys.argv[2]
figures = {"figures": {"rate": 100.0, "bound": "compute"}}
figures |= {"spread": {"rate": {"n": 2 if what == "short" else 5, "min": 90.0, "max": 110.0, "iqr": 8.0}}}
figures |= {"versions": {"torch": "2"}, "hardware": {"gpu": None, "cpu": "a CPU", "cores": 2, "ram_gib": 4.0}}
if what == "oom":
    sys.exit("train.py: --batch-size 9 does not fit (CUDA out of memory)")
if what == "crash":
    print("first line")
    sys.exit("the last [line]")
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

    fields: dict[str, Any] = {
        "name": "fake",
        "about": "about it",
        "settings": Settings,
        "points": points,
        "command": command,
        "read": figures_of,
        "columns": {"rate": ("{unit}", RATE), "power_w": ("W", "{}")},
        "details": {"bound": ("bound", "{}")},
    }
    return Suite(**(fields | changes))


def ran(folder: Path, *names: str, limit_s: float = 30.0, **changes: Any) -> list[Row]:
    settings = Settings(names=names, output=folder, limit_s=limit_s)
    return run(suite(**changes), settings, folder, lambda _: None)


def shown(rows: list[Row], folder: Path) -> tuple[str, str]:
    """Return what is printed of rows, and table.md."""
    console = Console(width=200, record=True, file=io.StringIO())
    _show.show(suite(), rows, folder, console, "the command")
    return console.export_text(), (folder / "table.md").read_text()


def test_each_end_is_a_row_and_a_cell(tmp_path: Path) -> None:
    rows = ran(tmp_path, "good", "oom", "crash", "silent", "short", "slow", limit_s=1.5)
    ends = {row["point"]["name"]: (row["status"], row["error"]) for row in rows}
    assert ends["good"] == ("ok", None)
    assert ends["crash"] == ("failed", "exit code 1: the last [line]")
    assert ends["slow"] == ("timeout", "took longer than --limit-s 1.5")
    assert ends["oom"][0] == "oom" and "out of memory" in str(ends["oom"][1])
    assert ends["silent"][0] == "failed" and "left no figures" in str(ends["silent"][1])
    assert ends["short"][0] == "short"
    assert results(tmp_path) == json.loads(json.dumps(rows))
    printed, text = shown(rows, tmp_path)
    assert "the last [line]" in printed, "an error is no markup"
    assert "bound" not in printed and "| name | img/s | bound |" in text
    assert "| good | 100.0 (90.0 to 110.0, 5) | compute |" in text
    assert "100" not in text.partition("| short |")[2].partition("\n")[0]
    for line in (
        "The same for all: size 8.",
        "no GPU, 2 cores of a CPU, 4 GiB",
        "torch 2",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("code", "log", "status", "why"),
    [
        (1, "CUBLAS_STATUS_ALLOC_FAILED when", "oom", "CUBLAS"),
        (1, "what():  std::bad_alloc\nthe end", "oom", "bad_alloc"),
        (-9, "begins", "failed", "killed"),
        (-6, "begins", "failed", "exit code -6: begins"),
        # of ranks, and not of torchrun
        (1, f"why\n{LAUNCHER}", "failed", "exit code 1: why"),
    ],
)
def test_why_a_point_has_no_figure(code: int, log: str, status: str, why: str) -> None:
    found, said = reason(code, log)
    assert found == status and why in said


def test_going_on_measures_what_is_left(tmp_path: Path) -> None:
    """A point that failed or was short is tried again, once; what is there, or named twice, is not."""
    ran(tmp_path, "good", "crash", "short", "good")
    with (tmp_path / "results.jsonl").open("ab") as file:
        # of an older day, of another program, of a kill in mid-write
        file.write(b'{"point": {"name": "x"}}\n\xff\xfe\n[1]\nnull\n{"point": {"na')
    lines: list[str] = []
    settings = Settings(names=("good", "crash", "short", "good"), output=tmp_path)
    rows = run(suite(), settings, tmp_path, lines.append)
    assert [line.partition(":")[0] for line in lines] == [
        "[2/3] crash-8",
        "[3/3] short-8",
    ]
    for found in (rows, results(tmp_path)):
        assert [row["point"]["name"] for row in found] == ["good", "crash", "short"]
    # another command measures its own
    (row,) = ran(tmp_path, "good", limit_s=9.0)
    assert row["settings"] != rows[0]["settings"]


def test_ranks_end_too(tmp_path: Path) -> None:
    """Ranks are as torchrun starts them: in sessions of their own, and deaf to SIGTERM."""
    rank = (
        "import signal, os, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    popen = (
        f"subprocess.Popen([sys.executable, '-c', {rank!r}], start_new_session=True)"
    )
    launcher = [sys.executable, "-c", f"import subprocess, sys; {popen}.wait()"]
    (row,) = ran(tmp_path, "good", limit_s=1.0, command=lambda *_: launcher)
    assert row["status"] == "timeout"
    status = Path(
        f"/proc/{int((tmp_path / row['folder'] / 'log.txt').read_text())}/status"
    )
    assert not status.exists() or "zombie" in status.read_text()


def test_repeats_are_processes_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their medians and spread are the point's; fewer than three that went well are no figure."""
    commits = iter(["one"] * 2 + ["two"] * 9)
    monkeypatch.setattr(_suite, "commit", lambda: next(commits))
    settings = Settings(names=("good", "crash"), output=tmp_path, repeats=3)
    rows = run(suite(), settings, tmp_path, lambda _: None)
    turns = [(row["point"]["name"], row["point"]["repeat"]) for row in rows]
    assert turns == [(n, k) for k in range(3) for n in ("good", "crash")]
    for row, rate in zip(rows[::2], (90.0, 100.0, 120.0), strict=True):
        row["figures"]["rate"] = rate
    good, crash = merged(rows)
    assert good["point"] == {"name": "good", "size": 8} and good["error"] is None
    wanted = {"rate": 100.0, "repeats": 3, "bound": "compute"}
    assert good["figures"].items() >= wanted.items()
    assert good["spread"]["rate"].items() >= {"n": 3, "min": 90.0, "max": 120.0}.items()
    assert good["versions"]["commit"] == "one / two" and crash["status"] == "failed"
    assert merged(rows[:3])[0]["status"] == "short"
    rows[2] |= {"status": "oom", "error": "it broke"}
    rows.append(rows[0] | {"point": {**rows[0]["point"], "repeat": 3}})
    _, text = shown(rows, tmp_path)
    assert "| 90.0 (90.0 to 120.0, 3); 1 of 4 lost: oom: it broke |" in text
    asked = settings.model_copy(update={"repeats": 2})
    with pytest.raises(UserError, match="--repeats 2: 1, or 3 and more"):
        run(suite(), asked, tmp_path / "other", lambda _: None)
    assert not (tmp_path / "other").exists()


# --- flags ------------------------------------------------------------------------------------------------------


def test_without_a_figure_it_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (good,) = ran(tmp_path, "good")
    monkeypatch.setattr(bench, "suite_of", lambda _: suite())
    for statuses, code in (("short", 1), ("ok oom", 0), ("ok failed", 1)):
        rows = [
            good | {"point": {"name": status, "size": 8}, "status": status}
            for status in statuses.split()
        ]
        monkeypatch.setattr(bench, "run", lambda *_, rows=rows: rows)
        assert bench.main(["fake", "--output", str(tmp_path)]) == code
        said = "bench: no point has a figure" in capsys.readouterr().err
        assert said == ("ok" not in statuses)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--archs", "resnet81"], "--archs got 'resnet81' (did you mean"),
        (
            ["--", "--arch", "alexnet"],
            "--arch behind -- is what this program sets itself",
        ),
        (["--", "--bach-size", "4"], "unknown flag"),
        (["--output", "data/out"], "never written to"),
    ],
)
def test_mistakes_are_said_in_a_line_before_anything_is_made(
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/train").mkdir(parents=True)
    assert bench.main(["train", "--data", "data", "--output", "out", *argv]) == 2
    told = capsys.readouterr().err
    assert said in told and told.startswith("bench: ") and told.count("\n") == 1
    assert not [*tmp_path.rglob("out")]


def test_more_ranks_than_gpus() -> None:
    """On a CPU any number runs."""
    with pytest.raises(UserError, match="--gpus 4: each rank needs a GPU"):
        _suite.require_gpus((1, 4), 2)
    _suite.require_gpus((1, 4), 0)
