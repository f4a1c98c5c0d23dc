"""The video demo, shortened: its preset learns the motion, and from single frames it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import demo_videos
from tests.end_to_end.runs import ROOT, Process, Runner, summary


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 training and 10 validation videos of each class."""
    folder = tmp_path_factory.mktemp("videos") / "set"
    demo_videos.write(folder, 30, 10, progress=False)
    return folder


def shortened(train: Runner, videos: Path, output: str, *flags: object) -> Process:
    """The demo's preset for 12 short epochs, validated once."""
    short = ("--epochs", 12, "--val-every", 12, "--workers", 1, "--ceilings", "false")
    return train("--config", ROOT / "configs/video/demo.yaml", "--data", videos, "--output", output, *short, *flags)


@pytest.mark.slow
def test_the_preset_learns_the_motion_and_not_a_frame(train: Runner, videos: Path) -> None:
    """In a fifth of the demo's steps; the header of the preset has the figures of all of them."""
    clips = shortened(train, videos, "clips")
    frames = shortened(train, videos, "frames", "--clip-frames", 1)
    clips.done(), frames.done()
    top1 = summary(train.cwd / "clips")["validation"]["top1"]
    assert top1 >= 0.45, "chance is 12.5 %"
    assert summary(train.cwd / "frames")["validation"]["top1"] < 0.3
