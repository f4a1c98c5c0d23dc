"""What the DALI loaders share: the graph, feeding it with the plan's rows, and going on after a file it cannot decode.

    rows -> Prepared (paths or bytes, regions, windows, flips as arrays) -> DALI -> uint8 on the host | fp16 or uint8 on the device

Must not know the order of an epoch, nor who reads the files.
"""

from __future__ import annotations

import gc
import io
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from contracts import Feed, Mistake, Rows
from dataset import geometry
from loaders._places import placing
from loaders._readers import PNG, READERS, Undecodable, exactly, plain_jpeg
from loaders._staging import Staged, Stager, without

Array = np.ndarray[Any, Any]

DEPTH = 2
"""Batches that DALI has under way."""
HARDWARE_SHARE = 0.65
"""Share of the JPEGs for nvJPEG's hardware engine, the rest is decoded by the SMs: docs/benchmarks/image.md."""
FANCY_UPSAMPLING = False
"""Whether nvJPEG smooths chroma as libjpeg does."""
PLACEHOLDER_SIDE = 16
FEW = 0.01
"""Share of files that PIL decodes, up to which nobody needs to know."""
PIECE = 1 << 18
"""Files that are looked at together: bounds the memory."""


def import_dali() -> Any:
    """nvidia.dali, or a Mistake that says how to get it."""
    try:
        import nvidia.dali
    except ImportError as error:
        raise Mistake(f"DALI is not installed ({error}): pip install nvidia-dali-cuda120, or use --loader torchvision") from None
    return nvidia.dali


@dataclass(slots=True)
class Prepared:
    """One batch as DALI takes it. Axes: B samples; (y, x) as DALI orders them."""

    rows: Rows
    data: Any  # uint8 [B, L] paths padded with NUL, or a list of B arrays of bytes
    starts: Array  # int32 [B, 2]
    shapes: Array  # int32 [B, 2]
    windows: Array  # float32 [B, 4], y0 x0 y1 x1 inside the region
    flips: Array  # int32 [B]
    places: dict[str, Array] = field(default_factory=dict)  # what only a graph that places images takes
    failed: tuple[int, ...] = ()
    own_bytes: Array | None = None  # bool [B], rows whose bytes are the sample's file
    files: list[Path] = field(default_factory=list)  # substitutes, removed once the batch is through


def plain(columns: Any, ids: Array) -> Array:
    """bool [B]: files that every decoder turns into the same pixels. The others are decoded by PIL and handed over as PNG."""
    return plain_jpeg(columns, ids) | ((columns.format[ids] == PNG) & (columns.depth[ids] == 8))


def notes(columns: Any) -> list[str]:
    """A line where many files are not plain and DALI reads the files: each is then decoded, and written for DALI, in one thread."""
    odd = sum(int((~plain(columns, np.arange(at, min(at + PIECE, len(columns))))).sum()) for at in range(0, len(columns), PIECE))
    if odd <= FEW * len(columns):
        return []
    return [
        f"{odd:,} of {len(columns):,} images are no plain JPEG or 8-bit PNG: PIL decodes them in one thread before DALI; "
        "--loader dali-fed and torchvision do it in worker processes"
    ]


def placeholder() -> bytes:
    """A small image that stands for a row without one."""
    return encoded(np.zeros((PLACEHOLDER_SIDE, PLACEHOLDER_SIDE, 3), np.uint8))


def encoded(pixels: Array) -> bytes:
    """Lossless bytes of RGB uint8 that DALI decodes."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()


def whole_image(data: bytes, columns: Any, sample: int) -> Array:
    """RGB uint8 of all of a file, decoded by PIL. Raises Undecodable, also when the size is not the header's."""
    return exactly(READERS["pil"](), data, (0, 0, int(columns.width[sample]), int(columns.height[sample])))


def nothing(batch_size: int, size: tuple[int, int]) -> Rows:
    """Rows without a sample, whose outputs are height x width `size`."""
    zeros = np.zeros((batch_size, 4))
    return Rows(
        ids=np.full(batch_size, -1),
        regions=zeros.astype(np.int64),
        windows=zeros,
        sizes=np.tile(np.array(size, np.int64), (batch_size, 1)),
        flips=np.zeros(batch_size, bool),
        valid=np.zeros(batch_size, bool),
    )


