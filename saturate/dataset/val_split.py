"""One set of images as two splits, of which a share validates; must not know where its files lie."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import Array, Columns, Split, UserError, counted
from saturate.dataset import copies
from saturate.dataset.images.columns import Header, Images
from saturate.dataset.scan import names
from saturate.dataset.scan.manifest import offsets_of, printable
from saturate.dataset.stores.folder import Folder

RULE = 2
"""The version of how files are drawn. Version 1 parted copies; a checkpoint that names none was drawn by it."""
SKETCH = 64
"""Images by which the data of a checkpoint are known again."""
SHOWN = 10
"""Classes whose counts are told."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Part(Images):
    """Some of the images of a scan, in its order. Pickled as the scan and their places in it."""

    scan: Images
    places: Array  # int64 [n], in the scan, ascending

    @classmethod
    def from_places(cls, whole: Images, places: Array) -> Part:
        """Return the images at `places`, int64 [n], ascending."""
        begins = whole.path_offsets[places]
        lengths = whole.path_offsets[places + 1] - begins
        offsets = offsets_of(lengths)
        # axes: [bytes of all paths]
        of_bytes = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begins, lengths)
        columns = {
            name: getattr(whole, name)[places] for name in ("label", *Header._fields)
        }
        digest = hashlib.blake2b(
            whole.fingerprint.encode() + places.tobytes(), digest_size=16
        )
        columns |= {"path_bytes": whole.path_bytes[of_bytes], "path_offsets": offsets}
        own = {"fingerprint": digest.hexdigest(), "scan": whole, "places": places}
        # of a scan of shards, whose places in them a part has no need of
        known = {field.name: getattr(whole, field.name) for field in fields(Images)}
        return cls(**known | columns | own)

    def __reduce__(self) -> tuple[Any, ...]:
        return Part.from_places, (self.scan, self.places)


def require(root: Path, of_images: bool, *, source: str, classes: str | None) -> None:
    """Raise UserError unless `root` can be parted: a folder of class folders with images.

    `source` and `classes` are --source and --classes, which decide where the names of its files and folders say
    another thing.
    """
    if not of_images:
        raise UserError(
            "--val-share is for images with one label, in a folder a class; leave it out"
        )
    if not root.is_dir():
        raise UserError(
            f"--data {root}: no such folder; with --val-share it has a folder a class"
        )
    if _are_splits(root):
        raise UserError(
            f"--val-share is for a folder without train/ and val/, and --data {root} has train and val; leave it out"
        )
    if doubt := _doubt(root, source, classes):
        raise UserError(f"--data {root}: {doubt}")


def hint(root: Path) -> str:
    """Return what the folders of `root`, which lacks a split, may be; "; else " ends it where that is a guess."""
    if _are_splits(root):
        return ""
    if doubt := _doubt(root):
        return doubt
    if _by_force(root):
        return "where its folders are classes add --val-share 0.2; else "
    packed = [name for name in sorted(os.listdir(root)) if names.is_packed(name)]
    return f"unpack {packed[0]}; " if packed else ""


