"""The manifest of videos: which segments of which files, and every frame's time; must not know clips.

Same place, lock and life as the manifest of images (dataset/scan/manifest.py). A sample is a segment of a
file: several may share one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntFlag

import numpy as np

from saturate.contracts import Array
from saturate.dataset.scan.manifest import Manifest, Samples

# the column `container` holds the index; mp4 is also mov, mkv also webm
CONTAINERS = ("mp4", "mkv", "avi", "ts", "mpg", "flv", "asf", "ogg")
# the column `codec`
CODECS = (
    "h264",
    "hevc",
    "vp9",
    "av1",
    "mpeg4",
    "vp8",
    "mpeg2video",
    "mpeg1video",
    "mjpeg",
    "other",
)
# the column `pixels`, FFmpeg's names
PIXELS = (
    "yuv420p",
    "yuvj420p",
    "yuv422p",
    "yuvj422p",
    "yuv444p",
    "yuvj444p",
    "yuv420p10le",
    "yuv422p10le",
    "yuv444p10le",
    "yuv420p12le",
    "gray",
    "gbrp",
    "other",
)

FULL_RANGE = 2
"""FFmpeg's number for luma from 0 to 255."""


class Flags(IntFlag):
    """Traits of a file that a decoder may trip over: bits of the column `flags`."""

    EDIT_LIST = 2  # an edit list of the container cuts frames away
    OPEN_GOP = 4  # behind a key frame that is not the first come frames that are shown before it
    # MPEG-4 with two frames in one packet: its decoder gives frames the times of their neighbours
    PACKED_B = 8
    SEVERAL_STREAMS = 16  # more than one video stream; `stream` is the one that this manifest describes
    INTERLACED = 64  # two fields a frame: some decoders mix them over time
    UNALIGNED = 128  # HEVC whose pictures are coded in a height or width that is no multiple of 16
    # VP9 with pictures that are not shown, each in a packet with one that is: libvpx's alternate references
    HIDDEN_FRAMES = 256
    # VP9 with packets that have no picture, and show one that was decoded before: show_existing_frame
    SHOWN_AGAIN = 512
    # the container marks other packets as key frames than those that a decoder can begin at, or a key frame is shown
    # once the next one is decoded
    WRONG_KEYS = 1024
    DAMAGED = 2048  # a few packets are not whole, or have the time of another: clips without them are good
    OBLONG_PIXELS = 4096  # pictures are to be shown wider or higher than they are stored: no loader does


RECORD = np.dtype(
    [
        ("size", "i8"),  # bytes of the file
        # index among all streams of the file: FFmpeg's best video stream
        ("stream", "i4"),
        ("codec", "u1"),
        ("container", "u1"),
        ("pixels", "u1"),
        ("depth", "u1"),  # bits a component
        # from RGB to YUV: number in ITU-T H.273, as the frames have it; 2 where nothing says
        ("matrix", "u1"),
        ("full_range", "?"),  # whether luma goes from 0 to 255
        # as displayed: after rotation; the pixels' aspect ratio is ignored
        ("height", "i4"),
        ("width", "i4"),
        # 0, 90, 180, 270 degrees counter-clockwise: np.rot90(decoded, rotation // 90) is what is displayed
        ("rotation", "i2"),
        ("flags", "u2"),
        ("time_base_num", "i4"),  # seconds a tick of pts, numerator and denominator
        ("time_base_den", "i4"),
        # of the mean step between frames; 0 with one frame
        ("fps", "f8"),
        ("duration", "f8"),  # seconds from the first frame until the last one ends
        ("count", "i8"),  # frames of the file
    ]
)
"""One file as a scan reads it, without the times of its frames."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Videos(Manifest):
    """n segments of video files: those of a folder by their path's bytes, those of a list by its lines.

    `first` and `frames` say which frames of the file a sample has: pts(i)[first[i] : first[i] + frames[i]].
    """

    VERSION = "videos 16"
    COLUMNS = Manifest.COLUMNS | {
        "label": "i4",
        "file": "i8",
        "first": "i8",
        "frames": "i8",
        **{name: RECORD[name].str for name in RECORD.names or ()},
        "frame_offsets": "i8",
        "frame_pts": "i8",
        "frame_keys": "?",
    }
    FINGERPRINT = (
        "path_bytes",
        "path_offsets",
        "size",
        "label",
        "file",
        "first",
        "frames",
    )

    # By sample, [n]; types and meaning as in RECORD.
    label: Array  # int32, index into classes
    file: Array  # int64, which file
    first: Array  # int64, first frame of the segment, in display order, counted from the file's first
    frames: Array  # int64, frames of the segment
    stream: Array
    codec: Array  # index into CODECS
    container: Array  # index into CONTAINERS
    pixels: Array  # index into PIXELS
    depth: Array
    matrix: Array
    full_range: Array
    height: Array
    width: Array
    rotation: Array
    flags: Array  # of Flags
    time_base_num: Array
    time_base_den: Array
    fps: Array
    duration: Array
    count: Array
    # Of all files, one after the other.
    frame_offsets: Array  # int64 [files + 1], where each begins
    frame_pts: Array  # int64, see pts()
    frame_keys: Array  # bool, see keys()
    # what columns of images may have
    exif = None
    fetch = None
    several = None

    def numbered(self, numbers: Array, classes: tuple[str, ...]) -> Videos:
        """Return the columns with label numbers[i] in place of i, among `classes`.

        In this process alone: they pickle as their folder.
        """
        return replace(
            self, label=numbers[self.label].astype(np.int32), classes=classes
        )

    def files(self, samples: Samples) -> Samples:
        """Return the file that each sample is in, for one id or an array of them."""
        return self.file[samples]

    def pts(self, sample: int) -> Array:
        """Return int64 [count], strictly increasing: the times, in ticks, of the FILE's frames as displayed.

        Where the flag PACKED_B is set, what FFmpeg says of a packet or a decoded frame is not this time:
        count frames from a key frame.
        """
        return self.frame_pts[self._frames(sample)]

    def keys(self, sample: int) -> Array:
        """Return bool [count], which of those frames are key frames."""
        return self.frame_keys[self._frames(sample)]

    def _frames(self, sample: int) -> slice:
        file = self.file[sample]
        return slice(*self.frame_offsets[file : file + 2])
