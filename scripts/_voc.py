"""Pascal VOC's layout: an XML file an image, whose boxes count pixels from 1 and include the last one."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

from scripts._labels import Labels, Left, Size, is_image, number, sizes
from system.user_files import open_bytes, read_text

FOLDERS = ("JPEGImages", "images", "Annotations", ".")
"""Where images are looked for."""
LISTS = ("train", "val")


def read_voc(root: Path) -> Labels:
    """Read the lists and the names of the classes. Raises ValueError."""
    files = {path.stem: path.relative_to(root) for path in sorted(root.glob("Annotations/*.xml"))}
    images: dict[str, Path] = {}
    for folder in reversed(FOLDERS):
        images |= {path.stem: path.relative_to(root) for path in (root / folder).glob("*") if is_image(path)}
    lists = {name: root / "ImageSets" / "Main" / f"{name}.txt" for name in LISTS}
    if all(path.exists() for path in lists.values()):
        listed = {
            name: [line.split()[0] for line in read_text(path).splitlines() if line.split()]
            for name, path in lists.items()
        }
    else:
        listed = {"default": list(files)}
    names = sorted({name for path in files.values() for name in _names(root / path)})
    numbers = {name: place for place, name in enumerate(names, start=1)}
    return Labels(
        categories=[{"id": place, "name": name} for name, place in numbers.items()],
        splits={
            split: [images.get(stem, Path("JPEGImages", f"{stem}.jpg")) for stem in stems]
            for split, stems in listed.items()
        },
        read=partial(_read, files=files, numbers=numbers),
    )


def _names(path: Path) -> list[str]:
    return [one.findtext("name", "").strip() for one in _parsed(path).iter("object")]


def _parsed(path: Path) -> ElementTree.Element:
    """Return the root element of an XML file. Raises ValueError."""
    try:
        with open_bytes(path) as file:
            return ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is no XML: {error}") from None


def _read(
    root: Path, image: Path, left: Left, *, files: dict[str, Path], numbers: dict[str, int]
) -> tuple[Size, list[dict[str, Any]]]:
    """Return the size that a file's boxes are of, and its boxes."""
    stored, shown = sizes(root, image, left)
    if image.stem not in files:
        raise ValueError(f"has no Annotations/{image.stem}.xml")
    file = files[image.stem]
    told = _parsed(root / file)
    said = tuple(int(number(told.findtext(f"size/{side}", "0"))) for side in ("height", "width"))
    if said not in (stored, shown, (0, 0)):
        raise ValueError(f"has {stored[1]} x {stored[0]} pixels, {file} is of {said[1]} x {said[0]}")
    boxes = []
    for one in told.iter("object"):
        try:
            edges = [number(one.findtext(f"bndbox/{edge}")) for edge in ("xmin", "ymin", "xmax", "ymax")]
        except ValueError:
            left(file, "an object has no bndbox with xmin, ymin, xmax and ymax")
            continue
        x0, y0, x1, y1 = edges
        box = [x0 - 1, y0 - 1, x1 - x0 + 1, y1 - y0 + 1]
        difficult = one.findtext("difficult", "0").strip() == "1"
        own = {"category_id": numbers[one.findtext("name", "").strip()], "bbox": box, "area": box[2] * box[3]}
        # as VOC's own scoring: not trained on, and no mistake to miss
        boxes.append({**own, "iscrowd": int(difficult)})
    return (stored if said in (stored, (0, 0)) else shown), boxes
