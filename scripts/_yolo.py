"""YOLO's layout: a text file an image, a line an object: class, then shares of the sides of what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts._labels import Labels, Left, Size, images_below, number, outlined, sizes
from settings.preset import parsed
from system.user_files import read_text

SPLITS = {"train": ("train",), "val": ("val", "valid", "validation")}
NAMES = ("classes.txt", "labels/classes.txt", "obj.names")
"""Lists of class names, where there is no data.yaml."""


def read_yolo(root: Path) -> Labels:
    """Read data.yaml, or the folders where there is none. Raises ValueError."""
    file = next(iter(sorted(root.glob("data.y*ml")) or sorted(root.glob("*.y*ml"))), None)
    told = _yaml(file) if file else {}
    names = _names(root, told)
    points, flips = _keypoints(told)
    categories: list[dict[str, Any]] = [
        {"id": place, "name": str(name)} for place, name in enumerate(names, start=1)
    ]
    if points:
        for category in categories:
            category["keypoints"] = _point_names(points[0], flips)
    return Labels(
        categories=categories,
        splits=_splits(root, told),
        read=partial(_read, classes=len(names), points=points),
        keypoints=points is not None,
    )


def _yaml(file: Path) -> dict[str, Any]:
    try:
        told = parsed(read_text(file))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: does not parse as YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(told, dict):
        raise ValueError(f"{file}: is no mapping with names, train and val")
    return told


def _names(root: Path, told: dict[str, Any]) -> list[str]:
    """Return the names of the classes 0, 1, ..."""
    names = told.get("names")
    if isinstance(names, dict):
        return [str(names.get(i, f"class {i}")) for i in range(max(map(int, names), default=-1) + 1)]
    if isinstance(names, list):
        return [str(name) for name in names]
    listed = next((root / name for name in NAMES if (root / name).exists()), None)
    if listed is None:
        raise ValueError(f"{root} has no data.yaml with names, and no {' or '.join(NAMES)}")
    return [line.strip() for line in read_text(listed).splitlines() if line.strip()]


def _keypoints(told: dict[str, Any]) -> tuple[tuple[int, int] | None, list[int]]:
    """Return (how many keypoints, numbers of each: 2 or 3), and which each becomes in a mirror."""
    shape = told.get("kpt_shape")
    if shape is None:
        return None, []
    if not (isinstance(shape, list) and len(shape) == 2 and shape[1] in (2, 3)):
        raise ValueError(f"kpt_shape is {shape}, and has to be how many and 2 or 3")
    flips = told.get("flip_idx") or list(range(shape[0]))
    if sorted(flips) != list(range(shape[0])):
        raise ValueError(f"flip_idx is {flips}, and has to be each of 0 to {shape[0] - 1} once")
    return (int(shape[0]), int(shape[1])), flips


def _point_names(count: int, flips: Sequence[int]) -> list[str]:
    """Return names of which left and right say what a mirror exchanges."""
    sides = {place: "left" if place < flips[place] else "right" for place in range(count)}
    return [
        f"point {place}" if flips[place] == place else f"{sides[place]} point {min(place, flips[place])}"
        for place in range(count)
    ]


def _splits(root: Path, told: dict[str, Any]) -> dict[str, list[Path]]:
    """Return the images of each split, or all as default. Raises ValueError."""
    found = {}
    for split, names in SPLITS.items():
        given = next((told[name] for name in names if told.get(name)), None)
        places = given if isinstance(given, list) else [given]
        if given is None:
            folders = (root / place.format(name) for name in names for place in ("images/{}", "{}/images"))
            places = [folder for folder in folders if folder.is_dir()][:1]
        images = [path for place in places for path in _images(root, told, place)]
        if images:
            found[split] = images
    if len(found) == len(SPLITS):
        return found
    if found:
        one = next(iter(found))
        raise ValueError(f"{root} has images of {one} alone; it needs train and val, or neither")
    return {"default": images_below(root / "images" if (root / "images").is_dir() else root, root)}


def _images(root: Path, told: dict[str, Any], place: Any) -> list[Path]:
    """Return the images of a folder or a list, as paths below `root`. Raises ValueError."""
    base = root / str(told.get("path") or "")
    within = Path(str(place))
    # exports write train: ../train/images, of a data.yaml beside train/
    inside = Path(*[part for part in within.parts if part not in ("..", ".")])
    tried = [base / within, root / within, base / inside, root / inside]
    real = root.resolve()
    there = [path.resolve() for path in tried if path.exists()]
    found = next((path for path in there if path.is_relative_to(real)), None)
    if found is None:
        raise ValueError(f"{place}, which data.yaml names, is not in {root}")
    if found.is_dir():
        return images_below(found, real)
    lines = [Path(line.strip()) for line in read_text(found).splitlines() if line.strip()]
    return [line.relative_to(real) if line.is_relative_to(real) else line for line in lines]


def _label(image: Path) -> Path:
    """Return the file of an image's labels: images/ becomes labels/."""
    parts = list(image.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts).with_suffix(".txt")


def _read(
    root: Path, image: Path, left: Left, *, classes: int, points: tuple[int, int] | None
) -> tuple[Size, list[dict[str, Any]]]:
    """Return the size as shown, and what each line says. An image without a file of labels has none."""
    _, shown = sizes(root, image, left)
    file = _label(image)
    if not (root / file).exists():
        return shown, []
    found = []
    for place, line in enumerate(read_text(root / file).splitlines(), start=1):
        if line.strip():
            try:
                found.append(_object(line.split(), shown, classes, points))
            except ValueError as error:
                left(file, f"line {place}: {error}")
    return shown, found


def _object(words: list[str], shown: Size, classes: int, points: tuple[int, int] | None) -> dict[str, Any]:
    """Return an annotation of a line's words. Raises ValueError."""
    kind = number(words[0])
    if kind not in range(classes):
        raise ValueError(f"class {words[0]} is none of 0 to {classes - 1}")
    values = [number(word) for word in words[1:]]
    height, width = shown
    own: dict[str, Any] = {"category_id": int(kind) + 1}
    if points is None and len(values) >= 6 and len(values) % 2 == 0:
        corners = zip(values[::2], values[1::2], strict=True)
        return own | outlined([(x * width, y * height) for x, y in corners])
    if len(values) != 4 + (points[0] * points[1] if points else 0):
        raise ValueError(f"{len(values)} numbers behind the class; a box has 4, a polygon 6 or more")
    x, y, w, h = values[:4]
    own |= {"bbox": [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]}
    own |= {"area": w * width * h * height}
    if points:
        marks = [values[at : at + points[1]] for at in range(4, len(values), points[1])]
        own |= {"keypoints": [value for mark in marks for value in _mark(mark, shown)]}
    return own


def _mark(mark: list[float], shown: Size) -> list[float]:
    """Return x y visibility of a keypoint; without a visibility 0 0 is one that is not there."""
    x, y = mark[:2]
    visible = mark[2] if len(mark) == 3 else 2.0 * (x != 0 or y != 0)
    return [x * shown[1], y * shown[0], visible] if visible else [0.0, 0.0, 0.0]