def numbers(rows: Rows, absent: Array, *, placed: bool) -> dict[str, Any]:
    """The arrays of a Prepared; an absent row takes the placeholder whole. `placed`: for a graph that places images."""
    regions, windows = rows.regions.copy(), rows.windows.copy()
    regions[absent] = windows[absent] = (0, 0, PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)
    y_x = [1, 0]
    return {
        "starts": np.ascontiguousarray(regions[:, y_x], np.int32),
        "shapes": np.ascontiguousarray((regions[:, 2:] - regions[:, :2])[:, y_x], np.int32),
        "windows": np.ascontiguousarray(windows[:, [1, 0, 3, 2]], np.float32),
        "flips": rows.flips.astype(np.int32),
        "places": placed_at(rows) if placed else {},
    }


def placed_at(rows: Rows) -> dict[str, Array]:
    """How large each image is resized, float32 [B, 2], and where the canvas begins in it, int32 [B, 2], which is [B, 2] large."""
    places = geometry.places(rows)
    corners = np.ascontiguousarray(-places[:, [1, 0]], np.int32)
    return {
        "sizes": np.ascontiguousarray((places[:, 2:] - places[:, :2])[:, ::-1], np.float32),
        "corners": corners,
        "canvases": np.tile(np.array(rows.padded, np.int32), (len(rows), 1)),
    }


class PathPreparer:
    """Rows -> Prepared with paths, for the loaders in which DALI reads the files itself."""

    def __init__(self, feed: Feed) -> None:
        self._source, self._columns = feed.source, feed.columns
        self._folder = tempfile.TemporaryDirectory(prefix="saturate-")
        self._placeholder = Path(self._folder.name, "placeholder")
        self._placeholder.write_bytes(placeholder())
        self._made = 0
        self._batch_size, self._image_size = feed.plan.batch_size, feed.plan.image_size
        self.placed = placing(feed.plan)
        self.notes = notes(feed.columns)

    def __call__(self, rows: Rows, bad: set[int]) -> Prepared:
        own = rows.valid.copy()
        own[rows.valid] = plain(self._columns, rows.ids[rows.valid])
        if bad:
            own &= ~np.isin(rows.ids, list(bad))
        files, others, failed = [], {}, []
        absent = ~rows.valid
        for i in np.flatnonzero(rows.valid & ~own):
            sample = int(rows.ids[i])
            try:
                if sample in bad:
                    raise Undecodable
                files.append(self._substitute(sample))
                others[int(i)] = bytes(files[-1])
            except Undecodable:
                failed.append(sample)
                absent[i] = True
        # DALI hands the path to open(2), for which the first NUL ends it: one array instead of B
        paths = self._source.paths(np.where(own, rows.ids, 0))
        instead = [others.get(int(i), bytes(self._placeholder)) for i in np.flatnonzero(~own)]
        width = max([paths.shape[1], *(len(path) + 1 for path in instead)])
        data = np.zeros((len(rows), width), np.uint8)
        data[:, : paths.shape[1]] = paths
        for i, path in zip(np.flatnonzero(~own), instead, strict=True):
            data[i] = np.frombuffer(path.ljust(width, b"\0"), np.uint8)
        arrays = numbers(rows, absent, placed=self.placed)
        return Prepared(rows, data, **arrays, failed=tuple(failed), own_bytes=own, files=files)

    def nothing(self) -> Prepared:
        """A batch of placeholders."""
        side = self._image_size
        return self(nothing(self._batch_size, (side, side)), set())

    def diagnose(self, prepared: Prepared) -> set[int]:
        """Ids of the batch that PIL cannot decode either. Raises Mistake for a file that is gone or has changed."""
        found = set()
        for sample in prepared.rows.ids[prepared.own_bytes]:
            try:
                whole_image(self._source.read(int(sample)), self._columns, int(sample))
            except (Undecodable, OSError):
                found.add(int(sample))
        return found

    def check(self, prepared: Prepared, sizes: Array) -> None:
        """Raise Mistake when DALI read another number of bytes than the manifest has."""
        own = prepared.own_bytes
        assert own is not None
        ids = prepared.rows.ids[own]
        for at in np.flatnonzero(sizes[own] != self._columns.size[ids]):
            self._source.check(int(ids[at]), int(sizes[own][at]))

    def close(self) -> None:
        self._folder.cleanup()

    def _substitute(self, sample: int) -> Path:
        """A PNG of the sample's pixels. Raises Undecodable, and Mistake when there is no room for it."""
        self._made += 1
        path = Path(self._folder.name, f"{self._made}.png")
        try:
            content = encoded(whole_image(self._source.read(sample), self._columns, sample))
        except OSError as error:
            raise Undecodable(str(error)) from error
        try:
            path.write_bytes(content)
        except OSError as error:
            raise Mistake(
                f"{self._folder.name}: an image that DALI cannot take as it is cannot be written there ({error.strerror}): "
                "set TMPDIR to a folder with room, or --loader dali-fed"
            ) from None
        return path


