"""`pyav`: FFmpeg by PyAV in worker processes. The reference: the frames of the times asked for, or none.

A clip: open the file, seek to the last key frame before its first frame, decode until the times of all its
frames came. What did not come is tried again with less haste and from further back. Nothing stays open
between clips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import Interpolation, VideoReformatter

from saturate.contracts import Array, Feed, Split
from saturate.dataset.videos.columns import (
    CODECS,
    CONTAINERS,
    FULL_RANGE,
    Flags,
    Videos,
)
from saturate.dataset.videos.container import open_video, read_packets, unpacked
from saturate.loaders import Undecodable
from saturate.loaders.videos._planes import BT601, MATRICES, Picture, Plane, pixels_of
from saturate.loaders.videos._worker import ClipLoader, checked

HASTY = 0
FROM_THE_START = 3
"""Attempts: the first and the last. Those between begin at the same key frame, then at the one before."""
FAR = 16
"""Frames between two wanted ones from which on a seek to a key frame is cheaper than decoding all."""
WITHOUT_INDEX = [CONTAINERS.index(name) for name in ("ts", "mpg")]
"""Containers where a seek finds times of decoding, which are earlier: it aims before the key frame."""
WITHOUT_SEEK = CONTAINERS.index("asf")
"""The container of which FFmpeg gives the first packet behind a seek the time of another one."""
WITH_TIMES = [CONTAINERS.index(name) for name in ("mp4", "mkv")]
"""Containers whose packets have all their times: none of them depends on what FFmpeg knows of a stream."""
LEAD_S = 1.0
"""Seconds by which a seek aims before the key frame: H.264 and HEVC move a frame by 16 places at most."""
ACCURATE = (
    Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
)
"""Flags for swscale, which by default is one to two grey levels off."""


class Pyav:
    """saturate.loaders.videos._worker.Reader."""

    def __init__(self, columns: Videos) -> None:
        self._columns = columns
        self.decoded = 0
        # a damaged file is named by the loop, not by lines of FFmpeg's own
        av.logging.set_level(av.logging.PANIC)

    def __call__(
        self, sample: int, path: bytes, frames: list[int]
    ) -> Iterator[tuple[int, Picture]]:
        missing = set(frames)
        why = ""
        self.decoded = 0
        for attempt in range(FROM_THE_START + 1):
            try:
                with open_video(
                    path,
                    known=attempt == HASTY
                    and int(self._columns.container[sample]) in WITH_TIMES,
                ) as container:
                    opened = OpenFile(container, self._columns, sample, attempt)
                    try:
                        for together in opened.split(sorted(missing)):
                            try:
                                for frame, picture in opened.decode(together):
                                    missing.discard(frame)
                                    yield frame, picture
                            # other groups may be whole
                            except (FFmpegError, Undecodable) as error:
                                why = f": {error}"
                    finally:
                        self.decoded += opened.decoded
            # Undecodable is one, and so are bytes that are no text
            except (FFmpegError, ValueError) as error:
                why = f": {error}"
            if not missing:
                return
        raise Undecodable(f"{len(missing)} of {len(frames)} frames did not come{why}")


class OpenFile:
    """One open file, in which groups of frames are decoded one after the other."""

    def __init__(
        self,
        container: av.container.InputContainer,
        columns: Videos,
        sample: int,
        attempt: int,
    ) -> None:
        self._container = container
        container_format = int(columns.container[sample])
        self._attempt = FROM_THE_START if container_format == WITHOUT_SEEK else attempt
        self.decoded = 0
        place = int(columns.stream[sample])
        stream = container.streams[place] if place < len(container.streams) else None
        if not isinstance(stream, av.VideoStream):
            raise Undecodable(f"stream {place} is no video")
        if stream.codec_context is None:  # damaged since the scan
            raise Undecodable(f"stream {place} is of an unknown codec")
        for other in container.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
        self.stream = stream
        self._codec = stream.codec_context
        # else a frame that cannot be decoded is made up from the one before it
        self._codec.options = {"err_detect": "explode"}
        self._codec.thread_count = 1  # as many workers as cores decode at the same time
        self._pts = columns.pts(sample)
        self._keys = np.flatnonzero(columns.keys(sample))
        self._turns = int(columns.rotation[sample]) // 90 % 4
        # No picture is made from one that is no reference; but in HEVC those of a higher layer in time may
        # be, and of AV1 frames that are wanted get lost too
        self._skips = attempt == HASTY and CODECS[columns.codec[sample]] not in (
            "hevc",
            "av1",
        )
        flags = Flags(int(columns.flags[sample]))
        self._packed = Flags.PACKED_B in flags
        tick_s = columns.time_base_num[sample] / columns.time_base_den[sample]
        indexed = container_format not in WITHOUT_INDEX
        # with wrong marks a seek may find a key frame that is none
        early = attempt > HASTY or Flags.WRONG_KEYS in flags or not indexed
        self._lead = int(LEAD_S / tick_s) if early else 0
        # where there is an index no seek goes before its beginning
        self._earliest = int(self._pts[0]) - (0 if indexed else self._lead)

    def split(self, frames: list[int]) -> Iterator[list[int]]:
        """Yield ascending frames in groups.

        A new group begins behind a wide gap that holds a key frame; in later attempts, where one that is
        damaged is to harm no other, behind each key frame.
        """
        seeks = self._attempt < FROM_THE_START and not self._packed
        together = list[int]()
        for frame in frames:
            if (
                seeks
                and together
                and frame - together[-1] >= (FAR if self._attempt == HASTY else 1)
                and self._key(frame) > self._key(together[-1])
            ):
                yield together
                together = []
            together.append(frame)
        if together:
            yield together

    def decode(self, frames: list[int]) -> Iterator[tuple[int, Picture]]:
        """Yield the frames of a group that came, each with its own time."""
        wanted = {int(self._pts[frame]): frame for frame in frames}
        begin, end = min(wanted), max(wanted)
        sync = None if self._packed else self.seek(frames[0])
        # shown before the key frame, and in need of what lies before it; or of no matter for what is wanted
        key = self._key(frames[0])
        since = int(self._pts[self._keys[key]]) if key >= 0 else sync
        shown = (
            zip(self._pts.tolist(), self._unpacked(), strict=False)
            if self._packed
            else self._timed(sync, since, begin, wanted)
        )
        for time, frame in shown:
            if time > end:
                return
            if time < (begin if since is None else since):
                continue
            if frame.is_corrupt:  # and so are those that are made from it
                raise Undecodable("damaged")
            if time in wanted:
                yield wanted[time], planes(frame, self._turns)

    def _key(self, frame: int) -> int:
        return int(np.searchsorted(self._keys, frame, side="right")) - 1

    def seek(self, first: int) -> int | None:
        """Go to, or before, a key frame and return its time; None = begin at the first one that comes."""
        key = self._key(first) - (self._attempt > HASTY + 1)
        if self._attempt == FROM_THE_START:
            return None
        time = int(self._pts[first if key < 0 else self._keys[key]])
        self._container.seek(max(time - self._lead, self._earliest), stream=self.stream)
        # an edit list may have cut the key frame away
        return time if key >= 0 else None

    def packets(
        self, sync: int | None, begin: int
    ) -> Iterator[av.Packet[av.VideoStream]]:
        """Yield packets from the key frame of time `sync` on; none when the seek went past it."""
        started = False
        for packet in read_packets(self._container, self.stream):
            if not packet.size:  # the end
                continue
            if not started:
                if packet.pts is not None and packet.pts > (
                    begin if sync is None else sync
                ):
                    return
                # the container may not know that a key frame is one, whose time is known
                started = packet.is_keyframe if sync is None else packet.pts == sync
            if started:
                yield packet

    def _timed(
        self, sync: int | None, since: int | None, begin: int, wanted: Collection[int]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield decoded frames with their times, in the order of display.

        Raises what FFmpeg raises, or Undecodable, of packets from the time `since` on; None: of the first
        one's.
        """
        left = len(wanted)
        for packet in self.packets(sync, begin):
            since = packet.pts if since is None else since
            matters = packet.pts is not None and (since is None or packet.pts >= since)
            if packet.is_corrupt and matters:
                raise Undecodable("damaged")
            asked = packet.pts in wanted
            left -= asked
            if self._skips:
                self._codec.skip_frame = "DEFAULT" if asked else "NONREF"
            try:
                frames = self._pictures(packet)
            except FFmpegError:
                if matters:
                    raise
                continue
            yield from ((frame.pts, frame) for frame in frames if frame.pts is not None)
            if self._attempt == HASTY and not left:
                break
        yield from (
            (frame.pts, frame)
            for frame in self._pictures(None)
            if frame.pts is not None
        )

    def _unpacked(self) -> Iterator[av.VideoFrame]:
        """Yield all frames of packed MPEG-4, counted as they come."""
        for frame in unpacked(self._container, self.stream):
            self.decoded += 1
            yield frame

    def _pictures(
        self, packet: av.Packet[av.VideoStream] | None
    ) -> list[av.VideoFrame]:
        pictures = self._codec.decode(packet)
        self.decoded += len(pictures)
        return pictures


