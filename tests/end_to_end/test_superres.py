"""A whole run of super-resolution: figures, predictions, ranks."""

from __future__ import annotations

import shutil

import numpy as np
from PIL import Image

from scripts import demo_superres
from tests.end_to_end.runs import Runner, rows, summary
from tests.unit.test_report_tensorboard import read

SMALL = (
    """--task superres --patch-size 16 --patches-per-image 4 --batch-size 4 --workers 1
    --precision fp32 --epochs 2 --warmup-epochs 0 --lr 0.01 --log-every 1
    --ceilings false""",
)


def test_a_run_and_its_evaluation_on_two_ranks(train: Runner) -> None:
    """The set has six pictures to train on, and three to validate."""
    textures = train.cwd / "data"
    demo_superres.write(textures, 6, 3, progress=False, processes=1)
    of_set = (*SMALL, "--data", textures)
    said = train(*of_set, "--output run").done().out
    found = summary(train.cwd / "run")
    wanted = {
        "task": "superres",
        "loader": "paired",
        "steps": 12,
        "samples": 48,
        "image_size": 8,
    }
    assert {name: found[name] for name in wanted} == wanted
    val = found["validation"]
    assert (
        val["samples"] == 3 and 20 < val["psnr_bicubic"] < 40 and 0 < val["ssim"] <= 1
    )
    assert "PSNR of bicubic" in said and (train.cwd / "run/best.pt").exists()
    board = read(train.cwd / "run")
    assert {"val/psnr", "val/psnr_bicubic"} <= set(board.Tags()["scalars"])
    assert {"val/crops", "augmented"} <= set(board.Tags()["images"])

    photos = train.cwd / "photos"
    shutil.copytree(textures / "val", photos)
    (photos / "notes.txt").write_text("hi")
    train(
        "--predict",
        photos,
        "--resume run/best.pt --workers 0 --output new",
    ).done()
    *table, broken = rows(train.cwd / "new/predictions.csv")
    assert (
        len(table) == 3
        and "no known image format" in broken["error"]
        and not broken["enlarged"]
    )
    for row in table:
        given, made = (
            Image.open(row["path"]),
            Image.open(train.cwd / "new" / row["enlarged"]),
        )
        assert made.size == (2 * given.width, 2 * given.height)
        interpolated = np.asarray(
            given.resize(made.size, Image.Resampling.BICUBIC), np.float64
        )
        assert np.corrcoef(np.asarray(made).ravel(), interpolated.ravel())[0, 1] > 0.9

    assert train.evaluated(2, "--data", textures) == val
