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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contracts import MAX_PIXELS, Array, UserError
from dataset.coco import annotation_file
from dataset.coco.annotation_file import Annotation, Category, Image, NotCoco
from dataset.coco.columns import Instances, mirrored
from dataset.coco.file_names import below
from dataset.coco.layouts import Split, find
from dataset.coco.matching import (
    MASKLESS,
    ImageTable,
    class_names_of,
    class_places,
    fitting,
    found_by_last_parts,
    headers_of,
    inside,
    keypoint_names,
    listed_images,
    matched,
    own_ids,
    places_of,
    validating,
)
from dataset.coco.warnings import doubts
from dataset.images.columns import HEADER, Header, told_of_exif
from dataset.scan import file_tree
from dataset.scan.cache import Progress, reading, remembered
from dataset.scan.manifest import Rejected, Rejects, create_column, printable, writing
from dataset.stores import source_named
from system.user_files import open_text

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
    file, folder, shared = find(root, split, keypoints=keypoints, images=images and module.FILES)
    entries = module.entries(real, cache)

    def fill(made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress) -> Sequence[str]:
        with reading(file):
            file_tree.remember(visits, os.fsencode(real), os.fsencode(file.relative_to(real)))
            told = _read(file, keypoints, made, rejects, say)
        categories = told.categories
        names = class_names_of(file, categories, keypoints, classes)
        listed = listed_images(file, folder, _prefixes(root, real, folder), told.images, rejects)
        mine = np.ones(len(listed.ids), bool)
        if shared:
            mine = validating(listed) == (split == "val")
        rows = np.fromfile(made / "file_list.annotations", ROW)
        warnings = own_ids(rows)
        rows["category"] = places_of(
            np.array([category.category_id for category in categories]), rows["category_id"]
        )
        image_of = places_of(listed.ids, rows["image_id"])
        if images:
            with reading(root):
                entries.remember(visits, [below(folder, ""), *(path for path in listed.paths if path)])
            records, faults = headers_of(entries, listed, mine, made, say, max_pixels)
            with reading(root):
                anew = found_by_last_parts(entries, folder, listed, mine & (records["size"] < 0), faults)
                entries.remember(visits, [listed.paths[place] for place in np.flatnonzero(anew).tolist()])
            if anew.any():
                again, others = headers_of(entries, listed, anew, made, say, max_pixels)
                records[anew] = again[anew]
                faults |= others
                place = int(anew.argmax())
                found = f"{listed.names[place]!r} as {printable(listed.paths[place])}"
                some = f"{np.count_nonzero(anew):,} of {len(listed.ids):,} file names"
                warnings.append(f"{some} are found by their last parts alone, first {found}")
            # + 1: those of no image are -1; they are counted first, and cut off
            annotations = np.bincount(image_of + 1, minlength=len(listed.ids) + 1)[1:]
            fits, turned = fitting(entries, file, listed, mine, exif, records, faults, annotations, rejects)
            records["size"][~fits] = -1
            if exif == "stored" and (line := told_of_exif(np.rec.array(records[fits]), turned)):
                warnings.append(line)
        else:
            records = np.zeros(len(listed.ids), HEADER)
            records["height"], records["width"] = listed.sizes.T
            records["size"][~mine] = -1
        good = records["size"] >= 0
        if not good.any():
            first = f"left out: {rejects.count}, first {rejects.first}" if rejects.first else "it has none"
            raise UserError(f"--data: no image of {file} can be used; {first}")
        if shared:
            warnings.append(
                f"{file.name} is of both splits: a tenth of its images validates, chosen by their names, "
                f"and {good.sum():,} are of this split; docs/data.md says how to give two"
            )
        known = image_of >= 0
        warnings += doubts(rows[known & mine[image_of]], listed.sizes[image_of[known & mine[image_of]]])
        points = np.array([len(category.keypoints) for category in categories])
        kept = matched(file, rows, image_of, good, told.known, listed, points, rejects)
        _write(listed, records, rows, image_of, kept, categories, made)
        (made / "warnings.txt").write_text("".join(f"{line}\n" for line in warnings), encoding="utf-8")
        (made / "text_ids.json").write_text(json.dumps(told.texts), encoding="utf-8")
        return names

    names_given = None if classes is None else list(classes)
    what = "coco" if images else "coco alone"
    key = [str(real), os.path.abspath(root), names_given, what, split, file.name, source, exif, max_pixels]
    found = remembered(Instances, root, key, fill, root=real, cache=cache, rescan=rescan, progress=progress)
    if classes is None or found.classes == tuple(classes):
        return found
    numbers = class_places(found.classes, classes)
    assert numbers is not None, "a scan keeps no categories that training does not have"
    return found.numbered(numbers, tuple(classes))


