"""Image classification: labels, cross entropy, top-1 and top-5. Knows no loader and no optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from contracts import Array, Batch, Figure, Metric, Rows, Split, Task, UserError, World
from dataset.model_classes import ModelClasses
from dataset.open import Console
from models import Native, Registry
from models import classification as architectures
from plan.epoch import exif_of
from plan.images import ImagePlan
from plan.mixing import SEPARATE, Mixing
from plan.targets import IGNORE, label_targets
from settings.config import Config
from tasks import _tables
from tasks._classification_report import Validated, calibration_error
from tasks._mixing import mixed, shared
from tasks._plans import image_policies, mixing, opened, pair
from tasks._predictions import MOST, NO_NUMBER, Answers, Collected
from tasks.kind import Asked, Predicting, Splits, TaskKind

FIGURES = (
    Figure(name="top1", title="top-1", unit="%", chart="accuracy", compared=True),
    Figure(name="top5", title="top-5", unit="%", chart="accuracy", compared=True),
    Figure(name="loss", title="loss", chart="loss", compared=True, larger_is_better=False),
    Figure(name="ece", unit="%", chart="calibration"),
    Figure(name="samples"),
    Figure(name="losses_not_finite", said="unless zero"),
    Figure(name="outputs_not_finite", said="unless zero"),
)
LOSS_UNIT = 2.0**-20
"""Each sample's loss is rounded to a whole multiple of this before it is summed, so that the sum does not
depend on its order."""
LARGEST_LOSS = 1e6


class Classification:
    """contracts.Task with a label an image: `labels` is the manifest's column [n].

    `auxiliary_weight` weighs the losses of outputs after the first. `weights` [n] are those of the samples in
    training; their mean is 1. `validated`: what a validation is of, for its files and pictures.
    """

    def __init__(
        self,
        labels: np.ndarray,
        *,
        label_smoothing: float = 0.0,
        binary: bool = False,
        threshold: float | None = None,
        auxiliary_weight: float = 0.0,
        mixing: Mixing = SEPARATE,
        weights: Array | None = None,
        validated: Validated | None = None,
    ) -> None:
        """Take the settings of the loss: `binary` is --loss bce, `threshold` --bce-threshold."""
        self._labels = labels
        self._validated = validated
        self._weights = weights
        self._smoothing = label_smoothing
        self._binary = binary
        self._threshold = threshold
        self._auxiliary_weight = auxiliary_weight
        self._mixing = mixing

    def targets(self, rows: Rows) -> dict[str, np.ndarray]:
        """Return {"labels": int64 [B]}, IGNORE where the row is padding, and plan.mixing's where it mixes.

        With weights there are "weights", float32 [B].
        """
        found = label_targets(self._labels, rows)
        if self._weights is not None:
            found["weights"] = self._weights[np.where(rows.valid, rows.ids, 0)].astype(np.float32)
        return found | self._mixing.targets(rows) if self._mixing.mixes else found

    def inputs(self, batch: Batch) -> tuple[torch.Tensor]:
        return (self.shown(batch),)

    def shown(self, batch: Batch) -> torch.Tensor:
        return mixed(batch.images, batch.targets)

    def probe(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (images,)

    def losses(self, outputs: torch.Tensor | Sequence[torch.Tensor], batch: Batch) -> torch.Tensor:
        """Return fp32 [B]; an output that is a tuple is (logits, auxiliary logits, ...)."""
        logits, *auxiliary = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        losses = self._loss(logits, batch)
        for head in auxiliary:
            losses = losses + self._auxiliary_weight * self._loss(head, batch)
        return losses * batch.targets["weights"] if self._weights is not None else losses

    def _loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        if not self._binary:
            return self._cross_entropy(logits, batch, self._smoothing)
        # padding is of class 0 here, and its loss is left out
        targets = functional.one_hot(batch.targets["labels"].clamp(min=0), logits.shape[1]).float()
        if "partners" in batch.targets:
            targets = shared(targets, targets[batch.targets["partners"]], batch.targets)
        return binary_cross_entropy(logits, targets, batch.valid, self._smoothing, self._threshold)

    def parts(self, outputs: Any) -> dict[str, torch.Tensor]:
        return {}

    def metric(self, device: torch.device) -> Metric:
        return TopK(device, self._validated, binary=self._binary)

    @staticmethod
    def _cross_entropy(logits: torch.Tensor, batch: Batch, smoothing: float) -> torch.Tensor:
        def of(labels: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(
                logits.float(), labels, reduction="none", ignore_index=IGNORE, label_smoothing=smoothing
            )

        labels = batch.targets["labels"]
        losses = of(labels)
        if "partners" in batch.targets:
            losses = shared(losses, of(labels[batch.targets["partners"]]), batch.targets)
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

    `logits` and `targets` are [B, C]; `smoothing` of the targets is spread over all classes, and with a
    `threshold` what is above it is 1, the others 0.
    """
    wanted = targets * (1 - smoothing) + smoothing / logits.shape[1]
    if threshold is not None:
        wanted = (wanted > threshold).float()
    each = functional.binary_cross_entropy_with_logits(logits.float(), wanted, reduction="none")
    return torch.where(valid, each.mean(dim=1), 0.0)


