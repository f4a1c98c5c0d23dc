"""Detections as files in COCO's results format: written after a validation, read for --score."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from saturate.contracts import UserError
from saturate.dataset.coco.columns import Instances
from saturate.dataset.scan.manifest import Rejected
from saturate.system.user_files import open_bytes
from saturate.tasks import _masks
from saturate.tasks._coco import Detections

KEYS = {"boxes": "bbox", "masks": "segmentation", "keypoints": "keypoints"}
"""What is scored -> its key in a results file."""
SHORTENED = Repr()
"""Shows a value in few characters, however deep or long it is."""
Entries = list[dict[str, Any]]


def entries(detections: Detections, kind: str) -> Entries:
    """Return one kind's entries of a results file, as COCO's server takes them."""
    shapes: Sequence[object]
    if kind == "masks":
        shapes = detections.masks or []
    elif kind == "keypoints":
        assert detections.keypoints is not None
        points = detections.keypoints
        shapes = points.reshape(len(points), 3 * points.shape[1]).tolist()
    else:
        shapes = detections.boxes.tolist()
    rows = zip(
        detections.image_ids.tolist(),
        detections.category_ids.tolist(),
        shapes,
        detections.scores.tolist(),
        strict=True,
    )
    names = ("image_id", "category_id", KEYS[kind], "score")
    return [dict(zip(names, row, strict=True)) for row in rows]


def encoded(found: Entries) -> bytes:
    """Return a results file, with an entry a line.

    Numbers are not rounded, so that --score gives the same figures.
    """
    return ("[" + ",\n".join(map(json.dumps, found)) + "]\n").encode()


def file_name(kind: str) -> str:
    """Return the name of a kind's results file."""
    return f"detections{'' if kind == 'boxes' else f'_{kind}'}.json"


def read(path: Path) -> tuple[list[Any], list[str]]:
    """Read a results file: its entries, and which of KEYS the first one has.

    Raises UserError when it cannot be read, or is no list of detections.
    """
    try:
        with open_bytes(path) as file:
            found = json.loads(file.read())
    except OSError as error:
        raise UserError(f"--score {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"--score {path}: is no JSON: {said}") from None
    if found == []:
        return found, ["boxes"]  # an empty list is scored as boxes
    first = found[0] if isinstance(found, list) else None
    kinds = [
        kind for kind, key in KEYS.items() if isinstance(first, dict) and key in first
    ]
    if not kinds:
        keys = ", ".join(KEYS.values())
        raise UserError(f"--score {path}: is no list of detections with one of {keys}")
    return found, kinds


def checked(path: Path, found: list[Any], kind: str, columns: Instances) -> Entries:
    """Return one kind's entries of a file, of the images and categories of `columns`.

    Raises UserError that names the first bad entry.
    """
    samples = {int(image): sample for sample, image in enumerate(columns.image_id)}
    categories = set(np.asarray(columns.category_ids).tolist())
    key = KEYS[kind]
    length = 4 if kind == "boxes" else 3 * columns.keypoints.shape[1]
    kept = []
    for place, entry in enumerate(found):
        try:
            image, category, shape = (
                entry[name] for name in ("image_id", "category_id", key)
            )
            sample = samples[image]
            if category not in categories:
                raise ValueError("its category is none of the annotations")
            if kind == "masks":
                size = int(columns.height[sample]), int(columns.width[sample])
                shape = _masks.checked(shape, *size)
            else:
                _require_numbers(key, shape, length)
            _require_numbers("score", [entry["score"]], 1)
            if kind == "boxes" and min(shape[2:]) < 0:
                raise ValueError("bbox has a negative size")
        except (KeyError, TypeError, ValueError, Rejected) as error:
            said = (
                f" has no {key} and score of a scanned image, or no category of the annotations"
                if isinstance(error, (KeyError, TypeError))
                else f": {error}"
            )
            shown = SHORTENED.repr(entry)
            raise UserError(f"--score {path}: entry {place} {shown}{said}") from None
        kept.append(
            {
                "image_id": image,
                "category_id": category,
                key: shape,
                "score": entry["score"],
            }
        )
    return kept


def _require_numbers(key: str, values: object, length: int) -> None:
    """Raise ValueError unless these are `length` finite numbers."""
    # true is no number; a whole number may be larger than any float64; the comparison also refuses nan
    if (
        not isinstance(values, list)
        or len(values) != length
        or any(type(one) not in (int, float) or not abs(one) < 1e300 for one in values)
    ):
        raise ValueError(f"{key} has to have finite numbers: {length}")
