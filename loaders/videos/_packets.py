"""The packets that show a clip's frames, for decoders on the device: by the manifest's times.

seek to the key frame -> packets -> [FFmpeg's bitstream filter] -> those that are needed, each with its frame
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.error import FFmpegError

from saturate.dataset.videos.bitstream import first_slice, sides
from saturate.dataset.videos.columns import CODECS, Videos
from saturate.dataset.videos.container import open_video
from saturate.loaders import Undecodable
from saturate.loaders.videos._reading import Read
from saturate.loaders.videos.pyav import HASTY, OpenFile

FILTERS = {
    codec: (f"{codec}_mp4toannexb", f"{codec}_metadata=crop_right=0:crop_bottom=0")
    for codec in ("h264", "hevc")
}
"""FFmpeg's bitstream filters of a codec: to start codes for NVDEC's parser, and without a crop.

The first puts the parameter sets in front of a key frame. By the second pictures are displayed as they are
coded, with the rows and columns that fill the last blocks: who keeps a decoder for files of many sizes does
not notice that two of them are coded alike and displayed otherwise.
"""


_PARAMETERS = {
    "h264": re.compile(rb"\x00\x00\x01[\x07\x27\x47\x67]"),
    "hevc": re.compile(rb"\x00\x00\x01[\x42\x43]"),
}
"""Codec -> how a sequence parameter set begins."""


class Filters:
    """FILTERS for the packets of one run from a key frame on; only its parameter sets are changed."""

    def __init__(
        self, codec: str, stream: av.VideoStream, out: av.VideoStream | None = None
    ) -> None:
        """Set the filters up. `out`: becomes a stream of what is filtered."""
        self._known = codec in FILTERS
        if self._known:
            annex_b, uncropped = FILTERS[codec]
            self._keys = BitStreamFilterContext(
                f"{annex_b},{uncropped}", in_stream=stream, out_stream=out
            )
            self._others = BitStreamFilterContext(annex_b, in_stream=stream)

    def __call__(self, packet: av.Packet[Any]) -> list[av.Packet[Any]]:
        """Return the filtered packets; what is in the given one is taken out of it."""
        if not self._known:
            return [packet]
        return (self._keys if packet.is_keyframe else self._others).filter(packet)


class Group(NamedTuple):
    """Packets from one key frame on, in the order of decoding, and the last wanted time.

    Each is itself, or its number of bytes; its time; and, where it is wanted, its frame.
    """

    packets: list[tuple[Any, int, int | None]]
    last: int


class Clip(NamedTuple):
    """The `about` of a clip's _reading.Read: which sample it is of, its coded sides, and its groups."""

    sample: int
    height: int
    width: int
    groups: list[Group]


def before_turning(columns: Videos, sample: int) -> tuple[int, int]:
    """Return height and width of a file's pictures, cropped but not turned."""
    height, width = int(columns.height[sample]), int(columns.width[sample])
    return (height, width) if columns.rotation[sample] % 180 == 0 else (width, height)


class Size:
    """Checks that each picture of a clip has the manifest's size, at the top left of what is coded."""

    def __init__(
        self, columns: Videos, sample: int, context: av.VideoCodecContext
    ) -> None:
        """Begin with the size that the stream's `context` tells."""
        self._codec = CODECS[columns.codec[sample]]
        self._context = context
        self._shown = before_turning(columns, sample)
        self.coded = context.height, context.width
        """Height and width, once it has seen a key frame."""

    def see(self, packet: av.Packet[Any]) -> None:
        """Check a key frame before its filters. Raises Undecodable.

        Of VP9 the container's word has to do: pictures of another size would be scaled to it.
        """
        displayed = self.coded
        if self._codec in FILTERS:
            extradata = self._context.extradata
            displayed, self.coded = sides(self._codec, extradata, memoryview(packet))
        if displayed != self._shown:
            raise Undecodable(
                f"pictures are of {displayed} pixels, its file said {self._shown}"
            )

    def see_filtered(self, packet: av.Packet[Any]) -> None:
        """Check a key frame behind its filters, which leave a crop at left and top. Raises Undecodable."""
        if self._codec in FILTERS and sides(self._codec, None, memoryview(packet)) != (
            self.coded,
            self.coded,
        ):
            raise Undecodable(
                "it is cropped at the left or the top, or pictures change their size"
            )


