"""What a detector is given, its losses, and figures that do not depend on batches or ranks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Rows
from saturate.dataset.coco.columns import COCO_IDS, class_names
from saturate.models import Native
from saturate.models.detection import Detector
from saturate.plan.boxes import DetectionPlan
from saturate.settings.config import build
from saturate.tasks import _plots
from saturate.tasks._plans import detection_policies
from saturate.tasks.detection import Detection, SquaresKind
from tests.unit.conftest import COCO_IMAGES
from tests.unit.test_meter import alone
from tests.unit.test_ssd import small

pytest.importorskip("faster_coco_eval")
CPU = torch.device("cpu")
NATIVE = Native(100, (0.5,) * 3, (0.25,) * 3, 150)
Columns = Any


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib takes a second for them: test_detection_run.py has them drawn."""
    monkeypatch.setattr(_plots, "curves", lambda scores: np.zeros((1, 8, 8, 3)))


def plan_of(
    columns: Columns,
    *,
    training: bool = False,
    batch_size: int = 4,
    augment: str = "flip",
) -> DetectionPlan:
    settings = build({"augment": augment})
    native = NATIVE if augment == "flip" else NATIVE._replace(longer=None)
    policy = detection_policies(settings.augmentation, settings.detection, native)[
        not training
    ]
    return DetectionPlan(
        columns=columns, policy=policy, seed=1, batch_size=batch_size, training=training
    )


def batch_of(task: Detection, rows: Rows, lost: Any = ()) -> Batch:
    """Make a batch as a loader on the CPU does. `lost`: places that could not be decoded, after their
    targets were made.
    """
    valid = rows.valid & ~np.isin(np.arange(len(rows)), lost)
    host = task.targets(rows)
    return Batch(
        images=torch.arange(len(rows) * 3.0)
        .reshape(-1, 3, 1, 1)
        .expand(-1, -1, *rows.padded),
        sizes=torch.from_numpy(rows.sizes),
        targets={name: torch.from_numpy(value) for name, value in host.items()},
        valid=torch.from_numpy(valid),
        ids=rows.ids,
        failed=tuple(rows.ids[list(lost)].tolist()),
        rows=replace(rows, valid=valid),
        host=host,
    )


def seen_in(
    columns: Columns,
    rows: Rows,
    *,
    masks: bool = False,
    keypoints: bool = False,
) -> list[dict[str, Any]]:
    """Detections that are right, in the batch's pixels: those of training's targets, of padding too."""
    task = Detection(columns, masks=masks, keypoints=keypoints)
    known = replace(
        rows, valid=np.ones(len(rows), bool), ids=np.where(rows.ids < 0, 0, rows.ids)
    )
    packed = {
        name: torch.from_numpy(value) for name, value in task.targets(known).items()
    }
    found = []
    for a, b in zip(packed["offsets"][:-1], packed["offsets"][1:], strict=True):
        own = {
            name: packed[name][a:b]
            for name in ("boxes", "labels", *(["keypoints"] if keypoints else []))
        }
        own["scores"] = torch.ones(len(own["labels"]))
        if masks:
            own["masks"] = torch.ones(len(own["labels"]), 1, 28, 28)
        found.append(own)
    return found


def all_right(task: Detection, **parts: bool) -> list[tuple[Any, Batch]]:
    """Return the batches of the validation, with detections that are right. `parts`: masks, keypoints."""
    return [
        (seen_in(task.columns, rows, **parts), batch_of(task, rows))
        for rows in plan_of(task.columns).rows(0, 0)
    ]


def measured(task: Detection, *batches: tuple[Any, Batch]) -> dict[str, Any]:
    metric: Any = task.metric(CPU)
    for outputs, batch in batches:
        metric.update(outputs, batch)
    found: dict[str, Any] = metric.result(alone()).result()
    return found


def test_what_was_not_decoded_is_left_out_of_training(columns: Columns) -> None:
    task, rows = Detection(columns), plan_of(columns, training=True).rows(0, 0)[0]
    whole = task.inputs(batch_of(task, rows))
    assert whole[1] == [tuple(size) for size in rows.sizes.tolist()]
    images, sizes, targets = task.inputs(batch_of(task, rows, lost=[0, 2]))
    torch.testing.assert_close(images, whole[0][[1, 3]])
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert sizes == [whole[1][1], whole[1][3]]
    for target, expected in zip(targets, (whole[2][1], whole[2][3]), strict=True):
        torch.testing.assert_close(target, expected)


