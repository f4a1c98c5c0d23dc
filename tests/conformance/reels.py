"""Scenes of videos: small files, few of which are linked often."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saturate.dataset.videos.scan import open_videos
from saturate.plan.clips import ClipPlan, ClipPolicy
from saturate.plan.epoch import EpochPlan
from tests.conformance import pictures
from tests.conformance.scenes import Scene, blue_of
from tests.unit.video_files import Video, make

KINDS: dict[str, dict[str, Any]] = {
    "b-frames.mp4": {"b_frames": 2},
    "b-frames.mkv": {"b_frames": 2},
    "one-key.mp4": {"gop": 250},
    "turned.mp4": {"size": (64, 48), "rotation": 90, "b_frames": 1},
    "stream.ts": {"b_frames": 2},
    "mpeg4.avi": {"codec": "mpeg4"},
}
"""File -> tests.unit.video_files.Video: H.264 for every backend, one that pyav alone does, one for CPUs."""
SAME: dict[str, Any] = {"frames": 10, "size": (48, 64), "gop": 4}
RULED_FRAMES = 3
"""So few that their blues are apart by more than a decoder may be off."""


@dataclass(frozen=True, kw_only=True)
class Reel(Scene):
    """Videos in a folder. `frames`: of a clip. A validation has three crops of each video's middle clip."""

    frames: int

    def plan(self, image_size: int, *, batch_size: int, training: bool) -> EpochPlan:
        resize = round(image_size * 256 / 224)
        policy = ClipPolicy(
            frames=self.frames,
            image_size=image_size,
            shorter=(resize, round(image_size * 320 / 224)),
            flip=0.5 if training else 0.0,
            crops=3,
            resize=resize,
        )
        return ClipPlan(
            self.manifest, policy, seed=5, batch_size=batch_size, training=training
        )

    def blue(self, sample: int, frame: int = 0) -> int:
        return blue_of(
            RULED_FRAMES * int(self.names[sample].removeprefix("ramp-")) + frame
        )


def filmed(data: Path, cache: Path, frames: int) -> Reel:
    """A scene of a folder that is there already; `frames` of a clip."""
    videos = open_videos(data, cache=cache, workers=2)
    return Reel.of(data, videos, frames=frames)


def quick(folder: Path, count: int = 42) -> Reel:
    """Many names of six files of ten frames, each of which shows its number. Clips of four."""
    made = [
        make(folder / "files" / name, Video(**SAME | kind, numbers_from=50 * place))
        for place, (name, kind) in enumerate(KINDS.items())
    ]
    for i in range(count):
        file = made[i % len(made)]
        link = folder / "data" / f"class-{i % 3}" / f"quick-{i:03d}{file.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, link)
    return filmed(folder / "data", folder / "manifests", 4)


def ruled(folder: Path) -> Reel:
    """Videos whose pixels encode x (red), y (green), file and frame (blue). Clips of two frames."""
    shapes = [(48, 64), (64, 48), (40, 60), (52, 52)]
    for place in range(2 * len(shapes)):
        height, width = shapes[place % len(shapes)]
        shown = [
            pictures.ramp(height, width, blue=blue_of(RULED_FRAMES * place + frame))
            for frame in range(RULED_FRAMES)
        ]
        path = folder / "data" / f"class-{place % 3}" / f"ramp-{place:02d}.mp4"
        make(
            path,
            shown=shown,
            size=(height, width),
            rotation=90 * (place == 1),
            b_frames=2,
            options={"qp": "2"},
        )
    return filmed(folder / "data", folder / "manifests", 2)
