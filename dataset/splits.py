"""The two splits of a data set: their columns and the bytes behind them; must not know how they are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from config import Data
from contracts import Mistake, Source
from dataset import coco_scan
from dataset.scan import open_folder
from dataset.sources.folder import Folder
from dataset.sources.imagined import COCO_TRAIN, COCO_VAL, TRAIN_SAMPLES, VAL_SAMPLES, Imagined, ImaginedInstances, ImaginedVideos

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


def open_splits(settings: Data, loader: str, *, kind: Kind = "images", read_delay_s: float, console: Any) -> dict[str, Split]:
    """{"train": ..., "val": ...}: the data that the configuration names; the synthetic loader alone can do without any.

    The classes of the first are the second's. Raises Mistake.
    """
    if settings.data is None:
        if loader != "synthetic":
            raise Mistake(f"--data is missing: --loader {loader} reads files; {HOLDS[kind]}, or --loader synthetic")
        return imagined(kind)
    splits: dict[str, Split] = {}
    classes: tuple[str, ...] | None = None
    for split, open_one in _openers(settings, settings.data, kind).items():
        with console.counting(f"scanning {split}") as progress:
            manifest = open_one(classes=classes, cache=cache_folder(settings.manifest_dir), rescan=settings.rescan, progress=progress)
        if manifest.rejected:
            console.warn(f"{split}: {manifest.rejected} left out, named in {manifest.folder / 'rejected.txt'}")
        classes = manifest.classes
        splits[split] = Split(columns=manifest, source=Folder(manifest, read_delay_s))
    return splits


def _openers(settings: Data, root: Path, kind: Kind) -> dict[str, Callable[..., Any]]:
    """What opens each split; both have been found before one is scanned. Raises Mistake."""
    if kind == "instances" or kind == "keypoints":
        with_keypoints = kind == "keypoints"
        for split in SPLITS:
            coco_scan.find(root, split, keypoints=with_keypoints)
        return {split: partial(coco_scan.open_coco, root, split, keypoints=with_keypoints) for split in SPLITS}
    open_one = SOURCES[settings.source]
    if kind == "videos":
        from dataset.video_scan import open_videos as open_one  # with PyAV, which images do without
    return {split: partial(open_one, part) for split, part in {split: _part(root, split, kind) for split in SPLITS}.items()}


def _part(root: Path, split: str, kind: Kind) -> Path:
    """The folder of a split, or its list. Raises Mistake."""
    if not root.is_dir():
        raise Mistake(f"--data {root}: no such folder; it must be {HOLDS[kind]}")
    for path in (root / split, *((root / f"{split}{ending}" for ending in (".csv", ".txt")) if kind == "videos" else ())):
        if path.exists():
            return path
    raise Mistake(f"--data {root}: has no {split}/ folder; it must be {HOLDS[kind]}")


def imagined(kind: Kind = "images") -> dict[str, Split]:
    """Two splits of ImageNet's or COCO's size without a file, for the synthetic loader."""
    if kind == "instances" or kind == "keypoints":
        columns: list[Any] = [ImaginedInstances.of(samples, keypoints=kind == "keypoints") for samples in (COCO_TRAIN, COCO_VAL)]
    else:
        columns = [(ImaginedVideos if kind == "videos" else Imagined)(samples) for samples in (TRAIN_SAMPLES, VAL_SAMPLES)]
    return {split: Split(columns=each, source=each) for split, each in zip(SPLITS, columns, strict=True)}