class TopK:
    """contracts.Metric: counts of top-1 and top-5, and cross entropy summed in multiples of LOSS_UNIT.

    Beside the figures `result` has `extras`, with tasks._predictions.Answers as `answers`.
    """

    def __init__(
        self, device: torch.device, validated: Validated | None = None, *, binary: bool = False
    ) -> None:
        self._validated = validated
        self._classes = 0
        # samples, top-1, top-5, loss in LOSS_UNIT, losses left out of the sum, outputs that are no numbers
        self._counts = torch.zeros(6, dtype=torch.int64, device=device)
        self._collected = Collected(binary=binary)

    def update(self, outputs: Any, batch: Batch) -> None:
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        self._classes = logits.shape[1]
        labels = batch.targets["labels"]
        valid = batch.valid
        classes = self._collected.add(batch.ids, logits, labels, valid)
        finite = torch.isfinite(logits).all(dim=1)
        # NaN is the largest value to topk
        ranked = (classes == labels[:, None]) & finite[:, None]
        losses = Classification._cross_entropy(logits, batch, 0.0)
        countable = torch.isfinite(losses) & (losses <= LARGEST_LOSS)
        # whole numbers add up to the same sum in any order, and so on any number of ranks
        units = torch.where(countable, losses.double() / LOSS_UNIT, 0.0).round().long()
        self._counts += torch.stack(
            [
                valid.sum(),
                (ranked[:, 0] & valid).sum(),
                (ranked.any(dim=1) & valid).sum(),
                units.sum(),
                (valid & ~countable).sum(),
                (valid & ~finite).sum(),
            ]
        )

    def result(self, world: World) -> dict[str, Any]:
        """Return top1, top5 (shares), loss (mean), ece, samples, and how many losses, outputs are not finite.

        There is no top5 of five classes or fewer.

        Such losses are left out of the mean; samples with such outputs are wrong.
        """
        summed = world.sum(self._counts.cpu().numpy())
        samples, top1, top5, loss, left_out, not_finite = (int(value) for value in summed)
        counted = max(samples - left_out, 1)
        answers = self._collected.answers(world)
        few = max(world.gather(self._classes)) <= MOST
        shares = {"top1": top1 / max(samples, 1), **({} if few else {"top5": top5 / max(samples, 1)})}
        return {
            **shares,
            "loss": loss * LOSS_UNIT / counted,
            "ece": calibration_error(answers),
            "samples": samples,
            "losses_not_finite": left_out,
            "outputs_not_finite": not_finite,
            "extras": told_of(answers, self._validated, world),
        }


def of_the_loss(config: Config) -> dict[str, Any]:
    """Return the settings of the loss, as Classification takes them."""
    settings = config.optimisation
    return {
        "label_smoothing": settings.label_smoothing,
        "binary": settings.loss == "bce",
        "threshold": settings.bce_threshold,
    }


def told_of(answers: Answers, validated: Validated | None, world: World) -> dict[str, Any]:
    """Return the `extras` of a validation; files and pictures are made by rank 0 alone."""
    own = validated.extras(answers) if validated is not None and world.rank == 0 else {}
    return {"answers": answers, **own}


