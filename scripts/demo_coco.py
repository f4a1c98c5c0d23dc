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
from scripts.demo_set import background, finished

CATEGORIES = {10: "circle", 20: "cross", 30: "square", 40: "star", 50: "triangle"}
PLACES = 40
"""Places that are tried for a shape before it is left out: shapes do not touch."""
ARM = 0.36  # half the width of a cross's arms, of half its length


def _corners(radii: np.ndarray) -> np.ndarray:
    """Return corners at these distances from (0, 0), [corners, 2], at even angles."""
    angles = 2 * np.pi * np.arange(len(radii)) / len(radii)
    return np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)


_half = np.array([(1, ARM), (ARM, ARM), (ARM, 1), (-ARM, 1), (-ARM, ARM), (-1, ARM)])
# polygons [points, 2] around (0, 0) that touch the unit circle
OUTLINES = {
    "circle": _corners(np.ones(48)),
    "cross": np.concatenate([_half, -_half]) / np.hypot(1, ARM),
    "square": _corners(np.ones(4)),
    "star": _corners(np.tile([1, 0.42], 5)),
    "triangle": _corners(np.ones(3)),
}


def drawn(rng: np.random.Generator) -> tuple[Image.Image, list[dict[str, Any]]]:
    """Draw one image; return it with its annotations in COCO's form, without their ids."""
    sides = rng.integers(128, 201, 2)  # width and height, pixels
    canvas, inks = background(rng, *sides[::-1])
    picture = Image.fromarray(finished(rng, canvas.copy(), 0.05))
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
                category = int(rng.choice(list(CATEGORIES)))
                outline = _turned(rng, category) * radius + centre
                colour = inks[rng.integers(3)] + rng.uniform(-0.08, 0.08, 3)
                levels = (255 * colour.clip(0, 1)).astype(int)
                draw.polygon([*map(tuple, outline - 0.5)], fill=(*levels.tolist(),))
                annotations.append(_annotation(outline, category))
                break
    return picture, annotations


def _turned(rng: np.random.Generator, category: int) -> np.ndarray:
    angle = rng.uniform(0, 2 * np.pi)
    across = [np.cos(angle), np.sin(angle)]
    down = [-np.sin(angle), np.cos(angle)]
    return np.asarray(OUTLINES[CATEGORIES[category]] @ np.array([across, down]))


def _annotation(outline: np.ndarray, category: int) -> dict[str, Any]:
    x, y = outline.T
    return {
        "category_id": category,
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
                {"id": number, "name": label} for number, label in CATEGORIES.items()
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
