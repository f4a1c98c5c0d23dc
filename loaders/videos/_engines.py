"""NVDEC through PyNvVideoCodec: frames of one file as surfaces on the device, with the manifest's times.

    Packets: PyAV: seek to the key frame -> packets -> Annex B -> bytes and a table
    Nvdec:   bytes -> [decoder: waits for pictures on the engine] -> surfaces, each with its packet's label

NVIDIA's parser gives each picture, in the order of display, the smallest label that it has left: labels have
to ascend in that order, and in VP9 they are not looked at. What is assumed of PyNvVideoCodec (2.2)
is in Decoder. It does not tell of a picture that the engine could not decode well and made up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

from saturate.contracts import Array, UserError
from saturate.dataset.videos.columns import CODECS, Videos
from saturate.loaders import Undecodable
from saturate.loaders.videos._packets import Clip, Group, before_turning
from saturate.loaders.videos._planes import BT601, MATRICES, Picture
from saturate.loaders.videos._reading import Read
from saturate.loaders.videos._surfaces import nv12
from saturate.system.processes import uninterrupted

NAMES = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9"}
"""Codec -> member of PyNvVideoCodec.cudaVideoCodec."""
ROUNDED = 64
"""Sides of a decoder's largest picture are multiples of it, so that fewer decoders are made anew.

NVIDIA's parser rounds them up to no more.
"""
VIEWS = 16
"""Views of surfaces that are kept of a decoder: it writes to few places in turns."""
CLIP_TICKS = 1 << 44
CLIPS = 1024
"""Labels of a clip are CLIP_TICKS below those of the clip before, and come again after CLIPS clips.

