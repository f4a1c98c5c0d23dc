"""Image classification: labels, cross entropy, top-1 and top-5. Knows no loader and no optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from config import Config
from contracts import Batch, Metric, Rows, Split, Task, World
from plan.images import ImagePlan
from plan.targets import IGNORE, label_targets
from tasks._plans import image_policies, opened, pair

ARCH, UNIT = "resnet50", "img/s"
CPU_PRECISION = "auto"
LOSS_UNIT = 2.0**-20
"""Each sample's loss is rounded to a whole multiple of this before it is summed, so that the sum does not depend on its order."""
LARGEST_LOSS = 1e6


class Classification:
    """contracts.Task. `labels` is the manifest's column [n]; `auxiliary_weight` weighs the losses of outputs after the first."""

    name = "classification"
    best = "top1"

    def __init__(self, labels: np.ndarray, *, label_smoothing: float = 0.0, auxiliary_weight: float = 0.0) -> None:
        self._labels, self._smoothing, self._auxiliary_weight = labels, label_smoothing, auxiliary_weight

    def targets(self, rows: Rows) -> dict[str, np.ndarray]:
        """{"labels": int64 [B]}, IGNORE where the row is padding."""
        return label_targets(self._labels, rows)

    def inputs(self, batch: Batch) -> tuple[torch.Tensor]:
        return (batch.images,)

    def probe(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (images,)

    def losses(self, outputs: torch.Tensor | Sequence[torch.Tensor], batch: Batch) -> torch.Tensor:
        """fp32 [B]; an output that is a tuple is (logits, auxiliary logits, ...)."""
        logits, *auxiliary = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        losses = self._cross_entropy(logits, batch, self._smoothing)
        for head in auxiliary:
            losses = losses + self._auxiliary_weight * self._cross_entropy(head, batch, self._smoothing)
        return losses

    def parts(self, outputs: Any) -> dict[str, torch.Tensor]:
        return {}

    def metric(self, device: torch.device) -> Metric:
        return TopK(device)

    @staticmethod
    def _cross_entropy(logits: torch.Tensor, batch: Batch, smoothing: float) -> torch.Tensor:
        losses = functional.cross_entropy(
            logits.float(), batch.targets["labels"], reduction="none", ignore_index=IGNORE, label_smoothing=smoothing
        )
        return torch.where(batch.valid, losses, 0.0)


class TopK:
    """contracts.Metric: top-1 and top-5 as int64 counts, the plain cross entropy summed in multiples of LOSS_UNIT."""

    def __init__(self, device: torch.device) -> None:
        # samples, top-1, top-5, loss in LOSS_UNIT, losses left out of the sum
        self._counts = torch.zeros(5, dtype=torch.int64, device=device)

    def update(self, outputs: Any, batch: Batch) -> None:
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        labels, valid = batch.targets["labels"], batch.valid
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        losses = Classification._cross_entropy(logits, batch, 0.0)
        countable = torch.isfinite(losses) & (losses <= LARGEST_LOSS)
        units = torch.where(countable, losses.double() / LOSS_UNIT, 0.0).round().long()
        self._counts += torch.stack(
            [
                valid.sum(),
                (ranked[:, 0] & valid).sum(),
                (ranked.any(dim=1) & valid).sum(),
                units.sum(),
                (valid & ~countable).sum(),
            ]
        )

    def result(self, world: World) -> dict[str, float]:
        """top1, top5 (shares of the samples), loss (mean), samples, losses_not_finite (left out of the mean)."""
        samples, top1, top5, loss, left_out = (int(value) for value in world.sum(self._counts.cpu().numpy()))
        counted = max(samples - left_out, 1)
        return {
            "top1": top1 / max(samples, 1),
            "top5": top5 / max(samples, 1),
            "loss": loss * LOSS_UNIT / counted,
            "samples": samples,
            "losses_not_finite": left_out,
        }


# --- what train.py asks of a task -----------------------------------------------------------------------------------------------------


def splits(config: Config, loader: str, console: Any) -> dict[str, Split]:
    """{"train": ..., "val": ...}. Raises UserError."""
    return opened(config, loader, "images", console)


def plans(config: Config, splits: dict[str, Split], native: Any, **ranks: Any) -> tuple[ImagePlan, ImagePlan]:
    """Of training and of validation; `native` is a models.Native. Raises UserError."""
    return pair(ImagePlan.of, config, splits, *image_policies(config.augmentation, native), **ranks)


def tasks(config: Config, splits: dict[str, Split], auxiliary_weight: float) -> tuple[Task, Task]:
    """Of training and of validation."""
    smoothing = config.optimisation.label_smoothing
    train = Classification(splits["train"].columns.label, label_smoothing=smoothing, auxiliary_weight=auxiliary_weight)
    return train, Classification(splits["val"].columns.label)


def building(config: Config, columns: Any) -> dict[str, Any]:
    """What the registry's build() takes beside the shape and the weights."""
    return {"classes": len(columns.classes)}


def facts(plan: ImagePlan) -> dict[str, Any]:
    """What a summary says of the data beside what every task says."""
    return {}


def bytes_read(columns: Any, ids: np.ndarray) -> int:
    """Of the files of these samples."""
    return int(columns.size[ids].sum())
