"""DALI's decoder of clips, on the CPU, where it decodes VP9 alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from saturate.contracts import Rows
from saturate.loaders.videos._planes import Fitter
from saturate.loaders.videos._reading import Read
from saturate.loaders.videos._worker import REFUSED
from saturate.loaders.videos.dali_video import Cutting, DaliVideo, Filling
from saturate.loaders.videos.exact import exact
from saturate.loaders.videos.pyav import Pyav
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.test_clip_loaders import feed, shows_what_is_asked
from tests.unit.test_clip_readers import patterns
from tests.unit.video_files import number

CPU = torch.device("cpu")
VP9 = ("vp9.webm", "vp9-variable.webm", "vp9.mp4")
CLAIMED = [
    "h264.mp4",
    "h264.mkv",
    "h264-variable.mp4",
    "h264-fragments.mp4",
    "h264-709.mp4",
    "h264-full.mp4",
    "hevc-709.mp4",
    "h264-cut.mp4",
    "h264-parts.mp4",
    "h264-two.mp4",
    *(
        "hevc.mp4",
        "hevc-layers.mp4",
        "hevc-variable.mkv",
        "hevc-cut.mp4",
        *VP9,
    ),
]


SOME = ["h264-cut.mp4", "h264-two.mp4", "hevc-layers.mp4"]
SOME += ["hevc-variable.mkv"]


def open_video_of(read: Read, *, known: bool = False) -> Any:
    """`known`: by what the container says alone."""
    return av.open(
        io.BytesIO(read.data.tobytes()),
        container_options={"codec_whitelist": "none"} if known else {},
    )


def test_the_table(made: Made) -> None:
    claimed = exact("dali-video", made.videos)
    assert sorted(np.array(made.names)[claimed]) == sorted(CLAIMED)


@pytest.mark.parametrize("name", VP9)
def test_windows_of_the_frames_that_were_asked_for(made: Made, name: str) -> None:
    sample, frames = made.names.index(name), [30, 3, 3, 47, 0]
    fill = Filling(CPU, 0)
    height, width = int(made.videos.height[sample]), int(made.videos.width[sample])
    rows = Rows(
        ids=np.full(3, sample),
        frames=np.tile(frames, (3, 1)),
        regions=np.array([[0, 0, width, height], [8, 6, 100, 90], [8, 6, 100, 90]]),
        windows=np.array(
            [[0.0, 0, width, height], [3.2, 4.7, 80.1, 77.7], [0.0, 0.0, 60.0, 84.0]]
        ),
        sizes=np.array([[height, width], [48, 56], [40, 40]]),
        turns=np.zeros(3, np.uint8),
        valid=np.ones(3, bool),
    )
    out = torch.zeros((3, len(frames), height, width, 3), dtype=torch.uint8)
    fill(
        Cutting(made.videos)(sample, made.videos.path(sample), sorted(set(frames))),
        rows,
        np.arange(3),
        out,
    )
    assert [number(frame.numpy()) for frame in out[0]] == frames
    for place in range(3):
        size = tuple(rows.sizes[place].tolist())
        for frame, picture in Pyav(made.videos)(
            sample, made.videos.path(sample), sorted(set(frames))
        ):
            expected = np.empty((*size, 3), np.uint8)
            Fitter(picture, rows.regions[place], rows.windows[place], size).fill(
                expected, picture
            )
            found = out[place, frames.index(frame), : size[0], : size[1]].numpy()
            assert np.abs(found.astype(int) - expected).mean() < 0.5
    fill.close()


@pytest.mark.parametrize("name", SOME)
def test_a_small_file_shows_the_frames(made: Made, name: str) -> None:
    sample = made.names.index(name)
    cutting, path = Cutting(made.videos), made.videos.path(sample)
    for frames in patterns(len(made.videos.pts(sample))):
        read = cutting(sample, path, frames)
        with open_video_of(read) as file:
            shown = sorted(file.decode(video=0), key=lambda frame: frame.pts or 0)
        assert len(shown) == read.about.packets
        assert len({frame.pts for frame in shown}) == len(shown)
        assert shown[0].pts is not None and shown[0].pts >= 0
        for frame in frames:
            picture = shown[read.about.places[frame]].to_ndarray(format="rgb24")
            assert number(
                picture[: made.videos.height[sample], : made.videos.width[sample]]
            ) == made.shown(sample, frame)


@pytest.mark.parametrize(
    ("name", "size", "unit"),
    [
        ("h264.mp4", (90, 100), (96, 112)),
        ("h264.mkv", (96, 112), (96, 112)),
        ("hevc.mp4", (90, 100), (96, 104)),
        ("vp9.webm", (90, 100), (90, 100)),
    ],
)
def test_pictures_are_displayed_as_they_are_stored(
    tmp_path: Path, name: str, size: tuple[int, int], unit: tuple[int, int]
) -> None:
    kinds = Made(tmp_path, {name: KINDS[name] | {"size": size}})
    assert (kinds.videos.height[0], kinds.videos.width[0]) == size
    read = Cutting(kinds.videos)(0, kinds.videos.path(0), [13, 14])
    with open_video_of(read, known=True) as head, open_video_of(read) as file:
        context = head.streams.video[0].codec_context
        assert context is not None and (context.height, context.width) == unit
        assert {(frame.height, frame.width) for frame in file.decode(video=0)} == {unit}


def test_every_clip_of_every_kind(made: Made) -> None:
    given = feed(made.videos)
    loading = DaliVideo(given)
    with loading:
        shows_what_is_asked(loading, given, made)
        told = loading.counts.fallbacks
        assert told["h264 in mp4, refused"] >= 2 and told["h264 in mp4, rotated"] >= 2
        assert not any(
            "vp9" in sort and "odd" not in sort and "refused" in sort for sort in told
        )
        assert set(loading.counts.refusals) == {
            sort for sort in told if sort.endswith(REFUSED)
        }
        assert (
            "Failed to create video decoder"
            in loading.counts.refusals["h264 in mp4" + REFUSED]
        )
