"""Detections as files in COCO's results format: written after a validation, read for --score."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

import numpy as np

from contracts import Array, UserError
from dataset.coco.annotation_file import number_of
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


Texts = Mapping[str, Mapping[int, str]]
"""Ids that are text in an annotation file: "images" and "categories" -> number -> text."""
NUMBERS_ALONE: Texts = {}


def written(found: Detections, kind: str, texts: Texts = NUMBERS_ALONE) -> bytes:
    """Return one file a kind, as COCO's server takes it; many are written in processes.

    Numbers stay as they are, so that --score gives the same figures.
    """
    parts = min(max(int(cores()), 1), len(found) // PART + 1)
    of_part = np.array_split(np.arange(len(found)), parts)
    lines = (
        processes.gathered(lambda part: _lines(found.taken(of_part[part]), kind, texts), range(parts), parts)
        if parts > 1
        else [_lines(found, kind, texts)]
    )
    return b"[" + b",\n".join(lines) + b"]\n"


def _lines(found: Detections, kind: str, texts: Texts) -> bytes:
    if kind == "masks":
        shapes = [
            json.dumps({"size": code["size"], "counts": code["counts"].decode()})
            for code in found.masks or []
        ]
    else:
        values = found.boxes if kind == "boxes" or found.keypoints is None else found.keypoints
        shapes = list(map(str, values.reshape(len(found), math.prod(values.shape[1:])).tolist()))
    images = _ids(found.image_ids, texts.get("images", {}))
    categories = _ids(found.category_ids, texts.get("categories", {}))
    rows = zip(images, categories, shapes, found.scores.tolist(), strict=True)
    lines = (
        f'{{"image_id": {image}, "category_id": {category}, "{KEYS[kind]}": {shape}, "score": {score}}}'
        for image, category, shape, score in rows
    )
    return ",\n".join(lines).encode()


def _ids(numbers: Array, texts: Mapping[int, str]) -> list[Any]:
    """Return ids as JSON writes them."""
    return [json.dumps(texts[i]) if i in texts else i for i in numbers.tolist()]


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
            raise UserError(f"--score {path}: is no JSON: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise UserError(
                f"--score {path}: is nested too deep; a results file is a list of detections"
            ) from None
        if not isinstance(content, list):
            raise UserError(
                f"--score {path}: got {type(content).__name__}, a results file is a list of detections"
            )
        if not content:  # nothing was found, and only the name of a file that a run wrote tells of what
            own = next((kind for kind in KEYS if path.stem.endswith(f"_{kind}")), "boxes")
            return Results(path=path, entries=[], kinds=(own,))
        first = content[0] if isinstance(content[0], dict) else {}
        kinds = tuple(kind for kind, key in KEYS.items() if key in first)
        needed = {"image_id", "category_id", "score", *(KEYS[kind] for kind in kinds)}
        for place, entry in enumerate(content):
            missing = sorted(needed - entry.keys()) if isinstance(entry, dict) else sorted(needed)
            if missing or not kinds:
                said = (
                    f"has no {' and no '.join(missing)}"
                    if missing
                    else f"has none of {', '.join(KEYS.values())}"
                )
                raise UserError(
                    f"--score {path}: entry {place} {said}; "
                    "each needs image_id, category_id, score and the shape that entry 0 has"
                )
        return Results(path=path, entries=content, kinds=kinds)

    def checked(self, columns: Any) -> Detections:
        """Return the entries as Detections of the images and categories of `columns`, by image.

        Raises UserError that names the first bad entry.
        """
        texts = columns.text_ids
        images = self._whole("image_id", text=bool(texts.get("images")))
        self._images_known(images, columns)
        categories = self._whole("category_id", text=bool(texts.get("categories")))
        unknown = ~np.isin(categories, np.asarray(columns.category_ids))
        self._refuse(unknown, "category_id", "no category of the validation annotations")
        count = len(self.entries)
        samples = np.searchsorted(columns.image_id, images)
        boxes = self._numbers("bbox", 4) if "boxes" in self.kinds else np.zeros((count, 4))
        self._refuse(
            boxes[:, 2:].min(axis=1) < 0,
            "bbox",
            "a box is x y width height, and neither of these is negative",
        )
        found = Detections(
            image_ids=images,
            category_ids=categories,
            boxes=boxes,
            scores=self._numbers("score", 1)[:, 0],
            masks=self._masks(columns, samples) if "masks" in self.kinds else None,
            keypoints=self._numbers("keypoints", 3 * columns.keypoints.shape[1]).reshape(
                count, columns.keypoints.shape[1], 3
            )
            if "keypoints" in self.kinds
            else None,
        )
        return Detections.joined([found])

    def _whole(self, key: str, *, text: bool) -> Array:
        """Return whole numbers, int64 [N]; those of `text` where the annotations have such ids."""
        values = [one[key] for one in self.entries]
        if text:
            values = [number_of(one, key) if isinstance(one[key], str) else one[key] for one in self.entries]
        bad = np.array(
            [not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63 for value in values]
        )
        self._refuse(bad, key, "an id is a whole number")
        return np.array(values, np.int64)

    def _images_known(self, images: Array, columns: Any) -> None:
        unknown = ~np.isin(images, np.asarray(columns.image_id))
        if unknown.any():
            listed = columns.folder / "rejected.txt"
            named = columns.rejected and re.search(
                rf"\timage {images[np.argmax(unknown)]}: ", read_text(listed, errors="replace")
            )
            self._refuse(
                unknown,
                "image_id",
                f"left out by the scan, see {listed}" if named else "no image of the validation annotations",
            )

    def _numbers(self, key: str, length: int) -> Array:
        """Return float64 [N, length], finite."""
        values = [entry[key] if isinstance(entry[key], list) else [entry[key]] for entry in self.entries]
        said = (
            f"it must be {'a number' if length == 1 else f'{length} numbers'}, none of them NaN or infinite"
        )
        self._refuse(
            np.array([len(value) != length or not all(map(_finite, value)) for value in values]), key, said
        )
        return np.array(values, np.float64).reshape(len(values), length)

    def _masks(self, columns: Any, samples: Array) -> list[dict[str, Any]]:
        """Return run lengths, compressed, each of the size of its image."""
        sizes = np.stack([columns.height[samples], columns.width[samples]], axis=1).tolist()
        codes = []
        for place, (entry, size) in enumerate(zip(self.entries, sizes, strict=True)):
            code = entry["segmentation"]
            if (
                not isinstance(code, dict)
                or code.get("size") != size
                or not isinstance(code.get("counts"), str | list)
            ):
                self._refuse(
                    np.arange(len(sizes)) == place,
                    "segmentation",
                    f"run lengths {{size, counts}} of an image of {size} are due",
                )
            try:
                codes.append(_masks.checked(code["counts"], *size))
            except ValueError:
                said = (
                    f"counts must be run lengths, none below 0, that sum up to {size[0]} x {size[1]} pixels"
                )
                self._refuse(np.arange(len(sizes)) == place, "segmentation", said)
        return codes

    def _refuse(self, bad: Array, key: str, said: str) -> None:
        """Raise UserError for the first entry that is bad, bool [N]."""
        if bad.any():
            place = int(np.argmax(bad))
            got = SHORT.repr(self.entries[place][key])
            shown = got if len(got) <= 60 else got[:57] + "..."
            raise UserError(f"--score {self.path}: entry {place}, {key} got {shown}: {said}")


def _finite(value: Any) -> bool:
    """Whether a value is a number that float64 has, neither NaN nor infinite; true is none."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
