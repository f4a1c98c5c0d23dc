"""`python -m scripts.to_coco FROM TO`: COCO's annotations of a set in YOLO's or Pascal VOC's layout.

    YOLO          data.yaml, images/train/a.jpg, labels/train/a.txt: boxes, polygons or keypoints as shares
    Pascal VOC    Annotations/a.xml, JPEGImages/a.jpg, ImageSets/Main/train.txt and val.txt

TO gets annotations/instances_<split>.json and <split>, a link to FROM, which is never written to and has to
stay where it is. Where FROM names no splits there is one file of both, of which a tenth validates.
"""

from __future__ import annotations

import json
import mimetypes
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Labels(NamedTuple):
    """A set as its layout describes it."""

    categories: list[dict[str, Any]]  # in COCO's form
    # train and val, or default -> images, below the root
    splits: Mapping[str, Sequence[Path]]
    # (image, its size as stored, and as shown) -> the size that labels are of, and an annotation or what is
    # wrong for each label. Raises ValueError
    read: Callable[[Path, Size, Size], tuple[Size, Iterator[Annotation | str]]]


def sizes(path: Path) -> tuple[Size, Size, bool]:
    """Return the sizes of an image as stored and as shown, and whether EXIF turns it. Raises ValueError."""
    try:
        with open_bytes(path) as file, Image.open(file) as image:
            stored = image.height, image.width
            turn = image.getexif().get(ExifTags.Base.Orientation, 1)
            # Pillow turns TIFF itself, and so does training
            if image.format == "TIFF":
                turn = 1
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None
    shown = stored[::-1] if turn in range(5, 9) else stored
    return stored, shown, turn in range(2, 9)


def images_below(folder: Path, root: Path) -> list[Path]:
    """Return the images below a folder, as paths below `root`, in the order of their names."""
    return [
        path.relative_to(root)
        for path in sorted(folder.rglob("*"))
        if (mimetypes.guess_type(path.name)[0] or "").startswith("image/")
    ]


def words(path: Path) -> list[str]:
    """Return the lines of a file that are not empty, without blanks around them."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


# --- Pascal VOC ---

VOC_IMAGES = ("JPEGImages", "images", "Annotations", ".")
"""Where images are looked for; the first wins."""


def read_voc(root: Path) -> Labels:
    """Read the lists and the names of the classes. Raises ValueError."""
    files = {path.stem: path for path in sorted(root.glob("Annotations/*.xml"))}
    images: dict[str, Path] = {}
    for folder in reversed(VOC_IMAGES):
        found = images_below(root / folder, root)
        images |= {path.stem: path for path in found if path.parent == Path(folder)}
    lists = {split: root / f"ImageSets/Main/{split}.txt" for split in ("train", "val")}
    stems = {"default": [*files]}
    if all(path.exists() for path in lists.values()):
        stems = {
            split: [line.split()[0] for line in words(path)]
            for split, path in lists.items()
        }
    objects = [each for path in files.values() for each in _xml(path).iter("object")]
    names = sorted({each.findtext("name", "").strip() for each in objects})
    numbers = {name: number for number, name in enumerate(names, start=1)}

    def read(
        image: Path, stored: Size, shown: Size
    ) -> tuple[Size, Iterator[Annotation | str]]:
        if image.stem not in files:
            raise ValueError(f"has no Annotations/{image.stem}.xml")
        document = _xml(files[image.stem])
        height, width = (
            int(document.findtext(f"size/{side}", "0")) for side in ("height", "width")
        )
        if (height, width) not in (stored, shown, (0, 0)):
            raise ValueError(
                f"has {stored[1]} x {stored[0]} pixels, its XML is of {width} x {height}"
            )
        boxes = (_voc_object(each, numbers) for each in document.iter("object"))
        return (shown if (height, width) == shown else stored), boxes

    return Labels(
        [{"id": number, "name": name} for name, number in numbers.items()],
        {
            split: [images.get(stem, Path(f"JPEGImages/{stem}.jpg")) for stem in listed]
            for split, listed in stems.items()
        },
        read,
    )


def _xml(path: Path) -> ElementTree.Element:
    """Return the root element of an XML file. Raises ValueError."""
    try:
        with open_bytes(path) as file:
            return ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is no XML: {error}") from None


def _voc_object(
    each: ElementTree.Element, numbers: Mapping[str, int]
) -> Annotation | str:
    """Return an object's box, which counts pixels from 1 and includes the last one."""
    edges = ("xmin", "ymin", "xmax", "ymax")
    try:
        x0, y0, x1, y1 = (float(each.findtext(f"bndbox/{edge}", "")) for edge in edges)
    except ValueError:
        return "an object has no bndbox with xmin, ymin, xmax and ymax"
    width, height = x1 - x0 + 1, y1 - y0 + 1
    return {
        "category_id": numbers[each.findtext("name", "").strip()],
        "bbox": [x0 - 1, y0 - 1, width, height],
        "area": width * height,
        # as VOC's own scoring: not trained on, and no mistake to miss
        "iscrowd": int(each.findtext("difficult", "0").strip() == "1"),
    }


