"""Opens a split for super-resolution: large images and their small ones, checked; must not know windows."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import numpy as np

from contracts import MAX_PIXELS, Array, Split, UserError, counted
from dataset.images.columns import Images
from dataset.images.scan import open_images
from dataset.pairs import layouts
from dataset.pairs.columns import Pairs, split_of
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Files
from dataset.scan.cache import Progress
from dataset.scan.manifest import Rejects, printable
from dataset.stores import choose_source, source_named
from dataset.stores.folder import Folder


class Options(TypedDict):
    """How folders and stores are scanned; see dataset.images.scan.open_images."""

    cache: Path
    rescan: bool
    max_pixels: int
    progress: Progress | None


def open_pairs(
    data: Path,
    split: str,
    *,
    scale: int,
    least: int,
    patches: int = 1,
    source: str = "auto",
    cache: Path,
    rescan: bool = False,
    max_pixels: int = MAX_PIXELS,
    read_delay_s: float = 0.0,
    progress: Progress | None = None,
) -> tuple[Split, list[str]]:
    """Open "train" or "val" of a set for super-resolution, and return lines that say what was left out.

    Images with a side below `least` pixels are. A sample is one of `patches` patches of an image. `source`
    is a name of dataset.stores.SOURCES, or auto. Raises UserError, also where names or sizes of two folders
    do not fit each other.
    """
    options = Options(
        cache=cache, rescan=rescan, max_pixels=max_pixels, progress=progress
    )
    if source == "auto" and data.is_dir():
        source = choose_source(source, data, split)
        source = "folder" if source_named(source).FILES else source
    low = small = None
    if source in ("auto", "folder"):
        found = layouts.find(data, split, scale)
        columns = _folder(found.high, options)
        if found.shared and len(columns) < 2:
            raise UserError(
                f"--data {data}: one image alone; one to train and one to validate are needed"
            )
        high = Split(columns=columns, source=Folder(columns, read_delay_s))
        images = np.arange(len(columns))[found.part(split, len(columns))]
        if found.low is not None:
            low = _folder(found.low, options)
            small = _partners(columns, low, scale)[images]
    else:
        high = _packed(data, split, source, read_delay_s, options)
        columns = high.columns
        images = np.arange(len(columns))
    sides = np.minimum(columns.height, columns.width)
    kept = sides[images] >= least
    if not kept.any():
        raise UserError(
            f"--data {data}: {split} has no image of {least} x {least} pixels: the largest of {len(columns)} "
            f"has a side of {sides.max()}; a smaller --patch-size, or --shave"
        )
    said = [columns.left_out] if columns.left_out else []
    if low is not None and low.left_out:
        said.append(f"small images: {low.left_out}")
    if not kept.all():
        said.append(_too_small(high, images[~kept], split, least))
    pairs = Pairs(
        high=columns,
        images=images[kept],
        low=low,
        small=None if small is None else small[kept],
        patches=patches,
    )
    low_bytes = None if low is None else Folder(low, read_delay_s)
    return split_of(pairs, high.source, low_bytes), said


def _packed(
    data: Path, split: str, source: str, read_delay_s: float, options: Options
) -> Split:
    """Return columns and bytes of the large images in a store."""
    module = source_named(source)
    if module.FILES:
        raise UserError(
            f"--source {source} is for images with a label; leave it out for {layouts.HOLDS}"
        )
    if lacking := module.missing(data, split):
        raise UserError(f"--data {data}: has no {lacking}; it must be {module.HOLDS}")
    return module.open(data, split, read_delay_s=read_delay_s, **options)


def _folder(folder: Path, options: Options) -> Images:
    """Return the columns of all images below a folder, which have no class."""
    real = Path(os.path.realpath(folder))
    labels = {real.name: 0}

    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        file_tree.list_files(real.parent, labels, made, visits, rejects, say)
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
        **options,
    )


def _stems(columns: Images) -> list[bytes]:
    """Return the path of each image below its folder, without its ending."""
    names = (columns.entry(sample).partition(b"/")[2] for sample in range(len(columns)))
    return [os.path.splitext(name)[0] for name in names]


def _partners(high: Images, low: Images, scale: int) -> Array:
    """Return int64 [n], the small image of each large one. Raises UserError unless names and sizes fit."""
    # DIV2K's mild, difficult and wild ones have a letter of their kind behind it
    suffix = re.compile(rb"x%d[mdw]?\Z" % scale)
    stems = _stems(low)
    place = {suffix.sub(b"", stem): sample for sample, stem in enumerate(stems)}
    place |= {stem: sample for sample, stem in enumerate(stems)}
    small = np.array([place.get(stem, -1) for stem in _stems(high)], np.int64)
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


def _too_small(high: Split, images: Array, split: str, least: int) -> str:
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
