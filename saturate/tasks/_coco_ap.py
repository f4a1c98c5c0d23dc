"""The metric of detection: detections in batches, on any rank -> COCO's figures. Knows no files' layout."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, Batch, Pending, Rows, Source, World
from saturate.dataset.coco.columns import Instances
from saturate.plan import geometry
from saturate.system.processes import Beside
from saturate.tasks import _coco, _masks, _results
from saturate.tasks._coco import Detections
from saturate.tasks._predictions import spread

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

    `source` has the images that are drawn; without it none are. `threshold`: least score of what is drawn.

    Detections are kept on the host, in arrays; rank 0 compares them.
    """

    def __init__(
        self,
        columns: Instances,
        *,
        source: Source | None = None,
        masks: bool = False,
        keypoints: bool = False,
        evaluator: str = "faster-coco-eval",
        threshold: float = 0.5,
    ) -> None:
        self._columns = columns
        self._source = source
        self._evaluator = evaluator
        self._threshold = threshold
        kinds = {"boxes": True, "masks": masks, "keypoints": keypoints}
        self._kinds = [kind for kind, enabled in kinds.items() if enabled]
        self._seen: list[int] = []  # samples that could be decoded
        self._not_finite: list[int] = []  # samples whose output is no number
        none = np.zeros(0, np.int64)
        points = columns.keypoints.shape[1]
        self._parts = [
            Detections(
                image_ids=none,
                category_ids=none,
                boxes=np.zeros((0, 4)),
                scores=np.zeros(0),
                masks=[] if masks else None,
                keypoints=np.zeros((0, points, 3)) if keypoints else None,
            )
        ]

    def update(self, outputs: Sequence[dict[str, torch.Tensor]], batch: Batch) -> None:
        """Add a batch. `outputs`, of each image, are in the batch's pixels.

        They are boxes [N, 4], labels, scores [N], masks [N, 1, M, M] and keypoints [N, K, 3]. Waits for the
        device, as the detector has done to choose among its boxes.
        """
        rows = batch.rows
        assert rows is not None
        places = np.flatnonzero(rows.valid).tolist()
        self._seen += rows.ids[places].tolist()
        for place, output in zip(places, _on_host(outputs, places), strict=True):
            # `finite`, a bool, is what the detector says of it
            if all(
                np.isfinite(values).all() for values in output.values()
            ) and output.get("finite", True):
                self._parts.append(self._detections(output, rows, place))
            else:
                self._not_finite.append(int(rows.ids[place]))

    def result(self, world: World) -> Pending:
        """Return COCO's figures, by the names of _coco.Scores, `samples` and `detections` once they are made.

        Those of masks begin with mask_, those of keypoints with keypoint_. `extras` are files, images and
        scalars that are no figures. Rank 0 makes them in a process of its own. Every rank must call it.
        """
        detections, decoded, not_finite = self._of_all(world)
        if world.rank != 0:
            return Nothing()
        # matplotlib, which other tasks start without; here, because what is forked below may wait for no
        # import of another thread
        from saturate.tasks import _plots  # noqa: F401

        counts = {"samples": len(decoded), "outputs_not_finite": len(not_finite)}
        return Beside(lambda: self._scored(detections, decoded, counts))

    def _of_all(self, world: World) -> tuple[Detections, list[int], set[int]]:
        """Return what all ranks have: detections by image, the samples, and those whose output is no number."""
        own = Detections.joined(self._parts), self._seen, self._not_finite
        self._parts.clear()
        parts, seen, not_finite = zip(*world.gather(own), strict=True)
        lost = {sample for of_rank in not_finite for sample in of_rank}
        everyone = [sample for of_rank in seen for sample in of_rank]
        if len({*everyone}) != len(everyone):
            raise ValueError(
                "an image was validated twice, so its objects would count twice: the plan or the loader is wrong"
            )
        return Detections.joined(parts), everyone, lost

    def _scored(
        self, detections: Detections, decoded: list[int], counts: dict[str, int]
    ) -> dict[str, Any]:
        """Return the figures, and as `extras` results files, AP by class, and pictures."""
        from saturate.tasks import _plots

        began = time.perf_counter()
        columns = self._columns
        names = _coco.names(columns)
        figures: dict[str, Any] = {**counts, "detections": len(detections)}
        files, scalars, images = {}, {}, {}
        for kind in self._kinds:
            prefix = _coco.PREFIXES[kind]
            entries = _results.entries(detections, kind)
            files[_results.file_name(kind)] = _results.encoded(entries)
            scores = _coco.score(
                columns,
                entries,
                samples=decoded,
                kind=kind,
                evaluator=self._evaluator,
            )
            figures |= scores.figures()
            for category, value in scores.by_category().items():
                scalars[f"val_{prefix}ap/{names[category]}"] = value
            images[f"val/{prefix}precision_recall"] = _plots.curves(scores)
        drawn = spread(len(columns), DRAWN)
        pictures = _plots.predictions(
            columns, self._source, detections, drawn, self._threshold
        )
        if pictures is not None:
            images["val/predictions"] = pictures
        figures["extras"] = {"files": files, "scalars": scalars, "images": images}
        return figures | {"seconds": time.perf_counter() - began}

    def _detections(
        self, output: dict[str, Array], rows: Rows, place: int
    ) -> Detections:
        """Return what was found in an image, in pixels of the stored one, cut at its borders.

        That of classes that are no category is left out.
        """
        columns = self._columns
        sample = rows.ids[place]
        count = len(output["scores"])
        which = np.full(count, place)
        height, width = int(columns.height[sample]), int(columns.width[sample])
        boxes = geometry.boxes_to_image(
            rows, which, output["boxes"].astype(np.float64)
        ).clip(0, [width, height] * 2)
        masks = keypoints = None
        if "masks" in self._kinds:
            masks = _masks.encoded(
                torch.from_numpy(output["masks"]), boxes, height, width
            )
        if "keypoints" in self._kinds:
            keypoints = output["keypoints"].astype(np.float64)
            keypoints[:, :, :2] = geometry.to_image(rows, which, keypoints[:, :, :2])
        category = columns.category_of[output["labels"].astype(np.int64)]
        return Detections(
            image_ids=np.full(count, columns.image_id[sample]),
            category_ids=np.asarray(columns.category_ids)[category],
            boxes=np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1),
            scores=output["scores"].astype(np.float64),
            masks=masks,
            keypoints=keypoints,
        ).taken(np.flatnonzero(category >= 0))


def _on_host(
    outputs: Sequence[dict[str, torch.Tensor]], places: Sequence[int]
) -> Iterator[dict[str, Array]]:
    """Yield the outputs of the images at these places as fp32, copied by one transfer a name."""
    chosen = [outputs[place] for place in places]
    if not chosen:
        return
    columns = {}
    for name in {name: None for one in chosen for name in one}:
        # not every detector says `finite`
        values = [
            torch.atleast_1d(one[name]) if name in one else one["scores"].new_ones(1)
            for one in chosen
        ]
        ends = np.cumsum([len(each) for each in values])[:-1]
        columns[name] = np.split(torch.cat(values).float().cpu().numpy(), ends)
    for place in range(len(chosen)):
        yield {name: column[place] for name, column in columns.items()}
