"""Rows -> Batch. A loader is one file with `open(feed)`, and one LoaderSpec in the table here.

How one JPEG comes from `open_loader` to its Batch, by --loader torchvision:

    open_loader            opens images/torchvision.py, which forks the workers; small batches: inside `Bundles`
    Bundles.batches        asks for bundles, and cuts each into the plan's micro-batches (_bundles.py)
    Staging.batches        has a thread, `Ahead`, run the loader's `_staged` before the step asks (_staging.py)
    Workers.run            gives the plan's Rows to worker processes, and yields filled slots (_workers.py)
      _PartSampler         draws the Rows of a batch, makes them upright, cuts them into parts: a task each
      Decoding             does a task, in a worker (images/torchvision.py)
        Reads.read         reads files while others are decoded: source.read, with patience (_read_retry.py)
        decode_many        bytes -> RGB of the region; resize_window puts it into the slot (images/decoders.py)
    Stager.stage           copies a batch whose parts are all there to the device, in the thread (_staging.py)
      Finish               operates, turns, normalises; asks feed.targets: a Batch (_postprocess.py)
    hand_over              has the consumer's stream wait for the Batch, and yields it (_staging.py)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from saturate.contracts import Batch, Columns, Feed, Loader, Source, UserError
from saturate.loaders._bundles import Bundles, bundled
from saturate.plan import bundles
from saturate.plan.epoch import EpochPlan


class Undecodable(ValueError):
    """This reader cannot decode a file; PIL, or pyav, tries it next, whose failure is final."""


Medium = Literal["images", "videos", "pairs"]
"""What the files of a data set hold: a task names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSpec:
    """Everything that the rest of the project knows of one loader."""

    # as --loader has it; behind a "+", the loader that `open(feed, beside)` shares the work with
    name: str
    media: tuple[Medium, ...]
    # imported when the loader is asked for, so that its packages stay optional
    module: str
    # optional packages that it cannot do without
    packages: tuple[str, ...] = ()
    # whether it decodes on a GPU: if there is one, or there alone
    gpu: Literal["no", "may", "must"] = "no"
    # its module's `usable()` says whether this machine's GPU has what it needs
    asks: bool = False
    # its decoder opens the samples' files itself: it needs a source of files
    opens_files: bool = False
    # it calls the function of --transforms: its pixels are on the CPU
    transforms: bool = False
    # right for every file; else a loader of clips has EXACT, which says for which
    exact: bool = False
    # the highest that opens is what auto evaluates with, and measures first
    preference: int = 0


# a loader a row
# fmt: off
LOADERS: dict[str, LoaderSpec] = {
    spec.name: spec
    for spec in (
        LoaderSpec(name="torchvision", media=("images",), module="saturate.loaders.images.torchvision",
                   transforms=True, exact=True, preference=1),
        LoaderSpec(name="dali-cpu", media=("images",), module="saturate.loaders.images.dali_cpu",
                   packages=("nvidia.dali",), opens_files=True),
        LoaderSpec(name="dali-gpu", media=("images",), module="saturate.loaders.images.dali_gpu",
                   packages=("nvidia.dali",), gpu="must", opens_files=True, preference=3),
        LoaderSpec(name="dali-fed", media=("images",), module="saturate.loaders.images.dali_fed",
                   packages=("nvidia.dali",), gpu="may", preference=2),
        LoaderSpec(name="pyav", media=("videos",), module="saturate.loaders.videos.pyav",
                   exact=True, preference=1),
        LoaderSpec(name="decord", media=("videos",), module="saturate.loaders.videos.decord",
                   packages=("decord",), opens_files=True),
        LoaderSpec(name="nvdec", media=("videos",), module="saturate.loaders.videos.nvdec",
                   packages=("PyNvVideoCodec",), gpu="must", asks=True, opens_files=True),
        LoaderSpec(name="nvdec+pyav", media=("videos",), module="saturate.loaders.videos.nvdec",
                   packages=("PyNvVideoCodec",), gpu="must", asks=True, opens_files=True, preference=2),
        LoaderSpec(name="dali-video", media=("videos",), module="saturate.loaders.videos.dali_video",
                   packages=("nvidia.dali",), gpu="must", opens_files=True),
        LoaderSpec(name="paired", media=("pairs",), module="saturate.loaders.pairs.paired",
                   exact=True, preference=1),
        LoaderSpec(name="synthetic", media=("images", "videos", "pairs"), module="saturate.loaders.synthetic"),
    )
}
# fmt: on
"""Name -> what is known of it. Auto, doctor, bench, --help-all, messages and conformance tests read it."""


