"""What may be a mistake about the classes of a split, as sentences; must not know how a split is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from contracts import Split
from dataset.scan.manifest import printable

if TYPE_CHECKING:
    from dataset.open import Console


def tell_of_classes(
    name: str, split: Split, console: Console, *, expected: tuple[str, ...] | None, listed: bool, noun: str
) -> None:
    """Warn of a single class where more are `expected`, or any, and of classes without a sample; say where
    all files lie deeper than in their class folders. A `listed` sample has no class folder."""
    columns = split.columns
    counts = np.bincount(columns.label, minlength=len(columns.classes))
    present = np.flatnonzero(counts)
    deep = "" if listed or not split.source.files else _all_deeper(columns)
    too_many = f"all files lie in folders below, as {deep}: is there a folder too many?"
    if len(present) == 1 and (expected is None or len(expected) > 1):
        console.warn(
            f"{name}: one class alone, '{columns.classes[present[0]]}', so there is nothing to learn; "
            f"{too_many if deep else 'is --data a folder too high?'}"
        )
    elif deep:
        console.info(f"{name}: its own folders are the classes; {too_many}")
    if expected is None and not counts.all():
        empty = np.flatnonzero(counts == 0)
        console.warn(
            f"{name}: {len(empty)} of {len(columns.classes)} classes have no {noun}, "
            f"first '{columns.classes[empty[0]]}'; do the labels of the list begin at 0, without gaps?"
        )


def _all_deeper(columns: Any) -> str:
    """Return the path of a sample below its split where all lie in folders of their class folders, or ""."""
    looked_at = np.linspace(0, len(columns) - 1, min(len(columns), 1000)).astype(int)
    if any(columns.entry(sample).count(b"/") < 2 for sample in looked_at.tolist()):
        return ""
    return printable(columns.entry(0))


def warn_of_sorted(columns: Any, console: Console) -> None:
    """Warn of an order in which classes come one after the other: a network then learns one at a time."""
    label = np.asarray(columns.label)
    runs = int(np.count_nonzero(label[1:] != label[:-1])) + 1
    if 1 < runs == len(np.unique(label)):
        console.warn(
            f"train: --order sequential, and the {len(label):,} samples are sorted by label, so that nearly "
            "every batch has one class alone: shuffle the lines of the list, or leave --order out"
        )
