"""Rows -> Batch. One loader a file, opened by `open(feed)`; the file's name is the loader's, with '-' for '_'."""

from __future__ import annotations

from importlib import import_module

from contracts import Feed, Loader


class Undecodable(ValueError):
    """An image, or frames of a video, that this reader cannot give; what PIL, or pyav, cannot give either fails."""


LOADERS = {
    "synthetic": "loaders.synthetic",
    "torchvision": "loaders.images.torchvision",
    "dali-cpu": "loaders.images.dali_cpu",
    "dali-gpu": "loaders.images.dali_gpu",
    "dali-fed": "loaders.images.dali_fed",
}
"""Of still images: name -> module, imported when asked for, so that DALI stays optional."""
CLIPS = {
    "pyav": "loaders.videos.pyav",
    "decord": "loaders.videos.decord",
    "torchcodec": "loaders.videos.torchcodec",
    "nvdec": "loaders.videos.nvdec",
    "nvdec+pyav": "loaders.videos.nvdec",
    "nvdec+decord": "loaders.videos.nvdec",
    "dali-video": "loaders.videos.dali_video",
}
"""Of video files, likewise."""
OF_TASK = {"classification": LOADERS, "detection": LOADERS, "video": {**CLIPS, "synthetic": LOADERS["synthetic"]}}
"""--task -> its loaders."""


def task_of(name: str) -> str | None:
    """The --task that has a loader, as a flag; None = no task has it."""
    return next((f"--task {task}" for task, loaders in OF_TASK.items() if name in loaders), None)


def default_loader(task: str, *, gpu: bool) -> str:
    """What --loader auto is."""
    if task == "video":
        return "nvdec+pyav" if gpu and import_module(CLIPS["nvdec"]).usable() else "pyav"
    return "dali-gpu" if gpu else "torchvision"


def open_loader(name: str, feed: Feed) -> Loader:
    """The loader of that name, ready to give batches. Raises UserError where this machine cannot run it."""
    module, beside = import_module({**LOADERS, **CLIPS}[name]), name.partition("+")[2]
    return module.open(feed, beside) if beside else module.open(feed)
