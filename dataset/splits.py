"""The two splits of a data set: their columns and the bytes behind them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import Data
from contracts import Mistake, Source
from dataset.manifest import Manifest
from dataset.scan import open_folder
from dataset.sources.folder import Folder
from dataset.sources.imagined import TRAIN_SAMPLES, VAL_SAMPLES, Imagined


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


def open_folders(root: Path, *, cache: Path, rescan: bool, read_delay_s: float, console: Any) -> dict[str, Split]:
    """{"train": ..., "val": ...} of root/train/<class>/* and root/val/<class>/*. Raises Mistake."""
    if not root.is_dir():
        raise Mistake(f"--data {root}: no such folder; it must hold train/<class>/* and val/<class>/*")
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise Mistake(f"--data {root}: has no {split}/ folder; it must hold train/<class>/* and val/<class>/*")
    splits: dict[str, Split] = {}
    classes: tuple[str, ...] | None = None
    for split in ("train", "val"):
        with console.counting(f"scanning {split}") as progress:
            manifest: Manifest = open_folder(root / split, cache=cache, classes=classes, rescan=rescan, progress=progress)
        if manifest.rejected:
            console.warn(f"{split}: {manifest.rejected} left out, named in {manifest.folder / 'rejected.txt'}")
        classes = manifest.classes
        splits[split] = Split(columns=manifest, source=Folder(manifest, read_delay_s))
    return splits


SOURCES = {"folder": open_folders}
"""--source -> what opens it."""


def open_splits(settings: Data, loader: str, *, read_delay_s: float, console: Any) -> dict[str, Split]:
    """The data that the configuration names; the synthetic loader alone can do without any. Raises Mistake."""
    if settings.data is None:
        if loader != "synthetic":
            raise Mistake(
                f"--data is missing: --loader {loader} reads files; a folder with train/<class>/* and val/<class>/*, or --loader synthetic"
            )
        return imagined()
    cache = cache_folder(settings.manifest_dir)
    return SOURCES[settings.source](settings.data, cache=cache, rescan=settings.rescan, read_delay_s=read_delay_s, console=console)


def imagined() -> dict[str, Split]:
    """Two splits of ImageNet's size without a file, for the synthetic loader."""
    return {
        name: Split(columns=columns, source=columns)  # type: ignore[arg-type]
        for name, columns in (("train", Imagined(TRAIN_SAMPLES)), ("val", Imagined(VAL_SAMPLES)))
    }
