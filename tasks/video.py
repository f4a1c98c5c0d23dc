"""Video classification: cross entropy of clips; the logits of a video are the mean over its views. Knows no loader and no optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from config import Config
from contracts import Batch, Metric, Rows, Split, Task, World
from dataset.videos.columns import Videos
from plan.clips import ClipPlan
from tasks._plans import clip_policy, opened, pair
from tasks.classification import LARGEST_LOSS, LOSS_UNIT, Classification

ARCH, UNIT = "r3d_18", "clip/s"
CPU_PRECISION = "fp32"
"""In bf16 the gradient of a 3-D convolution's weight is now and then 1e28 and more (torch 2.15, r3d_18's layer3)."""
LARGEST_LOGIT = 1e6


class Video(Classification):
    """contracts.Task of clips: the losses are those of image classification."""

    name = "video"

    def targets(self, rows: Rows) -> dict[str, np.ndarray]:
        """{"labels": int64 [B], IGNORE where the row is padding; "videos": int64 [B], -1 there}."""
        return {**super().targets(rows), "videos": rows.ids}

    def metric(self, device: torch.device) -> Metric:
        return ViewMean(self._labels, device)


class ViewMean:
    """contracts.Metric: the mean logits of each video over its views, then top-1, top-5 and the cross entropy of those.

    `labels`: int [n], of all videos. Logits are rounded to multiples of LOSS_UNIT before they are summed, so that the sum depends neither
    on the order of the views nor on the rank that had them. Holds 8 n C bytes on the device.
    """

    def __init__(self, labels: np.ndarray, device: torch.device) -> None:
        self._labels, self._device = np.asarray(labels), device
        self._sums: torch.Tensor | None = None  # int64 [n, C + 2]: logits in LOSS_UNIT, views, views left out

    def update(self, outputs: Any, batch: Batch) -> None:
        logits = outputs.double()
        if self._sums is None:
            self._sums = torch.zeros(len(self._labels), logits.shape[1] + 2, dtype=torch.int64, device=self._device)
        countable = torch.isfinite(logits).all(dim=1) & (logits.abs() <= LARGEST_LOGIT).all(dim=1)
        counted = batch.valid & countable
        units = torch.where(counted[:, None], logits / LOSS_UNIT, 0.0).round().long()
        added = torch.cat([units, counted.long()[:, None], (batch.valid & ~countable).long()[:, None]], dim=1)
        self._sums.index_add_(0, batch.targets["videos"].clamp(min=0), added)

    def result(self, world: World) -> dict[str, float]:
        """top1, top5 (shares of the videos), loss (mean over them), samples (videos), views, losses_not_finite (views left out)."""
        classes = max(world.gather(0 if self._sums is None else self._sums.shape[1])) - 2
        own = np.zeros((len(self._labels), max(classes, 0) + 2), np.int64) if self._sums is None else self._sums.cpu().numpy()
        sums = world.sum(own)
        views, left_out = sums[:, -2], int(sums[:, -1].sum())
        seen = np.flatnonzero(views > 0)
        logits = sums[seen, :-2] * LOSS_UNIT / views[seen, None]
        labels = self._labels[seen, None]
        own_class = np.take_along_axis(logits, labels, axis=1)
        ahead = np.arange(logits.shape[1]) < labels  # of classes with the same logit, as after a network has died
        above = ((logits > own_class) | ((logits == own_class) & ahead)).sum(axis=1)
        shifted = logits - logits.max(axis=1, keepdims=True, initial=-LARGEST_LOGIT)
        losses = np.log(np.exp(shifted).sum(axis=1)) - np.take_along_axis(shifted, labels, axis=1)[:, 0]
        return {
            "top1": float((above < 1).sum()) / max(len(seen), 1),
            "top5": float((above < 5).sum()) / max(len(seen), 1),
            "loss": float(np.minimum(losses, LARGEST_LOSS).sum()) / max(len(seen), 1),
            "samples": len(seen),
            "views": int(views.sum()),
            "losses_not_finite": left_out,
        }


# --- what train.py asks of a task -----------------------------------------------------------------------------------------------------


def splits(config: Config, loader: str, console: Any) -> dict[str, Split]:
    """{"train": ..., "val": ...}; what is shorter than a clip is said. Raises UserError."""
    found = opened(config, loader, "videos", console)
    clips = config.clips
    span = (clips.clip_frames - 1) * clips.clip_stride
    only = {"val": found["val"]} if found["train"] is found["val"] else found
    for name, split in only.items():
        columns = split.columns
        if not isinstance(columns, Videos):
            continue
        least: Any = span + 1
        if clips.clip_fps is not None:  # a video of one frame has no rate
            least = np.where(columns.fps > 0, np.floor(span * columns.fps / clips.clip_fps) + 1, 1 + (span > 0))
        short, named = columns.name_shorter(least, "short.txt", split.source.name)
        if short:
            where = f", named in {named}" if named else ""
            console.warn(f"{name}: {short} of {len(columns)} videos are shorter than a clip and show their last frame again{where}")
    return found


def plans(config: Config, splits: dict[str, Split], native: Any, **ranks: Any) -> tuple[ClipPlan, ClipPlan]:
    """Of training and of validation; `native` is a models.Native. Raises UserError."""
    policy = clip_policy(config.augmentation, config.clips, native)
    return pair(ClipPlan.of, config, splits, policy, policy, **ranks)


def tasks(config: Config, splits: dict[str, Split], auxiliary_weight: float) -> tuple[Task, Task]:
    """Of training and of validation."""
    train = Video(splits["train"].columns.label, label_smoothing=config.optimisation.label_smoothing, auxiliary_weight=auxiliary_weight)
    return train, Video(splits["val"].columns.label)


def building(config: Config, columns: Any) -> dict[str, Any]:
    """What the registry's build() takes beside the shape and the weights."""
    return {"classes": len(columns.classes)}


def facts(plan: ClipPlan) -> dict[str, Any]:
    """What a summary says of the data beside what every task says."""
    return {"clip_frames": plan.policy.frames}


def bytes_read(columns: Any, ids: np.ndarray) -> int:
    """0 = not known: a clip is a part of its file, and where its decoder begins to read is the decoder's."""
    return 0
