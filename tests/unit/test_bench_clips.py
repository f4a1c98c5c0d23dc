"""The suite `loader` with videos."""

from __future__ import annotations

import importlib.util
import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks._loaders import Asked, open_data, opened
from benchmarks.baselines import nvdec, pytorch
from contracts import UserError
from dataset.videos.columns import CODECS, RECORD
from dataset.videos.packets import read
from scripts import video_set
from tests.unit.video_files import make, number


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos") / "data"
    kind = video_set.Kind(frames=24, height=64, width=96, gop=8)
    assert video_set.write(folder, 9, kind, progress=False, processes=1)
    make(folder / "train" / "odd" / "short.avi", frames=6, codec="mpeg4", size=(64, 96))
    return folder


class Alone:
    rank, size, device = 0, 1, torch.device("cpu")


def passed(
    name: str, videos: Path, epochs: int = 1, **asked: Any
) -> tuple[list[int], dict[str, Any]]:
    small: dict[str, Any] = {
        "medium": "videos",
        "batch_size": 2,
        "image_size": 16,
        "workers": 0,
    }
    whole = Asked(**small | {"clip_frames": 4} | asked)
    world: Any = Alone()
    with opened(whole, name, open_data(videos / "train", "videos"), world, videos) as (
        run,
        tell,
    ):
        return [samples for epoch in range(epochs) for samples in run(epoch)], tell(
            10.0
        )


@pytest.fixture(autouse=True)
def cached(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize(
    "name",
    ["pytorch", "pytorch+decord", "pyav", "synthetic", "pyav-alone", "decord-alone"],
)
def test_a_pass_over_clips(name: str, videos: Path) -> None:
    if "decord" in name:
        pytest.importorskip("decord")
    found, told = passed(name, videos, epochs=2)
    assert found == [2] * 10
    assert (told["unit"], told["frames_per_s"]) == ("clip/s", 40.0)
    found, told = passed(name, videos, clips=3)
    assert sum(found) == 30
    if name != "synthetic" and "alone" not in name:
        found, told = passed(name, videos, clip_frames=0, clip_stride=2)
        assert sum(found) == 10 and told["frames_per_s"] == pytest.approx(
            10 * (9 * 12 + 3) / 10
        )


def test_whole_files_are_decoded_once_from_end_to_end(videos: Path) -> None:
    _, told = passed("pyav", videos, clip_frames=0)
    assert told["decoded_per_frame"] == pytest.approx((9 * 24 + 6) / (10 * 24)), (
        "a frame that is shown again is not decoded again"
    )
    assert told["fallbacks"] is None
    _, told = (
        passed("decord", videos, clip_frames=4)
        if importlib.util.find_spec("decord")
        else ([], {})
    )
    assert not told or told["frames_per_s"] == 40.0


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


def test_a_clip_by_hand_that_is_too_short_repeats_its_last_frame(
    tmp_path: Path,
) -> None:
    path = str(make(tmp_path / "a.mp4", frames=3))
    data = pytorch.Clips(
        [path], [7], decode=pytorch.pyav_clip, frames=5, stride=1, clips=1, size=64
    )
    pixels, label = data[0]
    assert (
        pixels.shape == (3, 5, 64, 64) and pixels.dtype == torch.float32 and label == 7
    )


def test_the_engines_by_hand_take_every_file_in_turn_and_miss_no_frame() -> None:
    log: list[tuple[str, int]] = []

    class SimpleDecoder:
        """Stands in for PyNvVideoCodec's: files have 40 frames, and `short.mp4` fewer than it says."""

        def __init__(self, file: str, gpu_id: int, use_device_memory: bool) -> None:
            assert use_device_memory and gpu_id == 3
            self.reconfigure_decoder(file)

        def reconfigure_decoder(self, file: str) -> None:
            self.file, self.left = file, 20 if file == "short.mp4" else 40

        def __len__(self) -> int:
            return 40

        def get_batch_frames(self, count: int) -> list[int]:
            came = min(count, self.left)
            self.left -= came
            log.append((self.file, came))
            return [0] * came

        def get_batch_frames_by_index(self, wanted: list[int]) -> list[int]:
            log.append((self.file, len(wanted)))
            return [at for at in wanted if at < self.left]

    def first(files: list[str], count: int, **asked: Any) -> list[int]:
        given = {"frames": 4, "stride": 2, "clips": 0, "threads": 2, "gpu": 3} | asked
        log.clear()
        return list(
            itertools.islice(
                nvdec.clips(
                    SimpleNamespace(SimpleDecoder=SimpleDecoder), files, **given
                ),
                count,
            )
        )

    assert first(["a", "b", "c"], 6) == [4] * 6 and {file for file, _ in log[:9]} == {
        "a",
        "b",
        "c",
    }
    assert first(["a"], 3, clips=5) == [4] * 3
    assert first(["a", "b"], 2, frames=0) == [40, 40] and log[0][1] == 16
    for frames in (0, 40):
        with pytest.raises(ValueError, match="20 of 40 frames came"):
            first(["short.mp4"], 1, frames=frames, stride=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nvdec", "--loader nvdec"),
        ("dali", "--loaders dali"),
        ("dali-experimental", "--loaders dali-experimental"),
        ("nvdec-alone", "--loaders nvdec-alone"),
    ],
)
def test_a_loader_of_clips_that_cannot_run_here_says_so(
    name: str, said: str, videos: Path
) -> None:
    with pytest.raises(UserError, match=f"{said} needs an NVIDIA GPU"):
        passed(name, videos)


def test_a_set_of_videos_is_as_asked(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        read(os.fsencode(path))
        for path in sorted((videos / "train" / "video").iterdir())
    ]
    assert len(found) == 9
    for times in found:
        about = dict(zip(RECORD.names or (), times.record, strict=True))
        wanted = {"height": 64, "width": 96, "count": 24, "fps": 30.0, "flags": 0}
        assert about.items() >= wanted.items()
        assert CODECS[about["codec"]] == "h264" and times.keys.nonzero()[
            0
        ].tolist() == [0, 8, 16]
    assert len({times.record for times in found}) > 1, (
        "of different sizes in bytes, so no two are alike"
    )
    assert not video_set.write(videos, 9)
    for words in (["--count", "0"], ["--size", "65", "96"]):
        assert video_set.main([str(tmp_path / "new"), *words]) == 2
    assert video_set.main([str(videos), "--count", "3"]) == 2
    assert capsys.readouterr().err.count("\n") == 3 and not (tmp_path / "new").exists()
