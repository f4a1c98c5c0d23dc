"""One set of images as two splits, of which a share validates; must not know where its files lie."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array, Split, UserError, counted
from dataset.images.columns import COLUMNS, Images
from dataset.scan.manifest import printable
from dataset.stores.folder import Folder

SHOWN = 10
"""Classes whose counts are told."""
SPLIT_NAMES = frozenset(
    ["train", "training", "val", "valid", "validation", "test", "testing"]
)
"""Names of folders, in any case, that are splits where a set has no other folders."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Part(Images):
    """Some of the images of a scan, in its order. Pickled as the scan and their places in it."""

    scan: Images
    places: Array  # int64 [n], in the scan, ascending

    @classmethod
    def of(cls, whole: Images, places: Array) -> Part:
        """Return the images at `places`, int64 [n], ascending."""
        begins = whole.path_offsets[places]
        lengths = whole.path_offsets[places + 1] - begins
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # axes: [bytes of all paths]
        of_bytes = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begins, lengths)
        columns = {
            name: getattr(whole, name)[places]
            for name in COLUMNS
            if not name.startswith("path_")
        }
        digest = hashlib.blake2b(
            whole.fingerprint.encode() + places.tobytes(), digest_size=16
        )
        known = {one.name: getattr(whole, one.name) for one in fields(Images)}
        own: dict[str, Any] = {
            "path_bytes": whole.path_bytes[of_bytes],
            "path_offsets": offsets,
        }
        own |= {"fingerprint": digest.hexdigest(), "scan": whole, "places": places}
        return cls(**{**known, **columns, **own})

    def __reduce__(self) -> tuple[Any, ...]:
        return Part.of, (self.scan, self.places)


def require(root: Path, of_images: bool) -> None:
    """Raise UserError unless `root` can be parted: a folder of class folders with images."""
    if not of_images:
        raise UserError(
            "--val-share is for images with one label, in a folder a class; leave it out"
        )
    if not root.is_dir():
        raise UserError(
            f"--data {root}: no such folder; with --val-share it has a folder a class"
        )
    if {"train", "val"} <= set(_folders(root)):
        raise UserError(
            f"--val-share is for a folder without train/ and val/, and --data {root} has train and val; leave it out"
        )
    if told := _named_splits(root):
        raise UserError(f"--data {root}: {told}")


def hint(root: Path) -> str:
    """Return what the folders of `root`, which lacks a split, may be; "; else " ends it where that is a guess."""
    names = _folders(root)
    if not names or {"train", "val"} <= set(names):
        return ""
    return (
        _named_splits(root)
        or "where its folders are classes add --val-share 0.2; else "
    )


def _folders(root: Path) -> list[str]:
    """Return the sorted names of the folders in `root` that are not hidden."""
    entries = (entry for entry in os.scandir(root) if entry.is_dir())
    return sorted(entry.name for entry in entries if not entry.name.startswith("."))


def _named_splits(root: Path) -> str:
    """Return what to say where all folders of `root` are named as splits are; else nothing."""
    names = _folders(root)
    if not names or not SPLIT_NAMES.issuperset(map(str.casefold, names)):
        return ""
    first = next((name for name in names if name[:5].casefold() == "train"), names[0])
    named = " and ".join(map(repr, names))
    return (
        f"its folders {named} are splits and not classes; name them train/ and val/, without --val-share, "
        f"or have --data {root / first} parted by --val-share 0.2"
    )


def validates(names: list[bytes], share: float, seed: int) -> Array:
    """Return bool [n]: whether a file validates, by its name below the data, `share` and `seed` alone."""
    key = seed.to_bytes(16, "little")
    drawn = [hashlib.blake2b(name, digest_size=8, key=key).digest() for name in names]
    return np.frombuffer(b"".join(drawn), "<u8") < np.uint64(share * 2.0**64)


def parted(
    whole: Split, share: float, seed: int
) -> tuple[dict[str, Split], str, list[str]]:
    """Return {"train": ..., "val": ...}, a line that tells the counts, and what may be a mistake.

    Raises UserError where one of the two has no image.
    """
    columns: Any = whole.columns
    names = [columns.entry(sample) for sample in range(len(columns))]
    of_val = validates(names, share, seed)
    splits = {}
    counts = {}
    for name, chosen in (("train", ~of_val), ("val", of_val)):
        if not chosen.any():
            raise UserError(
                f"--val-share {share:g}: of {counted(len(columns), 'image')} none is left for {name}; another share"
            )
        part = Part.of(columns, np.flatnonzero(chosen))
        source = Folder(part, whole.source.read_delay_s)
        splits[name] = replace(whole, columns=part, source=source)
        counts[name] = np.bincount(part.label, minlength=len(columns.classes))
    train, val = counts["train"], counts["val"]
    shown = [printable(os.fsencode(name)) for name in columns.classes]
    details = ", ".join(
        f"{name} {a} + {b}" for name, a, b in zip(shown, train, val, strict=True)
    )
    if len(shown) > SHOWN:
        shares = val / (train + val)
        details = f"of a class {shares.min():.1%} to {shares.max():.1%}"
    told = f"--val-share {share:g}: {counted(train.sum(), 'image')} to train, {val.sum():,} to validate ({details})"
    mistakes = []
    for split, of_class in counts.items():
        empty = [shown[place] for place in np.flatnonzero(of_class == 0)]
        if empty:
            more = f" and {len(empty) - SHOWN} more" if len(empty) > SHOWN else ""
            mistakes.append(
                f"--val-share {share:g}: no image in {split} of class {', '.join(empty[:SHOWN])}{more}"
            )
    return splits, told, mistakes
