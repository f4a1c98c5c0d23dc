"""COCO's annotation file and folder of images -> columns, once; must not know pixels, orders or ranks.

read    -> file_list.annotations, .points, ...   one pass over the JSON, which is never in memory as a whole
match   -> what is kept                        headers of the image files; ids, categories, sizes fit
write   -> columns                             annotations move to their images, in pieces
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

import storage
from contracts import Array, UserError
from dataset import walk
from dataset.coco import annotation_file
from dataset.coco.annotation_file import Annotation, Category, Image, NotCoco, Split, find
from dataset.coco.columns import UNUSED, Instances, class_names, mirrored
from dataset.entries import Entries
from dataset.images.columns import HEADER, Header, shown_by, told_of_exif
from dataset.images.scan import read_headers
from dataset.manifest import Rejected, Rejects, create_column, writing
from dataset.scan import Progress, reading, remembered
from dataset.sources import source_named

MASKLESS = "its segmentation is left out, its box stays"
LARGEST_ID = 2**53 - 1  # of a category: what scores them holds ids as doubles
PIECE = 20_000  # annotations that are read, or written, at once: bounds the memory

ROW = np.dtype(
    [
        ("annotation_id", "i8"),
        ("image_id", "i8"),
        ("category_id", "i8"),
        ("category", "i4"),  # index into the sorted ids; -1 = unknown
        ("box", "f8", (4,)),  # x y width height
        ("area", "f8"),
        ("crowd", "?"),
        ("polygons", "i8"),  # how many
        ("points", "i8"),  # of all polygons
        ("runs", "i8"),
        ("size", "i8", (2,)),  # height and width that the runs fill
        ("keypoints", "i8"),  # numbers, three a keypoint
    ]
)
"""One annotation in file_list.annotations, which has them in the order of the JSON file."""
RAGGED = {"polygons": "i8", "points": "f8", "runs": "u4", "keypoints": "f8"}
"""Numbers in file_list.<name>: points a polygon; x y a point; run lengths; x y visibility a keypoint."""


class _ImageTable(NamedTuple):
    """The images that may be kept, as the annotation file has them, ordered by id."""

    ids: Array  # int64 [n]
    paths: list[bytes]  # below the root
    sizes: Array  # int64 [n, 2], height and width


def open_coco(
    root: Path,
    split: Split,
    *,
    keypoints: bool,
    images: bool = True,
    source: str = "folder",
    exif: str = "stored",
    classes: Sequence[str] | None = None,
    cache: Path,
    rescan: bool = False,
    progress: Progress | None = None,
) -> Instances:
    """Return the manifest of one split of COCO's layout: from `cache` if nothing has changed since, or anew.

    Reads root/annotations/instances_X.json, with `keypoints` person_keypoints_X.json, and the images in
    root/X/; X is train2017 or val2017, or the only name there that begins with `split`. `classes`: those that
    the categories must amount to (validation has those of training). Without `images` their files need not be
    there, and have the sizes of the annotation file. `source` has the images' bytes, by the name of their
    folder and file_name. `exif`: the annotations are of images as "stored", or as "shown". The rest is as in dataset.images.scan.open_images. Raises UserError.
    """
    real = Path(os.path.realpath(root))
    module = source_named(source)
    file, folder = find(root, split, keypoints=keypoints, images=images and module.FILES)
    entries = module.entries(real)

    def fill(made: Path, rejects: Rejects, visits: list[walk.Visit], say: Progress) -> Sequence[str]:
        warnings: list[str] = []
        with reading(file):
            walk.remember(visits, os.fsencode(real), os.fsencode(file.relative_to(real)))
            known, told, categories = _read(
                file, keypoints, _prefixes(root, real, folder), made, rejects, say
            )
        names = _classes(file, categories, keypoints, classes)
        listed = _listed(file, folder, told, rejects)
        rows = np.fromfile(made / "file_list.annotations", ROW)
        rows["category"] = _places(
            np.array([category.category_id for category in categories]), rows["category_id"]
        )
        image_of = _places(listed.ids, rows["image_id"])
        if images:
            below = os.fsencode(folder) + b"/"
            with reading(root):
                entries.remember(visits, [below, *(below + image.path for image in told)])
            # + 1: those of no image are -1; they are counted first, and cut off
            annotations = np.bincount(image_of + 1, minlength=len(listed.ids) + 1)[1:]
            records, turned = _headers(entries, listed, exif, annotations, made, rejects, say)
            if exif == "stored" and (
                line := told_of_exif(np.rec.array(records[records["size"] >= 0]), turned)
            ):
                warnings.append(line)
        else:
            records = np.zeros(len(listed.ids), HEADER)
            records["height"], records["width"] = listed.sizes.T
        good = records["size"] >= 0
        if not good.any():
            first = f"left out: {rejects.count}, first {rejects.first}" if rejects.first else "it has none"
            raise UserError(f"--data: no image of {file} can be used; {first}")
        kept = _match(file, rows, image_of, good, known, listed, len(categories[0].keypoints), rejects)
        _write(listed, records, rows, image_of, kept, categories, made)
        (made / "warnings.txt").write_text("".join(f"{line}\n" for line in warnings), encoding="utf-8")
        return names

    names_given = None if classes is None else list(classes)
    what = "coco" if images else "coco alone"
    key = [str(real), os.path.abspath(root), names_given, what, file.name, source, exif]
    return remembered(Instances, root, key, fill, root=real, cache=cache, rescan=rescan, progress=progress)


# --- read ---------------------------------------------------------------------------------------------------


def _prefixes(root: Path, real: Path, folder: str) -> list[str]:
    """Return what names of image files may begin with: their folder's absolute path, or its name.

    The name counts only where the folder holds no folder of that name.
    """
    names = [f"{real}/{folder}/", f"{os.path.abspath(root)}/{folder}/"]
    return names if (real / folder / folder).is_dir() else [*names, f"{folder}/"]


def _read(
    file: Path, keypoints: bool, prefixes: Sequence[str], made: Path, rejects: Rejects, say: Progress
) -> tuple[Array, list[Image], list[Category]]:
    """Return (ids of all images, whole images, categories); write made/file_list.*. Raises UserError."""
    known: list[int] = []
    images: list[Image] = []
    categories: list[Category] = []
    where = os.fsencode(file)
    try:
        # closed below: an error of writing is not one of this file
        # -sig: editors of Windows begin a file with a byte-order mark
        text = open(file, encoding="utf-8-sig")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"--data: {file} cannot be read: {error.strerror}") from None
    try:
        with text, _Writer(made) as writer:
            entries = _read_whole(file, text, ("images", "annotations", "categories"))
            for number, (key, entry) in enumerate(entries):
                try:
                    if key == "images":
                        known.append(annotation_file.image_id(entry))
                        images.append(annotation_file.image(entry, prefixes))
                    elif key == "annotations":
                        found = annotation_file.annotation(entry, keypoints=keypoints)
                        writer.add(found)
                        if found.fault:
                            rejects(where, f"annotation {found.annotation_id}: {found.fault}; {MASKLESS}")
                    else:
                        categories.append(annotation_file.category(entry, keypoints=keypoints))
                except Rejected as why:
                    if key == "categories":
                        raise UserError(
                            f"--data: {file}: category {annotation_file.id_of(entry)}: {why}"
                        ) from None
                    rejects(where, f"{key[:-1]} {annotation_file.id_of(entry)}: {why}")
                if number % 1000 == 0:
                    say(writer.annotations, 0, "reading annotations")
    except NotCoco as error:
        raise UserError(f"--data: {file} {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--data: {file} is no JSON: {error.reason}, it must be UTF-8") from None
    return np.unique(np.array(known, np.int64)), images, categories


def _read_whole(file: Path, text: TextIO, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield annotation_file.entries. Raises StorageFault where the file cannot be read to its end."""
    try:
        yield from annotation_file.entries(text, keys)
    except OSError as error:
        raise storage.end_scan(error, str(file)) from None


