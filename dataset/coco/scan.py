"""COCO's annotation file and folder of images -> columns, once; must not know pixels, orders or ranks.

read    -> file_list.annotations, .points, ...   one pass over the JSON, which is never in memory as a whole
match   -> what is kept                        headers of the image files; ids, categories, sizes fit
write   -> columns                             annotations move to their images, in pieces
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contracts import MAX_PIXELS, Array, UserError
from dataset.coco import annotation_file
from dataset.coco.annotation_file import Annotation, Category, Image, NotCoco
from dataset.coco.columns import UNUSED, Instances, class_names, mirrored
from dataset.coco.file_names import below, is_there, path_below
from dataset.coco.file_names import find as find_image
from dataset.coco.layouts import Split, find
from dataset.coco.warnings import annotation_warnings
from dataset.images.columns import HEADER, TRANSPOSE, Header, shown_by, told_of_exif
from dataset.images.scan import read_headers
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Entries
from dataset.scan.cache import Progress, reading, remembered
from dataset.scan.manifest import Rejected, Rejects, create_column, printable, writing
from dataset.stores import source_named
from system.user_files import open_text

MASKLESS = "its segmentation is left out, its box stays"
VALIDATES = 10  # one of so many images, where no file says which
LARGEST_ID = 2**53 - 1  # of a category: what scores them holds ids as doubles
PIECE = 20_000  # annotations that are read, or written, at once: bounds the memory

ROW = np.dtype(
    [
        ("annotation_id", "i8"),
        ("has_id", "?"),
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
NOUN = {"images": "image", "annotations": "annotation", "categories": "category"}


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
    max_pixels: int = MAX_PIXELS,
    progress: Progress | None = None,
) -> Instances:
    """Return the manifest of one split: from `cache` if nothing has changed since, or anew.

    dataset/coco/layouts.py says where annotations and images are; where no name gives them to a split, a
    tenth of the images is that of validation. `classes`: those of training, among which the categories of
    validation must be. Without `images` their files need not be there, and have the sizes of the annotation
    file. `source` has the images' bytes, by the name of their folder and file_name. `exif`: the annotations
    are of images as "stored", or as "shown". The rest is as in dataset.images.scan.open_images. Raises
    UserError.
    """
    real = Path(os.path.realpath(root))
    module = source_named(source)
    file, folder, shared = find(
        root, split, keypoints=keypoints, images=images and module.FILES
    )
    entries = module.entries(real, folder)

    def fill(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> Sequence[str]:
        with reading(file):
            file_tree.remember(
                visits, os.fsencode(real), os.fsencode(file.relative_to(real))
            )
            contents = _read(file, keypoints, made, rejects, say)
        categories = contents.categories
        names = _class_names_of(file, categories, keypoints, classes)
        listed = _listed_images(
            file, folder, _prefixes(root, real, folder), contents.images, rejects
        )
        mine = np.ones(len(listed.ids), bool)
        if shared:
            mine = _validating(listed) == (split == "val")
        rows = np.fromfile(made / "file_list.annotations", ROW)
        warnings = _number_anew(rows)
        rows["category"] = _places_of(
            np.array([category.category_id for category in categories]),
            rows["category_id"],
        )
        image_of = _places_of(listed.ids, rows["image_id"])
        records = np.zeros(len(listed.ids), HEADER)
        records["size"] = -1
        if images:
            faults: dict[int, str] = {}
            with reading(root):
                entries.remember(
                    visits,
                    [below(folder, ""), *(path for path in listed.paths if path)],
                )
            _read_headers(entries, listed, mine, made, say, max_pixels, records, faults)
            with reading(root):
                anew = _found_by_last_parts(
                    entries, folder, listed, mine & (records["size"] < 0), faults
                )
                entries.remember(
                    visits,
                    [listed.paths[place] for place in np.flatnonzero(anew).tolist()],
                )
            if anew.any():
                _read_headers(
                    entries, listed, anew, made, say, max_pixels, records, faults
                )
                place = int(anew.argmax())
                warnings.append(
                    f"{np.count_nonzero(anew):,} of {len(listed.ids):,} file names are found by their last "
                    f"parts alone, first {listed.names[place]!r} as {printable(listed.paths[place])}"
                )
            # + 1: those of no image are -1; they are counted first, and cut off
            annotations = np.bincount(image_of + 1, minlength=len(listed.ids) + 1)[1:]
            fits, turned = _fitting(
                entries, file, listed, mine, exif, records, faults, annotations, rejects
            )
            records["size"][~fits] = -1
            if exif == "stored" and (
                line := told_of_exif(np.rec.array(records[fits]), turned)
            ):
                warnings.append(line)
        else:
            records["height"], records["width"] = listed.sizes.T
            records["size"][mine] = 0
        good = records["size"] >= 0
        if not good.any():
            first = (
                f"left out: {rejects.count}, first {rejects.first}"
                if rejects.first
                else "it has none"
            )
            raise UserError(f"--data: no image of {file} can be used; {first}")
        if shared:
            warnings.append(
                f"{file.name} is of both splits: a tenth of its images validates, chosen by their names, "
                f"and {good.sum():,} are of this split; docs/data.md says how to give two"
            )
        known = (image_of >= 0) & mine[image_of]
        warnings += annotation_warnings(rows[known], listed.sizes[image_of[known]])
        points = np.array([len(category.keypoints) for category in categories])
        kept = _matched(
            file, rows, image_of, good, contents.known, listed, points, rejects
        )
        _write(listed, records, rows, image_of, kept, categories, made)
        (made / "warnings.txt").write_text(
            "".join(f"{line}\n" for line in warnings), encoding="utf-8"
        )
        (made / "text_ids.json").write_text(
            json.dumps(contents.texts), encoding="utf-8"
        )
        return names

    names_given = None if classes is None else list(classes)
    what = "coco" if images else "coco alone"
    key = [
        str(real),
        os.path.abspath(root),
        names_given,
        what,
        split,
        file.name,
        source,
        exif,
        max_pixels,
    ]
    found = remembered(
        Instances,
        root,
        key,
        fill,
        root=real,
        cache=cache,
        rescan=rescan,
        progress=progress,
    )
    if classes is None or found.classes == tuple(classes):
        return found
    numbers = _class_places(found.classes, classes)
    assert numbers is not None, "a scan keeps no categories that training does not have"
    return found.numbered(numbers, tuple(classes))


# --- read ---------------------------------------------------------------------------------------------------


class _Contents(NamedTuple):
    """What an annotation file says beside its annotations, which are in made/file_list.*."""

    known: Array  # int64, ascending: the ids of all images
    images: list[Image]
    categories: list[Category]
    texts: dict[
        str, dict[int, str]
    ]  # "images" and "categories" -> number -> the text that is the id


def _prefixes(root: Path, real: Path, folder: str) -> list[str]:
    """Return what names of image files may begin with: their folder's absolute path, or its name.

    The name counts only where the folder holds no folder of that name.
    """
    below_root = f"{folder}/" if folder else ""
    names = [f"{real}/{below_root}", f"{os.path.abspath(root)}/{below_root}"]
    return (
        names
        if not folder or (real / folder / folder).is_dir()
        else [*names, below_root]
    )


def _read(
    file: Path, keypoints: bool, made: Path, rejects: Rejects, say: Progress
) -> _Contents:
    """Read the file, and write made/file_list.*. Raises UserError."""
    known: list[int] = []
    images: list[Image] = []
    categories: list[Category] = []
    texts: dict[str, dict[int, str]] = {"images": {}, "categories": {}}
    where = os.fsencode(file)
    writer = _Writer(made)
    try:
        # -sig: editors of Windows begin a file with a byte-order mark
        text = open_text(file, "utf-8-sig")
    except OSError as error:
        raise UserError(f"--data: {file} cannot be read: {error.strerror}") from None
    try:
        with text:
            entries = annotation_file.entries(
                text, ("images", "annotations", "categories")
            )
            for number, (key, entry) in enumerate(entries):
                named = f"{NOUN[key]} {annotation_file.id_of(entry)}"
                try:
                    if key == "annotations":
                        annotation = annotation_file.annotation(
                            entry, keypoints=keypoints
                        )
                        writer.add(annotation)
                        if fault := annotation.segmentation.fault:
                            rejects(where, f"{named}: {fault}; {MASKLESS}")
                    else:
                        if key == "images":
                            known.append(annotation_file.number_of(entry, "id"))
                            images.append(annotation_file.image(entry))
                        else:
                            categories.append(
                                annotation_file.category(entry, keypoints=keypoints)
                            )
                        if isinstance(entry["id"], str):
                            texts[key][annotation_file.number_of(entry, "id")] = entry[
                                "id"
                            ]
                except Rejected as why:
                    if key == "categories":
                        raise UserError(f"--data: {file}: {named}: {why}") from None
                    rejects(where, f"{named}: {why}")
                if number % 1000 == 0:
                    say(writer.annotations, 0, "reading annotations")
        writer.flush()
    except NotCoco as error:
        raise UserError(f"--data: {file} {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"--data: {file} is no JSON: {error.reason}, it must be UTF-8"
        ) from None
    return _Contents(np.unique(np.array(known, np.int64)), images, categories, texts)


class _Writer:
    """Appends annotations to the files file_list.*, a PIECE at a time."""

    def __init__(self, made: Path) -> None:
        self.made = made
        self.rows: list[tuple[Any, ...]] = []
        self.ragged: dict[str, Any] = {
            name: array(np.dtype(code).char) for name, code in RAGGED.items()
        }
        self.annotations = 0

    def add(self, annotation: Annotation) -> None:
        polygons, runs, size, _ = annotation.segmentation
        lengths = [len(polygon) // 2 for polygon in polygons]
        self.ragged["polygons"].extend(lengths)
        for polygon in polygons:
            self.ragged["points"].extend(polygon)
        self.ragged["runs"].extend(runs)
        self.ragged["keypoints"].extend(annotation.keypoints)
        number = annotation.annotation_id
        self.rows.append(
            (
                *(
                    number or 0,
                    number is not None,
                    annotation.image_id,
                    annotation.category_id,
                    -1,
                ),
                *(tuple(annotation.box), annotation.area, annotation.crowd),
                *(
                    len(lengths),
                    sum(lengths),
                    len(runs),
                    size,
                    len(annotation.keypoints),
                ),
            )
        )
        self.annotations += 1
        if len(self.rows) == PIECE:
            self.flush()

    def flush(self) -> None:
        with writing():  # an error of writing is not one of the annotation file
            for name, values in {
                "annotations": np.array(self.rows, ROW),
                **self.ragged,
            }.items():
                with open(self.made / f"file_list.{name}", "ab") as file:
                    file.write(values.tobytes())
        self.rows.clear()
        for numbers in self.ragged.values():
            del numbers[:]


# --- match --------------------------------------------------------------------------------------------------


class _ImageTable(NamedTuple):
    """The images that may be kept, as the annotation file has them, ordered by id."""

    ids: Array  # int64 [n]
    names: list[str]  # of their files, as they are written
    paths: list[bytes]  # below the root, of the storage; b"" = the name is no path
    sizes: Array  # int64 [n, 2], height and width


def _class_names_of(
    file: Path,
    categories: list[Category],
    keypoints: bool,
    classes: Sequence[str] | None,
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
    named = _keypoint_names(categories)
    if keypoints and not named:
        raise UserError(
            f"--data: {file}: category {ids[0]} names no keypoints, nor does any other"
        )
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
    if classes is not None and _class_places(names, classes) is None:
        train, val = (
            {f"{i} {name}" for i, name in enumerate(some) if i and name != UNUSED}
            for some in (classes, names)
        )
        parts = [
            f"{what}: {', '.join(sorted(some)[:5])}{', ...' * (len(some) > 5)}"
            for what, some in (
                ("missing", train - val),
                ("not in training", val - train),
            )
            if some
        ]
        raise UserError(
            f"--data: the categories of {file} are not those of training; {'; '.join(parts)} (class number "
            "and name)"
        )
    return names


def _keypoint_names(categories: Sequence[Category]) -> tuple[str, ...]:
    """Return the names of the keypoints; a category may have none beside one that has some."""
    return next(
        (category.keypoints for category in categories if category.keypoints), ()
    )


def _class_places(names: Sequence[str], classes: Sequence[str]) -> Array | None:
    """Return int64 [C], the number among `classes` of each category of `names`, which may be fewer.

    None where a name is not there, or their order is another: their ids then mean something else.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    places = [numbers.get(name, -1) for name in names[1:] if name != UNUSED]
    return (
        np.array(places, np.int64)
        if all(a < b for a, b in pairwise([0, *places]))
        else None
    )