def build(
    *,
    batch_size: int,
    threads: int,
    device: torch.device | None,
    reads: bool,
    pixels: Any = None,
    read_delay_s: float = 0.0,
    placed: bool = False,
) -> Any:
    """A pipeline (images, bytes read). `device` None: uint8 [B, H, W, 3] on the host; else on that GPU, normalised by `pixels` if given.

    `placed`: images are put at their places on a canvas, which may be of another size in each batch.
    """
    dali = import_dali()
    fn, types = dali.fn, dali.types
    pipeline = dali.Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=None if device is None else device.index,
        prefetch_queue_depth=DEPTH,
        exec_dynamic=True,
        seed=0,
    )
    with pipeline:
        data = fn.external_source(name="data", dtype=types.UINT8, ndim=1, no_copy=not reads)  # files' bytes stay where they are
        start = fn.external_source(name="starts", dtype=types.INT32, ndim=1)
        shape = fn.external_source(name="shapes", dtype=types.INT32, ndim=1)
        window = fn.external_source(name="windows", dtype=types.FLOAT, ndim=1)
        size = fn.external_source(name="sizes", dtype=types.FLOAT, ndim=1)
        flip = fn.external_source(name="flips", dtype=types.INT32, ndim=0)
        if reads and read_delay_s:
            data = _delayed(data, read_delay_s)
        encoded_ = fn.io.file.read(data, dont_use_mmap=True) if reads else data
        options: dict[str, Any] = {"start": start, "shape": shape, "axes": [0, 1], "adjust_orientation": False, "output_type": types.RGB}
        if device is not None:
            options |= {"device": "mixed", "hw_decoder_load": HARDWARE_SHARE, "jpeg_fancy_upsampling": FANCY_UPSAMPLING}
        image = fn.decoders.image_slice(encoded_, **options)
        image = fn.resize(image, size=size, roi_start=window[0:2], roi_end=window[2:4], interp_type=types.INTERP_LINEAR, antialias=True)
        if placed or device is None or pixels is None:
            image = fn.flip(image, horizontal=flip)
        if placed:
            corner = fn.external_source(name="corners", dtype=types.INT32, ndim=1)
            canvas = fn.external_source(name="canvases", dtype=types.INT32, ndim=1)
            image = fn.slice(image, start=corner, shape=canvas, axes=[0, 1], out_of_bounds_policy="pad")
        if device is not None and pixels is not None:
            image = fn.crop_mirror_normalize(
                image,
                mirror=0 if placed else flip,
                mean=[255 * value for value in pixels.mean],
                std=[255 * value for value in pixels.std],
                dtype=types.FLOAT16 if pixels.dtype == "float16" else types.FLOAT,
                output_layout="HWC",
            )
        pipeline.set_outputs(image, encoded_.shape())
    pipeline.build()
    return pipeline


class GpuOutputs:
    """Takes DALI's outputs on a stream of its own: a copy of 0.1 ms, after which DALI has its buffer back."""

    def __init__(self, feed: Feed, stager: Stager) -> None:
        self._stream = torch.cuda.Stream(feed.device)
        self._stager = stager
        self.raw_stream = self._stream.cuda_stream

    def stage(self, images: Any, batch: Prepared) -> Staged:
        with torch.cuda.stream(self._stream):
            return self._stager.on_device(torch.from_dlpack(images.as_tensor()), batch.rows, without(batch.rows, batch.failed))


def release_memory() -> None:
    """Give back the device and pinned memory that DALI's pools keep after their pipelines are gone."""
    gc.collect()
    import_dali().backend.ReleaseUnusedMemory()


