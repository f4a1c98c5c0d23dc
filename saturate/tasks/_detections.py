"""Predictions of a detector: images without annotations, what was found in them, and pictures of that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import Split, World, counted, utf8
from saturate.dataset.coco.columns import ANNOTATED, BACKGROUND, UNUSED, Instances
from saturate.dataset.images.columns import Header, Images
from saturate.tasks import _results
from saturate.tasks._coco import Detections
from saturate.tasks._coco_ap import CocoAP
from saturate.tasks._predictions import (
    NO_NUMBER,
    NOTHING,
    by_class,
    picture_names,
    spread,
)
from saturate.tasks.kind import Asked

DRAWN = 100
"""Images that are drawn with what was found in them, at most, spread evenly over all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Unannotated(Instances):
    """Images in which nothing is marked, for a network with these classes; image ids are 1, 2, ..."""

    images: Images

    @classmethod
    def from_images(cls, images: Images, classes: tuple[str, ...]) -> Unannotated:
        """Return columns of these images; `classes` are the network's, with the background first."""
        unnamed = (BACKGROUND, UNUSED)
        numbers = [at for at, name in enumerate(classes) if name not in unnamed]
        none = {name: np.zeros(0, dtype) for name, dtype in ANNOTATED.items()}
        one = np.zeros(1, np.int64)
        known = ["folder", "root", "fingerprint", "path_bytes", "path_offsets", "exif"]
        return cls(
            images=images,
            **{name: getattr(images, name) for name in (*known, *Header._fields)},
            **none
            | {
                "image_id": np.arange(1, len(images) + 1),
                "annotation_offsets": np.zeros(len(images) + 1, np.int64),
                "boxes": np.zeros((0, 4)),
                "polygon_offsets": one,
                "point_offsets": one,
                "points": np.zeros((0, 2)),
                "rle_offsets": one,
                "keypoints": np.zeros((0, 0, 3)),
                "category_ids": np.array(numbers, np.int64),
            },
            classes=classes,
            rejected=0,
            keypoint_name=np.zeros(0, np.uint32),
            numbers=np.array(numbers, np.int64),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Unannotated.from_images, classes=self.classes), (self.images,)


class Found(CocoAP):
    """contracts.Metric that scores nothing: its result are the detections of all ranks."""

    def result(self, world: World) -> dict[str, Any]:  # type: ignore[override]
        """Return the detections by image, samples whose output is no number, and `notes`: where nothing is found."""
        detections, decoded, not_finite = self._of_all(world)
        likely = detections.image_ids[detections.scores >= self._threshold]
        finite = np.array(sorted({*decoded} - not_finite), int)
        empty = finite[~np.isin(self._columns.image_id[finite], likely)]
        notes = []
        if len(empty):
            assert self._source is not None
            notes.append(
                f"{NOTHING} in {len(empty):,} of {counted(len(decoded), 'image')} "
                f"(--score-threshold {self._threshold:g}), first {self._source.name(empty[0])}"
            )
        return {"detections": detections, "not_finite": not_finite, "notes": notes}


def write_detections(
    folder: Path,
    results: Mapping[str, Any],
    asked: Asked,
    *,
    split: Split[Instances],
    kinds: Sequence[str],
    threshold: float,
) -> list[Path]:
    """Write detections*.json in COCO's results format, pictures, and images.json: the file of each id.

    `threshold`: least score of what is drawn.
    """
    detections: Detections = results["detections"]
    columns = split.columns
    files = []
    for kind in kinds:
        files.append(folder / _results.file_name(kind))
        files[-1].write_bytes(_results.encoded(_results.entries(detections, kind)))
    drawn = _draw(folder / "drawn", split, detections, threshold)
    images = []
    for place, name in enumerate(asked.names):
        sample = int(asked.samples[place])
        own: dict[str, Any] = {"file_name": utf8(name)}
        if sample >= 0:
            own = {"id": int(columns.image_id[sample]), **own}
            own["width"] = int(columns.width[sample])
            own["height"] = int(columns.height[sample])
        if sample in drawn:
            own["drawn"] = f"drawn/{drawn[sample]}"
        error = (
            NO_NUMBER if sample in results["not_finite"] else asked.errors.get(place)
        )
        images.append(own | ({} if error is None else {"error": error}))
    named = zip(columns.category_ids.tolist(), columns.class_names, strict=True)
    categories = [{"id": number, "name": utf8(name)} for number, name in named]
    listed = folder / "images.json"
    listed.write_text(
        json.dumps({"images": images, "categories": categories}, indent=1) + "\n"
    )
    return [*files, listed, *([folder / "drawn"] if drawn else [])]


def summed_up(
    results: Mapping[str, Any], *, columns: Instances, threshold: float
) -> str:
    """Say how many objects of each class were found, of those that are drawn."""
    detections: Detections = results["detections"]
    numbers = detections.category_ids[detections.scores >= threshold]
    names = dict(zip(columns.category_ids.tolist(), columns.class_names, strict=True))
    counts = by_class(numbers, names) or "nothing"
    return f"found at a score of {threshold:g} and above: {counts}"


def _draw(
    folder: Path, split: Split[Instances], detections: Detections, threshold: float
) -> dict[int, str]:
    """Draw at most DRAWN images into the folder, named after their files; return sample -> name."""
    from saturate.tasks import (
        _plots,  # with matplotlib, which other tasks start without
    )

    samples = spread(len(split.columns), DRAWN)
    names = picture_names([split.source.name(sample) for sample in samples], ".jpg")
    drawn = {}
    for sample, name in zip(samples, names, strict=True):
        picture = _plots.detected(
            split.columns, split.source, detections, sample, threshold
        )
        if picture is not None:
            folder.mkdir(exist_ok=True)
            picture.save(folder / name, quality=90)
            drawn[sample] = name
    return drawn
