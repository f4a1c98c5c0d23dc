"""What a person sees, through a real pseudo-terminal and through a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest

from report.console import Bar, Console, rows
from scripts.export import EXPORTED
from tasks import TASKS
from tasks.classification import KIND
from tasks.kind import TaskKind
from tests.unit.test_meter import Clock

SUMMARY: dict[str, Any] = {
    "arch": "resnet18",
    "loader": "dali-gpu",
    "rate": {
        "steady": 17907.2,
        "spread": {"n": 23, "min": 17100.0, "max": 18020.0, "iqr": 30.0},
        "unit": "img/s",
    },
    "ceiling": {"compute": {"rate": 18900.0}, "loader": {"rate": 21100.0}},
    "efficiency": 0.9475,
    "bound": "contention",
    "data_wait": {"ms": 1.234, "share": 0.045},
    "validation": {"top1": 0.913, "top5": 0.991, "loss": 0.312},
    "hardware": {"gpu": "H200", "cores": 16},
    "cpu": {"utilisation": 0.93},
    "samples_failed": [3, 5],
    "task": "classification",
    "best": {"value": 0.92, "epoch": 7, "checkpoint": "some runs/latest/best.pt"},
    "samples": 7920,
    "samples_dropped": 80,
    "early_stop": {"epoch": 9, "best_epoch": 7, "validations": 2},
    "auto": {"loader": "dali-gpu", "graphs": False},
    "loader_auto": {"measured": {"dali-gpu": {}, "torchvision": {}}},
    "graphs_off": "many shapes",
}


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def train(
    console: Console, clock: Clock, *, steps: int = 60, step_s: float = 0.5
) -> Bar:
    with console.epoch(title="epoch 1/2", total=steps * 100) as bar:
        for step in range(1, steps + 1):
            clock.sleep(step_s)
            rate = 100 / step_s if step > 5 else None
            bar.update(samples=step * 100, rate=rate, loss=3.0 / step, wait_ms=0.31)
    return bar


def test_a_pipe_gets_a_line_each_ten_seconds_and_one_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    train(Console(stream=stream, clock=clock), clock)
    lines = stream.getvalue().splitlines()
    assert [line.split()[3].split("/")[0] for line in lines] == [
        "2,000",
        "4,000",
        "6,000",
        "6,000",
    ]
    assert lines[0] == (
        "epoch 1/2   33%  2,000/6,000 img  200 img/s  loss 0.150  wait 0.3 ms/step  eta 20 s"
    )
    assert lines[-1].endswith("in 30 s")


def test_a_terminal_gets_one_bar_that_is_redrawn_at_most_five_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    stream, clock = Terminal(), Clock()
    console = Console(stream=stream, clock=clock)
    with console.epoch(title="epoch 1/1", total=10):
        console.warn("cannot be decoded: [red]a[/red].jpg " + "x" * 90)
    train(console, clock, steps=1000, step_s=0.01)
    drawn = stream.getvalue()
    text = without_colours(drawn)
    assert "no step is over yet" in text, "from the first second"
    assert 40 <= len(re.findall(r"wait 0\.3 ms", drawn)) <= 60, "ten seconds"
    last = text.rstrip().splitlines()[-1].split("\r")[-1].rstrip()
    assert re.match("epoch 1/2 ━.* 100%  10,000 img/s .* in 10 s$", last)
    assert len(last) <= 80
    assert "warning: cannot be decoded: [red]a[/red].jpg " + "x" * 90 in text
    monkeypatch.setenv("CI", "true")
    train(Console(stream=stream, clock=clock), clock)
    assert "\x1b" not in stream.getvalue().removeprefix(drawn)


def test_the_result_fits_80_columns_and_names_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("some runs/latest")
    folder.mkdir(parents=True)
    for name in ("results.png", "mistakes.png", "summary.json"):
        (folder / name).touch()
    stream = io.StringIO()
    Console(stream=stream).result(SUMMARY, KIND, folder=folder)
    text = stream.getvalue()
    table, _, commands = text.partition("run folder:")
    assert max(len(line) for line in table.splitlines()) == 80 and commands
    for line in (
        "top-1             91.30%   (top-5 99.10%   loss 0.3120)",
        "best              92.00% after epoch 7: some runs/latest/best.pt",
        "stopped early     after epoch 9 (--patience): 2 validations no better than 7's",
        "left out          80 samples (1.00%), the tails of epochs: less than a step",
        "chosen by auto    loader dali-gpu (fastest of 2); graphs off (many shapes)",
        "rate              17,907 img/s   (17,100 to 18,020 in 23 windows)",
        "efficiency        94.8% of the lower ceiling",
        "bound by          contention",
        "data wait         1.23 ms a step, 4.5% of the time",
        "not decoded       2 samples, see failed.txt",
        "run folder:   some runs/latest",
        "pictures:     mistakes.png, results.png",
        "predict:      python train.py --predict FOLDER --resume 'some runs/latest/best.pt'",
        "export:       python -m scripts.export 'some runs/latest/best.pt'",
        "TensorBoard:  tensorboard --logdir 'some runs'",
    ):
        assert f"{line}\n" in text, line
    assert "change first" in text and "each is faster alone" in text


def test_the_next_commands_are_those_that_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    own = SUMMARY | {"arch": "mine:net"}
    Console(stream=stream).result(own, KIND, folder=tmp_path)
    text = stream.getvalue()
    assert text.count("best.pt' --arch mine:net\n") == 2, "to predict and to export"
    toy = type("Toy", (type(KIND),), {"predicting": TaskKind.predicting})()
    Console(stream=stream).result(SUMMARY, toy, folder=tmp_path)
    assert "predict:" not in stream.getvalue().removeprefix(text)


@pytest.mark.parametrize("task", TASKS)
def test_the_command_to_export_is_there_for_what_is_exported(
    task: str, tmp_path: Path
) -> None:
    for arch, boxes in (("own", True), ("maskrcnn_resnet50_fpn", False)):
        stream = io.StringIO()
        summary = SUMMARY | {"task": task, "arch": arch}
        Console(stream=stream).result(summary, KIND, folder=tmp_path)
        assert ("export:" in stream.getvalue()) == (task in EXPORTED and boxes)


def test_what_was_not_measured_is_a_dash_or_left_out() -> None:
    nothing: dict[str, Any] = {
        "rate": None,
        "validation": {"top1": None},
        "data_wait": None,
        "ceiling": {"compute": None},
    }
    names = ["top-1", "rate", "compute ceiling", "loader ceiling", "efficiency"]
    names += ["bound by", "data wait"]
    assert rows(nothing, KIND)[:-1] == [(name, "-") for name in names]
    validation = {"top1": 0.5, "top5": 1.0, "loss": 0.25, "samples": 50_000}
    alone = {"samples": 1_281_167, "validation": validation}
    told = "50.00%   (top-5 100.00%   loss 0.2500)   of 50,000 samples"
    assert rows(alone, KIND) == [("top-1", told)]


def test_quiet_says_only_warnings_and_the_table() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream=stream, clock=clock, quiet=True)
    console.info("a line")
    train(console, clock)
    console.warn("attention")
    console.result(SUMMARY, KIND)
    said = stream.getvalue()
    assert said.startswith("warning: attention") and "change first" in said
    assert "epoch 1/2" not in said


def test_a_closed_pipe_ends_the_talking_not_the_run() -> None:
    inner, outer = os.pipe()
    os.close(inner)
    stream = os.fdopen(outer, "w", buffering=1)
    console = Console(stream=stream)
    console.info("a line that nobody reads")
    console.warn("another one")
    console.result(SUMMARY, KIND)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_a_text_that_cannot_be_shown_ends_no_talking() -> None:
    raw = io.BytesIO()
    console = Console(stream=io.TextIOWrapper(raw, encoding="ascii"))
    console.info("half of a letter: \udcff, bild-ä.jpg")
    console.warn("class \x1b]0;title\x07" + 900_000 * "x" + "; leave it out")
    said = raw.getvalue()
    assert rb"half of a letter: \xff, bild-?.jpg" in said
    assert rb"class \x1b]0;title\x07" in said and b"\x1b]0" not in said
    assert len(said) < 10_000 and b"x; leave it out" in said
