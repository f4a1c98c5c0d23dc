"""`dali-video`: DALI's video decoder, which takes a file's bytes and the numbers of the frames; its filter resizes them on the GPU.

One pipeline a thread, each for one clip at a time. Worker processes read, and decode by pyav what DALI is not exact for, also files of a
size that it would mistake for another one's (`Sizes`). Files are read whole: for long ones `nvdec` and `pyav`, which read from the key
frame on, are many times faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contracts import Feed, Mistake, Rows
from dataset.videos import CODECS
from loaders._clips import exact, kind, passed
from loaders._dali import import_dali, lacks_memory, release_memory, said
from loaders._mixed import MixedLoader, Normalise
from loaders._readers import Undecodable
from loaders._reading import Read

Array = np.ndarray[Any, Any]

THREADS = 7
"""As many as an H100 or H200 has engines; also how many clips of whole frames are on the device at once."""

UNITS = {"h264": ((16, 16), (32, 16))}
"""Codec -> the heights and widths in multiples of which it stores pictures: H.264's are 32 rows high where a file may be interlaced."""
ANY_UNITS = ((8, 8), (16, 16), (32, 32), (64, 64))
"""Of the others: HEVC's smallest coding units, and more than VP9 needs."""


OF_A_SIZE = ", of a size that DALI takes for another"
"""Ends the sort of such files."""