def of_medium(medium: Medium) -> dict[str, LoaderSpec]:
    """Return the loaders of such files by name, in the order of the table."""
    return {name: spec for name, spec in LOADERS.items() if medium in spec.media}


def default_loader(medium: Medium, *, gpu: bool, files: bool = True) -> str:
    """Return what --loader auto is for such data; `files`: each sample is a file of its own.

    Packages are not looked for: of a loader whose package is missing, its `open` says how to get it.
    """
    specs = sorted(of_medium(medium).values(), key=lambda spec: -spec.preference)
    for spec in specs:
        # without a GPU, one that may decode there has no advantage
        suits = (gpu or spec.gpu == "no") and (files or not spec.opens_files)
        asked = not spec.asks or not suits or import_module(spec.module).usable()
        if spec.preference and suits and asked:
            return spec.name
    raise ValueError(f"no loader of {medium} is preferred")


def usable(name: str, *, gpu: bool, files: bool = True) -> bool:
    """Whether a loader of files can be expected to open here, without opening it.

    `files`: each sample is a file of its own.
    """
    spec = LOADERS[name]
    if name == "synthetic" or (spec.gpu == "must" and not gpu):
        return False
    if (spec.opens_files and not files) or not all(map(installed, spec.packages)):
        return False
    return not spec.asks or import_module(spec.module).usable()


def installed(package: str) -> bool:
    """Whether a package can be found here; it is not imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is a part of
        return False


def first_batch(feed: Feed[Columns], epoch: int = 0) -> Batch:
    """Return noise with the shapes, dtypes and targets of the first batch of an epoch."""
    with open_loader("synthetic", feed) as loader:
        return next(loader.batches(epoch, 0))


def first_batches(feed: Feed[Columns]) -> list[Batch]:
    """Return such a batch for each size of images that the plan has, the smallest first."""
    return [first_batch(feed, epoch) for epoch in feed.plan.first_epochs]


def require_files(name: str, sources: Iterable[Source]) -> None:
    """Raise UserError where the loader of that name opens files itself, and a source has none."""
    spec = LOADERS[name]
    for source in sources:
        if spec.opens_files and not source.files:
            others = [
                other.name
                for other in of_medium(spec.media[0]).values()
                if other.name != "synthetic" and not other.opens_files
            ]
            raise UserError(
                f"--loader {name} opens each sample's own file, and {source.name(0)} is none; choose "
                f"--loader {' or '.join(others)}, which take bytes, or unpack the data into folders"
            )


def open_loader(name: str, feed: Feed[Columns]) -> Loader:
    """Return the loader of that name, ready to give batches.

    Raises UserError where this machine cannot run it, where it opens files and the source has none, and where
    the plan has no batch.
    """
    require_files(name, [feed.source])
    if feed.transforms and not LOADERS[name].transforms and name != "synthetic":
        takers = " or ".join(spec.name for spec in LOADERS.values() if spec.transforms)
        raise UserError(
            f"--transforms is for --loader {takers}, and this is --loader {name}; leave one of them out"
        )
    if not feed.plan.steps():
        raise UserError(
            f"the plan has no batch: a step takes {feed.plan.global_batch_size} samples, "
            f"and there are {feed.plan.samples}; a smaller batch_size"
        )
    module = import_module(LOADERS[name].module)
    beside = name.partition("+")[2]
    if beside:
        return module.open(feed, beside)
    if isinstance(feed.plan, EpochPlan) and name != "synthetic":
        count = bundles.count(
            feed.plan, feed.plan.batches_per_draw, feed.plan.world_size
        )
        if count > 1:
            feed = bundled(feed, count)
            return Bundles(module.open(feed), feed)
    return module.open(feed)
