"""COCO's annotation files against the columns that a scan makes of them."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from dataset.coco import scan
from dataset.coco.columns import Instances
from tests.conformance.fixtures import sample_folder
from tests.unit.coco_files import (
    changed,
    counts,
    document,
    opened,
    put,
    reasons,
    write,
    write_coco,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


NAMES = ("id", "category_id", "bbox", "area", "iscrowd", "segmentation")


def as_written(found: Instances, sample: int) -> tuple[Any, ...]:
    """An image and its annotations as the file has them, from columns alone."""

    def annotation(place: int) -> tuple[Any, ...]:
        ends = found.point_offsets[
            found.polygon_offsets[place] : found.polygon_offsets[place + 1] + 1
        ]
        runs = found.rle[
            found.rle_offsets[place] : found.rle_offsets[place + 1]
        ].tolist()
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
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_columns_are_what_the_file_says(
    data: Path, keypoints: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PIECE", piece)
    kind = "person_keypoints" if keypoints else "instances"
    for split in ("train", "val"):
        found = opened(data, split, keypoints=keypoints)
        written = expected(document(data, f"{split}2017", kind), keypoints=keypoints)
        assert [as_written(found, sample) for sample in range(len(found))] == written
        assert (found.rejected, found.root) == (0, data)
        assert found.classes == (
            ("__background__", "person")
            if keypoints
            else ("__background__", "person", "box", "triangle")
        )
        assert {
            name: column.dtype
            for name in found.COLUMNS
            if (column := getattr(found, name)) is not None
        } == found.COLUMNS


def test_columns_of_the_image_are_those_of_its_file(data: Path) -> None:
    found = opened(data)
    for sample in range(len(found)):
        path = Path(os.fsdecode(found.path(sample)))
        with Image.open(path) as image:
            assert (found.width[sample], found.height[sample]) == image.size
            assert found.components[sample] == len(image.getbands())
        assert found.size[sample] == path.stat().st_size and found.whole[sample]
    assert (
        found.components.tolist() == [3, 3, 1, 3, 3, 3, 1, 3]
        and len({*found.height.tolist()}) == 2
    )


@pytest.mark.parametrize("keypoints", [False, True])
def test_real_annotations(keypoints: bool, tmp_path: Path) -> None:
    root = sample_folder("coco_sample")
    kind = "person_keypoints" if keypoints else "instances"
    for split, images, boxes, crowds in (
        [("train", 47, 101, 3), ("val", 24, 50, 1)]
        if keypoints
        else [("train", 48, 412, 6), ("val", 24, 250, 4)]
    ):
        found = opened(root, split, keypoints=keypoints, cache=tmp_path)
        written = expected(document(root, f"{split}2017", kind), keypoints=keypoints)
        assert [as_written(found, sample) for sample in range(len(found))] == written
        assert (len(found), len(found.boxes), found.crowd.sum(), found.rejected) == (
            images,
            boxes,
            crowds,
            0,
        )
        assert len(found.classes) == (2 if keypoints else 91) and found.keypoints.shape[
            1:
        ] == (
            17 * keypoints,
            3,
        )
        assert (found.class_of == found.category_ids).all() and found.classes[
            1
        ] == "person"
    if keypoints:
        twins = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]
        assert found.keypoint_mirror.tolist() == twins
    else:
        assert (found.classes[90], found.classes[12], found.classes[13]) == (
            "toothbrush",
            "N/A",
            "stop sign",
        )


def test_what_is_trained_on(data: Path) -> None:
    """No crowds, and no box without width and height in the image. Boxes may reach out."""
    boxes = {
        "reaches out": [-5.0, -5.0, 20.0, 20.0],
        "no width": [5.0, 5.0, 0.0, 9.0],
        "no height": [5.0, 5.0, 9.0, 0.0],
        "touches from outside": [-9.0, 5.0, 9.0, 9.0],
        "hair": [5.0, 5.0, 1e-3, 1e-3],
    }

    def change(written: dict[str, Any]) -> None:
        written["annotations"] = [
            {
                "id": i,
                "image_id": 1000,
                "category_id": 3,
                "area": 1.0,
                "iscrowd": 0,
                "bbox": box,
            }
            for i, box in enumerate(boxes.values())
        ]
        written["annotations"].append(
            {**written["annotations"][0], "id": 9, "iscrowd": 1, "image_id": 1021}
        )

    found = changed(data, change)
    assert found.usable.tolist() == [True, False, False, False, True, False]
    assert found.boxes[:5].tolist() == list(boxes.values())
    assert ["no detector trains on it" in line for line in reasons(found)] == [True] * 3
    assert found.with_boxes.tolist() == [0]
    assert len(found.points) == len(found.rle) == 0


def test_a_set_without_annotations(data: Path) -> None:
    found = changed(data, lambda written: written["annotations"].clear())
    assert (
        len(found),
        found.boxes.shape,
        found.points.shape,
        found.keypoints.shape,
    ) == (
        8,
        (0, 4),
        (0, 2),
        (0, 0, 3),
    )
    assert len(found.with_boxes) == 0 and found.annotations(7) == slice(0, 0)


def test_the_only_file_of_a_split_may_have_another_name(data: Path) -> None:
    for split in ("train", "val"):
        (data / f"{split}2017").rename(data / f"{split}-mine")
        (data / "annotations" / f"instances_{split}2017.json").rename(
            data / "annotations" / f"instances_{split}-mine.json"
        )
        assert len(opened(data, split)) == (8 if split == "train" else 5)


@pytest.mark.parametrize(
    "written", ["train2017/{}", "{root}/train2017/{}", "{link}/train2017/{}"]
)
def test_names_of_images_may_begin_with_their_folder(data: Path, written: str) -> None:
    """The folder may be written as it is called, or absolute, also by a link."""
    (data.parent / "link").symlink_to(data)
    whole = opened(data)

    named = document(data, "train2017")
    for each in named["images"]:
        each["file_name"] = written.format(
            each["file_name"], root=data, link=data.parent / "link"
        )
    write(data, "train2017", named)
    found = opened(data.parent / "link")
    assert found.rejected == 0 and found.fingerprint == whole.fingerprint


@pytest.mark.parametrize("name", ["a/b/é.jpg", "train2017/a.jpg"])
def test_images_in_folders_below(data: Path, name: str) -> None:
    (data / "train2017" / name).parent.mkdir(parents=True)
    (data / "train2017" / "000000001000.jpg").rename(data / "train2017" / name)
    found = changed(data, put("images", 1000, file_name=name))
    assert (
        os.fsdecode(found.path(0)).endswith(f"/train2017/{name}")
        and found.rejected == 0
    )


def test_whole_numbers_may_be_written_as_floats(data: Path) -> None:
    whole = opened(data)

    def change(written: dict[str, Any]) -> None:
        for each in (
            *written["images"],
            *written["annotations"],
            *written["categories"],
        ):
            each.update(
                {
                    name: float(value)
                    for name, value in each.items()
                    if name in ("id", "image_id", "category_id", "height", "width")
                }
            )

    found = changed(data, change)
    assert found.rejected == 0 and found.fingerprint == whole.fingerprint


@pytest.mark.parametrize("area", [{}, {"area": None}])
def test_a_missing_area_is_that_of_the_box(data: Path, area: dict[str, Any]) -> None:
    def change(written: dict[str, Any]) -> None:
        for each in written["annotations"]:
            del each["area"]
            each.update(area)

    found = changed(data, change)
    assert (
        found.rejected == 0
        and found.area.tolist() == (found.boxes[:, 2] * found.boxes[:, 3]).tolist()
    )


def test_with_coco_s_own_name_others_do_not_matter(data: Path) -> None:
    shutil.copy(
        data / "annotations" / "instances_val2017.json",
        data / "annotations" / "instances_train_small.json",
    )
    assert len(opened(data)) == 8


LENGTHS = st.integers(1, 30)
NUMBER = st.floats(0, 60, allow_nan=False) | st.integers(0, 60)


@st.composite
def segmentations(draw: st.DrawFn, height: int, width: int) -> Any:
    kind = draw(st.sampled_from(["polygons", "runs", "compressed", "none"]))
    if kind == "polygons":
        return [
            draw(st.lists(NUMBER, min_size=2 * n, max_size=2 * n))
            for n in draw(st.lists(st.integers(3, 6), max_size=3))
        ]
    flat = np.zeros(height * width, bool)
    for start in draw(st.lists(st.integers(0, height * width), max_size=4)):
        flat[start : start + draw(LENGTHS)] = True
    mask = flat.reshape(width, height).T
    if kind == "runs":
        return {"counts": counts(mask), "size": [height, width]}
    if kind == "compressed":
        return {
            "counts": coco_mask.encode(np.asfortranarray(mask, np.uint8))[
                "counts"
            ].decode(),
            "size": [height, width],
        }
    return None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_annotations(data: Path, given_data: st.DataObject) -> None:
    """Each annotation comes back, at its image, in the order of the file."""
    images = {each["id"]: each for each in document(data, "train2017")["images"]}
    ids = given_data.draw(
        st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=20)
    )
    annotations = []
    for number in ids:
        image = images[given_data.draw(st.sampled_from(sorted(images)))]
        annotations.append(
            {
                "id": number,
                "image_id": image["id"],
                "category_id": given_data.draw(st.sampled_from([1, 3, 5])),
                "bbox": given_data.draw(st.lists(NUMBER, min_size=4, max_size=4)),
                "area": given_data.draw(NUMBER),
                "iscrowd": given_data.draw(st.sampled_from([0, 1])),
                "segmentation": given_data.draw(
                    segmentations(image["height"], image["width"])
                ),
            }
        )
    found = changed(data, lambda written: written.update(annotations=annotations))
    for each in annotations:  # one form for what may be written in several
        each["segmentation"] = value = each["segmentation"] or []
        if isinstance(value, dict) and isinstance(value["counts"], str):
            mask = coco_mask.decode({**value, "counts": value["counts"].encode()})
            each["segmentation"] = {**value, "counts": counts(mask.astype(bool))}
    written = expected(
        {"images": list(images.values()), "annotations": annotations}, keypoints=False
    )
    assert [as_written(found, sample) for sample in range(len(found))] == written


def scanned(root: Path, **how: Any) -> tuple[Instances, bool]:
    """The set, and whether its annotations were read for it."""
    said: list[str] = []
    found = opened(root, progress=lambda done, total, what: said.append(what), **how)
    return found, "reading annotations" in said


def test_found_again_until_the_file_or_the_folder_changes(data: Path) -> None:
    first, read = scanned(data)
    assert read and scanned(data) != (first, True)
    second, read = scanned(data)
    assert not read and second.folder == first.folder
    assert scanned(data, rescan=True)[1]
    write(data, "train2017", document(data, "train2017"))
    assert scanned(data)[1]
    (data / "train2017" / "000000001000.jpg").rename(data / "moved.jpg")
    found, read = scanned(data)
    assert read and found.rejected == 1
    (data / "moved.jpg").rename(data / "train2017" / "000000001000.jpg")
    found, read = scanned(data)
    assert read and found.rejected == 0 and found.fingerprint == first.fingerprint


def test_masks_and_keypoints_are_found_apart(data: Path) -> None:
    for _ in range(2):
        assert opened(data).keypoints.shape == (20, 0, 3)
        assert opened(data, keypoints=True).keypoints.shape == (6, 5, 3)
    assert not scanned(data)[1] and not scanned(data, keypoints=True)[1]
