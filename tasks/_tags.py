"""Image classification with a set of labels an image: binary cross entropy, and mAP. Knows no loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from contracts import Array, Batch, Figure, Metric, Rows, Split, Task, UserError, World
from settings.config import Config
from tasks import _tables
from tasks._classification_report import Validated
from tasks._mixing import shared
from tasks._plans import mixing
from tasks._predictions import Answers, Collected
from tasks.classification import (
    LARGEST_LOSS,
    LOSS_UNIT,
    Classification,
    ClassificationKind,
    binary_cross_entropy,
    of_the_loss,
    validated_of,
)
from tasks.kind import Splits

FIGURES = (
    Figure(name="map", title="mAP", unit="%", chart="accuracy"),
    Figure(name="loss", title="loss", chart="loss", compared=True, larger_is_better=False),
    Figure(name="samples"),
    Figure(name="losses_not_finite", said="unless zero"),
    Figure(name="outputs_not_finite", said="unless zero"),
)


class Tags(Classification):
    """contracts.Task with a set of labels an image: `several`, bool [sets, C], has the classes of each.

    `labels` [n] are the images' sets. Images that are mixed have both sets, each with its share.
    """

    def __init__(self, labels: Array, several: Array, **how: Any) -> None:
        """Take the settings of the loss as Classification does."""
        super().__init__(labels, **{**how, "binary": True})
        self._several = several.astype(np.float32)

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return Classification's, and "wanted": float32 [B, C], 1 for each label; 0 where it is padding."""
        wanted = self._several[self._labels[np.where(rows.valid, rows.ids, 0)]]
        return {**super().targets(rows), "wanted": wanted * rows.valid[:, None]}

    def _loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        wanted = batch.targets["wanted"]
        if "partners" in batch.targets:
            wanted = shared(wanted, wanted[batch.targets["partners"]], batch.targets)
        return binary_cross_entropy(logits, wanted, batch.valid, self._smoothing, self._threshold)

    def metric(self, device: torch.device) -> Metric:
        return MeanPrecision(self._several.shape[1], self._validated)


class MeanPrecision:
    """contracts.Metric: mAP, the mean over the classes of the average precision, and the loss.

    Holds 8 n C bytes on the device. A class without a sample counts for nothing. Of an output that is no
    number all scores are the least.
    """

    def __init__(self, classes: int, validated: Validated | None = None) -> None:
        self._classes = classes
        self._validated = validated
        self._collected = Collected(binary=True)
        # ids on the host; on the device logits and wanted [B, C], valid [B]
        self._parts: list[tuple[Array, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def update(self, outputs: Any, batch: Batch) -> None:
        logits = (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).float()
        self._collected.add(batch.ids, logits, batch.targets["labels"], batch.valid)
        self._parts.append((batch.ids, logits, batch.targets["wanted"], batch.valid))

    def result(self, world: World) -> dict[str, Any]:
        """Return map (0..1), loss (mean), samples, and how many losses and outputs are not finite.

        Beside them `extras` has tasks._predictions.Answers as `answers`, and files where it was `validated`.
        """
        everyone = world.gather(self._own())
        ids = np.concatenate([part[0] for part in everyone])
        order = np.argsort(ids, kind="stable")
        logits, wanted = (np.concatenate([part[at] for part in everyone])[order] for at in (1, 2))
        finite = np.isfinite(logits).all(axis=1)
        each = binary_cross_entropy(
            torch.from_numpy(logits),
            torch.from_numpy(wanted),
            torch.ones(len(ids), dtype=torch.bool),
            0.0,
            None,
        ).numpy()
        countable = np.isfinite(each) & (each <= LARGEST_LOSS)
        # as tasks.classification.TopK adds them up
        units = int(np.rint(each[countable] / LOSS_UNIT).astype(np.int64).sum())
        scores = np.where(finite[:, None], logits, -np.inf)
        precisions = [average_precision(scores[:, at], wanted[:, at] > 0) for at in range(self._classes)]
        known = [one for one in precisions if one is not None]
        answers = self._collected.answers(world)
        files = {}
        if self._validated is not None and world.rank == 0:
            files = {"files": self._files(self._validated, answers, wanted, precisions)}
        return {
            "map": float(np.mean(known)) if known else 0.0,
            "loss": units * LOSS_UNIT / max(int(countable.sum()), 1),
            "samples": len(ids),
            "losses_not_finite": int((~countable).sum()),
            "outputs_not_finite": int((~finite).sum()),
            "extras": {"answers": answers, **files},
        }

    def _own(self) -> tuple[Array, Array, Array]:
        """Return ids [n], logits and wanted, float32 [n, C], of this rank's samples."""
        none = np.zeros((0, self._classes), np.float32)
        parts = [(np.zeros(0, np.int64), none, none)]
        for ids, logits, wanted, valid in self._parts:
            rows = valid.cpu().numpy()
            parts.append((ids[rows], logits.cpu().numpy()[rows], wanted.cpu().numpy()[rows]))
        own_ids, own_logits, own_wanted = (np.concatenate(column) for column in zip(*parts, strict=True))
        return own_ids, own_logits, own_wanted

    @staticmethod
    def _files(
        validated: Validated, answers: Answers, wanted: Array, precisions: list[float | None]
    ) -> Mapping[str, bytes]:
        """Return val_predictions.csv, with the labels of every sample, and classes.csv."""
        names = np.array(validated.classes, object)
        rows = [
            {"path": validated.source.name(int(sample)), "labels": ";".join(names[labels > 0]), **own}
            for sample, labels, own in zip(answers.ids, wanted, answers.rows(validated.classes), strict=True)
        ]
        by_class = [
            {"class": name, "samples": int(count), "average_precision": one and round(one, 4)}
            for name, count, one in zip(names, wanted.sum(axis=0), precisions, strict=True)
        ]
        files = {"classes.csv": _tables.written(by_class, "csv")}
        return files | ({"val_predictions.csv": _tables.written(rows, "csv")} if rows else {})


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


class SetsKind(ClassificationKind):
    """Images with a set of labels: --multi-label."""

    figures = FIGURES

    def tasks(self, config: Config, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        if config.optimisation.balance != "none":
            raise UserError("--balance is of one class a sample, --multi-label has several; leave one out")
        train = Tags(
            splits["train"].columns.label,
            _sets(splits["train"]),
            auxiliary_weight=auxiliary_weight,
            mixing=mixing(config.augmentation),
            **of_the_loss(config),
        )
        val = splits["val"]
        return train, Tags(val.columns.label, _sets(val), validated=validated_of(config, val))


def _sets(split: Split) -> Array:
    """Return which classes each label is made of, bool [sets, C]; of files without labels none."""
    columns = split.columns
    several: Array | None = getattr(columns, "several", None)
    return np.zeros((len(columns.classes), len(columns.classes)), bool) if several is None else several


KIND_OF_SETS = SetsKind()