def planes(frame: av.VideoFrame, turns: int) -> Picture:
    """Return a view of a frame's samples, valid as long as the frame.

    Formats other than planar YUV and grey are turned into RGB first.
    """
    form = frame.format
    places = [component.plane for component in form.components]
    other = (
        form.is_rgb
        or form.is_big_endian
        or form.has_palette
        or form.components[0].bits < 8
    )
    if other or places not in ([0], [0, 1, 2]):
        # not frame.reformat: it keeps a converter in each thread, which workers that are forked by another
        # thread choke on (PyAV 19)
        frame = VideoReformatter().reformat(
            frame, format="rgb24", interpolation=ACCURATE
        )
        return Picture((_plane(frame.planes[0], np.uint8, 3),), turns=turns)
    bits = form.components[0].bits
    return Picture(
        tuple(
            _plane(plane, np.uint8 if bits == 8 else np.uint16)
            for plane in frame.planes
        ),
        bits=bits,
        matrix=MATRICES.get(frame.colorspace, BT601),
        full_range=frame.color_range == FULL_RANGE or form.name.startswith("yuvj"),
        turns=turns,
    )


def _plane(
    plane: Any, dtype: type[np.unsignedinteger[Any]], channels: int = 1
) -> Plane:
    data = np.frombuffer(plane, dtype)
    return Plane(
        data, plane.line_size // data.itemsize, plane.height, plane.width, channels
    )


def displayed(split: Split[Videos], sample: int, frames: list[int]) -> Array:
    """Return frames of a video, uint8 [T, H, W, 3], as viewers show them. Raises Undecodable, OSError, UserError."""
    path = checked(split.source, sample)
    pictures = Pyav(split.columns)(sample, path, sorted({*frames}))
    shown = {frame: pixels_of(picture) for frame, picture in pictures}
    return np.stack([shown[frame] for frame in frames])


def open(feed: Feed[Videos]) -> ClipLoader:
    return ClipLoader(feed, "pyav", Pyav, None)
