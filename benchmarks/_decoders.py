"""The decoders and the files of the suite `readers`: decoders of saturate (loaders/images/decoders.py), and
others for comparison.

The others have a few lines each here and may not be installed. Must not know: rates, processes.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from contracts import Array, Feed, Rows, Split
from loaders._workers import PART
from loaders.images._dali_rows import PathPreparer
from loaders.images._pipeline import Runner, build
from loaders.images.decoders import READERS, Decode, Region, decode_many
from loaders.images.torchvision import Decoding
from loaders.images.transforms import Transform
from plan.images import ImagePlan, ImagePolicy

Task = Literal[
    "to-pil", "to-array", "region", "train", "entropy", "train-torchvision-v2", "train-albumentations"
]
AUGMENTED = {
    "train-torchvision-v2": ("torchvision", "loaders.images.presets:torchvision_v2"),
    "train-albumentations": ("albumentations", "loaders.images.presets:albumentations"),
}
"""Task -> a library of augmentations, and the function of it that follows the work of `train`."""
DALI = "dali"
SIZE = 224
"""Side of a training image, pixels."""
AHEAD = 128
"""Parts whose windows are drawn before the clock starts, and then used again and again."""


# --- other people's decoders --------------------------------------------------------------------------------


def _whole(decode: Callable[[bytes], Array]) -> Decode:
    """Make a decoder of regions from one that knows whole images only."""
    return lambda data, region: decode(data)[region[1] : region[3], region[0] : region[2]]


def _make_simplejpeg() -> Decode:
    return _whole(import_module("simplejpeg").decode_jpeg)


def _make_kornia_rs() -> Decode:
    return _whole(partial(import_module("kornia_rs.io").decode_image_jpegturbo, mode="rgb"))


def _make_imagecodecs() -> Decode:
    return _whole(partial(import_module("imagecodecs").jpeg8_decode, outcolorspace="RGB"))


def _make_av() -> Decode:
    av = import_module("av")
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.thread_count = 1
    return _whole(lambda data: decoder.decode(av.Packet(data))[0].to_ndarray(format="rgb24"))


OTHERS: dict[str, Callable[[], Decode]] = {
    "simplejpeg": _make_simplejpeg,
    "kornia-rs": _make_kornia_rs,
    "imagecodecs": _make_imagecodecs,
    "av": _make_av,
}
"""Name on PyPI -> a function that makes the decoder."""


# --- what is decoded ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """Plain JPEGs, or PNGs: their ids in the manifest, and their bytes by id."""

    split: Split
    ids: Array
    bytes_of: Mapping[int, bytes]

    def parts(self, seed: int, size: int = PART) -> Iterator[Rows]:
        """Yield parts of `size` training samples without end, in the order and with the windows that a run
        with this seed would have."""
        ids = np.resize(self.ids, max(len(self.ids), size))  # again from the first, where there are too few
        plan = self._plan(ids, seed, size)
        drawn = (
            replace(rows, ids=ids[rows.ids]) for epoch in itertools.count() for rows in plan.rows(epoch, 0)
        )
        # drawn before the clock starts and then repeated: a decoder is measured, and not the plan
        return itertools.cycle(list(itertools.islice(drawn, max(AHEAD * PART // size, 4))))

    def feed(self, size: int = PART) -> Feed:
        """Return the feed behind a loader's parts."""
        plan = self._plan(self.ids, 0, size)
        columns = self.split.columns
        return Feed(
            plan=plan,
            source=self.split.source,
            columns=columns,
            targets=lambda rows: {},
            device=torch.device("cpu"),
            workers=1,
        )

    def _plan(self, ids: Array, seed: int, size: int) -> ImagePlan:
        policy = ImagePolicy(window="random-resized", image_size=SIZE, flip=0.5)
        columns = self.split.columns
        return ImagePlan(
            heights=columns.height[ids], widths=columns.width[ids], policy=policy, seed=seed, batch_size=size
        )

    def regions(self, task: Task, rows: Rows) -> list[Region]:
        """Return the region of each sample that a task decodes."""
        columns = self.split.columns
        if task in ("to-pil", "to-array"):
            return [(0, 0, int(columns.width[i]), int(columns.height[i])) for i in rows.ids]
        return [(x0, y1 - 1 if task == "entropy" else y0, x1, y1) for x0, y0, x1, y1 in rows.regions.tolist()]


# --- decoding: endless parts, of which each item is what became of a file, None where it was refused --------


