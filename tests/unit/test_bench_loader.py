"""The suite `loader`: its points, passes of images and of clips, waits; sets of links and of videos."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import bench, loader, video_set
from benchmarks._loaders import BY_HAND, Asked, opened, training_split
from benchmarks._suite import Suite, results
from benchmarks.baselines import pytorch
from benchmarks.loader import SUITE, Loader, consume, derive, points
from saturate.contracts import UserError
from saturate.engine.distributed import ProcessWorld
from tests.end_to_end.runs import draw
from tests.unit.video_files import make, number

# a test has one core where several run side by side
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
ALONE = ProcessWorld(torch.device("cpu"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "data"
    return draw(folder, classes=("a", "b", "c"), train=24, val=1)


KIND = video_set.Kind(frames=24, height=64, width=96, gop=8)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos") / "data"
    assert video_set.write(folder, 9, KIND, progress=False, processes=1)
    make(folder / "train" / "odd" / "short.avi", frames=6, codec="mpeg4", size=(64, 96))
    return folder


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- points -------------------------------------------------------------------------------------------------


def test_points_are_every_combination(pictures: Path) -> None:
    """A reader is of the torchvision loader alone; defaults that nobody asks for are no axis."""
    asked = Loader(
        data=pictures,
        loaders=("torchvision", "dali-fed"),
        readers=("pil", "opencv"),
        workers=(1, 2),
    )
    found = [(one["loader"], one["workers"], one["reader"]) for one in points(asked)]
    of_readers = itertools.product(("torchvision",), (1, 2), ("pil", "opencv"))
    assert found == [*of_readers, ("dali-fed", 1, "pil"), ("dali-fed", 2, "pil")]
    (point,) = points(Loader(data=pictures, loaders=("torchvision",)))
    small = {"batch_size": 32, "image_size": 640, "window": "stretch"}
    assert point == {"loader": "torchvision", "gpus": 1, "workers": 8, **small}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"steps": 5}, "--steps 5: 0, or 20 and more"),
        ({"loaders": ("ffcv",)}, "--loaders got 'ffcv'"),
        ({"task": "superres"}, "--task superres: this suite loads images or videos"),
    ],
)
def test_mistakes(asked: dict[str, Any], said: str, pictures: Path) -> None:
    with pytest.raises(UserError, match=said):
        points(Loader(**{"data": pictures} | asked))


# --- passes of images ---------------------------------------------------------------------------------------


def asked_for(**changes: Any) -> Asked:
    small: dict[str, Any] = {"medium": "images", "batch_size": 8, "image_size": 32}
    return Asked(**small | {"workers": 0, "window": "random-resized"} | changes)


IMAGES = ("pytorch", "dali", "dali-by-hand", "dali-cpu", "torchvision", "pil-alone")
OF_WORKERS = ("pytorch+dali", "dali-proxy")


@pytest.mark.parametrize("name", [*IMAGES, *OF_WORKERS, "pytorch+opencv"])
def test_a_pass_over_images_has_as_many_for_ours_and_by_hand(
    name: str, pictures: Path
) -> None:
    if "dali" in name:
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    of_one = name in (*OF_WORKERS, "dali-by-hand", "pil-alone", "pytorch+opencv")
    asked = asked_for(workers=int(name in OF_WORKERS))
    window = "stretch" if name == "pytorch+opencv" else "random-resized"
    data = training_split(pictures, "classification")
    for rank, size in [(0, 1)] if of_one else [(0, 2), (1, 2)]:
        world = ProcessWorld(torch.device("cpu"))
        world.rank, world.size = rank, size
        with opened(replace(asked, window=window), name, data, world) as (epochs, _):
            for epoch in range(2):
                assert sum(epochs(epoch)) == 72 // size // 8 * 8


def test_a_pass_over_images_with_boxes(coco_root: Path) -> None:
    of = points(Loader(data=coco_root, task="detection"))
    assert of and not BY_HAND["images"].keys() & {point["loader"] for point in of}
    data = training_split(coco_root, "detection")
    file = coco_root / "annotations/instances_train2017.json"
    boxes = json.loads(file.read_text())["annotations"]
    images = {box["image_id"] for box in boxes if not box["iscrowd"]}
    asked = asked_for(task="detection", batch_size=2)
    with opened(asked, "torchvision", data, ALONE) as (epochs, _):
        assert sum(epochs(0)) == len(images) // 2 * 2


def test_waits_are_counted_apart_from_steps_and_from_the_first_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def batches() -> Iterator[int]:
        for late_s in (4.0, 0.5, 0.0, 0.25):
            sleep(late_s)
            yield 4
        sleep(9.0)  # the end of an epoch is nobody's wait

    clock = SimpleNamespace(perf_counter=lambda: now, sleep=sleep)
    monkeypatch.setattr(loader, "time", clock)
    counts: list[int] = []
    found, steps = consume(batches(), 2.0, lambda: sleep(0.125), counts.append)
    assert (steps, counts) == (4, [4] * 4)
    waited_s = 0.75 + 3 * 0.125
    assert found == {
        "first_batch_s": 4.125,
        "total_s": 4 * 2.0 + waited_s,
        "waited_s": waited_s,
    }


def brief(folder: Path, least_s: float) -> Suite:
    """The suite, with windows that take no more than `least_s` and the pass that is under way."""
    script = folder / "brief.py"
    script.write_text(
        f"from benchmarks import loader; loader.LEAST_S = {least_s}; "
        "loader.measuring(loader.Loader, loader.measure)"
    )

    def command(*asked: Any) -> list[str]:
        # between them -m benchmarks.loader
        *words, _, _, settings, point, folder = SUITE.command(*asked)
        return [*words, str(script), settings, point, folder]

    return replace(SUITE, command=command)


@pytest.mark.usefixtures("prompt_ran")
def test_two_ranks_pass_over_the_files(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.loader.SUITE", brief(tmp_path, 0.5))
    flags = "--loaders torchvision --gpus 2 --image-size 32 --batch-size 8 --workers 1"
    where = ["--data", str(pictures), "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.stdout.reconfigure", lambda **_: None, raising=False)
    code = bench.main(["loader", *where, *flags.split()])
    (row,) = results(tmp_path / "out")
    assert (code, row["status"]) == (0, "ok"), row["error"]
    figures = row["figures"]
    assert figures["samples"] == 64
    assert figures["files"] == 72
    assert figures["pass_s"] == pytest.approx(72 / figures["rate"])
    assert row["spread"]["rate"]["n"] == row["spread"]["pass_s"]["n"] == 3


def test_rows_are_compared_with_pytorch_with_dali_and_with_one_gpu() -> None:
    def row(name: str, gpus: int, rate: float) -> dict[str, Any]:
        point = {"loader": name, "gpus": gpus}
        return {"point": point, "status": "ok", "figures": {"rate": rate}}

    rates = [("pytorch", 1, 10.0), ("dali", 1, 80.0), ("nvdec", 1, 100.0)]
    rows = derive([row(*one) for one in (*rates, ("nvdec", 2, 180.0))])
    ratios = [(one["figures"]["speed_up"], one["figures"]["of_dali"]) for one in rows]
    assert ratios == [(1, 1 / 8), (8, 1), (10, 10 / 8), (None, None)]
    assert rows[3]["figures"]["scaling"] == pytest.approx(0.9)
    assert "scaling" not in rows[2]["figures"]


# --- clips --------------------------------------------------------------------------------------------------


def passed(
    name: str, videos: Path, epochs: int = 1, **changes: Any
) -> tuple[list[int], dict[str, Any]]:
    small = {"medium": "videos", "batch_size": 2, "image_size": 16, "clip_frames": 4}
    data = training_split(videos, "video")
    with opened(asked_for(**small | changes), name, data, ALONE) as (passes, tell):
        found = [samples for epoch in range(epochs) for samples in passes(epoch)]
        return found, tell(10.0)


CLIPS = ("pytorch", "pytorch+decord", "pyav", "synthetic", "pyav-alone", "decord-alone")


@pytest.mark.parametrize("name", CLIPS)
def test_a_pass_over_clips(name: str, videos: Path) -> None:
    if "decord" in name:
        pytest.importorskip("decord")
    found, told = passed(name, videos, epochs=2)
    assert found == [2] * 10
    assert (told["unit"], told["frames_per_s"]) == ("clip/s", 40.0)
    if name != "synthetic" and "alone" not in name:
        found, told = passed(name, videos, clip_frames=0, clip_stride=2)
        assert sum(found) == 10 and told["frames_per_s"] == pytest.approx(9 * 12 + 3)


def test_whole_files_are_decoded_once_from_end_to_end(videos: Path) -> None:
    _, told = passed("pyav", videos, clip_frames=0)
    shown_again = (9 * 24 + 6) / (10 * 24)
    assert told["decoded_per_frame"] == pytest.approx(shown_again)
    assert told["fallbacks"] is None


@pytest.mark.parametrize("decode", [pytorch.pyav_clip, pytorch.decord_clip])
def test_clips_by_hand_have_the_frames_that_were_asked_for(
    decode: pytorch.Decode, tmp_path: Path
) -> None:
    if decode is pytorch.decord_clip:
        pytest.importorskip("decord")
    path = str(make(tmp_path / "a.mp4", frames=30, gop=12))

    def shown(*clip: Any) -> list[int]:
        return [number(frame) for frame in decode(path, *clip)]

    assert shown(4, 1, 0.0) == [0, 1, 2, 3] and shown(4, 2, 1.0) == [23, 25, 27, 29]
    assert shown(4, 3, 0.5) == [10, 13, 16, 19] and shown(40, 1, 0.7) == list(range(30))


# --- links --------------------------------------------------------------------------------------------------


def test_frames_show_their_numbers(videos: Path) -> None:
    frames = pytorch.pyav_clip(str(videos / "train/video/0003.mp4"), 24, 1, 0.0)
    assert [video_set.number_of(frame) for frame in frames] == [*range(24)]
