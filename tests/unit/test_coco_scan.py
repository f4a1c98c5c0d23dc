"""COCO's annotation files against the columns that a scan makes of them."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from dataset.coco.annotation_file import uncompressed
from dataset.coco.columns import Instances
from dataset.coco.scan import NOUN
from tests.unit.coco_files import (
    changed,
    counts,
    document,
    of,
    opened,
    put,
    reasons,
    write,
    write_coco,
)

NAMES = ("id", "category_id", "bbox", "area", "iscrowd", "segmentation")
IMAGE = 1000
NAME = "000000001000.jpg"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


def as_written(found: Instances, sample: int) -> tuple[Any, ...]:
    """An image and its annotations as the file has them, from columns alone."""

    def annotation(place: int) -> tuple[Any, ...]:
        first, last = found.polygon_offsets[place : place + 2]
        ends = found.point_offsets[first : last + 1]
        runs = found.rle[slice(*found.rle_offsets[place : place + 2])].tolist()
        size = [found.height[sample], found.width[sample]]
        polygons = [found.points[a:b].ravel().tolist() for a, b in pairwise(ends)]
        return (
            *(found.annotation_id[place], found.category_ids[found.category[place]]),
            *(found.boxes[place].tolist(), found.area[place], int(found.crowd[place])),
            {"counts": runs, "size": size} if runs else polygons,
            found.keypoints[place].ravel().tolist(),
        )

    some = found.annotations(sample)
    name = os.path.basename(os.fsdecode(found.path(sample)))
    image = (found.image_id[sample], name, found.height[sample], found.width[sample])
    return (*image, [annotation(place) for place in range(some.start, some.stop)])


def expected(written: dict[str, Any], *, keypoints: bool) -> list[tuple[Any, ...]]:
    """Return what the scan should find, from the file itself, ordered by image id."""
    images: dict[int, tuple[Any, ...]] = {
        each["id"]: (each["id"], each["file_name"], each["height"], each["width"], [])
        for each in sorted(written["images"], key=lambda image: image["id"])
    }
    for each in written["annotations"]:
        points = each["keypoints"] if keypoints else []
        images[each["image_id"]][-1].append((*(each[name] for name in NAMES), points))
    return list(images.values())


@pytest.mark.parametrize("keypoints", [False, True])
def test_columns_are_what_the_file_says(data: Path, keypoints: bool) -> None:
    kind = "person_keypoints" if keypoints else "instances"
    for split in ("train", "val"):
        found = opened(data, split, keypoints=keypoints)
        written = expected(document(data, f"{split}2017", kind), keypoints=keypoints)
        assert [as_written(found, sample) for sample in range(len(found))] == written
        assert (found.rejected, found.root, found.warnings) == (0, data, [])
        others = () if keypoints else ("box", "triangle")
        assert found.classes == ("__background__", "person", *others)
        for name, dtype in found.COLUMNS.items():
            assert getattr(found, name).dtype == dtype
        for sample in range(len(found)):
            path = Path(os.fsdecode(found.path(sample)))
            with Image.open(path) as image:
                assert (found.width[sample], found.height[sample]) == image.size
                assert found.components[sample] == len(image.getbands())
            assert found.size[sample] == path.stat().st_size and found.whole[sample]


def test_what_is_trained_on(data: Path) -> None:
    """No crowds, and no box without width and height in the image. Boxes may reach out."""
    boxes = [
        [-5, -5, 20, 20],
        [5, 5, 0, 9],
        [5, 5, 9, 0],
        [-9, 5, 9, 9],
        [5, 5, 1e-3, 1],
    ]

    def change(written: dict[str, Any]) -> None:
        one = {"category_id": 3, "area": 1.0, "iscrowd": 0}
        written["annotations"] = [
            {"id": i, "image_id": IMAGE, "bbox": box, **one}
            for i, box in enumerate(boxes)
        ]
        crowd = {**one, "id": 9, "iscrowd": 1, "image_id": 1021, "bbox": [5, 5, 9, 9]}
        written["annotations"].append(crowd)

    found = changed(data, change)
    assert found.usable.tolist() == [True, False, False, False, True, False]
    assert found.boxes[:5].tolist() == boxes
    assert ["no detector trains on it" in line for line in reasons(found)] == [True] * 3
    assert found.with_boxes.tolist() == [0]
    assert len(found.points) == len(found.rle) == 0
    found = changed(data, lambda written: written["annotations"].clear())
    assert found.boxes.shape == (0, 4) and found.keypoints.shape == (0, 0, 3)
    assert len(found) == 8 and found.annotations(7) == slice(0, 0)


def each(
    key: str, change: Callable[[dict[str, Any]], Any]
) -> Callable[[dict[str, Any]], None]:
    """Return a change of a document: of every entry of a list."""

    def changed_each(written: dict[str, Any]) -> None:
        for entry in written[key]:
            change(entry)

    return changed_each


@pytest.mark.parametrize("form", [float, str])
def test_numbers_may_be_written_otherwise(data: Path, form: type) -> None:
    def change(written: dict[str, Any]) -> None:
        names = {"id", "image_id", "category_id"}
        for entry in itertools.chain(*(written[key] for key in NOUN)):
            entry |= {name: form(entry[name]) for name in names & entry.keys()}

    whole = opened(data)
    found = changed(data, change)
    assert found.rejected == 0 and found.fingerprint == whole.fingerprint


def test_a_missing_area_is_that_of_the_box(data: Path) -> None:
    found = changed(data, each("annotations", lambda one: one.pop("area")))
    assert found.rejected == 0
    assert found.area.tolist() == (found.boxes[:, 2] * found.boxes[:, 3]).tolist()


def shares(one: dict[str, Any]) -> None:
    one["bbox"] = [value / 128 for value in one["bbox"]]


def half_are_crowds(one: dict[str, Any]) -> None:
    one["iscrowd"] = one["id"] % 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shares, "20 of 20 boxes are not larger than a pixel"),
        (half_are_crowds, "of 20 annotations are crowds (iscrowd 1): no detector"),
    ],
)
def test_boxes_that_may_be_meant_otherwise(change: Any, said: str, data: Path) -> None:
    (line,) = changed(data, each("annotations", change)).warnings
    assert said in line


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        (NAME, f"{{root}}/train2017/{NAME}"),
        (NAME, f"C:\\Users\\me\\photos\\{NAME}"),
        ("sub/1.jpg", "sub\\1.jpg"),
        ("train2017/a.jpg", "train2017/a.jpg"),
    ],
)
def test_names_of_images_as_people_write_them(
    stored: str, written: str, data: Path
) -> None:
    (data.parent / "link").symlink_to(data)
    path = data / "train2017" / stored
    path.parent.mkdir(exist_ok=True, parents=True)
    (data / "train2017" / NAME).rename(path)
    name = written.format(root=data, link=data.parent / "link")
    changed(data, put("images", IMAGE, file_name=name))
    found = opened(data.parent / "link")
    assert found.rejected == 0 and found.path(0) == os.fsencode(path)
    said = [line.startswith("1 of 8 file names are taken") for line in found.warnings]
    assert said == [True] * (name != stored)


def test_a_file_is_of_one_image(data: Path) -> None:
    """Last parts that several names have say nothing."""

    def change(written: dict[str, Any]) -> None:
        of(written, "images", IMAGE)["file_name"] = "/left/1.jpg"
        of(written, "images", 1014)["file_name"] = "/right/1.jpg"
        of(written, "images", 1021)["file_name"] = "/other/000000001007.jpg"

    (data / "train2017" / NAME).rename(data / "train2017" / "1.jpg")
    found = changed(data, change)
    assert found.image_id.tolist() == [1028, 1035, 1042, 1049]
    assert ["may be the same file" in line for line in reasons(found)] == [True] * 4


def test_a_category_without_keypoints_beside_one_with(data: Path) -> None:
    """Both are trained: the boxes of the one have no keypoint to learn."""
    written = document(data, "train2017", "person_keypoints")
    others = document(data, "train2017")
    written["categories"].insert(0, {"id": 0, "name": "animal", "keypoints": []})
    written["categories"].append({"id": 5, "name": "triangle"})
    triangles = [one for one in others["annotations"] if one["category_id"] == 5]
    written["annotations"] += triangles
    write(data, "train2017", written, "person_keypoints")
    found = opened(data, keypoints=True)
    assert found.rejected == 0 and found.keypoints.shape == (6 + len(triangles), 5, 3)
    assert found.classes == ("__background__", "animal", "person", "triangle")
    seen = (found.keypoints[..., 2] > 0).any(axis=1)
    assert seen.tolist() == (found.category == 1).tolist()
    assert found.usable.all()


def test_without_images_the_annotation_file_has_the_sizes(data: Path) -> None:
    """--score asks for it: no file of an image is looked at."""
    whole = opened(data)
    shutil.rmtree(data / "train2017")
    alone = opened(data, images=False)
    names = "image_id height width annotation_id boxes category usable points rle"
    for name in names.split():
        assert np.array_equal(getattr(alone, name), getattr(whole, name)), name
    assert not alone.rejected


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 300), st.integers(0, 2**32))
def test_compressed_run_lengths_are_pycocotools(h: int, w: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((h, w)) < rng.choice([0, 0.01, 0.5, 1])
    code = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert uncompressed(code["counts"]).tolist() == counts(mask)


def scanned(root: Path, **how: Any) -> tuple[Instances, bool]:
    """The set, and whether its annotations were read for it."""
    said: list[str] = []
    found = opened(root, progress=lambda done, total, what: said.append(what), **how)
    return found, "reading annotations" in said


def test_found_again_until_the_file_or_the_folder_changes(data: Path) -> None:
    first, read = scanned(data)
    assert read
    found, read = scanned(data)
    assert not read and found.folder == first.folder
    assert scanned(data, keypoints=True)[1]
    write(data, "train2017", document(data, "train2017"))
    assert scanned(data)[1]
    (data / "train2017" / NAME).rename(data / "moved.jpg")
    found, read = scanned(data)
    assert read and found.rejected == 1
