"""Whole runs with videos."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.runs import Runner, summary
from tests.unit.video_files import make, spoiled

CLASSES, VAL = ("jump", "run", "walk"), 3
SMALL = (
    """--task video --loader pyav --image-size 32 --clip-frames 4 --batch-size 3 --workers 1
    --precision fp32 --arch r3d_tiny --ceilings false --log-every 1 --lr 0.01""",
)


def write(data: Path) -> None:
    """Write 6 training and 9 validation videos."""
    for split, count in (("train", 2), ("val", VAL)):
        for label, name in enumerate(CLASSES):
            for i in range(count):
                make(
                    data / split / name / f"{i}.mp4",
                    frames=20,
                    size=(48, 64),
                    numbers_from=100 * label + 10 * i,
                    b_frames=2,
                )


def test_validation_over_ranks(train: Runner) -> None:
    """Each video counts once, wherever its views fall, also one of which some clips are damaged."""
    data = train.cwd / "data"
    write(data)
    path = data / "val" / "walk" / "0.mp4"
    path.write_bytes(spoiled(path.read_bytes(), 0.6, 1))
    views = ("--val-clips 2 --val-crops 3",)
    train(*SMALL, "--data", data, "--epochs 1", *views, "--output run").done()

    flags = (*SMALL, "--data", data, *views)
    one = summary(train.cwd / "run")["validation"]
    assert one["samples"] == len(CLASSES) * VAL
    assert one["views"] == 6 * len(CLASSES) * VAL - 3
    assert train.evaluated(2, *flags) == one
