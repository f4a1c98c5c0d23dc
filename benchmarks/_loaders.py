"""Loaders of ours, and loops as one writes them by hand, ready to give passes of images or of clips.

    data -> training_split -> Split -> opened -> epoch -> samples of this rank's batches, one after the other

For the suites `loader` and `soak`. Must not know what is timed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks._suite import Point
from benchmarks.baselines import augmentations, dali, nvdec, pytorch
from saturate.contracts import Array, Feed, FileSource, Split, UserError, World
from saturate.dataset.coco.scan import open_coco
from saturate.dataset.open import cache_folder, list_of, open_split
from saturate.dataset.stores.folder import Folder
from saturate.dataset.unlabelled import open_unlabelled
from saturate.engine.distributed import ProcessWorld
from saturate.loaders import Medium, open_loader, usable
from saturate.loaders.images.decoders import READERS
from saturate.plan.clips import ClipPlan
from saturate.run.build import resolve, training_feed
from saturate.settings import config as schema
from saturate.settings.cli import one_of
from saturate.settings.data import Data
from saturate.tasks import TASKS, kind_named
from saturate.tasks.initial_state import Start
from saturate.tasks.video import KIND

Decode = Callable[[bytes], Array]
Epochs = Callable[[int], Iterator[int]]
"""epoch -> valid samples of this rank's batches, one after the other; each is awaited by who asks."""
Figures = Callable[[float], dict[str, Any]]
"""samples a second -> the figures that only clips have."""


AUGMENTS: dict[str, dict[str, Any]] = {
    "": {},
    "randaugment": {"auto_augment": "randaugment"},
    "jitter": {"color_jitter": 0.4},
}
"""--augment -> settings of train.py; beside one of them every second image is flipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a pass has. `delay_s` is added to each read; `batches`: so many a pass instead of all; `threads`
    are DALI's, where they are not as many as the workers.
    """

    medium: Medium
    batch_size: int
    image_size: int
    workers: int
    task: str = "classification"
    window: str = "stretch"
    flip: float = 0.0
    augment: str = ""
    reader: str = "auto"
    threads: int = 0
    delay_s: float = 0.0
    batches: int | None = None
    # of clips alone
    clip_frames: int = 16
    clip_stride: int = 1
    short_side: int = 0  # pixels; 0: of `pytorch.shorter_side`


def asked_of(medium: Medium, point: Point, **more: Any) -> Asked:
    """Return what a point of a suite asks for, and `more`."""
    known = {one.name for one in fields(Asked)}
    told = {name: each for name, each in point.items() if name in known}
    told["delay_s"] = point.get("delay_ms", 0.0) / 1e3
    return Asked(medium=medium, batches=point.get("steps"), **{**told, **more})


# --- data ---------------------------------------------------------------------------------------------------


def medium_of(task: str) -> Medium:
    """Return what a task's files hold, for the suites of loaders.

    Raises UserError for a task that is unknown, or whose samples are neither files with a label nor images with boxes.
    """
    kind = kind_named(one_of("--task", task, TASKS))
    if kind.content not in (kind.medium, "instances"):
        raise UserError(
            f"--task {task}: this suite loads images or videos with a label, or images with boxes"
        )
    return kind.medium


def is_flat(data: Path) -> bool:
    """Return whether a folder has files alone, as COCO's val2017/ and VOC's JPEGImages/: images without labels."""
    if not data.is_dir():
        return False
    with os.scandir(data) as entries:
        return all(entry.is_file() for entry in entries)


def training_split(data: Path, task: str) -> Split:
    """Open the split to train on, of --data as train.py has it, or all of a flat folder. Raises UserError."""
    content = kind_named(task).content
    if content == "instances":
        cache = cache_folder(None)
        boxes = open_coco(data, "train", keypoints=False, cache=cache)
        return Split(columns=boxes, source=Folder(boxes))
    if content == "images" and is_flat(data):
        images = open_unlabelled(data, Data(), content="images", flag="--data")
        return images.split
    if content == "images":
        return open_split(data / "train")
    from saturate.dataset.videos.scan import (
        open_videos,  # with PyAV, which images do without
    )

    videos = list_of(data, "train") or data / "train"
    clips = open_videos(videos, cache=cache_folder(None))
    return Split(columns=clips, source=Folder(clips))


