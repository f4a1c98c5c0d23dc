"""`python -m scripts.to_coco FROM TO`: COCO's annotations of a set in YOLO's or Pascal VOC's layout.

    YOLO          data.yaml, images/train/a.jpg, labels/train/a.txt: boxes, polygons or keypoints as shares
    Pascal VOC    Annotations/a.xml, JPEGImages/a.jpg, ImageSets/Main/train.txt and val.txt

TO gets annotations/instances_<split>.json and <split>, a link to FROM, which is never written to and has to
stay where it is. Where FROM names no splits there is one file of both, of which a tenth validates.
"""

from __future__ import annotations

import json
import math
import mimetypes
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import ExifTags, Image

from contracts import one_line
from scripts import Parser, exit_code
from scripts.link_set import filled
from settings.preset import parsed
from system.user_files import open_bytes, read_text

Size = tuple[int, int]
"""Height and width, pixels."""
Annotation = dict[str, Any]
"""An annotation in COCO's form, without its ids."""


@dataclass(kw_only=True)
class Notes:
    """What a conversion leaves out, and how many images EXIF turns."""

    left_out: list[str] = field(default_factory=list)
    turned: int = 0

    def summary(self) -> str:
        """Return a sentence, "" where nothing is left out."""
        return (
            f"{len(self.left_out):,} left out, first {self.left_out[0]}"
            if self.left_out
            else ""
        )


@dataclass(frozen=True, kw_only=True)
class Labels:
    """A set as its layout describes it."""

    categories: list[dict[str, Any]]  # in COCO's form
    splits: Mapping[
        str, Sequence[Path]
    ]  # train and val, or default -> images, below the root
    # (image, notes) -> the size that labels are of, and annotations. Raises ValueError
    read: Callable[[Path, Notes], tuple[Size, list[Annotation]]]
    keypoints: bool = False


def sizes(path: Path, notes: Notes) -> tuple[Size, Size]:
    """Return the sizes of an image as stored and as shown. Raises ValueError where its header has none."""
    try:
        with open_bytes(path) as file, Image.open(file) as image:
            stored = image.height, image.width
            # Pillow turns TIFF itself, and so does training
            turn = (
                1
                if image.format == "TIFF"
                else image.getexif().get(ExifTags.Base.Orientation, 1)
            )
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None
    notes.turned += turn in range(2, 9)
    return stored, stored[::-1] if turn in range(5, 9) else stored


def images_below(folder: Path, root: Path) -> list[Path]:
    """Return the images below a folder, as paths below `root`, in the order of their names."""
    return [
        path.relative_to(root) for path in sorted(folder.rglob("*")) if _is_image(path)
    ]


def _is_image(path: Path) -> bool:
    return (mimetypes.guess_type(path.name)[0] or "").startswith("image/")


def _number(text: str | None) -> float:
    """Parse a finite number. Raises ValueError."""
    value = float(text or "")
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of pixels")
    return value


# --- Pascal VOC ---------------------------------------------------------------------------------------------

VOC_IMAGES = ("JPEGImages", "images", "Annotations", ".")
"""Where images are looked for; the first wins."""


def read_voc(root: Path) -> Labels:
    """Read the lists and the names of the classes. Raises ValueError."""
    files = {path.stem: path for path in sorted(root.glob("Annotations/*.xml"))}
    images: dict[str, Path] = {}
    for folder in reversed(VOC_IMAGES):
        images |= {
            path.stem: path.relative_to(root)
            for path in (root / folder).glob("*")
            if _is_image(path)
        }
    lists = {
        split: root / "ImageSets" / "Main" / f"{split}.txt"
        for split in ("train", "val")
    }
    stems = {"default": [*files]}
    if all(path.exists() for path in lists.values()):
        stems = {
            split: [
                line.split()[0] for line in read_text(path).splitlines() if line.split()
            ]
            for split, path in lists.items()
        }
    names = {
        each.findtext("name", "").strip()
        for path in files.values()
        for each in _parsed(path).iter("object")
    }
    numbers = {name: number for number, name in enumerate(sorted(names), start=1)}
    return Labels(
        categories=[{"id": number, "name": name} for name, number in numbers.items()],
        splits={
            split: [
                images.get(stem, Path("JPEGImages", f"{stem}.jpg")) for stem in listed
            ]
            for split, listed in stems.items()
        },
        read=partial(_read_voc, root, files, numbers),
    )


