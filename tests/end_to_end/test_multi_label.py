"""A list with any number of labels an image: trained, evaluated on two ranks, predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.end_to_end.runs import Runner, rows, summary

COLOURS = ("red", "green", "blue")


def draw(folder: Path) -> None:
    """Images in which each colour is bright or not; what is bright are the labels."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 48), ("val", 14)):
        lines = ["path,labels"]
        (folder / "photos" / split).mkdir(parents=True)
        for number in range(count):
            bright = [bool(number >> channel & 1) for channel in range(3)]
            pixels = rng.integers(0, 100, (40, 50, 3), dtype=np.uint8) + 120 * np.array(
                bright, np.uint8
            )
            Image.fromarray(pixels.astype(np.uint8)).save(
                folder / "photos" / split / f"{number:02}.png"
            )
            labels = ";".join(
                name for name, has in zip(COLOURS, bright, strict=True) if has
            )
            lines.append(f"photos/{split}/{number:02}.png,{labels}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


def test_a_run(train: Runner) -> None:
    draw(train.cwd / "data")
    network = ("--arch tests.end_to_end.networks:tiny",)
    run = (*network, "--image-size 32 --precision fp32 --batch-size 8 --lr 0.1")
    mixed = (
        "--multi-label true --mixup 0.1 --warmup-epochs 0 --epochs 12 --val-every 12",
    )
    here = ("--loader torchvision --workers 0 --ceilings false",)
    train("--data data", *run, *mixed, *here, "--output run").done()
    val = summary(train.cwd / "run")["validation"]
    assert val["map"] > 0.9 and val["samples"] == 14 and "top1" not in val
    assert train.evaluated(2, "--data data", *network)["map"] == val["map"]
    validated = rows(train.cwd / "run/val_predictions.csv")
    assert [row["labels"] for row in validated][5:7] == ["blue;red", "blue;green"]
    train(
        "--predict data/photos/val --resume run/last.pt",
        *network,
        *here,
        "--output new",
    ).done()
    predicted = rows(train.cwd / "new/predictions.csv")
    for row, same in zip(predicted, validated, strict=True):
        assert row["class"] == same["class"]
        assert float(row["probability"]) == pytest.approx(
            float(same["probability"]), abs=3e-6
        )
