"""What the GPU's video engines are given and give, with FFmpeg in their place."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from saturate.loaders import Undecodable
from saturate.loaders.videos._engines import CLIP_TICKS, Nvdec, capabilities, within
from saturate.loaders.videos._packets import Packets
from saturate.loaders.videos._planes import Picture
from saturate.loaders.videos._surfaces import Fit
from saturate.loaders.videos.nvdec import runs
from tests.unit.clip_kinds import Made
from tests.unit.engines import Codec
from tests.unit.video_files import number


def shown(picture: Picture, surface: torch.Tensor) -> int:
    height, width = picture.shape
    whole = np.array([0, 0, width, height])
    return number(
        Fit(picture, whole, whole.astype(float), (height // 2, width // 2))(
            surface[None]
        )[0].numpy()
    )


def numbers(frames: Iterator[tuple[int, Picture, torch.Tensor]]) -> dict[int, int]:
    return {frame: shown(picture, surface) for frame, picture, surface in frames}


class Reading:
    """Frames of files by one Nvdec, with its packets read right before."""

    def __init__(self, videos: Any, codec: Codec) -> None:
        self.nvdec, self._packets, self._videos = (
            Nvdec(videos, codec, 0, 0),
            Packets(videos),
            videos,
        )

    def __call__(
        self, sample: int, frames: list[int]
    ) -> Iterator[tuple[int, Picture, torch.Tensor]]:
        return self.nvdec(self._packets(sample, self._videos.path(sample), frames))


def test_what_the_device_decodes(made: Made) -> None:
    caps = capabilities(Codec(least=96), 0)
    assert sorted(caps) == ["h264", "hevc"]
    fits = dict(zip(made.names, within(caps, made.videos), strict=True))
    assert fits["h264.mp4"] and fits["h264-90.mp4"] and fits["hevc.mp4"]
    assert not fits["vp9.webm"] and not fits["mpeg4.avi"]
    assert not within({"h264": caps["h264"]._replace(least=(97, 1))}, made.videos).all()
    assert not within({"h264": caps["h264"]._replace(blocks=47)}, made.videos).any()


def fed(made: Made, name: str, frames: list[int]) -> tuple[list[int], list[int]]:
    """Display places of the packets that were fed, and of those whose frames were to be shown, in the order
    of decoding.
    """
    codec, sample = Codec(), made.names.index(name)
    list(Reading(made.videos, codec)(sample, frames))
    pts = made.videos.pts(sample).tolist()
    places = [pts.index(label % CLIP_TICKS + pts[0]) for label, _ in codec.packets]
    return places, [
        place
        for place, (_, hidden) in zip(places, codec.packets, strict=True)
        if not hidden
    ]


def test_packets_from_the_key_frame_to_the_last_wanted_one(made: Made) -> None:
    """Key frames are 12 apart. Of those before the wanted ones, B-frames that no other frame is made from are
    left out.
    """
    places, asked = fed(made, "h264.mkv", [20, 21])
    assert (
        places[0] == 12
        and sorted(asked) == [20, 21, 23]
        and not set(places) - set(range(12, 25))
    ), "23 comes before them"
    assert 16 in places and not set(places) & {13, 15}, "those are disposable"
    places, _ = fed(made, "hevc.mp4", [20])
    assert sorted(places) == [12, 13, 14, 15, 16, 20], "in HEVC none is left out"
    places, _ = fed(made, "h264.mkv", [2, 40])
    assert 12 not in places and 24 not in places and 36 in places, (
        "two key frames, with none of the frames between"
    )


class Losing(Codec):
    """Gives no picture for the packet of one label, as a parser that leaves a damaged one out."""

    lost = 0

    def CreateDecoder(self, **given: Any) -> Any:
        session = super().CreateDecoder(**given)
        decode = session.Decode

        def losing(data: Any) -> Any:
            if data.bsl and data.pts % CLIP_TICKS == self.lost:
                heapq.heappush(session._labels, data.pts)
                return []
            return decode(data)

        session.Decode = losing  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("wanted", [[7, 8, 9], [5, 40]])
@pytest.mark.parametrize("name", ["hevc.mp4", "vp9.webm"])
def test_a_missing_picture_is_no_reason_to_show_others(
    made: Made, name: str, wanted: list[int]
) -> None:
    """Those behind it would have had the labels of the ones before them, or their places."""
    sample = made.names.index(name)
    pts, codec = made.videos.pts(sample), Losing()
    read = Reading(made.videos, codec)
    codec.lost = int(pts[5] - pts[0])  # no picture is made from it
    with pytest.raises(
        Undecodable,
        match="label of another"
        if name == "hevc.mp4" and 5 not in wanted
        else "is missing",
    ):
        list(read(sample, wanted))
    codec.lost = -1
    assert numbers(read(sample, wanted)) == {frame: frame for frame in wanted}
    assert codec.made == 2, "the decoder still had a label"


def test_a_picture_that_is_shown_again_does_not_come(made: Made) -> None:
    read, sample = Reading(made.videos, Codec()), made.names.index("vp9-again.webm")
    for wanted in ([2, 3, 4], [3, 6]):
        with pytest.raises(Undecodable, match="a picture is missing"):
            list(read(sample, wanted))
    assert numbers(read(sample, [2, 3])) == {2: 2, 3: 3}


def test_parts_in_another_order_are_refused(made: Made) -> None:
    """Nine frames from the end come first. Clips of one part are right; those of both are pyav's."""
    sample = made.names.index("h264-parts.mp4")
    read = Reading(made.videos, Codec())
    for frames in ([0, 3, 4], [9, 12], [20, 22, 30], [44]):
        assert numbers(read(sample, frames)) == {
            frame: made.shown(sample, frame) for frame in frames
        }
    for frames in ([7, 9], [5, 12, 13]):
        with pytest.raises(Undecodable, match="parts in another order"):
            list(read(sample, frames))


def test_runs() -> None:
    """One copy for frames that follow each other; a frame that is shown twice ends it."""
    pairs = [(0, 0), (0, 1), (1, 2), (3, 3), (4, 4)]
    assert list(runs(pairs)) == [(0, 0, 1), (0, 1, 2), (3, 3, 2)]
