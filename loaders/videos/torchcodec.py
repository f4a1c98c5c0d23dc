"""`torchcodec`: torchcodec's decoder in worker processes, exact mode. Needs FFmpeg's shared libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from contracts import Feed, UserError
from dataset.videos.columns import Flags
from loaders import Undecodable
from loaders.videos._planes import Picture, rgb
from loaders.videos._worker import ClipLoader, same_times
from loaders.videos.exact import USUAL, Claim
from loaders.videos.pyav import Pyav
from system.processes import uninterrupted

EXACT = Claim(
    # MPEG-4 with B-frames in avi: refused
    kinds={**USUAL, "mpeg4": ("mp4",), "av1": ("mp4", "mkv")},
    flags=Flags.OBLONG_PIXELS
    | Flags.EDIT_LIST
    | Flags.OPEN_GOP
    | Flags.SEVERAL_STREAMS
    | Flags.UNALIGNED
    | Flags.HIDDEN_FRAMES
    | Flags.SHOWN_AGAIN,
)


class Torchcodec:
    """loaders.videos._worker.Reader."""

    decoded = None

    def __init__(self, columns: Any) -> None:
        from torchcodec.decoders import VideoDecoder

        self._columns = columns
        self._decoder = VideoDecoder

    def __call__(
        self, sample: int, path: bytes, frames: list[int]
    ) -> Iterator[tuple[int, Picture]]:
        try:
            stream = int(self._columns.stream[sample])
            decoder = self._decoder(
                os.fsdecode(path),
                stream_index=stream,
                dimension_order="NHWC",
                num_ffmpeg_threads=1,
                seek_mode="exact",
            )
            decoded = decoder.get_frames_at(frames)
            same_times(self._columns, sample, frames, decoded.pts_seconds.numpy())
            for frame, pixels in zip(frames, decoded.data.numpy(), strict=True):
                yield frame, rgb(pixels)
        except Exception as error:
            raise Undecodable(str(error)) from error


def open(feed: Feed) -> ClipLoader:
    try:
        with uninterrupted():
            import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"--loader torchcodec: it cannot be imported ({str(error).splitlines()[0]}): "
            "pip install torchcodec, and FFmpeg's shared libraries (apt install ffmpeg), or --loader pyav"
        ) from None
    return ClipLoader(feed, "torchcodec", Torchcodec, Pyav)
