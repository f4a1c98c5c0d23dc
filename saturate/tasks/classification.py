"""Image classification: a label an image, top-1 and top-5; with --multi-label a set of labels, and mAP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as functional
from PIL import Image

from saturate.contracts import (
    Array,
    Batch,
    Columns,
    Figure,
    LabelColumns,
    Metric,
    Plan,
    Rows,
    Split,
    Task,
    UserError,
    World,
)
from saturate.models import Native, Registry
from saturate.models import classification as architectures
from saturate.plan.images import ImagePlan
from saturate.plan.mixing import UNMIXED, Mixing
from saturate.plan.targets import IGNORE, label_targets
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.data import Data
from saturate.settings.model import Model
from saturate.settings.optimisation import Optimisation
from saturate.tasks._classification_report import ValidationFiles, calibration_error
from saturate.tasks._mixing import blended, mixed
from saturate.tasks._plans import image_policies, mixing
from saturate.tasks._predictions import (
    MOST,
    SURE,
    Answers,
    Collected,
    answers_of,
    mean,
    summed_up,
    write_answers,
)
from saturate.tasks.batching import Batching
from saturate.tasks.kind import DEFAULTS, Opening, Predicting, Splits, TaskKind

LOSS = Figure(name="loss", title="loss", chart="loss", larger_is_better=False)
COUNTS = (
    Figure(name="samples"),
    Figure(name="losses_not_finite", shown="unless zero"),
    Figure(name="outputs_not_finite", shown="unless zero"),
)
FIGURES = (
    Figure(name="top1", title="top-1", unit="%", chart="accuracy"),
    Figure(name="top5", title="top-5", unit="%", chart="accuracy"),
    LOSS,
    Figure(name="ece", unit="%", chart="calibration"),
    *COUNTS,
)
MULTI_LABEL_FIGURES = (
    Figure(name="map", title="mAP", unit="%", chart="accuracy"),
    LOSS,
    *COUNTS,
)
LOSS_UNIT = 2.0**-20
"""Each sample's loss is rounded to a whole multiple of this before it is summed, so that the sum does not
depend on its order."""
LARGEST_LOSS = 1e6
"""A finite loss above counts as this, so that sums of whole multiples have room."""


@dataclass(frozen=True, eq=False)
class Classification:
    """contracts.Task with a label an image: `labels` is the manifest's column [n]."""

    labels: Array
    _: KW_ONLY
    label_smoothing: float = 0.0
    binary: bool = False  # --loss bce
    threshold: float | None = None  # --bce-threshold
    auxiliary_weight: float = 0.0  # of the losses of outputs after the first
    mixing: Mixing = UNMIXED
    weights: Array | None = None  # [n], of the samples in training; their mean is 1
    # what a validation is of, for its files and pictures
    val_set: ValidationFiles | None = None

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return {"labels": int64 [B]}, IGNORE where the row is padding, and plan.mixing's where it mixes.

        With weights there are "weights", float32 [B].
        """
        targets = label_targets(self.labels, rows)
        if self.weights is not None:
            # padding has the id -1
            weights = self.weights[np.where(rows.valid, rows.ids, 0)]
            targets["weights"] = weights.astype(np.float32)
        return targets | self.mixing.targets(rows) if self.mixing.mixes else targets

    def inputs(self, batch: Batch) -> tuple[torch.Tensor]:
        return (self.shown(batch),)

    def shown(self, batch: Batch) -> torch.Tensor:
        return mixed(batch.images, batch.targets)

    def losses(
        self, outputs: torch.Tensor | Sequence[torch.Tensor], batch: Batch
    ) -> torch.Tensor:
        """Return fp32 [B]; an output that is a tuple is (logits, auxiliary logits, ...)."""
        logits, *auxiliary = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        losses = self._loss(logits, batch)
        for head in auxiliary:
            losses = losses + self.auxiliary_weight * self._loss(head, batch)
        if self.weights is not None:
            losses = losses * batch.targets["weights"]
        return losses

    def _loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        if not self.binary:
            return cross_entropy(logits, batch, self.label_smoothing)
        # padding is of class 0 here, and its loss is left out
        labels = batch.targets["labels"].clamp(min=0)
        wanted = functional.one_hot(labels, logits.shape[1]).float()
        return self._binary_loss(logits, wanted, batch)

    def _binary_loss(
        self, logits: torch.Tensor, wanted: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        if "partners" in batch.targets:
            wanted = blended(wanted, wanted[batch.targets["partners"]], batch.targets)
        return binary_cross_entropy(
            logits, wanted, batch.valid, self.label_smoothing, self.threshold
        )

    def parts(self, outputs: object) -> dict[str, torch.Tensor]:
        return {}

    def metric(self, device: torch.device) -> Metric:
        return TopK(device, self.val_set, binary=self.binary)


def cross_entropy(logits: torch.Tensor, batch: Batch, smoothing: float) -> torch.Tensor:
    """Return fp32 [B], the cross entropy of a batch's labels; 0 where a row is not valid."""

    def losses_for(labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(
            logits.float(),
            labels,
            reduction="none",
            ignore_index=IGNORE,
            label_smoothing=smoothing,
        )

    labels = batch.targets["labels"]
    losses = losses_for(labels)
    if "partners" in batch.targets:
        others = losses_for(labels[batch.targets["partners"]])
        losses = blended(losses, others, batch.targets)
    return torch.where(batch.valid, losses, 0.0)


def binary_cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    valid: torch.Tensor,
    smoothing: float,
    threshold: float | None,
) -> torch.Tensor:
    """Return fp32 [B]: binary cross entropy, the mean over the classes (Wightman et al. 2021,
    arXiv:2110.00476); 0 where a row is not `valid`.

    `logits` and `targets` are [B, C]. `smoothing` spreads that share of the targets over all classes. With
    `threshold`, targets above it are then 1, all others 0.
    """
    wanted = targets * (1 - smoothing) + smoothing / logits.shape[1]
    if threshold is not None:
        wanted = (wanted > threshold).float()
    each = functional.binary_cross_entropy_with_logits(
        logits.float(), wanted, reduction="none"
    )
    return torch.where(valid, each.mean(dim=1), 0.0)


