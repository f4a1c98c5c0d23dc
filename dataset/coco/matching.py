"""Annotations against their images and categories: what is kept, and why the rest is left out.

Must not know how the columns are written.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contracts import Array, UserError
from dataset.coco.annotation_file import Category, Image
from dataset.coco.columns import UNUSED, class_names, mirrored
from dataset.coco.file_names import as_written, below, is_there
from dataset.coco.file_names import found as file_name_found
from dataset.images.columns import HEADER, TRANSPOSE, shown_by
from dataset.images.scan import read_headers
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Entries
from dataset.scan.cache import Progress
from dataset.scan.manifest import Rejects, printable

MASKLESS = "its segmentation is left out, its box stays"
VALIDATES = 10  # one of so many images, where no file says which
LARGEST_ID = 2**53 - 1  # of a category: what scores them holds ids as doubles


class ImageTable(NamedTuple):
    """The images that may be kept, as the annotation file has them, ordered by id."""

    ids: Array  # int64 [n]
    names: list[str]  # of their files, as they are written
    paths: list[bytes]  # below the root, of the storage; b"" = the name is no path
    sizes: Array  # int64 [n, 2], height and width


def class_names_of(
    file: Path, categories: list[Category], keypoints: bool, classes: Sequence[str] | None
) -> tuple[str, ...]:
    """Sort the categories by their ids, and return the names of the class numbers. Raises UserError.

    With `classes`, those of training, the names must be among them, in their order.
    """
    categories.sort()
    ids = [category.category_id for category in categories]
    if not ids:
        raise UserError(f"--data: {file} has no category")
    same, count = Counter(ids).most_common(1)[0]
    if count > 1:
        raise UserError(f"--data: {file}: {count} categories have the id {same}")
    named = keypoint_names(categories)
    if keypoints and not named:
        raise UserError(f"--data: {file}: category {ids[0]} names no keypoints, nor does any other")
    if len({category.keypoints for category in categories} - {()}) > 1:
        raise UserError(
            f"--data: {file}: its categories have different keypoints; all that have some must have the same"
        )
    mirrored(named)  # raises
    if abs(large := max(ids, key=abs)) > LARGEST_ID:
        raise UserError(
            f"--data: {file}: the category id {large} is beyond 2^53, where the figures would be wrong; "
            "number categories from 1"
        )
    names = class_names(np.array(ids), [category.name for category in categories])
    if classes is not None and class_places(names, classes) is None:
        train, val = (
            {f"{i} {name}" for i, name in enumerate(some) if i and name != UNUSED}
            for some in (classes, names)
        )
        parts = [
            f"{what}: {', '.join(sorted(some)[:5])}{', ...' * (len(some) > 5)}"
            for what, some in (("missing", train - val), ("not in training", val - train))
            if some
        ]
        raise UserError(
            f"--data: the categories of {file} are not those of training; {'; '.join(parts)} (class number "
            "and name)"
        )
    return names


def keypoint_names(categories: Sequence[Category]) -> tuple[str, ...]:
    """Return the names of the keypoints; a category may have none beside one that has some."""
    return next((category.keypoints for category in categories if category.keypoints), ())


def class_places(names: Sequence[str], classes: Sequence[str]) -> Array | None:
    """Return int64 [C], the number among `classes` of each category of `names`, which may be fewer.

    None where a name is not there, or their order is another: their ids then mean something else.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    places = [numbers.get(name, -1) for name in names[1:] if name != UNUSED]
    return np.array(places, np.int64) if all(a < b for a, b in pairwise([0, *places])) else None


