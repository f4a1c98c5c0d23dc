"""Training on videos, whole runs: what is said of clips, resuming, validation over ranks, fallbacks, damage,
and mistakes in one line.
"""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.conformance import moving
from tests.end_to_end.runs import STOPPING, TIMEOUT_S, Process, Runner, losses, points, summary, until
from tests.unit.video_files import make

CLASSES, TRAIN, VAL, FRAMES = ("jump", "run", "walk"), 6, 3, 20  # videos of a class; frames of each
STEPS = 2 * len(CLASSES) * TRAIN // 3
CLIPS = (
    "--task",
    "video",
    "--image-size",
    32,
    "--clip-frames",
    4,
    "--batch-size",
    3,
    "--workers",
    1,
    "--precision",
    "fp32",
)
SMALL = (*CLIPS, "--arch", "r3d_tiny", "--ceilings", "false", "--log-every", 1, "--epochs", 2, "--lr", 0.01)


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 training and 9 validation videos of three classes, one of each split in a container that decord does
    not count well.
    """
    folder = tmp_path_factory.mktemp("videos") / "data"
    for split, count in (("train", TRAIN), ("val", VAL)):
        for label, name in enumerate(CLASSES):
            for i in range(count):
                ending = "ts" if (label, i) == (1, 1) else "mp4"
                make(
                    folder / split / name / f"{i}.{ending}",
                    frames=FRAMES,
                    size=(48, 64),
                    numbers_from=100 * label + 10 * i,
                    b_frames=2,
                )
    return folder


def test_what_is_said_of_clips(train: Runner, videos: Path) -> None:
    """Two epochs, the ceilings between them, and a validation."""
    windows = ("--epochs", 2, "--val-every", 2, "--log-every", 2, "--min-window-s", 0.01, "--lr", 0.01)
    said = (
        train(
            *CLIPS,
            "--arch",
            "r3d_tiny",
            "--data",
            videos,
            *windows,
            "--val-clips",
            2,
            "--val-crops",
            3,
            "--output",
            "run",
        )
        .done()
        .out
    )
    found = summary(train.cwd / "run")
    assert (found["task"], found["arch"], found["loader"], found["rate"]["unit"]) == (
        "video",
        "r3d_tiny",
        "pyav",
        "clip/s",
    )
    assert (found["steps"], found["samples"], found["samples_failed"]) == (STEPS, 3 * STEPS, [])
    clips = found["clips"]
    assert (clips["frames"], clips["fallbacks"]) == (4, {})
    assert clips["frames_per_s"] == pytest.approx(4 * found["rate"]["steady"])
    assert 1 <= clips["decoded_per_delivered"] <= FRAMES / 4
    val = found["validation"]
    assert (val["samples"], val["views"], val["losses_not_finite"]) == (
        len(CLASSES) * VAL,
        len(CLASSES) * VAL * 6,
        0,
    )
    assert 0 <= val["top1"] <= val["top5"] == 1.0
    assert {"compute", "loader"} <= set(found["ceiling"]) and found["efficiency"] > 0
    assert "clip/s" in said and "frame/s" in said and "img/s" not in said


def test_files_that_another_decoder_does(train: Runner, videos: Path) -> None:
    """Said before training, counted after it; the same losses as by the reference, but for the last digits of
    pixels.
    """
    pytest.importorskip("decord")
    said = (
        train(*SMALL, "--ceilings", "true", "--data", videos, "--loader", "decord", "--output", "run")
        .done()
        .out
    )
    assert "1 of 18 videos are h264 in ts" in said and "decoded by pyav" in said
    clips = summary(train.cwd / "run")["clips"]
    assert (clips["fallbacks"], clips["val_fallbacks"]) == ({"h264 in ts": 2}, {"h264 in ts": 5}), (
        "two epochs; five views"
    )
    assert said.count("val: 1 of ") == 1


def start(train: Runner, videos: Path, output: str, *flags: object) -> Process:
    return train(*SMALL, "--data", videos, "--output", output, "--resume", "auto", *flags)


def test_stopped_and_resumed(train: Runner, videos: Path) -> None:
    """SIGTERM leaves a checkpoint; from there the same samples come: losses, validations and weights are
    those of a run in one go.
    """
    start(train, videos, "whole").done()
    whole, stopped = train.cwd / "whole", train.cwd / "stopped"
    process = start(train, videos, "stopped", "--read-delay-ms", 50)
    until(lambda: len(points(stopped, "train")) >= 2, TIMEOUT_S, "two steps")
    process.send(signal.SIGTERM)
    assert (process.wait(), process.err) == (128 + signal.SIGTERM, STOPPING)
    step = torch.load(stopped / "last.pt", weights_only=True)["progress"]["step"]
    assert 2 <= step < STEPS and step == len(losses(stopped))

    start(train, videos, "stopped").done()
    assert losses(stopped) == losses(whole) and len(losses(whole)) == STEPS
    assert points(stopped, "val") == points(whole, "val")
    first, second = (
        torch.load(output / "last.pt", weights_only=True)["model"] for output in (whole, stopped)
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_validation_over_ranks(train: Runner, videos: Path) -> None:
    """Each video counts once, wherever its views fall, also one of which only some clips can be decoded."""
    data = train.cwd / "data"
    shutil.copytree(videos, data)
    path = data / "val" / "walk" / "0.mp4"
    path.write_bytes(moving.spoiled(path.read_bytes(), 0.6, 1, noise=False))
    views = ("--val-clips", 2, "--val-crops", 3)
    train(*SMALL, "--data", data, "--epochs", 1, *views, "--output", "run").done()

    flags = (*SMALL, "--data", data, *views)
    one = train.evaluated(1, *flags)
    assert one == summary(train.cwd / "run")["validation"]
    assert one["samples"] == len(CLASSES) * VAL
    assert one["views"] == 6 * len(CLASSES) * VAL - 3
    assert train.evaluated(2, *flags) == one
    other = train.evaluated(1, *flags, "--val-batch-size", 7)
    assert (other["samples"], other["views"]) == (one["samples"], one["views"])
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)  # kernels differ by shape


def test_clips_longer_than_every_video(train: Runner, videos: Path) -> None:
    """The last frame is repeated, and the files are named."""
    said = train(*SMALL, "--data", videos, "--clip-frames", 16, "--steps", 2, "--output", "run").done().out
    assert summary(train.cwd / "run")["samples_failed"] == []
    named = re.search(
        r"train: 18 of 18 videos are shorter than a clip and show their last frame again, named in (\S+)",
        said.replace("\n", " "),
    )
    assert named and "20 of 31 frames" in Path(named[1]).read_text()


def test_lists_and_an_empty_class(train: Runner, videos: Path) -> None:
    data = train.cwd / "data"
    shutil.copytree(videos / "train", data / "train")
    (data / "train" / "swim").mkdir()
    (data / "val.csv").write_text("".join(f"train/{name}/0.mp4 {name} 0.1 0.6\n" for name in CLASSES))
    said = train(*SMALL, "--data", data, "--steps", 2, "--output", "run").done().out
    assert "train: 1 left out" in said
    assert summary(train.cwd / "run")["validation"]["samples"] == len(CLASSES)


MISTAKES: tuple[tuple[tuple[object, ...], tuple[str, ...]], ...] = (
    (("--loader", "torchvision"), ("--loader", "'torchvision'", "pyav", "decord", "torchcodec", "synthetic")),
    (("--loader", "nvdec"), ("--loader nvdec", "GPU", "pyav")),
    (("--arch", "resnet50"), ("--arch", "'resnet50'", "r3d_18")),
    (
        ("--arch", "mvit_v2_s"),
        ("--clip-frames 4 of --image-size 32", "--arch mvit_v2_s", "224 pixels and 16 frames"),
    ),
    (("--short-side", 20, 30), ("20", "--image-size 32")),
    (("--batch-size", 19), ("18 training samples", "--batch-size 18")),
)


@pytest.mark.parametrize(
    ("flags", "said"), MISTAKES, ids=[" ".join(map(str, flags)) for flags, _ in MISTAKES]
)
def test_mistakes(train: Runner, videos: Path, flags: tuple[object, ...], said: tuple[str, ...]) -> None:
    line = train(*SMALL, "--data", videos, *flags).mistake()
    assert all(part in line for part in said), line
    assert {path.name for path in train.cwd.iterdir()} == {"process-0"}, "no folder of a run that never was"


def test_mistakes_in_data(train: Runner, videos: Path, pictures: Path) -> None:
    def mistake(data: Path, *flags: object) -> str:
        return train(*SMALL, "--data", data, *flags).mistake()

    assert "no video in" in mistake(pictures)
    line = train(
        "--data", videos, "--arch", "squeezenet1_1", "--loader", "torchvision", "--workers", 1
    ).mistake()
    assert "no image in" in line and ".mp4" in line
    line = train("--data", videos, "--arch", "squeezenet1_1", "--loader", "pyav").mistake()
    assert "--loader" in line and "'pyav'" in line and "torchvision" in line

    data = train.cwd / "lists"
    shutil.copytree(videos / "train", data / "clips")
    (data / "val.csv").write_text("clips/run/0.mp4 run\nclips/run/2.mp4 swim\n")
    (data / "train.csv").write_text("clips/run/0.mp4 run\nclips/run/2.mp4\n")
    line = mistake(data)
    assert "train.csv line 2" in line and "'path label'" in line
    (data / "train.csv").write_text(
        "".join(f"clips/{name}/{i}.mp4 {name}\n" for name in CLASSES for i in (0, 2))
    )
    line = mistake(data)
    assert "val.csv line 2" in line and "'swim'" in line and "none of the 3 classes" in line
    (data / "val.csv").write_text("clips/run/0.mp4 run\n")
    train(*SMALL, "--data", data, "--epochs", 1, "--output", "run").done()
    for path in (data / "clips").glob("*/*.mp4"):
        path.write_bytes(path.read_bytes() + b"more")
    line = mistake(data)
    assert "changed size" in line and ".mp4" in line and "--rescan" in line