def _listed_images(
    file: Path, folder: str, prefixes: list[str], images: list[Image], rejects: Rejects
) -> _ImageTable:
    """Return the images that have an id of their own."""
    ids, counts = np.unique(
        np.array([image.image_id for image in images], np.int64), return_counts=True
    )
    for same, count in zip(
        ids[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True
    ):
        rejects(
            os.fsencode(file),
            f"image {same}: {count} images have this id; none of them is used",
        )
    alone = set(ids[counts == 1].tolist())
    kept = sorted(image for image in images if image.image_id in alone)
    sizes = np.array([(image.height, image.width) for image in kept], np.int64).reshape(
        -1, 2
    )
    names = [image.name for image in kept]
    paths = [
        below(folder, own) if (own := path_below(name, prefixes)) else b""
        for name in names
    ]
    return _ImageTable(
        np.array([image.image_id for image in kept], np.int64), names, paths, sizes
    )


def _validating(images: _ImageTable) -> Array:
    """Return bool [n]: the images that validate where one file is of both splits, by a digest of names."""
    digests = [
        zlib.crc32(name.encode("utf-8", "surrogatepass")) for name in images.names
    ]
    order = np.argsort(digests, kind="stable")
    chosen = np.zeros(len(images.ids), bool)
    chosen[order[: max(len(order) // VALIDATES, 1)]] = True
    return chosen


def _read_headers(
    entries: Entries,
    images: _ImageTable,
    wanted: Array,
    made: Path,
    say: Progress,
    max_pixels: int,
    records: Array,
    faults: dict[int, str],
) -> None:
    """Fill `records`, HEADER [n], of the `wanted` images, bool [n]; `faults` gets why one has none, by index.

    What claims more than `max_pixels` has none.
    """
    places = [place for place in np.flatnonzero(wanted).tolist() if images.paths[place]]
    file_tree.write_file_list([images.paths[place] for place in places], made)
    reasons: dict[bytes, str] = {}
    records[places] = read_headers(
        entries, made, 0, reasons.__setitem__, say, max_pixels=max_pixels
    )
    for place in places:
        if why := reasons.get(entries.shown(images.paths[place])):
            faults[place] = why


def _found_by_last_parts(
    entries: Entries,
    folder: str,
    images: _ImageTable,
    lost: Array,
    faults: dict[int, str],
) -> Array:
    """Return bool [n], which of the `lost` images are files by their last parts; `images` gets their paths.

    A file that is another image's already stays that one's; `faults` then says so.
    """
    taken = Counter(images.paths)
    matches = {}
    for place in np.flatnonzero(lost).tolist():
        path = images.paths[place]
        if path and is_there(entries, path):
            continue
        if (match := find_image(entries, folder, images.names[place])) is not None:
            matches[place] = match
            taken[match] += 1
    alone = np.zeros(len(images.ids), bool)
    for place, path in matches.items():
        if taken[path] > 1:
            name = f"{images.names[place]!r:.60}"
            faults[place] = (
                f"file_name {name} may be {printable(path)}, and so may another image's"
            )
        else:
            images.paths[place] = path
            faults.pop(place, None)
            alone[place] = True
    return alone


def _fitting(
    entries: Entries,
    file: Path,
    images: _ImageTable,
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
            remedy = (
                f"; --exif {'stored' if exif == 'shown' else 'shown'} takes it"
                if turned[place]
                else ""
            )
            why += f" (EXIF orientation {records['orientation'][place]}: the {exif} pixels count{remedy})"
        if not path:
            why = f"file_name {images.names[place]!r:.60} is no path below the folder of images"
        why = faults.get(place, why)
        lost = f"; with {annotations[place]} annotations" if annotations[place] else ""
        rejects(
            entries.shown(path) if path else os.fsencode(file),
            f"image {images.ids[place]}: {why}{lost}",
        )
    return fits, int(turned.sum())


def _number_anew(rows: Array) -> list[str]:
    """Number the annotations anew that have no id or another one's, and return a warning."""
    ids = rows["annotation_id"]
    anew = np.ones(len(ids), bool)
    named = np.flatnonzero(rows["has_id"])
    anew[named[np.unique(ids[named], return_index=True)[1]]] = False
    count = int(np.count_nonzero(anew))
    if not count:
        return []
    ids[anew] = np.setdiff1d(np.arange(1, len(ids) + count + 1), ids[~anew])[:count]
    return [
        f"{count:,} of {len(ids):,} annotations have no id of their own, and are numbered anew"
    ]


def _matched(
    file: Path,
    rows: Array,
    image_of: Array,
    good: Array,
    known: Array,
    images: _ImageTable,
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
        height, width = images.sizes[
            np.searchsorted(images.ids, row["image_id"])
        ].tolist()
        return f"image {row['image_id']}, which has {width} x {height} pixels"

    faults: list[tuple[Array, Callable[[Any], str]]] = [
        (
            _places_of(known, rows["image_id"]) < 0,
            lambda row: f"unknown image {row['image_id']}",
        ),
        (image_of < 0, lambda row: f"its image {row['image_id']} is left out"),
        (rows["category"] < 0, lambda row: f"unknown category {row['category_id']}"),
        (
            (x >= sizes[:, 1]) | (y >= sizes[:, 0]) | (x + w < 0) | (y + h < 0),
            lambda row: f"box {row['box'].tolist()} lies outside {of_image(row)}",
        ),
        (
            (rows["keypoints"] != due)
            & ((due > 0) | (rows["keypoints"] != 3 * points.max(initial=0))),
            lambda row: (
                f"{row['keypoints']} numbers as keypoints, not {3 * points[row['category']]}"
            ),
        ),
    ]
    kept = ~lost
    for fault, why in faults:
        for place in np.flatnonzero(fault & kept).tolist():
            rejects(
                os.fsencode(file),
                f"annotation {rows[place]['annotation_id']}: {why(rows[place])}",
            )
        kept &= ~fault
    for row in rows[kept & ~_inside(rows["box"], sizes) & ~rows["crowd"]]:
        said = f"box {row['box'].tolist()} has no area within {of_image(row)}; no detector trains on it"
        rejects(os.fsencode(file), f"annotation {row['annotation_id']}: {said}")
    unfit = kept & (rows["runs"] > 0) & (rows["size"] != sizes).any(axis=1)
    for row in rows[unfit]:
        size = f"{row['size'][1]} x {row['size'][0]} pixels"
        said = f"segmentation of {size} does not fit {of_image(row)}; {MASKLESS}"
        rejects(os.fsencode(file), f"annotation {row['annotation_id']}: {said}")
    rows["size"][unfit] = 0  # those runs are not written
    return kept


def _inside(boxes: Array, sizes: Array) -> Array:
    """Return bool [m]: whether a box, x y width height, covers an area within its image, height and width."""
    x, y, w, h = boxes.T
    height, width = sizes.T
    return (np.minimum(x + w, width) > np.maximum(x, 0)) & (
        np.minimum(y + h, height) > np.maximum(y, 0)
    )


def _places_of(ordered: Array, wanted: Array) -> Array:
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
    paths = [
        path for path, keep in zip(images.paths, good.tolist(), strict=True) if keep
    ]
    image = (np.cumsum(good) - 1)[image_of]
    found = np.flatnonzero(kept)
    # stable: annotations of an image stay in the file's order; from here on all are in that of the columns
    found = found[np.argsort(image[found], kind="stable")]
    image = image[found]
    ordered = rows[found]
    names = _keypoint_names(categories)
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
        "usable": _inside(ordered["box"], images.sizes[good][image])
        & ~ordered["crowd"],
        "polygon_offsets": _offsets(ordered["polygons"]),
        "rle_offsets": _offsets(runs),
        "category_ids": np.array([category.category_id for category in categories]),
        "keypoint_mirror": mirrored(names),
        "keypoint_name": np.array(
            [zlib.crc32(name.encode()) for name in names], np.uint32
        ),
    }
    for name, value in values.items():
        create_column(made, name, Instances.COLUMNS[name], *value.shape)[...] = value
    lengths = create_column(
        made,
        "point_offsets",
        Instances.COLUMNS["point_offsets"],
        int(ordered["polygons"].sum()) + 1,
    )
    _move(made, "polygons", rows["polygons"], found, lengths[1:])
    np.cumsum(lengths, out=lengths)
    points = create_column(
        made, "points", Instances.COLUMNS["points"], int(ordered["points"].sum()), 2
    )
    _move(made, "points", 2 * rows["points"], found, points)
    rle = create_column(made, "rle", Instances.COLUMNS["rle"], int(runs.sum()))
    _move(made, "runs", rows["runs"], found[runs > 0], rle)
    keypoints = create_column(
        made, "keypoints", Instances.COLUMNS["keypoints"], len(found), len(names), 3
    )
    pointed = rows["keypoints"][found] > 0  # those of the other categories stay 0
    points_of = np.zeros((int(pointed.sum()), len(names), 3))
    _move(made, "keypoints", rows["keypoints"], found[pointed], points_of)
    keypoints[pointed] = points_of


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
