"""The detection task beside its figures: pictures, files, what train.py asks of it, and --score."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from contracts import Split, UserError
from dataset.stores.folder import Folder
from models import Native
from plan.boxes import padding
from report.console import Console
from settings.config import Config, build
from tasks import _coco, _plots
from tasks._coco import Detections
from tasks._coco_ap import spread
from tasks.detection import KIND as kind
from tasks.detection import Detection
from tests.unit.coco_files import CATEGORIES, document, write, write_coco
from tests.unit.conftest import COCO_IMAGES
from tests.unit.test_detection_task import (
    NATIVE,
    batch_of,
    measured,
    noisy,
    plan_of,
    seen_in,
)

pytest.importorskip("faster_coco_eval")
Columns = Any


def seen_noisily(task: Detection, columns: Columns) -> list[Any]:
    return [
        (noisy(columns, rows), batch_of(task, rows))
        for rows in plan_of(columns).rows(0, 0)
    ]


def test_extras_are_files_scalars_and_pictures(columns: Columns) -> None:
    task = Detection(columns, training=False, source=Folder(columns))
    extras = measured(task, *seen_noisily(task, columns))["extras"]
    assert list(extras["files"]) == ["detections.json"]
    found = json.loads(extras["files"]["detections.json"])
    assert found[0].keys() == {"image_id", "category_id", "bbox", "score"}
    assert extras["scalars"].keys() == {
        f"val_ap/{name}" for name in CATEGORIES.values()
    }
    assert extras["images"].keys() == {"val/predictions", "val/precision_recall"}
    for images in extras["images"].values():
        assert images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] == 3
        assert len(np.unique(images)) > 20  # something is on them
    assert len(extras["images"]["val/predictions"]) == 4


def test_pictures_do_without_files(columns: Columns, tmp_path: Path) -> None:
    rows = plan_of(columns).rows(0, 0)[0]
    for source in (Folder(replace(columns, root=tmp_path)), None):
        task = Detection(columns, training=False, source=source)
        extras = measured(task, (noisy(columns, rows), batch_of(task, rows)))["extras"]
        assert extras["images"].keys() == {"val/precision_recall"}


@settings(max_examples=50)
@given(length=st.integers(0, 40), count=st.integers(1, 6))
def test_pictures_are_of_all_the_validation(length: int, count: int) -> None:
    ids = np.arange(length) + 100
    taken = spread(ids, count)
    assert len(taken) == len(set(taken)) == min(count, length) and set(taken) <= set(
        ids.tolist()
    )
    if 1 < count <= length:
        assert taken[0] == ids[0] and taken[-1] == ids[-1]
        assert np.ptp(np.diff(taken)) <= 1


@pytest.mark.parametrize(
    ("scores", "count"),
    [
        ([0.9] + [0.4] * 5, 1),
        ([0.4] * 5, 3),
        ([0.4], 1),
        ([0.9] * 30, 20),
        ([0.5, 0.6], 2),
    ],
)
def test_pictures_hold_what_is_likely(
    columns: Columns, monkeypatch: pytest.MonkeyPatch, scores: list[float], count: int
) -> None:
    """Or the three likeliest where nothing is."""
    drawn: list[int] = []
    whole = _plots._drawn

    def counted(picture: Any, boxes: list[Any], *scale: float) -> Any:
        drawn.append(len(boxes))
        return whole(picture, boxes, *scale)

    monkeypatch.setattr(_plots, "_drawn", counted)
    found = Detections(
        image_ids=np.full(len(scores), columns.image_id[0]),
        category_ids=np.full(len(scores), 3),
        boxes=np.tile([1.0, 2, 30, 40], (len(scores), 1)),
        scores=np.array(scores),
    )
    assert _plots.predictions(columns, Folder(columns), found, [0]) is not None
    assert drawn[1] == count


@pytest.mark.parametrize(("of", "overlap"), [("boxes", "IoU"), ("keypoints", "OKS")])
def test_curves_are_of_overlaps_that_one_looks_for(
    people: Columns, monkeypatch: pytest.MonkeyPatch, of: str, overlap: str
) -> None:
    labels: list[str] = []
    plot = Axes.plot

    def noted(self: Axes, *values: Any, **how: Any) -> Any:
        labels.append(how["label"])
        return plot(self, *values, **how)

    monkeypatch.setattr(Axes, "plot", noted)
    none = Detections(
        image_ids=np.zeros(0, np.int64),
        category_ids=np.zeros(0, np.int64),
        boxes=np.zeros((0, 4)),
        scores=np.zeros(0),
        keypoints=np.zeros((0, 5, 3)),
    )
    _plots.curves(_coco.score(people, none, kind=of, evaluator="pycocotools"))
    assert [label.partition(":")[0] for label in labels] == [
        f"{overlap} {value}"
        for value in ("0.50", "0.60", "0.70", "0.75", "0.85", "0.95")
    ]


@pytest.fixture
def console() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(stream=stream), stream


def config_of(root: Path | None, **flat: Any) -> Config:
    where = (
        {}
        if root is None
        else {"data": str(root), "manifest_dir": str(root.parent / "cache")}
    )
    return build({"task": "detection", "batch_size": 2, **where, **flat})


@pytest.mark.parametrize(
    ("arch", "parts"),
    [
        (None, {"boxes"}),
        ("maskrcnn_resnet50_fpn_v2", {"boxes", "masks"}),
        ("keypointrcnn_resnet50_fpn", {"boxes", "keypoints"}),
    ],
)
def test_what_a_run_is_made_of(
    coco_root: Path, console: Any, arch: str | None, parts: set[str]
) -> None:
    config = config_of(coco_root, arch=arch, trainable_layers=2, val_batch_size=3)
    splits = kind.splits(config, "torchvision", console[0])
    plan, val_plan = kind.plans(config, splits, NATIVE, seed=3, world_size=1, rank=0)
    assert (plan.batch_size, val_plan.batch_size, plan.training, val_plan.training) == (
        2,
        3,
        True,
        False,
    )
    assert val_plan.samples == COCO_IMAGES and plan.samples == len(
        splits["train"].columns.with_boxes
    )
    train, val = kind.tasks(config, splits, 0.0)
    rows = plan.rows(0, 0)[0]
    assert train.targets(rows).keys() == {"offsets", "labels", *parts}
    assert val.inputs(batch_of(val, val_plan.rows(0, 0)[0]))[2] is None  # type: ignore[arg-type]
    person = arch is not None and "keypoint" in arch
    built: dict[str, Any] = (
        {"classes": 2, "keypoints": 5} if person else {"classes": 4, "keypoints": 0}
    )
    built |= {"weights_backbone": None, "trainable_layers": 2}
    assert kind.building(config, splits["train"].columns) == built
    told = kind.facts(plan)
    assert (
        told["instances_per_image"]
        == splits["train"].columns.usable.sum() / plan.samples
    )
    assert (
        told["padding"] == pytest.approx(padding(plan.rows(0, 0)))
        and 0 < told["padding"] < 0.5
    )
    assert (
        kind.bytes_read(splits["train"].columns, np.array([0, 1]))
        == splits["train"].columns.size[:2].sum()
    )


def test_crops_by_overlap_drop_boxes_by_their_middle(
    coco_root: Path, console: Any
) -> None:
    native = NATIVE._replace(longer=None)
    for augment in ("flip", "ssd", "ssdlite"):
        config = config_of(coco_root, augment=augment)
        splits = kind.splits(config, "torchvision", console[0])
        plan, _ = kind.plans(config, splits, native, seed=3, world_size=1, rank=0)
        train, _ = kind.tasks(config, splits, 0.0)
        assert train.centred == plan.policy.centred  # type: ignore[attr-defined]
        assert (kind.facts(plan)["padding"] > 0) == (
            augment == "ssd"
        )  # the field around an image zoomed out


def without_segmentation(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    root = write_coco(
        folder / "set", splits={"train2017": 4, "val2017": 4}, size=(64, 80)
    )
    content = document(root, "train2017")
    for annotation in content["annotations"]:
        if not keep(annotation):
            annotation["segmentation"] = []
    write(root, "train2017", content)
    return root


def test_masks_that_no_box_has_are_a_mistake(tmp_path: Path, console: Any) -> None:
    # which is not trained on
    root = without_segmentation(tmp_path, lambda annotation: annotation["iscrowd"] == 1)
    masks, boxes = "maskrcnn_resnet50_fpn_v2", "fasterrcnn_resnet50_fpn_v2"
    with pytest.raises(
        UserError,
        match=rf"^--arch {masks} .* none of the 9 boxes .* --arch {boxes} does",
    ):
        kind.splits(config_of(root, arch=masks), "torchvision", console[0])
    kind.splits(config_of(root, arch=boxes), "torchvision", console[0])
    assert "warning" not in console[1].getvalue()


def test_boxes_without_a_mask_are_left_out_of_training_masks(
    tmp_path: Path, console: Any
) -> None:
    root = without_segmentation(
        tmp_path,
        lambda annotation: annotation["category_id"] != 5 or annotation["iscrowd"] == 1,
    )
    for arch, boxes in (("fasterrcnn_resnet50_fpn", 9), ("maskrcnn_resnet50_fpn", 6)):
        config = config_of(root, arch=arch, batch_size=3)
        splits = kind.splits(config, "torchvision", console[0])
        plan, _ = kind.plans(config, splits, NATIVE, seed=3, world_size=1, rank=0)
        train, _ = kind.tasks(config, splits, 0.0)
        (rows,) = plan.rows(0, 0)
        targets = train.targets(rows)
        assert (
            len(targets["boxes"]) == boxes
            and kind.facts(plan)["instances_per_image"] == boxes / 3
        )
        if boxes == 6:
            assert (
                targets["masks"].any(axis=(1, 2)).all() and 5 not in targets["labels"]
            )
    said = console[1].getvalue()
    assert said.count("warning") == 1
    assert (
        "train: 3 of 9 boxes have no segmentation, and --arch maskrcnn_resnet50_fpn does not train on them"
        in said
    )


def test_run_lengths_of_nothing_are_no_mask(tmp_path: Path, console: Any) -> None:
    root = write_coco(
        tmp_path / "set", splits={"train2017": 1, "val2017": 1}, size=(64, 80)
    )
    content = document(root, "train2017")
    first, second, third = content["annotations"]
    first["segmentation"] = {"size": [64, 80], "counts": [64 * 80]}
    second["segmentation"] = {"size": [64, 80], "counts": [0, 64 * 80]}
    write(root, "train2017", content)
    splits = kind.splits(
        config_of(root, arch="maskrcnn_resnet50_fpn"), "torchvision", console[0]
    )
    columns = splits["train"].columns
    assert dict(
        zip(columns.annotation_id.tolist(), columns.usable.tolist(), strict=True)
    ) == {
        first["id"]: False,
        second["id"]: True,
        third["id"]: True,
    }


@pytest.mark.parametrize("crowds", [True, False])
def test_a_validation_without_annotations_is_said_once(
    tmp_path: Path, console: Any, crowds: bool
) -> None:
    root = write_coco(
        tmp_path / "set", splits={"train2017": 4, "val2017": 2}, size=(64, 80)
    )
    content = document(root, "val2017")
    content["annotations"] = [
        one for one in content["annotations"] if crowds and one["iscrowd"]
    ]
    write(root, "val2017", content)
    splits = kind.splits(config_of(root), "torchvision", console[0])
    assert (
        console[1]
        .getvalue()
        .count("warning: val: no image has an annotation to find, so AP is nan")
        == 1
    )
    columns = splits["val"].columns
    task, rows = Detection(columns, training=False), plan_of(columns).rows(0, 0)[0]
    assert np.isnan(
        measured(task, (seen_in(columns, rows), batch_of(task, rows)))["ap"]
    )


def test_synthetic_data_will_do(console: Any) -> None:
    splits: dict[str, Split] = kind.splits(config_of(None), "synthetic", console[0])
    plan, _ = kind.plans(
        config_of(None),
        splits,
        Native(800, (0.5,) * 3, (0.5,) * 3, 1333),
        seed=0,
        world_size=1,
        rank=0,
    )
    told = kind.facts(plan)
    assert 5 < told["instances_per_image"] < 9 and 0 < told["padding"] < 0.1
    with pytest.raises(UserError, match="--data is missing"):
        kind.splits(config_of(None), "torchvision", console[0])
    with pytest.raises(UserError, match=r"^--score .* needs --data"):
        kind.score(config_of(None, score="a.json"), console[0])


@pytest.mark.parametrize(
    "points",
    [["right_eye", "left_eye", "nose"], ["nose", "left_eye", "right_eye", "chin"]],
)
def test_keypoints_of_validation_must_be_those_of_training(
    tmp_path: Path, console: Any, points: list[str]
) -> None:
    root = write_coco(
        tmp_path / "set", splits={"train2017": 4, "val2017": 4}, size=(64, 80)
    )
    for split, names in (
        ("train2017", ["nose", "left_eye", "right_eye"]),
        ("val2017", points),
    ):
        path = root / "annotations" / f"person_keypoints_{split}.json"
        told = json.loads(path.read_text())
        for category in told["categories"]:
            category["keypoints"] = names
        for one in told["annotations"]:
            one["keypoints"] = [5, 5, 2] * len(names)
        path.write_text(json.dumps(told))
    with pytest.raises(
        UserError,
        match="validation name other keypoints than those of training, or in another order",
    ):
        kind.splits(
            config_of(root, arch="keypointrcnn_resnet50_fpn"), "torchvision", console[0]
        )


def test_keypoints_are_scored_against_people(
    coco_root: Path, people: Columns, tmp_path: Path, console: Any
) -> None:
    task = Detection(people, keypoints=True, training=False)
    batches = [
        (seen_in(people, rows, keypoints=True), batch_of(task, rows))
        for rows in plan_of(people).rows(0, 0)
    ]
    path = tmp_path / "detections.json"
    path.write_bytes(
        measured(task, *batches)["extras"]["files"]["detections_keypoints.json"]
    )
    assert kind.score(config_of(coco_root, score=str(path)), console[0]) == 0
    said = console[1].getvalue()
    assert (
        "keypoint_ap " in said
        and "100.00%" in said
        and "\n  ap " not in said
        and os.linesep in said
    )
