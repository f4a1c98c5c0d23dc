"""Assertions that every task must pass: functions of a case."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from saturate.contracts import Batch, Feed, Plan, Rows, Split, Task
from saturate.dataset.coco.synthetic import SyntheticInstances
from saturate.dataset.images.synthetic import SyntheticImages
from saturate.dataset.pairs.columns import synthetic
from saturate.dataset.synthetic import NoBytes
from saturate.dataset.videos.synthetic import SyntheticVideos
from saturate.engine.evaluate import Outcome
from saturate.loaders import open_loader
from saturate.models import AUXILIARY_WEIGHTS
from saturate.settings.config import Config, build
from saturate.tasks import TASKS, kind_named, kind_of
from saturate.tasks.batching import Batching
from saturate.tasks.kind import TaskKind
from tests.unit.test_detection_task import noisy
from tests.unit.test_meter import alone, on_ranks

CPU = torch.device("cpu")
TRAIN, VAL, BATCH = 20, 13, 3
"""Samples of a case, so many that the last batch of validation is padded, and its batch size."""


@dataclass(frozen=True, kw_only=True)
class Case:
    task: str
    columns: Callable[[int], Any]  # of so many samples
    # (columns, rows) -> what a network could say in validation: of the row's numbers alone
    outputs: Callable[[Any, Rows], Any]
    settings: dict[str, Any] = field(default_factory=dict)
    light: bool = True  # its network takes less than a second here

    @cached_property
    def config(self) -> Config:
        return build(
            {"task": self.task, "batch_size": BATCH, "seed": 1, **self.settings}
        )

    @cached_property
    def kind(self) -> TaskKind:
        return kind_of(self.config)

    @cached_property
    def splits(self) -> dict[str, Split]:
        counts = {"train": TRAIN, "val": VAL}
        return {
            name: Split(columns=self.columns(n), source=NoBytes(n))
            for name, n in counts.items()
        }

    @property
    def arch(self) -> str:
        return self.config.model.arch or self.kind.arch

    def plans(self, *, world_size: int = 1, rank: int = 0) -> tuple[Plan, Plan]:
        native = self.kind.registry.native(self.arch)
        native = native._replace(
            size=self.config.augmentation.image_size or native.size
        )
        batching = Batching.from_config(self.config, world_size=world_size, rank=rank)
        return self.kind.plans(self.splits, native, batching)

    def tasks(self) -> tuple[Task, Task]:
        return self.kind.tasks(self.splits, AUXILIARY_WEIGHTS.get(self.arch, 0.0))

    def module(self, plan: Plan) -> torch.nn.Module:
        torch.manual_seed(0)
        more = self.kind.building(self.splits["train"].columns)
        return self.kind.registry.build(
            self.arch, shape=(BATCH, *plan.batches.sample_shape), weights=None, **more
        )[0]

    def batches(self, split: str, task: Task, plan: Plan) -> list[Batch]:
        own = self.splits[split]
        feed = Feed(
            plan=plan,
            source=own.source,
            columns=own.columns,
            targets=task.targets,
            device=CPU,
            workers=0,
        )
        with open_loader("synthetic", feed) as loader:
            return list(loader.batches(0, 0))


def scores(classes: int) -> Callable[[Any, Rows], torch.Tensor]:
    """Return fp32 [B, classes], drawn for the numbers of a row; of padding they are no number."""

    def outputs(columns: Any, rows: Rows) -> torch.Tensor:
        frames = rows.frames if rows.frames is not None else rows.regions
        keys = [
            zlib.crc32(repr((rows.ids[i], rows.regions[i], frames[i])).encode())
            for i in range(len(rows))
        ]
        drawn = [
            torch.randn(classes, generator=torch.Generator().manual_seed(key))
            for key in keys
        ]
        return torch.where(
            torch.from_numpy(rows.valid)[:, None], torch.stack(drawn), torch.nan
        )

    return outputs


def enlarged(columns: Any, rows: Rows) -> torch.Tensor:
    """Return fp32 [B, 1, 2 h, 2 w], drawn for a sample; of padding they are no number."""
    height, width = rows.padded
    shape = (1, 2 * height, 2 * width)
    drawn = [
        torch.rand(shape, generator=torch.Generator().manual_seed(int(i) + 1))
        for i in rows.ids
    ]
    valid = torch.from_numpy(rows.valid)[:, None, None, None]
    return torch.where(valid, torch.stack(drawn), torch.nan)


BOXES: dict[str, Any] = {"arch": "fcos_tiny", "image_size": 64, "longer_side": 96}
CASES: dict[str, Case] = {
    "classification": Case(
        task="classification",
        columns=SyntheticImages,
        outputs=scores(1000),
        settings={"arch": "resnet18", "image_size": 32},
    ),
    "detection": Case(
        task="detection",
        columns=SyntheticInstances.generate,
        outputs=noisy,
        settings=BOXES,
    ),
    "detection-masks": Case(
        task="detection",
        columns=SyntheticInstances.generate,
        outputs=lambda columns, rows: noisy(columns, rows, masks=True),
        settings={**BOXES, "arch": "maskrcnn_resnet50_fpn"},
        light=False,
    ),
    "detection-keypoints": Case(
        task="detection",
        columns=lambda count: SyntheticInstances.generate(count, keypoints=True),
        outputs=lambda columns, rows: noisy(columns, rows, keypoints=True),
        settings={**BOXES, "arch": "keypointrcnn_resnet50_fpn"},
        light=False,
    ),
    "detection-squares": Case(
        task="detection",
        columns=SyntheticInstances.generate,
        outputs=noisy,
        settings={"arch": "ssdlite320_mobilenet_v3_large", "augment": "ssd"},
        light=False,
    ),
    "video": Case(
        task="video",
        columns=SyntheticVideos,
        outputs=scores(1000),
        settings={
            "arch": "r3d_tiny",
            "image_size": 16,
            "clip_frames": 4,
            "val_clips": 2,
        },
    ),
    "superres": Case(
        task="superres",
        columns=lambda count: synthetic(count, 40),
        outputs=enlarged,
        settings={"patch_size": 16},
    ),
}
"""Small runs of tasks. Detectors also of what they find beside boxes."""
COLUMNS: dict[str, Callable[[int], Any]] = {
    "images": SyntheticImages,
    "videos": SyntheticVideos,
    "pairs": lambda count: synthetic(count, 40),
}
"""TaskKind.medium -> columns of so many samples."""


def plain(task: str) -> Case:
    """Return the case of a task that has no line in CASES, whose network gives [B, outputs]."""
    kind = kind_named(task)
    settings = {"image_size": 16} if kind.reads("image_size") else {}
    columns = COLUMNS[kind.medium]
    case = Case(task=task, columns=columns, outputs=scores(1), settings=settings)
    plan, learning = case.plans()[0], case.tasks()[0]
    outputs = case.module(plan)(
        *learning.inputs(case.batches("train", learning, plan)[0])
    )
    return replace(case, outputs=scores(outputs.shape[1]))


CASES |= {
    task: plain(task)
    for task in TASKS
    if task not in {case.task for case in CASES.values()}
}


def padding_has_no_target(case: Case) -> None:
    """Targets are a row a sample, ignored where it is padding; or packed by offsets."""
    plan: Any = case.plans()[1]
    task = case.tasks()[1]
    rows = list(plan.rows(0, 0))[-1]
    if plan.batches.rows == 1:  # is padded where a rank has no image any more
        rows = plan.draw(0, np.array([0]), 2)
    padded = ~rows.valid
    assert padded.any() and rows.valid.any()
    found = task.targets(rows)
    offsets = found.get("offsets")
    for name, values in found.items():
        if offsets is None:
            assert len(values) == len(rows), name
            assert (values[padded] < 0).all() or not np.issubdtype(
                values.dtype, np.integer
            ), f"{name} of padding is a real one"
        elif name != "offsets":
            assert len(values) == offsets[-1], name
    if offsets is not None:
        assert len(offsets) == len(rows) + 1
        assert not np.diff(offsets)[padded].any(), "padding has objects"


def losses_are_one_a_sample(case: Case) -> None:
    """fp32 [B], finite, 0 where a sample is not valid, with a finite gradient; parts are scalars where the
    entry says so."""
    plan = case.plans()[0]
    task = case.tasks()[0]
    module = case.module(plan).train()
    for lost in (None, 1):
        batch = masked(case.batches("train", task, plan)[0], lost)
        outputs = module(*task.inputs(batch))
        losses = task.losses(outputs, batch)
        assert losses.dtype == torch.float32 and losses.shape == (BATCH,)
        assert torch.isfinite(losses).all()
        assert (losses[~batch.valid] == 0).all() and (losses[batch.valid] != 0).any()
        module.zero_grad()
        losses.sum().backward()
        gradients = [one.grad for one in module.parameters() if one.grad is not None]
        assert gradients and all(torch.isfinite(one).all() for one in gradients)
        parts = task.parts(outputs)
        assert bool(parts) == case.kind.loss_parts
        assert {(one.dtype, one.shape) for one in parts.values()} <= {
            (torch.float32, ())
        }


def masked(batch: Batch, lost: int | None) -> Batch:
    """Return the batch as a loader gives it when the sample at this place cannot be decoded."""
    assert batch.rows is not None
    if lost is None:
        return batch
    valid = batch.rows.valid & (np.arange(len(batch.ids)) != lost)
    failed = (int(batch.ids[lost]),)
    return replace(
        batch,
        valid=torch.from_numpy(valid),
        rows=replace(batch.rows, valid=valid),
        failed=failed,
    )


def figures_of(case: Case, world: Any) -> dict[str, Any]:
    """Return what a validation of this rank's share says, without what is no figure."""
    columns = case.splits["val"].columns
    plan = case.plans(world_size=world.size, rank=world.rank)[1]
    task = case.tasks()[1]
    metric = task.metric(CPU)
    for batch in case.batches("val", task, plan):
        metric.update(case.outputs(columns, cast(Rows, batch.rows)), batch)
    outcome = Outcome(metric.result(world), failed=[], pass_s=0.0, score_s=0.0)
    no_figures = ("failed", "seconds", "extras")
    return {
        name: value
        for name, value in outcome.result(world).items()
        if name not in no_figures
    }


def figures_are_exact(case: Case) -> set[str]:
    """Figures are the declared ones, and the same bits on every rank. Return their names."""
    whole = figures_of(case, alone())
    assert set(whole) <= {figure.name for figure in case.kind.figures}
    assert case.kind.figures[0].name in whole
    assert all(isinstance(value, int | float) for value in whole.values())
    assert on_ranks(3, lambda world: figures_of(case, world)) == [whole] * 3
    return set(whole)
