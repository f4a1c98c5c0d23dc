"""Detections as files in COCO's results format: written after a validation, read for --score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from contracts import Array, UserError
from dataset.coco.annotation_file import number_of
from system.user_files import open_bytes
from tasks import _masks
from tasks._coco import Detections

KEYS = {"boxes": "bbox", "masks": "segmentation", "keypoints": "keypoints"}
"""What is scored -> its key in a results file."""
SHORT = Repr()
"""Shows a value in few characters, however deep or long it is."""


def written(
    detections: Detections, kind: str, texts: Mapping[str, Mapping[int, str]] = {}
) -> bytes:
    """Return one kind's file, as COCO's server takes it. Numbers stay as they are, for --score.

    `texts` are ids that are text in an annotation file: "images" and "categories" -> number -> text.
    """
    if kind == "masks":
        shapes = [
            json.dumps({"size": code["size"], "counts": code["counts"].decode()})
            for code in detections.masks or []
        ]
    else:
        values = detections.boxes
        if kind == "keypoints" and detections.keypoints is not None:
            values = detections.keypoints
        rows = values.reshape(len(values), math.prod(values.shape[1:]))
        shapes = [str(row) for row in rows.tolist()]
    entries = zip(
        _ids(detections.image_ids, texts.get("images", {})),
        _ids(detections.category_ids, texts.get("categories", {})),
        shapes,
        detections.scores.tolist(),
        strict=True,
    )
    # json.dumps of a list of dicts takes several times as long
    lines = (
        f'{{"image_id": {image}, "category_id": {category}, "{KEYS[kind]}": {shape}, "score": {score}}}'
        for image, category, shape, score in entries
    )
    return ("[" + ",\n".join(lines) + "]\n").encode()


def file_name(kind: str) -> str:
    """Return the name of a kind's results file."""
    return f"detections{'' if kind == 'boxes' else f'_{kind}'}.json"


def _ids(numbers: Array, texts: Mapping[int, str]) -> list[Any]:
    """Return ids as JSON writes them."""
    return [json.dumps(texts[i]) if i in texts else i for i in numbers.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The entries of a results file, as JSON has them, and which of KEYS the first one has."""

    path: Path
    entries: list[Any]
    kinds: tuple[str, ...]

    @staticmethod
    def read(path: Path) -> Results:
        """Read a results file. Raises UserError when it cannot be read, or is no list of detections."""
        try:
            with open_bytes(path) as file:
                entries = json.loads(file.read())
        except OSError as error:
            raise UserError(f"--score {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            said = " ".join(str(error).split())
            raise UserError(f"--score {path}: is no JSON: {said}") from None
        if not isinstance(entries, list):
            raise UserError(f"--score {path}: a results file is a list of detections")
        if not entries:
            # nothing was found, and only the name of a file that a run wrote tells of what
            named = (kind for kind in KEYS if path.stem.endswith(f"_{kind}"))
            return Results(path=path, entries=[], kinds=(next(named, "boxes"),))
        first = entries[0] if isinstance(entries[0], dict) else {}
        kinds = tuple(kind for kind, key in KEYS.items() if key in first)
        if not kinds:
            keys = ", ".join(KEYS.values())
            raise UserError(f"--score {path}: entry 0 has none of {keys}")
        return Results(path=path, entries=entries, kinds=kinds)

    def checked(self, columns: Any) -> Detections:
        """Return the entries as Detections of the images and categories of `columns`, by image.

        Raises UserError that names the first bad entry.
        """
        samples = {int(image): at for at, image in enumerate(columns.image_id)}
        categories = set(np.asarray(columns.category_ids).tolist())
        texts = columns.text_ids
        points = columns.keypoints.shape[1] if "keypoints" in self.kinds else 0
        rows: list[tuple[int, int, float, list[float], Any, list[float]]] = []
        for place, entry in enumerate(self.entries):
            key = ""
            try:
                key = "image_id"
                image = _id(entry, key, bool(texts.get("images")), samples)
                key = "category_id"
                category = _id(entry, key, bool(texts.get("categories")), categories)
                key = "score"
                score = _numbers([entry[key]], 1)[0]
                box, mask, keypoints = [0.0] * 4, None, list[float]()
                if "boxes" in self.kinds:
                    key = "bbox"
                    box = _numbers(entry[key], 4)
                    if min(box[2:]) < 0:
                        raise ValueError("x y width height, none of the latter below 0")
                if "masks" in self.kinds:
                    key = "segmentation"
                    at = samples[image]
                    size = [int(columns.height[at]), int(columns.width[at])]
                    mask = _masks.checked(entry[key], *size)
                if points:
                    key = "keypoints"
                    keypoints = _numbers(entry[key], 3 * points)
            except (KeyError, TypeError, ValueError) as error:
                got = entry.get(key, "nothing") if isinstance(entry, dict) else entry
                why = error if type(error) is ValueError else f"it needs {key}"
                raise UserError(
                    f"--score {self.path}: entry {place}, {key} got {SHORT.repr(got)}: {why}"
                ) from None
            rows.append((image, category, score, box, mask, keypoints))
        images, of, scores, boxes, masks, found = (
            zip(*rows, strict=True) if rows else [()] * 6
        )
        detections = Detections(
            image_ids=np.array(images, np.int64),
            category_ids=np.array(of, np.int64),
            boxes=np.array(boxes, np.float64).reshape(len(rows), 4),
            scores=np.array(scores, np.float64),
            masks=[*masks] if "masks" in self.kinds else None,
            keypoints=np.array(found, np.float64).reshape(len(rows), points, 3)
            if "keypoints" in self.kinds
            else None,
        )
        return Detections.joined([detections])


def _id(entry: Any, key: str, text: bool, known: Any) -> int:
    """Return a known whole number; of `text` where the annotations have such ids. Raises ValueError."""
    value = entry[key]
    if text and isinstance(value, str):
        value = number_of(entry, key)
    if type(value) is not int or value not in known:
        raise ValueError(
            f"the scanned annotations of validation have no such {key.removesuffix('_id')}"
        )
    return value


def _numbers(values: Any, length: int) -> list[float]:
    """Return `length` finite numbers. Raises ValueError."""
    good = isinstance(values, list) and len(values) == length
    # true is no number; a whole number may be larger than any float64
    if not good or not all(
        type(value) in (int, float) and abs(value) < 1e300 for value in values
    ):
        raise ValueError(f"it must be {length} numbers, none of them NaN or infinite")
    return [float(value) for value in values]