def _parsed(path: Path) -> ElementTree.Element:
    """Return the root element of an XML file. Raises ValueError."""
    try:
        with open_bytes(path) as file:
            return ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is no XML: {error}") from None


def _read_voc(
    root: Path,
    files: Mapping[str, Path],
    numbers: Mapping[str, int],
    image: Path,
    notes: Notes,
) -> tuple[Size, list[Annotation]]:
    """Read an image's boxes, which count pixels from 1 and include the last one."""
    stored, shown = sizes(root / image, notes)
    if image.stem not in files:
        raise ValueError(f"has no Annotations/{image.stem}.xml")
    document = _parsed(files[image.stem])
    size = tuple(
        int(_number(document.findtext(f"size/{side}", "0")))
        for side in ("height", "width")
    )
    if size not in (stored, shown, (0, 0)):
        raise ValueError(
            f"has {stored[1]} x {stored[0]} pixels, its XML is of {size[1]} x {size[0]}"
        )
    boxes = []
    for each in document.iter("object"):
        try:
            x0, y0, x1, y1 = (
                _number(each.findtext(f"bndbox/{edge}"))
                for edge in ("xmin", "ymin", "xmax", "ymax")
            )
        except ValueError:
            why = "an object has no bndbox with xmin, ymin, xmax and ymax"
            notes.left_out.append(f"Annotations/{image.stem}.xml: {why}")
            continue
        width, height = x1 - x0 + 1, y1 - y0 + 1
        boxes.append(
            {
                "category_id": numbers[each.findtext("name", "").strip()],
                "bbox": [x0 - 1, y0 - 1, width, height],
                "area": width * height,
                # as VOC's own scoring: not trained on, and no mistake to miss
                "iscrowd": int(each.findtext("difficult", "0").strip() == "1"),
            }
        )
    return (shown if size == shown else stored), boxes


# --- YOLO ---------------------------------------------------------------------------------------------------

YOLO_SPLITS = {"train": ("train",), "val": ("val", "valid", "validation")}
CLASS_LISTS = ("classes.txt", "labels/classes.txt", "obj.names")
"""Lists of class names, where there is no data.yaml."""


def read_yolo(root: Path) -> Labels:
    """Read data.yaml, or the folders where there is none. Raises ValueError."""
    file = next(
        iter(sorted(root.glob("data.y*ml")) or sorted(root.glob("*.y*ml"))), None
    )
    settings: Any = {}
    if file:
        try:
            settings = parsed(read_text(file))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{file}: does not parse as YAML: {reason}") from None
        if not isinstance(settings, dict):
            raise ValueError(f"{file}: is no mapping with names, train and val")
    names = _class_names(root, settings)
    points = settings.get("kpt_shape")
    shape = (
        {}
        if points is None
        else {"keypoints": _point_names(points, settings.get("flip_idx"))}
    )
    return Labels(
        categories=[
            {"id": number, "name": name, **shape}
            for number, name in enumerate(names, start=1)
        ],
        splits=_yolo_splits(root, settings),
        read=partial(_read_yolo, root, len(names), points),
        keypoints=points is not None,
    )


