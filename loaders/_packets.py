"""The packets of a file that show a clip's frames, for decoders on the device: from the key frame on, by the times of the manifest.

seek to the key frame -> packets -> [FFmpeg's bitstream filter] -> those that are needed, each with its frame
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.error import FFmpegError

from dataset.container import open_video
from dataset.video_packets import sides
from dataset.videos import CODECS
from loaders._readers import Undecodable
from loaders._reading import Read
from loaders.pyav import HASTY, Run

FILTERS = {codec: f"{codec}_mp4toannexb,{codec}_metadata=crop_right=0:crop_bottom=0" for codec in ("h264", "hevc")}
"""FFmpeg's bitstream filters: NVDEC's parser takes start codes, and the parameter sets in front of a key frame. Pictures are displayed as
they are coded, with the rows and columns that fill the last blocks: who keeps a decoder for files of many sizes does not notice that two
of them are coded alike and displayed otherwise. VP9 and AV1 are never cropped."""


class Group(NamedTuple):
    """Packets from one key frame on: bytes, time and, where it is wanted, frame of each, in the order of decoding; the last wanted time."""

    packets: list[tuple[int, int, int | None]]
    last: int


class Clip(NamedTuple):
    """What loaders._reading.Read says of a clip's packets: which sample it is of, its coded sides, and its groups."""

    sample: int
    height: int
    width: int
    groups: list[Group]

    @property
    def wanted(self) -> set[int]:
        """The frames that its packets show and that are wanted."""
        return {frame for group in self.groups for _, _, frame in group.packets if frame is not None}


def require(found: set[int], frames: Collection[int]) -> None:
    """Raise Undecodable unless all of `frames` were found."""
    if left := {*frames} - found:
        raise Undecodable(f"{len(left)} of {len(frames)} frames did not come")


def coded(codec: str, context: Any, packet: memoryview) -> tuple[int, int]:
    """Height and width of the pictures that a first packet begins, behind its filters. `context`: of their stream. Raises Undecodable."""
    if codec not in FILTERS:
        return context.height, context.width
    found = sides(codec, None, packet)
    if not all(found.coded):
        raise Undecodable("the head of its key frame does not say how large pictures are")
    if found.displayed != found.coded:
        raise Undecodable("it is cropped at the left or the top")
    return found.coded


class Packets:
    """loaders._reading.ReadClip: the packets that NVDEC needs to show the frames, one behind the other."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns
        av.logging.set_level(av.logging.PANIC)  # as loaders.pyav

    def __call__(self, sample: int, path: bytes, frames: list[int]) -> Read:
        groups, data, codec = list[Group](), list[bytes](), CODECS[self._columns.codec[sample]]
        with reading(self._columns, sample, path) as (run, stream):
            assert stream.codec_context is not None  # as Run has seen
            for wanted in wanted_together(self._columns, sample, run, frames):
                group = Group([], max(wanted))
                to_annex_b = BitStreamFilterContext(FILTERS[codec], in_stream=stream) if codec in FILTERS else None
                for packet, time, frame in chosen(run, codec, wanted, to_annex_b):
                    data.append(bytes(packet))
                    group.packets.append((len(data[-1]), time, frame))
                groups.append(group)
            require({frame for group in groups for _, _, frame in group.packets if frame is not None}, frames)
            clip = Clip(sample, *coded(codec, stream.codec_context, memoryview(data[0])), groups)
        return Read(np.frombuffer(b"".join(data), np.uint8), clip)


@contextmanager
def reading(columns: Any, sample: int, path: bytes) -> Iterator[tuple[Run, av.VideoStream]]:
    """An open file whose packets are wanted. What FFmpeg raises inside is Undecodable."""
    try:
        with open_video(path, known=True) as container:
            run = Run(container, columns, sample, HASTY)
            stream = container.streams[int(columns.stream[sample])]
            assert isinstance(stream, av.VideoStream)  # as Run has seen
            yield run, stream
    except (FFmpegError, ValueError) as error:  # Undecodable is one
        raise Undecodable(str(error)) from error


def wanted_together(columns: Any, sample: int, run: Run, frames: list[int]) -> Iterator[dict[int, int]]:
    """Time -> frame, of each group that a key frame begins."""
    pts = columns.pts(sample)
    for together in run.split(frames):
        yield {int(pts[frame]): frame for frame in together}


def chosen(
    run: Run, codec: str, wanted: dict[int, int], to_annex_b: BitStreamFilterContext | None
) -> Iterator[tuple[av.Packet[Any], int, int | None]]:
    """(packet, time, frame or None) of those that NVDEC needs to show the frames of `wanted`, by time, in the order of decoding.

    From the key frame on until the last wanted one; without those that no picture is made from, where H.264 says so. Raises Undecodable.
    Parts that an edit list shows in another order than the file has them, or twice, are refused: what it cuts away at their ends has times
    of others.
    """
    begin, left, started = min(wanted), len(wanted), False
    latest, place = begin, 0
    sync = run.seek(wanted[begin])
    for packet in run.packets(sync, begin):
        if packet.is_corrupt or packet.pts is None:
            raise Undecodable("damaged")
        time, its_place = packet.pts, packet.pos if packet.pos is not None else place
        if started and packet.is_keyframe and (time <= latest or its_place < place):
            raise Undecodable("an edit list shows its parts in another order")
        latest, place = max(latest, time) if started else time, its_place
        frame = None if packet.is_discard else wanted.get(time)
        left -= frame is not None
        for single in to_annex_b.filter(packet) if to_annex_b else [packet]:  # takes what was in `packet`
            head = kinds(single, codec)
            if not started and "parameters" not in head:
                raise Undecodable("its key frame comes without parameter sets")
            started = True
            if frame is not None or "disposable" not in head:
                yield single, time, frame
        if not left:
            return


def kinds(packet: Any, codec: str) -> set[str]:
    """What is in front of a packet: parameter sets that its pictures need, and a picture that no other one is made from."""
    data, found = memoryview(packet), set[str]()
    if codec == "vp9":  # has none
        return {"parameters"}
    if codec == "av1":
        at = 2 if data[0] >> 3 & 15 == 2 else 0  # behind the delimiter
        return {"parameters"} if len(data) > at and data[at] >> 3 & 15 == 1 else set()
    head = bytes(data[:4096])
    at = head.find(b"\0\0\1")
    while 0 <= at < len(head) - 3:
        unit = head[at + 3]
        number = unit & 31 if codec == "h264" else unit >> 1 & 63
        if number == (7 if codec == "h264" else 33):
            found.add("parameters")
        elif number in (1, 5) if codec == "h264" else number < 32:
            if codec == "h264" and not unit >> 5 & 3:
                found.add("disposable")
            break
        at = head.find(b"\0\0\1", at + 3)
    return found