def listed_images(
    file: Path, folder: str, prefixes: list[str], images: list[Image], rejects: Rejects
) -> ImageTable:
    """Return the images that have an id of their own."""
    ids, counts = np.unique(np.array([image.image_id for image in images], np.int64), return_counts=True)
    for same, count in zip(ids[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        rejects(os.fsencode(file), f"image {same}: {count} images have this id; none of them is used")
    alone = set(ids[counts == 1].tolist())
    kept = sorted(image for image in images if image.image_id in alone)
    sizes = np.array([(image.height, image.width) for image in kept], np.int64).reshape(-1, 2)
    names = [image.name for image in kept]
    paths = [below(folder, own) if (own := as_written(name, prefixes)) else b"" for name in names]
    return ImageTable(np.array([image.image_id for image in kept], np.int64), names, paths, sizes)


def validating(images: ImageTable) -> Array:
    """Return bool [n]: the images that validate where one file is of both splits, by a digest of names."""
    digests = [zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in images.names]
    order = np.argsort(digests, kind="stable")
    chosen = np.zeros(len(images.ids), bool)
    chosen[order[: max(len(order) // VALIDATES, 1)]] = True
    return chosen


def headers_of(
    entries: Entries, images: ImageTable, mine: Array, made: Path, say: Progress, max_pixels: int
) -> tuple[Array, dict[int, str]]:
    """Return HEADER [n], with size -1 where there is none, and why, by the place of the image.

    `mine`: bool [n], the images of this split. What claims more than `max_pixels` is left out.
    """
    places = [place for place in np.flatnonzero(mine).tolist() if images.paths[place]]
    file_tree.write_file_list([images.paths[place] for place in places], made)
    faults: dict[bytes, str] = {}
    records = np.zeros(len(images.ids), HEADER)
    records["size"] = -1
    records[places] = read_headers(entries, made, 0, faults.__setitem__, say, max_pixels=max_pixels)
    shown = {place: entries.shown(images.paths[place]) for place in places}
    return records, {place: faults[path] for place, path in shown.items() if path in faults}


def found_by_last_parts(
    entries: Entries, folder: str, images: ImageTable, lost: Array, faults: dict[int, str]
) -> Array:
    """Return bool [n], which of the `lost` images are files by their last parts; `images` gets their paths.

    A file that is another image's already stays that one's; `faults` then says so.
    """
    taken = Counter(images.paths)
    found = {}
    for place in np.flatnonzero(lost).tolist():
        path = images.paths[place]
        if not path or not is_there(entries, path):
            other = file_name_found(entries, folder, images.names[place])
            if other is not None:
                found[place] = other
                taken[other] += 1
    several = {place: path for place, path in found.items() if taken[path] > 1}
    for place, path in several.items():
        name = images.names[place]
        faults[place] = f"file_name {name!r:.60} may be {printable(path)}, and so may another image's"
    alone = np.zeros(len(images.ids), bool)
    for place in found.keys() - several.keys():
        images.paths[place] = found[place]
        faults.pop(place, None)
        alone[place] = True
    return alone


def fitting(
    entries: Entries,
    file: Path,
    images: ImageTable,
    mine: Array,
    exif: str,
    records: Array,
    faults: dict[int, str],
    annotations: Array,
    rejects: Rejects,
) -> tuple[Array, int]:
    """Return bool [n], the images whose file has the size of the annotation file, and how many would have it
    after EXIF's turn.

    `annotations` [n] are the numbers of annotations that are lost with an image.
    """
    stored = np.column_stack([records["height"], records["width"]])
    swapped = (shown_by(np.rec.array(records)) >= TRANSPOSE)[:, None]
    shown = np.where(swapped, stored[:, ::-1], stored)
    used, other = (shown, stored) if exif == "shown" else (stored, shown)
    there = records["size"] >= 0
    fits = there & (used == images.sizes).all(axis=1)
    turned = there & ~fits & (other == images.sizes).all(axis=1)
    for place in np.flatnonzero(mine & ~fits).tolist():
        height, width = images.sizes[place]
        path = images.paths[place]
        why = f"has {used[place, 1]} x {used[place, 0]} pixels, its annotations are for {width} x {height}"
        if swapped[place]:
            remedy = f"; --exif {'stored' if exif == 'shown' else 'shown'} takes it" if turned[place] else ""
            why += f" (EXIF orientation {records['orientation'][place]}: the {exif} pixels count{remedy})"
        if not path:
            why = f"file_name {images.names[place]!r:.60} is no path below the folder of images"
        why = faults.get(place, why)
        lost = f"; with {annotations[place]} annotations" if annotations[place] else ""
        rejects(entries.shown(path) if path else os.fsencode(file), f"image {images.ids[place]}: {why}{lost}")
    return fits, int(turned.sum())


def own_ids(rows: Array) -> list[str]:
    """Number the annotations anew that have no id or another one's, and return a warning."""
    ids = rows["annotation_id"]
    anew = np.ones(len(ids), bool)
    named = np.flatnonzero(rows["has_id"])
    anew[named[np.unique(ids[named], return_index=True)[1]]] = False
    count = int(np.count_nonzero(anew))
    if not count:
        return []
    ids[anew] = np.setdiff1d(np.arange(1, len(ids) + count + 1), ids[~anew])[:count]
    return [f"{count:,} of {len(ids):,} annotations have no id of their own, and are numbered anew"]


def matched(
    file: Path,
    rows: Array,
    image_of: Array,
    good: Array,
    known: Array,
    images: ImageTable,
    points: Array,
    rejects: Rejects,
) -> Array:
    """Return bool [annotations of the file]: those that are kept, all of them of `good` images, bool [n].

    `points` int64 [C]: how many keypoints each category has.
    """
    lost = (image_of >= 0) & ~good[image_of]
    sizes = np.where(image_of[:, None] >= 0, images.sizes[image_of], 0)
    x, y, w, h = rows["box"].T
    due = 3 * points[rows["category"]]

    def of_image(row: Any) -> str:
        height, width = images.sizes[np.searchsorted(images.ids, row["image_id"])].tolist()
        return f"image {row['image_id']}, which has {width} x {height} pixels"

    faults: list[tuple[Array, Callable[[Any], str]]] = [
        (places_of(known, rows["image_id"]) < 0, lambda row: f"unknown image {row['image_id']}"),
        (image_of < 0, lambda row: f"its image {row['image_id']} is left out"),
        (rows["category"] < 0, lambda row: f"unknown category {row['category_id']}"),
        (
            (x >= sizes[:, 1]) | (y >= sizes[:, 0]) | (x + w < 0) | (y + h < 0),
            lambda row: f"box {row['box'].tolist()} lies outside {of_image(row)}",
        ),
        (
            (rows["keypoints"] != due) & ((due > 0) | (rows["keypoints"] != 3 * points.max(initial=0))),
            lambda row: f"{row['keypoints']} numbers as keypoints, not {3 * points[row['category']]}",
        ),
    ]
    kept = ~lost
    for fault, why in faults:
        for place in np.flatnonzero(fault & kept).tolist():
            rejects(os.fsencode(file), f"annotation {rows[place]['annotation_id']}: {why(rows[place])}")
        kept &= ~fault
    for row in rows[kept & ~inside(rows["box"], sizes) & ~rows["crowd"]]:
        said = f"box {row['box'].tolist()} has no area within {of_image(row)}; no detector trains on it"
        rejects(os.fsencode(file), f"annotation {row['annotation_id']}: {said}")
    unfit = kept & (rows["runs"] > 0) & (rows["size"] != sizes).any(axis=1)
    for row in rows[unfit]:
        size = f"{row['size'][1]} x {row['size'][0]} pixels"
        said = f"segmentation of {size} does not fit {of_image(row)}; {MASKLESS}"
        rejects(os.fsencode(file), f"annotation {row['annotation_id']}: {said}")
    rows["size"][unfit] = 0  # those runs are not written
    return kept


def inside(boxes: Array, sizes: Array) -> Array:
    """Return bool [m]: whether a box, x y width height, covers an area within its image, height and width."""
    x, y, w, h = boxes.T
    height, width = sizes.T
    return (np.minimum(x + w, width) > np.maximum(x, 0)) & (np.minimum(y + h, height) > np.maximum(y, 0))


def places_of(ordered: Array, wanted: Array) -> Array:
    """Return int64, where each wanted value is among the ordered ones, -1 for none."""
    if not len(ordered):
        return np.full(len(wanted), -1)
    places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[places] == wanted, places, -1)
