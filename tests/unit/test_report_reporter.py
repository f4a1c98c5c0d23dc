"""What a run says of figures that are whole numbers, missing or not to be believed."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contracts import Counts, Pixels, RateWindow, Reported
from engine.distributed import ProcessWorld
from report.console import Console, rows
from report.hardware import Sampler
from report.meter import Meter
from report.record import Record
from report.reporter import SAID, Reporter
from tasks.classification import KIND

CPU = torch.device("cpu")


class Told:
    """A reporter of rank 0 in `folder`, and what it said."""

    def __init__(
        self,
        folder: Path,
        resumed_at: int | None = None,
        task: Reported = KIND,
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
                "title": "a",
                "config": "",
                **about,
            },
            task=task,
            compared=(),
            pixels=Pixels(),
            resumed_at=resumed_at,
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


def test_whole_numbers_are_whole(told: Told) -> None:
    told.reporter.validated(RESULT, step=3, epoch=1)
    told.reporter.validated(RESULT, step=3, epoch=None)
    _, second, alone = told.stream.getvalue().splitlines()
    assert (
        second
        == "validated epoch 2: top1 50.00%  top5 75.00%  loss 1.25  samples 50,000"
    )
    assert alone == "validated: top1 50.00%  top5 75.00%  loss 1.25  samples 50,000"


def test_a_row_has_the_figures_that_best_may_be_of(told: Told) -> None:
    told.reporter.validated(RESULT, averaged=RESULT | {"top1": 0.625}, step=3, epoch=0)
    (row,) = csv.DictReader((told.folder / "results.csv").read_text().splitlines())
    assert (row["top1"], row["ema_top1"]) == ("0.5", "0.625")


@pytest.mark.parametrize("samples", [0, 7])
def test_a_mean_over_no_loss_is_left_out(told: Told, samples: int) -> None:
    none = {"loss": 0.0, "samples": samples, "losses_not_finite": samples}
    told.reporter.validated(RESULT | none, step=3, epoch=0)
    assert "loss 0" not in told.stream.getvalue()
    assert "loss" not in told.points()[0]
    summary = told.finish()
    assert (
        "loss" not in summary["validation"] and "0.0000" not in told.stream.getvalue()
    )


def test_a_loss_of_no_sample_does_not_count(told: Told) -> None:
    def train(*losses: float) -> str:
        points = [
            {
                "step": step,
                "lr": 0.1,
                "loss": loss,
                "grad_norm": math.nan,
                "loss_scale": 1.0,
            }
            for step, loss in enumerate(losses)
        ]
        progress = {"epoch": 0, "consumed": 8}
        with told.reporter.epoch(0, 1, 8, 0):
            told.reporter.train(
                points, progress=progress, skipped_steps=0, phases={}, steps=[]
            )
        return told.stream.getvalue().splitlines()[-1]

    assert "loss" not in train(math.nan, math.nan)
    assert "loss 1.500" in train(1.0, math.nan, 2.0)
    assert told.points()[0]["losses"] == ["nan", "nan"]


def test_samples_that_failed_are_all_in_a_file_and_the_first_are_said(
    told: Told,
) -> None:
    told.reporter.failed("train", [f"{i}.jpg" for i in range(SAID)])
    said = told.stream.getvalue()
    assert said.count("cannot be decoded, left out: ") == SAID and "more" not in said
    told.reporter.failed("val", [f"{i}.jpg" for i in range(SAID + 2)])
    said = " ".join(told.stream.getvalue().removeprefix(said).split())
    assert "4.jpg" in said and "5.jpg" not in said and "and 2 more, in " in said
    lines = (told.folder / "failed.txt").read_text().splitlines()
    assert lines == [
        *(f"train\t{i}.jpg" for i in range(SAID)),
        *(f"val\t{i}.jpg" for i in range(SAID + 2)),
    ]


@pytest.mark.parametrize(
    ("loader", "advice"), [(object(), "go on with: python "), (None, "run it again")]
)
def test_what_to_do_after_a_stop(told: Told, loader: Any, advice: str) -> None:
    told.finish(finished=False, loader=loader)
    assert f"stopped at step 3; {advice}" in told.stream.getvalue()


def test_a_failed_check_names_no_bound(told: Told) -> None:
    told.meter.windows.append(
        RateWindow(samples=110, own_samples=110, seconds=1.0, epoch=0)
    )
    told.meter.add(110)
    ceiling = {"rate": 100.0, "spread": None}
    told.reporter.ceilings(compute=ceiling, loader={**ceiling, "rate": 500.0}, step=1)
    summary = told.finish()
    assert (summary["bound"], summary["check"]) == (
        None,
        "failed: efficiency above 103 %",
    )
    said = told.stream.getvalue()
    assert "\nbound by          -\n" in said and "Measure again" in said


def test_the_gpus_of_all_ranks_are_in_the_summary(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    load: dict[str, float | None] = dict.fromkeys(Sampler.NAMES)
    monkeypatch.setattr(
        told.reporter._sampler,
        "read",
        lambda: load | {"power_w": 200.0, "gpu_utilisation": 0.5},
    )
    told.reporter.window(
        RateWindow(samples=10, own_samples=5, seconds=2.0, epoch=0),
        step=1,
        mib_per_s=1.0,
    )

    def both(own: Any) -> list[Any]:
        return (
            [own, own | {"power_w": 600.0, "utilisation": 1.0}]
            if isinstance(own, dict)
            else [own, own]
        )

    monkeypatch.setattr(told.world, "gather", both)
    summary = told.finish()
    gpu = summary["gpu"]
    assert (gpu["power_w"], gpu["utilisation"], gpu["sm_mhz"]) == (400.0, 0.75, None)


def test_a_run_that_was_over_keeps_its_rate_in_hparams(told: Told) -> None:
    earlier = {"rate": {"steady": 80.0}, "efficiency": 0.75, "validation": {}}
    (told.folder / "summary.json").write_text(json.dumps(earlier))
    told.finish()
    told.reporter.close()
    events = EventAccumulator(str(told.folder)).Reload()
    for name, value in (
        ("samples_per_s", 80.0),
        ("per_gpu", 80.0),
        ("efficiency", 0.75),
    ):
        point = events.Scalars(f"throughput/{name}")[-1]
        assert (point.step, point.value) == (4, value)


@pytest.mark.parametrize("earlier", [None, {"top1": 0.25}, {"top1": 0.5}])
def test_a_run_that_was_over_has_the_validation_of_its_last_line(
    earlier: dict[str, Any] | None, tmp_path: Path
) -> None:
    """A kill behind the last save leaves a summary of an earlier part, or none."""
    figures = {"top1": 0.5, "ema_loss": math.inf, "samples": 12}
    first = Record(tmp_path)
    for step, top1 in (
        (1, 0.25),
        (3, 0.5),
        (5, 0.75),
    ):  # the last one is behind the checkpoint
        first.point(
            "val", step, {"epoch": step, **figures, "top1": top1, "failed": [7]}
        )
    if earlier:
        whole = {
            "rate": {"steady": None},
            "efficiency": None,
            "validation": earlier,
            "validation_s": {"pass": 1},
        }
        first.summary(whole)
    first.close()
    told = Told(tmp_path, resumed_at=3)
    assert told.finish()["validation"] == figures
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (
        found["validation"] == {**figures, "ema_loss": "inf"}
        and found["validation_s"] is None
    )
    told.reporter.close()


def test_host_memory_is_all_ranks_though_no_sample_was_read(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("report.reporter.host_gib", lambda: 1.5)
    monkeypatch.setattr(told.world, "sum", lambda values: 2 * values)
    assert told.finish()["memory"]["host_gib"] == 3.0


def test_what_was_refused_and_why(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    told.reporter._description["clip_frames"] = 4
    sorts = {"h264 in ts": 3, "h264 in mp4, refused": 2}
    why = {"h264 in mp4, refused": "3 of 4 frames did not come"}
    own = Counts(decoded=6, delivered=4, fallbacks=Counter(sorts), refusals=why)
    later = {"h264 in mp4, refused": "late", "vp9 in mkv, refused": "no"}
    other = Counts(fallbacks=Counter(sorts), refusals=later)
    vp8 = "vp8 in mkv, refused"
    validation = Counts(fallbacks=Counter([vp8]), refusals={vp8: "why"})
    told.reporter._validation_counts = validation
    monkeypatch.setattr(
        told.world,
        "gather",
        lambda mine: [mine, (other, replace(validation, refusals={}))],
    )
    loader: Any = SimpleNamespace(counts=own)
    clips = told.reporter._clips(loader, 10.0)
    assert clips is not None and clips["decoded_per_delivered"] == 1.5
    assert clips["fallbacks"] == {"h264 in ts": 6, "h264 in mp4, refused": 4}
    assert clips["refusals"] == {**later, **why}
    assert (clips["val_fallbacks"], clips["val_refusals"]) == ({vp8: 2}, {vp8: "why"})
    lines = dict(rows({"clips": clips}, KIND))
    assert (
        lines["fallback"]
        == "10 clips by pyav instead (6 h264 in ts; 4 h264 in mp4, refused)"
    )
    refused = [
        value for name, value in rows({"clips": clips}, KIND) if name == "refused"
    ]
    assert refused == ["h264 in mp4: 3 of 4 frames did not come", "vp9 in mkv: no"]
