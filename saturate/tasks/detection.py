"""Detection: targets with masks and keypoints, the detector's losses, COCO's AP. Knows no loader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn

from saturate.contracts import (
    Array,
    Batch,
    BoxColumns,
    Columns,
    Figure,
    Metric,
    Plan,
    Rows,
    Source,
    Split,
    Task,
    UserError,
)
from saturate.dataset.coco.columns import Instances
from saturate.dataset.open import Console, Content
from saturate.models import Native, Registry
from saturate.models import detection as architectures
from saturate.plan.boxes import CENTRED, DetectionPlan, padding
from saturate.plan.targets import IGNORE, packed, padded
from saturate.settings import detection as settings
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.model import Model
from saturate.tasks import _coco
from saturate.tasks._coco_ap import CocoAP
from saturate.tasks._detections import Found, Unannotated, summed_up, write_detections
from saturate.tasks._plans import detection_policies
from saturate.tasks.batching import Batching
from saturate.tasks.kind import DEFAULTS, Opening, Predicting, Splits, TaskKind

ARCH = "fasterrcnn_resnet50_fpn_v2"
TITLES = {
    "boxes": ("AP", "AP50", "AP75"),
    "masks": ("mask AP", "", ""),
    "keypoints": ("keypoint AP", "", ""),
}
"""What is scored -> titles of AP over all overlaps, at 0.5 and at 0.75, which the console says."""
CHARTS = {
    **dict.fromkeys(("ap_small", "ap_medium", "ap_large"), "AP by size"),
    **dict.fromkeys(("ar1", "ar10", "ar100"), "recall of 1, 10, 100 detections"),
}
"""Figure that TensorBoard and the files alone have -> its chart; the others have none."""


def _figures() -> Iterator[Figure]:
    """Yield COCO's figures of boxes, masks and keypoints."""
    for kind, titles in TITLES.items():
        chart = "AP" if kind == "boxes" else f"AP of {kind}"
        names = [_coco.PREFIXES[kind] + name for name in _coco.FIGURES[kind]]
        titled = len(titles)
        for name, title in zip(names[:titled], titles, strict=True):
            yield Figure(name=name, title=title, unit="%", chart=chart)
        for name in names[titled:]:
            yield Figure(name=name, unit="%", shown="never", chart=CHARTS.get(name, ""))


FIGURES = (
    *_figures(),
    Figure(name="samples"),
    Figure(name="detections"),
    Figure(name="outputs_not_finite", shown="unless zero"),
)
LOOKED_AT = 50
"""Batches of the first epoch, from whose numbers the boxes of an image and the share of padding are taken."""


