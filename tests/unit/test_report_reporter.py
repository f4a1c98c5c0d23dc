"""What a run says of figures that are whole numbers, missing or not to be believed."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from saturate.contracts import Counts, Pixels, RateWindow, Reported
from saturate.engine.distributed import ProcessWorld
from saturate.report import advice, facts, summary
from saturate.report.console import Console
from saturate.report.facts import rows
from saturate.report.hardware import Sampler
from saturate.report.meter import Meter
from saturate.report.record import Record
from saturate.report.reporter import Reporter
from saturate.system.timeline import Timeline
from saturate.tasks.classification import KIND
from tests.unit.test_report_tensorboard import read

CPU = torch.device("cpu")


class Told:
    """A reporter of rank 0 in `folder`, and what it said."""

    def __init__(
        self,
        folder: Path,
        resumed_at: int | None = None,
        task: Reported = KIND,
        classes: Sequence[str] = (),
        validates_anew: bool = False,
        **about: Any,
    ) -> None:
        self.folder, self.stream, self.world = folder, io.StringIO(), ProcessWorld(CPU)
        self.console = Console(stream=self.stream)
        self.meter = Meter(self.world, min_window_s=1.0, synchronise=lambda: None)
        self.reporter = Reporter(
            folder,
            world=self.world,
            console=self.console,
            meter=self.meter,
            description={
                "hardware": {"cores": 2.0},
                "settings": {},
                "asked": {},
                "title": "a",
                "config": "",
                **about,
            },
            task=task,
            compared=(),
            pixels=Pixels(),
            resumed_at=resumed_at,
            classes=classes,
            validates_anew=validates_anew,
        )

    def finish(self, *, finished: bool = True, **more: Any) -> dict[str, Any]:
        progress = {"epoch": 1, "step": 3, "dropped": 0, "samples": 12, "lost": 1}
        return self.reporter.finish(
            progress=progress, failed=set(), finished=finished, **more
        )

    def points(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in (self.folder / "metrics.jsonl").read_text().splitlines()
        ]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.reporter.close()


RESULT = {
    "top1": 0.5,
    "top5": 0.75,
    "loss": 1.25,
    "samples": 50_000,
    "losses_not_finite": 0,
    "failed": [],
}


def test_a_validation_is_said_kept_and_a_row(told: Told) -> None:
    told.reporter.validated(RESULT, step=2, epoch=0)
    averaged = RESULT | {"top1": 0.625, "loss": 1.5}
    told.reporter.validated(RESULT, averaged=averaged, step=3, epoch=1, best="average")
    _, first, second = told.stream.getvalue().splitlines()
    figures = "top1 50.00%  top5 75.00%  loss 1.25  samples 50,000"
    assert first == f"validated epoch 1: {figures}"
    both = "top1 50.00% (62.50%)  top5 75.00% (75.00%)  loss 1.25 (1.5)  samples 50,000"
    said = f"validated epoch 2, network (average): {both}  best.pt is of the average"
    assert second == said
    _, row = csv.DictReader((told.folder / "results.csv").read_text().splitlines())
    assert (row["top1"], row["ema_top1"]) == ("0.5", "0.625")


def test_what_validations_say_of_the_learning_is_in_the_summary(
    tmp_path: Path,
) -> None:
    """Those before a resume, too."""
    fewest = {"class": "cat", "samples": 7}
    for part, losses in enumerate(([1.0, 0.5], [0.7, 0.8])):
        told = Told(tmp_path, 2 if part else None, learning={"fewest": fewest})
        for at, loss in enumerate(losses, start=2 * part):
            answer = {"extras": {"learning": {"one_answer": f"{at}"}}}
            told.reporter.validated(
                RESULT | {"loss": loss} | answer, step=at + 1, epoch=at
            )
        found = told.finish(finished=False)["learning"]
        told.reporter.close()
    assert found == {
        "overfits": {"epoch": 2, "least": 0.5, "last": 0.8},
        "fewest": fewest,
        "bicubic": None,
        "one_answer": "3",
    }
    assert "now" not in json.loads((tmp_path / "summary.json").read_text())


def test_an_evaluation_has_the_figure_that_its_checkpoint_is_of() -> None:
    both = {"top1": 0.25, "ema_top1": 0.5}
    for of, value in (("network", 0.25), ("average", 0.5)):
        used = {"of": of, "checkpoint": "best.pt"}
        found = summary.evaluated(used, both, KIND.figures[0])
        assert found == {"evaluated": used | {"figure": "top1", "value": value}}
    assert summary.evaluated({}, both, KIND.figures[0]) == {}


def test_the_checkpoint_that_comes_next(tmp_path: Path) -> None:
    """It is what was evaluated, else best.pt, else last.pt of a run that has trained."""
    ended: dict[str, Any] = {"steps": 3}
    assert summary.checkpoint(ended, tmp_path) is None
    (tmp_path / "last.pt").touch()
    last = str(tmp_path / "last.pt")
    assert summary.checkpoint(ended, tmp_path) == last
    assert summary.checkpoint({"steps": 0}, tmp_path) is None, "--evaluate --weights"
    ended["best"] = {"checkpoint": "best.pt"}
    assert summary.checkpoint(ended, tmp_path) == "best.pt"
    ended["evaluated"] = {"checkpoint": last}
    assert summary.checkpoint(ended, tmp_path) == last


def test_a_row_behind_a_resume_has_what_was_before_the_stop(tmp_path: Path) -> None:
    record = Record(tmp_path)
    for step, losses in ((1, [9.0]), (3, [math.nan, 3.0]), (4, [5.0]), (5, [7.0])):
        record.point("train", step, {"losses": losses, "lrs": [0.5, step]})
        record.point("window", step, {"rate": 10.0 * step})
        if step == 1:
            record.point("val", step, RESULT)
    record.close()
    told = Told(tmp_path, resumed_at=4)
    with told.reporter.validation(1):
        pass
    # its figures come in the background, when the next epoch has had a window
    told.reporter.window(RateWindow(10, 5, seconds=2.0, epoch=2), step=5, mib_per_s=0.0)
    told.reporter.validated(RESULT, step=4, epoch=1)
    with told.reporter.validation(1):
        pass
    told.reporter.validated(RESULT, step=6, epoch=2)
    # an epoch that was shorter than a window
    with told.reporter.validation(1):
        pass
    told.reporter.validated(RESULT, step=7, epoch=3)
    told.reporter.close()
    row, following, short = csv.DictReader(
        (tmp_path / "results.csv").read_text().splitlines()
    )
    assert [row[name] for name in ("train_loss", "lr", "rate")] == ["4.0", "4", "40.0"]
    assert (following["rate"], short["rate"]) == ("5.0", "")


def test_a_mean_over_no_loss_is_left_out(told: Told) -> None:
    none = {"loss": 0.0, "samples": 7, "losses_not_finite": 7}
    told.reporter.validated(RESULT | none, step=3, epoch=0)
    assert "loss" not in told.points()[0]
    assert "loss" not in told.finish()["validation"]
    assert "loss 0" not in told.stream.getvalue()


def test_a_failed_check_names_no_bound(told: Told) -> None:
    told.meter.windows.append(RateWindow(110, 110, seconds=1.0, epoch=0))
    told.meter.add(110)
    told.reporter.ceilings(compute={"rate": 100.0}, loader={"rate": 500.0}, step=1)
    # measured again, the larger one stands
    told.reporter.ceilings(compute={"rate": 90.0}, loader={"rate": 600.0}, step=1)
    assert told.reporter.above_ceiling()
    found = told.finish()
    failed = "failed: efficiency above 103 %"
    assert (found["bound"], found["check"]) == (None, failed)
    rates = {name: one["rate"] for name, one in found["ceiling"].items()}
    assert rates == {"compute": 100.0, "loader": 600.0}
    said = told.stream.getvalue()
    assert "\nbound by          -\n" in said and "Measure again" in said


def test_the_gpus_of_all_ranks_are_in_the_summary(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    load: dict[str, float | None] = dict.fromkeys(Sampler.NAMES)
    load |= {"power_w": 200.0, "gpu_utilisation": 0.5, "other_cores": 9.3}
    monkeypatch.setattr(told.reporter._sampler, "read", lambda: load)
    window = RateWindow(10, 5, seconds=2.0, epoch=0)
    told.reporter.window(window, step=1, mib_per_s=1.0)

    def both(local: Any) -> list[Any]:
        other = local
        if isinstance(local, dict):
            its: dict[str, Any] = {"gpu.power_w": 600.0, "gpu.utilisation": 1.0}
            its["gpu.shared"] = {"busy": 0.7, "who": []}
            other = local | its | {"memory.host_gib": 2.5}
        return [local, other]

    shared: dict[str, Any] = {"busy": 0.61, "who": [7]}
    compute: dict[str, Any] = {"rate": 20.0, "shared": shared}
    told.reporter.ceilings(compute=compute, loader={"rate": 30.0}, step=1)
    monkeypatch.setattr(told.world, "gather", both)
    monkeypatch.setattr("saturate.report.reporter.host_gib", lambda: 1.5)
    found = told.finish()
    gpu = {"power_w": 400.0, "utilisation": 0.75, "sm_mhz": None, "throttled": None}
    worst = {"rank": 1, "busy": 0.7, "who": []}
    assert found["gpu"] == gpu | {"shared": worst}
    assert found["cpu"]["others"] == 9.3 == found["ceiling"]["loader"]["other_cores"]
    assert found["memory"]["host_gib"] == 4.0, "though no sample of it was read"


def test_what_if_is_of_the_rank_that_the_others_wait_for(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = {"read": {"share": 0.9, "ms": 9.0, "cpu_ms": 0.0}}
    late = {"data_wait": 9.0, "stages": its}

    def both(local: Any) -> list[Any]:
        ranks = isinstance(local, dict) and "slowest_rank" in local
        return [local, local | {"slowest_rank": late} if ranks else local]

    seen = []
    monkeypatch.setattr(told.world, "gather", both)
    monkeypatch.setattr(
        "saturate.report.what_if.predictions",
        lambda values: seen.append(values["stages"]),
    )
    found = told.finish()
    assert found["slowest_rank"]["rank"] == 1
    assert seen == [its] and found["stages"] == {}


@pytest.mark.parametrize("earlier", [None, {"top1": 0.25}])
def test_a_run_that_was_over_keeps_its_rate_and_has_its_last_validation(
    earlier: dict[str, Any] | None, tmp_path: Path
) -> None:
    """A kill behind the last save leaves a summary of an earlier part, or none."""
    figures = {"top1": 0.5, "ema_loss": math.inf, "samples": 12}
    first = Record(tmp_path)
    # the last one is behind the checkpoint
    for step, top1 in ((1, 0.25), (3, 0.5), (5, 0.75)):
        line = {"epoch": step, **figures, "top1": top1, "failed": [7]}
        first.point("val", step, line)
    if earlier:
        whole = {"rate": {"steady": 80.0}, "efficiency": 0.75, "validation": earlier}
        first.summary(whole | {"validation_s": {"pass": 1}, "steps": 1})
    first.close()
    told = Told(tmp_path, resumed_at=3)
    found = told.finish()
    assert (found["steps"], found["samples"]) == (3, 11), "what was trained since"
    assert found["validation"] == figures
    told.reporter.close()
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["validation"] == {**figures, "ema_loss": "inf"}
    assert written["validation_s"] is None
    if earlier:
        events = read(told.folder)
        rates = {"samples_per_s": 80.0, "per_gpu": 80.0, "efficiency": 0.75}
        for name, value in rates.items():
            point = events.Scalars(f"throughput/{name}")[-1]
            assert (point.step, point.value) == (4, value)


def test_what_was_refused_and_why() -> None:
    refused, vp8 = "h264 in mp4, refused", "vp8 in mkv, refused"
    sorts = Counter({"h264 in ts": 3, refused: 2})
    own = Counts(decoded=6, delivered=4, fallbacks=sorts, refusals={refused: "early"})
    other = Counts(fallbacks=sorts, refusals={refused: "late", vp8: "no"})
    validation = Counts(fallbacks=Counter([vp8]), refusals={vp8: "why"})
    of_run = {"frames": 4, "rate": 10.0}
    clips = facts.clips(
        [
            {**of_run, "training": own, "validation": validation},
            {**of_run, "training": other, "validation": Counts()},
        ]
    )
    assert clips == {
        "frames": 4,
        "frames_per_s": 40.0,
        "decoded_per_delivered": 1.5,
        "fallbacks": {"h264 in ts": 6, refused: 4},
        "refusals": {refused: "early", vp8: "no"},
        "val_fallbacks": {vp8: 1},
        "val_refusals": {vp8: "why"},
    }
    lines = dict(rows({"clips": clips}, KIND))
    assert lines["frames"] == "40 frame/s   (1.50 decoded for each)"
    assert lines["fallback"].startswith("10 clips by pyav instead (6 h264 in ts; 4 h26")


# --- minutes and dollars ------------------------------------------------------------------------------------------


class Simulated:
    """A run of 16 epochs as FFCV's, whose images grow, on a clock of its own. A step takes a share of its time as
    it has pixels, and the rest whatever size they have.
    """

    STEPS, SAMPLES, SIZES = 100, 25_600, [160] * 12 + [176] + [192] * 3

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, of_pixels: float
    ) -> None:
        self.now, self.of_pixels = 0.0, of_pixels
        about: dict[str, Any] = {"epoch_samples": self.SAMPLES}
        self.told = Told(folder, settings={"gpu_price": 3.0}, **about)
        reporter, world = self.told.reporter, self.told.world
        clock = self.clock = lambda: self.now
        reporter._meter = self.meter = Meter(
            world, min_window_s=2.0, synchronise=lambda: None, clock=clock
        )
        monkeypatch.setattr(reporter._timeline, "passed_s", clock)
        monkeypatch.setattr(reporter, "_joules", lambda: 500 * self.now)

    def epoch(self, side: int, epoch: int) -> None:
        if epoch and side != self.SIZES[epoch - 1]:
            self.meter.begin_anew()
        self.meter.resume(epoch)
        pixels = (side / 160) ** 2
        for step in range(self.STEPS):
            # the first steps of an epoch wait for the loader
            waits = 1.5 if step < 3 else 1
            self.now += 0.1 * waits * (1 + self.of_pixels * (pixels - 1))
            self.meter.add(self.SAMPLES // self.STEPS)
            if self.meter.due():
                self.meter.point()
        self.meter.pause()
        with self.meter.pause_for("validation"):
            self.now += 3.0
        self.told.reporter.validated(RESULT, step=1, epoch=epoch)
        with self.meter.pause_for("checkpoint"):
            self.now += 0.7

    def run(self) -> list[float]:
        """Return what was predicted of the whole run's seconds, each time that it was said."""
        self.now = 12.0  # the start
        said: list[float] = []
        for epoch, side in enumerate(self.SIZES, 1):
            self.epoch(side, epoch - 1)
            later = self.SIZES[epoch:]
            rest = {one**2: float(count) for one, count in Counter(later).items()}
            if later:
                self.told.reporter.forecast(
                    side**2, rest, done=epoch, validations=len(later)
                )
            forecast = self.told.reporter._forecast
            if forecast and forecast["duration_s"] not in said:
                said.append(forecast["duration_s"])
        return said


