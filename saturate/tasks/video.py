"""Video classification: cross entropy of clips; a video's logits are the mean over its views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
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
    World,
)
from saturate.dataset.videos.columns import Videos
from saturate.models import Native, Registry
from saturate.models import video as architectures
from saturate.plan.clips import ClipPlan
from saturate.settings.clips import Clips
from saturate.tasks import classification
from saturate.tasks._classification_report import ValidationFiles, calibration_error
from saturate.tasks._plans import clip_policy
from saturate.tasks._predictions import answers_of, mean
from saturate.tasks.batching import Batching
from saturate.tasks.classification import (
    LARGEST_LOSS,
    LOSS_UNIT,
    Classification,
    ClassificationKind,
    accuracies,
    extras_of,
)
from saturate.tasks.kind import DEFAULTS, Opening, Splits

FIGURES = (*classification.FIGURES, Figure(name="views"))
LARGEST_LOGIT = 1e6
FRAMES = 4
"""Frames of a video in a picture of it."""


class Video(Classification):
    """contracts.Task of clips: the losses are those of image classification."""

    def targets(self, rows: Rows) -> dict[str, np.ndarray]:
        """Return {"labels": int64 [B], IGNORE where the row is padding; "videos": int64 [B], -1 there}."""
        return {**super().targets(rows), "videos": rows.ids}

    def metric(self, device: torch.device) -> Metric:
        return ViewMean(self.labels, device, self.val_set, binary=self.binary)


class ViewMean:
    """contracts.Metric: top-1, top-5 and cross entropy of each video's mean logits over its views.

    `labels`: int [n], of all videos. Logits are rounded to multiples of LOSS_UNIT before they are summed, so
    that the sum depends neither on the order of the views nor on the rank that had them. Holds 8 n C bytes on
    the device.
    """

    def __init__(
        self,
        labels: np.ndarray,
        device: torch.device,
        val_set: ValidationFiles | None = None,
        *,
        binary: bool = False,
    ) -> None:
        self._labels = np.asarray(labels)
        self._binary = binary
        self._val_set = val_set
        self._device = device
        # int64 [n, C + 3]: logits in LOSS_UNIT, views, views left out, those of them that are no numbers
        self._sums: torch.Tensor | None = None

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        logits = outputs.double()
        if self._sums is None:
            self._sums = torch.zeros(
                len(self._labels),
                logits.shape[1] + 3,
                dtype=torch.int64,
                device=self._device,
            )
        finite = torch.isfinite(logits).all(dim=1)
        countable = finite & (logits.abs() <= LARGEST_LOGIT).all(dim=1)
        counted = batch.valid & countable
        units = torch.where(counted[:, None], logits / LOSS_UNIT, 0.0).round().long()
        counts = torch.stack(
            [counted, batch.valid & ~countable, batch.valid & ~finite], dim=1
        )
        added = torch.cat([units, counts.long()], dim=1)
        # padding has the id -1; what is added for it is 0 throughout
        self._sums.index_add_(0, batch.targets["videos"].clamp(min=0), added)

    def result(self, world: World) -> dict[str, Any]:
        """Return top1, top5 (shares of the videos), loss (their mean), ece, samples, views, the not finite.

        There is no top5 of five classes or fewer.

        `samples` counts videos, `losses_not_finite` the views that were left out, `outputs_not_finite` the
        videos of which a view is no number. These are wrong, and so are videos without a view to sum.
        """
        # a rank without a batch does not know how many classes there are
        width = max(world.gather(0 if self._sums is None else self._sums.shape[1]))
        none = np.zeros((len(self._labels), max(width, 3)), np.int64)
        sums = world.sum(none if self._sums is None else self._sums.cpu().numpy())
        views, left_out, not_finite = sums[:, -3:].T
        samples = int(np.count_nonzero(views + left_out))
        seen = np.flatnonzero((views > 0) & (not_finite == 0))
        logits = sums[seen, :-3] * LOSS_UNIT / views[seen, None]
        labels = self._labels[seen].astype(np.int64)
        answers = answers_of(seen, logits, labels, binary=self._binary)
        shifted = logits - logits.max(axis=1, keepdims=True, initial=-LARGEST_LOGIT)
        chosen = np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]
        losses = np.log(np.exp(shifted).sum(axis=1)) - chosen
        return {
            **accuracies(answers, samples, width - 3),
            "loss": mean(float(np.minimum(losses, LARGEST_LOSS).sum()), len(seen)),
            "ece": calibration_error(answers),
            "samples": samples,
            "views": int(views.sum()),
            "losses_not_finite": int(left_out.sum()),
            "outputs_not_finite": int(np.count_nonzero(not_finite)),
            "extras": extras_of(answers, self._val_set, world),
        }


@dataclass(frozen=True)
class VideoKind(ClassificationKind):
    """Clips of videos with a label."""

    clips: Clips = DEFAULTS.clips

    name = "video"
    arch = "r3d_18"
    registry: ClassVar[Registry] = architectures
    others: ClassVar[Mapping[str, str]] = {}
    medium = "videos"
    content = "videos"
    unit = "clip/s"
    # in bf16 the gradient of a 3-D convolution's weight is now and then 1e28 and more (torch 2.15, r3d_18's
    # layer3)
    cpu_precision = "fp32"
    figures: ClassVar[tuple[Figure, ...]] = FIGURES

    def splits(self, opening: Opening) -> dict[str, Split[Any]]:
        """Open both, and say which videos are shorter than a clip. Raises UserError."""
        splits = super().splits(opening)
        clips = self.clips
        span = (clips.clip_frames - 1) * clips.clip_stride
        only = {"val": splits["val"]} if splits["train"] is splits["val"] else splits
        for name, split in only.items():
            columns = split.columns
            if not isinstance(columns, Videos):
                continue
            least = np.array(span + 1)
            if clips.clip_fps is not None:  # a video of one frame has no rate
                least = np.where(
                    columns.fps > 0,
                    np.floor(span * columns.fps / clips.clip_fps) + 1,
                    1 + (span > 0),
                )
            short = np.count_nonzero(columns.frames < least)
            if short:
                opening.console.warn(
                    f"{name}: a clip is longer than {short} of {len(columns)} videos, "
                    "and shows their last frame again"
                )
        return splits

    def plans(
        self, splits: Splits, native: Native, batching: Batching
    ) -> tuple[Plan, Plan]:
        policy = clip_policy(self.augmentation, self.clips, native)
        return batching.pair(ClipPlan, splits, policy, policy)

    def used(self, plan: Plan) -> dict[str, Any]:
        assert isinstance(plan, ClipPlan)
        return {
            "val_resize": plan.policy.resize,
            "short_side": list(plan.policy.shorter),
        }

    def task_of(self, columns: LabelColumns) -> Callable[..., Classification]:
        return partial(Video, columns.label)

    def strip(self, split: Split[Any]) -> Callable[[int], Image.Image]:
        """Return what draws FRAMES of a video, spread evenly, side by side."""

        def drawn(sample: int) -> Image.Image:
            # with PyAV and numba, which a run that draws none does without
            from saturate.loaders.videos.pyav import displayed

            first = int(split.columns.first[sample])
            last = first + int(split.columns.frames[sample]) - 1
            places = np.linspace(first, last, FRAMES).round().astype(int).tolist()
            return Image.fromarray(np.hstack([*displayed(split, sample, places)]))

        return drawn

    def facts(self, plan: Plan) -> dict[str, Any]:
        return {"clip_frames": plan.batches.frames}

    def bytes_read(self, columns: Columns, ids: Array) -> int:
        """Return 0: a clip is a part of its file, and where its decoder begins to read is the decoder's."""
        return 0


KIND = VideoKind()
