"""Rows -> Batch. Each file is a loader, opened by its `open(feed)` and named like it, '_' for '-'."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from contracts import Batch, Feed, Loader, Source, UserError
from loaders._bundles import Bundles, bundled
from plan import bundles
from plan.checks import Checked, Stored
from plan.epoch import EpochPlan


class Undecodable(ValueError):
    """An image, or frames of a video, that this reader cannot give; PIL, or pyav, then has the last word."""


IMAGE_LOADERS = {
    "synthetic": "loaders.synthetic",
    "torchvision": "loaders.images.torchvision",
    "dali-cpu": "loaders.images.dali_cpu",
    "dali-gpu": "loaders.images.dali_gpu",
    "dali-fed": "loaders.images.dali_fed",
}
"""Loaders of images: name -> module, imported when asked for, so that DALI stays optional.

A module's OPENS_FILES says whether its decoder opens the samples' files itself, so that it needs a source of
files.
"""
VIDEO_LOADERS = {
    "pyav": "loaders.videos.pyav",
    "decord": "loaders.videos.decord",
    "torchcodec": "loaders.videos.torchcodec",
    "nvdec": "loaders.videos.nvdec",
    "nvdec+pyav": "loaders.videos.nvdec",
    "nvdec+decord": "loaders.videos.nvdec",
    "dali-video": "loaders.videos.dali_video",
}
"""Loaders of videos: name -> module, imported when asked for."""
PAIR_LOADERS = {"paired": "loaders.pairs.paired"}
"""Loaders of pairs of images, one larger than the other: name -> module, imported when asked for."""
Medium = Literal["images", "videos", "pairs"]
OF_MEDIUM: dict[Medium, dict[str, str]] = {
    "images": IMAGE_LOADERS,
    "videos": {**VIDEO_LOADERS, "synthetic": IMAGE_LOADERS["synthetic"]},
    "pairs": {**PAIR_LOADERS, "synthetic": IMAGE_LOADERS["synthetic"]},
}
"""What the files hold -> the loaders of them, as a task names its table."""
NEED_GPU = ("dali-gpu", "dali-video", "nvdec", "nvdec+pyav", "nvdec+decord")
"""Loaders that open on a GPU alone."""
TRANSFORMED = ("torchvision",)
"""Loaders that call the function of --transforms: their pixels are on the CPU."""
PACKAGES = {
    **dict.fromkeys(("dali-cpu", "dali-gpu", "dali-fed", "dali-video"), "nvidia.dali"),
    **dict.fromkeys(("decord", "nvdec+decord"), "decord"),
    "torchcodec": "torchcodec",
}
"""Loader -> the optional package that it cannot do without."""
_MODULES = {**IMAGE_LOADERS, **VIDEO_LOADERS, **PAIR_LOADERS}
"""Name -> module, of all loaders."""


def default_loader(medium: Medium, *, gpu: bool, files: bool = True) -> str:
    """Return what --loader auto is for such data; `files`: each sample is a file of its own."""
    if medium == "pairs":
        return "paired"
    if medium == "videos":
        return "nvdec+pyav" if files and gpu and import_module(VIDEO_LOADERS["nvdec"]).usable() else "pyav"
    if not gpu:
        return "torchvision"
    return "dali-gpu" if files else "dali-fed"


def usable(name: str, *, gpu: bool, files: bool = True) -> bool:
    """Whether a loader of files can be expected to open here, without opening it.

    `files`: each sample is a file of its own.
    """
    if name == "synthetic" or (name in NEED_GPU and not gpu):
        return False
    if name in PACKAGES and not _installed(PACKAGES[name]):
        return False
    if name.startswith("nvdec") and not import_module(_MODULES[name]).usable():
        return False
    return files or not opens_files(name)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is a part of
        return False


def first_batch(feed: Feed, epoch: int = 0) -> Batch:
    """Return noise with the shapes, dtypes and targets of the first batch of an epoch."""
    with open_loader("synthetic", feed) as loader:
        return next(loader.batches(epoch, 0))


def first_batches(feed: Feed) -> list[Batch]:
    """Return such a batch for each size of images that the plan has, the smallest first."""
    return [first_batch(feed, epoch) for epoch in feed.plan.first_epochs]


def opens_files(name: str) -> bool:
    """Whether the decoder of a loader opens the samples' files itself."""
    return bool(import_module(_MODULES[name]).OPENS_FILES)


def require_files(name: str, sources: Iterable[Source]) -> None:
    """Raise UserError where the loader of that name opens files itself, and a source has none."""
    without = [source for source in sources if not source.files] if opens_files(name) else []
    if not without:
        return
    others = [
        other
        for other in (IMAGE_LOADERS if name in IMAGE_LOADERS else VIDEO_LOADERS)
        if other != "synthetic" and not opens_files(other)
    ]
    raise UserError(
        f"--loader {name} opens each sample's own file, and {without[0].name(0)} is none; "
        f"choose --loader {' or '.join(others)}, which take bytes, or unpack the data into folders"
    )


def open_loader(name: str, feed: Feed) -> Loader:
    """Return the loader of that name, ready to give batches.

    Raises UserError where this machine cannot run it, where it opens files and the source has none, and where
    the plan has no batch.
    """
    require_files(name, [feed.source])
    if feed.transforms and name not in (*TRANSFORMED, "synthetic"):
        raise UserError(
            f"--transforms is for --loader {' or '.join(TRANSFORMED)}, and this is --loader {name}; "
            "leave one of them out"
        )
    if not feed.plan.steps():
        raise UserError(
            f"the plan has no batch: a step takes {feed.plan.global_batch_size} samples, "
            f"and there are {feed.plan.samples}; a smaller batch_size"
        )
    count = 1
    if isinstance(feed.plan, EpochPlan):  # which checks what it draws itself
        count = bundles.count(feed.plan, feed.plan.together, feed.plan.world_size)
    else:
        columns = feed.columns
        segments = (columns.first, columns.frames) if len(feed.plan.sample_shape) == 4 else None
        stored = Stored(heights=columns.height, widths=columns.width, segments=segments)
        feed = replace(feed, plan=Checked(plan=feed.plan, stored=stored))
    module = import_module(_MODULES[name])
    beside = name.partition("+")[2]
    if beside:
        return module.open(feed, beside)
    if count == 1 or name == "synthetic":
        return module.open(feed)
    feed = bundled(feed, count)
    return Bundles(module.open(feed), feed)
