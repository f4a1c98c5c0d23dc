"""Detections as files in COCO's results format: written after a validation, read for --score."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from contracts import Array, UserError
from system import processes
from system.resources import cores
from system.user_files import open_bytes, read_text
from tasks import _masks
from tasks._coco import Detections

KEYS = {"boxes": "bbox", "masks": "segmentation", "keypoints": "keypoints"}
"""What is scored -> its key in a results file."""
PART = 20_000
"""Detections a process writes, at least."""
SHORT = Repr()
"""Says what an entry has, however deep or long that is."""


def written(detections: Detections, kind: str) -> bytes:
    """Return one file a kind, as COCO's server takes it; many are written in processes.

    Numbers stay as they are, so that --score gives the same figures.
    """
    parts = min(max(int(cores()), 1), len(detections) // PART + 1)
    of_part = np.array_split(np.arange(len(detections)), parts)

    def lines_of(part: int) -> bytes:
        return _lines(detections.taken(of_part[part]), kind)

    lines = (
        processes.gathered(lines_of, range(parts), parts)
        if parts > 1
        else [lines_of(0)]
    )
    return b"[" + b",\n".join(lines) + b"]\n"


def _lines(detections: Detections, kind: str) -> bytes:
    if kind == "masks":
        shapes = [
            json.dumps({"size": code["size"], "counts": code["counts"].decode()})
            for code in detections.masks or []
        ]
    else:
        values = (
            detections.boxes
            if kind == "boxes" or detections.keypoints is None
            else detections.keypoints
        )
        shapes = list(
            map(
                str,
                values.reshape(len(detections), math.prod(values.shape[1:])).tolist(),
            )
        )
    rows = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
        shapes,
        detections.scores.tolist(),
        strict=True,
    )
    lines = (
        f'{{"image_id": {image}, "category_id": {category}, "{KEYS[kind]}": {shape}, "score": {score}}}'
        for image, category, shape, score in rows
    )
    return ",\n".join(lines).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The entries of a results file, as JSON has them, and which of KEYS they have."""

    path: Path
    entries: list[dict[str, Any]]
    kinds: tuple[str, ...]

    @staticmethod
    def read(path: Path) -> Results:
        """Read a results file. Raises UserError when it cannot be read, or is no list of entries with the
        same sort of shape.
        """
        try:
            with open_bytes(path) as file:
                content = json.loads(file.read())
        except OSError as error:
            raise UserError(
                f"--score {path}: {error.strerror or error}; name a results file in COCO's format"
            ) from None
        except ValueError as error:  # of JSON, or of its encoding
            raise UserError(
                f"--score {path}: is no JSON: {' '.join(str(error).split())}"
            ) from None
        except RecursionError:
            raise UserError(
                f"--score {path}: is nested too deep; a results file is a list of detections"
            ) from None
        if not isinstance(content, list):
            raise UserError(
                f"--score {path}: got {type(content).__name__}, a results file is a list of detections"
            )
        if not content:  # nothing was found, and only the name of a file that a run wrote tells of what
            own = next(
                (kind for kind in KEYS if path.stem.endswith(f"_{kind}")), "boxes"
            )
            return Results(path=path, entries=[], kinds=(own,))
        first = content[0] if isinstance(content[0], dict) else {}
        kinds = tuple(kind for kind, key in KEYS.items() if key in first)
        needed = {"image_id", "category_id", "score", *(KEYS[kind] for kind in kinds)}
        for place, entry in enumerate(content):
            missing = sorted(
                needed - (entry.keys() if isinstance(entry, dict) else set())
            )
            if missing or not kinds:
                why = (
                    f"no {' and no '.join(missing)}"
                    if missing
                    else f"none of {', '.join(KEYS.values())}"
                )
                raise UserError(
                    f"--score {path}: entry {place} has {why}; "
                    "each needs image_id, category_id, score and the shape that entry 0 has"
                )
        return Results(path=path, entries=content, kinds=kinds)

    def checked(self, columns: Any) -> Detections:
        """Return the entries as Detections of the images and categories of `columns`, by image.

        Raises UserError that names the first bad entry.
        """
        images = self._ids("image_id")
        self._require_images(images, columns)
        categories = self._ids("category_id")
        known = np.isin(categories, np.asarray(columns.category_ids))
        self._require(known, "category_id", "no category of the validation annotations")
        samples = np.searchsorted(columns.image_id, images)
        boxes = np.zeros((len(images), 4))
        if "boxes" in self.kinds:
            boxes = self._numbers("bbox", 4)
            positive = boxes[:, 2:].min(axis=1) >= 0
            self._require(
                positive,
                "bbox",
                "a box is x y width height, and neither of these is negative",
            )
        keypoints = None
        if "keypoints" in self.kinds:
            count = columns.keypoints.shape[1]
            keypoints = self._numbers("keypoints", 3 * count).reshape(
                len(images), count, 3
            )
        detections = Detections(
            image_ids=images,
            category_ids=categories,
            boxes=boxes,
            scores=self._numbers("score", 1)[:, 0],
            masks=self._masks(columns, samples) if "masks" in self.kinds else None,
            keypoints=keypoints,
        )
        return Detections.joined([detections])

    def _ids(self, key: str) -> Array:
        """Return whole numbers, int64 [N]."""
        values = [entry[key] for entry in self.entries]
        whole = (
            type(value) is int and abs(value) < 2**63 for value in values
        )  # true is no number
        self._require(whole, key, "an id is a whole number")
        return np.array(values, np.int64)

    def _require_images(self, images: Array, columns: Any) -> None:
        known = np.isin(images, np.asarray(columns.image_id))
        if known.all():
            return
        why = "no image of the validation annotations"
        listed = columns.folder / "rejected.txt"
        line = rf"\timage {images[known.argmin()]}: "
        if columns.rejected and re.search(line, read_text(listed, errors="replace")):
            why = f"left out by the scan, see {listed}"
        self._require(known, "image_id", why)

    def _numbers(self, key: str, length: int) -> Array:
        """Return float64 [N, length], finite."""
        values = [
            entry[key] if isinstance(entry[key], list) else [entry[key]]
            for entry in self.entries
        ]
        due = "a number" if length == 1 else f"{length} numbers"
        good = (len(value) == length and all(map(_finite, value)) for value in values)
        self._require(good, key, f"it must be {due}, none of them NaN or infinite")
        return np.array(values, np.float64).reshape(len(values), length)

    def _masks(self, columns: Any, samples: Array) -> list[dict[str, Any]]:
        """Return run lengths, compressed, each of the size of its image."""
        key = "segmentation"
        sizes = np.stack(
            [columns.height[samples], columns.width[samples]], axis=1
        ).tolist()
        codes = []
        for place, (entry, size) in enumerate(zip(self.entries, sizes, strict=True)):
            code = entry[key] if isinstance(entry[key], dict) else {}
            counts = code.get("counts")
            if code.get("size") != size or not isinstance(counts, str | list):
                raise self._error(
                    place,
                    key,
                    f"run lengths {{size, counts}} of an image of {size} are due",
                )
            try:
                codes.append(_masks.checked(counts, *size))
            except ValueError:
                due = f"none below 0, that sum up to {size[0]} x {size[1]} pixels"
                raise self._error(
                    place, key, f"counts must be run lengths, {due}"
                ) from None
        return codes

    def _require(self, good: Iterable[Any], key: str, why: str) -> None:
        """Raise UserError for the first entry that is not good."""
        for place, is_good in enumerate(good):
            if not is_good:
                raise self._error(place, key, why)

    def _error(self, place: int, key: str, why: str) -> UserError:
        got = SHORT.repr(self.entries[place][key])
        shown = got if len(got) <= 60 else got[:57] + "..."
        return UserError(
            f"--score {self.path}: entry {place}, {key} got {shown}: {why}"
        )


def _finite(value: Any) -> bool:
    """Whether a value is a number that float64 has, neither NaN nor infinite; true is none."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
