"""Draw a small detection set in COCO's layout that a light detector can learn in minutes on a CPU; knows
nothing of training.

Five classes: circle, cross, square, star, triangle. An image shows up to eight of them before a textured
background, turned and coloured at random, from small to large in COCO's sense. As in COCO some images have no
annotation, some a crowd region (many tiny shapes of one class, one mask as run lengths, iscrowd 1), some
files are grey, and the ids of images and categories have gaps.
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
SUPERSAMPLING = 4  # a shape's edge is drawn at this scale and averaged


def _corners(angles: np.ndarray, radii: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)


def _ring(count: int) -> np.ndarray:
    return 2 * np.pi * np.arange(count) / count


ARM = 0.36  # half the width of a cross's arms, of half its length
# Polygons [points, 2] around (0, 0) that touch the unit circle.
OUTLINES = {
    "circle": _corners(_ring(48), np.ones(48)),
    "cross": np.array(
        [(1, ARM), (ARM, ARM), (ARM, 1), (-ARM, 1), (-ARM, ARM), (-1, ARM)]
    )
    / np.hypot(1, ARM),
    "square": _corners(_ring(4), np.ones(4)),
    "star": _corners(_ring(10), np.where(np.arange(10) % 2, 0.42, 1)),
    "triangle": _corners(_ring(3), np.ones(3)),
}
OUTLINES["cross"] = np.concatenate([OUTLINES["cross"], -OUTLINES["cross"]])

Made = tuple[np.ndarray, list[dict[str, Any]]]
"""Pixels, uint8 [height, width, 3], and annotations in COCO's form without their ids."""


def drawn(
    rng: np.random.Generator, *, empty: bool = False, crowd: bool = False
) -> Made:
    """Draw one image: `empty` has no shape, and `crowd` a region of many beside the others."""
    height, width = _size(rng)
    canvas, ink = background(rng, height, width)
    canvas = canvas.copy()
    # discs (centre, radius) that nothing else may touch
    taken: list[tuple[np.ndarray, float]] = []
    annotations: list[dict[str, Any]] = []
    if crowd and not empty:
        annotations.append(_crowd(rng, canvas, ink, taken))
    largest = np.log(0.4 * min(height, width))
    radii = np.exp(rng.uniform(np.log(8), largest, rng.integers(2, 9)))
    # the largest first: it needs the most room
    for radius in [] if empty else sorted(map(float, radii), reverse=True):
        if (centre := _free(rng, canvas, radius, taken)) is not None:
            category = int(rng.choice(list(CATEGORIES)))
            outline = _turned(rng, category, centre, radius)
            _paint(canvas, outline, _colour(rng, ink))
            annotations.append(_instance(outline, category))
    return finished(rng, canvas, 0.05), annotations


def _size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width at random: the longer side 160 to 200 pixels, from square to 3:2, one in three
    upright."""
    long = int(rng.integers(160, 201))
    short = round(long / rng.uniform(1, 1.5))
    return (long, short) if rng.random() < 1 / 3 else (short, long)


def _free(
    rng: np.random.Generator,
    canvas: np.ndarray,
    radius: float,
    taken: list[tuple[np.ndarray, float]],
) -> np.ndarray | None:
    """Find a centre (x, y) whose disc is inside the image and touches none of those taken; takes it. None
    when 40 random ones do not do."""
    height, width = canvas.shape[:2]
    for centre in rng.uniform(
        radius + 1, np.array([width, height]) - radius - 1, (40, 2)
    ):
        if all(
            np.hypot(*(centre - other)) > radius + reach + 2 for other, reach in taken
        ):
            taken.append((centre, radius))
            return np.asarray(centre)
    return None


def _colour(rng: np.random.Generator, ink: np.ndarray) -> np.ndarray:
    return ink[rng.integers(len(ink))] + rng.uniform(-0.08, 0.08, 3).astype(np.float32)


def _turned(
    rng: np.random.Generator, category: int, centre: np.ndarray, radius: float
) -> np.ndarray:
    """Return the outline of a shape in pixels [points, 2], x y, to a hundredth: what is annotated is what is
    painted."""
    angle = rng.uniform(0, 2 * np.pi)
    rotation = np.array(
        [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    )
    outline: np.ndarray = np.round(
        centre + radius * OUTLINES[CATEGORIES[category]] @ rotation, 2
    )
    return outline


def _paint(canvas: np.ndarray, outline: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Fill the outline; return the share of each pixel that it covers, float32 [height, width]."""
    height, width = canvas.shape[:2]
    left, top = np.floor(outline.min(0)).astype(int)
    right, bottom = np.ceil(outline.max(0)).astype(int)
    fine = Image.new(
        "L", ((right - left) * SUPERSAMPLING, (bottom - top) * SUPERSAMPLING)
    )
    # PIL counts from the middle of the first pixel, COCO from its corner.
    ImageDraw.Draw(fine).polygon(
        [(x, y) for x, y in (outline - (left, top)) * SUPERSAMPLING - 0.5], fill=255
    )
    cover = np.zeros((height, width), np.float32)
    cover[top:bottom, left:right] = np.asarray(fine.reduce(SUPERSAMPLING)) / np.float32(
        255
    )
    canvas += cover[..., None] * (colour - canvas)
    return cover


