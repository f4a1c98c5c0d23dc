"""Loaders of ours, and loops as one writes them by hand, ready to give passes of images or of clips.

    folder -> open_data -> Split -> opened -> epoch -> samples of this rank's batches, one after the other

For the suites `loader` and `soak`. Must not know what is timed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from benchmarks._suite import Absent
from benchmarks.baselines import dali, nvdec, peers, pytorch
from contracts import Array, Feed, FileSource, Pixels, Split, UserError, World
from dataset.open import cache_folder, list_of, open_split
from dataset.stores import choose_source, source_named
from dataset.stores.folder import Folder
from loaders import Medium, open_loader, usable
from loaders.images.decoders import READERS
from plan.clips import ClipPlan, ClipPolicy
from plan.images import ImagePlan, ImagePolicy
from settings.cli import one_of
from settings.config import Config
from tasks import TASKS, kind_named
from tasks.classification import Classification
from tasks.video import KIND, Video

BY_HAND: dict[Medium, tuple[str, ...]] = {
    "images": ("pytorch", "pytorch+opencv", "dali", "dali-by-hand"),
    "videos": ("pytorch", "pytorch+decord", "dali", "dali-experimental"),
}
"""Medium -> loops by hand: benchmarks/baselines/pytorch.py, with PIL (with PyAV), and with OpenCV and pixels
that stay uint8 (with decord); baselines/dali.py with DALI's own readers, and fed by a Python source."""
PEERS = (peers.LOOSE, *peers.PEERS)
"""Other libraries' stores of the same images, written below --output (baselines/peers.py)."""


def _simplejpeg() -> Callable[[bytes], Array]:
    return cast(Callable[[bytes], Array], import_module("simplejpeg").decode_jpeg)


def _kornia_rs() -> Callable[[bytes], Array]:
    return partial(import_module("kornia_rs.io").decode_image_jpegturbo, mode="rgb")


def _imagecodecs() -> Callable[[bytes], Array]:
    return partial(import_module("imagecodecs").jpeg8_decode, outcolorspace="RGB")


def _av() -> Callable[[bytes], Array]:
    av = import_module("av")
    decoder = av.CodecContext.create("mjpeg", "r")
    decoder.thread_count = 1
    return lambda content: cast(
        Array, decoder.decode(av.Packet(content))[0].to_ndarray(format="rgb24")
    )


DECODERS = {
    "simplejpeg": _simplejpeg,
    "kornia-rs": _kornia_rs,
    "imagecodecs": _imagecodecs,
    "av": _av,
}
"""Name on PyPI of a decoder that our loaders do not use -> what makes it."""
ALONE: dict[Medium, tuple[str, ...]] = {
    "images": tuple(f"{name}-alone" for name in (*READERS, *DECODERS)),
    "videos": ("decord-alone", "pyav-alone", "nvdec-alone"),
}
"""Medium -> decoding alone, which a loader is held against: whole images to RGB, one thread a worker; clips
in full size, to RGB or to NVDEC's own NV12."""

Epochs = Callable[..., Iterator[int]]
"""epoch -> valid samples of this rank's batches, one after the other; each is awaited by who asks. Of our
loaders also (epoch, batches): the last `batches` of them."""
Figures = Callable[[float], dict[str, Any]]
"""samples a second -> the figures that only clips have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a pass has. `delay_s` is added to each read; `batches`: so many a pass instead of all; `threads`
    are DALI's, where they are not as many as the workers. The last line is of clips alone."""

    medium: Medium
    batch_size: int
    image_size: int
    workers: int
    window: str = "stretch"
    flip: float = 0.0
    reader: str = "auto"
    threads: int = 0
    delay_s: float = 0.0
    batches: int | None = None
    clip_frames: int = 16
    clip_stride: int = 1
    clips: int = 0


# --- data ---------------------------------------------------------------------------------------------------


def medium_of(task: str) -> Medium:
    """Return what a task's files hold, for the suites of loaders.

    Raises UserError for a task that is unknown, or whose samples have more than a label.
    """
    kind = kind_named(one_of("--task", task, TASKS))
    if kind.content(Config()) != kind.medium:
        raise UserError(
            f"--task {task}: this suite loads images or videos with a label alone"
        )
    return kind.medium


def data_folder(
    root: Path | None, *, medium: Medium = "images", files: bool = True
) -> Path:
    """Return the split that is passed over: root/train or the root itself; of videos also a list, the root
    itself or in it. Raises UserError; with `files` also for data that lies in other forms than files."""
    if (
        root is not None
        and medium == "videos"
        and (csv := root if root.is_file() else list_of(root, "train"))
    ):
        return csv.resolve()
    if root is None or not root.is_dir():
        wanted = "name one with <class>/* or train/<class>/*"
        wanted += ", or with the list train.csv" if medium == "videos" else ""
        raise UserError(
            f"--data {'is missing' if root is None else f'{root}: no such folder'}; {wanted}"
        )
    source = choose_source("auto", root, "train")
    if files and not source_named(source).FILES:
        raise UserError(
            f"--data {root}: train is read as {source}, and what is written by hand reads files: unpack it "
            "into folders"
        )
    below = (root / "train").is_dir() or not source_named(source).FILES
    return (root / "train" if below else root).resolve()