# --- read ---------------------------------------------------------------------------------------------------


class _Told(NamedTuple):
    """What an annotation file says beside its annotations, which are in made/file_list.*."""

    known: Array  # int64, ascending: the ids of all images
    images: list[Image]
    categories: list[Category]
    texts: dict[str, dict[int, str]]  # "images" and "categories" -> number -> the text that is the id


def _prefixes(root: Path, real: Path, folder: str) -> list[str]:
    """Return what names of image files may begin with: their folder's absolute path, or its name.

    The name counts only where the folder holds no folder of that name.
    """
    below_root = f"{folder}/" if folder else ""
    names = [f"{real}/{below_root}", f"{os.path.abspath(root)}/{below_root}"]
    return names if not folder or (real / folder / folder).is_dir() else [*names, below_root]


def _read(file: Path, keypoints: bool, made: Path, rejects: Rejects, say: Progress) -> _Told:
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
            entries = annotation_file.entries(text, ("images", "annotations", "categories"))
            for number, (key, entry) in enumerate(entries):
                named = f"{NOUN[key]} {annotation_file.id_of(entry)}"
                try:
                    if key == "annotations":
                        annotation = annotation_file.annotation(entry, keypoints=keypoints)
                        writer.add(annotation)
                        if fault := annotation.segmentation.fault:
                            rejects(where, f"{named}: {fault}; {MASKLESS}")
                    else:
                        if key == "images":
                            known.append(annotation_file.number_of(entry, "id"))
                            images.append(annotation_file.image(entry))
                        else:
                            categories.append(annotation_file.category(entry, keypoints=keypoints))
                        if isinstance(entry["id"], str):
                            texts[key][annotation_file.number_of(entry, "id")] = entry["id"]
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
        raise UserError(f"--data: {file} is no JSON: {error.reason}, it must be UTF-8") from None
    return _Told(np.unique(np.array(known, np.int64)), images, categories, texts)


class _Writer:
    """Appends annotations to the files file_list.*, a PIECE at a time."""

    def __init__(self, made: Path) -> None:
        self.made = made
        self.rows: list[tuple[Any, ...]] = []
        self.ragged: dict[str, Any] = {name: array(np.dtype(code).char) for name, code in RAGGED.items()}
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
                *(number or 0, number is not None, annotation.image_id, annotation.category_id, -1),
                *(tuple(annotation.box), annotation.area, annotation.crowd),
                *(len(lengths), sum(lengths), len(runs), size, len(annotation.keypoints)),
            )
        )
        self.annotations += 1
        if len(self.rows) == PIECE:
            self.flush()

    def flush(self) -> None:
        with writing():  # an error of writing is not one of the annotation file
            for name, values in {"annotations": np.array(self.rows, ROW), **self.ragged}.items():
                with open(self.made / f"file_list.{name}", "ab") as file:
                    file.write(values.tobytes())
        self.rows.clear()
        for numbers in self.ragged.values():
            del numbers[:]


# --- write --------------------------------------------------------------------------------------------------


def _write(
    images: ImageTable,
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
    names = keypoint_names(categories)
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
        "usable": inside(ordered["box"], images.sizes[good][image]) & ~ordered["crowd"],
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