class Sizes:
    """The sizes of a codec's pictures that DALI decodes in this process, none of which it takes for the other.

    DALI (2.4, NVDECCache in frames_decoder_gpu.cc) keeps its decoders as long as the process lives, filed under the size that is displayed,
    and looks for one of the size that is stored: for 40 x 60 pixels, stored as 48 x 64, it takes one that was made for files of 48 x 64,
    and gives other pixels. Files of one displayed size are taken to be stored alike, and to be cut off at the bottom and the right.
    """

    def __init__(self, codec: str) -> None:
        self._units = UNITS.get(codec, ANY_UNITS)
        self._taken, self._stored = set[tuple[int, int]](), set[tuple[int, int]]()

    def take(self, size: tuple[int, int]) -> bool:
        """Whether files of this displayed size, (height, width), may be decoded beside those that were taken; if so, it is taken."""
        stored = {(-(-size[0] // rows) * rows, -(-size[1] // columns) * columns) for rows, columns in self._units} - {size}
        if size in self._taken:
            return True
        if size in self._stored or stored & self._taken:
            return False
        self._taken.add(size)
        self._stored |= stored
        return True


_sizes: dict[int, Sizes] = {}  # by codec


def of_safe_sizes(columns: Any, able: Array, sizes: dict[int, Sizes]) -> Array:
    """`able`, bool by sample, without the files of sizes that cannot be taken. Those of most files come first."""
    codec, height, width = (column[:][able].astype(np.int64) for column in (columns.codec, columns.height, columns.width))
    kinds, which, counts = np.unique(codec << 48 | height << 24 | width, return_inverse=True, return_counts=True)
    codec, height, width = kinds >> 48, kinds >> 24 & 0xFFFFFF, kinds & 0xFFFFFF
    good = np.zeros(len(kinds), bool)
    for place in np.lexsort((-height * width, -counts)).tolist():
        its = int(codec[place])
        if its not in sizes:
            sizes[its] = Sizes(CODECS[its])
        good[place] = sizes[its].take((int(height[place]), int(width[place])))
    found = able.copy()
    found[able] = good[which]
    return found


def build(device: int | None) -> Any:
    """A pipeline of one clip: uint8 [F, H, W, 3]. Frames come in the order in which they are asked for, and as often."""
    dali = import_dali()
    fn, types = dali.fn, dali.types
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=device, prefetch_queue_depth=1, exec_dynamic=True)
    with pipeline:
        data = fn.external_source(name="data", dtype=types.UINT8, ndim=1, no_copy=True)
        numbers = {name: fn.external_source(name=name, dtype=types.INT32, ndim=1) for name in ("frames", "starts", "shapes")}
        window, size = (fn.external_source(name=name, dtype=types.FLOAT, ndim=1) for name in ("windows", "sizes"))
        flip = fn.external_source(name="flips", dtype=types.INT32, ndim=0)
        clip = fn.decoders.video(data, device="cpu" if device is None else "mixed", frames=numbers["frames"], build_index=True)
        clip = fn.slice(clip, start=numbers["starts"], shape=numbers["shapes"], axis_names="HW")
        clip = fn.resize(
            clip, size=size, roi_start=window[0:2], roi_end=window[2:4], interp_type=types.INTERP_LINEAR, antialias=True, dtype=types.UINT8
        )
        pipeline.set_outputs(fn.flip(clip, horizontal=flip))
    pipeline.build()
    return pipeline


def inputs(data: Array, rows: Rows, place: int) -> dict[str, Array]:
    """What `build`'s pipeline takes for the clip of one row. Axes: (y, x) as DALI orders them."""
    assert rows.frames is not None, "a plan of clips says which frames"
    left, top, right, bottom = rows.regions[place].tolist()
    return {
        "data": data,
        "frames": rows.frames[place].astype(np.int32),
        "starts": np.array([top, left], np.int32),
        "shapes": np.array([bottom - top, right - left], np.int32),
        "windows": rows.windows[place][[1, 0, 3, 2]].astype(np.float32),
        "sizes": rows.sizes[place].astype(np.float32),
        "flips": np.array(rows.flips[place], np.int32),
    }


class Whole:
    """loaders._reading.ReadClip: the bytes of the file."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __call__(self, sample: int, path: bytes, frames: list[int]) -> Read:
        data = np.fromfile(path, np.uint8)
        self._source.check(sample, len(data))
        return Read(data, None)


class Filling:
    """loaders._mixed.Fills."""

    def __init__(self, columns: Any, device: torch.device, stream: int, normalise: Normalise) -> None:
        self._columns, self._device, self._stream, self._normalise = columns, device, stream, normalise
        self._pipeline: Any = None
        self.decoded = 0

    def __call__(self, read: Read, rows: Rows, places: Array, out: torch.Tensor) -> None:
        for place in places.tolist():
            try:
                clip = self._run(inputs(read.data, rows, place))
            except Exception as error:  # DALI's, of which there are many; a pipeline is of no use after one
                self._pipeline = None
                if lacks_memory(error):
                    raise Mistake("DALI ran out of the GPU's memory: fewer frames a clip, or --loader nvdec, which needs little") from None
                raise Undecodable(said(error)) from error
            out[place, :, : clip.shape[1], : clip.shape[2]] = self._normalise(clip)
            if self._stream:
                torch.cuda.current_stream().synchronize()
            self._pipeline.release_outputs()
            assert rows.frames is not None
            self.decoded += passed(self._columns.keys(int(rows.ids[place])), np.unique(rows.frames[place]))

    def close(self) -> None:
        self._pipeline = None

    def _run(self, given: dict[str, Array]) -> torch.Tensor:
        """uint8 [F, H, W, 3], valid until the outputs are released."""
        if self._pipeline is None:
            self._pipeline = build(self._device.index if self._device.type == "cuda" else None)
        for name, value in given.items():
            self._pipeline.feed_input(name, [value])
        self._pipeline.schedule_run()
        (clips,) = self._pipeline.share_outputs(cuda_stream=self._stream or None)
        return torch.from_dlpack(clips.as_tensor())[0]


def on_gpu(device: torch.device) -> bool:
    """Where DALI keeps decoders."""
    return device.type == "cuda"


class DaliVideo(MixedLoader):
    """contracts.Loader. DALI's buffers are given back when it closes."""

    def __init__(self, feed: Feed) -> None:
        import_dali()
        able = exact("dali-video", feed.columns, np.arange(len(feed.columns.codec)))
        safe: Array = of_safe_sizes(feed.columns, able, _sizes) if on_gpu(feed.device) else able
        super().__init__(
            feed,
            "dali-video",
            lambda: Whole(feed.source),
            lambda stream, normalise: Filling(feed.columns, feed.device, stream, normalise),
            safe,
            threads=THREADS,
            sort=lambda sample: kind(feed.columns, sample) + (OF_A_SIZE if able[sample] > safe[sample] else ""),
        )

    def close(self) -> None:
        super().close()
        release_memory()


def open(feed: Feed) -> DaliVideo:
    if feed.device.type != "cuda":
        raise Mistake("--loader dali-video needs an NVIDIA GPU and none is here; pyav, decord and torchcodec run on this machine")
    return DaliVideo(feed)