def paths(data: Split) -> list[str]:
    """Return the files of a data set, for loading by hand. Raises UserError where samples are none."""
    if not data.source.files:
        raise UserError("--data: what is written by hand reads files")
    source = cast(FileSource, data.source)
    return [os.fsdecode(source.path(sample)) for sample in range(len(data.columns))]


def expanded(
    flag: str,
    names: Sequence[str],
    devices: int,
    *,
    task: str = "classification",
    by_hand: bool = False,
) -> list[str]:
    """Return loaders by name, each once; auto: those that can run here with so many GPUs, but nvdec+ANOTHER.
    Raises UserError for an unknown name. With `by_hand` also what is written by hand has names.
    """
    kind = kind_named(task)
    own = [name for name in kind.loaders if usable(name, gpu=devices > 0)]
    auto = [name for name in own if "nvdec+" not in name]
    known = [*kind.loaders, "auto"]
    # loops by hand know labels alone
    if by_hand and kind.content == kind.medium:
        known += BY_HAND[kind.medium]
        theirs = ["dali"] if {"dali-cpu", "dali-video"} & {*own} else []
        auto = ["pytorch", *theirs, *auto]
    chosen = [one_of(flag, name, known) for name in names]
    found = (auto if name == "auto" else [name] for name in chosen)
    return list(dict.fromkeys(chain.from_iterable(found)))


# --- our loaders ------------------------------------------------------------------------------------------------


