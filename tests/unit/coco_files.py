"""Small COCO sets for the tests: shapes drawn on dim noise, and exactly what was drawn in the annotation
files.

Of every four images the first is a landscape, the second a portrait that also holds a crowd, the third grey,
and the fourth has no annotation. Each of the others has one shape of each category; no two overlap:

    person    blue, 5 keypoints as white marks of 3 x 3 pixels; the hands have visibility 2 or 0
    box       red, its segmentation the four corners
    triangle  green, the only shape that does not fill its box
    crowd     cyan, category box, a run-length code
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from saturate.contracts import Array
from saturate.dataset.coco.columns import Instances
from saturate.dataset.coco.scan import open_coco
from tests.unit.folders import rejected

CATEGORIES = {1: "person", 3: "box", 5: "triangle"}
COLOURS = {
    "person": (40, 40, 255),
    "box": (255, 40, 40),
    "triangle": (40, 255, 40),
    "crowd": (0, 220, 220),
}
KEYPOINTS = ("nose", "left_eye", "right_eye", "left_hand", "right_hand")
PLACES = np.array([(0.5, 0.5), (0.7, 0.25), (0.3, 0.25), (0.85, 0.8), (0.15, 0.8)])
"""Places of a person's keypoints in the box: its left is the picture's right."""
SPLITS = {"train2017": 8, "val2017": 5}


def write_coco(
    root: Path, *, splits: Mapping[str, int] = SPLITS, size: tuple[int, int] = (96, 128)
) -> Path:
    """Write root/<split>/*.jpg, root/annotations/instances_<split>.json and person_keypoints_<split>.json;
    returns root.

    `splits` says how many images each has; `size` is height and width of a landscape, at least 64 each. Image
    and annotation ids have gaps, and entries are in no order.
    """
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for place, (split, count) in enumerate(splits.items()):
        (root / split).mkdir(exist_ok=True)
        rng = np.random.default_rng([0, place])
        images, annotations = [], []
        for number in range(count):
            image_id = 1000 * (place + 1) + 7 * number
            height, width = size if number % 4 != 1 else size[::-1]
            picture, drawn = _drawn(
                rng, height, width, empty=number % 4 == 3, crowd=number % 4 == 1
            )
            if number % 4 == 2:
                picture = picture.convert("L")
            name = f"{image_id:012d}.jpg"
            picture.save(root / split / name, quality=95, subsampling=0)
            images.append(
                {
                    "id": image_id,
                    "file_name": name,
                    "height": height,
                    "width": width,
                    "license": 1,
                }
            )
            annotations += [
                {"id": 10 * image_id + 3 * i, "image_id": image_id, **each}
                for i, each in enumerate(drawn)
            ]
        rng.shuffle(images)
        rng.shuffle(annotations)
        plain = [
            {key: value for key, value in each.items() if "keypoints" not in key}
            for each in annotations
        ]
        categories = [
            {"id": key, "name": name, "supercategory": "shape"}
            for key, name in reversed(CATEGORIES.items())
        ]
        told = {"info": {}, "images": images}
        write(root, split, {**told, "annotations": plain, "categories": categories})
        people = [each for each in annotations if "keypoints" in each]
        person = {
            "id": 1,
            "name": "person",
            "keypoints": list(KEYPOINTS),
            "skeleton": [[1, 2], [1, 3]],
        }
        told |= {"annotations": people, "categories": [person]}
        write(root, split, told, kind="person_keypoints")
    return root


def document(root: Path, split: str, kind: str = "instances") -> dict[str, Any]:
    return dict(json.loads((root / "annotations" / f"{kind}_{split}.json").read_text()))


def write(root: Path, split: str, document: Any, kind: str = "instances") -> Path:
    path = root / "annotations" / f"{kind}_{split}.json"
    path.write_text(json.dumps(document))
    return path


def opened(
    root: Path, split: Any = "train", *, keypoints: bool = False, **how: Any
) -> Instances:
    """A split, with its manifest beside the set."""
    return open_coco(
        root, split, keypoints=keypoints, **{"cache": root.parent / "cache", **how}
    )


def changed(
    root: Path, change: Callable[[dict[str, Any]], Any], *, keypoints: bool = False
) -> Instances:
    """Return what is left of the training set when its annotation file has been changed."""
    kind = "person_keypoints" if keypoints else "instances"
    found = document(root, "train2017", kind)
    change(found)
    write(root, "train2017", found, kind)
    return opened(root, keypoints=keypoints, rescan=True)


def reasons(found: Instances) -> list[str]:
    """rejected.txt without the folder of the data."""
    return [
        line.replace(f"{found.root}/", "").replace("\t", ": ")
        for line in rejected(found)
    ]


def counts(mask: Array) -> list[int]:
    """COCO's run lengths of a bool mask [H, W]: column by column, beginning with those that are False."""
    flat = mask.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff([0, *edges, len(flat)]).tolist()
    return [0, *runs] if flat[0] else runs


def _drawn(
    rng: np.random.Generator, height: int, width: int, *, empty: bool, crowd: bool
) -> tuple[Image.Image, list[dict[str, Any]]]:
    picture = Image.fromarray(rng.integers(0, 60, (height, width, 3), np.uint8))
    if empty:
        return picture, []
    draw, found = ImageDraw.Draw(picture), []
    for quarter, what in zip(
        rng.permutation(4), ("person", "box", "triangle", "crowd"), strict=True
    ):
        if what == "crowd" and not crowd:
            continue
        # two pixels are free between shapes
        rows, columns = height // 2 - 4, width // 2 - 4
        h = int(rng.integers(rows // 2, rows))
        w = int(rng.integers(columns // 2, columns))
        y = int(quarter // 2 * (height // 2) + 2 + rng.integers(rows - h))
        x = int(quarter % 2 * (width // 2) + 2 + rng.integers(columns - w))
        found.append(
            _shape(
                draw, what, (x, y, w, h), (height, width), hands=bool(rng.integers(2))
            )
        )
    return picture, found


def _shape(
    draw: ImageDraw.ImageDraw,
    what: str,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    *,
    hands: bool,
) -> dict[str, Any]:
    """Draw one shape that touches all sides of its box; returns its annotation, without ids."""
    x, y, w, h = box
    category = next((key for key, name in CATEGORIES.items() if name == what), 3)
    made: dict[str, Any] = {
        "category_id": category,
        "bbox": [float(value) for value in box],
        "area": float(w * h),
        "iscrowd": 0,
    }
    if what == "triangle":
        draw.polygon(
            [(x, y + h - 1), (x + w // 2, y), (x + w - 1, y + h - 1)],
            fill=COLOURS[what],
        )
        corners = [x, y + h, x + w / 2, y, x + w, y + h]
        return made | {
            "area": w * h / 2,
            "segmentation": [[float(value) for value in corners]],
        }
    draw.rectangle([x, y, x + w - 1, y + h - 1], fill=COLOURS[what])
    if what == "crowd":
        mask = np.zeros(size, bool)
        mask[y : y + h, x : x + w] = True
        return made | {
            "iscrowd": 1,
            "segmentation": {"counts": counts(mask), "size": list(size)},
        }
    made["segmentation"] = [
        [float(value) for value in (x, y, x + w, y, x + w, y + h, x, y + h)]
    ]
    if what == "person":
        points = (np.array([x, y]) + PLACES * [w, h]).astype(int)
        seen = [2, 2, 2, 2 * hands, 2 * hands]
        for (px, py), visible in zip(points.tolist(), seen, strict=True):
            if visible:
                draw.rectangle([px - 1, py - 1, px + 1, py + 1], fill=(255, 255, 255))
        values = np.column_stack([points, seen]) * (np.array(seen)[:, None] > 0)
        made |= {
            "keypoints": values.ravel().tolist(),
            "num_keypoints": int(np.count_nonzero(seen)),
        }
    return made


def of(written: dict[str, Any], key: str, number: int) -> dict[str, Any]:
    return next(each for each in written[key] if each["id"] == number)


def put(key: str, number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda written: of(written, key, number).update(values)
