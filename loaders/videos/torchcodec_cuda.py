"""`torchcodec-cuda`: torchcodec's decoder on the GPU; frames are resized and finished there, as in `nvdec`.

    thread: path -> Demuxer: packets -> VideoPacketDecoder: YUV on the device -> nvdec.Filling

Its VideoDecoder makes RGB of whole frames, and takes the matrix from the bitstream alone; ours is the manifest's.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, Feed, UserError
from saturate.dataset.videos.columns import Flags, Videos
from saturate.loaders import Undecodable
from saturate.loaders.videos import nvdec
from saturate.loaders.videos._engines import NAMES, Nvdec
from saturate.loaders.videos._mixed import MixedLoader
from saturate.loaders.videos._packets import before_turning
from saturate.loaders.videos._planes import BT601, MATRICES, Picture
from saturate.loaders.videos._reading import Read
from saturate.loaders.videos._surfaces import nv12
from saturate.loaders.videos.exact import Claim, exact
from saturate.loaders.videos.pyav import FAR
from saturate.system.processes import uninterrupted

THREADS = 7
"""Threads, as many as an H100 or H200 has engines."""
EXACT = Claim(
    kinds=dict.fromkeys(NAMES, ("mp4", "mkv")),
    # NVIDIA's parser gives a picture the smallest time that is left: cut and missing ones shift the others
    flags=Flags.OBLONG_PIXELS
    | Flags.SEVERAL_STREAMS
    | Flags.UNALIGNED
    | Flags.HIDDEN_FRAMES,
    plain=True,
)


def unread(sample: int, path: bytes, frames: list[int]) -> Read:
    """Return what was asked for: a loaders.videos._reading.ReadClip, behind which torchcodec opens the file."""
    return Read(np.empty(0, np.uint8), (sample, path, frames))


class Torchcodec(Nvdec):
    """Gives what Nvdec gives, of what `unread` gives; `codec` is torchcodec.decoders."""

    def __init__(self, columns: Videos, codec: Any, device: torch.device) -> None:
        super().__init__(columns, codec, device.index or 0, 0)
        self._device = device

    def __call__(self, read: Read) -> Iterator[tuple[int, Picture, torch.Tensor]]:
        sample, path, frames = read.about
        columns = self._columns
        height, width = before_turning(columns, sample)
        picture = nv12(
            height,
            width,
            matrix=MATRICES.get(int(columns.matrix[sample]), BT601),
            full_range=bool(columns.full_range[sample]),
            turns=int(columns.rotation[sample]) // 90 % 4,
        )
        try:
            demuxer = self._codec.Demuxer(
                os.fsdecode(path), streams=int(columns.stream[sample])
            )
            decoder = demuxer.streams[0].make_decoder(self._device)
            for key, together in groups(columns.keys(sample), frames):
                for frame, planes in self._frames(
                    demuxer, decoder, sample, key, together
                ):
                    yield frame, picture, joined(planes, height, width)
        except Exception as error:  # torchcodec's, which has no class of its own
            raise Undecodable(str(error)) from error

    def _frames(
        self, demuxer: Any, decoder: Any, sample: int, key: int, frames: list[int]
    ) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
        """Yield frames and their planes: a picture for each packet that was fed, or none of the clip."""
        columns = self._columns
        pts = columns.pts(sample)
        tick = columns.time_base_num[sample] / columns.time_base_den[sample]
        left = {int(pts[frame]): frame for frame in frames}
        fed = came = 0

        def pictures() -> Iterator[Any]:
            nonlocal fed
            for packet in demuxer:
                fed += 1
                yield from decoder.decode(packet)
                if not left:
                    break
            yield from decoder.drain()

        demuxer.seek(float(pts[key] * tick))
        decoder.reset()
        for shown in pictures():
            came += 1
            frame = left.pop(round(shown.pts_seconds / tick), None)
            if frame is not None:
                yield frame, shown.planes
        self.decoded += came
        if left or came != fed:
            # pictures behind a missing one may have had the times of others
            raise Undecodable(
                f"{came} pictures of {fed} packets, {len(left)} of {len(frames)} frames did not come"
            )


def groups(keys: Array, frames: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield (key frame, frames from there on) of ascending frames: anew behind a wide gap that holds a key.

    `keys`: bool [F], the file's key frames.
    """
    places = np.flatnonzero(keys).tolist() or [0]
    begins = [places[max(bisect_right(places, frame) - 1, 0)] for frame in frames]
    first = 0
    for end in range(1, len(frames) + 1):
        if end == len(frames) or (
            begins[end] > frames[end - 1] and frames[end] - frames[end - 1] >= FAR
        ):
            yield begins[first], frames[first:end]
            first = end


def joined(planes: Sequence[torch.Tensor], height: int, width: int) -> torch.Tensor:
    """Return the surface, uint8 [H * 3 / 2, W], of the planes Y, U and V. Raises Undecodable."""
    luma = planes[0]
    halves = [plane.shape for plane in planes[1:]] == [(height // 2, width // 2)] * 2
    if luma.shape != (height, width) or luma.dtype != torch.uint8 or not halves:
        raise Undecodable(f"a picture is {luma.dtype} {tuple(luma.shape)}")
    surface = luma.new_empty((height * 3 // 2, width))
    surface[:height] = luma
    for place, plane in enumerate(planes[1:]):
        surface[height:, place::2] = plane
    return surface


class Filling(nvdec.Filling):
    """saturate.loaders.videos._mixed.Fills."""

    def __init__(self, columns: Videos, codec: Any, device: torch.device) -> None:
        super().__init__(columns, codec, device, 0)
        self._decode = Torchcodec(columns, codec, device)


def loader(feed: Feed[Videos], codec: Any) -> MixedLoader:
    """Return the loader that decodes with torchcodec.decoders."""
    return MixedLoader(
        feed,
        "torchcodec-cuda",
        lambda: unread,
        lambda stream: Filling(feed.columns, codec, feed.device),
        exact("torchcodec-cuda", feed.columns),
        threads=THREADS,
    )


def open(feed: Feed[Videos]) -> MixedLoader:
    if feed.device.type != "cuda":
        raise UserError(
            "--loader torchcodec-cuda needs an NVIDIA GPU and none is here; pyav and decord decode on the CPU"
        )
    try:
        with uninterrupted():
            from torchcodec import decoders

            decoders.Demuxer  # noqa: B018
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"--loader torchcodec-cuda: {str(error).splitlines()[0]}: pip install 'torchcodec>=0.17', "
            "and FFmpeg's shared libraries (apt install ffmpeg), or --loader nvdec"
        ) from None
    return loader(feed, decoders)