def _class_names(root: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the classes 0, 1, ..."""
    names = settings.get("names")
    if isinstance(names, dict):
        return [
            str(names.get(i, f"class {i}"))
            for i in range(max(map(int, names), default=-1) + 1)
        ]
    if isinstance(names, list):
        return [str(name) for name in names]
    listed = next((root / name for name in CLASS_LISTS if (root / name).exists()), None)
    if listed is None:
        raise ValueError(
            f"{root} has no data.yaml with names, and no {' or '.join(CLASS_LISTS)}"
        )
    return [line.strip() for line in read_text(listed).splitlines() if line.strip()]


def _point_names(shape: Any, flips: list[int] | None) -> list[str]:
    """Name keypoints so that left and right say what a mirror exchanges; `shape`: how many, and 2 or 3."""
    if not (isinstance(shape, list) and len(shape) == 2 and shape[1] in (2, 3)):
        raise ValueError(f"kpt_shape is {shape}, and has to be how many and 2 or 3")
    flips = flips or [*range(shape[0])]
    if sorted(flips) != [*range(shape[0])]:
        raise ValueError(
            f"flip_idx is {flips}, and has to be each of 0 to {shape[0] - 1} once"
        )
    return [
        f"point {i}"
        if i == other
        else f"{'left' if i < other else 'right'} point {min(i, other)}"
        for i, other in enumerate(flips)
    ]


def _yolo_splits(root: Path, settings: Mapping[str, Any]) -> dict[str, list[Path]]:
    """Return the images of each split, or all as default. Raises ValueError."""
    splits = {}
    for split, names in YOLO_SPLITS.items():
        given = next((settings[name] for name in names if settings.get(name)), None)
        folders: list[Any] = given if isinstance(given, list) else [given]
        if given is None:
            usual = (
                root / place.format(name)
                for name in names
                for place in ("images/{}", "{}/images")
            )
            folders = [folder for folder in usual if folder.is_dir()][:1]
        if images := [
            path
            for folder in folders
            for path in _listed(root, settings, Path(str(folder)))
        ]:
            splits[split] = images
    if len(splits) == 1:
        raise ValueError(
            f"{root} has images of {''.join(splits)} alone; it needs train and val, or neither"
        )
    return splits or {
        "default": images_below(
            root / "images" if (root / "images").is_dir() else root, root
        )
    }


def _listed(root: Path, settings: Mapping[str, Any], named: Path) -> list[Path]:
    """Return the images of a folder or a list that data.yaml names, below `root`. Raises ValueError."""
    # exports write train: ../train/images, of a data.yaml beside train/
    inside = Path(*[part for part in named.parts if part not in ("..", ".")])
    base, real = root / str(settings.get("path") or ""), root.resolve()
    tried = [
        (folder / name).resolve() for name in (named, inside) for folder in (base, root)
    ]
    place = next(
        (path for path in tried if path.exists() and path.is_relative_to(real)), None
    )
    if place is None:
        raise ValueError(f"{named}, which data.yaml names, is not in {root}")
    if place.is_dir():
        return images_below(place, real)
    lines = [
        Path(line.strip()) for line in read_text(place).splitlines() if line.strip()
    ]
    return [
        line.relative_to(real) if line.is_relative_to(real) else line for line in lines
    ]


def _read_yolo(
    root: Path, classes: int, points: Sequence[int] | None, image: Path, notes: Notes
) -> tuple[Size, list[Annotation]]:
    """Read an image's lines, which are of what is shown; an image without a file of labels has none."""
    _, shown = sizes(root / image, notes)
    parts = list(image.parts)
    if "images" in parts:  # whose last one becomes labels
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    file = Path(*parts).with_suffix(".txt")
    annotations = []
    lines = read_text(root / file).splitlines() if (root / file).exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                annotations.append(_yolo_object(line.split(), shown, classes, points))
        except ValueError as error:
            notes.left_out.append(f"{file}: line {number}: {error}")
    return shown, annotations


def _yolo_object(
    words: list[str], shown: Size, classes: int, points: Sequence[int] | None
) -> Annotation:
    """Return the annotation of a line: a class, then shares of the sides. Raises ValueError."""
    label, *values = map(_number, words)
    if label not in range(classes):
        raise ValueError(f"class {words[0]} is none of 0 to {classes - 1}")
    annotation: Annotation = {"category_id": int(label) + 1}
    sides = np.array(shown[::-1])
    if points is None and len(values) >= 6 and len(values) % 2 == 0:
        corners = np.reshape(values, (-1, 2)) * sides
        first, (x, y) = corners.min(0), corners.T
        return annotation | {
            "bbox": [*first.tolist(), *(corners.max(0) - first).tolist()],
            "area": abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2,
            "segmentation": [corners.ravel().tolist()],
        }
    if len(values) != 4 + (points[0] * points[1] if points else 0):
        raise ValueError(
            f"{len(values)} numbers behind the class; a box has 4, a polygon 6 or more"
        )
    middle, size = np.reshape(values[:4], (2, 2)) * sides
    annotation |= {
        "bbox": [*(middle - size / 2).tolist(), *size.tolist()],
        "area": float(size.prod()),
    }
    if points:
        marks = np.reshape(values[4:], points)
        # without a visibility 0 0 is one that is not there
        visible = (
            marks[:, 2:] if points[1] == 3 else 2.0 * marks.any(axis=1, keepdims=True)
        )
        marks = np.where(visible != 0, np.hstack([marks[:, :2] * sides, visible]), 0)
        annotation["keypoints"] = marks.ravel().tolist()
    return annotation


# --- the program --------------------------------------------------------------------------------------------


def converted(
    labels: Labels, images: Sequence[Path], notes: Notes
) -> dict[str, list[dict[str, Any]]]:
    """Return the document of one split."""
    document: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": labels.categories,
    }
    for path in images:
        number = len(document["images"]) + 1
        try:
            (height, width), annotations = labels.read(path, notes)
        except ValueError as error:
            notes.left_out.append(f"{path}: {error}")
            continue
        entry = {
            "id": number,
            "file_name": path.as_posix(),
            "height": height,
            "width": width,
        }
        document["images"].append(entry)
        for annotation in annotations:
            ids = {
                "id": len(document["annotations"]) + 1,
                "image_id": number,
                "iscrowd": 0,
            }
            document["annotations"].append(ids | annotation)
    return document


