"""Draw a small detection set in COCO's layout that a light detector can learn in minutes on a CPU; knows
nothing of training.

Five classes: circle, cross, square, star, triangle. An image shows up to twelve of them before a textured
background, turned and coloured at random, from small to large in COCO's sense. As in COCO some images have no
annotation, some files are grey, and the ids of images and categories have gaps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from scripts._sets import DrawnSet, Key, rng_of
from scripts.demo_set import background

SHAPES = {
    "circle": np.ones(48),
    "cross": np.tile([1, 1, 0.37], 4),
    "square": np.ones(4),
    "star": np.tile([1, 0.42], 5),
    "triangle": np.ones(3),
}
"""Class -> the distances of its corners from the middle, at even angles."""
PLACES = 40
"""Places that are tried for a shape before it is left out: shapes do not touch."""


def drawn(rng: np.random.Generator) -> tuple[Image.Image, list[dict[str, Any]]]:
    """Draw one image; return it with its annotations in COCO's form, without their ids."""
    sides = rng.integers(128, 201, 2)  # width and height, pixels
    picture, inks = background(rng, *sides.tolist())
    draw = ImageDraw.Draw(picture)
    largest = np.log(0.4 * min(sides))
    radii = np.exp(rng.uniform(np.log(8), largest, rng.integers(0, 13)))
    # discs (centre, radius) that nothing else may touch
    taken: list[tuple[np.ndarray, float]] = []
    annotations = []
    # the largest first: it needs the most room
    for radius in sorted(radii, reverse=True):
        for centre in rng.uniform(radius + 1, sides - radius - 1, (PLACES, 2)):
            gaps = [np.hypot(*(centre - other)) - reach for other, reach in taken]
            if min(gaps, default=np.inf) > radius + 2:
                taken.append((centre, radius))
                annotations.append(_painted(rng, draw, inks, centre, radius))
                break
    return picture, annotations


def _painted(
    rng: np.random.Generator,
    draw: ImageDraw.ImageDraw,
    inks: list[tuple[int, ...]],
    centre: np.ndarray,
    radius: float,
) -> dict[str, Any]:
    """Paint a shape of a random class, and return its annotation."""
    label = int(rng.integers(len(SHAPES)))
    corners = radius * list(SHAPES.values())[label]
    angles = np.linspace(0, 2 * np.pi, len(corners), endpoint=False)
    angles += rng.uniform(0, 2 * np.pi)
    x = centre[0] + corners * np.cos(angles)
    y = centre[1] + corners * np.sin(angles)
    outline = np.stack([x, y], axis=1)
    draw.polygon([*map(tuple, outline - 0.5)], fill=inks[rng.integers(3)])
    return {
        "category_id": 10 * label + 10,
        "segmentation": [outline.ravel().tolist()],
        "area": 0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))),
        "bbox": [*outline.min(0).tolist(), *np.ptp(outline, axis=0).tolist()],
        "iscrowd": 0,
    }


def _draw(folder: Path, seed: int, key: Key) -> dict[str, Any]:
    """Write one image; return its split's document with this image alone."""
    split, _, index = key
    rng = rng_of(seed, split, index)
    picture, annotations = drawn(rng)
    image_id = 100_000 * (split + 1) + 3 * index
    name = f"{image_id:012d}.jpg"
    stored = picture.convert("L") if index % 25 == 14 else picture
    stored.save(folder / SET.splits[split] / name, quality=int(rng.integers(75, 96)))
    size = {"height": picture.height, "width": picture.width}
    for number, one in enumerate(annotations):
        one |= {"id": 100 * image_id + number, "image_id": image_id}
    image = {"id": image_id, "file_name": name, **size}
    return {"split": split, "image": image, "annotations": annotations}


def _annotate(folder: Path, images: list[dict[str, Any]]) -> None:
    """Write annotations/instances_<split>.json of what _draw() returned."""
    for split, name in enumerate(SET.splits):
        of_split = [one for one in images if one["split"] == split]
        document = {
            "images": [one["image"] for one in of_split],
            "annotations": [each for one in of_split for each in one["annotations"]],
            "categories": [
                {"id": 10 * label + 10, "name": shape}
                for label, shape in enumerate(SHAPES)
            ],
        }
        path = folder / "annotations" / f"instances_{name}.json"
        path.write_text(json.dumps(document))


SET = DrawnSet(
    name="demo_coco",
    about=__doc__,
    classes=("",),
    draw=_draw,
    counts=(600, 150),
    splits=("train2017", "val2017"),
    finish=_annotate,
)
write = SET.write
main = SET.main

if __name__ == "__main__":
    sys.exit(main())
