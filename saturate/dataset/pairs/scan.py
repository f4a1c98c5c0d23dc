"""Opens a split for super-resolution: large images and their small ones, checked; must not know windows."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from saturate.contracts import Array, Split, UserError, counted
from saturate.dataset.images.columns import Images
from saturate.dataset.images.scan import open_images
from saturate.dataset.pairs import layouts
from saturate.dataset.pairs.columns import Pairs, split_of
from saturate.dataset.scan import file_tree, names
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.cache import Options
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.manifest import printable
from saturate.dataset.stores import choose_source, source_named
from saturate.dataset.stores.folder import Folder

_OF_LARGE = re.compile(r"[_-](hr|hq|gt)\Z", re.IGNORECASE)
_OF_SMALL = re.compile(r"[_-]?(x[2-9][mdw]?|[_-](lr|lq))\Z", re.IGNORECASE)


def open_pairs(
    data: Path,
    split: str,
    *,
    scale: int,
    least: int,
    patches: int = 1,
    source: str = "auto",
    read_delay_s: float = 0.0,
    **how: Unpack[Options],
) -> tuple[Split[Pairs], list[str]]:
    """Open "train" or "val" of a set for super-resolution, and return lines that say what was left out.

    Images with a side below `least` pixels are. A sample is one of `patches` patches of an image. `source`
    is a name of dataset.stores.SOURCES, or auto. Raises UserError, also where names or sizes of two folders
    do not fit each other.
    """
    if source == "auto" and data.is_dir():
        source = choose_source(source, data, split)
        source = "folder" if source_named(source).FILES else source
    low = small = None
    beside: Sequence[str] = ()
    if source in ("auto", "folder"):
        layout = layouts.find(data, split, scale)
        beside = layout.beside
        columns = _folder(layout.high, how)
        if layout.shared and len(columns) < 2:
            raise UserError(
                f"--data {data}: one image alone; one to train and one to validate are needed"
            )
        high = Split(columns=columns, source=Folder(columns, read_delay_s))
        images = np.arange(len(columns))[layout.part(split, len(columns))]
        if layout.low is None:
            _require_no_small(columns)
        else:
            low = _folder(layout.low, how)
            small = _partners(columns, low, scale)[images]
    else:
        high = _packed(data, split, source, read_delay_s, how)
        columns = high.columns
        images = np.arange(len(columns))
    sides = np.minimum(columns.height, columns.width)
    large_enough = sides[images] >= least
    if not large_enough.any():
        raise UserError(
            f"--data {data}: {split} has no image of {least} x {least} pixels: the largest of {len(columns)} "
            f"has a side of {sides.max()}; a smaller --patch-size, or --shave"
        )
    notes = [columns.left_out] if columns.left_out else []
    if low and low.left_out:
        notes.append(f"small images: {low.left_out}")
    if not large_enough.all():
        notes.append(_too_small(high, images[~large_enough], split, least))
    pairs = Pairs(
        high=columns,
        images=images[large_enough],
        low=low,
        small=None if small is None else small[large_enough],
        patches=patches,
    )
    low_bytes = None if low is None else Folder(low, read_delay_s)
    return replace(split_of(pairs, high.source, low_bytes), beside=beside), notes


def _packed(
    data: Path, split: str, source: str, read_delay_s: float, how: Options
) -> Split[Images]:
    """Return columns and bytes of the large images in a store."""
    module = source_named(source)
    if module.FILES:
        raise UserError(
            f"--source {source} is for images with a label; leave it out for {layouts.HOLDS}"
        )
    if lacking := module.missing(data, split):
        raise UserError(f"--data {data}: has no {lacking}; it must be {module.HOLDS}")
    return module.open(data, split, read_delay_s=read_delay_s, **how)


def _folder(folder: Path, how: Options) -> Images:
    """Return the columns of all images below a folder, which have no class."""
    real = Path(os.path.realpath(folder))
    labels = {real.name: 0}

    def list_files(scan: Scan) -> dict[str, int]:
        file_tree.list_files(scan, labels)
        return labels

    return open_images(
        real,
        Files(real.parent),
        list_files,
        key=["images without a class"],
        where=f"{real}/",
        root=real.parent,
        classes=(),
        listed=True,
        **how,
    )


def _stems(columns: Images) -> list[str]:
    """Return the path of each image below its folder, without its ending, as `names.key` gives it."""
    paths = (columns.entry(sample).partition(b"/")[2] for sample in range(len(columns)))
    return [names.key(os.fsdecode(os.path.splitext(name)[0])) for name in paths]


def _require_no_small(columns: Images) -> None:
    """Raise UserError where small images lie among the large ones: 0001_LR beside 0001_HR, a/0001 and b/0001."""
    stems = _stems(columns)
    large = {_OF_LARGE.sub("", stem) for stem in stems}
    small = [
        place
        for place, stem in enumerate(stems)
        if (base := _OF_SMALL.sub("", stem)) != stem and base in large
    ] or _small_folders(columns, stems)
    if small:
        first = printable(columns.entry(small[0]))
        raise UserError(
            f"--data: {len(small)} of {len(columns)} images of {columns.root} are small ones of others beside "
            f"them, first {first}; move the large ones to a folder HR/, the small ones to LR/ beside it, "
            "under the same names"
        )


def _small_folders(columns: Images, stems: Sequence[str]) -> list[int]:
    """Return the images with a larger one of their name, of folders where most have one.

    Single ones may be other photos, of a camera that counts from 1 again.
    """
    sizes = [*zip(columns.height.tolist(), columns.width.tolist(), strict=True)]
    folders = [os.path.dirname(stem) for stem in stems]
    called = [
        _OF_SMALL.sub("", _OF_LARGE.sub("", os.path.basename(stem))) for stem in stems
    ]
    known = {*zip(called, sizes, strict=True)}
    small = [
        place
        for place, (height, width) in enumerate(sizes)
        if any((called[place], (height * k, width * k)) in known for k in range(2, 9))
    ]
    count = Counter(folders)
    of_small = Counter(folders[place] for place in small)
    return [p for p in small if 2 * of_small[folders[p]] > count[folders[p]]]


def _partners(high: Images, low: Images, scale: int) -> Array:
    """Return int64 [n], the small image of each large one. Raises UserError unless names and sizes fit."""
    large = _stems(high)
    places = {stem: place for place, stem in enumerate(large)}
    for place, stem in enumerate(large):
        if (last := places[stem]) != place:
            both = " and ".join(printable(high.entry(one)) for one in (place, last))
            raise UserError(
                f"--data: {both} of {high.root} have one name, and there is one small image of it; give each "
                "a name of its own"
            )
    # DIV2K's mild, difficult and wild ones have a letter of their kind behind it
    suffix = re.compile(rf"x{scale}[mdw]?\Z")
    stems = _stems(low)
    place_of = {suffix.sub("", stem): sample for sample, stem in enumerate(stems)}
    place_of |= {stem: sample for sample, stem in enumerate(stems)}
    small = np.array([place_of.get(stem, -1) for stem in large], np.int64)
    extra = np.setdiff1d(np.arange(len(low)), small)
    for columns, alone, other in (
        (high, np.flatnonzero(small < 0), low),
        (low, extra, high),
    ):
        if alone.size:
            size = "large" if columns is low else "small"
            raise UserError(
                f"--data: no {size} image of its name, or of namex{scale}, for {len(alone)} of "
                f"{len(columns)} images of {high.root}, first {printable(columns.entry(int(alone[0])))}"
                f"{'; ' * bool(other.left_out)}{other.left_out}"
            )
    wrong = np.flatnonzero(
        (low.height[small] * scale != high.height)
        | (low.width[small] * scale != high.width)
    )
    if wrong.size:
        one = int(wrong[0])
        other_one = int(small[one])
        raise UserError(
            f"--data: {printable(high.entry(one))} has {high.width[one]} x {high.height[one]} pixels and "
            f"{printable(low.entry(other_one))} {low.width[other_one]} x {low.height[other_one]}, which is not "
            f"one in {scale} ({counted(len(wrong), 'such pair')}); is --scale another one?"
        )
    return small


def _too_small(high: Split[Images], images: Array, split: str, least: int) -> str:
    """Return the line that tells of images that are too small, and write their names beside the columns."""
    few = counted(len(images), "image")
    message = f"{few} left out, with a side below {least} pixels"
    columns = high.columns
    path = columns.folder / f"small-{split}.txt"
    lines = [
        f"{high.source.name(i)}\t{columns.width[i]} x {columns.height[i]} pixels\n"
        for i in images.tolist()
    ]
    with suppress(OSError):
        path.write_text("".join(lines), encoding="utf-8")
        return f"{message}, named in {path}"
    return f"{message}, first {lines[0].strip()}"