def _instance(outline: np.ndarray, category: int) -> dict[str, Any]:
    (left, top), (right, bottom) = outline.min(0), outline.max(0)
    x, y = outline.T
    return {
        "category_id": category,
        "segmentation": [outline.ravel().tolist()],
        "area": round(0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))), 2),
        "bbox": [
            round(float(value), 2) for value in (left, top, right - left, bottom - top)
        ],
        "iscrowd": 0,
    }


def _crowd(
    rng: np.random.Generator,
    canvas: np.ndarray,
    ink: np.ndarray,
    taken: list[tuple[np.ndarray, float]],
) -> dict[str, Any]:
    """Paint 8 to 20 tiny shapes of one class in a disc, and return the annotation that holds for all of them.
    The image must still be bare."""
    reach = rng.uniform(0.15, 0.25) * min(canvas.shape[:2])
    centre = _free(rng, canvas, reach, taken)
    assert centre is not None, "nothing else is there yet"
    category = int(rng.choice(list(CATEGORIES)))
    mask = np.zeros(canvas.shape[:2], bool)
    for angle, distance in zip(
        rng.uniform(0, 2 * np.pi, rng.integers(8, 21)),
        np.sqrt(rng.random(20)),
        strict=False,
    ):
        radius = rng.uniform(3.5, 5)
        middle = centre + (reach - radius) * distance * np.array(
            [np.cos(angle), np.sin(angle)]
        )
        mask |= (
            _paint(canvas, _turned(rng, category, middle, radius), _colour(rng, ink))
            >= 0.5
        )
    y, x = np.nonzero(mask)
    return {
        "category_id": category,
        "segmentation": {"counts": run_lengths(mask), "size": list(mask.shape)},
        "area": int(mask.sum()),
        "bbox": [
            int(value) for value in (x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1)
        ],
        "iscrowd": 1,
    }


def run_lengths(mask: np.ndarray) -> list[int]:
    """Return COCO's uncompressed counts of a bool mask [height, width]: column by column, runs of 0 and 1 in
    turn, the first of 0."""
    flat = mask.ravel(order="F")
    ends = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff(np.concatenate([[0], ends, [len(flat)]])).tolist()
    return [0, *runs] if flat[0] else list(runs)


def _draw(
    folder: Path, seed: int, key: Key
) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Write one image; return its split, its entry and its annotations."""
    split, _, index = key
    rng = rng_of(seed, split, index)
    pixels, annotations = drawn(rng, empty=index % 12 == 5, crowd=index % 8 == 3)
    picture = Image.fromarray(pixels).convert("L" if index % 25 == 14 else "RGB")
    image_id = 100_000 * (split + 1) + 3 * index
    name = f"{image_id:012d}.jpg"
    picture.save(folder / SET.splits[split] / name, quality=int(rng.integers(75, 96)))
    entry = {
        "id": image_id,
        "file_name": name,
        "height": picture.height,
        "width": picture.width,
    }
    return (
        split,
        entry,
        [
            {"id": 100 * image_id + number, "image_id": image_id, **each}
            for number, each in enumerate(annotations)
        ],
    )


def _annotate(
    folder: Path, images: list[tuple[int, dict[str, Any], list[dict[str, Any]]]]
) -> None:
    """Write annotations/instances_<split>.json of what _draw() returned."""
    for split, name in enumerate(SET.splits):
        whole = {
            "info": {"description": "drawn shapes"},
            "licenses": [],
            "images": [entry for of, entry, _ in images if of == split],
            "annotations": [
                each
                for of, _, annotations in images
                if of == split
                for each in annotations
            ],
            "categories": [
                {"id": number, "name": label, "supercategory": "shape"}
                for number, label in CATEGORIES.items()
            ],
        }
        path = folder / "annotations" / f"instances_{name}.json"
        path.write_text(json.dumps(whole))


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
