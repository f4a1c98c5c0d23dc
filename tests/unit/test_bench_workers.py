"""The suite `workers`, and each sentence of its advice."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import workers
from benchmarks._suite import Measured, Row
from benchmarks.workers import Workers, conclude, derive, points
from contracts import UserError
from report.tensorboard import SETTINGS
from scripts import patch_set


def test_points_cross_everything_and_commands_carry_it(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
    settings = Workers(
        data=str(tmp_path),
        batch_sizes=(8, 16),
        workers=(0, 2),
        memory=("pinned", "pageable"),
        image_sizes=(64,),
        flags="--seed 1",
    )
    found = points(settings)
    assert len(found) == 8 and len({json.dumps(point) for point in found}) == 8
    command = workers.command(settings, found[-1], tmp_path)
    assert command[0] == sys.executable and Path(command[1]).name == "train.py"
    flags = dict(zip(command[2::2], command[3::2], strict=True))
    wanted = {
        "--batch-size": "16",
        "--workers": "2",
        "--pin-memory": "false",
        "--image-size": "64",
        "--arch": "resnet18",
        "--seed": "1",
    }
    assert wanted.items() <= flags.items()
    told = {flag.removeprefix("--").replace("-", "_") for flag in workers.SET_HERE}
    assert told <= SETTINGS.keys(), "what tells points apart is a column of HPARAMS"


def test_without_data_only_the_synthetic_loader() -> None:
    with pytest.raises(UserError, match="--data is missing"):
        points(Workers())
    assert points(Workers(loader="synthetic"))


@pytest.mark.parametrize("flag", ["--workers", "--image-size", "--pin-memory", "--compile"])
def test_flags_that_are_a_points_own(flag: str) -> None:
    with pytest.raises(UserError, match=f"{flag} behind -- is what the suite sets itself"):
        points(
            Workers(
                loader="synthetic",
                flags=f"{flag} {'4' if flag in ('--workers', '--image-size') else 'false'}",
            )
        )


def row(
    batch: int,
    rate: float,
    *,
    ceiling: float,
    workers: int = 4,
    memory: str = "pinned",
    wait: float = 1.0,
    gpu: str | None = "H",
    loader: str = "torchvision",
    repeats: int = 5,
    step: str = "eager",
) -> Row:
    point = {
        "loader": loader,
        "image_size": 224,
        "memory": memory,
        "workers": workers,
        "batch_size": batch,
        "step": step,
    }
    parts = {"data_wait_ms": wait, "forward_ms": 3.0, "backward_ms": 5.0, "update_ms": 1.0}
    spread = {"rate": {"n": 5, "min": rate * 0.99, "max": rate * 1.01, "iqr": rate * 0.01}}
    figures = {"rate": rate, "compute_ceiling": ceiling, **parts} | ({"repeats": repeats} if repeats else {})
    return {"point": point, "status": "ok", "figures": figures, "spread": spread, "hardware": {"gpu": gpu}}


def pair(batch: int, pinned: float, pageable: float, **more: Any) -> list[Row]:
    rates = {"pinned": pinned, "pageable": pageable}
    return [row(batch, rate, ceiling=300, memory=memory, **more) for memory, rate in rates.items()]


def rising(eight: float, sixteen: float, **more: Any) -> list[Row]:
    return [row(size, rate, ceiling=rate, **more) for size, rate in ((8, eight), (16, sixteen))]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [row(8, 90, ceiling=100), row(64, 700, ceiling=950), row(512, 900, ceiling=1000)],
            "At batch 64 the compute ceiling",
        ),
        ([row(8, 90, ceiling=100), row(64, 700, ceiling=800)], "still grows at batch 64 (800 img/s)"),
        (
            pair(8, 105, 100),
            "Pinned memory: +5.0% at batch 8 with 4 workers, beyond the noise there and in 1 of 1 pairs",
        ),
        (
            pair(8, 101, 100),
            "makes no difference beyond the noise (the largest: +1.0%",
        ),
        (
            pair(8, 105, 100, repeats=0),
            "Pinned memory: 105 img/s, pageable 100 img/s at batch 8 with 4 workers, "
            "one run each; --repeats 3",
        ),
        (
            pair(8, 105, 100) + pair(16, 300, 200, repeats=0),
            "Pinned memory: +5.0% at batch 8 with 4 workers, beyond the noise there and in 1 of 1 pairs",
        ),
        ([row(8, 91, ceiling=200, workers=2), row(8, 100, ceiling=200)], "Batch 8: 2 workers will do"),
        (
            [row(8, 50, ceiling=200, workers=1), row(8, 100, ceiling=200)],
            "Batch 8: the rate still grows at 4 workers (100 img/s)",
        ),
        ([row(8, 90, ceiling=100, wait=9.0)], "50% of a step waits for data: the loader"),
        (
            [
                row(8, 90, ceiling=100, wait=9.0, loader="synthetic"),
                row(16, 180, ceiling=195, loader="synthetic"),
            ],
            "50% of a step is the host's own time (there is no data to wait for), and 97% of its compute",
        ),
        ([row(8, 90, ceiling=100)], "takes a larger batch size beside it"),
        (
            [row(8, 90, ceiling=100), row(16, 180, ceiling=195)],
            "97% of its compute costs the same up to batch 16, the next that was measured: "
            "bound by launches, and by kernels too small to fill the GPU: "
            "a larger batch, or --graphs true.",
        ),
        (
            [row(8, 90, ceiling=100, gpu=None), row(16, 180, ceiling=195, gpu=None)],
            "a larger batch shares it among more images",
        ),
        (
            [row(8, 90, ceiling=100), row(16, 110, ceiling=120)],
            "33% of its compute costs the same up to batch 16, the next that was measured: bound by the work",
        ),
        (
            rising(90, 180) + rising(270, 360, step="graphs"),
            "graphs: 3.00 times the rate of eager at batch 8 (270 img/s).",
        ),
        (
            rising(90, 180, step="graphs"),
            "too small to fill the GPU: a larger batch.",
        ),
        (
            pair(8, 105, 100, gpu=None),
            "without one the two differ by noise alone, here up to 5.0%",
        ),
        (
            pair(8, 105, 100) + pair(16, 200, 220),
            "makes no difference beyond the noise (the largest: -9.1%, batch 16",
        ),
    ],
)
def test_each_sentence_of_the_advice(rows: list[Row], said: str) -> None:
    found = conclude(derive(rows))
    assert sum(said in line for line in found) == 1, found


def test_no_sentence_without_figures_nor_about_what_was_not_varied() -> None:
    assert conclude([row(8, 90, ceiling=100) | {"status": "failed"}]) == []
    assert len(conclude([row(8, 90, ceiling=100)])) == 1, "only what bounds the smallest batch"


def test_rows_that_are_launched_otherwise_are_not_compared_by_their_batch() -> None:
    """Eager at 8 and graphs at 16 would make a step that costs nothing."""
    eager, graphs = row(8, 90, ceiling=100), row(16, 900, ceiling=1000, step="graphs")
    assert all("fixed" not in one["figures"] for one in derive([eager, graphs]))
    said = conclude([eager, graphs])
    assert len(said) == 2 and said[0].startswith("eager: Batch 8") and said[1].startswith("graphs: Batch 16")


def test_a_point_says_how_its_step_is_launched(tmp_path: Path) -> None:
    ways: Any = ("eager", "graphs", "compile", "compile+graphs")
    settings = Workers(loader="synthetic", batch_sizes=(8,), workers=(1,), memory=("pinned",), steps=ways)
    commands = [" ".join(workers.command(settings, point, tmp_path)) for point in points(settings)]
    asked = [re.findall(r"--(?:compile|graphs) (\w+)", command) for command in commands]
    assert asked == [["false", "false"], ["false", "true"], ["true", "false"], ["true", "true"]]


def test_the_fixed_share_is_beside_each_row_but_the_largest() -> None:
    found = derive([row(8, 90, ceiling=100), row(16, 110, ceiling=200), row(16, 100, ceiling=150, workers=1)])
    assert [one["figures"].get("fixed") for one in found] == [pytest.approx(1.0), None, None]


def test_points_of_super_resolution_and_the_loop_by_hand(tmp_path: Path) -> None:
    settings = Workers(
        task="superres",
        data=str(tmp_path),
        stores=("png", "raw"),
        patches=(16,),
        batch_sizes=(8, 128),
        workers=(2,),
        memory=("pinned", "pageable"),
        steps=("eager", "graphs"),
        by_hand=True,
    )
    with pytest.raises(UserError, match="has no png-16/; python -m scripts"):
        points(settings)
    patch_set.write(tmp_path / "set", [16], 3)
    settings = settings.model_copy(update={"data": tmp_path / "set"})
    found = points(settings)
    assert len(found) == 2 * 2 * 2 * 2 + 2 and {point["patches"] for point in found} == {2}
    ours, loop = (workers.command(settings, found[at], tmp_path) for at in (0, 4))
    assert {"--task", "superres", "--patch-size", "16", "--pin-memory"} <= {*ours}
    assert ours[ours.index("--data") + 1].endswith("png-16") and ours[ours.index("--arch") + 1] == "srcnn"
    assert "benchmarks.baselines.train" in loop and loop[loop.index("--workers") + 1] == "16"

    rates = {8: (900.0, 100.0), 128: (1000.0, 500.0)}
    rows: list[Row] = []
    for at, by_hand in ((0, 0), (4, 1), (5, 0), (9, 1)):
        rate = rates[found[at]["batch_size"]][by_hand]
        made = row(found[at]["batch_size"], rate, ceiling=2000)
        rows.append({**made, "point": found[at]})
    said = "\n".join(conclude(rows))
    assert "16 px: the epoch of batch 8 takes 1.11 times that of batch 128 (the reach: 1.3)." in said
    assert "16 px, batch 8: 9.0 times the loop by hand (900 and 100 img/s)." in said


def test_the_seconds_of_an_epoch_are_spread_as_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = {"rate": {"n": 4, "min": 80.0, "max": 125.0, "iqr": 10.0}}
    monkeypatch.setattr(workers.train, "read", lambda *_: Measured(figures={"rate": 100.0}, spread=spread))
    found = workers.read({"loader": "by hand: torchvision", "patches": 1000}, tmp_path)
    assert found.figures["epoch_s"] == 10.0
    assert found.spread == spread | {"epoch_s": {"n": 4, "min": 8.0, "max": 12.5, "iqr": 1.0}}


def test_patches_are_the_same_in_every_store(tmp_path: Path) -> None:
    patch_set.write(tmp_path / "set", [16], 3)
    images: dict[str, list[Any]] = {}
    for store in ("png", "raw"):
        files = sorted((tmp_path / f"set/{store}-16/train").rglob("*.p*"))
        images[store] = [np.asarray(Image.open(file)).tolist() for file in files]
    assert images["png"] == images["raw"] and len(images["png"]) == 2
    assert not patch_set.write(tmp_path / "set", [16], 3)
    assert patch_set.main([str(tmp_path / "set"), "--count", "1"]) == 2


def test_patches_that_cannot_be_cut_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "list.txt").write_text("a.png\n")
    whole = pictures / "a.png"
    Image.effect_noise((40, 40), 50).save(whole)
    whole.write_bytes(whole.read_bytes()[:300])
    for flags, said in (
        (["--patches", "0"], "--patches 0: at least 1 pixel"),
        (["--patches", "5000"], "--patches 5000: drawn pictures have "),
        (["--patches", "16", "--images", str(pictures)], f"--images: {whole} cannot be decoded"),
    ):
        assert patch_set.main([str(tmp_path / "set"), "--count", "3", *flags]) == 2
        assert f"patch_set: {said}" in capsys.readouterr().err