def test_a_batch_of_which_nothing_was_decoded_is_one_image_without_a_box(
    columns: Columns,
) -> None:
    task = Detection(columns, masks=True)
    rows = plan_of(columns, training=True).rows(0, 0)[0]
    images, sizes, targets = task.inputs(batch_of(task, rows, lost=range(len(rows))))
    assert len(images) == len(sizes) == len(targets) == 1
    shapes = {name: tuple(value.shape) for name, value in targets[0].items()}
    assert shapes == {"boxes": (0, 4), "labels": (0,), "masks": (0, *rows.padded)}


@pytest.mark.parametrize("lost", [(), (1,), (0, 1, 2, 3)])
def test_padded_boxes_have_the_losses_of_packed_ones(
    columns: Columns, lost: tuple[int, ...]
) -> None:
    """In a graph too, whose batch has tensors alone, and looks at all places."""
    module = Detector(small())
    rows = plan_of(columns, training=True, augment="ssd").rows(0, 0)[0]
    packed = Detection(columns)
    padded = Detection(columns, places=int(columns.boxes_of_images.max()) + 2)
    listed = batch_of(packed, rows, lost)
    batch = batch_of(padded, rows, lost)
    captured = replace(batch, rows=None, host={})
    assert padded.inputs(captured)[2]["boxes"].shape[1] == padded.places
    found = [
        task.losses(module(*task.inputs(one)), one)
        for task, one in ((packed, listed), (padded, batch), (padded, captured))
    ]
    assert len(lost) == 4 or (found[0] > 0).any()
    assert torch.equal(found[1], found[2])
    torch.testing.assert_close(found[1], found[0])
    assert lost or torch.equal(found[1], found[0])


def test_images_of_the_validation_may_have_more_boxes_than_those_of_training(
    columns: Columns,
) -> None:
    first = np.isin(np.arange(len(columns.usable)), columns.annotation_offsets)
    fewer = replace(columns, usable=columns.usable & first)
    splits: Any = {
        name: SimpleNamespace(columns=its, source=None)
        for name, its in (("train", fewer), ("val", columns))
    }
    both: Any = SquaresKind().tasks(splits, 0.0)
    train, val = both
    assert train.training and not val.training
    (rows, *_) = plan_of(columns, augment="ssd").rows(0, 0)
    assert train.targets(rows)["labels"].shape[1] == 1
    assert len(val.targets(rows)["labels"]) > len(rows)


def test_an_image_of_whose_output_a_part_is_no_number_has_found_nothing(
    columns: Columns,
) -> None:
    task = Detection(columns, training=False)
    whole = all_right(task)
    right = measured(task, *whole)
    assert right["ap"] == right["ap75"] == right["ar100"] == pytest.approx(1)
    assert (right["samples"], right["outputs_not_finite"]) == (COCO_IMAGES, 0)
    assert (
        right["detections"] == int(columns.usable.sum())
        and (whole[-1][1].ids < 0).any()
    )
    assert not any(name.startswith(("mask", "keypoint")) for name in right)
    outputs, _ = whole[0]
    kept = [place for place in range(2) if len(outputs[place]["scores"])]
    assert kept == [0, 1]
    outputs[0]["scores"][0] = math.nan
    outputs[1]["finite"] = torch.tensor(
        False
    )  # its head was no number, and what is left of it looks well
    found = measured(task, *whole)
    lost = sum(len(outputs[place]["scores"]) for place in kept)
    assert found["outputs_not_finite"] == 2 and found["samples"] == COCO_IMAGES
    assert found["detections"] == right["detections"] - lost and found["ap"] < 1


def test_masks_are_pasted_into_their_boxes(columns: Columns) -> None:
    """Full ones are right for rectangles, and not for triangles."""
    task = Detection(columns, masks=True, training=False)
    result = measured(task, *all_right(task, masks=True))
    assert result["ap"] == pytest.approx(1)
    scalars = result["extras"]["scalars"]
    box, person, triangle = (
        scalars[f"val_mask_ap/{name}"] for name in ("box", "person", "triangle")
    )
    assert box > 0.9 and person > 0.9 and triangle < 0.5
    found = json.loads(result["extras"]["files"]["detections_masks.json"])
    sizes = zip(columns.height.tolist(), columns.width.tolist(), strict=True)
    size_of = dict(zip(columns.image_id.tolist(), map(list, sizes), strict=True))
    assert all(one["segmentation"]["size"] == size_of[one["image_id"]] for one in found)


