"""What a run leaves behind."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saturate.report.tensorboard import SETTINGS_FILE, layout, metrics
from saturate.settings.config import parse
from saturate.tasks import COMPARED
from saturate.tasks.classification import KIND
from tests.end_to_end.runs import Runner, kept, points, rows, summary
from tests.end_to_end.test_rates import check_rates
from tests.unit.test_report_tensorboard import read

FLAGS = """--loader torchvision --arch squeezenet1_1 --image-size 32 --batch-size 10 --workers 1 --epochs 2
    --lr 0.002 --ceilings true"""
WINDOWS = "--log-every 4 --min-window-s 0.05 --output run"
STEPS = 20
"""The last one of an epoch has 6 samples."""
KINDS: dict[str, Any] = {
    "text": str,
    "whole": int,
    "number": (int, float),
    "list": list,
}
CONTRACT = """
text task arch loader precision command versions.python versions.torch versions.torchvision hardware.cpu
text rate.unit best.figure best.checkpoint
whole world_size batch_size epochs steps samples samples_dropped best.epoch rate.spread.n
list samples_failed rate.per_rank
number efficiency hardware.cores rate.steady rate.spread.min rate.spread.max rate.spread.iqr
number ceiling.compute.rate ceiling.compute.spread.n ceiling.loader.rate ceiling.loader.spread.n
number duration_s goodput.share goodput.seconds.steps goodput.seconds.start goodput.seconds.scan
number data_wait.ms data_wait.share validation.top1 validation.ece validation.loss best.value
number validation_s.loader validation_s.pass validation_s.score validation_s.waited memory.host_gib
here bound rate.first_epoch memory.allocated_gib memory.reserved_gib memory.device_gib
here gpu.utilisation gpu.power_w cpu.utilisation cpu.steal
"""
"""Keys of summary.json, by what their value is; those that are `here` may be null."""
TAGS = """
throughput/samples_per_s throughput/per_gpu throughput/compute_ceiling throughput/loader_ceiling
throughput/efficiency time/data_wait_ms time/forward_ms time/backward_ms time/update_ms train/loss train/lr
train/grad_norm train/loss_scale train/skipped_steps val/top1 val/ece val/loss memory/host_gib io/mib_per_s
"""


@pytest.fixture(scope="module")
def run(of_module: Runner, pictures: Path) -> Runner:
    """A run in folder `run`."""
    of_module("--data", pictures, f"{FLAGS} {WINDOWS}").done()
    return of_module


def test_files(run: Runner) -> None:
    names = sorted(path.name for path in (run.cwd / "run").iterdir())
    events = [name for name in names if name.startswith("events.out.tfevents.")]
    assert len(events) == 2 and events[0] == SETTINGS_FILE
    left = "best.pt classes.csv config.yaml confusion.csv confusion.png last.pt metrics.jsonl mistakes.png"
    left += " report.html results.csv results.png results.svg summary.json train_batch.jpg val_batch.jpg"
    left += " val_predictions.csv"
    assert [name for name in names if name not in events] == left.split()
    beside = {
        path.name for path in run.cwd.iterdir() if not path.name.startswith("process-")
    }
    assert beside == {"run"}


def test_summary_is_the_contract(run: Runner) -> None:
    found = summary(run.cwd / "run")
    for line in CONTRACT.strip().splitlines():
        kind, *keys = line.split()
        for key in keys:
            value: Any = found
            for part in key.split("."):
                assert part in value, key
                value = value[part]
            assert isinstance(value, KINDS.get(kind, object)), f"{key} is {value!r}"
    sizes = ("world_size", "batch_size", "epochs", "steps", "samples", "epoch_steps")
    assert [found[name] for name in sizes] == [1, 10, 2, STEPS, 2 * 96, 10]
    assert found["epoch_samples"] == 96, "the last step is short"
    assert found["samples_dropped"] == 0 and found["samples_failed"] == []
    assert "--arch squeezenet1_1" in found["command"]
    assert 0 <= found["validation"]["top1"] <= found["best"]["value"] <= 1
    table = rows(run.cwd / "run" / "results.csv")
    assert [(row["epoch"], row["step"]) for row in table] == [("0", "10"), ("1", "20")]
    assert float(table[-1]["top1"]) == found["validation"]["top1"]


def test_rates_are_consistent(run: Runner) -> None:
    output = run.cwd / "run"
    check_rates(output)
    assert points(output, "ceilings")[0]["step"] == STEPS // 2, "after the first epoch"


def test_tensorboard(run: Runner) -> None:
    board = read(run.cwd / "run")
    tags = board.Tags()
    scalars = set(tags["scalars"])
    assert not {*TAGS.split()} - scalars
    charts = layout(KIND).items()
    shown = {
        tag.replace("(ema_)?", "")
        for _, of in charts
        for tags in of.values()
        for tag in tags
    }
    # of other tasks, and of more than five classes; the HPARAMS page takes its columns from the first run
    own = {figure.name for figure in KIND.figures}
    others = {f"val/{name}" for name in COMPARED if name not in own} | {"val/top5"}
    others |= {"time/transfer_ms", "time/graph_ms", "time/transforms_ms"}
    missing = {*metrics(COMPARED), *shown} - scalars - others
    # stages of other loaders
    others_too = ("gpu/", "memory/", "energy/", "stage/")
    assert all(tag.startswith(others_too) for tag in missing), missing
    assert {"stage/read", "stage/decode", "stage/full"} <= scalars
    for tag in scalars:
        assert all(math.isfinite(event.value) for event in board.Scalars(tag)), tag
    for tag in ("train/loss", "val/top1"):
        steps = [event.step for event in board.Scalars(tag)]
        assert steps == sorted(set(steps)), tag
    images = ["augmented", "val/confusion", "val/mistakes", "val/predictions"]
    assert sorted(tags["images"]) == images
    (grid,) = board.Images("augmented")
    assert grid.width == 2 * (320 + 8), "ten images of 32 px, two a row"
    with Image.open(run.cwd / "run/train_batch.jpg") as picture:
        assert picture.size == (4 * (320 + 8), 3 * (320 + 8 + 25))
    plugins = board.summary_metadata
    assert (
        "_hparams_/session_start_info" in plugins
        and "_hparams_/session_end_info" in plugins
    )
    assert any("custom_scalars" in tag for tag in plugins)
    (card,) = board.Tensors("at_a_glance/start_here/text_summary")
    (text,) = card.tensor_proto.string_val
    assert b"train.py --data" in text and b"(#hparams)" in text
    assert "result/text_summary" in plugins


def test_config_reads_back(run: Runner, pictures: Path) -> None:
    again = parse(["--config", str(run.cwd / "run" / "config.yaml")])
    flags = f"--data {pictures} {FLAGS} {WINDOWS}".split()
    assert again.flat() | {"config": None} == parse(flags).flat()
    stored = kept(run.cwd / "run" / "last.pt")["config"]
    assert stored == again.flat() | {"config": None}


SECTIONS = {
    "Change first": '<p class="first">',
    "What was learnt, how fast, and what held it back": ">compute ceiling</th>",
    "Curves": "<svg",
    "Validation": "<img",
    "Worst mistakes": "<img",
    "Confusion": "<img",
    "What the network is given": "<img",
    "Where the time went": ">steps</th>",
    "Parts of a step": ">backward</th>",
    "Stages of the loader, of its workers' or its thread's time": ">decode</th>",
    "Command": "--arch squeezenet1_1",
    "Machine and versions": ">torch</th>",
}
"""Sections of report.html, with what each holds."""


def test_a_browser_shows_the_report_and_it_asks_for_nothing(
    run: Runner, tmp_path: Path, pictures: Path
) -> None:
    folder = run.cwd / "run"
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("neither chromium nor google-chrome is on PATH")
    quiet = ("--headless", "--no-sandbox", f"--user-data-dir={tmp_path / 'browser'}")
    shown = subprocess.run(
        [
            browser,
            *quiet,
            "--enable-logging=stderr",
            "--dump-dom",
            folder / "report.html",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    _, *sections = shown.stdout.split("<h2>")
    parts = dict(section.split("</h2>", 1) for section in sections)
    assert [*parts] == [*SECTIONS]
    for title, held in SECTIONS.items():
        assert held in parts[title], title
    assert not re.search(r"https?://|<script|<link|@import|url\((?!#)", shown.stdout)
    sources = re.findall(r"""\b(?:src|href)=["']?(.{10})""", shown.stdout)
    outside = [source for source in sources if not source.startswith("#")]
    assert outside == ["data:image"] * 4
    assert not re.search(r"""alt=["']{2}|<img(?![^>]* alt=)""", shown.stdout)
    assert shown.stdout.count('<svg role="img" aria-label="') == 4
    best = summary(folder)["best"]["value"]
    assert f"<b>{best:.2%}</b> top-1 after epoch" in shown.stdout
    named = re.search("<title>(.*)</title>", shown.stdout)
    assert named and re.fullmatch(
        rf"squeezenet1_1 on {pictures.name} · \d{{4}}-\d\d-\d\d \d\d:\d\d · .* (s|min) · .+",
        named[1],
    )
    # what a script or the page's own security policy has refused
    assert "CONSOLE" not in shown.stderr