@dataclass(frozen=True, eq=False)
class MultiLabel(Classification):
    """contracts.Task with a set of labels an image: `labels` [n] are the images' sets.

    Images that are mixed have both sets, each with its share. The loss is binary cross entropy.
    """

    classes_of_set: Array = field(kw_only=True)  # bool [sets, C]

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return Classification's, and "wanted": float32 [B, C], 1 for each label; 0 where it is padding."""
        wanted = self.classes_of_set[self.labels[np.where(rows.valid, rows.ids, 0)]]
        wanted = wanted.astype(np.float32) * rows.valid[:, None]
        return {**super().targets(rows), "wanted": wanted}

    def _loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        return self._binary_loss(logits, batch.targets["wanted"], batch)

    def metric(self, device: torch.device) -> Metric:
        return MeanPrecision(self.classes_of_set.shape[1], self.val_set)


class TopK:
    """contracts.Metric: top-1 and top-5, and cross entropy summed in multiples of LOSS_UNIT.

    Beside the figures `result` has `extras`, with tasks._predictions.Answers as `answers`.
    """

    def __init__(
        self,
        device: torch.device,
        val_set: ValidationFiles | None = None,
        *,
        binary: bool = False,
    ) -> None:
        self._val_set = val_set
        self._classes = 0
        # loss in LOSS_UNIT, losses left out of the sum
        self._sums = torch.zeros(2, dtype=torch.int64, device=device)
        self._collected = Collected(binary=binary)

    def update(
        self, outputs: torch.Tensor | Sequence[torch.Tensor], batch: Batch
    ) -> None:
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        self._classes = logits.shape[1]
        self._collected.add(batch.ids, logits, batch.targets["labels"], batch.valid)
        # comparable whatever the training loss
        losses = cross_entropy(logits, batch, 0.0)
        finite = torch.isfinite(losses)
        # whole numbers add up to the same sum in any order, and so on any number of ranks
        losses = torch.where(finite, losses, 0.0).clamp(max=LARGEST_LOSS)
        units = (losses.double() / LOSS_UNIT).round().long()
        self._sums += torch.stack([units.sum(), (batch.valid & ~finite).sum()])

    def result(self, world: World) -> dict[str, Any]:
        """Return top1, top5 (shares), loss (mean), ece, samples, and how many losses, outputs are not finite.

        There is no top5 of five classes or fewer. Losses that are not finite are left out of the mean; samples
        with such outputs are wrong.
        """
        units, left_out = (int(value) for value in world.sum(self._sums.cpu().numpy()))
        answers = self._collected.answers(world)
        samples = len(answers)
        return {
            **accuracies(answers, samples, max(world.gather(self._classes))),
            "loss": mean_loss(units, samples, left_out),
            "ece": calibration_error(answers),
            "samples": samples,
            "losses_not_finite": left_out,
            "outputs_not_finite": int((~answers.finite).sum()),
            "extras": extras_of(answers, self._val_set, world),
        }


def mean_loss(units: int, samples: int, left_out: int) -> float:
    """Return the mean of losses that sum up to `units` of LOSS_UNIT; nan where all samples are left out."""
    return mean(units * LOSS_UNIT, samples - left_out)


