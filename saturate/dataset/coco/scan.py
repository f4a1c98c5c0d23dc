"""COCO's annotation file and folder of images -> columns, once; must not know pixels, orders or ranks.

read    -> rows, points, ...   the entries of the JSON, checked one by one
match   -> what is kept        headers of the image files; ids, categories, sizes fit
write   -> columns             annotations move to their images
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from saturate.contracts import MAX_PIXELS, Array, UserError, counted
from saturate.dataset.coco import annotation_file
from saturate.dataset.coco.annotation_file import (
    ROW,
    Annotation,
    Category,
    Image,
    NotCoco,
)
from saturate.dataset.coco.columns import Instances, class_names, mirrored
from saturate.dataset.coco.layouts import find
from saturate.dataset.coco.warnings import annotation_warnings
from saturate.dataset.images.columns import (
    HEADER,
    TRANSPOSE,
    Header,
    exif_note,
    shown_by,
)
from saturate.dataset.images.scan import read_headers
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.cache import Options, reading, remembered
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.manifest import (
    Rejected,
    Rejects,
    offsets_of,
    printable,
    write_column,
)
from saturate.system.user_files import open_bytes

MASKLESS = "its segmentation is left out, its box stays"
VALIDATES = 10  # one of so many images, where no file says which
NOUN = {"images": "image", "annotations": "annotation", "categories": "category"}


def open_coco(
    root: Path,
    split: str,
    *,
    keypoints: bool,
    exif: str = "stored",
    **how: Unpack[Options],
) -> Instances:
    """Return the manifest of one split: from the cache if nothing has changed since, or anew.

    dataset/coco/layouts.py says where annotations and images are; where no name gives them to a split, a
    tenth of the images is that of validation. `exif`: the annotations are of images as
    "stored", or as "shown". The rest is as in dataset.images.scan.open_images. Raises UserError.
    """
    real = Path(os.path.realpath(root))
    file, folder, shared = find(root, split, keypoints=keypoints)
    entries = Files(real)
    # what names of files may begin with, though they are below `folder`
    prefixes = [str(real / folder), os.path.join(os.path.abspath(root), folder)]
    if not (real / folder / folder).is_dir():
        prefixes.append(folder)

    max_pixels = how.get("max_pixels", MAX_PIXELS)

    def fill(scan: Scan) -> Sequence[str]:
        rejects = scan.rejects
        with reading(file):
            scan.remember(file)
            described, categories, annotations = _read(file, keypoints, scan)
        names = _class_names_of(file, categories, keypoints)
        listed = _Images(file, folder, prefixes, described, rejects)
        mine = np.ones(len(listed.ids), bool)
        if shared:
            mine = listed.validating() == (split == "val")
        rows = np.array(annotations.rows, ROW)
        warnings = []
        category_ids = np.array([category.category_id for category in categories])
        rows["category"] = _places_of(category_ids, rows["category_id"])
        image_of = _places_of(listed.ids, rows["image_id"])
        with reading(root):
            here = os.fsencode(os.path.join(folder, ""))
            scan.remember_folders([here, *listed.paths])
        listed.read_headers(entries, mine, scan, max_pixels)
        lost = np.bincount(image_of[image_of >= 0], minlength=len(mine))
        turned = listed.fit(entries, exif, mine, lost, rejects)
        if exif == "stored":
            used = np.rec.array(listed.headers[listed.good])
            warnings.append(exif_note(used, turned))
        warnings.append(listed.warning)
        good = listed.good
        if not good.any():
            raise _no_image(file, rejects)
        if shared:
            warnings.append(
                f"{file.name} is of both splits: a tenth of its images validates, chosen by their names, "
                f"and {good.sum():,} are of this split; docs/data.md says how to give two"
            )
        points = np.array([3 * len(category.keypoints) for category in categories])
        valid = _matched(rows, image_of, listed, points, rejects)
        warnings += annotation_warnings(rows[valid], listed.sizes[image_of[valid]])
        _write(listed, rows, annotations, image_of, valid, categories, scan.made)
        text = "".join(f"{line}\n" for line in warnings if line)
        (scan.made / "warnings.txt").write_text(text, encoding="utf-8")
        return names

    paths = [str(real), os.path.abspath(root), file.name]
    key = [*paths, "coco", split, folder, keypoints, exif, max_pixels]
    return remembered(Instances, root, key, fill, real, how)


def _no_image(file: Path, rejects: Rejects) -> UserError:
    why = "it has none"
    if rejects.first:
        why = f"left out: {rejects.count}, first {rejects.first}"
    return UserError(f"--data: no image of {file} can be used; {why}")


# --- read ---


class _Annotations:
    """The annotations of a file, in its order: a ROW of each, and the numbers of which each has some."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.polygons = array("q")  # points of each polygon
        self.points = array("d")  # x y of each
        self.runs = array("I")  # lengths
        self.keypoints = array("d")  # x y visibility of each

    def add(self, annotation: Annotation) -> None:
        self.rows.append(annotation.row)
        for polygon in annotation.polygons:
            self.polygons.append(len(polygon) // 2)
            self.points.extend(polygon)
        self.runs.extend(annotation.runs)
        self.keypoints.extend(annotation.keypoints)


def _read(
    file: Path, keypoints: bool, scan: Scan
) -> tuple[list[Image], list[Category], _Annotations]:
    """Return images, categories in the order of their ids, and annotations. Raises UserError."""
    images: list[Image] = []
    categories: list[Category] = []
    annotations = _Annotations()

    def take(key: str, entry: object) -> None:
        if key == "images":
            images.append(annotation_file.image(entry))
        elif key == "categories":
            categories.append(annotation_file.category(entry, keypoints=keypoints))
        else:
            annotation = annotation_file.annotation(entry, keypoints=keypoints)
            annotations.add(annotation)
            if annotation.fault:
                raise Rejected(f"{annotation.fault}; {MASKLESS}")

    scan.progress(0, 0, "reading annotations")
    try:
        content = open_bytes(file)
    except OSError as error:
        raise UserError(f"--data: {file} cannot be read: {error.strerror}") from None
    try:
        with content:
            for number, (key, entry) in enumerate(
                annotation_file.entries(content, NOUN)
            ):
                try:
                    take(key, entry)
                except Rejected as why:
                    line = f"{NOUN[key]} {annotation_file.id_of(entry)}: {why}"
                    if key == "categories":
                        raise UserError(f"--data: {file}: {line}") from None
                    scan.rejects(file, line)
                scan.progress(number, 0, "reading annotations")
    except NotCoco as error:
        raise UserError(f"--data: {file} {error}") from None
    return images, sorted(categories), annotations


# --- match ---


def _class_names_of(
    file: Path,
    categories: list[Category],
    keypoints: bool,
) -> tuple[str, ...]:
    """Return the names of the class numbers of categories, which are in the order of their ids.

    Raises UserError.
    """
    ids = [category.category_id for category in categories]
    pointed = {category.keypoints for category in categories} - {()}
    why = ""
    if not ids:
        why = "has no category"
    elif len({*ids}) < len(ids):
        why = f"has several categories of the id {Counter(ids).most_common(1)[0][0]}"
    elif keypoints and len(pointed) != 1:
        why = (
            f"has categories with {'no' if not pointed else 'different'} keypoints; all that have some must "
            "have the same"
        )
    if why:
        raise UserError(f"--data: {file} {why}")
    mirrored(_keypoint_names(categories))  # raises
    return class_names(np.array(ids), [category.name for category in categories])


def _keypoint_names(categories: Sequence[Category]) -> tuple[str, ...]:
    """Return the names of the keypoints; a category may have none beside one that has some."""
    return next((one.keypoints for one in categories if one.keypoints), ())


class _Images:
    """The n images of an annotation file that have an id of their own, in its order, and their files."""

    def __init__(
        self,
        file: Path,
        folder: str,
        prefixes: list[str],
        images: list[Image],
        rejects: Rejects,
    ) -> None:
        count = Counter(image.image_id for image in images)
        for image_id in sorted(one for one in count if count[one] > 1):
            rejects(
                file,
                f"image {image_id}: {count[image_id]} images have this id; none of them is used",
            )
        alone = sorted(image for image in images if count[image.image_id] == 1)
        self.file = file
        self.ids = np.array([image.image_id for image in alone], np.int64)
        self.names = [image.name for image in alone]  # as they are written
        sizes = [(image.height, image.width) for image in alone]
        self.sizes = np.array(sizes, np.int64).reshape(-1, 2)
        below = [_below(name, prefixes) for name in self.names]
        self.paths = [os.fsencode(os.path.join(folder, name)) for name in below]
        self.headers = np.zeros(len(alone), HEADER)
        self.headers["size"] = -1
        # a file is of one image alone, unless several name it alike
        names = {*zip(self.paths, self.names, strict=True)}
        users = Counter(path for path, _ in names)
        # index -> why an image has no header
        self.faults = {
            i: f"file_name {self.names[i]!r:.60}: another image's may be the same file"
            for i, path in enumerate(self.paths)
            if users[path] > 1
        }
        cut = [i for i, name in enumerate(self.names) if name != below[i]]
        self.warning = ""
        if cut:
            self.warning = (
                f"{len(cut):,} of {len(below):,} file names are taken without the folder that they begin with, "
                f"first {self.names[cut[0]]!r} as {printable(self.paths[cut[0]])}"
            )

    @property
    def good(self) -> Array:
        """Return bool [n]: the images that are used."""
        return self.headers["size"] >= 0

    def validating(self) -> Array:
        """Return bool [n]: a tenth, by a digest of the names, that validates where one file is of both splits."""
        names = [name.encode("utf-8", "surrogatepass") for name in self.names]
        order = np.argsort([*map(zlib.crc32, names)], kind="stable")
        chosen = np.zeros(len(names), bool)
        chosen[order[: max(len(order) // VALIDATES, 1)]] = True
        return chosen

    def read_headers(
        self,
        entries: Files,
        wanted: Array,
        scan: Scan,
        max_pixels: int,
    ) -> None:
        """Fill the headers, or the faults, of the `wanted` images, bool [n].

        What claims more than `max_pixels` has none.
        """
        which = [i for i in np.flatnonzero(wanted).tolist() if i not in self.faults]
        paths = [self.paths[i] for i in which]
        file_tree.write_file_list(scan.made, [(paths, [0] * len(paths))])
        faults: dict[bytes, str] = {}
        self.headers[which] = read_headers(
            entries, scan, faults.__setitem__, max_pixels
        )
        shown = {i: entries.shown(self.paths[i]) for i in which}
        self.faults |= {i: faults[shown[i]] for i in which if shown[i] in faults}

    def fit(
        self,
        entries: Files,
        exif: str,
        wanted: Array,
        annotations: Array,
        rejects: Rejects,
    ) -> int:
        """Leave out images whose file has another size than the annotation file says.

        Return how many of them would fit after EXIF's turn. `annotations` [n] are the numbers of annotations
        that are lost with an image.
        """
        headers = self.headers
        stored = np.column_stack([headers["height"], headers["width"]])
        swapped = shown_by(np.rec.array(headers)) >= TRANSPOSE
        shown = np.where(swapped[:, None], stored[:, ::-1], stored)
        used, other = (shown, stored) if exif == "shown" else (stored, shown)
        fits = self.good & (used == self.sizes).all(axis=1)
        turned = self.good & ~fits & (other == self.sizes).all(axis=1)
        for i in np.flatnonzero(wanted & ~fits).tolist():
            (height, width), (due_height, due_width) = used[i], self.sizes[i]
            why = f"has {width} x {height} pixels, its annotations are for {due_width} x {due_height}"
            if turned[i]:
                why += f"; --exif {'stored' if exif == 'shown' else 'shown'} takes it"
            why = self.faults.get(i, why)
            if annotations[i]:
                why += f"; with {counted(annotations[i], 'annotation')}"
            rejects(entries.shown(self.paths[i]), f"image {self.ids[i]}: {why}")
        headers["size"][~fits] = -1
        return int(turned.sum())


def _below(name: str, prefixes: list[str]) -> str:
    """Return the path below the folder of images that a name is meant as.

    It may begin with one of the `prefixes`, or be a path of another machine, whose last part counts.
    """
    plain = name.replace("\\", "/")
    for prefix in prefixes:
        if plain.startswith(f"{prefix}/"):
            return plain[len(prefix) + 1 :]
    elsewhere = plain.startswith("/") or plain[1:3] == ":/" or ".." in plain.split("/")
    return plain.rpartition("/")[2] if elsewhere else plain


def _matched(
    rows: Array, image_of: Array, images: _Images, points: Array, rejects: Rejects
) -> Array:
    """Return bool [annotations of the file]: those that are kept, all of them of images that are used.

    `points` int64 [C]: how many numbers the keypoints of each category have.
    """
    sizes = np.where(image_of[:, None] >= 0, images.sizes[image_of], 0)
    x, y, w, h = rows["box"].T
    beside = (x >= sizes[:, 1]) | (y >= sizes[:, 0]) | (x + w < 0) | (y + h < 0)
    due = points[rows["category"]]
    # a category without keypoints may have as many numbers as the others
    few = (rows["keypoints"] != due) & (
        (due > 0) | (rows["keypoints"] != points.max(initial=0))
    )

    def tell(which: Array, why: str) -> None:
        for row in rows[which]:
            box = f"bbox {row['box'].tolist()} of image {row['image_id']}"
            line = f"annotation {row['annotation_id']}, {box}: {why}"
            rejects(images.file, line)

    # annotations of images that are left out are counted in their lines
    valid = (image_of < 0) | images.good[image_of]
    for fault, why in (
        (image_of < 0, "its image is unknown or left out"),
        (rows["category"] < 0, "its category is unknown"),
        (beside, "its box lies outside its image"),
        (few, "it has not as many keypoints as its category"),
    ):
        tell(valid & fault, why)
        valid &= ~fault
    flat = ~_inside(rows["box"], sizes) & ~rows["crowd"]
    tell(valid & flat, "its box has no area within its image; no detector trains on it")
    unfit = valid & (rows["runs"] > 0) & (rows["size"] != sizes).any(axis=1)
    tell(unfit, f"its segmentation is not of the size of its image; {MASKLESS}")
    rows["size"][unfit] = 0  # those runs are not written
    return valid


def _inside(boxes: Array, sizes: Array) -> Array:
    """Return bool [m]: whether a box, x y width height, covers an area within its image, height and width."""
    x, y, w, h = boxes.T
    height, width = sizes.T
    across = np.minimum(x + w, width) > np.maximum(x, 0)
    return across & (np.minimum(y + h, height) > np.maximum(y, 0))


def _places_of(ordered: Array, wanted: Array) -> Array:
    """Return int64, where each wanted value is among the ordered ones, -1 for none."""
    if not len(ordered):
        return np.full(len(wanted), -1)
    places = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[places] == wanted, places, -1)


# --- write ---


def _write(
    images: _Images,
    rows: Array,
    annotations: _Annotations,
    image_of: Array,
    valid: Array,
    categories: list[Category],
    made: Path,
) -> None:
    """Write the columns of Instances."""
    good = images.good
    paths = [images.paths[i] for i in np.flatnonzero(good).tolist()]
    image = (np.cumsum(good) - 1)[image_of]
    order = np.flatnonzero(valid)
    # stable: annotations of an image stay in the file's order; from here on all are in that of the columns
    order = order[np.argsort(image[order], kind="stable")]
    image = image[order]
    ordered = rows[order]
    names = _keypoint_names(categories)
    runs = np.where(ordered["size"].any(axis=1), ordered["runs"], 0)
    inside = _inside(ordered["box"], images.sizes[good][image])
    pointed = ordered["keypoints"] > 0  # those of the other categories stay 0
    keypoints = np.zeros((len(order), len(names), 3))
    marks = _moved(annotations.keypoints, rows["keypoints"], order[pointed])
    keypoints[pointed] = marks.reshape(np.count_nonzero(pointed), len(names), 3)
    lengths = _moved(annotations.polygons, rows["polygons"], order)
    points = _moved(annotations.points, 2 * rows["points"], order)
    values = {
        "path_bytes": np.frombuffer(b"".join(paths), np.uint8),
        "path_offsets": offsets_of([*map(len, paths)]),
        **{name: images.headers[name][good] for name in Header._fields},
        "image_id": images.ids[good],
        "annotation_offsets": offsets_of(np.bincount(image, minlength=len(paths))),
        "annotation_id": ordered["annotation_id"],
        "boxes": ordered["box"],
        "area": ordered["area"],
        "category": ordered["category"],
        "crowd": ordered["crowd"],
        "usable": inside & ~ordered["crowd"],
        "polygon_offsets": offsets_of(ordered["polygons"]),
        "point_offsets": offsets_of(lengths),
        "points": points.reshape(-1, 2),
        "rle_offsets": offsets_of(runs),
        "rle": _moved(annotations.runs, rows["runs"], order[runs > 0]),
        "keypoints": keypoints,
        "category_ids": np.array([category.category_id for category in categories]),
        "keypoint_mirror": mirrored(names),
        "keypoint_name": np.array(
            [zlib.crc32(name.encode()) for name in names], np.uint32
        ),
    }
    for name, value in values.items():
        write_column(made, name, Instances.COLUMNS[name], value)


def _moved(numbers: array[Any], counts: Array, order: Array) -> Array:
    """Return the numbers of the annotations `order`; `counts` says how many each of the file has."""
    length = counts[order]
    ends = np.cumsum(length)
    firsts = offsets_of(counts)[order] - (ends - length)
    places = np.repeat(firsts, length) + np.arange(length.sum())
    return np.array(numbers)[places]