# --- YOLO ---

YOLO_SPLITS = {"train": ("train",), "val": ("val", "valid", "validation")}
CLASS_LISTS = ("classes.txt", "labels/classes.txt", "obj.names")
"""Lists of class names, where there is no data.yaml."""


def read_yolo(root: Path) -> Labels:
    """Read data.yaml, or the folders where there is none. Raises ValueError."""
    settings: Any = {}
    for file in sorted(root.glob("data.y*ml"))[:1]:
        try:
            settings = dict(parsed(read_text(file)))
        except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{file} is no YAML mapping: {error}") from None
    names = settings.get("names")
    if isinstance(names, dict):
        last = max(map(int, names), default=-1)
        names = [names.get(i, f"class {i}") for i in range(last + 1)]
    if not isinstance(names, list):
        there = [root / name for name in CLASS_LISTS if (root / name).exists()]
        if not there:
            raise ValueError(
                f"{root} has no data.yaml with names, and no {' or '.join(CLASS_LISTS)}"
            )
        names = words(there[0])
    points = settings.get("kpt_shape")
    shape = {}
    if points is not None:
        shape = {"keypoints": _point_names(points, settings.get("flip_idx"))}

    def read(
        image: Path, stored: Size, shown: Size
    ) -> tuple[Size, Iterator[Annotation | str]]:
        parts = list(image.parts)
        # the last folder of this name
        if "images" in parts:
            parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
        file = (root / Path(*parts)).with_suffix(".txt")
        # an image without a file of labels has none
        lines = words(file) if file.exists() else []
        return shown, (_yolo_object(line, shown, len(names), points) for line in lines)

    categories = [
        {"id": number, "name": str(name), **shape}
        for number, name in enumerate(names, start=1)
    ]
    return Labels(categories, _yolo_splits(root, settings), read)


def _point_names(shape: Any, flips: list[int] | None) -> list[str]:
    """Name keypoints so that left and right say what a mirror exchanges; `shape`: how many, and 2 or 3."""
    if not (isinstance(shape, list) and len(shape) == 2 and shape[1] in (2, 3)):
        raise ValueError(f"kpt_shape is {shape}, and has to be how many and 2 or 3")
    flips = flips or [*range(shape[0])]
    if sorted(flips) != [*range(shape[0])]:
        raise ValueError(f"flip_idx is {flips}, and has to name each keypoint once")
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
        given: Any = next((settings[name] for name in names if settings.get(name)), [])
        places = [Path(str(p)) for p in (given if isinstance(given, list) else [given])]
        if not places:
            usual = [
                root / place
                for name in names
                for place in (f"images/{name}", f"{name}/images")
            ]
            places = [place for place in usual if place.is_dir()][:1]
        images = [image for place in places for image in _listed(root, settings, place)]
        if images:
            splits[split] = images
    if len(splits) == 1:
        raise ValueError(f"{root} has images of {''.join(splits)} alone; it needs both")
    whole = root / "images" if (root / "images").is_dir() else root
    return splits or {"default": images_below(whole, root)}


def _listed(root: Path, settings: Mapping[str, Any], named: Path) -> list[Path]:
    """Return the images of a folder or a list that data.yaml names, below `root`. Raises ValueError."""
    # exports write train: ../train/images, of a data.yaml beside train/
    inside = Path(*[part for part in named.parts if part not in ("..", ".")])
    bases = [root / str(settings.get("path") or ""), root]
    real = root.resolve()
    for place in [
        (base / name).resolve() for name in (named, inside) for base in bases
    ]:
        if place.is_dir() and place.is_relative_to(real):
            return images_below(place, real)
        if place.exists() and place.is_relative_to(real):
            lines = [Path(line) for line in words(place)]
            return [
                line.relative_to(real) if line.is_relative_to(real) else line
                for line in lines
            ]
    raise ValueError(f"{named}, which data.yaml names, is not in {root}")