@dataclass(frozen=True)
class Detection:
    """contracts.Task of detectors."""

    columns: Instances
    _: KW_ONLY
    masks: bool = False
    keypoints: bool = False
    training: bool = True  # else the module gets no targets, and gives detections
    centred: bool = False  # as DetectionPolicy.centred says
    # to train with as many for each image, for a network that takes padded boxes; 0: boxes are packed
    places: int = 0
    evaluator: str = "faster-coco-eval"
    # bytes of the images that a validation draws; without it none are drawn
    source: Source | None = None
    threshold: float = 0.5  # least score of what is drawn
    scored: bool = True  # else the metric's result are the detections, and no figures

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return packed or padded targets, as plan.targets has them.

        Masks and keypoints are there only where the module learns from them.
        """
        masks = self.masks and self.training
        keypoints = self.keypoints and self.training
        packed_targets = packed(
            self.columns, rows, masks=masks, keypoints=keypoints, centred=self.centred
        )
        return padded(packed_targets, self.places) if self.places else packed_targets

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Return (images, sizes without padding, boxes to train on or None), asking nothing of the device.

        What could not be decoded is left out of training; where nothing could, one image goes in as it is,
        without a box. With padded boxes it stays, without a box, since shapes are fixed in a graph.
        """
        if self.places:
            return self._padded_inputs(batch)
        rows = batch.rows
        assert rows is not None
        sizes = [(int(height), int(width)) for height, width in rows.sizes]
        if not self.training:
            return batch.images, sizes, None
        cuts = list(pairwise(batch.host["offsets"].tolist()))
        images = batch.images
        if not rows.valid.all():
            valid_places = np.flatnonzero(rows.valid).tolist() or [0]
            cuts = [
                cuts[place] if rows.valid[place] else (0, 0) for place in valid_places
            ]
            sizes = [sizes[place] for place in valid_places]
            # left out, not masked: to the heads an image without boxes is background from edge to edge
            images = torch.stack([images[place] for place in valid_places])
            images = images.contiguous(memory_format=torch.channels_last)
        names = sorted({"boxes", "labels", "masks", "keypoints"} & batch.targets.keys())
        targets = [{name: batch.targets[name][a:b] for name in names} for a, b in cuts]
        return images, sizes, targets

    def _padded_inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Return the inputs of a detector whose images have one size, from tensors alone."""
        most = self.places
        if batch.host:  # not in a graph: then no more places than this batch has boxes
            most = int((batch.host["labels"] != IGNORE).sum(axis=1).max())
        labels = torch.where(batch.valid[:, None], batch.targets["labels"], IGNORE)
        targets = {
            "boxes": batch.targets["boxes"][:, :most],
            "labels": labels[:, :most],
        }
        return batch.images, [batch.images.shape[-2:]] * len(labels), targets

    def shown(self, batch: Batch) -> torch.Tensor:
        return batch.images

    def losses(self, outputs: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """Return fp32 [B]: the sum of the detector's losses, a mean over images, where valid; else 0."""
        total = torch.stack([loss.float() for loss in outputs.values()]).sum()
        return torch.where(batch.valid, total, 0.0)

    def parts(self, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the losses by torchvision's names without "loss_": classifier, box_reg, ..."""
        return {
            name.removeprefix("loss_"): loss.detach().float()
            for name, loss in outputs.items()
        }

    def metric(self, device: torch.device) -> Metric:
        return (CocoAP if self.scored else Found)(
            self.columns,
            source=self.source,
            masks=self.masks,
            keypoints=self.keypoints,
            evaluator=self.evaluator,
            threshold=self.threshold,
        )


@dataclass(frozen=True)
class DetectionKind(TaskKind):
    """Images with boxes, masks or keypoints, in COCO's layout."""

    model: Model = DEFAULTS.model
    augmentation: AugmentationSettings = DEFAULTS.augmentation
    detection: settings.Detection = DEFAULTS.detection

    name = "detection"
    arch = ARCH
    registry: ClassVar[Registry] = architectures
    content: ClassVar[Content] = "instances"
    cpu_precision = "fp32"
    figures: ClassVar[tuple[Figure, ...]] = FIGURES
    exports = True
    loss_parts = True
    graphs = False  # as many shapes as canvases

    @property
    def variant(self) -> TaskKind:
        if self._parts["keypoints"]:
            return KeypointsKind(**vars(self))
        if self._parts["masks"]:
            return MasksKind(**vars(self))
        # torchvision's SSDs have no longer side
        longer = architectures.native(self._arch).longer
        return self if longer else SquaresKind(**vars(self))

    @property
    def _arch(self) -> str:
        return self.model.arch or ARCH

    @property
    def _parts(self) -> dict[str, Any]:
        """What the architecture learns beside boxes."""
        return {
            "masks": "maskrcnn" in self._arch,
            "keypoints": "keypointrcnn" in self._arch,
        }

    def adopted(
        self, module: nn.Module, arch: str, shape: tuple[int, ...]
    ) -> nn.Module:
        return architectures.adopted(module, arch, shape)

    def splits(self, opening: Opening) -> dict[str, Split[Any]]:
        """Open both. Raises UserError.

        An architecture that learns masks trains on no box without one. That holds in this process alone:
        columns pickle as their folder.
        """
        # now, and not in the process that scores behind the first epoch
        import_module(self.detection.evaluator.replace("-", "_"))
        splits = opening.splits(self.content)
        train, val = splits["train"], splits["val"]
        if not np.array_equal(train.columns.keypoint_name, val.columns.keypoint_name):
            raise UserError(
                "--data: the categories of validation name other keypoints than those of training, "
                "or in another order"
            )
        if self._parts["masks"]:
            masked = _with_masks(train.columns, self._arch, opening.console)
            splits["train"] = replace(train, columns=masked)
        return splits

    def plans(
        self, splits: Splits, native: Native, batching: Batching
    ) -> tuple[DetectionPlan, DetectionPlan]:
        policies = detection_policies(self.augmentation, self.detection, native)
        plan = partial(DetectionPlan, keep_empty=self.detection.keep_empty)
        return batching.pair(plan, splits, *policies)

    def used(self, plan: Plan) -> dict[str, Any]:
        assert isinstance(plan, DetectionPlan)
        return {"image_size": plan.policy.size, "longer_side": plan.policy.longer}

    def tasks(self, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        train, val = splits["train"], splits["val"]
        parts = self._parts
        places = 0
        if self.graphs:
            places = int(train.columns.boxes_of_images.max(initial=1))
        return Detection(
            train.columns,
            centred=self.detection.augment in CENTRED,
            places=places,
            **parts,
        ), Detection(
            val.columns,
            training=False,
            evaluator=self.detection.evaluator,
            source=val.source,
            threshold=self.detection.score_threshold,
            **parts,
        )

    def predicting(
        self, files: Split[Any], classes: tuple[str, ...], folder: Path
    ) -> Predicting:
        """Return the validation of images in which nothing is marked."""
        parts = self._parts
        split = replace(files, columns=Unannotated.from_images(files.columns, classes))
        threshold = self.detection.score_threshold
        task = Detection(
            split.columns,
            training=False,
            source=split.source,
            threshold=threshold,
            scored=False,
            **parts,
        )
        kinds = ["boxes", *(["masks"] if parts["masks"] else [])]
        write = partial(write_detections, split=split, kinds=kinds, threshold=threshold)
        summary = partial(summed_up, columns=split.columns, threshold=threshold)
        return Predicting(split=split, task=task, write=write, summed_up=summary)

    def building(self, columns: Columns) -> dict[str, Any]:
        return {
            "classes": len(columns.classes),
            "weights_backbone": self.detection.weights_backbone,
            "trainable_layers": self.detection.trainable_layers,
            "keypoints": len(cast(BoxColumns, columns).keypoint_mirror),
        }

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return the boxes to learn of an image, a mean, and the share of pixels that is padding."""
        assert isinstance(plan, DetectionPlan)
        rows = plan.rows(0, 0)[:LOOKED_AT]
        drawn = partial(packed, plan.columns, masks=False, keypoints=False)
        centred = plan.policy.centred
        boxes = sum(len(drawn(one, centred=centred)["boxes"]) for one in rows)
        return {
            "without_boxes": len(plan.columns.height) - plan.samples,
            "instances_per_image": boxes / max(len(rows) * plan.batches.rows, 1),
            "padding": padding(rows),
        }


class SquaresKind(DetectionKind):
    """Detectors that take images of one size, torchvision's SSDs: a step can be a graph."""

    graphs = True


class MasksKind(DetectionKind):
    """Detectors of masks."""

    exports = False


class KeypointsKind(DetectionKind):
    """Detectors of keypoints."""

    exports = False
    content = "keypoints"
    predicting = TaskKind.predicting
    unpredicted = "keypoints: a checkpoint does not say how many there are"


def _with_masks(columns: Instances, arch: str, console: Console) -> Instances:
    """Return the columns without usable boxes that lack a segmentation. Raises UserError if none is left."""
    usable = np.asarray(columns.usable)
    # one run alone is of pixels outside
    drawn = (np.diff(columns.polygon_offsets) > 0) | (np.diff(columns.rle_offsets) > 1)
    without = int(np.count_nonzero(usable & ~drawn))
    if without and not (usable & drawn).any():
        raise UserError(
            f"--arch {arch} learns masks, and no box of {without} to train on has a segmentation; "
            f"it needs polygons or run lengths, --arch {arch.replace('maskrcnn', 'fasterrcnn')} does without"
        )
    if without:
        console.warn(
            f"train: --arch {arch} leaves out {without} of {np.count_nonzero(usable)} boxes, "
            "for want of a segmentation"
        )
    return replace(columns, usable=usable & drawn)


KIND = DetectionKind()