def parts_of(reader: str, task: Task, files: Files, *, seed: int, threads: int = 1) -> Iterator[list[Any]]:
    """Yield what the reader makes of each part of the files, in the order of the plan whatever the reader."""
    if task in AUGMENTED:
        import_module(AUGMENTED[task][0])  # ImportError, as of the others
        return _train(reader, files, files.parts(seed), AUGMENTED[task][1])
    if reader == DALI:
        import_module("nvidia.dali")  # ImportError, as of the others
        parts = files.parts(seed, PART * threads)
        found = (
            _dali_train(files, parts, threads)
            if task == "train"
            else _dali_decode(task, files, parts, threads)
        )
    else:
        found = (
            _train(reader, files, files.parts(seed))
            if task == "train"
            else _decode(reader, task, files, files.parts(seed))
        )
    if task != "to-pil" or reader == "pil":
        return found
    return ([None if one is None else Image.fromarray(one) for one in part] for part in found)


def pil_image(data: bytes, _region: Region) -> Any:
    """Return a decoded PIL image, as torchvision's ImageFolder does."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")


def _decode(reader: str, task: Task, files: Files, parts: Iterator[Rows]) -> Iterator[list[Any]]:
    decode: Any = {**READERS, **OTHERS}[reader]()
    if reader == "pil" and task in ("to-pil", "to-array"):  # without the copy that cutting out a region takes
        decode = pil_image if task == "to-pil" else lambda data, region: np.asarray(pil_image(data, region))
    at_once = PART if hasattr(decode, "many") else 1
    for rows in parts:
        regions = files.regions(task, rows)
        datas = [files.bytes_of[i] for i in rows.ids.tolist()]
        for at in range(0, len(rows), at_once):
            yield decode_many(decode, datas[at : at + at_once], regions[at : at + at_once])


def worker(feed: Feed, reader: str) -> Decoding:
    """Return the code of a worker of the torchvision loader, also with a decoder that it does not know."""
    work = Decoding(feed, reader if reader in READERS else "opencv")  # which resizes as all but PIL do
    if reader in OTHERS:
        work._decode = OTHERS[reader]()
    return work


def _train(reader: str, files: Files, parts: Iterator[Rows], own: str = "") -> Iterator[list[Any]]:
    transforms = {"output": Transform(own)} if own else {}
    work = worker(replace(files.feed(), transforms=transforms), reader)
    slot = np.empty(PART * SIZE * SIZE * 3, np.uint8)
    pixels = slot.reshape(PART, SIZE, SIZE, 3)
    for rows in parts:
        failed = work(rows, slot).failed
        yield [None if i in failed else one for i, one in zip(rows.ids.tolist(), pixels, strict=False)]


def _dali_decode(task: Task, files: Files, parts: Iterator[Rows], threads: int) -> Iterator[list[Any]]:
    dali = import_module("nvidia.dali")
    fn = dali.fn
    options = {"adjust_orientation": False, "output_type": dali.types.RGB}
    given = 3 if task == "region" else 1

    def inputs() -> Iterator[tuple[Any, ...]]:
        for rows in parts:
            regions = np.array(files.regions(task, rows), np.int32)
            low = regions[:, 1::-1]  # y x
            high = regions[:, :1:-1]
            data = [np.frombuffer(files.bytes_of[i], np.uint8) for i in rows.ids.tolist()]
            yield (data, np.ascontiguousarray(low), np.ascontiguousarray(high - low))[:given]

    pipeline = dali.Pipeline(
        batch_size=PART * threads, num_threads=threads, device_id=None, prefetch_queue_depth=2
    )
    with pipeline:
        data, *where = fn.external_source(source=inputs(), num_outputs=given)
        if where:
            pipeline.set_outputs(
                fn.decoders.image_slice(data, start=where[0], shape=where[1], axes=[0, 1], **options)
            )
        else:
            pipeline.set_outputs(fn.decoders.image(data, **options))
    pipeline.build()
    while True:
        (images,) = pipeline.run()
        yield [np.asarray(images[i]) for i in range(len(images))]


def _dali_train(files: Files, parts: Iterator[Rows], threads: int) -> Iterator[list[Any]]:
    prepare = PathPreparer(files.feed(PART * threads))
    runner = Runner(
        partial(build, batch_size=PART * threads, threads=threads, device=None, reads=True),
        warm=prepare.blank(),
        diagnose=prepare.diagnose,
        again=lambda batch, known: prepare(batch.rows, known),
    )
    try:
        for (images, _), batch in runner.run(prepare(rows, runner.known) for rows in parts):
            pixels = np.asarray(images.as_tensor())
            yield [
                None if i in batch.failed else one
                for i, one in zip(batch.rows.ids.tolist(), pixels, strict=True)
            ]
    finally:
        runner.close()
        prepare.close()
