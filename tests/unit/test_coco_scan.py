"""COCO's annotation files against the columns that a scan makes of them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from saturate.dataset.coco.annotation_file import NotCoco, entries, uncompressed
from saturate.dataset.coco.columns import Instances
from saturate.dataset.coco.scan import NOUN
from saturate.dataset.images.columns import slow_to_decode
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
from tests.unit.folders import names

IMAGE = 1000
NAME = "000000001000.jpg"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


@pytest.mark.parametrize(
    "text",
    [
        r'{"a": [{"id": 1, "box": [0.1, 1e3, -0, 2.0]}, null, "\u00e9"], "b": {}}',
        '{"a": [NaN, -Infinity, {"id": 1e999}]}',
        '{"a": [1e999, 18446744073709551616, {"id": 1, "id": 2}], "a": [1e999]}',
        r'\ufeff{"a": ["\ud800"]}',
    ],
)
def test_entries_are_those_that_json_reads(text: str) -> None:
    text = text.replace(r"\ufeff", "\ufeff")
    wanted = json.loads(text.removeprefix("\ufeff"))["a"]
    found = list(entries(io.BytesIO(text.encode()), ["a"]))
    assert repr(found) == repr([("a", entry) for entry in wanted])


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b'{"a": 1}', b'{"b": []}', b'{"a": [1,]}', b'{"a": [', b'{"a": ["\xff"]}',
     b'{"a": [' + 100_000 * b"[" + 100_000 * b"]" + b"]}", b'{"a": [' + 5000 * b"9" + b"]}"],
)  # fmt: skip
def test_what_has_no_such_list_is_a_line(content: bytes) -> None:
    with pytest.raises(NotCoco, match=r"is no JSON: |has no list 'a'") as caught:
        list(entries(io.BytesIO(content), ["a"]))
    if b"\xff" in content:
        assert "is no JSON: entry 0 of 'a': 'utf-8'" in str(caught.value)


@pytest.mark.parametrize("keypoints", [False, True])
def test_columns_are_what_the_file_says(data: Path, keypoints: bool) -> None:
    kind = "person_keypoints" if keypoints else "instances"
    for split in ("train", "val"):
        found = opened(data, split, keypoints=keypoints)
        written = document(data, f"{split}2017", kind)
        images = sorted(written["images"], key=itemgetter("id"))
        # stable: those of one image stay in the file's order
        rows = sorted(written["annotations"], key=itemgetter("image_id"))
        assert found.image_id.tolist() == [one["id"] for one in images]
        assert names(found) == [f"{split}2017/{one['file_name']}" for one in images]
        image_of = np.repeat(found.image_id, np.diff(found.annotation_offsets))
        assert image_of.tolist() == [one["image_id"] for one in rows]
        for name, values in (
            ("id", found.annotation_id),
            ("category_id", found.category_ids[found.category]),
            ("bbox", found.boxes),
            ("area", found.area),
            ("iscrowd", found.crowd),
        ):
            assert values.tolist() == [one[name] for one in rows], name
        marks = [one["keypoints"] if keypoints else [] for one in rows]
        assert found.keypoints.reshape(len(rows), -1).tolist() == marks
        outlines = [one["segmentation"] for one in rows]
        runs = [own["counts"] if isinstance(own, dict) else [] for own in outlines]
        assert np.diff(found.rle_offsets).tolist() == [*map(len, runs)]
        assert found.rle.tolist() == [*chain(*runs)]
        own_polygons = [[] if isinstance(own, dict) else own for own in outlines]
        assert np.diff(found.polygon_offsets).tolist() == [*map(len, own_polygons)]
        polygons = [*chain(*own_polygons)]
        ends = np.cumsum([0, *map(len, polygons)])
        assert (2 * found.point_offsets).tolist() == ends.tolist()
        assert found.points.ravel().tolist() == [*chain(*polygons)]
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


def with_each(data: Path, change: Callable[[dict[str, Any]], Any]) -> Instances:
    """The training set whose every annotation is changed."""
    return changed(data, lambda written: [*map(change, written["annotations"])])


@pytest.mark.parametrize("form", [float, str])
def test_numbers_may_be_written_otherwise(data: Path, form: type) -> None:
    def change(written: dict[str, Any]) -> None:
        names = {"id", "image_id", "category_id"}
        for entry in chain(*(written[key] for key in NOUN)):
            entry |= {name: form(entry[name]) for name in names & entry.keys()}

    whole = opened(data)
    found = changed(data, change)
    assert found.rejected == 0 and found.fingerprint == whole.fingerprint


def test_a_missing_area_is_that_of_the_box(data: Path) -> None:
    found = with_each(data, lambda one: one.pop("area"))
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
    (line,) = with_each(data, change).warnings
    assert said in line


AGAIN = "boxes are there before"


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ([10, 10, 1e6, 30], "boxes reach out of their images"),
        ([10, 10, 30, 87.5], "boxes reach out of their images"),
        ([-1.5, 10, 30, 30], "boxes reach out of their images"),
        ([0.1, 0.1, 0.3, 0.3], "boxes are not larger than a pixel"),
        ([0, 0, 1, 1], "boxes are not larger than a pixel"),
        (None, AGAIN),
        ([-1, -1, 98, 98], ""),
        ([10, 10, 30, 86.5], ""),
    ],
    ids=str,
)
def test_a_warning_is_given_from_one_box_on_with_its_id(
    box: list[float] | None, said: str, data: Path
) -> None:
    """Of an image of 128 x 96 pixels; a box is rounded by up to a pixel. None: a copy of another."""
    found = document(data, "train2017")
    copied = next(one for one in found["annotations"] if one["image_id"] == IMAGE)
    odd = {**copied, "id": 7001, "bbox": box or copied["bbox"]}
    # the same box is no copy as another category, or in another image
    others = [
        {**odd, "id": 7002, "category_id": 3 if copied["category_id"] == 5 else 5},
        {**odd, "id": 7003, "image_id": IMAGE + 14},
    ]

    def change(written: dict[str, Any]) -> None:
        written["annotations"] += [odd, *others] if said == AGAIN else [odd]

    lines = changed(data, change).warnings
    assert len(lines) == bool(said)
    for line in lines:
        assert line.startswith(f"1 of {23 if said == AGAIN else 21} {said}"), line
        assert line.endswith(f"(annotation 7001 of image {IMAGE})"), line


def test_many_boxes_are_counted_and_some_are_named(data: Path) -> None:
    line, _ = with_each(
        data, lambda one: one.update(bbox=[0, 0, 0.5, 0.5], id=None)
    ).warnings
    assert line.startswith("20 of 20 boxes are not larger than a pixel")
    assert line.count("without an id of image") == 5 and line.endswith(", ...)")


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


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 300), st.integers(0, 2**32))
def test_compressed_run_lengths_are_pycocotools(h: int, w: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((h, w)) < rng.choice([0, 0.01, 0.5, 1])
    code = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert uncompressed(code["counts"]).tolist() == counts(mask)


def test_found_again_until_the_file_or_the_folder_changes(data: Path) -> None:
    first = opened(data)
    assert opened(data).folder == first.folder
    assert opened(data, keypoints=True).folder.parent != first.folder.parent
    write(data, "train2017", document(data, "train2017"))
    again = opened(data)
    assert again.folder != first.folder
    (data / "train2017" / NAME).rename(data / "moved.jpg")
    assert opened(data).rejected == 1


def test_photographs_with_boxes_are_not_told_to_be_packed(data: Path) -> None:
    """scripts.pack packs no boxes."""
    found = opened(data, "train")
    large = replace(found, height=found.height + 3000, width=found.width + 4000)
    assert slow_to_decode(large, 320)["above_side"] == 0
