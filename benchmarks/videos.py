"""Clips of videos for the suites `loader` and `soak`: the plan of a pass, our loaders, and PyTorch's and
DALI's own by hand.

Must not know what is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import images
from benchmarks._suite import Row
from benchmarks.baselines import dali, nvdec, pytorch
from contracts import Feed, Loader, Pixels, Split, UserError, World
from dataset.open import cache_folder
from dataset.stores.folder import Folder
from loaders import open_loader
from loaders.videos._engines import capabilities, import_codec
from plan.clips import ClipPlan, ClipPolicy
from tasks.video import KIND, Video

DALI = ("dali", "dali-experimental")
BASELINES = ("pytorch", "pytorch+decord", *DALI)
"""benchmarks/baselines/pytorch.py, with PyAV and with decord; benchmarks/baselines/dali.py, with DALI's two
readers, on a GPU."""

ALONE = ("decord-alone", "pyav-alone", "nvdec-alone")
"""Decoding alone, in full size as one does by hand, to RGB, or to NVDEC's own NV12: what a loader is held
against.

benchmarks/baselines/pytorch.py, and benchmarks/baselines/nvdec.py on a GPU."""

Epochs = Callable[[int], Iterator[int]]
"""epoch -> valid clips of this rank's batches."""
Tell = Callable[[float], dict[str, Any]]
"""clips a second -> the figures that only clips have."""


def open_split(root: Path) -> Split:
    """Open the videos of root/<class>/*, or of the list `root`, scanned once. Raises UserError."""
    from dataset.videos.scan import open_videos  # with PyAV, which images do without

    columns = open_videos(root, cache=cache_folder(None))
    return Split(columns=columns, source=Folder(columns))