class _Writer:
    """Appends annotations to the files file_list.*."""

    def __init__(self, made: Path) -> None:
        self.opened = ExitStack()
        with writing():
            self.files = {
                name: self.opened.enter_context(open(made / f"file_list.{name}", "wb"))  # noqa: SIM115
                for name in ("annotations", *RAGGED)
            }
        self.rows: list[tuple[Any, ...]] = []
        self.polygons = array("q")
        self.points = array("d")
        self.runs = array("I")
        self.keypoints = array("d")
        self.annotations = 0

    def add(self, found: Annotation) -> None:
        lengths = [len(polygon) // 2 for polygon in found.polygons]
        self.polygons.extend(lengths)
        for polygon in found.polygons:
            self.points.extend(polygon)
        self.runs.extend(found.runs)
        self.keypoints.extend(found.keypoints)
        counts = (len(lengths), sum(lengths), len(found.runs), found.size, len(found.keypoints))
        ids = (found.annotation_id, found.image_id, found.category_id, -1)
        self.rows.append((*ids, tuple(found.box), found.area, found.crowd, *counts))
        self.annotations += 1
        if len(self.rows) == PIECE:
            self.flush()

    def flush(self) -> None:
        with writing():
            np.array(self.rows, ROW).tofile(self.files["annotations"])
            self.rows.clear()
            for name in RAGGED:
                values = getattr(self, name)
                values.tofile(self.files[name])
                del values[:]

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        with writing(), self.opened:
            self.flush()


# --- match --------------------------------------------------------------------------------------------------


def _classes(
    file: Path, categories: list[Category], keypoints: bool, classes: Sequence[str] | None
) -> tuple[str, ...]:
    """Sort the categories by their ids, and return the names of the class numbers. Raises UserError."""
    categories.sort()
    ids = [category.category_id for category in categories]
    if not ids:
        raise UserError(f"--data: {file} has no category")
    same, count = Counter(ids).most_common(1)[0]
    if count > 1:
        raise UserError(f"--data: {file}: {count} categories have the id {same}")
    if keypoints and not categories[0].keypoints:
        raise UserError(f"--data: {file}: category {ids[0]} names no keypoints")
    if len({category.keypoints for category in categories}) > 1:
        raise UserError(
            f"--data: {file}: its categories have different keypoints; all of them must have the same"
        )
    mirrored(categories[0].keypoints)  # raises
    if abs(large := max(ids, key=abs)) > LARGEST_ID:
        raise UserError(
            f"--data: {file}: the category id {large} is beyond 2^53, where the figures would be wrong; "
            "number categories from 1"
        )
    names = class_names(np.array(ids), [category.name for category in categories])
    if classes is not None and names != tuple(classes):
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


def _listed(file: Path, folder: str, images: list[Image], rejects: Rejects) -> _ImageTable:
    """Return the images that have an id of their own."""
    ids, counts = np.unique(np.array([image.image_id for image in images], np.int64), return_counts=True)
    for same, count in zip(ids[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        rejects(os.fsencode(file), f"image {same}: {count} images have this id; none of them is used")
    alone = set(ids[counts == 1].tolist())
    kept = sorted(image for image in images if image.image_id in alone)
    sizes = np.array([(image.height, image.width) for image in kept], np.int64).reshape(-1, 2)
    paths = [os.fsencode(folder) + b"/" + image.path for image in kept]
    return _ImageTable(np.array([image.image_id for image in kept], np.int64), paths, sizes)


def _headers(
    entries: Entries,
    images: _ImageTable,
    exif: str,
    annotations: Array,
    made: Path,
    rejects: Rejects,
    say: Progress,
) -> tuple[Array, int]:
    """Return HEADER [n], with size -1 where an image is left out, and how many are, but for EXIF's turn.

    Such an image has no file, or one of another size. `annotations` [n] are the numbers of annotations that
    are lost with an image.
    """
    walk.write_file_list(images.paths, made)
    faults: dict[bytes, str] = {}
    records = read_headers(entries, made, 0, faults.__setitem__, say)
    stored = np.column_stack([records["height"], records["width"]])
    swapped = (shown_by(np.rec.array(records)) >= 4)[:, None]
    shown = np.where(swapped, stored[:, ::-1], stored)
    used, other = (shown, stored) if exif == "shown" else (stored, shown)
    fits = (used == images.sizes).all(axis=1)
    turned = ~fits & (other == images.sizes).all(axis=1)
    for place in np.flatnonzero(~fits | (records["size"] < 0)).tolist():
        path = entries.shown(images.paths[place])
        height, width = images.sizes[place]
        why = f"has {used[place, 1]} x {used[place, 0]} pixels, its annotations are for {width} x {height}"
        if swapped[place]:
            remedy = f"; --exif {'stored' if exif == 'shown' else 'shown'} takes it" if turned[place] else ""
            why += f" (EXIF orientation {records['orientation'][place]}: the {exif} pixels count{remedy})"
        why = faults.get(path, why)
        lost = f"; with {annotations[place]} annotations" if annotations[place] else ""
        rejects(path, f"image {images.ids[place]}: {why}{lost}")
    records["size"][~fits] = -1
    return records, int(turned.sum())


def _match(
    file: Path,
    rows: Array,
    image_of: Array,
    good: Array,
    known: Array,
    images: _ImageTable,
    points: int,
    rejects: Rejects,
) -> Array:
    """Return bool [annotations of the file]: those that are kept, all of them of `good` images, bool [n]."""
    lost = (image_of >= 0) & ~good[image_of]
    sizes = np.where(image_of[:, None] >= 0, images.sizes[image_of], 0)
    x, y, w, h = rows["box"].T
    again = np.ones(len(rows), bool)
    again[np.unique(rows["annotation_id"], return_index=True)[1]] = False

    def of_image(row: Any) -> str:
        height, width = images.sizes[np.searchsorted(images.ids, row["image_id"])].tolist()
        return f"image {row['image_id']}, which has {width} x {height} pixels"

    faults: list[tuple[Array, Callable[[Any], str]]] = [
        (_places(known, rows["image_id"]) < 0, lambda row: f"unknown image {row['image_id']}"),
        (image_of < 0, lambda row: f"its image {row['image_id']} is left out"),
        (rows["category"] < 0, lambda row: f"unknown category {row['category_id']}"),
        (again, lambda row: "an annotation before it has the same id"),
        (
            (x >= sizes[:, 1]) | (y >= sizes[:, 0]) | (x + w < 0) | (y + h < 0),
            lambda row: f"box {row['box'].tolist()} lies outside {of_image(row)}",
        ),
        (
            rows["keypoints"] != 3 * points,
            lambda row: f"{row['keypoints']} numbers as keypoints, not {3 * points}",
        ),
    ]
    kept = ~lost
    for fault, why in faults:
        for place in np.flatnonzero(fault & kept).tolist():
            rejects(os.fsencode(file), f"annotation {rows[place]['annotation_id']}: {why(rows[place])}")
        kept &= ~fault
    unfit = kept & (rows["runs"] > 0) & (rows["size"] != sizes).any(axis=1)
    for row in rows[unfit]:
        size = f"{row['size'][1]} x {row['size'][0]} pixels"
        said = f"segmentation of {size} does not fit {of_image(row)}; {MASKLESS}"
        rejects(os.fsencode(file), f"annotation {row['annotation_id']}: {said}")
    rows["size"][unfit] = 0  # those runs are not written
    return kept


def _places(ordered: Array, wanted: Array) -> Array:
    """Return int64, where each wanted value is among the ordered ones, -1 for none."""
    if not len(ordered):
        return np.full(len(wanted), -1)
    places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[places] == wanted, places, -1)


# --- write --------------------------------------------------------------------------------------------------


def _write(
    images: _ImageTable,
    records: Array,
    rows: Array,
    image_of: Array,
    kept: Array,
    categories: list[Category],
    made: Path,
) -> None:
    """Write the columns of Instances."""
    good = records["size"] >= 0
    paths = [path for path, keep in zip(images.paths, good.tolist(), strict=True) if keep]
    image = (np.cumsum(good) - 1)[image_of]
    found = np.flatnonzero(kept)
    # stable: annotations of an image stay in the file's order; from here on all are in that of the columns
    found = found[np.argsort(image[found], kind="stable")]
    image = image[found]
    ordered = rows[found]
    names = categories[0].keypoints
    runs = np.where(ordered["size"].any(axis=1), ordered["runs"], 0)
    values = {
        "path_bytes": np.frombuffer(b"".join(paths), np.uint8),
        "path_offsets": np.cumsum([0, *map(len, paths)]),
        **{name: records[name][good] for name in Header._fields},
        "image_id": images.ids[good],
        "annotation_offsets": _offsets(np.bincount(image, minlength=len(paths))),
        "annotation_id": ordered["annotation_id"],
        "boxes": ordered["box"],
        "area": ordered["area"],
        "category": ordered["category"],
        "crowd": ordered["crowd"],
        "usable": _inside(ordered["box"], images.sizes[good][image]) & ~ordered["crowd"],
        "polygon_offsets": _offsets(ordered["polygons"]),
        "rle_offsets": _offsets(runs),
        "category_ids": np.array([category.category_id for category in categories]),
        "keypoint_mirror": mirrored(names),
        "keypoint_name": np.array([zlib.crc32(name.encode()) for name in names], np.uint32),
    }
    for name, value in values.items():
        create_column(made, name, Instances.COLUMNS[name], *value.shape)[...] = value
    lengths = create_column(
        made, "point_offsets", Instances.COLUMNS["point_offsets"], int(ordered["polygons"].sum()) + 1
    )
    _move(made, "polygons", rows["polygons"], found, lengths[1:])
    np.cumsum(lengths, out=lengths)
    points = create_column(made, "points", Instances.COLUMNS["points"], int(ordered["points"].sum()), 2)
    _move(made, "points", 2 * rows["points"], found, points)
    rle = create_column(made, "rle", Instances.COLUMNS["rle"], int(runs.sum()))
    _move(made, "runs", rows["runs"], found[runs > 0], rle)
    keypoints = create_column(made, "keypoints", Instances.COLUMNS["keypoints"], len(found), len(names), 3)
    _move(made, "keypoints", rows["keypoints"], found, keypoints)


def _move(made: Path, name: str, counts: Array, found: Array, into: Array) -> None:
    """Fill a column with file_list.<name>'s values of the annotations `found`; `counts` are those of all."""
    if not into.size:
        return
    values = np.memmap(made / f"file_list.{name}", RAGGED[name], "r")
    flat = into.reshape(-1)
    begins = _offsets(counts)
    filled = 0
    for first in range(0, len(found), PIECE):
        some = found[first : first + PIECE]
        length = counts[some]
        ends = np.cumsum(length)
        places = np.repeat(begins[some] - (ends - length), length) + np.arange(ends[-1])
        flat[filled : filled + len(places)] = values[places]
        filled += len(places)


def _offsets(counts: Array) -> Array:
    """Return int64 [n + 1], where each of them begins, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _inside(boxes: Array, sizes: Array) -> Array:
    """Return bool [m]: whether a box, x y width height, covers an area within its image, height and width."""
    x, y, w, h = boxes.T
    height, width = sizes.T
    return (np.minimum(x + w, width) > np.maximum(x, 0)) & (np.minimum(y + h, height) > np.maximum(y, 0))
