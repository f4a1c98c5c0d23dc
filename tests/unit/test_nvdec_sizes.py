"""What the GPU's video engines are given of files of many sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from saturate.dataset.videos.scan import open_videos
from saturate.loaders import Undecodable
from saturate.loaders.videos._packets import Packets
from saturate.loaders.videos._planes import pixels_of
from saturate.loaders.videos._surfaces import Fit
from saturate.loaders.videos.dali_video import Cutting
from saturate.loaders.videos.exact import exact
from saturate.loaders.videos.pyav import Pyav
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.engines import Codec
from tests.unit.test_nvdec import Reading, numbers
from tests.unit.test_video_faults import joined
from tests.unit.video_files import make

ALIKE: list[tuple[str, dict[str, Any]]] = [
    *(
        ("h264.mp4", {"size": size})
        for size in [(88, 120), (96, 128), (88, 128), (96, 120), (80, 112)]
    ),
    *(("hevc.mp4", {"size": (88, 120), "unit": unit}) for unit in (8, 16, 32)),
    *(
        ("hevc.mp4", {"size": size, "unit": 8})
        for size in [(96, 128), (88, 128), (96, 120), (80, 112)]
    ),
    *(("vp9.webm", {"size": size}) for size in [(88, 120), (96, 128), (90, 120)]),
    ("h264-90.mp4", {"size": (88, 120)}),
]
"""Sizes of which many are coded in the same blocks of 16."""


def test_sizes_that_are_coded_alike(tmp_path: Path) -> None:
    kinds = Made(
        tmp_path,
        {
            f"{at:02}-{kind}": KINDS[kind] | more
            for at, (kind, more) in enumerate(ALIKE)
        },
    )
    pyav, codec = Pyav(kinds.videos), Codec()
    read = Reading(kinds.videos, codec)
    order = np.random.default_rng(0).integers(0, len(ALIKE), 60).tolist()
    for sample in order:
        height, width = (
            int(kinds.videos.height[sample]),
            int(kinds.videos.width[sample]),
        )
        whole, wanted = np.array([0, 0, width, height]), [1, 2]
        right = {}
        for frame, picture in pyav(sample, kinds.videos.path(sample), wanted):
            right[frame] = pixels_of(picture)
        for frame, picture, surface in read(sample, wanted):
            assert picture.shape == (height, width)
            found = Fit(picture, whole, whole, (height, width))(surface[None])[
                0
            ].numpy()
            assert np.abs(found.astype(int) - right[frame]).max() <= 1, kinds.names[
                sample
            ]
    assert codec.made <= 1 + 4 + 1 + 3, (
        "of H.264, HEVC and VP9, and as many again for larger ones"
    )


@pytest.mark.parametrize(
    ("name", "side"), [("h264.mp4", "crop_left=2"), ("hevc.mp4", "crop_top=2")]
)
def test_a_picture_that_begins_elsewhere_is_refused(
    tmp_path: Path, name: str, side: str
) -> None:
    whole, codec = make(tmp_path / name, **KINDS[name]), name.partition(".")[0]
    (tmp_path / "data" / "x").mkdir(parents=True)
    with (
        av.open(str(whole)) as file,
        av.open(str(tmp_path / "data" / "x" / name), "w") as output,
    ):
        stream = file.streams.video[0]
        out = output.add_stream_from_template(stream)
        cropped = BitStreamFilterContext(
            f"{codec}_metadata={side}", in_stream=stream, out_stream=out
        )
        for packet in file.demux(stream):
            for single in cropped.filter(packet if packet.size else None):
                single.stream = out
                output.mux(single)
    videos = open_videos(tmp_path / "data", cache=tmp_path / "cache", workers=1)
    assert (videos.height[0] % 16, videos.width[0] % 16) == (
        (0, 14) if "left" in side else (14, 0)
    )
    assert exact("nvdec", videos).all()
    for reading in (Packets(videos), Cutting(videos)):
        with pytest.raises(Undecodable, match="cropped at the left or the top"):
            reading(0, videos.path(0), [3, 4])


@pytest.mark.parametrize(
    ("name", "other"), [("h264.mp4", (96, 112)), ("hevc.mp4", (88, 120))]
)
def test_a_size_that_changes_in_the_middle_is_refused(
    tmp_path: Path, name: str, other: tuple[int, int]
) -> None:
    """In the packets, since the scan, which leaves such files out. Clips of the part that is as the manifest
    says are right.
    """
    path = tmp_path / "data" / "x" / "both.mkv"
    path.parent.mkdir(parents=True)
    first, second = (
        make(tmp_path / f"{size}.mp4", **KINDS[name], size=size, frames=24)
        for size in ((96, 128), other)
    )
    joined(first, first, path)
    videos = open_videos(tmp_path / "data", cache=tmp_path / "cache", workers=1)
    joined(first, second, path)
    assert exact("nvdec", videos).all() and len(videos.pts(0)) == 48
    read = Reading(videos, Codec())
    assert numbers(read(0, [3, 20])) == {3: 3, 20: 20}
    for frames in ([22, 23, 25], [3, 4, 40], [30, 31]):
        for reading in (Packets(videos), Cutting(videos)):
            with pytest.raises(
                Undecodable, match=r"pictures (are of|change their size)"
            ):
                reading(0, videos.path(0), frames)