def plan_of(settings: Any, columns: Any, world: World) -> ClipPlan:
    """Plan one random clip of each video in a drawn order, or `settings.clips` evenly spaced ones in the
    order of the files."""
    frames = settings.clip_frames or -(-int(columns.frames.max()) // settings.clip_stride)
    side = pytorch.shorter_side(settings.image_size)
    policy = ClipPolicy(
        frames=frames,
        stride=settings.clip_stride,
        image_size=settings.image_size,
        shorter=(side, side),
        resize=side,
        clips=max(settings.clips, 1),
    )
    ranks: dict[str, Any] = {"world_size": world.size, "rank": world.rank}
    plan = ClipPlan(
        columns=columns,
        policy=policy,
        seed=0,
        batch_size=settings.batch_size,
        training=not settings.clips,
        **ranks,
    )
    plan.require_a_step()
    return plan


def feed_of(settings: Any, plan: ClipPlan, data: Split, world: World) -> Feed:
    """Return the Feed that our loaders are opened with."""
    return Feed(
        plan=plan,
        source=data.source,
        columns=data.columns,
        targets=Video(data.columns.label).targets,
        device=world.device,
        workers=settings.workers,
        pixels=Pixels(dtype="float16" if world.device.type == "cuda" else "float32"),
    )


def shown(columns: Any, frames: int, stride: int) -> float:
    """Return the number of different frames of a clip, the mean over the videos: a video that ends before its
    clip shows its last frame again."""
    return float(np.minimum(-(-np.asarray(columns.frames) // stride), frames).mean())


@contextmanager
def opened(settings: Any, name: str, data: Split, world: World) -> Iterator[tuple[Epochs, Tell]]:
    """Open a loader, or a loop by hand, that is ready to give this rank's clips. Raises UserError.

    `settings` has batch_size, image_size, workers, clip_frames, clip_stride and clips.
    """
    plan = plan_of(settings, data.columns, world)
    frames = shown(data.columns, plan.policy.frames, plan.policy.stride)
    if name in (*BASELINES, *ALONE):
        yield (
            _by_hand(settings, name, data, plan, world),
            lambda rate: {"unit": KIND.unit, "frames_per_s": rate * frames},
        )
        return
    with open_loader(name, feed_of(settings, plan, data, world)) as loader:

        def epochs(epoch: int) -> Iterator[int]:
            for batch in loader.batches(epoch, 0):
                batch.launched()
                yield batch.delivered

        yield (
            epochs,
            lambda rate: {
                "unit": KIND.unit,
                "frames_per_s": rate * frames,
                **counted(loader, plan.policy.frames),
            },
        )


def counted(loader: Loader, frames: int) -> dict[str, Any]:
    """Return the figures of this rank: frames decoded for each one delivered; and the share of clips, of
    `frames` frames each, that pyav took over, with their sorts of file."""
    counts = loader.counts
    delivered = counts.delivered
    fallbacks = counts.fallbacks
    return {
        "decoded_per_frame": counts.decoded / delivered if delivered else None,
        "fallbacks": sum(fallbacks.values()) * frames / delivered if fallbacks and delivered else None,
        "fallback_kinds": "; ".join(sorted(fallbacks)) or None,
    }


def beside_decoding(fastest: Row, rows: Sequence[Row]) -> list[str]:
    """Say the fastest loader's rate beside what engines and CPU decode when each is alone."""
    alone = {
        row["point"]["loader"]: row["figures"]["rate"] for row in rows if row["point"]["loader"] in ALONE
    }
    said = []
    for cpu in ("decord-alone", "pyav-alone"):
        if {cpu, "nvdec-alone"} <= alone.keys():
            share = fastest["figures"]["rate"] / (alone[cpu] + alone["nvdec-alone"])
            said.append(
                f"{fastest['point']['loader']} gives {share:.0%} of what nvdec-alone and {cpu} decode "
                "together."
            )
    return said


def _by_hand(settings: Any, name: str, data: Split, plan: ClipPlan, world: World) -> Epochs:
    files = images.paths(data)[: plan.samples]
    if name in DALI:
        return _by_dali(settings, name, files, data, plan, world)
    if name == "nvdec-alone":
        return _by_nvdec(settings, files, plan, world)
    by_decord = "decord" in name
    if by_decord:
        try:
            import decord  # noqa: F401
        except (ImportError, OSError) as error:
            raise UserError(
                f"--loaders {name}: decord cannot be imported ({error}): pip install decord (x86-64 only)"
            ) from None
    loader = pytorch.loader(
        (pytorch.Alone if name in ALONE else pytorch.Clips)(
            files,
            data.columns.label.tolist(),
            decode=pytorch.decord_clip if by_decord else pytorch.pyav_clip,
            frames=plan.policy.frames,
            stride=plan.policy.stride,
            clips=settings.clips,
            size=settings.image_size,
        ),
        batch_size=settings.batch_size,
        workers=settings.workers,
        pinned=world.device.type == "cuda",
        world_size=world.size,
        rank=world.rank,
    )
    return lambda epoch: (len(clips) for clips, _ in pytorch.batches(loader, world.device, epoch))


def _by_nvdec(settings: Any, files: list[str], plan: ClipPlan, world: World) -> Epochs:
    if world.device.type != "cuda":
        raise UserError(
            "--loaders nvdec-alone needs an NVIDIA GPU; decord-alone and pyav-alone decode on the CPU"
        )
    codec = import_codec()
    engines = capabilities(codec, world.device.index or 0, ("h264",))["h264"].engines
    stream = nvdec.clips(
        codec,
        files,
        frames=0 if settings.clip_frames == 0 else plan.policy.frames,
        stride=plan.policy.stride,
        clips=settings.clips,
        threads=engines,
        gpu=world.device.index or 0,
    )
    return lambda epoch: (sum(1 for _ in islice(stream, settings.batch_size)) for _ in range(plan.steps()))


def _by_dali(settings: Any, name: str, files: list[str], data: Split, plan: ClipPlan, world: World) -> Epochs:
    """Return DALI's batches, whose passes have as many clips as a loader's. Of `--clips 0` they are sequences
    that lie back to back: they begin anywhere in a video."""
    if world.device.type != "cuda":
        raise UserError(
            f"--loaders {name} needs an NVIDIA GPU: DALI's reader decodes H.264 there alone; pytorch runs on "
            "this machine"
        )
    try:
        import nvidia.dali  # noqa: F401
    except (ImportError, OSError) as error:
        raise UserError(
            f"--loaders {name}: DALI is not installed ({error}): pip install nvidia-dali-cuda120"
        ) from None
    frames = plan.policy.frames
    stride = plan.policy.stride
    loader = dali.clips(
        files,
        data.columns.label.tolist(),
        frames=frames,
        stride=stride,
        step=dali.step(settings.clips, frames, stride, int(data.columns.frames.max())),
        size=settings.image_size,
        shorter=plan.policy.resize,
        batch_size=settings.batch_size,
        threads=settings.workers,
        device=world.device,
        experimental=name.endswith("experimental"),
        world_size=world.size,
        rank=world.rank,
    )
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    return lambda epoch: (len(batch[0]["clips"]) for batch in islice(batches, plan.steps()))
