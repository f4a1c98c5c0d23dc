"""The detection task beside its figures: pictures, files, what train.py asks of it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as mask_coder

from saturate.contracts import Split, UserError
from saturate.dataset.stores.folder import Folder
from saturate.report.console import Console
from saturate.settings.config import Config, build
from saturate.system import drawing
from saturate.tasks import _detections, _plots, kind_of
from saturate.tasks._coco import Detections, Scores
from saturate.tasks.batching import Batching
from saturate.tasks.detection import Detection
from saturate.tasks.kind import Asked, Opening, TaskKind
from tests.unit.coco_files import document, write, write_coco
from tests.unit.test_detection_task import NATIVE, all_right, measured
from tests.unit.test_meter import alone

pytest.importorskip("faster_coco_eval")
Columns = Any
FEW = {"train2017": 4, "val2017": 4}


@pytest.fixture
def console() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(stream=stream), stream


def config_of(root: Path, **flat: Any) -> Config:
    where = {"data": str(root), "manifest_dir": str(root.parent / "cache")}
    return build({"task": "detection", "batch_size": 2, **where, **flat})


def opened(config: Config, console: Console) -> tuple[TaskKind, dict[str, Split]]:
    kind = kind_of(config)
    return kind, kind.splits(Opening.from_config(config, "torchvision", console))


def without_segmentation(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    root = write_coco(folder / "set", splits=FEW, size=(64, 80))
    content = document(root, "train2017")
    for annotation in content["annotations"]:
        if not keep(annotation):
            annotation["segmentation"] = []
    write(root, "train2017", content)
    return root


def test_boxes_without_a_mask_are_left_out_of_training_masks(
    tmp_path: Path, console: Any
) -> None:
    root = without_segmentation(
        tmp_path,
        lambda annotation: annotation["category_id"] != 5 or annotation["iscrowd"] == 1,
    )
    for arch, boxes in (("fasterrcnn_resnet50_fpn", 9), ("maskrcnn_resnet50_fpn", 6)):
        config = config_of(root, arch=arch, batch_size=3)
        kind, splits = opened(config, console[0])
        plan, _ = kind.plans(splits, NATIVE, Batching.from_config(config))
        train, _ = kind.tasks(splits, 0.0)
        (rows,) = plan.rows(0, 0)
        targets = train.targets(rows)
        assert (
            len(targets["boxes"]) == boxes
            and kind.facts(plan)["instances_per_image"] == boxes / 3
        )
        assert kind.facts(plan)["without_boxes"] == len(splits["train"].columns) - 3
        if boxes == 6:
            assert (
                targets["masks"].any(axis=(1, 2)).all() and 5 not in targets["labels"]
            )
    said = console[1].getvalue()
    assert said.count("warning") == 1
    assert (
        "train: --arch maskrcnn_resnet50_fpn leaves out 3 of 9 boxes, for want of a segmentation"
        in said
    )


def test_keypoints_of_validation_must_be_those_of_training(
    tmp_path: Path, console: Any
) -> None:
    root = write_coco(tmp_path / "set", splits=FEW, size=(64, 80))
    told = document(root, "val2017", "person_keypoints")
    told["categories"][0]["keypoints"].reverse()
    write(root, "val2017", told, "person_keypoints")
    with pytest.raises(UserError, match="other keypoints"):
        opened(config_of(root, arch="keypointrcnn_resnet50_fpn"), console[0])


def test_a_validation_has_pictures(columns: Columns) -> None:
    task = Detection(columns, training=False, source=Folder(columns))
    extras = measured(task, *all_right(task))["extras"]
    assert list(extras["files"]) == ["detections.json"]
    assert extras["images"].keys() == {"val/predictions", "val/precision_recall"}
    # four rows: two pictures of 80 x 64, six times as large, with a line below
    height, width = extras["images"]["val/predictions"][0].shape[:2]
    assert (height, width) == (4 * (384 + 8 + 25), 2 * (480 + 8))


def found_in(columns: Columns, *boxes: tuple[int, float], **parts: Any) -> Detections:
    """Return detections of the first image: categories and scores, side by side in its upper half."""
    places = np.arange(len(boxes))
    return Detections(
        image_ids=np.full(len(boxes), columns.image_id[0]),
        category_ids=np.array([category for category, _ in boxes]),
        boxes=np.array([(20.0 * at, 20, 15, 10) for at in places]),
        scores=np.array([score for _, score in boxes]),
        **parts,
    )


def inked(picture: Any, number: int) -> np.ndarray:
    return (np.asarray(picture) == drawing.colour_of(number)).all(axis=2)


def test_what_scores_less_than_the_threshold_is_not_drawn(columns: Columns) -> None:
    source = Folder(columns)
    found = found_in(columns, (1, 0.9), (3, 0.6), (5, 0.3))
    # by class number: categories are 1, 3 and 5
    for threshold, drawn in ((0.5, {1, 2}), (0.25, {1, 2, 3}), (0.95, set())):
        picture = _plots.detected(columns, source, found, 0, threshold)
        assert {at for at in (1, 2, 3) if inked(picture, at).any()} == drawn
        if 1 in drawn:
            assert inked(picture, 1)[25, [0, 15]].all()


def test_masks_and_key_points_are_drawn_where_the_network_finds_them(
    columns: Columns, people: Columns
) -> None:
    mask = np.zeros((64, 80), np.uint8, order="F")
    mask[40:60, 40:70] = 1
    masks = [mask_coder.encode(mask)]
    found = found_in(columns, (3, 0.9), masks=masks)
    plain, veiled = (
        np.asarray(_plots.detected(columns, Folder(columns), one, 0, 0.5), int)
        for one in (replace(found, masks=None), found)
    )
    assert np.array_equal((plain != veiled).any(axis=2)[38:, 38:], mask[38:, 38:] > 0)
    points = np.array([[[60, 50, 1], [10, 50, 0]]])
    points = np.concatenate([points, np.zeros((1, 3, 3))], axis=1)
    found = found_in(people, (1, 0.9), keypoints=points)
    picture = _plots.detected(people, Folder(people), found, 0, 0.5)
    assert inked(picture, 1)[50, 60] and not inked(picture, 1)[50, 10]


def test_truth_has_the_masks_of_the_file(columns: Columns, coco_root: Path) -> None:
    """Masks of polygons and of run lengths are those that pycocotools draws of the annotation file."""
    told = document(coco_root, "val2017")["annotations"]
    by_id = {one["id"]: one for one in told}
    seen = set()
    for sample in range(4):
        size = int(columns.height[sample]), int(columns.width[sample])
        own = columns.annotations(sample)
        marks = [*_plots._true(columns, found_in(columns, masks=[]), sample)]
        for mark, number in zip(
            marks, columns.annotation_id[own].tolist(), strict=True
        ):
            one = by_id[number]["segmentation"]
            runs = mask_coder.frPyObjects(one, *size)
            expected = mask_coder.decode(runs)
            if isinstance(one, list):
                expected = expected.max(axis=2)
            assert (mark.mask == expected).all() and expected.any()
            seen.add(type(one))
    assert seen == {list, dict}


def test_images_in_which_nothing_is_found_are_named(columns: Columns) -> None:
    """Those below the threshold; not those that were not decoded."""
    task = Detection(columns, training=False, source=Folder(columns), scored=False)
    batches = all_right(task)
    for outputs, batch in batches:
        for own, sample in zip(outputs, batch.ids.tolist(), strict=True):
            if sample in (0, 4):
                own["scores"].fill_(0.4)
    metric: Any = task.metric(torch.device("cpu"))
    for outputs, batch in batches:
        metric.update(outputs, batch)
    (note,) = metric.result(alone())["notes"]
    # with those of which every fourth has no object: 3, 7 and 11
    head = "nothing found in 5 of 13 images (--score-threshold 0.5), first "
    assert note == head + Folder(columns).name(0)


def test_images_to_predict_are_numbered_from_1_and_none_is_left_out(
    columns: Columns,
) -> None:
    found = _detections.Unannotated.from_images(columns, columns.classes)
    assert found.image_id.tolist() == [*range(1, 14)] and found.rejected == 0


def test_images_json_has_names_that_are_no_utf8_as_text(
    columns: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_detections, "_draw", lambda *_: {})
    names = tuple(f"{name}\udcff" for name in columns.classes)
    split = Split(columns=replace(columns, classes=names), source=Folder(columns))
    nothing = np.array([-1])
    asked = Asked(names=["\udcfe.jpg"], samples=nothing, errors={0: "cut"}, form="csv")
    found: dict[str, Any] = {"detections": None, "not_finite": ()}
    _detections.write_detections(
        tmp_path, found, asked, split=split, kinds=(), threshold=0.5
    )
    listed = json.loads((tmp_path / "images.json").read_text())
    assert listed["images"] == [{"file_name": "\\xfe.jpg", "error": "cut"}]
    assert all(one["name"].endswith("\\xff") for one in listed["categories"])


def test_a_legend_lies_beside_its_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    sheets = list[Any]()

    class Kept(_plots.Figure):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            sheets.append(self)

    monkeypatch.setattr(_plots, "Figure", Kept)
    scores = Scores(
        kind="boxes",
        stats=np.ones(12),
        # the second category has no objects
        precision=np.array([1, -1]) * np.ones((10, 101, 2)),
        category_ids=np.arange(2),
    )
    assert scores.curve(0).tolist() == [1.0] * 101
    _plots.curves(scores)
    (axes,) = sheets[0].axes
    legend = axes.get_legend().get_window_extent()
    assert axes.bbox.x1 <= legend.x0 and legend.x1 <= sheets[0].bbox.x1
    assert axes.bbox.y0 < legend.y0 and legend.y1 < axes.bbox.y1


def test_masks_that_no_box_has_are_a_mistake(tmp_path: Path, console: Any) -> None:
    # which is not trained on
    root = without_segmentation(tmp_path, lambda annotation: annotation["iscrowd"] == 1)
    masks, boxes = "maskrcnn_resnet50_fpn_v2", "fasterrcnn_resnet50_fpn_v2"
    with pytest.raises(
        UserError,
        match=rf"^--arch {masks} .* no box of 9 .* --arch {boxes} does",
    ):
        opened(config_of(root, arch=masks), console[0])
    opened(config_of(root, arch=boxes), console[0])
    assert "warning" not in console[1].getvalue()