def validated_of(config: Config, split: Split) -> Validated | None:
    """Return what a validation is of; None for predictions, which have no labels."""
    columns = split.columns
    if config.run.predict is not None:
        return None
    return Validated(classes=columns.classes, source=split.source, turns=exif_of(columns))


def write_answers(folder: Path, found: Mapping[str, Any], asked: Asked, classes: Sequence[str]) -> list[Path]:
    """Write predictions.* with a row a file, in their order: path, likeliest classes, error."""
    answers: Answers = found["extras"]["answers"]
    cells = answers.rows(classes)
    empty = dict.fromkeys(cells[0]) if cells else {"class": None, "probability": None}
    place_of = {int(sample): place for place, sample in enumerate(answers.ids)}
    rows = []
    for place, name in enumerate(asked.names):
        answer = place_of.get(int(asked.samples[place]))
        said = empty | {"error": asked.errors.get(place, NO_NUMBER)} if answer is None else cells[answer]
        rows.append({"path": name, **said})
    path = folder / f"predictions.{asked.form}"
    path.write_bytes(_tables.written(rows, asked.form))
    return [path]


def balancing(config: Config, columns: Any) -> Array | None:
    """Return what each sample's loss is weighed by, [n], so that every class counts alike; None: all by 1.

    The mean over the samples is 1. It is a function of the whole data set, so ranks change nothing. Raises
    UserError where samples are mixed, which then have two classes.
    """
    if config.optimisation.balance != "loss":
        return None
    if mixing(config.augmentation).mixes:
        raise UserError(
            "--balance loss is of one class a sample, --mixup and --cutmix mix two; leave one out"
        )
    labels = np.asarray(columns.label)
    counts = np.bincount(labels, minlength=len(columns.classes))
    weights: Array = len(labels) / (np.count_nonzero(counts) * counts[labels])
    return weights


def predicting_classes(kind: TaskKind, config: Config, found: Split, classes: tuple[str, ...]) -> Predicting:
    """Return what --predict does with a classifier: a validation whose labels mean nothing.

    Raises UserError.
    """
    _tables.require(config.run.predict_format)
    unlabelled = found.columns.numbered(np.zeros(len(found.columns.classes), np.int64), classes)
    split = replace(found, columns=unlabelled)
    _, task = kind.tasks(config, {"train": split, "val": split}, 0.0)
    return Predicting(split=split, task=task, write=partial(write_answers, classes=classes))


class ClassificationKind(TaskKind):
    """Images with a label."""

    name = "classification"
    arch = "resnet50"
    registry: Registry = architectures
    others: Mapping[str, str] = {"timm/": "models.timm"}
    figures: tuple[Figure, ...] = FIGURES

    def of(self, config: Config) -> TaskKind:
        if not config.data.multi_label:
            return self
        from tasks._tags import KIND_OF_SETS  # which is made of this one

        return KIND_OF_SETS

    def splits(
        self, config: Config, loader: str, console: Console, model: ModelClasses | None = None
    ) -> dict[str, Split]:
        return opened(config, loader, self.content(config), console, model)

    def plans(
        self, config: Config, splits: Splits, native: Native, **ranks: int
    ) -> tuple[ImagePlan, ImagePlan]:
        return pair(ImagePlan.of, config, splits, *image_policies(config.augmentation, native), **ranks)

    def used(self, plan: ImagePlan) -> dict[str, Any]:
        policy = plan.policy
        return {"image_size": policy.image_size, "val_window": policy.window, "val_resize": policy.resize}

    def tasks(self, config: Config, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        train = Classification(
            splits["train"].columns.label,
            auxiliary_weight=auxiliary_weight,
            mixing=mixing(config.augmentation),
            **of_the_loss(config),
            weights=balancing(config, splits["train"].columns),
        )
        val = splits["val"]
        binary = config.optimisation.loss == "bce"
        return train, Classification(val.columns.label, binary=binary, validated=validated_of(config, val))

    def predicting(self, config: Config, found: Split, classes: tuple[str, ...], folder: Path) -> Predicting:
        return predicting_classes(self, config, found, classes)


KIND = ClassificationKind()
