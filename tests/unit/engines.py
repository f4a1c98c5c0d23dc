"""What stands for PyNvVideoCodec where there is no GPU: its interface as loaders/videos/_engines.py uses it,
on FFmpeg's decoders.
"""

from __future__ import annotations

import ctypes
import heapq
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch

from saturate.dataset.videos.bitstream import vp9_holds_several, vp9_shows_again

NAMES = {"H264": "h264", "HEVC": "hevc", "VP9": "vp9"}


class Frame:
    """A surface in memory that the next call of Decode may overwrite."""

    def __init__(self, label: int, samples: torch.Tensor) -> None:
        self._label, self._samples = label, samples

    def getPTS(self) -> int:
        return self._label

    def GetPtrToPlane(self, plane: int) -> int:
        assert plane == 0
        return self._samples.data_ptr()

    def framesize(self) -> int:
        return self._samples.nbytes

    def __dlpack__(self, **given: Any) -> Any:
        return self._samples.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._samples.__dlpack_device__()


class Session:
    """A PyNvDecoder. As NVIDIA's parser does, it gives each picture, in the order of display, the smallest
    label that it still has.

    Where pictures are coded in as many blocks of 16 as those before, it does not hear of their size: they are
    put on surfaces of the one before, of which as much is told as it was asked for last. Where it was not
    asked for another size, it scales them to the one before. Of a packet of VP9 with a hidden picture it has
    two labels, the other one being that of the packet before; one that shows a picture again gives none.
    """

    def __init__(self, codec: Codec, name: str, most: tuple[int, int]) -> None:
        self._codec, self._name, self._most, self._hidden = (
            codec,
            name,
            most,
            set[int](),
        )
        self._labels: list[int] = []
        self._last = 0
        self._valid: list[torch.Tensor] = []
        self._size: tuple[int, int] | None = None  # that it was asked for
        self._asked, self._scales = (
            False,
            False,
        )  # the first: since it has heard of a size
        self._coded = self._surface = (0, 0)
        self._begin()

    def setReconfigParams(self, width: int, height: int) -> None:
        self._size, self._asked = (height, width), True

    def _begin(self) -> None:
        self._context: Any = av.CodecContext.create(self._name, "r")
        self._context.thread_count = 1

    def Decode(self, data: Any) -> list[Frame]:
        if data.bsl:
            packet = av.Packet(ctypes.string_at(data.bsl_data, data.bsl))
            if self._name == "vp9" and vp9_holds_several(memoryview(packet)):
                heapq.heappush(self._labels, self._last)
            heapq.heappush(self._labels, data.pts)
            self._last = data.pts
            self._codec.packets.append((data.pts, bool(data.discardable)))
            if data.discardable:
                self._hidden.add(data.pts)
            try:
                frames = self._context.decode(packet)
            except av.error.FFmpegError as error:
                raise Exception(
                    "HandleVideoSequence : refused\nError code : 1"
                ) from error
            if self._name == "vp9" and vp9_shows_again(memoryview(packet)):
                frames = []
        else:
            frames = self._context.decode(None)
        for samples in self._valid:
            samples.fill_(77)
        if any(
            frame.height > self._most[0] or frame.width > self._most[1]
            for frame in frames
        ):
            raise Exception(
                "Reconfigure not supported when width/height > maxwidth/maxheight"
            )
        labelled = [(heapq.heappop(self._labels), frame) for frame in frames]
        shown = [
            (label, frame) for label, frame in labelled if label not in self._hidden
        ]
        self._hidden -= {label for label, _ in labelled}
        self._valid = [self._samples(frame) for _, frame in shown]
        if not data.bsl:
            self._begin()
        return [
            Frame(label, samples)
            for (label, _), samples in zip(shown, self._valid, strict=True)
        ]

    def _samples(self, frame: Any) -> torch.Tensor:
        displayed = frame.height, frame.width
        coded = displayed
        if self._name in ("h264", "hevc"):
            coded = (
                -(-self._context.coded_height // 16) * 16,
                -(-self._context.coded_width // 16) * 16,
            )
        if coded != self._coded:
            self._scales = not (self._asked or self._coded == (0, 0))
            self._surface = self._surface if self._scales else displayed
            self._coded, self._asked = coded, False
        self._size = self._size or displayed
        if self._scales:
            frame = frame.reformat(width=self._surface[1], height=self._surface[0])
        return cut(cut(nv12(frame.to_ndarray()), self._surface), self._size)


def cut(surface: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The top left of an NV12 surface, with what it has not in grey."""
    rows, columns = surface.shape[0] * 2 // 3, surface.shape[1]
    found = torch.full((size[0] * 3 // 2, size[1]), 99, dtype=torch.uint8)
    rows_both, columns_both = min(rows, size[0]), min(columns, size[1])
    found[:rows_both, :columns_both] = surface[:rows_both, :columns_both]
    found[size[0] : size[0] + rows_both // 2, :columns_both] = surface[
        rows : rows + rows_both // 2, :columns_both
    ]
    return found


def nv12(planes: np.ndarray) -> torch.Tensor:
    """uint8 [H * 3 / 2, W], the planes Y, U, V one behind the other -> Y, and U and V in turns."""
    height = len(planes) * 2 // 3
    chroma = planes[height:].reshape(2, -1).T
    return torch.from_numpy(
        np.concatenate([planes[:height], chroma.reshape(height // 2, -1)])
    )


class Codec:
    """The module, without an engine for `lacks`.

    `packets`: (label, not to be shown) of all that were fed; `made`: decoders so far; `asked`: codecs.
    """

    cudaVideoCodec = SimpleNamespace(**{name: name for name in NAMES})
    DisplayDecodeLatencyType = SimpleNamespace(NATIVE=0)

    def __init__(self, engines: int = 2, least: int = 48, lacks: str = "VP9") -> None:
        self._engines, self._least, self._lacks = engines, least, lacks
        self.packets: list[tuple[int, bool]] = []
        self.made = 0
        self.asked: list[str] = []

    @staticmethod
    def PacketData() -> Any:
        return SimpleNamespace(bsl_data=0, bsl=0, pts=0, discardable=0)

    def GetDecoderCaps(self, *, gpuid: int, codec: str) -> dict[str, int]:
        self.asked.append(codec)
        return {
            "supported": int(codec != self._lacks),
            "num_decoder_engines": self._engines,
            **dict.fromkeys(("width_min", "height_min"), self._least),
            **dict.fromkeys(("width_max", "height_max"), 4096),
            "mb_num_max": 65536,
        }

    def CreateDecoder(self, *, codec: str, **given: Any) -> Session:
        assert set(given) == {
            "gpuid",
            "cudacontext",
            "cudastream",
            "usedevicememory",
            "maxwidth",
            "maxheight",
            "latency",
        }
        self.made += 1
        return Session(self, NAMES[codec], (given["maxheight"], given["maxwidth"]))
