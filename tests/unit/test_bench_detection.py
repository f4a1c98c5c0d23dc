"""The loop by hand of detectors, without a GPU."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks import link_set
from benchmarks.baselines import detection as baseline

pytest.importorskip("pycocotools", reason="pycocotools is not installed")


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Eight images, wide and high in turn: a box in each but the last, whose only annotation is a crowd."""
    (tmp_path / "train2017").mkdir()
    (tmp_path / "annotations").mkdir()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    boxes = ([4, 8, 10, 20], [1, 1, 0.5, 9], [-8, 0, 7, 9])  # two are none
    for number in range(8):
        width, height = (64, 32) if number % 2 else (32, 64)
        name = f"{number}.png"
        image = Image.new("RGB", (width, height), (8 * number,) * 3)
        image.save(tmp_path / "train2017" / name)
        size = {"width": width, "height": height}
        images.append({"id": number, "file_name": name, **size})
        for box in boxes:
            one = {"id": len(annotations), "image_id": number, "category_id": 90}
            annotations.append(one | {"bbox": box, "iscrowd": int(number == 7)})
    told = {"images": images, "annotations": annotations}
    told["categories"] = [{"id": 90, "name": "x"}]
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(told))
    return tmp_path


def test_boxes_follow_the_flip(coco: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = baseline.Coco(coco)
    assert len(data) == 7
    for flipped, boxes in ((1.0, [[4, 8, 14, 28]]), (0.0, [[50, 8, 60, 28]])):
        monkeypatch.setattr(random, "random", lambda found=flipped: found)
        image, target = data[1]
        assert image.shape == (3, 32, 64) and image.dtype == torch.float32
        assert target["boxes"].tolist() == boxes and target["labels"].tolist() == [90]


def test_batches_are_of_one_shape(coco: Path) -> None:
    found = [images for images, _ in baseline.loader(coco, 3, 0)]
    assert len(found) == 2
    assert all(len({image.shape for image in images}) == 1 for images in found)
    with pytest.raises(ValueError, match="a smaller --batch-size"):
        next(baseline.batches(baseline.loader(coco, 8, 0), torch.device("cpu")))


def test_links_have_the_annotations_of_their_image(
    coco: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = tmp_path_factory.mktemp("links") / "made"
    assert link_set.main([str(coco), str(made), "--count", "20"]) == 0
    told = json.loads((made / "annotations" / "instances_train2017.json").read_text())
    for key, count in (("images", 20), ("annotations", 60)):
        assert len({one["id"] for one in told[key]}) == len(told[key]) == count
    assert told["categories"] == [{"id": 90, "name": "x"}]
    files = {path.name for path in (made / "train2017").iterdir()}
    assert {image["file_name"] for image in told["images"]} == files
    crowds = 0
    for image in told["images"]:
        real = int(Path(image["file_name"]).stem.rpartition("-")[2])
        link = made / "train2017" / image["file_name"]
        assert link.samefile(coco / "train2017" / f"{real}.png")
        its = [one for one in told["annotations"] if one["image_id"] == image["id"]]
        assert {one["iscrowd"] for one in its} == {int(real == 7)}
        crowds += real == 7
    assert len(baseline.Coco(made)) == 20 - crowds