def accuracies(answers: Answers, samples: int, classes: int) -> dict[str, float]:
    """Return top1 and top5 as shares of `samples`, nan of none; an output that is no number is wrong.

    With MOST `classes` or fewer there is no top5.
    """
    # axes: [n, k], whether the sample's class is the one in this place
    right = (answers.classes == answers.labels[:, None]) & answers.finite[:, None]
    top5 = {"top5": mean(int(right.sum()), samples)} if classes > MOST else {}
    return {"top1": mean(int(right[:, :1].sum()), samples), **top5}


class MeanPrecision:
    """contracts.Metric: mAP, the mean over the classes of the average precision, and the loss.

    Holds 8 n C bytes on the device, of this rank's n samples. A class without a sample counts for nothing. A
    sample whose output is not finite ranks last.
    """

    def __init__(self, classes: int, val_set: ValidationFiles | None = None) -> None:
        self._classes = classes
        self._val_set = val_set
        # ids on the host; on the device logits and wanted [B, C], labels and valid [B]
        self._parts: list[tuple[Any, ...]] = []

    def update(
        self, outputs: torch.Tensor | Sequence[torch.Tensor], batch: Batch
    ) -> None:
        logits = (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).float()
        targets = batch.targets
        self._parts.append(
            (batch.ids, logits, targets["wanted"], targets["labels"], batch.valid)
        )

    def result(self, world: World) -> dict[str, Any]:
        """Return map (0..1; nan where no sample has a label), loss (mean), samples, and how many losses and outputs
        are not finite.

        Beside them `extras` has tasks._predictions.Answers as `answers`, and files where there is a `val_set`.
        """
        none = np.zeros((0, self._classes), np.float32)
        parts: list[tuple[Array, ...]] = [
            (np.zeros(0, np.int64), none, none, np.zeros(0, np.int64))
        ]
        for ids, *tensors, valid in self._parts:
            mask = valid.cpu().numpy()
            parts.append((ids[mask], *(one.cpu().numpy()[mask] for one in tensors)))
        everyone = [part for own in world.gather(parts) for part in own]
        columns = [np.concatenate(column) for column in zip(*everyone, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        ids, logits, wanted, labels = (column[order] for column in columns)
        finite = np.isfinite(logits).all(axis=1)
        losses = binary_cross_entropy(
            torch.from_numpy(logits),
            torch.from_numpy(wanted),
            torch.ones(len(ids), dtype=torch.bool),
            0.0,
            None,
        ).numpy()
        countable = np.isfinite(losses)
        # as TopK adds them up
        units = np.rint(losses[countable].clip(max=LARGEST_LOSS) / LOSS_UNIT)
        left_out = int((~countable).sum())
        scores = np.where(finite[:, None], logits, -np.inf)
        precisions = [
            average_precision(scores[:, at], wanted[:, at] > 0)
            for at in range(self._classes)
        ]
        known = [one for one in precisions if one is not None]
        # all labels that a sample has, by what the network says
        sure = torch.from_numpy(logits).sigmoid().numpy() >= SURE
        most = sure.sum(axis=1).max(initial=MOST)
        answers = answers_of(ids, logits, labels, binary=True, most=int(most))
        made = {}
        if self._val_set is not None and world.rank == 0:
            made = self._val_set.multi_label_extras(answers, wanted, precisions)
        return {
            "map": mean(sum(known), len(known)),
            "loss": mean_loss(int(units.astype(np.int64).sum()), len(ids), left_out),
            "samples": len(ids),
            "losses_not_finite": left_out,
            "outputs_not_finite": int((~finite).sum()),
            "extras": {"answers": answers, **made},
        }


def average_precision(scores: Array, wanted: Array) -> float | None:
    """Return the precision at each sample of the class, a mean over them; None where there is none.

    `scores` [n], `wanted` bool [n]. Of samples with the same score none is before another.
    """
    if not wanted.any():
        return None
    order = np.argsort(-scores, kind="stable")
    descending = scores[order]
    # the last place of each run of equal scores
    ends = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))
    right = np.cumsum(wanted[order])[ends]
    precision = right / (ends + 1)
    return float((precision * np.diff(right, prepend=0)).sum() / right[-1])


def extras_of(
    answers: Answers, val_set: ValidationFiles | None, world: World
) -> dict[str, Any]:
    """Return the `extras` of a validation; files and pictures are made by rank 0 alone."""
    made = {} if val_set is None or world.rank else val_set.extras(answers)
    return {"answers": answers, **made}