def convert(root: Path, target: Path, notes: Notes) -> dict[str, tuple[int, int]]:
    """Write TO; return split -> (images, annotations). Raises ValueError for what the set holds."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder")
    labels = read_voc(root) if any(root.glob("Annotations/*.xml")) else read_yolo(root)
    counts = {}
    with filled(target, root) as fresh:
        (fresh / "annotations").mkdir(parents=True)
        for split, images in labels.splits.items():
            document = converted(labels, images, notes)
            if not document["images"]:
                why = notes.summary() or "there is none"
                raise ValueError(f"{root}: no image of {split} can be used; {why}")
            for kind in (
                ("instances", "person_keypoints")
                if labels.keypoints
                else ("instances",)
            ):
                text = json.dumps(document)
                (fresh / "annotations" / f"{kind}_{split}.json").write_text(
                    text, encoding="utf-8"
                )
            folder = "images" if split == "default" else split
            (fresh / folder).symlink_to(root.resolve(), target_is_directory=True)
            counts[split] = len(document["images"]), len(document["annotations"])
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("to_coco", __doc__)
    parser.add_argument(
        "source", metavar="FROM", type=Path, help="folder of the set; never written to"
    )
    parser.add_argument(
        "target", metavar="TO", type=Path, help="new folder, for --data"
    )
    options = parser.parse_args(arguments)
    return exit_code(
        "to_coco", lambda: _run(options.source, options.target), ValueError
    )


def _run(source: Path, target: Path) -> int:
    notes = Notes()
    counts = convert(source, target, notes)
    parts = [
        f"{split} {images:,} images, {boxes:,} boxes"
        for split, (images, boxes) in counts.items()
    ]
    print(f"{target}: {'; '.join(parts)}")
    if notes.left_out:
        print(one_line(f"to_coco: {notes.summary()}"), file=sys.stderr)
    if notes.turned:
        what = f"EXIF turns {notes.turned:,} images; where boxes are of what is shown"
        print(f"{what}, train with --exif shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
