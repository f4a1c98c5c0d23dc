"""`dali-video`: DALI's video decoder and filter, on the GPU, of a file in memory and numbers of frames.

    worker: a clip's packets -> a small file, displayed as it is coded -> DALI: decode, cut, resize

DALI takes whole files, and keeps its decoders for those that are displayed as they are coded: given a file as
it is, of 1080 rows that are coded as 1088, it makes a decoder for each clip. One pipeline a thread, each for
one clip at a time. Worker processes cut the files, and decode by pyav what DALI is not exact for: of HEVC it
takes sides that are no multiples of 16 for those of another file.
"""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import av
import numpy as np
import torch

from saturate.contracts import Array, Feed, Rows, UserError
from saturate.dataset.videos.columns import CODECS, Flags, Videos
from saturate.loaders import Undecodable
from saturate.loaders._dali import first_line, import_dali, lacks_memory, release_memory
from saturate.loaders.videos._mixed import MixedLoader
from saturate.loaders.videos._packets import Filters, clip_packets
from saturate.loaders.videos._planes import BT601, MATRICES
from saturate.loaders.videos._reading import Read
from saturate.loaders.videos.exact import Claim, exact

THREADS = 7
"""Threads, as many as an H100 or H200 has engines. Each holds one clip of whole frames on the device."""
EXACT = Claim(
    # AV1: refused on an H200 (DALI 2.4)
    kinds=dict.fromkeys(("h264", "hevc", "vp9"), ("mp4", "mkv")),
    flags=Flags.OBLONG_PIXELS | Flags.EDIT_LIST | Flags.SEVERAL_STREAMS,
    rotated=(),
    plain=True,
)

NO_TAG = "\0\0\0\0"
"""What the codec is called in MP4 is none of Matroska's names."""
STEP = 10
"""Ticks, of a millisecond, between the frames of a small file: DALI asks for their order alone."""


def build(device: int | None) -> Any:
    """Return a pipeline of one clip: uint8 [F, H, W, 3], of frames in the order that is asked for.

    A frame may be asked for several times.
    """
    dali = import_dali()
    fn = dali.fn
    types = dali.types
    pipeline = dali.Pipeline(
        batch_size=1,
        num_threads=1,
        device_id=device,
        prefetch_queue_depth=1,
        exec_dynamic=True,
    )
    with pipeline:
        data = fn.external_source(name="data", dtype=types.UINT8, ndim=1, no_copy=True)
        numbers = {
            name: fn.external_source(name=name, dtype=types.INT32, ndim=1)
            for name in ("frames", "starts", "shapes")
        }
        window, size = (
            fn.external_source(name=name, dtype=types.FLOAT, ndim=1)
            for name in ("windows", "sizes")
        )
        clip = fn.decoders.video(
            data,
            device="cpu" if device is None else "mixed",
            frames=numbers["frames"],
            build_index=True,
        )
        clip = fn.slice(
            clip, start=numbers["starts"], shape=numbers["shapes"], axis_names="HW"
        )
        clip = fn.resize(
            clip,
            size=size,
            roi_start=window[0:2],
            roi_end=window[2:4],
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            dtype=types.UINT8,
        )
        pipeline.set_outputs(clip)
    pipeline.build()
    return pipeline


def inputs(read: Read, rows: Rows, place: int) -> dict[str, Array]:
    """Return what `build`'s pipeline takes for the clip of one upright row.

    Axes: (y, x) as DALI orders them.
    """
    assert rows.frames is not None, "a plan of clips says which frames"
    left, top, right, bottom = rows.regions[place].tolist()
    x0, y0, x1, y1 = rows.placed[place].tolist()
    cut: Cut = read.about
    return {
        "data": read.data,
        "frames": np.array(
            [cut.places[frame] for frame in rows.frames[place].tolist()], np.int32
        ),
        "starts": np.array([top, left], np.int32),
        "shapes": np.array([bottom - top, right - left], np.int32),
        "windows": rows.windows[place][[1, 0, 3, 2]].astype(np.float32),
        "sizes": np.array([y1 - y0, x1 - x0], np.float32),
    }


class Cut(NamedTuple):
    """The `about` of a small file's _reading.Read.

    It says where in the file each frame is, in the order of display, how many packets it has, and Kr and Kb
    of its colours.
    """

    places: dict[int, int]
    packets: int
    colours: tuple[float, float]


