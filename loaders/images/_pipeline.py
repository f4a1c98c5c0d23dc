"""What the DALI loaders share: the graph, feeding it rows, and going on after a file that it refuses.

    rows -> Prepared (loaders/images/_dali_rows.py) -> DALI -> uint8 on the host | fp16 or uint8 on the device

Must not know the order of an epoch, nor who reads the files.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, Feed, ImageColumns, Plan, UserError
from saturate.loaders._dali import first_line, held, import_dali, memory_named
from saturate.loaders._staging import Staged, Stager, without
from saturate.loaders.images._dali_rows import Known, Prepared

DEPTH = 2
"""Batches that DALI has under way."""
HARDWARE_SHARE = 0.8
"""Share of the JPEGs for nvJPEG's hardware engines. The SMs decode the rest, once threads of the host have undone
their Huffman code. Shares of 0.65, 0.8 and 1 made 35,511, 37,501 and 36,706 img/s of ResNet-18 on four H100s (one run
each, 8,000 JPEGs, commit 2cd60daf)."""
FEW_THREADS = 8
"""Threads below which the engines get all JPEGs: so few would take longer for the rest than the engines for all."""
FANCY_UPSAMPLING = False
"""Whether nvJPEG smooths chroma as libjpeg does."""
FAILURES = (RuntimeError, IndexError, ValueError)
"""What DALI raises for a file that it does not decode."""
ATTEMPTS = 3
"""Times that a batch is given to DALI again in which nothing is wrong with any file."""
INTERPOLATIONS = {
    "bilinear": ("INTERP_LINEAR", True),
    "bicubic": ("INTERP_CUBIC", True),
    "bilinear-no-antialias": ("INTERP_LINEAR", False),
    "nearest": ("INTERP_NN", False),
}
"""Interpolation -> DALI's name for it, and whether it is antialiased."""
REFUSED_ALL = 64
"""Files in a row that fail alone, from which on it is not they: DALI has to start anew behind each."""


def build(
    feed: Feed[ImageColumns],
    *,
    device: torch.device | None,
    reads: bool,
    batch_size: int | None = None,
    threads: int | None = None,
) -> Any:
    """Return a pipeline of (images, bytes read).

    `device` None: uint8 [B, H, W, 3] on the host; else on that GPU, normalised where that is free. `reads`:
    DALI reads the files. Unless all of the plan's images fill their canvas, they are put at their places on
    it, and it may be of another size in each batch. A batch size and threads other than the feed's may be
    asked for.
    """
    workers = max(feed.workers, 1)
    antialiased = INTERPOLATIONS[feed.pixels.interpolation][1]
    interpolation = INTERPOLATIONS[feed.pixels.interpolation][0]
    threads = threads or (workers if reads else feed.threads or workers)
    dali = import_dali()
    fn = dali.fn
    types = dali.types
    pipeline = dali.Pipeline(
        batch_size=batch_size or feed.plan.batches.rows,
        num_threads=threads,
        device_id=None if device is None else device.index,
        prefetch_queue_depth=DEPTH,
        exec_dynamic=True,
        seed=0,
    )
    with pipeline:
        # files' bytes stay where they are
        data = fn.external_source(
            name="data", dtype=types.UINT8, ndim=1, no_copy=not reads
        )
        start = fn.external_source(name="starts", dtype=types.INT32, ndim=1)
        shape = fn.external_source(name="shapes", dtype=types.INT32, ndim=1)
        window = fn.external_source(name="windows", dtype=types.FLOAT, ndim=1)
        size = fn.external_source(name="sizes", dtype=types.FLOAT, ndim=1)
        if reads and feed.source.read_delay_s:
            data = _delayed(data, feed.source.read_delay_s)
        # DALI reads 44.7 k files/s from the page cache, and 17.7 k with mmap (DALI 2.4)
        data = fn.io.file.read(data, dont_use_mmap=True) if reads else data
        # The decoder (DALI 2.4) ends the process where it cannot read the header of one file among a hundred;
        # this operator says so. The decoder waits for it, as its start depends on it.
        start = start + fn.peek_image_shape(data, dtype=types.INT32)[0:2] * 0
        options: dict[str, object] = {
            "start": start,
            "shape": shape,
            "axes": [0, 1],  # y, x: its default order is x, y
            "adjust_orientation": False,  # rows are in stored pixels, whatever EXIF says
            "output_type": types.RGB,
        }
        if device is not None:
            options |= {
                "device": "mixed",
                "hw_decoder_load": 1.0 if threads < FEW_THREADS else HARDWARE_SHARE,
                "jpeg_fancy_upsampling": FANCY_UPSAMPLING,
            }
        image = fn.decoders.image_slice(data, **options)
        image = fn.resize(
            image,
            size=size,
            roi_start=window[0:2],
            roi_end=window[2:4],
            interp_type=getattr(types, interpolation),
            antialias=antialiased,
        )
        if not feed.plan.batches.filled:
            image = _on_canvas(image)
        if device is not None and dali_normalises(feed.plan):
            pixels = feed.pixels
            image = fn.crop_mirror_normalize(
                image,
                mean=[255 * value for value in pixels.mean],
                std=[255 * value for value in pixels.std],
                # there is no bfloat16 here: finish() makes it of fp32
                dtype=types.FLOAT16 if pixels.dtype == "float16" else types.FLOAT,
                output_layout="HWC",
            )
        pipeline.set_outputs(image, data.shape())
    pipeline.build()
    held.clear()
    return pipeline


