"""One numbered video of every kind, with their manifest, for the tests of readers and loaders of clips."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.dataset.videos.scan import open_videos
from saturate.loaders import LOADERS, of_medium
from tests.unit.video_files import Video, make

FRAMES = 48
STEPS = tuple(
    int(tick)
    for tick in np.random.default_rng(3)
    .choice([3000, 3600, 5400, 9000], FRAMES)
    .cumsum()
)
CLAIMED = [
    name
    for name, spec in of_medium("videos").items()
    if name != "synthetic" and not spec.exact and "+" not in name
]
"""Loaders that are exact for some kinds of file alone."""
HIDDEN = {"lag-in-frames": "25", "auto-alt-ref": "1", "b": "300000"}
"""VP9 with frames that are decoded and not shown, each in a packet with one that is."""
KINDS: dict[str, dict[str, Any]] = {
    "h264.mp4": {"b_frames": 3},
    "h264.mkv": {"b_frames": 3},
    "h264.ts": {"b_frames": 3},
    "h264.avi": {},
    "h264.asf": {},
    "h264.flv": {"b_frames": 3},
    "h264-variable.mp4": {"b_frames": 3, "ticks": STEPS},
    "h264-90.mp4": {"b_frames": 3, "rotation": 90},
    "h264-270.mp4": {"rotation": 270},
    "h264-cut.mp4": {"b_frames": 3, "cut": 7},
    "h264-parts.mp4": {"b_frames": 2, "parts": [(36, 9), (0, 36)]},
    "h264-open.mp4": {"b_frames": 3, "open_gop": True},
    "h264-open-cut.mp4": {"b_frames": 3, "open_gop": True, "from_key": 1, "cut": 14},
    "h264-interlaced.mp4": {"interlaced": True, "b_frames": 2},
    "h264-one-key.ts": {"b_frames": 5, "gop": 250},
    "h264-fragments.mp4": {
        "b_frames": 2,
        "muxer": {"movflags": "frag_keyframe+empty_moov"},
    },
    "h264-two.mp4": {
        "b_frames": 2,
        "other": Video(frames=40, size=(48, 64), numbers_from=1000),
    },
    "h264-ten.mp4": {"b_frames": 2, "pixels": "yuv420p10le"},
    "h264-444.mkv": {"pixels": "yuv444p"},
    "hevc.mp4": {"codec": "hevc", "b_frames": 3},
    "hevc-layers.mp4": {"codec": "hevc", "b_frames": 7, "layers": 3, "gop": 24},
    "hevc-variable.mkv": {"codec": "hevc", "b_frames": 3, "ticks": STEPS},
    "hevc-open.mp4": {"codec": "hevc", "b_frames": 3, "open_gop": True},
    "hevc-cut.mp4": {"codec": "hevc", "b_frames": 3, "cut": 7},
    "hevc-90.mp4": {"codec": "hevc", "b_frames": 2, "rotation": 90},
    "hevc-unaligned.mp4": {"codec": "hevc", "b_frames": 2, "size": (184, 264)},
    "vp9.mp4": {"codec": "vp9"},
    "vp9.webm": {"codec": "vp9"},
    "vp9-variable.webm": {"codec": "vp9", "ticks": STEPS},
    "vp9-hidden.mp4": {"codec": "vp9", "options": HIDDEN},
    "vp9-hidden.webm": {"codec": "vp9", "options": HIDDEN},
    "vp9-again.webm": {
        "codec": "vp9",
        "options": HIDDEN,
        "again": (3, 29),
        "frames": FRAMES - 2,
    },
    "vp9-odd.mp4": {"codec": "vp9", "size": (121, 161)},
    "h264-709.mp4": {"matrix": 1},
    "h264-full.mp4": {"full_range": True},
    "h264-grey.mp4": {"pixels": "gray"},
    "hevc-709.mp4": {"codec": "hevc", "matrix": 1, "full_range": True},
    "vp8.webm": {"codec": "vp8"},
    "av1.mp4": {"codec": "av1", "options": {"crf": "4", "preset": "8"}},
    "mpeg4.mp4": {"codec": "mpeg4"},
    "mpeg4.avi": {"codec": "mpeg4"},
    "mpeg4-b.avi": {"codec": "mpeg4", "b_frames": 1},
    "mpeg4-b.mp4": {"codec": "mpeg4", "b_frames": 2},
    "mpeg4-packed.avi": {"codec": "mpeg4", "b_frames": 1, "packed": True},
    "mpeg2.ts": {"codec": "mpeg2video", "b_frames": 2},
    "mjpeg.avi": {"codec": "mjpeg", "pixels": "yuvj420p"},
    # its decoder takes every frame for a key frame
    "ffv1.mkv": {"codec": "ffv1"},
}
"""File -> what tests.unit.video_files.Video it is."""


class Made:
    """Files of KINDS and their manifest."""

    def __init__(self, folder: Path, kinds: dict[str, dict[str, Any]]) -> None:
        self.folder = folder / "data" / "x"
        self.kinds = kinds
        for name, video in kinds.items():
            make(self.folder / name, Video(**{"frames": FRAMES, "gop": 12, **video}))
        self.videos = open_videos(folder / "data", cache=folder / "cache", workers=2)
        self.names = [
            os.path.basename(os.fsdecode(self.videos.path(i)))
            for i in range(len(self.videos))
        ]

    def shown(self, sample: int, frame: int) -> int:
        """The number that the frame must show."""
        video = self.kinds[self.names[sample]]
        if "parts" in video:
            return [
                number
                for first, count in video["parts"]
                for number in range(first, first + count)
            ][frame]
        twice = sorted([*range(FRAMES), *video.get("again", ())])
        return int(video.get("cut", 0)) + twice[frame]


def reader(backend: str, columns: Any) -> Any:
    """The loaders.videos._worker.Reader that the loader of this name gives to its ClipLoader; else skip."""
    module = import_module(LOADERS[backend].module)
    if not hasattr(module, "ClipLoader"):
        pytest.skip("decodes on a GPU: tests/gpu/test_clips.py")
    with mock.patch.object(
        module, "ClipLoader", lambda feed, name, make_reader, make_pyav: make_reader
    ):
        try:
            return module.open(SimpleNamespace(columns=columns))(columns)
        except UserError as error:
            pytest.skip(str(error))