def test_a_run_tells_after_its_first_epoch_what_all_of_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Simulated(tmp_path, monkeypatch, of_pixels=1.0)
    (said,) = run.run()
    told = run.told.finish()["forecast"]
    run.told.reporter.close()
    assert said == told["duration_s"] == pytest.approx(run.now, rel=0.03)
    assert told["kwh"] == pytest.approx(500 * run.now / 3.6e6, rel=0.03)
    assert told["dollars"] == pytest.approx(3 * run.now / 3600, rel=0.03)
    (line,) = (
        line
        for line in run.told.stream.getvalue().splitlines()
        if line.startswith("the run ends ")
    )
    assert " kWh, $" in line and line.endswith(" of GPUs in all")


def test_what_a_figure_has_taken_is_told(tmp_path: Path) -> None:
    told = Told(tmp_path, settings={"gpu_price": 3600.0})
    told.reporter.reached("top1=0.5", 4)
    summary = told.finish()
    told.reporter.close()
    reached = summary["reached"]
    assert (reached["figure"], reached["epoch"]) == ("top1=0.5", 5)
    assert reached["dollars"] == pytest.approx(reached["duration_s"])
    assert 0 < reached["duration_s"] <= summary["duration_s"]
    assert "reached top1=0.5 after epoch 5, " in told.stream.getvalue()