def _doubt(root: Path, source: str = "auto", classes: str | None = None) -> str:
    """Return why the folders of `root` may be no classes, and what decides; "" where nothing speaks against it."""
    folders = names.folders(root)
    by_force = _by_force(root)
    listed = [*filter(names.is_list, sorted(os.listdir(root)))]
    if listed and folders and source != "folder":
        return (
            f"{listed[0]} is a list, and lists are read where there are train.csv and val.csv, without "
            f"--val-share{by_force}"
        )
    if classes is not None:
        return ""
    if splits := names.splits_among(folders):
        return _splits_or_classes(root, folders, splits, by_force)
    inside = _below(root)
    if inside != root:
        share = "" if _are_splits(inside) else " --val-share 0.2"
        return f"all lies in its one folder {folders[0]!r}; name --data {inside}{share}"
    containers = [name for name in folders if name.casefold() in names.NO_CLASS]
    if containers:
        return (
            f"its folders {_quoted(containers)} have the names of what a list or annotations speak of, and "
            f"docs/data.md says where these lie{by_force}"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a checkpoint says of the data that it was trained on."""

    data: str | None  # --data
    manifest: str  # fingerprint of what was trained on
    rule: int  # RULE of its time
    sketch: frozenset[int]  # empty in older ones
    own: bool  # --val-share is the checkpoint's, for its own data alone

    @classmethod
    def from_checkpoint(
        cls, content: Mapping[str, Any], *, own: bool = False
    ) -> Trained:
        """Return what the content of a checkpoint says."""
        return cls(
            data=content["config"].get("data"),
            manifest=content["manifest"],
            rule=content.get("share_rule", 1),
            sketch=frozenset(content.get("sketch", ())),
            own=own,
        )

    def is_of(self, whole: Images, train: Split[Images]) -> bool:
        """Whether `whole`, of which `train` would be trained on, are those data: most of its sketch is there.

        Files may have been added since. Without a sketch, they are those whose names and sizes are the same, or
        that lie where they did.
        """
        if self.sketch:
            present = np.isin(np.array([*self.sketch], np.uint64), whole.digest)
            return bool(present.mean() > 0.5)
        here = os.path.realpath(whole.root)
        return train.columns.fingerprint == self.manifest or (
            self.data is not None and here == os.path.realpath(self.data)
        )


def sketched(columns: Columns, trained: Trained | None) -> dict[str, Any]:
    """Return what a checkpoint keeps of the data that it is trained on, and was `trained` before; see Trained.

    The sketch is the smallest digests of the images, as if some were drawn by their content.
    """
    if not isinstance(columns, Part):
        return {}
    rule = trained.rule if trained else RULE
    return {"share_rule": rule, "sketch": np.unique(columns.digest)[:SKETCH].tolist()}


def groups(columns: Images, pattern: str | None) -> list[bytes]:
    """Return the name of the group of each image, which is its own where it has none.

    `pattern` is --val-group. Raises UserError where it is wrong, or no image is in a group.
    """
    files = [columns.entry(sample) for sample in range(len(columns))]
    if pattern is None:
        return files
    try:
        # below its class a folder is a group, in all classes the same
        search = re.compile(r"[^/]*/(.+)/" if pattern == "folder" else pattern).search
    except re.error as error:
        raise UserError(
            f"--val-group {pattern}: no regular expression: {error}"
        ) from None
    matches = [search(os.fsdecode(name)) for name in files]
    if not any(match and match.groups() and match[1] for match in matches):
        example = printable(files[0])
        raise UserError(
            f"--val-group {pattern}: no image is in a group, for example '{example}'; folder = the one that an "
            "image lies in, below its class, or a regular expression whose first ( ) is the group's name"
        )
    return [
        os.fsencode(match[1]) if match and match[1] else name
        for match, name in zip(matches, files, strict=True)
    ]


def joined(names: list[bytes], same: Array) -> list[bytes]:
    """Return the names of groups, of which those that have `same` (COPY [k]) images are one: the first of them."""
    instead: dict[bytes, bytes] = {}

    def first(name: bytes) -> bytes:
        while name in instead:
            name = instead[name]
        return name

    rows = zip(same["group"].tolist(), same["sample"].tolist(), strict=True)
    for _, members in groupby(rows, itemgetter(0)):
        ends = {first(names[sample]) for _, sample in members}
        for other in ends - {min(ends)}:
            instead[other] = min(ends)
    return [first(name) for name in names]


def _splits_or_classes(
    root: Path, folders: list[str], splits: dict[str, str], by_force: str
) -> str:
    """Return that folders have names of splits, and the ways out that there are."""
    many = len(splits) > 1
    message = f"its folder{'s' * many} {_quoted(splits)}"
    if others := [name for name in folders if name not in splits]:
        message += f" may be {'splits' if many else 'a split'}, or classes as {others[0]!r} may be"
    else:
        message += " are splits and not classes" if many else " is a split and no class"
    ways = ["name them train/ and val/, without --val-share"]
    for name in [name for name, split in splits.items() if split == "train"][:1]:
        part = _below(root / name)
        if names.folders(part) and not _doubt(part):
            ways.append(f"have --data {part} parted by --val-share 0.2")
    if "train" in folders and not _has_images(root / "train"):
        ways.append("train without validation by --val-every 0")
    return f"{message}; {', or '.join(ways)}{by_force}"


def _by_force(root: Path) -> str:
    """Return how the folders of `root` are taken as classes; "" where the first of each holds no image."""
    for name in names.folders(root):
        folder = root / name
        inside = [folder, *(folder / below for below in names.folders(folder)[:1])]
        if any(map(_has_images, inside)):
            return "; if its folders are classes, --val-share 0.2 --source folder --classes all"
    return ""


def _below(folder: Path) -> Path:
    """Return a folder, or what lies in it where that is one folder of folders alone, and so on."""
    # links may lead back
    for _ in range(8):
        folders = names.folders(folder)
        inside = folder / folders[0] if len(folders) == 1 else folder
        if inside == folder or not names.folders(inside) or _has_images(inside):
            break
        folder = inside
    return folder


def _are_splits(root: Path) -> bool:
    return {"train", "val"} <= {*names.folders(root)}


def _quoted(folders: Iterable[str]) -> str:
    return " and ".join(repr(printable(name)) for name in folders)


def _has_images(folder: Path) -> bool:
    """Whether an image lies directly in a folder."""
    with suppress(OSError):
        return any(names.is_media(name, "image") for name in os.listdir(folder))
    return False


def validates(files: Sequence[bytes], share: float, seed: int, fold: int = 0) -> Array:
    """Return bool [n]: whether a file validates, by its name below the data, `share`, `seed` and `fold` alone."""
    key = seed.to_bytes(16, "little")
    digests = [hashlib.blake2b(name, digest_size=8, key=key).digest() for name in files]
    drawn = np.frombuffer(b"".join(digests), "<u8")
    # below the first share of all numbers it is of fold 0, and so on; the last fold has the rest, as of 3 x 0.333
    begins, ends = (
        np.uint64(min(one * share, 1 - 2**-53) * 2.0**64) for one in (fold, fold + 1)
    )
    is_last = fold > 0 and fold + 1 == _folds(share)
    return (drawn >= begins) & ((drawn < ends) | is_last)


def _folds(share: float) -> int:
    """Return how many folds there are of a share; of 1 / 3 written as 0.333 there are three."""
    return int(1 / share + 0.01)


def parted(
    whole: Split[Images],
    share: float,
    seed: int,
    group: str | None = None,
    trained: Trained | None = None,
    fold: int = 0,
) -> tuple[dict[str, Split[Images]], list[str], list[str]]:
    """Return {"train": ..., "val": ...}, lines that tell the counts, and what may be a mistake.

    Copies, and images of a `group` (--val-group), are on one side; the share of a checkpoint that was `trained`
    before stays as it was. Raises UserError where one of the two has no image, for data that a checkpoint's
    own --val-share is not of, and for a `fold` (--val-fold) beyond the last.
    """
    columns = whole.columns
    if fold >= (folds := _folds(share)):
        raise UserError(
            f"--val-fold {fold}: --val-share {share:g} has the folds 0 to {folds - 1}"
        )
    if fold and abs(folds * share - 1) > 0.01:
        raise UserError(
            f"--val-fold {fold}: folds of --val-share {share:g} leave images out; take 0.1, 0.2, 0.25 or 0.5"
        )
    files = groups(columns, group)
    notes = []
    if group is not None:
        notes.append(
            f"--val-group {group}: {counted(len(set(files)), 'group')}, and none is parted"
        )
    if trained is None or trained.rule >= RULE:
        same = copies.find([whole])
        files = joined(files, same)
        if len(same):
            alike = counted(len(same), "image")
            notes.append(
                f"--val-share {share:g}: {alike} have copies, which are on one side together"
            )
    of_val = validates(files, share, seed, fold)
    splits = {}
    counts = {}
    for name, chosen in (("train", ~of_val), ("val", of_val)):
        if not chosen.any():
            raise UserError(
                f"--val-share {share:g}: of {counted(len(columns), 'image')} none is left for {name}; another share"
            )
        part = Part.from_places(columns, np.flatnonzero(chosen))
        source = Folder(part, whole.source.read_delay_s)
        splits[name] = replace(whole, columns=part, source=source)
        counts[name] = np.bincount(part.label, minlength=len(columns.classes))
    if (
        trained is not None
        and trained.own
        and not trained.is_of(columns, splits["train"])
    ):
        raise UserError(f"--val-share {share:g} is of the checkpoint's own data")
    train, val = counts["train"], counts["val"]
    shown = [*map(printable, columns.classes)]
    details = ", ".join(
        f"{name} {a} + {b}" for name, a, b in zip(shown, train, val, strict=True)
    )
    if len(shown) > SHOWN:
        shares = val / (train + val)
        details = f"of a class {shares.min():.1%} to {shares.max():.1%}"
    notes.append(
        f"--val-share {share:g}: {counted(train.sum(), 'image')} to train, {val.sum():,} to validate ({details})"
    )
    mistakes = []
    for split, of_class in counts.items():
        empty = [shown[place] for place in np.flatnonzero(of_class == 0)]
        if empty:
            more = f" and {len(empty) - SHOWN} more" if len(empty) > SHOWN else ""
            mistakes.append(
                f"--val-share {share:g}: no image in {split} of class {', '.join(empty[:SHOWN])}{more}"
            )
    return splits, notes, mistakes