def open_data(folder: Path, medium: Medium) -> Split:
    """Open what `data_folder` returns, scanned once. Raises UserError."""
    if medium == "images":
        return open_split(folder)
    from dataset.videos.scan import open_videos  # with PyAV, which images do without

    columns = open_videos(folder, cache=cache_folder(None))
    return Split(columns=columns, source=Folder(columns))


def expanded(
    flag: str,
    names: Sequence[str],
    devices: int,
    *,
    task: str = "classification",
    by_hand: bool = False,
) -> list[str]:
    """Return loaders by name, each once; auto: those that can run here with so many GPUs, but nvdec+ANOTHER.
    Raises UserError for an unknown name. With `by_hand` also what is written by hand has names."""
    kind = kind_named(task)
    loops = BY_HAND[kind.medium] if by_hand else ()
    peers_ = (
        (*ALONE[kind.medium], *(PEERS if kind.medium == "images" else ()))
        if by_hand
        else ()
    )
    auto = [name for name in loops if _runs(name, kind.medium, gpu=devices > 0)]
    auto += [
        name
        for name in kind.loaders
        if "nvdec+" not in name and usable(name, gpu=devices > 0)
    ]
    known = (*loops, *peers_, *kind.loaders)
    chosen = [one_of(flag, name, (*known, "auto")) for name in names]
    return list(
        dict.fromkeys(
            each for name in chosen for each in (auto if name == "auto" else [name])
        )
    )


def _runs(name: str, medium: Medium, *, gpu: bool) -> bool:
    """Whether what a loop by hand needs is here. Fed by Python, DALI is asked for by name alone."""
    package, _, module = name.partition("+")
    if package.startswith("dali"):
        here = gpu if medium == "videos" else name != "dali-by-hand"
        return bool(here and find_spec("nvidia") and find_spec("nvidia.dali"))
    return not module or find_spec({"opencv": "cv2"}.get(module, module)) is not None


# --- plans and feeds ----------------------------------------------------------------------------------------


