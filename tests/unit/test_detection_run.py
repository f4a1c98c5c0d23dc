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

from saturate.contracts import Split, UserError
from saturate.dataset.stores.folder import Folder
from saturate.report.console import Console
from saturate.settings.config import Config, build
from saturate.system import fonts
from saturate.tasks import _detections, _plots, kind_of
from saturate.tasks._coco import Scores
from saturate.tasks.batching import Batching
from saturate.tasks.detection import Detection
from saturate.tasks.kind import Asked, Opening, TaskKind
from tests.unit.coco_files import document, write, write_coco
from tests.unit.test_detection_task import NATIVE, all_right, measured

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
    return kind, kind.splits(Opening.of(config, "torchvision", console))


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
        plan, _ = kind.plans(splits, NATIVE, Batching.of(config))
        train, _ = kind.tasks(splits, 0.0)
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
    assert len(extras["images"]["val/predictions"]) == 4


def test_images_json_has_names_that_are_no_utf8_as_text(
    columns: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_detections, "_draw", lambda *_: 0)
    names = tuple(f"{name}\udcff" for name in columns.classes)
    split = Split(columns=replace(columns, classes=names), source=Folder(columns))
    nothing = np.array([-1])
    asked = Asked(names=["\udcfe.jpg"], samples=nothing, errors={0: "cut"}, form="csv")
    found: dict[str, Any] = {"detections": None, "not_finite": ()}
    _detections.write_detections(tmp_path, found, asked, split=split, kinds=())
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
        precision=np.ones((10, 101, 1)),
        category_ids=np.ones(1),
    )
    _plots.curves(scores)
    (axes,) = sheets[0].axes
    legend = axes.get_legend().get_window_extent()
    assert axes.bbox.x1 <= legend.x0 and legend.x1 <= sheets[0].bbox.x1


def test_categories_whose_letters_no_font_has_are_drawn_as_their_ids(
    columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "others", list)
    of = dict(zip(columns.class_of.tolist(), columns.category_ids, strict=True))
    pictures = []
    for text in ("\u24b6{}", "class {}"):
        names = [text.format(of.get(at, at)) for at in range(len(columns.classes))]
        named = replace(columns, classes=tuple(names))
        task = Detection(named, training=False, source=Folder(columns))
        extras = measured(task, *all_right(task))["extras"]
        pictures.append(extras["images"]["val/predictions"])
    assert (pictures[0] == pictures[1]).all()


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
