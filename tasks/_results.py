"""Detections as files in COCO's results format: written after a validation, read for --score."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from contracts import UserError
from system.user_files import open_bytes
from tasks import _masks
from tasks._coco import Detections

KEYS = {"boxes": "bbox", "masks": "segmentation", "keypoints": "keypoints"}
"""What is scored -> its key in a results file."""
SHORT = Repr()
"""Shows a value in few characters, however deep or long it is."""


def written(detections: Detections, kind: str) -> bytes:
    """Return one kind's file, as COCO's server takes it. Numbers stay as they are, for --score."""
    if kind == "masks":
        shapes = [
            json.dumps({"size": code["size"], "counts": code["counts"].decode()})
            for code in detections.masks or []
        ]
    else:
        values = detections.keypoints if kind == "keypoints" else detections.boxes
        assert values is not None
        rows = values.reshape(len(values), math.prod(values.shape[1:]))
        shapes = [str(row) for row in rows.tolist()]
    entries = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
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
        keypoints = columns.keypoints.shape[1]
        lengths = {"boxes": 4, "keypoints": 3 * keypoints}
        found: dict[str, list[Any]] = {kind: [] for kind in self.kinds}
        ids: list[tuple[int, int]] = []
        scores: list[float] = []
        for place, entry in enumerate(self.entries):
            try:
                image, category = entry["image_id"], entry["category_id"]
                if type(image) is not int or image not in samples:
                    raise ValueError("image_id is none of the scanned annotations")
                if type(category) is not int or category not in categories:
                    raise ValueError("category_id is none of the annotations")
                ids.append((image, category))
                scores += _numbers([entry["score"]], 1)
                for kind in self.kinds:
                    value = entry[KEYS[kind]]
                    if kind == "masks":
                        at = samples[image]
                        size = int(columns.height[at]), int(columns.width[at])
                        found[kind].append(_masks.checked(value, *size))
                    else:
                        found[kind].append(_numbers(value, lengths[kind]))
                        if kind == "boxes" and min(value[2:]) < 0:
                            raise ValueError("width and height must not be negative")
            except (KeyError, TypeError, ValueError) as error:
                why = f"{error}" if type(error) is ValueError else "it lacks a key"
                raise UserError(
                    f"--score {self.path}: entry {place} {SHORT.repr(entry)}: {why}"
                ) from None
        count = len(scores)
        numbers = np.array(ids, np.int64).reshape(count, 2)
        boxes = found.get("boxes") or [[0.0] * 4] * count
        points = np.array(found.get("keypoints", []), np.float64)
        detections = Detections(
            image_ids=numbers[:, 0],
            category_ids=numbers[:, 1],
            boxes=np.array(boxes, np.float64).reshape(count, 4),
            scores=np.array(scores, np.float64),
            masks=found.get("masks"),
            keypoints=points.reshape(-1, keypoints, 3)
            if "keypoints" in found
            else None,
        )
        return Detections.joined([detections])


def _numbers(values: Any, length: int) -> list[float]:
    """Return `length` finite numbers. Raises ValueError."""
    # true is no number; a whole number may be larger than any float64
    if (
        not isinstance(values, list)
        or len(values) != length
        or any(type(one) not in (int, float) or not abs(one) < 1e300 for one in values)
    ):
        raise ValueError(f"{length} finite numbers are due")
    return [float(value) for value in values]