def plan_of(asked: Asked, columns: Any, world: World) -> ImagePlan | ClipPlan:
    """Plan the images in a drawn order; or one random clip of each video in a drawn order, or `clips` evenly
    spaced ones in the order of the files. Raises UserError where it has no whole batch."""
    if asked.medium == "images":
        policy = ImagePolicy(
            window=cast(Any, asked.window),
            image_size=asked.image_size,
            resize=pytorch.shorter_side(asked.image_size),
            flip=asked.flip,
        )
        plan: ImagePlan | ClipPlan = ImagePlan.of(
            columns,
            policy,
            seed=0,
            batch_size=asked.batch_size,
            world_size=world.size,
            rank=world.rank,
        )
    else:
        side = pytorch.shorter_side(asked.image_size)
        clips = ClipPolicy(
            frames=asked.clip_frames
            or -(-int(columns.frames.max()) // asked.clip_stride),
            stride=asked.clip_stride,
            image_size=asked.image_size,
            shorter=(side, side),
            resize=side,
            clips=max(asked.clips, 1),
        )
        plan = ClipPlan(
            columns=columns,
            policy=clips,
            seed=0,
            batch_size=asked.batch_size,
            training=not asked.clips,
            world_size=world.size,
            rank=world.rank,
        )
    if len(columns) < (wanted := (asked.batches or 0) * plan.global_batch_size):
        raise UserError(
            f"--data has {len(columns)} files and {wanted} are asked for; python -m scripts.link_set makes "
            "more files of few"
        )
    plan.require_a_step()
    return plan


def feed_of(asked: Asked, name: str, data: Split, world: World) -> Feed:
    """Return the Feed that a loader of ours is opened with. Raises UserError."""
    columns = data.columns
    targets = (
        Classification(columns.label).targets
        if asked.medium == "images"
        else Video(columns.label).targets
    )
    of_dali = asked.threads and name in ("dali-cpu", "dali-gpu")
    return Feed(
        plan=plan_of(asked, columns, world),
        source=Folder(columns, asked.delay_s) if asked.delay_s else data.source,
        columns=columns,
        targets=targets,
        device=world.device,
        workers=asked.threads if of_dali else asked.workers,
        threads=asked.threads,
        pixels=Pixels(dtype="float16" if world.device.type == "cuda" else "float32"),
        reader=asked.reader,
    )


# --- what gives the batches ---------------------------------------------------------------------------------


@contextmanager
def opened(
    asked: Asked, name: str, data: Split, world: World, stores: Path
) -> Iterator[tuple[Epochs, Figures]]:
    """Open a loader, or a loop by hand, that is ready to give this rank's batches. Stores of other libraries
    are kept in `stores`. Raises UserError."""
    clips = asked.medium == "videos"
    by_hand = (
        name in BY_HAND[asked.medium]
        or name in ALONE[asked.medium]
        or (not clips and name in PEERS)
    )
    frames = 0.0
    if clips:
        policy = cast(ClipPlan, plan_of(asked, data.columns, world)).policy
        # different frames of a clip: a video that ends before its clip shows its last frame again
        lengths = -(-np.asarray(data.columns.frames) // policy.stride)
        frames = float(np.minimum(lengths, policy.frames).mean())
    if by_hand:
        loop = _clips_by_hand if clips else _images_by_hand
        epochs = loop(asked, name, data, world, stores)
        yield (
            epochs,
            lambda rate: (
                {"unit": KIND.unit, "frames_per_s": rate * frames} if clips else {}
            ),
        )
        return
    with open_loader(name, feed_of(asked, name, data, world)) as loader:
        plan = plan_of(asked, data.columns, world)

        def passes(epoch: int, batches: int | None = asked.batches) -> Iterator[int]:
            first = (
                0
                if batches is None
                else max(plan.steps() - batches, 0) * plan.global_batch_size
            )
            for batch in loader.batches(epoch, first):
                batch.launched()
                yield batch.delivered

        def figures(rate: float) -> dict[str, Any]:
            if not clips:
                return {}
            counts = loader.counts
            fallbacks = sum(counts.fallbacks.values())
            return {
                "unit": KIND.unit,
                "frames_per_s": rate * frames,
                "decoded_per_frame": counts.decoded / counts.delivered
                if counts.delivered
                else None,
                "fallbacks": fallbacks * policy.frames / counts.delivered
                if fallbacks
                else None,
                "fallback_kinds": "; ".join(sorted(counts.fallbacks)) or None,
            }

        yield passes, figures


def paths(data: Split) -> list[str]:
    """Return the files of a data set, for loading by hand."""
    source = cast(FileSource, data.source)
    return [os.fsdecode(source.path(sample)) for sample in range(len(data.columns))]


def _require(flag: str, module: str) -> None:
    """Raise Absent where a module that a loop by hand needs cannot be imported."""
    try:
        import_module(module)
    except (ImportError, OSError) as error:
        raise Absent(
            f"--loaders {flag}: {module} cannot be imported ({error})"
        ) from None


def whole_decoder(name: str) -> Callable[[bytes], Array]:
    """Return what decodes a whole file to uint8 [H, W, 3]. Raises ImportError."""
    if name in DECODERS:
        return DECODERS[name]()
    decode = READERS[name]()

    def whole(content: bytes) -> Array:
        with Image.open(io.BytesIO(content)) as header:
            size = header.size
        return decode(content, (0, 0, *size))

    return whole


def _length_of_decoded(name: str) -> Callable[[str], int]:
    """Return a function that decodes a file, in a worker that imports the decoder: few can be forked."""
    decoders: list[Callable[[bytes], Array]] = []

    def load(file: str) -> int:
        if not decoders:
            torch.set_num_threads(1)
            decoders.append(whole_decoder(name))
        return len(decoders[0](Path(file).read_bytes()))

    return load


def _images_by_hand(
    asked: Asked, name: str, data: Split, world: World, stores: Path
) -> Epochs:
    labels = data.columns.label.tolist()
    plan = plan_of(asked, data.columns, world)
    samples = None if asked.batches is None else asked.batches * asked.batch_size
    if name in PEERS:
        return _by_peer(
            asked, name, list(zip(paths(data), labels, strict=True)), world, stores
        )
    if name.startswith("dali"):
        if name == "dali" and (asked.delay_s or samples):
            raise UserError(
                "--loaders dali: its reader reads all, and cannot be slowed down; use dali-by-hand"
            )
        return _by_dali(asked, name, data, plan, world)
    size = asked.image_size
    if name == "pytorch+opencv" and asked.window != "stretch":
        raise UserError(
            f"--loaders {name} stretches the whole image: --window stretch, or leave it out"
        )
    if name.endswith("-alone"):
        reader = name.removesuffix("-alone")
        try:
            whole_decoder(reader)
        except (ImportError, OSError, RuntimeError) as error:
            raise Absent(f"--loaders {name}: not installed ({error})") from None
        load: Callable[[str], Any] = _length_of_decoded(reader)
    else:
        load = (
            pytorch.by_opencv(size)
            if name == "pytorch+opencv"
            else pytorch.by_pil(asked.window, size)
        )
    loader = pytorch.loader(
        pytorch.Images(paths(data), labels, load, asked.delay_s),
        batch_size=asked.batch_size,
        workers=asked.workers,
        pinned=world.device.type == "cuda",
        world_size=world.size,
        rank=world.rank,
        samples=samples,
    )
    return lambda epoch: (
        len(labels) for _, labels in pytorch.batches(loader, world.device, epoch)
    )


def _by_peer(
    asked: Asked, name: str, files: list[tuple[str, int]], world: World, stores: Path
) -> Epochs:
    if asked.window != "random-resized":
        raise UserError(
            f"--loaders {name} crops as in training: --window random-resized, or leave it out"
        )
    try:
        loader = peers.loader(
            name,
            stores,
            files,
            size=asked.image_size,
            batch_size=asked.batch_size,
            workers=asked.workers,
            pinned=world.device.type == "cuda",
        )
    except ImportError as error:
        raise Absent(f"--loaders {name}: {error}") from None
    return lambda epoch: (len(images) for images in peers.batches(loader, world.device))


def _by_dali(asked: Asked, name: str, data: Split, plan: Any, world: World) -> Epochs:
    """Return DALI's batches, of which a pass has as many as a loader's. DALI reads on from pass to pass,
    ahead of them; a loader begins each anew."""
    _require(name, "nvidia.dali")
    labels = data.columns.label.tolist()
    if name == "dali-by-hand":
        source = dali.Files(
            paths(data),
            labels,
            batch_size=asked.batch_size,
            samples=(asked.batches or plan.steps()) * asked.batch_size,
            read_delay_s=asked.delay_s,
        )
        threads = max(asked.threads or asked.workers, 1)
        fed = dali.loader(
            source, size=asked.image_size, threads=threads, device=world.device
        )
        return lambda epoch: (len(batch["images"]) for (batch,) in fed)
    loader = dali.images(
        window=asked.window,
        size=asked.image_size,
        batch_size=asked.batch_size,
        threads=asked.workers,
        device=world.device,
        world_size=world.size,
        rank=world.rank,
        files=paths(data),
        labels=labels,
    )
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    return lambda epoch: (
        len(batch[0]["images"]) for batch in islice(batches, plan.steps())
    )


def _clips_by_hand(
    asked: Asked, name: str, data: Split, world: World, _stores: Path
) -> Epochs:
    plan = cast(ClipPlan, plan_of(asked, data.columns, world))
    files = paths(data)[: plan.samples]
    labels = data.columns.label.tolist()
    frames, stride = plan.policy.frames, plan.policy.stride
    on_gpu = name.startswith(("dali", "nvdec"))
    if on_gpu and world.device.type != "cuda":
        raise UserError(
            f"--loaders {name} needs an NVIDIA GPU; pytorch and pyav-alone run on the CPU"
        )
    if name == "nvdec-alone":
        from loaders.videos._engines import capabilities, import_codec

        codec = import_codec()
        gpu = world.device.index or 0
        stream = nvdec.clips(
            codec,
            files,
            frames=0 if asked.clip_frames == 0 else frames,
            stride=stride,
            clips=asked.clips,
            threads=capabilities(codec, gpu, ("h264",))["h264"].engines,
            gpu=gpu,
        )
        return lambda epoch: (
            sum(1 for _ in islice(stream, asked.batch_size))
            for _ in range(plan.steps())
        )
    if name.startswith("dali"):
        _require(name, "nvidia.dali")
        loader = dali.clips(
            files,
            labels,
            frames=frames,
            stride=stride,
            # of `--clips 0` they are sequences that lie back to back: they begin anywhere in a video
            step=dali.step(asked.clips, frames, stride, int(data.columns.frames.max())),
            size=asked.image_size,
            shorter=plan.policy.resize,
            batch_size=asked.batch_size,
            threads=asked.workers,
            device=world.device,
            experimental=name.endswith("experimental"),
            world_size=world.size,
            rank=world.rank,
        )
        batches = chain.from_iterable(repeat(loader))  # epoch after epoch
        return lambda epoch: (
            len(batch[0]["clips"]) for batch in islice(batches, plan.steps())
        )
    by_decord = "decord" in name
    if by_decord:
        _require(name, "decord")
    kind = pytorch.Alone if name.endswith("-alone") else pytorch.Clips
    loader = pytorch.loader(
        kind(
            files,
            labels,
            decode=pytorch.decord_clip if by_decord else pytorch.pyav_clip,
            frames=frames,
            stride=stride,
            clips=asked.clips,
            size=asked.image_size,
        ),
        batch_size=asked.batch_size,
        workers=asked.workers,
        pinned=world.device.type == "cuda",
        world_size=world.size,
        rank=world.rank,
    )
    return lambda epoch: (
        len(clips) for clips, _ in pytorch.batches(loader, world.device, epoch)
    )