def _on_canvas(image: Any) -> Any:
    """Return images at their places on their canvases."""
    dali = import_dali()
    corner, canvas = (
        dali.fn.external_source(name=name, dtype=dali.types.INT32, ndim=1)
        for name in ("corners", "canvases")
    )
    return dali.fn.slice(
        image, start=corner, shape=canvas, axes=[0, 1], out_of_bounds_policy="pad"
    )


def dali_normalises(plan: Plan) -> bool:
    """Return whether DALI normalises on the GPU, where that is free: operations have to come before it."""
    return not plan.batches.ops


class Outputs:
    """Makes batches of DALI's outputs.

    On a GPU on a stream of its own: a copy of 0.1 ms, after which DALI has its buffer back.
    """

    def __init__(self, feed: Feed[ImageColumns], stager: Stager, *, gpu: bool) -> None:
        self._normalised = dali_normalises(feed.plan)
        self._stream = torch.cuda.Stream(feed.device) if gpu else None
        self._stager = stager
        self.raw_stream = self._stream.cuda_stream if self._stream else None

    def stage(self, images: Any, batch: Prepared) -> Staged:
        rows = batch.rows
        valid = without(rows, batch.failed)
        if self._stream is None:
            return self._stager.stage(
                torch.from_dlpack(images.as_tensor()), rows, valid
            )
        with torch.cuda.stream(self._stream):
            pixels = torch.from_dlpack(images.as_tensor())
            return self._stager.on_device(
                pixels, rows, valid, normalised=self._normalised
            )


