"""The loop by hand of detectors, without a GPU."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.baselines import detection as baseline
from scripts import link_set

pytest.importorskip("pycocotools", reason="pycocotools is not installed")


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Eight images, wide and high in turn: a box in each but the last, whose only annotation is a crowd."""
    (tmp_path / "train2017").mkdir()
    (tmp_path / "annotations").mkdir()
    images, annotations = [], []
    for number in range(8):
        width, height = (64, 32) if number % 2 else (32, 64)
        Image.fromarray(np.full((height, width, 3), 8 * number, np.uint8)).save(
            tmp_path / "train2017" / f"{number}.png"
        )
        images.append(
            {
                "id": number,
                "file_name": f"{number}.png",
                "width": width,
                "height": height,
            }
        )
        part = {
            "image_id": number,
            "category_id": 90,
            "area": 1,
            "iscrowd": int(number == 7),
        }
        annotations.append(
            {
                **part,
                "id": 1 + 3 * number,
                "bbox": [4, 8, 10, 20],
                "segmentation": [[4, 8, 14, 8, 14, 28, 4, 28]],
            }
        )
        annotations.append(
            {
                **part,
                "id": 2 + 3 * number,
                "bbox": [1, 1, 0.5, 9],
                "segmentation": [[1, 1, 2, 1, 2, 9]],
            }
        )
        annotations.append(
            {
                **part,
                "id": 3 + 3 * number,
                "bbox": [-8, 0, 7, 9],
                "segmentation": [[0, 0, 1, 0, 1, 1]],
            }
        )
    told = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 90, "name": "x"}],
    }
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(told))
    return tmp_path


def test_boxes_and_masks_follow_the_flip(
    coco: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = baseline.Coco(coco, masks=True)
    assert len(data) == 7
    for flipped, boxes in ((1.0, [[4, 8, 14, 28]]), (0.0, [[50, 8, 60, 28]])):
        monkeypatch.setattr(random, "random", lambda found=flipped: found)
        image, target = data[1]
        assert (
            image.shape == (3, 32, 64)
            and image.dtype == torch.float32
            and image.max() <= 1
        )
        assert target["boxes"].tolist() == boxes and target["labels"].tolist() == [90]
        ys, xs = np.nonzero(target["masks"][0].numpy())
        assert [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] == pytest.approx(
            boxes[0], abs=1
        )


def test_batches_are_of_one_shape(coco: Path) -> None:
    found = [
        images for images, _ in baseline.loader(coco, "fasterrcnn_resnet50_fpn", 3, 0)
    ]
    assert len(found) == 2 and all(
        len({image.shape for image in images}) == 1 for images in found
    )
    with pytest.raises(ValueError, match="a smaller --batch-size"):
        next(baseline.batches(baseline.loader(coco, "x", 8, 0), torch.device("cpu")))


@pytest.mark.slow
def test_a_loss_has_a_gradient(coco: Path) -> None:
    model = baseline.model("ssdlite320_mobilenet_v3_large")
    images, targets = next(
        baseline.batches(
            baseline.loader(coco, "ssdlite320_mobilenet_v3_large", 2, 0),
            torch.device("cpu"),
        )
    )
    assert {one.device.type for target in targets for one in target.values()} == {
        "cpu"
    } and isinstance(images, list)
    loss = baseline.loss_of(model, images, targets)
    assert loss.shape == () and loss.requires_grad and loss.item() > 0


def test_a_loss_that_is_no_number_ends_the_loop() -> None:
    class Losses(torch.nn.Module):
        def forward(
            self, images: torch.Tensor, targets: torch.Tensor
        ) -> dict[str, torch.Tensor]:
            return {"a": images.sum(), "b": targets.sum()}

    good, bad = (
        torch.tensor([1.0, last], requires_grad=True) for last in (2.0, float("nan"))
    )
    assert baseline.loss_of(Losses(), good, good).item() == 6  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no number"):
        baseline.loss_of(Losses(), good, bad)  # type: ignore[arg-type]


def test_links_have_the_annotations_of_their_image(
    coco: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (coco / "val2017").mkdir()
    (coco / "val2017" / "v.png").write_bytes(b"v")
    (coco / "annotations" / "instances_val2017.json").write_text("{}")
    made = tmp_path_factory.mktemp("links") / "made"
    assert link_set.main([str(coco), str(made), "--count", "20"]) == 0
    told = json.loads((made / "annotations" / "instances_train2017.json").read_text())
    for one in (told["images"], told["annotations"]):
        assert len({each["id"] for each in one}) == len(one)
    assert (
        len(told["images"]) == 20
        and len(told["annotations"]) == 60
        and told["categories"] == [{"id": 90, "name": "x"}]
    )
    names = {image["id"]: image["file_name"] for image in told["images"]}
    assert sorted(names.values()) == sorted(
        path.name for path in (made / "train2017").iterdir()
    )
    for image in told["images"]:
        real = int(Path(image["file_name"]).stem.rpartition("-")[2])
        assert (made / "train2017" / image["file_name"]).samefile(
            coco / "train2017" / f"{real}.png"
        )
        assert {
            one["iscrowd"]
            for one in told["annotations"]
            if one["image_id"] == image["id"]
        } == {int(real == 7)}
    assert (made / "val2017" / "v.png").read_bytes() == b"v" and (
        made / "annotations" / "instances_val2017.json"
    ).exists()
    assert len(baseline.Coco(made, masks=False)) == 20 - sum(
        name.endswith("-7.png") for name in names.values()
    )
    for source, target, count, said in (
        (coco, made, 20, "not empty"),
        (coco, made / "x", 7, "--count 7 is less than the 8 files"),
        (coco, coco / "x", 20, "lies inside"),
    ):
        assert link_set.main([str(source), str(target), "--count", str(count)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line and not (made / "x").exists()


def test_files_of_one_name_in_two_folders_are_two(
    coco: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, made = (
        coco / "annotations" / "instances_train2017.json",
        tmp_path_factory.mktemp("links") / "made",
    )
    told = json.loads(path.read_text())
    for number, image in enumerate(told["images"]):
        folder = coco / "train2017" / f"part{number % 2}"
        folder.mkdir(exist_ok=True)
        (coco / "train2017" / image["file_name"]).rename(folder / f"{number // 2}.png")
        image["file_name"] = f"part{number % 2}/{number // 2}.png"
    path.write_text(json.dumps(told))
    assert link_set.main([str(coco), str(made), "--count", "8"]) == 0
    sizes = {}
    for linked in (made / "train2017").iterdir():
        with Image.open(linked) as image:
            sizes[linked.name] = image.size
    images = json.loads((made / "annotations" / path.name).read_text())["images"]
    assert (
        len(sizes) == 8
        and {image["file_name"]: (image["width"], image["height"]) for image in images}
        == sizes
    )


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "5",
        '{"images": 5, "annotations": []}',
        '{"images": [5], "annotations": []}',
    ],
)
def test_an_annotation_file_that_is_none_is_named(
    text: str, coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = coco / "annotations" / "instances_train2017.json"
    path.write_text(text)
    assert link_set.main([str(coco), str(tmp_path.parent / "x"), "--count", "8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"link_set: {path}: ")
