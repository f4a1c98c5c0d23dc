"""Whole runs with videos."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.runs import Runner, summary
from tests.unit.video_files import make, spoiled

CLASSES, TRAIN, VAL, FRAMES = (
    ("jump", "run", "walk"),
    6,
    3,
    20,
)  # videos of a class; frames of each
STEPS = 2 * len(CLASSES) * TRAIN // 3
CLIPS = (
    """--task video --loader pyav --image-size 32 --clip-frames 4 --batch-size 3 --workers 1
    --precision fp32""",
)
SMALL = (
    *CLIPS,
    "--arch r3d_tiny --ceilings false --log-every 1 --epochs 2 --lr 0.01",
)


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 training and 9 validation videos."""
    folder = tmp_path_factory.mktemp("videos") / "data"
    for split, count in (("train", TRAIN), ("val", VAL)):
        for label, name in enumerate(CLASSES):
            for i in range(count):
                make(
                    folder / split / name / f"{i}.mp4",
                    frames=FRAMES,
                    size=(48, 64),
                    numbers_from=100 * label + 10 * i,
                    b_frames=2,
                )
    return folder


def test_validation_over_ranks(train: Runner, videos: Path) -> None:
    """Each video counts once, wherever its views fall, also one of which some clips are damaged."""
    data = train.cwd / "data"
    shutil.copytree(videos, data)
    path = data / "val" / "walk" / "0.mp4"
    path.write_bytes(spoiled(path.read_bytes(), 0.6, 1))
    views = ("--val-clips 2 --val-crops 3",)
    train(*SMALL, "--data", data, "--epochs 1", *views, "--output run").done()

    flags = (*SMALL, "--data", data, *views)
    one = summary(train.cwd / "run")["validation"]
    assert one["samples"] == len(CLASSES) * VAL
    assert one["views"] == 6 * len(CLASSES) * VAL - 3
    assert train.evaluated(2, *flags) == one