class Runner:
    """Feeds a pipeline with rows, in order, DEPTH batches ahead; makes it anew when a file has ended it.

    `make`: `build`, which is given other numbers to try a file alone. `diagnose`: ids of a batch that PIL
    does not decode either. `again`: the batch, prepared with what is known by now.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        warm: Prepared,
        diagnose: Callable[[Prepared], set[int]],
        again: Callable[[Prepared, Known], Prepared],
        output_stream: int | None = None,
    ) -> None:
        self._make = make
        self._warm = warm
        self._diagnose = diagnose
        self._again = again
        self._stream = output_stream
        self._pipeline: Any = None
        self._refused_in_a_row = 0
        self.known = Known()

    def run(self, prepared: Iterable[Prepared]) -> Generator[tuple[Any, Prepared]]:
        """Yield (outputs, batch), valid until the next is asked for; drain the pipeline at the end."""
        waiting: deque[Prepared] = deque()
        source = iter(prepared)
        try:
            while True:
                while (
                    len(waiting) < DEPTH and (batch := next(source, None)) is not None
                ):
                    self._feed(batch)
                    waiting.append(batch)
                if not waiting:
                    return
                outputs = self._outputs(waiting)
                done = waiting.popleft()
                try:
                    yield outputs, done
                finally:
                    del outputs  # before the buffers that it shows
                    self._pipeline.release_outputs()
                    done.forget()
        finally:
            self._drain(waiting)
            for batch in waiting:
                batch.forget()

    def close(self) -> None:
        self._pipeline = None

    def _drain(self, waiting: deque[Prepared]) -> None:
        """Leave the pipeline empty and warm for the next iterator; drop one that an error has broken."""
        try:
            # what was scheduled has to be taken out: it would come first in the next sequence
            for _ in waiting:
                self._pipeline.share_outputs()
                self._pipeline.release_outputs()
        except Exception:
            self._pipeline = None

    def _outputs(self, waiting: deque[Prepared]) -> Any:
        attempts = 0
        while True:
            try:
                with memory_named():
                    return self._pipeline.share_outputs(cuda_stream=self._stream)
            except FAILURES as error:
                why = str(error)  # the error itself holds the pipeline
            self._pipeline = None  # after an error it is of no use
            bad = set[int]().union(*map(self._diagnose, waiting)) - self.known.bad
            odd = set[int]()
            if not bad:
                odd = odd.union(*map(self._refused, waiting)) - self.known.odd
            attempts += 1
            # storage that failed DALI may have answered since: nothing is wrong with the files then
            if not bad and not odd and attempts > ATTEMPTS:
                raise RuntimeError(
                    f"DALI failed, and can decode every file of the batch by itself: {why}"
                )
            self.known.bad |= bad
            self.known.odd |= odd
            for index, batch in enumerate(waiting):
                waiting[index] = self._again(batch, self.known)
                batch.forget()
                self._feed(waiting[index])

    def _refused(self, batch: Prepared) -> set[int]:
        """Return the ids that DALI does not decode alone.

        Raises UserError when that cannot be the files' fault.
        """
        refused = set[int]()
        alone = None  # a pipeline for one file is there sooner, and takes less memory
        tried = without(batch.rows, batch.failed)
        if batch.own_bytes is not None:
            tried &= batch.own_bytes
        for row in np.flatnonzero(tried).tolist():
            with memory_named():
                alone = alone or self._started(self._warm.only(0), 1, 1)
            try:
                with memory_named():
                    _input(alone, batch.only(row))
                    alone.schedule_run()
                    alone.share_outputs()
                    alone.release_outputs()
                self._refused_in_a_row = 0
                continue
            except FAILURES as error:
                why = first_line(error)
            alone = None
            refused.add(int(batch.rows.ids[row]))
            self._refused_in_a_row += 1
            if self._refused_in_a_row == REFUSED_ALL:
                raise UserError(
                    f"DALI decodes none of {REFUSED_ALL} files in a row that PIL does ({why}): "
                    "a smaller --batch-size, if memory is short, or --loader torchvision"
                )
        return refused

    def _feed(self, batch: Prepared) -> None:
        with memory_named():
            if self._pipeline is None:
                self._pipeline = self._started(self._warm)
            _input(self._pipeline, batch)
            self._pipeline.schedule_run()

    def _started(
        self, warm: Prepared, batch_size: int | None = None, threads: int | None = None
    ) -> Any:
        """Return a pipeline whose first schedule_run, which starts DEPTH batches at once, is done.

        From then on each schedule_run starts one batch.
        """
        pipeline = self._make(batch_size=batch_size, threads=threads)
        for _ in range(DEPTH):
            _input(pipeline, warm)
        pipeline.schedule_run()
        for _ in range(DEPTH):
            pipeline.share_outputs()
            pipeline.release_outputs()
        return pipeline


def _input(pipeline: Any, batch: Prepared) -> None:
    values = {
        "data": batch.data,
        "starts": batch.starts,
        "shapes": batch.shapes,
        "windows": batch.windows,
        "sizes": batch.sizes,
        **batch.places,
    }
    for name, value in values.items():
        pipeline.feed_input(name, value)


def _delayed(paths: Any, delay_s: float) -> Any:
    """Return the paths, each `delay_s` later, in the thread of DALI that reads the file next."""
    import nvidia.dali.types as types
    from nvidia.dali.plugin.numba.fn.experimental import numba_function

    # numba compiles the call, so that it sleeps in each of DALI's threads; fn.python_function would sleep
    # for one file after the other
    usleep = ctypes.CDLL(None).usleep
    usleep.argtypes = [ctypes.c_uint]
    usleep.restype = ctypes.c_int
    microseconds = int(delay_s * 1e6)

    def copy_late(out: Array, given: Array) -> None:
        usleep(microseconds)
        out[:] = given[:]

    return numba_function(
        paths,
        run_fn=copy_late,
        in_types=[types.UINT8],
        ins_ndim=[1],
        out_types=[types.UINT8],
        outs_ndim=[1],
        batch_processing=False,
    )