def settings_of(asked: Asked, columns: Any) -> dict[str, Any]:
    """Return the settings of train.py with which a run loads what is asked for."""
    side = asked.short_side or pytorch.shorter_side(asked.image_size)
    common = {
        "image_size": asked.image_size,
        "batch_size": asked.batch_size,
        "reader": asked.reader,
        "precision": "fp16" if torch.cuda.is_available() else "fp32",
    }
    if kind_named(asked.task).content == "instances":
        return {**common, "task": asked.task}
    if asked.medium == "images":
        return {
            **common,
            "train_window": asked.window,
            "val_resize": side,
            "flip": 0.5 if asked.augment else asked.flip,
            **AUGMENTS[asked.augment],
        }
    longest = -(-int(columns.frames.max()) // asked.clip_stride)
    return {
        **common,
        "task": "video",
        "flip": 0.0,
        "clip_frames": asked.clip_frames or longest,
        "clip_stride": asked.clip_stride,
        "short_side": (side, side),
    }


def feed_of(asked: Asked, name: str, data: Split, world: ProcessWorld) -> Feed:
    """Return the Feed that a loader of ours is opened with: images, or one random clip of each video, in a drawn
    order. Raises UserError where the data has no whole batch.
    """
    columns = data.columns
    of_dali = asked.threads and name in ("dali-cpu", "dali-gpu")
    sizes = {
        "workers": asked.threads if of_dali else asked.workers,
        # as it is given, however few batches there are
        "global_batch_size": asked.batch_size * world.size,
    }
    config = schema.build({**settings_of(asked, columns), **sizes})
    start = Start.from_config(config, (), {}, path=None, origin="")
    source = Folder(columns, asked.delay_s) if asked.delay_s else data.source
    feed = training_feed(resolve(start, world), replace(data, source=source))
    wanted = (asked.batches or 0) * feed.plan.global_batch_size
    if len(columns) < wanted:
        raise UserError(
            f"--data has {len(columns)} files and {wanted} are asked for; "
            "`python -m benchmarks link-set` makes more of few"
        )
    return replace(feed, threads=asked.threads)


@contextmanager
def opened(
    asked: Asked, name: str, data: Split, world: ProcessWorld
) -> Iterator[tuple[Epochs, Figures]]:
    """Open a loader, or a loop by hand, that is ready to give this rank's batches. Raises UserError."""
    feed = feed_of(asked, name, data, world)
    plan = feed.plan
    frames = 0.0
    if isinstance(plan, ClipPlan):
        # different frames of a clip: a video that ends before its clip shows its last frame again
        lengths = -(-np.asarray(data.columns.frames) // plan.policy.stride)
        frames = float(np.minimum(lengths, plan.policy.frames).mean())

    def of_clips(rate: float) -> dict[str, Any]:
        return {"unit": KIND.unit, "frames_per_s": rate * frames} if frames else {}

    if name in BY_HAND[asked.medium]:
        loop = BY_HAND[asked.medium][name]
        with ExitStack() as stack:
            yield loop(Loop(asked, name, data, world, plan, stack)), of_clips
        return
    with open_loader(name, feed) as loader:
        # the last --steps batches of an epoch, or all
        left_out = max(plan.steps() - asked.batches, 0) if asked.batches else 0

        def passes(epoch: int) -> Iterator[int]:
            for batch in loader.batches(epoch, left_out * plan.global_batch_size):
                batch.launched()
                yield batch.delivered

        def figures(rate: float) -> dict[str, Any]:
            told = of_clips(rate)
            counts = loader.counts
            if isinstance(plan, ClipPlan) and counts.delivered:
                told["decoded_per_frame"] = counts.decoded / counts.delivered
                by_pyav = sum(counts.fallbacks.values()) * plan.policy.frames
                told["fallbacks"] = by_pyav / counts.delivered or None
            return told

        yield passes, figures


# --- loops by hand ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loop:
    """What a loop by hand is made of; `stack` is left behind the last pass."""

    asked: Asked
    name: str
    data: Split
    world: World
    plan: Any
    stack: ExitStack

    def files(self) -> tuple[list[str], list[int]]:
        """Return the paths of the samples and their labels."""
        return paths(self.data), self.data.columns.label.tolist()

    def shared(self) -> dict[str, Any]:
        """Return the arguments that all makers of loaders take."""
        world = self.world
        same = {"batch_size": self.asked.batch_size, "device": world.device}
        return same | {"world_size": world.size, "rank": world.rank}


def _data_loader(loop: Loop, dataset: Any, make: Any = DataLoader) -> DataLoader[Any]:
    asked = loop.asked
    samples = asked.batches and asked.batches * asked.batch_size
    # which reads in the loop
    workers = 0 if loop.name == "dali-by-hand" else asked.workers
    return pytorch.loader(
        dataset, workers=workers, samples=samples, make=make, **loop.shared()
    )


def _pytorch(loop: Loop, loader: DataLoader[Any]) -> Epochs:
    batches = partial(pytorch.batches, loader, loop.world.device)
    return lambda epoch: (len(labels) for _, labels in batches(epoch))


def _images(loop: Loop) -> Epochs:
    asked = loop.asked
    if loop.name == "pytorch":
        load = pytorch.by_pil(asked.window, asked.image_size, asked.augment)
    elif loop.name in READER_OF:
        whole_decoder(READER_OF[loop.name])  # that it is installed
        load = partial(_decoded_length, READER_OF[loop.name])
    elif loop.name in augmentations.LIBRARIES:
        if (asked.window, asked.augment) != ("random-resized", "jitter"):
            raise UserError(
                f"--loaders {loop.name} needs --window random-resized --augment jitter"
            )
        load = augmentations.LIBRARIES[loop.name](asked.image_size)
    elif asked.window == "stretch" and not asked.augment:
        load = pytorch.by_opencv(asked.image_size)
    else:
        raise UserError(
            f"--loaders {loop.name} needs --window stretch, and no --augment"
        )
    images = pytorch.Images(*loop.files(), load, asked.delay_s)
    return _pytorch(loop, _data_loader(loop, images))


def _dali_of_python(loop: Loop) -> Epochs:
    """Return batches of DALI's that decodes what Python reads: in the loop, or in a DataLoader's workers."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator
    from nvidia.dali.plugin.pytorch.experimental import proxy

    asked = loop.asked
    files = loop.files()
    how: dict[str, Any] = {
        "batch_size": asked.batch_size,
        "size": asked.image_size,
        "threads": max(asked.threads or asked.workers, 1),
        "device": loop.world.device,
        "augment": asked.augment,
    }
    if loop.name == "dali-proxy":
        ahead = 2 * max(asked.workers, 1)  # as many as a DataLoader asks for
        pipeline = dali.of_bytes(None, ahead=ahead, **how)
        server = loop.stack.enter_context(proxy.DALIServer(pipeline))
        images = pytorch.Images(
            *files, lambda file: server.proxy(dali.content(file)), asked.delay_s
        )
        make = partial(proxy.DataLoader, server)
        return _pytorch(loop, _data_loader(loop, images, make))
    images = pytorch.Images(*files, dali.content, asked.delay_s)
    make = partial(DataLoader, collate_fn=dali.listed)
    source = _data_loader(loop, images, make)
    fed = DALIGenericIterator(
        dali.of_bytes(source, **how), ["images", "labels"], auto_reset=True
    )
    return lambda epoch: (len(batch["images"]) for (batch,) in fed)


def _dali(loop: Loop) -> Epochs:
    """Return DALI's batches, of which a pass has as many as a loader's. DALI reads on from pass to pass,
    ahead of them; a loader begins each anew.
    """
    asked, plan = loop.asked, loop.plan
    files, labels = loop.files()
    same = {"size": asked.image_size, "threads": asked.workers, **loop.shared()}
    if asked.delay_s or asked.batches:
        raise UserError(
            "--loaders dali reads all, and is not slowed down: dali-by-hand"
        )
    if asked.medium == "images":
        loader = dali.images(
            window=asked.window,
            augment=asked.augment,
            flip=bool(asked.augment),
            files=files,
            labels=labels,
            **same,
        )
    else:
        frames, stride = plan.policy.frames, plan.policy.stride
        loader = dali.clips(
            files[: plan.samples],
            labels,
            frames=frames,
            stride=stride,
            shorter=plan.policy.shorter[0],
            **same,
        )
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    return lambda epoch: (
        len(one[0]["labels"]) for one in islice(batches, plan.steps())
    )


def _clips(loop: Loop) -> Epochs:
    asked, policy = loop.asked, loop.plan.policy
    files, labels = loop.files()
    by_decord = "decord" in loop.name
    import_module("decord" if by_decord else "av")
    kind = pytorch.Alone if loop.name.endswith("-alone") else pytorch.Clips
    dataset = kind(
        files[: loop.plan.samples],
        labels,
        decode=pytorch.decord_clip if by_decord else pytorch.pyav_clip,
        frames=policy.frames,
        stride=policy.stride,
        size=asked.image_size,
        shorter=policy.shorter[0],
    )
    return _pytorch(loop, _data_loader(loop, dataset))


def _nvdec(loop: Loop) -> Epochs:
    from saturate.loaders.videos._engines import capabilities, import_codec

    asked, gpu = loop.asked, loop.world.device.index or 0
    codec = import_codec()
    stream = nvdec.clips(
        codec,
        loop.files()[0],
        frames=asked.clip_frames,
        stride=asked.clip_stride,
        threads=capabilities(codec, gpu, ("h264",))["h264"].engines,
        gpu=gpu,
    )
    steps = range(loop.plan.steps())
    return lambda epoch: (len([*islice(stream, asked.batch_size)]) for _ in steps)


OTHERS = {
    "simplejpeg": ("simplejpeg", "decode_jpeg"),
    "imageio": ("imageio.v3", "imread"),
}
"""Decoder of whole files that is no reader of ours -> module and function."""
READER_OF = {f"{name}-alone": name for name in (*READERS, *OTHERS)}
"""Decoding alone, whole images to RGB with one thread a worker -> the decoder."""
BY_HAND: dict[Medium, dict[str, Callable[[Loop], Epochs]]] = {
    "images": {
        **dict.fromkeys(("pytorch", "pytorch+opencv", *READER_OF), _images),
        **dict.fromkeys(augmentations.LIBRARIES, _images),
        "dali": _dali,
        **dict.fromkeys(
            ("dali-by-hand", "pytorch+dali", "dali-proxy"), _dali_of_python
        ),
    },
    "videos": {
        **dict.fromkeys(("pytorch", "pytorch+decord"), _clips),
        **dict.fromkeys(("pyav-alone", "decord-alone"), _clips),
        "dali": _dali,
        "nvdec-alone": _nvdec,
    },
}
"""Medium -> loops by hand, by the name that --loaders has."""


def whole_decoder(name: str) -> Decode:
    """Return what decodes a whole file to uint8 [H, W, 3]. Raises ImportError."""
    if name in OTHERS:
        module, function = OTHERS[name]
        return cast(Decode, getattr(import_module(module), function))
    decode = READERS[name]()

    def whole(content: bytes) -> Array:
        with Image.open(io.BytesIO(content)) as header:
            return decode(content, (0, 0, *header.size))

    return whole


_decoders: dict[str, Decode] = {}


def _decoded_length(name: str, file: str) -> int:
    """Decode a file, in a worker that imports the decoder: few can be forked."""
    if name not in _decoders:
        torch.set_num_threads(1)
        _decoders[name] = whole_decoder(name)
    return len(_decoders[name](Path(file).read_bytes()))