def _yolo_object(
    line: str, shown: Size, classes: int, points: Sequence[int] | None
) -> Annotation | str:
    """Return the annotation of a line: a class, then shares of the sides; or what is wrong with it."""
    try:
        label, *values = map(float, line.split())
    except ValueError:
        return f"{line!r:.60} are no numbers"
    if label not in range(classes):
        return f"class {label:g} is none of 0 to {classes - 1}"
    if not np.isfinite(values).all():
        return "a number is not finite"
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
        return (
            f"{len(values)} numbers behind the class; a box has 4, a polygon 6 or more"
        )
    middle, size = np.reshape(values[:4], (2, 2)) * sides
    annotation["bbox"] = [*(middle - size / 2).tolist(), *size.tolist()]
    annotation["area"] = float(size.prod())
    if points:
        marks = np.reshape(values[4:], points)
        # without a visibility 0 0 is one that is not there
        visible = 2.0 * marks.any(axis=1, keepdims=True)
        if points[1] == 3:
            visible = marks[:, 2:]
        marks = np.where(visible != 0, np.hstack([marks[:, :2] * sides, visible]), 0)
        annotation["keypoints"] = marks.ravel().tolist()
    return annotation


# --- the program ---


def convert(root: Path, target: Path) -> tuple[list[str], list[str]]:
    """Write TO; return a line for each split, and what is left out. Raises ValueError for what the set holds."""
    if not root.is_dir():
        raise ValueError(f"{root} is no folder")
    labels = read_voc(root) if any(root.glob("Annotations/*.xml")) else read_yolo(root)
    lines: list[str] = []
    left_out: list[str] = []
    turned = 0
    kinds = ["instances"]
    if any("keypoints" in category for category in labels.categories):
        kinds.append("person_keypoints")
    with filled(target, root) as fresh:
        (fresh / "annotations").mkdir(parents=True)
        for split, paths in labels.splits.items():
            images: list[dict[str, Any]] = []
            annotations: list[Annotation] = []
            for path in paths:
                try:
                    stored, shown, is_turned = sizes(root / path)
                    (height, width), objects = labels.read(path, stored, shown)
                except ValueError as error:
                    left_out.append(f"{path}: {error}")
                    continue
                turned += is_turned
                image = {"id": len(images) + 1, "file_name": path.as_posix()}
                images.append(image | {"height": height, "width": width})
                for each in objects:
                    if isinstance(each, str):
                        left_out.append(f"a label of {path}: {each}")
                        continue
                    ids = {"id": len(annotations) + 1, "image_id": image["id"]}
                    annotations.append(ids | {"iscrowd": 0} | each)
            if not images:
                why = f"left out: {left_out[0]}" if left_out else "there is none"
                raise ValueError(f"{root}: no image of {split} can be used; {why}")
            text = json.dumps(
                {
                    "images": images,
                    "annotations": annotations,
                    "categories": labels.categories,
                }
            )
            for kind in kinds:
                (fresh / f"annotations/{kind}_{split}.json").write_text(text)
            folder = "images" if split == "default" else split
            (fresh / folder).symlink_to(root.resolve(), target_is_directory=True)
            lines.append(f"{split} {len(images):,} images, {len(annotations):,} boxes")
    if turned:
        lines.append(
            f"EXIF turns {turned:,} images; where boxes are of what is shown, train with --exif shown"
        )
    return lines, left_out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("to_coco", __doc__)
    parser.add_argument(
        "source", metavar="FROM", type=Path, help="folder of the set; never written to"
    )
    parser.add_argument(
        "target", metavar="TO", type=Path, help="new folder, for --data"
    )
    options = parser.parse_args(arguments)

    def run() -> int:
        lines, left_out = convert(options.source, options.target)
        print(f"{options.target}: {'; '.join(lines)}")
        if left_out:
            what = f"to_coco: {len(left_out):,} left out, first {left_out[0]}"
            print(one_line(what), file=sys.stderr)
        return 0

    return exit_code("to_coco", run, ValueError)


if __name__ == "__main__":
    sys.exit(main())