class Packets:
    """A _reading.ReadClip: gives the packets that NVDEC needs to show the frames, behind each other."""

    def __init__(self, columns: Videos) -> None:
        self._columns = columns
        av.logging.set_level(av.logging.PANIC)  # as loaders.videos.pyav

    def __call__(self, sample: int, path: bytes, frames: list[int]) -> Read:
        codec = CODECS[self._columns.codec[sample]]
        groups, coded = clip_packets(
            self._columns, sample, path, frames, lambda stream: Filters(codec, stream)
        )
        data = [bytes(packet) for group in groups for packet, _, _ in group.packets]
        sizes = iter(map(len, data))
        sized = [
            Group([(next(sizes), time, frame) for _, time, frame in packets], last)
            for packets, last in groups
        ]
        return Read(
            np.frombuffer(b"".join(data), np.uint8), Clip(sample, *coded, sized)
        )


def clip_packets(
    columns: Videos,
    sample: int,
    path: bytes,
    frames: list[int],
    make_filters: Callable[[av.VideoStream], Filters],
) -> tuple[list[Group], tuple[int, int]]:
    """Return the filtered packets that show these frames, and the pictures' coded height and width.

    Raises Undecodable.
    """
    pts = columns.pts(sample)
    groups = list[Group]()
    try:
        with open_video(path, known=True) as container:
            opened = OpenFile(container, columns, sample, HASTY)
            size = Size(columns, sample, opened.stream.codec_context)
            for together in opened.split(frames):
                wanted = {int(pts[frame]): frame for frame in together}
                filters = make_filters(opened.stream)
                codec = CODECS[columns.codec[sample]]
                packets = list(chosen(opened, codec, wanted, filters, size))
                groups.append(Group(packets, max(wanted)))
    except (FFmpegError, ValueError) as error:  # Undecodable is one
        raise Undecodable(str(error)) from error
    shown = {frame for group in groups for _, _, frame in group.packets}
    if left := {*frames} - shown:
        raise Undecodable(f"{len(left)} of {len(frames)} frames did not come")
    return groups, size.coded


def chosen(
    opened: OpenFile,
    codec: str,
    wanted: dict[int, int],
    filters: Callable[[Any], list[Any]],
    size: Size,
) -> Iterator[tuple[av.Packet[Any], int, int | None]]:
    """Yield (packet, time, frame or None) of what NVDEC needs to show the frames of `wanted`, by time.

    Packets come in the order of decoding, from the key frame on until the last wanted one; without those that
    no picture is made from, where H.264 says so. Raises Undecodable. Parts that an edit list shows in another
    order than the file has them, or twice, are refused: what it cuts away at their ends has times of others.
    """
    begin = min(wanted)
    left = len(wanted)
    started = False
    latest = begin
    place = 0
    sync = opened.seek(wanted[begin])
    for packet in opened.packets(sync, begin):
        if packet.is_corrupt or packet.pts is None:
            raise Undecodable("damaged")
        time = packet.pts
        its_place = packet.pos if packet.pos is not None else place
        if started and packet.is_keyframe and (time <= latest or its_place < place):
            raise Undecodable("an edit list shows its parts in another order")
        latest = max(latest, time) if started else time
        place = its_place
        frame = None if packet.is_discard else wanted.get(time)
        left -= frame is not None
        key = packet.is_keyframe
        if key:
            size.see(packet)
        for single in filters(packet):
            parameters, disposable = traits(memoryview(single), codec)
            if not started and not parameters:
                raise Undecodable("its key frame comes without parameter sets")
            if key and parameters:
                size.see_filtered(single)
            started = True
            if frame is not None or not disposable:
                yield single, time, frame
        if not left:
            return


def traits(packet: memoryview, codec: str) -> tuple[bool, bool]:
    """Return whether a packet has the parameters of its pictures, and is a picture that no other is made from.

    Units of H.264 and HEVC have start codes.
    """
    if codec not in _PARAMETERS:
        return True, False
    begin = first_slice(packet, 0, codec)
    parameters = _PARAMETERS[codec].search(bytes(packet[:begin]))
    # nal_ref_idc 0: no other picture refers to it
    disposable = codec == "h264" and begin is not None and not packet[begin] & 0x60
    return parameters is not None, disposable