def test_a_loss_of_other_data_is_not_compared(tmp_path: Path) -> None:
    """Losses fall on each of two sets, of which the second is harder: nothing rises, after another resume either."""
    losses = [(1, 0.5), (2, 0.2)], [(3, 1.5), (4, 1.2)], [(5, 0.9)]
    for number, part in enumerate(losses):
        at = part[0][0] - 1 if number else None
        told = Told(tmp_path, at, validates_anew=number == 1)
        for step, loss in part:
            told.reporter.validated(RESULT | {"loss": loss}, step=step, epoch=step)
        values = told.finish(finished=False)
        told.reporter.close()
        assert advice.look_up(values, "learning.overfits") is None
    assert [one["loss"] for _, one in told.reporter._validations] == [1.5, 1.2, 0.9]


def test_attempts_that_were_killed_have_cost_what_they_have_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs for 100 s, killed; one for 50 s, killed before it saves; one for 30 s and
    one for 10 s, which are stopped. Each takes 1,000 W and costs a dollar a second.
    """
    clock = {"passed": 0.0}
    monkeypatch.setattr(Sampler, "energy_j", lambda _: 1000.0 * clock["passed"])
    monkeypatch.setattr(Timeline, "passed_s", lambda _: clock["passed"])
    used: list[tuple[float, float]] = []
    parts = [(2, 100.0, False), (1, 50.0, False), (1, 30.0, True), (1, 10.0, True)]
    for number, (gpus, seconds, ends) in enumerate(parts):
        clock["passed"] = 0.0
        told = Told(
            tmp_path, resumed_at=3 if number else None, settings={"gpu_price": 3600.0}
        )
        told.world.size = gpus
        clock["passed"] = seconds
        point = {"step": 3 + (number == 1), "lr": 0.1, "loss": 1.0}
        told.reporter.train(
            [point | {"grad_norm": 1.0, "loss_scale": 1.0}],
            progress={"epoch": 0, "consumed": 8},
            skipped_steps=0,
            phases={},
            steps=[],
        )
        if ends:
            told.reporter.reached("top1=0.5", 0)
            reached = told.finish(finished=False)["reached"]
            used.append((reached["kwh"] * 3600, reached["dollars"]))
        told.reporter.close()
    by_hand = [2 * 100 + 50 + 30, 2 * 100 + 50 + 30 + 10]
    assert used == [pytest.approx((one, one)) for one in by_hand]