def test_keypoints_go_back_to_the_image(people: Columns) -> None:
    task = Detection(people, keypoints=True, training=False)
    batches = all_right(task, keypoints=True)
    result = measured(task, *batches)
    for name in ("ap", "keypoint_ap", "keypoint_ar75"):
        assert result[name] == pytest.approx(1), name
    moved = [
        ([{**one, "keypoints": one["keypoints"] + 9} for one in outputs], batch)
        for outputs, batch in batches
    ]
    assert measured(task, *moved)["keypoint_ap"] < 0.5


def test_boxes_end_at_the_image(columns: Columns) -> None:
    task, rows = Detection(columns, training=False), plan_of(columns).rows(0, 0)[0]
    wide = {"labels": torch.tensor([3]), "scores": torch.ones(1)}
    wide["boxes"] = torch.tensor([[-50.0, -50, 5000, 5000]])
    extras = measured(task, ([wide] * len(rows), batch_of(task, rows)))["extras"]
    (first, *_) = json.loads(extras["files"]["detections.json"])
    sample = int(np.flatnonzero(columns.image_id == first["image_id"])[0])
    assert first["bbox"] == [0, 0, columns.width[sample], columns.height[sample]]


def noisy(columns: Columns, rows: Rows, **parts: bool) -> list[dict[str, Any]]:
    """Detections by the image alone: some right, some wrong, scores tied. `parts`: masks, keypoints."""
    found = seen_in(columns, rows, **parts)
    for sample, own in zip(rows.ids.tolist(), found, strict=True):
        rng = torch.Generator().manual_seed(max(sample, 0))
        own["boxes"] = own["boxes"] + 6 * torch.randn(own["boxes"].shape, generator=rng)
        own["scores"] = (
            torch.rand(len(own["scores"]), generator=rng).mul(4).round().div(4)
        )
    return found


def test_what_was_not_decoded_is_not_detected(columns: Columns) -> None:
    task = Detection(columns, training=False)
    rows = plan_of(columns, batch_size=COCO_IMAGES).rows(0, 0)[0]
    lost = int(np.argmax(np.diff(columns.annotation_offsets)[rows.ids]))
    result = measured(task, (seen_in(columns, rows), batch_of(task, rows, lost=[lost])))
    # all that could be seen was found
    assert result["samples"] == COCO_IMAGES - 1 and result["ap"] == 1
    images = {
        one["image_id"]
        for one in json.loads(result["extras"]["files"]["detections.json"])
    }
    assert columns.image_id[rows.ids[lost]] not in images


def test_classes_that_are_no_category_are_left_out(columns: Columns) -> None:
    """The published weights have 91 classes for 80 categories."""
    columns = replace(
        columns,
        category_ids=np.array(COCO_IDS),
        classes=class_names(np.array(COCO_IDS), [str(i) for i in COCO_IDS]),
    )
    task = Detection(columns, training=False)
    assert columns.classes[12] == "N/A"
    outputs, batch = all_right(task)[0]
    for own in outputs:
        own["labels"].fill_(12)
    assert measured(task, (outputs, batch))["detections"] == 0


def test_nothing_found_at_all(columns: Columns, people: Columns) -> None:
    none = {"boxes": (0, 4), "masks": (0, 1, 28, 28), "keypoints": (0, 5, 3)}
    found = {name: torch.zeros(shape) for name, shape in none.items()}
    found |= {"scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    for task in (
        Detection(columns, masks=True, training=False),
        Detection(people, keypoints=True, training=False),
    ):
        rows = plan_of(task.columns).rows(0, 0)[0]
        result = measured(task, ([found] * len(rows), batch_of(task, rows)))
        assert (result["ap"], result["detections"]) == (0, 0)
        assert measured(task)["samples"] == 0


def test_an_image_seen_twice_is_an_error(columns: Columns) -> None:
    task = Detection(columns, training=False)
    first, *_ = all_right(task)
    with pytest.raises(ValueError, match="validated twice"):
        measured(task, first, first)
