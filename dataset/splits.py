"""The two splits of a data set: their columns and the bytes behind them; must not know how they are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from contracts import Source, UserError
from dataset.coco import annotation_file
from dataset.coco.scan import open_coco
from dataset.coco.synthetic import COCO_TRAIN, COCO_VAL, SyntheticInstances
from dataset.images.scan import open_folder
from dataset.images.synthetic import TRAIN_SAMPLES, VAL_SAMPLES, SyntheticImages
from dataset.sources.folder import Folder
from dataset.videos.synthetic import SyntheticVideos

Kind = Literal["images", "videos", "instances", "keypoints"]
"""Images with a label, videos with a label, images with boxes and masks, images with boxes and keypoints."""
SPLITS: tuple[Literal["train", "val"], ...] = ("train", "val")
_COCO = "a folder in COCO's layout: train2017/, val2017/ and annotations/"
HOLDS: dict[Kind, str] = {
    "images": "a folder with train/<class>/* and val/<class>/*",
    "videos": "a folder with train/<class>/* and val/<class>/*, or the lists train.csv and val.csv",
    "instances": _COCO,
    "keypoints": _COCO,
}
SOURCES: dict[str, Callable[..., Any]] = {"folder": open_folder}
"""--source of images -> what opens one split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """train or val: columns (a manifest, or what stands for one) and the bytes behind them."""

    columns: Any
    source: Source


def cache_folder(chosen: Path | None) -> Path:
    """Where manifests are kept."""
    return chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saturate"


def open_split(root: Path, *, cache: Path | None = None) -> Split:
    """One folder root/<class>/*, scanned once and found again in milliseconds. For a loader in one's own loop."""
    manifest = open_folder(root, cache=cache_folder(cache))
    return Split(columns=manifest, source=Folder(manifest))


class Data(Protocol):
    """What to open: config.Data, or anything with these fields."""

    @property
    def data(self) -> Path | None: ...
    @property
    def source(self) -> str: ...
    @property
    def manifest_dir(self) -> Path | None: ...
    @property
    def rescan(self) -> bool: ...


def open_splits(
    settings: Data, *, kind: Kind = "images", loader: str, read_delay_s: float = 0.0, evaluate: bool = False, console: Any
) -> dict[str, Split]:
    """Open {"train": ..., "val": ...}: the data that the settings name; the synthetic loader alone can do without any.

    The classes of the first are the second's. To `evaluate` the second will do, and is both. Raises UserError.
    """
    if settings.data is None:
        if loader != "synthetic":
            raise UserError(f"--data is missing: --loader {loader} reads files; {HOLDS[kind]}, or --loader synthetic")
        return synthetic(kind)
    splits: dict[str, Split] = {}
    classes: tuple[str, ...] | None = None
    openers, without = _openers(settings, settings.data, kind, train=not evaluate)
    if without:
        console.warn(f"train: not read, the classes are those of val; {without}")
    for split, open_one in openers.items():
        with console.counting(split) as progress:
            manifest = open_one(classes=classes, cache=cache_folder(settings.manifest_dir), rescan=settings.rescan, progress=progress)
        if manifest.rejected:
            console.warn(f"{split}: {manifest.rejected} left out, named in {manifest.folder / 'rejected.txt'}")
        if split == "train":
            _warn_of_classes(manifest, kind, console)
        classes = manifest.classes
        splits[split] = Split(columns=manifest, source=Folder(manifest, read_delay_s))
    return {split: splits.get(split, splits["val"]) for split in SPLITS}


def _warn_of_classes(columns: Any, kind: Kind, console: Any) -> None:
    """Of training data that say less, or otherwise, than they were meant to."""
    if kind in ("images", "videos") and len(columns.classes) == 1:
        console.warn(f"train: one class alone, '{columns.classes[0]}', so there is nothing to learn; is --data a folder too high?")
    if kind == "videos":
        empty = np.flatnonzero(np.bincount(columns.label, minlength=len(columns.classes)) == 0)
        if len(empty):
            first = f"{len(empty)} of {len(columns.classes)} classes have no video, first '{columns.classes[empty[0]]}'"
            console.warn(f"train: {first}; do the labels of the list begin at 0, without gaps?")


def _openers(settings: Data, root: Path, kind: Kind, *, train: bool) -> tuple[dict[str, Callable[..., Any]], str]:
    """What opens each split, and why there is none for train, which may be when it is not needed; before one is scanned.

    Raises UserError.
    """
    found: dict[str, Callable[..., Any]] = {}
    without = ""
    for split in SPLITS:
        try:
            found[split] = _opener(settings, root, split, kind)
        except UserError as mistake:
            if train or split != "train":
                raise
            without = str(mistake)
    return found, without


def _opener(settings: Data, root: Path, split: Literal["train", "val"], kind: Kind) -> Callable[..., Any]:
    if kind == "instances" or kind == "keypoints":
        with_keypoints = kind == "keypoints"
        annotation_file.find(root, split, keypoints=with_keypoints)
        return partial(open_coco, root, split, keypoints=with_keypoints)
    open_one = SOURCES[settings.source]
    if kind == "videos":
        from dataset.videos.scan import open_videos as open_one  # with PyAV, which images do without
    return partial(open_one, _part(root, split, kind))


def list_of(root: Path, split: str) -> Path | None:
    """The list of a split of videos, which goes before its folder."""
    return next((path for ending in (".csv", ".txt") if os.path.lexists(path := root / f"{split}{ending}")), None)


def _part(root: Path, split: str, kind: Kind) -> Path:
    """The list of a split, or its folder. Raises UserError."""
    if not root.is_dir():
        raise UserError(f"--data {root}: {'is a file' if root.exists() else 'no such folder'}; it must be {HOLDS[kind]}")
    if not os.access(root, os.X_OK):
        raise UserError(f"--data {root}: may not be entered; it must be {HOLDS[kind]}")
    if kind == "videos" and (found := list_of(root, split)):
        if found.is_dir():
            raise UserError(f"--data {found}: is a folder, and would be the list of {split}; it must be a file, or have another name")
        return found
    if (root / split).exists():
        return root / split
    raise UserError(f"--data {root}: has no {split}/ folder; it must be {HOLDS[kind]}")


def synthetic(kind: Kind = "images") -> dict[str, Split]:
    """Two splits of ImageNet's or COCO's size without a file, for the synthetic loader."""
    if kind == "instances" or kind == "keypoints":
        columns: list[Any] = [SyntheticInstances.of(samples, keypoints=kind == "keypoints") for samples in (COCO_TRAIN, COCO_VAL)]
    else:
        columns = [(SyntheticVideos if kind == "videos" else SyntheticImages)(samples) for samples in (TRAIN_SAMPLES, VAL_SAMPLES)]
    return {split: Split(columns=each, source=each) for split, each in zip(SPLITS, columns, strict=True)}
