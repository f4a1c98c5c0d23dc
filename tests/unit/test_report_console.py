"""What a person sees, through a real pseudo-terminal and through a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from saturate.report.console import Bar, Console
from saturate.report.facts import rows
from saturate.report.words import ends
from saturate.settings.config import build
from saturate.tasks import kind_of
from saturate.tasks.classification import KIND
from saturate.tasks.kind import TaskKind
from tests.unit.test_meter import Clock

ROOT = Path(__file__).parents[2]
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
    "checkpoint": "some runs/latest/best.pt",
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
    # of the whole epoch: a mean of 3, 3/2, ... 3/60
    assert lines[-1].endswith("loss 0.234  wait 0.3 ms/step  in 30 s")


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


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (80, "12%  200 img/s  loss 0.150$"),
        (120, "12%  200 img/s  loss 0.150  wait 0.3 ms/step$"),
    ],
)
def test_a_bar_of_a_run_says_when_the_run_ends(
    columns: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6,000 of 50,000 samples at 200 a second, and for each second of training half a second of validation."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)

    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Noon:
            return cls(2026, 11, 28, 12, 0)

    monkeypatch.setattr("saturate.report.words.datetime", Noon)
    stream, clock = Terminal(), Clock()
    of_run: dict[str, Any] = {
        "total": 50_000,
        "first": 4_000,
        "rate": 100.0,
        "stretch": 1.5,
    }
    with Console(stream=stream, clock=clock).epoch(title="epoch 3/50", **of_run) as bar:
        clock.sleep(1)
        bar.update(samples=6_000, rate=200.0, loss=0.15, wait_ms=0.31)
        drawn = re.split(r"[\r\n]+", without_colours(stream.getvalue()))
    began, *_, last = (picture.rstrip() for picture in drawn if "run" in picture)
    assert began.startswith("epoch 3/50 · run 11:30 min left, ends 12:11 ━")
    assert last.startswith("epoch 3/50 · run 5:30 min left, ends 12:05 ━")
    assert re.search(words, last) and len(last) <= columns
    bar.update(samples=6_000)
    title, _ = bar.summary(ended=True)
    assert title == "epoch 3/50"
    assert ends(25 * 3600 + 20 * 60) == "Sun 13:20"


def test_the_result_fits_80_columns_and_names_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("some runs/latest")
    folder.mkdir(parents=True)
    for name in ("results.png", "val_batch.jpg", "summary.json", "report.html"):
        (folder / name).touch()
    stream = io.StringIO()
    Console(stream=stream).result(SUMMARY, KIND, folder=folder)
    text = stream.getvalue()
    table, _, commands = text.partition("run folder:")
    assert max(len(line) for line in table.splitlines()) == 80 and commands
    for line in (
        "top-1             91.30%   (top-5 99.10%   loss 0.3120)",
        "best              92.00% after epoch 7: some runs/latest/best.pt",
        "stopped early     after epoch 9: 2 validations no better than epoch 7's",
        "                  (--patience)",
        "left out          80 samples (1.00%), the tails of epochs: less than a step",
        "chosen by auto    loader dali-gpu (fastest of 2); graphs off (many shapes)",
        "rate              17,907 img/s   (17,100 to 18,020 in 23 windows)",
        "efficiency        94.8% of the lower ceiling",
        "bound by          contention",
        "data wait         1.23 ms a step, 4.5% of the time",
        "not decoded       2 samples, see failed.txt",
        "run folder:   some runs/latest",
        "pictures:     results.png, val_batch.jpg",
        "report:       some runs/latest/report.html",
        f"predict:      python {ROOT}/train.py --predict FOLDER --resume 'some runs/latest/best.pt'",
        f"export:       python {ROOT}/scripts/export.py 'some runs/latest/best.pt'",
        "TensorBoard:  tensorboard --logdir 'some runs'",
    ):
        assert f"{line}\n" in text, line
    assert "change first" in text and "each is faster alone" in text


def test_a_run_begins_with_what_was_chosen_and_why_and_what_it_leaves_out() -> None:
    stream = io.StringIO()
    about = SUMMARY | {
        "title": "resnet18 · CPU",
        "limits": {"left out": "few", "a": ""},
    }
    Console(stream=stream).begin(about)
    assert stream.getvalue().splitlines() == [
        "resnet18 · CPU",
        "chosen by auto    loader dali-gpu (fastest of 2); graphs off (many shapes)",
        "left out          few",
    ]
    Console(stream=stream, quiet=True).begin(about)
    assert stream.getvalue().count("\n") == 3


def test_the_next_commands_are_those_that_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    own = SUMMARY | {"arch": "mine:net"}
    Console(stream=stream).result(own, KIND, folder=tmp_path)
    text = stream.getvalue()
    assert text.count("best.pt' --arch mine:net\n") == 2, "to predict and to export"
    # of tasks that have no predictions, and of one that says anew what a batch means
    points = build({"task": "detection", "arch": "keypointrcnn_resnet50_fpn"})
    none = type("None", (type(KIND),), {"predicting": TaskKind.predicting})()
    anew = type("Anew", (type(KIND),), {"tasks": lambda *_: ()})()
    for kind in (none, anew, kind_of(points)):
        Console(stream=stream).result(SUMMARY, kind, folder=tmp_path)
        assert "predict:" not in stream.getvalue().removeprefix(text)
    assert kind_of(build({"multi_label": True})).predicts
    assert kind_of(build({})).figures[0].name == "top1"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("average", "the average of the weights (--ema), as predictions are"),
        ("network", "the network's own weights, not their average (--ema)"),
    ],
)
def test_an_evaluation_begins_with_what_its_checkpoint_is_of(
    of: str, said: str
) -> None:
    both = {"top1": 0.25, "samples": 8, "ema_top1": 0.5, "ema_samples": 8}
    lines = [
        ("top-1 of network", "25.00%   of 8 samples"),
        ("top-1 of average", "50.00%   of 8 samples"),
    ]
    evaluated = {"validation": both, "evaluated": {"of": of}}
    told = rows(evaluated, KIND)
    assert told[:2] == lines[:: 1 if of == "network" else -1]
    assert told[2] == ("checkpoint is of", said)
    # of a run the last validation is the network's, and best.pt may be of the other one
    best = SUMMARY["best"] | {"of": "average"}
    trained = rows(SUMMARY | {"validation": both, "best": best}, KIND)
    assert trained[:2] == lines
    assert trained[2][1].startswith("92.00% after epoch 7, of the average: ")


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


def test_a_run_has_a_duration_and_what_it_cost() -> None:
    took: dict[str, Any] = {"duration_s": 3000.0}
    said = "50:00 min"
    assert dict(rows(SUMMARY | took, KIND))["duration"] == said
    # 50 minutes of two GPUs at 3 dollars an hour
    told = dict(rows(SUMMARY | took | {"dollars": 5.0}, KIND))["duration"]
    assert told == f"{said}, $5 of GPUs"


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