class Cutting:
    """saturate.loaders.videos._reading.ReadClip: a file in Matroska of the packets that show the frames."""

    def __init__(self, columns: Videos) -> None:
        self._columns = columns
        av.logging.set_level(av.logging.PANIC)  # as loaders.videos.pyav

    def __call__(self, sample: int, path: bytes, frames: list[int]) -> Read:
        file = io.BytesIO()
        codec = CODECS[self._columns.codec[sample]]
        with av.open(file, "w", format="matroska") as output:

            def filters(stream: av.VideoStream) -> Filters:
                if not output.streams:
                    output.add_stream_from_template(stream)
                return Filters(codec, stream, output.streams.video[0])

            groups, coded = clip_packets(self._columns, sample, path, frames, filters)
            out = output.streams.video[0]
            out.codec_context.codec_tag = NO_TAG
            out.height, out.width = coded
            packets = [packet for group in groups for packet in group.packets]
            times = sorted(time for _, time, _ in packets)
            order = {time: place for place, time in enumerate(times)}
            if len(order) < len(packets):
                # DALI could not tell their pictures apart
                raise Undecodable("two packets have one time")
            # no packet is shown before it is decoded
            late = max(
                place - order[time] for place, (_, time, _) in enumerate(packets)
            )
            for place, (packet, time, _) in enumerate(packets):
                packet.stream = out
                packet.time_base = Fraction(1, 1000)
                packet.dts = STEP * place
                packet.pts = STEP * (order[time] + late)
                output.mux(packet)
        places = {frame: order[time] for _, time, frame in packets if frame is not None}
        colours = MATRICES.get(int(self._columns.matrix[sample]), BT601)
        return Read(
            np.frombuffer(file.getbuffer(), np.uint8),
            Cut(places=places, packets=len(packets), colours=colours),
        )


@cache
def recoloured(
    colours: tuple[float, float], device: torch.device
) -> torch.Tensor | None:
    """Return float32 [3, 3]: DALI's RGB, by BT.601's Kr and Kb whatever a stream says -> RGB by these.

    None where they are the same. The source is DALI 2.4, color_space.cu. What it has clipped at 0 and 255
    stays so.
    """

    def rgb_of(red: float, blue: float) -> Array:
        # axes: [R G B, Y Cb Cr], Cb and Cr from -0.5 to 0.5
        green = 1 - red - blue
        from_cb, from_cr = 2 * (1 - blue), 2 * (1 - red)
        return np.array(
            [
                [1, 0, from_cr],
                [1, -from_cb * blue / green, -from_cr * red / green],
                [1, from_cb, 0],
            ]
        )

    if colours == BT601:
        return None
    return torch.tensor(
        (rgb_of(*colours) @ np.linalg.inv(rgb_of(*BT601))).T,
        dtype=torch.float32,
        device=device,
    )


class Filling:
    """saturate.loaders.videos._mixed.Fills."""

    def __init__(self, device: torch.device, stream: int) -> None:
        self._device = device
        self._stream = stream
        self._pipeline: Any = None
        self.decoded = 0

    def __call__(
        self, read: Read, rows: Rows, places: Array, out: torch.Tensor
    ) -> None:
        corners = rows.placed.tolist()
        for place in places.tolist():
            try:
                clip = self._run(inputs(read, rows, place))
            except Exception as error:  # DALI's, of which there are many; a pipeline is of no use after one
                self._pipeline = None
                if lacks_memory(error):
                    raise UserError(
                        "DALI ran out of the GPU's memory: "
                        "fewer frames a clip, or --loader nvdec, which needs little"
                    ) from None
                raise Undecodable(first_line(error)) from error
            if (colours := recoloured(read.about.colours, self._device)) is not None:
                clip = (clip.float() @ colours).round_().clamp_(0, 255)
            left, top, right, bottom = corners[place]
            out[place, :, top:bottom, left:right] = clip
            # the copies out of DALI's buffer have to be over before it is given back
            if self._stream:
                torch.cuda.current_stream().synchronize()
            self._pipeline.release_outputs()
            self.decoded += read.about.packets

    def close(self) -> None:
        self._pipeline = None

    def _run(self, given: dict[str, Array]) -> torch.Tensor:
        """Return uint8 [F, H, W, 3], valid until the outputs are released."""
        if self._pipeline is None:
            self._pipeline = build(
                self._device.index if self._device.type == "cuda" else None
            )
        for name, value in given.items():
            self._pipeline.feed_input(name, [value])
        self._pipeline.schedule_run()
        (clips,) = self._pipeline.share_outputs(cuda_stream=self._stream or None)
        return torch.from_dlpack(clips.as_tensor())[0]


class DaliVideo(MixedLoader):
    """contracts.Loader. DALI's buffers are given back when it closes."""

    def __init__(self, feed: Feed[Videos]) -> None:
        import_dali()
        super().__init__(
            feed,
            "dali-video",
            lambda: Cutting(feed.columns),
            lambda stream: Filling(feed.device, stream),
            exact("dali-video", feed.columns),
            threads=THREADS,
        )

    def close(self) -> None:
        super().close()
        release_memory()


def open(feed: Feed[Videos]) -> DaliVideo:
    if feed.device.type != "cuda":
        raise UserError(
            "--loader dali-video needs an NVIDIA GPU and none is here; pyav and decord decode on the CPU"
        )
    return DaliVideo(feed)