def balancing(
    optimisation: Optimisation,
    augmentation: AugmentationSettings,
    columns: LabelColumns,
) -> Array | None:
    """Return what each sample's loss is weighed by, [n], so that every class counts alike; None: each counts 1.

    The mean over the samples is 1. It is a function of the whole data set, so ranks change nothing. Raises
    UserError where samples are mixed, which then have two classes.
    """
    if optimisation.balance != "loss":
        return None
    if mixing(augmentation).mixes:
        raise UserError(
            "--balance loss is of one class a sample, --mixup and --cutmix mix two; leave one out"
        )
    labels = np.asarray(columns.label)
    counts = np.bincount(labels, minlength=len(columns.classes))
    weights: Array = len(labels) / (np.count_nonzero(counts) * counts[labels])
    return weights


@dataclass(frozen=True)
class ClassificationKind(TaskKind):
    """Images with a label."""

    data: Data = DEFAULTS.data
    augmentation: AugmentationSettings = DEFAULTS.augmentation
    model: Model = DEFAULTS.model
    optimisation: Optimisation = DEFAULTS.optimisation

    name = "classification"
    arch = "resnet50"
    registry: ClassVar[Registry] = architectures
    others: ClassVar[Mapping[str, str]] = {"timm/": "saturate.models.timm"}
    figures: ClassVar[tuple[Figure, ...]] = FIGURES
    exports = True

    @property
    def variant(self) -> TaskKind:
        if self.data.multi_label and self.reads("multi_label"):
            return MultiLabelKind(**vars(self))
        return self

    def splits(self, opening: Opening) -> dict[str, Split[Any]]:
        return opening.splits(self.content)

    def plans(
        self, splits: Splits, native: Native, batching: Batching
    ) -> tuple[Plan, Plan]:
        policies = image_policies(self.augmentation, native)
        return batching.pair(ImagePlan, splits, *policies)

    def used(self, plan: Plan) -> dict[str, Any]:
        assert isinstance(plan, ImagePlan)
        policy = plan.policy
        return {
            "image_size": policy.image_size,
            "val_window": policy.window,
            "val_resize": policy.resize,
        }

    def building(self, columns: Columns) -> dict[str, Any]:
        depth = self.model.stochastic_depth
        given = {} if depth is None else {"stochastic_depth": depth}
        return {**super().building(columns), **given}

    def task_of(self, columns: LabelColumns) -> Callable[..., Classification]:
        """Return a function: Classification's keywords -> the Task of this split."""
        return partial(Classification, columns.label)

    def strip(self, split: Split[Any]) -> Callable[[int], Image.Image] | None:
        """Return what draws a sample that is no image; None where all are."""
        return None

    def tasks(self, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        loss = self.optimisation
        columns, val = splits["train"].columns, splits["val"]
        binary = loss.loss == "bce"
        train = self.task_of(columns)(
            label_smoothing=loss.label_smoothing,
            binary=binary,
            threshold=loss.bce_threshold,
            auxiliary_weight=auxiliary_weight,
            mixing=mixing(self.augmentation),
            weights=balancing(loss, self.augmentation, columns),
        )
        val_set = ValidationFiles(
            classes=val.columns.classes,
            source=val.source,
            turns=val.columns.exif,
            strip=self.strip(val),
        )
        return train, self.task_of(val.columns)(binary=binary, val_set=val_set)

    def predicting(
        self, files: Split[Any], classes: tuple[str, ...], folder: Path
    ) -> Predicting:
        """Return what --predict does: a validation whose labels mean nothing, without files of its own."""
        no_labels = np.zeros(len(files.columns.classes), np.int64)
        split = replace(files, columns=files.columns.numbered(no_labels, classes))
        task = self.task_of(split.columns)(binary=self.optimisation.loss == "bce")
        write = partial(write_answers, classes=classes)
        several = self.data.multi_label
        summary = partial(summed_up, classes=classes, several=several)
        return Predicting(split=split, task=task, write=write, summed_up=summary)


class MultiLabelKind(ClassificationKind):
    """Images with a set of labels: --multi-label."""

    figures = MULTI_LABEL_FIGURES
    # the answers have the same form
    predicting = ClassificationKind.predicting

    def task_of(self, columns: LabelColumns) -> Callable[..., Classification]:
        several = columns.several
        if several is None:  # of files without labels
            several = np.zeros((len(columns.classes),) * 2, bool)
        return partial(MultiLabel, columns.label, classes_of_set=several)

    def tasks(self, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        if self.optimisation.balance != "none":
            raise UserError(
                "--balance is of one class a sample, --multi-label has several; leave one out"
            )
        return super().tasks(splits, auxiliary_weight)


KIND = ClassificationKind()
