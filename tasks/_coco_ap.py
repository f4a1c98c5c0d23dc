"""The metric of detection: detections in batches, on any rank -> COCO's figures. Knows no files' layout."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from contracts import Array, Batch, Pending, Rows, Source, World
from plan import geometry
from system.processes import Beside
from tasks import _coco, _masks, _results
from tasks._coco import Detections

DRAWN = 4
"""Images of a validation that are drawn with their detections, spread evenly from the first to the last."""


class Nothing:
    """contracts.Pending of the ranks that make no figures."""

    def done(self) -> bool:
        return True

    def result(self) -> dict[str, Any]:
        return {}

    def drop(self) -> None:
        pass


class CocoAP:
    """contracts.Metric: COCO's figures of boxes, and of masks or keypoints beside them.

    `source` has the images that are drawn; without it none are.

    Detections are kept on the host, packed, 24 bytes a box (keypoints 12 bytes each, masks as run lengths);
    rank 0 compares them.
    """

    def __init__(
        self,
        columns: Any,
        device: torch.device,
        *,
        source: Source | None = None,
        masks: bool = False,
        keypoints: bool = False,
        evaluator: str = "faster-coco-eval",
    ) -> None:
        self._columns = columns
        self._source = source
        self._device = device
        self._evaluator = evaluator
        kinds = {"boxes": True, "masks": masks, "keypoints": keypoints}
        self._kinds = [kind for kind, there in kinds.items() if there]
        self._seen: list[Array] = []  # ids of images, int64
        # ids of those that could be decoded, and which of them got numbers
        self._finite: list[tuple[Array, torch.Tensor]] = []
        # of each batch: rows; the row of each detection; boxes, score and label [N, 6]; keypoints; masks
        self._pending: list[
            tuple[Rows, Array, torch.Tensor, torch.Tensor | None, list[Any] | None]
        ] = []

    def update(self, outputs: Sequence[dict[str, torch.Tensor]], batch: Batch) -> None:
        """Add a batch. `outputs`, of each image, are in the batch's pixels.

        They are boxes [N, 4], labels, scores [N], masks [N, 1, M, M] and keypoints [N, K, 3].
        """
        rows = rows_of(batch)
        self._seen.append(batch.ids[batch.ids >= 0])
        places: list[int] = np.flatnonzero(rows.valid).tolist()
        if not places:
            return
        found = [outputs[place] for place in places]
        finite = torch.stack([_is_finite(output) for output in found])
        self._finite.append((rows.ids[places], _to_host(finite)))
        row_of = np.repeat(places, [len(output["scores"]) for output in found])
        if not len(row_of):
            return
        boxes, scores, labels = (
            torch.cat([output[name] for output in found]).float()
            for name in ("boxes", "scores", "labels")
        )
        values = _to_host(torch.cat([boxes, scores[:, None], labels[:, None]], dim=1))
        keypoints = masks = None
        if "keypoints" in self._kinds:
            points = torch.cat([output["keypoints"] for output in found])
            keypoints = _to_host(points.float())
        if "masks" in self._kinds:
            masks = []
            for place, output in zip(places, found, strict=True):
                masks += self._encoded(output, rows, place)
        self._pending.append((rows, row_of, values, keypoints, masks))

    def result(self, world: World) -> Pending:
        """Return COCO's figures, by the names of _coco.Scores, `samples` and `detections` once they are made.

        Those of masks begin with mask_, those of keypoints with keypoint_. `extras` are files, images and
        scalars that are no figures. Rank 0 makes them in a process of its own. Every rank must call it.
        """
        not_finite = self._not_finite()
        seen_here = np.concatenate([np.zeros(0, np.int64), *self._seen])
        decoded = sum(len(ids) for ids, _ in self._finite)
        own = self._local_detections(not_finite)
        # every rank takes part, and rank 0 alone has figures to make of it
        everyone = world.gather((seen_here, own, decoded, len(not_finite)))
        self._pending.clear()
        seen, parts, decoded_of, not_finite_of = zip(*everyone, strict=True)
        ids = np.concatenate(seen)
        if len(np.unique(ids)) != len(ids):
            raise ValueError(
                "an image was validated twice, so its objects would count twice: "
                "the plan or the loader is wrong"
            )
        if world.rank != 0:
            return Nothing()
        # matplotlib, which other tasks start without; here, because what is forked below may wait for no
        # import of another thread
        from tasks import _plots  # noqa: F401

        counts = {"samples": sum(decoded_of), "outputs_not_finite": sum(not_finite_of)}
        return Beside(lambda: self._scored(parts, counts, spread(seen[0], DRAWN)))

    def _not_finite(self) -> Array:
        """Return the ids, int64, of this rank's images whose output is no number; waits for the device."""
        if self._device.type == "cuda":
            # what was copied is there
            torch.cuda.current_stream(self._device).synchronize()
        none = np.zeros(0, np.int64)
        return np.concatenate(
            [none, *(ids[~finite.numpy()] for ids, finite in self._finite)]
        )

    def _scored(
        self, parts: Sequence[Detections], counts: dict[str, int], drawn: list[int]
    ) -> dict[str, Any]:
        began = time.perf_counter()
        columns = self._columns
        detections = Detections.joined(parts)
        scores = [
            _coco.score(columns, detections, kind=kind, evaluator=self._evaluator)
            for kind in self._kinds
        ]
        figures: dict[str, Any] = {}
        for of_kind in scores:
            figures |= of_kind.figures()
        extras = self._extras(detections, scores, drawn)
        figures |= {**counts, "detections": len(detections), "extras": extras}
        return figures | {"seconds": time.perf_counter() - began}

    def _local_detections(self, not_finite: Array) -> Detections:
        """Return this rank's detections in pixels of the stored images, cut at their borders.

        Those of classes that are no category, and of images whose output is `not_finite`, are left out.
        """
        columns = self._columns
        of_class = np.where(
            columns.category_of >= 0,
            np.asarray(columns.category_ids)[columns.category_of],
            -1,
        )
        none = np.zeros(0, np.int64)
        points = len(columns.keypoint_mirror) if "keypoints" in self._kinds else None
        empty = Detections(
            image_ids=none,
            category_ids=none,
            boxes=np.zeros((0, 4)),
            scores=np.zeros(0),
            masks=[] if "masks" in self._kinds else None,
            keypoints=None if points is None else np.zeros((0, points, 3)),
        )
        parts = [empty]
        for rows, row_of, values, keypoints, masks in self._pending:
            table = values.numpy()
            ids = rows.ids[row_of]
            part = Detections(
                image_ids=np.asarray(columns.image_id)[ids],
                category_ids=of_class[table[:, 5].astype(np.int64)],
                boxes=self._boxes(rows, row_of, table[:, :4]),
                scores=table[:, 4].astype(np.float64),
                masks=masks,
                keypoints=None
                if keypoints is None
                else _moved(rows, row_of, keypoints.numpy()),
            )
            usable = (part.category_ids >= 0) & ~np.isin(ids, not_finite)
            parts.append(part.taken(np.flatnonzero(usable)))
        return Detections.joined(parts)

    def _boxes(self, rows: Rows, which: Array, corners: Array) -> Array:
        """Turn x0 y0 x1 y1 in the batch's pixels into x y width height within the image, float64 [N, 4]."""
        ids = rows.ids[which]
        ends = geometry.boxes_to_image(rows, which, corners.astype(np.float64))
        limits = np.stack(
            [self._columns.width[ids], self._columns.height[ids]], axis=1
        ).astype(np.float64)
        low = np.clip(ends[:, :2], 0.0, limits)
        high = np.clip(ends[:, 2:], 0.0, limits)
        return np.concatenate([low, high - low], axis=1)

    def _encoded(
        self, output: dict[str, torch.Tensor], rows: Rows, place: int
    ) -> list[Any]:
        """Encode the masks of one image at its own size."""
        corners = output["boxes"].float().cpu().numpy()
        boxes = self._boxes(rows, np.full(len(corners), place), corners)
        boxes[:, 2:] += boxes[:, :2]
        sample = rows.ids[place]
        size = int(self._columns.height[sample]), int(self._columns.width[sample])
        return _masks.encoded(output["masks"].cpu(), boxes, *size)

    def _extras(
        self, detections: Detections, scores: list[_coco.Scores], drawn: list[int]
    ) -> dict[str, Any]:
        """Return results files, AP by class, and pictures: curves, and a few images with detections."""
        from tasks import _plots

        columns = self._columns
        names = _coco.names(columns)
        files, scalars, images = {}, {}, {}
        for of_kind in scores:
            prefix = _coco.PREFIXES[of_kind.kind]
            content = _results.written(detections, of_kind.kind)
            files[_results.file_name(of_kind.kind)] = content
            for category, value in of_kind.by_category().items():
                scalars[f"val_{prefix}ap/{names[category]}"] = value
            images[f"val/{prefix}precision_recall"] = _plots.curves(of_kind)
        pictures = _plots.predictions(columns, self._source, detections, drawn)
        if pictures is not None:
            images["val/predictions"] = pictures
        return {"files": files, "scalars": scalars, "images": images}