class Runner:
    """Feeds a pipeline with rows, in order, DEPTH batches ahead; makes it anew when a file has ended it."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        warm: Prepared,
        diagnose: Callable[[Prepared], set[int]],
        again: Callable[[Prepared, set[int]], Prepared],
        output_stream: Any = None,
    ) -> None:
        self._make, self._warm, self._diagnose, self._again, self._stream = make, warm, diagnose, again, output_stream
        self._pipeline: Any = None
        self.bad: set[int] = set()

    def run(self, prepared: Iterable[Prepared]) -> Iterator[tuple[Any, Prepared]]:
        """(outputs, batch), valid until the next is asked for. An abandoned iterator is drained when it is closed."""
        waiting: deque[Prepared] = deque()
        source = iter(prepared)
        try:
            while True:
                while len(waiting) < DEPTH and (batch := next(source, None)) is not None:
                    self._feed(batch)
                    waiting.append(batch)
                if not waiting:
                    return
                outputs = self._outputs(waiting)
                done = waiting.popleft()
                yield outputs, done
                del outputs
                self._pipeline.release_outputs()
                for file in done.files:
                    file.unlink(missing_ok=True)
        finally:
            self._drain(waiting)
            for batch in waiting:
                for file in batch.files:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        self._pipeline = None

    def _drain(self, waiting: deque[Prepared]) -> None:
        """Leave the pipeline empty, so that the next iterator finds it warm. One that an error has broken is dropped."""
        try:
            for _ in waiting:
                self._pipeline.share_outputs()
                self._pipeline.release_outputs()
        except Exception:
            self._pipeline = None

    def _outputs(self, waiting: deque[Prepared]) -> Any:
        while True:
            try:
                return self._pipeline.share_outputs(cuda_stream=self._stream)
            except (RuntimeError, IndexError, ValueError) as error:
                if "out of memory" in str(error).lower() or "cudaErrorMemoryAllocation" in str(error):
                    raise Mistake(
                        "DALI ran out of the GPU's memory: a smaller --batch-size, or --loader dali-cpu, which needs none"
                    ) from None
                found = set().union(*(self._diagnose(batch) for batch in waiting)) - self.bad
                if not found:
                    raise RuntimeError(f"DALI failed, and every file of the batch can be decoded by PIL: {error}") from error
                self.bad |= found
                self._pipeline = None
                for at, batch in enumerate(waiting):
                    waiting[at] = self._again(batch, self.bad)
                    self._feed(waiting[at])

    def _feed(self, batch: Prepared) -> None:
        if self._pipeline is None:
            self._pipeline = self._make()
            # the first schedule_run starts DEPTH batches at once; give it small ones, and one from then on
            for _ in range(DEPTH):
                self._input(self._warm)
            self._pipeline.schedule_run()
            for _ in range(DEPTH):
                self._pipeline.share_outputs()
                self._pipeline.release_outputs()
        self._input(batch)
        self._pipeline.schedule_run()

    def _input(self, batch: Prepared) -> None:
        values = {
            "data": batch.data,
            "starts": batch.starts,
            "shapes": batch.shapes,
            "windows": batch.windows,
            "sizes": batch.rows.sizes.astype(np.float32),
            "flips": batch.flips,
            **batch.places,
        }
        for name, value in values.items():
            self._pipeline.feed_input(name, value)


def _delayed(paths: Any, delay_s: float) -> Any:
    """The paths, each `delay_s` later, in the thread of DALI that reads the file next."""
    try:
        from numba import types as numba_types  # noqa: F401
        from nvidia.dali.plugin.numba.fn.experimental import numba_function
    except ImportError as error:
        raise Mistake(f"--read-delay-ms with a DALI reader needs numba ({error}): pip install numba") from None
    import ctypes

    import nvidia.dali.types as types

    usleep = ctypes.CDLL(None).usleep
    usleep.argtypes, usleep.restype = [ctypes.c_uint], ctypes.c_int
    microseconds = int(delay_s * 1e6)

    def copy_late(out: Any, given: Any) -> None:
        usleep(microseconds)
        out[:] = given[:]

    return numba_function(
        paths, run_fn=copy_late, in_types=[types.UINT8], ins_ndim=[1], out_types=[types.UINT8], outs_ndim=[1], batch_processing=False
    )