One that a clip that broke off has left in the decoder is larger than all of the next ones, and no picture
gets it.
"""


Codec = Any
"""PyNvVideoCodec, a module without types, or what stands for it."""


def import_codec() -> Codec:
    """Return PyNvVideoCodec, which loads the driver's libraries. Raises UserError: what is missing."""
    try:
        with uninterrupted():
            return import_module("PyNvVideoCodec")
    except (ImportError, OSError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        raise UserError(
            f"--loader nvdec: PyNvVideoCodec cannot be used ({why}): pip install PyNvVideoCodec, "
            "in a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video; or --loader pyav"
        ) from None


class Caps(NamedTuple):
    """What the device's engines decode of one codec, 8 bits, 4:2:0."""

    engines: int
    least: tuple[int, int]  # height, width
    most: tuple[int, int]
    blocks: int  # of 16 x 16 pixels


def capabilities(
    codec: Codec, gpu: int, names: Collection[str] = NAMES
) -> dict[str, Caps]:
    """Return codec -> Caps of those of these codecs that this device decodes. Raises UserError."""
    asked = {name: _capability(codec, gpu, name) for name in names}
    return {name: caps for name, caps in asked.items() if caps is not None}


@cache
def _capability(codec: Codec, gpu: int, name: str) -> Caps | None:
    """Return what the device decodes of a codec; None = it does not.

    It is asked once, and of no codec that is not needed: each answer makes a CUDA context, and ends it.
    """
    try:
        caps = codec.GetDecoderCaps(
            gpuid=gpu, codec=getattr(codec.cudaVideoCodec, NAMES[name])
        )
    except Exception as error:  # of PyNvVideoCodec's, which has no class of its own
        raise UserError(
            f"--loader nvdec: the driver does not say what the GPU decodes ({_refused(error)}); --loader pyav"
        ) from error
    if not caps["supported"]:
        return None
    least, most = (
        (caps[f"height_{end}"], caps[f"width_{end}"]) for end in ("min", "max")
    )
    return Caps(caps["num_decoder_engines"], least, most, caps["mb_num_max"])


def within(caps: dict[str, Caps], columns: Videos) -> Array:
    """Return bool [n], whether the engines take files of this codec and size."""
    # columns have the displayed sides, engines see the stored ones
    upright = columns.rotation[:] % 180 == 0
    height, width = (
        np.where(upright, a, b)
        for a, b in ((columns.height, columns.width), (columns.width, columns.height))
    )
    good = np.zeros(len(columns.codec), bool)
    for name, cap in caps.items():
        fits = (
            (height >= cap.least[0])
            & (width >= cap.least[1])
            & (height <= cap.most[0])
            & (width <= cap.most[1])
        )
        good |= (
            (columns.codec[:] == CODECS.index(name))
            & fits
            & (-(-height // 16) * -(-width // 16) <= cap.blocks)
        )
    return good


class Decoder:
    """One session on an engine, used for any file of its codec of at most these sides.

    `stream` is raw, 0 for the default one. Making a session takes 0.3 s, and its pictures some 40 MB at
    1080p; for a file of another size it is only set up anew.
    """

    def __init__(
        self,
        codec: Codec,
        gpu: int,
        name: str,
        stream: int,
        sides: tuple[int, int],
    ) -> None:
        self._codec = codec
        self._views = dict[tuple[int, int], torch.Tensor]()
        self.height, self.width = (-(-side // ROUNDED) * ROUNDED for side in sides)
        self._size = (0, 0)  # of the pictures of its last clip
        try:
            self._decoder = codec.CreateDecoder(
                gpuid=gpu,
                codec=getattr(codec.cudaVideoCodec, NAMES[name]),
                cudacontext=0,  # the primary one, which is PyTorch's too
                cudastream=stream,
                usedevicememory=True,
                maxwidth=self.width,
                maxheight=self.height,
                latency=codec.DisplayDecodeLatencyType.NATIVE,
            )
        except Exception as error:
            raise _refused(error) from error

    def begin(self, height: int, width: int) -> None:
        """Begin a clip of pictures that are coded in these sides, and not cropped."""
        if self._size not in ((0, 0), (height, width)):
            self._views.clear()  # the surfaces will be gone
            try:
                # else it scales them to the size that it had before
                self._decoder.setReconfigParams(width, height)
            except Exception as error:
                raise _refused(error) from error
        self._size = height, width

    def feed(
        self, address: int, size: int, label: int, *, shown: bool
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Decode a packet, `size` bytes from `address` on; yield surfaces that are ready, and their labels.

        They are uint8 [H * 3 / 2, W], and are written on the stream. A next call may overwrite them. A
        picture that is not to be shown is decoded for others' sake alone.
        """
        data = self._codec.PacketData()
        data.bsl_data = address
        data.bsl = size
        data.pts = label
        data.discardable = int(not shown)
        return self._surfaces(data)

    def finish(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the surfaces that were still to come; after that it takes another clip."""
        return self._surfaces(self._codec.PacketData())

    def _surfaces(self, data: Any) -> Iterator[tuple[int, torch.Tensor]]:
        try:
            frames = self._decoder.Decode(data)  # without the interpreter's lock
        except Exception as error:
            raise _refused(error) from error
        for frame in frames:
            yield frame.getPTS(), self._view(frame)

    def _view(self, frame: Any) -> torch.Tensor:
        """Return a view of a surface; where one has been before, its view is at hand.

        DLPack takes 0.1 ms with the interpreter's lock.
        """
        place = frame.GetPtrToPlane(0), frame.framesize()
        if place not in self._views:
            if len(self._views) >= VIEWS:
                self._views.clear()
            self._views[place] = torch.from_dlpack(frame)
        return self._views[place]


def _refused(error: Exception) -> Undecodable:
    """Return Undecodable with one line of what PyNvVideoCodec raises, which has no class of its own."""
    return Undecodable(
        next(iter(str(error).strip().splitlines()), type(error).__name__)
    )


def session_key(name: str, height: int, width: int) -> tuple[Any, ...]:
    """Return the key of a decoder: its codec, and of HEVC the coded sides modulo 16, 0 or 8 each.

    NVIDIA's parser rounds them up to multiples of 16, and tells of a new size only where these are others:
    168 after 176 rows it would take for 176. H.264's always are; VP9 it does not round.
    """
    return (name, height % 16, width % 16) if name == "hevc" else (name,)


class Nvdec:
    """Gives frames of a file as surfaces. For one thread, whose current stream it writes on."""

    def __init__(self, columns: Videos, codec: Codec, gpu: int, stream: int) -> None:
        self._columns = columns
        self._codec = codec
        self._gpu = gpu
        self._stream = stream
        self._decoders: dict[tuple[Any, ...], Decoder] = {}
        self._clips = 1
        self.decoded = 0

    def __call__(self, read: Read) -> Iterator[tuple[int, Picture, torch.Tensor]]:
        """Yield (frame, what its surface shows, surface) once for each frame that Packets was asked for.

        A surface is valid until the next one. It has the coded sides, so that there may be more below and to
        the right than the picture that it shows. Raises Undecodable.
        """
        clip: Clip = read.about
        columns = self._columns
        sample = clip.sample
        picture = nv12(
            *before_turning(columns, sample),
            matrix=MATRICES.get(int(columns.matrix[sample]), BT601),
            full_range=bool(columns.full_range[sample]),
            turns=int(columns.rotation[sample]) // 90 % 4,
        )
        address = read.data.ctypes.data
        for group in clip.groups:
            for frame, surface in self._group(clip, group, address):
                # NV12: below the luma half as many rows of chroma
                if (
                    surface.shape != (clip.height * 3 // 2, clip.width)
                    or surface.dtype != torch.uint8
                ):
                    raise Undecodable(
                        f"a surface is {surface.dtype} {tuple(surface.shape)}"
                    )
                yield frame, picture, surface
            address += sum(size for size, _, _ in group.packets)

    def close(self) -> None:
        self._decoders.clear()

    def _group(
        self, clip: Clip, group: Group, address: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield frames and surfaces: a picture for each packet that was fed, or none of the clip.

        A picture is told by its label; in VP9 by its place. There every packet shows one picture, in the order
        of decoding, but behind a packet with a second picture, which is not shown, the parser gives labels of
        the packet before, for a while.
        """
        self._clips = self._clips - 1 or CLIPS  # downwards: see CLIP_TICKS
        codec = CODECS[self._columns.codec[clip.sample]]
        in_order = codec == "vp9"
        # a file's times may begin anywhere: labels count from its first frame's
        base = self._clips * CLIP_TICKS - int(self._columns.pts(clip.sample)[0])
        # label -> frame, as packets were fed; None: nobody wants it
        coming = dict[int, int | None]()

        def wanted(
            surfaces: Iterator[tuple[int, torch.Tensor]],
        ) -> Iterator[tuple[int, torch.Tensor]]:
            for label, surface in surfaces:
                if in_order:
                    label = next(iter(coming), label)
                if label not in coming:
                    raise Undecodable("a picture has the label of another")
                frame = coming.pop(label)
                if frame is not None:
                    yield frame, surface

        key = session_key(codec, clip.height, clip.width)
        try:
            decoder = self._decoder(key, clip.height, clip.width)
            for size, time, frame in group.packets:
                self.decoded += 1
                label = base + time
                shown = in_order or frame is not None or time > group.last
                if shown:
                    coming[label] = frame
                yield from wanted(decoder.feed(address, size, label, shown=shown))
                address += size
            yield from wanted(decoder.finish())
            if coming:
                # pictures behind it may have had the labels of others
                raise Undecodable("a picture is missing")
        except BaseException:  # also when nobody asks for the rest
            self._decoders.pop(key, None)
            raise

    def _decoder(self, key: tuple[Any, ...], height: int, width: int) -> Decoder:
        decoder = self._decoders.get(key)
        if decoder is None or decoder.height < height or decoder.width < width:
            sides = height, width
            if decoder is not None:
                # as large as both need, so that sizes that alternate do not make one each time
                sides = max(decoder.height, height), max(decoder.width, width)
            # the old one goes before there is a new one
            decoder = None
            self._decoders.pop(key, None)
            decoder = Decoder(self._codec, self._gpu, key[0], self._stream, sides)
            self._decoders[key] = decoder
        decoder.begin(height, width)
        return decoder