def spread(ids: Array, count: int) -> list[int]:
    """Choose at most `count` of `ids`, at equal distances, the first and the last among them."""
    places = np.unique(
        np.linspace(0, len(ids) - 1, min(count, len(ids))).round().astype(np.int64)
    )
    return [int(sample) for sample in ids[places]]


def rows_of(batch: Batch) -> Rows:
    """Return the rows that the batch was made of."""
    if batch.rows is None:
        raise ValueError(
            "detection needs a loader that says which rows a batch was made of"
        )
    return batch.rows


def _is_finite(output: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return, bool, whether all that was found in an image are numbers; and what the detector says of it."""
    # `finite` is a bool, which counts as a finite number
    finite = [torch.isfinite(value).all() for value in output.values()]
    if "finite" in output:
        finite.append(output["finite"])
    return torch.stack(finite).all()


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """Copy to the host without waiting; to be read after the stream was waited for."""
    return values.to("cpu", non_blocking=True)


def _moved(rows: Rows, which: Array, points: Array) -> Array:
    """Move keypoints [N, K, 3] to the image's pixels, the third number as it is."""
    points = points.astype(np.float64)
    return np.concatenate(
        [geometry.to_image(rows, which, points[:, :, :2]), points[:, :, 2:]], axis=2
    )
