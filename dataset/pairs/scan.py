"""Opens a split for super-resolution: large images and their small ones, checked; must not know windows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from contracts import MAX_PIXELS, Array, Source, Split, UserError
from dataset.images.columns import FORMATS, Images
from dataset.images.headers import HEAD
from dataset.images.scan import open_images
from dataset.pairs import layouts
from dataset.pairs.columns import Pairs, split_of
from dataset.pairs.entry import parse
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Files
from dataset.scan.cache import Progress
from dataset.scan.manifest import Rejects, printable
from dataset.stores import choose_source, source_named
from dataset.stores.folder import Folder

LEFT_OUT = "small-{split}.txt"
"""File beside the columns that names the images that are too small."""


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
    how: dict[str, Any] = {
        "cache": cache,
        "rescan": rescan,
        "max_pixels": max_pixels,
        "progress": progress,
    }
    high, bytes_of, found = _large(data, split, scale, source, read_delay_s, how)
    images = np.arange(len(high), dtype=np.int64)
    low = small = low_bytes = None
    if found is not None:
        images = images[found.part(split, len(high))]
        if found.low is not None:
            low = _folder(found.low, **how)
            small = _partners(high, low, scale)[images]
            low_bytes = Folder(low, read_delay_s)
    too_small = np.minimum(high.height[images], high.width[images]) < least
    said = [high.left_out] if high.left_out else []
    if low is not None and low.left_out:
        said.append(f"small images: {low.left_out}")
    if too_small.any():
        said.append(_named(high, bytes_of, images[too_small], split, least))
    if too_small.all():
        raise UserError(
            f"--data {data}: {split} has no image of {least} x {least} pixels: the largest of {len(high)} "
            f"has a side of {np.minimum(high.height, high.width).max()}; a smaller --patch-size, or --shave"
        )
    columns = Pairs(
        high=high,
        images=images[~too_small],
        joint=_joint(high, bytes_of, scale),
        low=low,
        small=None if small is None else small[~too_small],
        patches=patches,
    )
    return split_of(columns, bytes_of, low_bytes), said


def _large(
    data: Path,
    split: str,
    scale: int,
    source: str,
    read_delay_s: float,
    how: dict[str, Any],
) -> tuple[Images, Source, layouts.Found | None]:
    """Return columns and bytes of the large images, and their folders; None where they lie in a store."""
    packed = source
    if source == "auto" and data.is_dir():
        chosen = choose_source(source, data, split)
        packed = "folder" if source_named(chosen).FILES else chosen
    if packed not in ("auto", "folder"):
        module = source_named(packed)
        if module.FILES:
            raise UserError(
                f"--source {packed} is for images with a label; leave it out for {layouts.HOLDS}"
            )
        if lacking := module.missing(data, split):
            raise UserError(
                f"--data {data}: has no {lacking}; it must be {module.HOLDS}"
            )
        opened = module.open(data, split, read_delay_s=read_delay_s, **how)
        return opened.columns, opened.source, None
    found = layouts.find(data, split, scale)
    columns = _folder(found.high, **how)
    if found.shared and len(columns) < 2:
        raise UserError(
            f"--data {data}: one image alone; one to train and one to validate are needed"
        )
    return columns, Folder(columns, read_delay_s), found


def _joint(high: Images, source: Any, scale: int) -> bool:
    """Return whether entries are pairs. Raises UserError where some alone are, or the scale is another."""
    pairs = high.format == FORMATS.index("pair")
    if not pairs.any():
        return False
    first = int(np.argmax(pairs))
    if source.files or not pairs.all():
        raise UserError(
            f"--data: {source.name(first)} is a pair of images, which is read from an LMDB, tar shards or "
            "Arrow files that hold pairs alone"
        )
    with source.opened(first) as (_, read_at):
        found = parse(read_at(0, HEAD)).scale
    if found != scale:
        raise UserError(
            f"--data: {source.name(first)} is a pair at a scale of {found}; --scale is {scale}"
        )
    return True


def _folder(folder: Path, **how: Any) -> Images:
    """Return the columns of all images below a folder, which have no class."""
    real = Path(os.path.realpath(folder))
    list_files = partial(_list, real)
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


def _list(
    folder: Path,
    made: Path,
    rejects: Rejects,
    visits: list[file_tree.Visit],
    say: Progress,
) -> dict[str, int]:
    """Write made/file_list.* of all files below the folder, by their paths below its parent."""
    labels = {folder.name: 0}
    file_tree.list_files(folder.parent, labels, made, visits, rejects, say)
    return labels


def _stems(columns: Images) -> list[bytes]:
    """Return the path of each image below its folder, without its ending."""
    names = (columns.entry(sample).partition(b"/")[2] for sample in range(len(columns)))
    return [os.path.splitext(name)[0] for name in names]


def _partners(high: Images, low: Images, scale: int) -> Array:
    """Return int64 [n], the small image of each large one. Raises UserError unless names and sizes fit."""
    suffix = b"x%d" % scale
    # DIV2K's mild, difficult and wild ones have a letter of their kind behind it
    of_large = re.compile(re.escape(suffix) + rb"[mdw]?\Z")
    place = {of_large.sub(b"", stem): sample for sample, stem in enumerate(_stems(low))}
    place |= {stem: sample for sample, stem in enumerate(_stems(low))}
    stems = _stems(high)
    small = np.array([place.get(stem, -1) for stem in stems], np.int64)
    folders = f"{_where(high)} and {_where(low)}"
    if (without := np.flatnonzero(small < 0)).size:
        raise UserError(
            f"--data: {len(without)} of {len(high)} images of {folders} have no small one of their name, "
            f"first {printable(high.entry(int(without[0])))}: it would be "
            f"{printable(stems[int(without[0])])} or {printable(stems[int(without[0])] + suffix)}"
            f"{'; ' * bool(low.left_out)}{low.left_out}"
        )
    if len(set(small.tolist())) < len(low):
        extra = sorted(set(range(len(low))) - set(small.tolist()))
        raise UserError(
            f"--data: {len(extra)} of {len(low)} small images of {folders} have no large one of their name, "
            f"first {printable(low.entry(extra[0]))}"
            f"{'; ' * bool(high.left_out)}{high.left_out}"
        )
    wrong = np.flatnonzero(
        (low.height[small] * scale != high.height)
        | (low.width[small] * scale != high.width)
    )
    if wrong.size:
        one = int(wrong[0])
        other = int(small[one])
        raise UserError(
            f"--data: {printable(high.entry(one))} has {high.width[one]} x {high.height[one]} pixels and "
            f"{printable(low.entry(other))} {low.width[other]} x {low.height[other]}, which is not one in "
            f"{scale} ({len(wrong)} such pairs); is --scale another one?"
        )
    return small


def _where(columns: Images) -> str:
    return printable(
        os.path.join(os.fsencode(columns.root), columns.entry(0).partition(b"/")[0])
    )


def _named(
    columns: Images,
    source: Source,
    images: Sequence[int] | Array,
    split: str,
    least: int,
) -> str:
    """Return the line that tells of images that are too small, and write their names beside the columns."""
    said = f"{len(images)} images have a side below {least} pixels and are left out"
    path = columns.folder / LEFT_OUT.format(split=split)
    lines = [
        f"{source.name(int(one))}\t{columns.width[one]} x {columns.height[one]} pixels\n"
        for one in images
    ]
    with suppress(OSError):
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text("".join(lines), encoding="utf-8")
        fresh.replace(path)
        return f"{said}, named in {path}"
    return f"{said}, first {source.name(int(images[0]))}"
