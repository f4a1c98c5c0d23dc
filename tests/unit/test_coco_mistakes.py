"""What is wrong with an annotation file as a whole: one line, which ends the run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import UserError
from dataset.coco import scan
from tests.unit.coco_files import (
    changed,
    document,
    drop,
    of,
    opened,
    put,
    write,
    write_coco,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "data")


def mistake(root: Path, split: Any = "train", **how: Any) -> str:
    with pytest.raises(UserError) as caught:
        opened(root, split, **how)
    said = str(caught.value)
    assert "\n" not in said and said.startswith("--data: ")
    assert not list((root.parent / "cache").glob("*/tmp-*"))
    return said


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("", "data is no folder"),
        (
            "annotations",
            "has no folder annotations; "
            "COCO's layout has train2017/ and annotations/instances_train2017.json",
        ),
        ("annotations/instances_train2017.json", "has no instances_train*.json"),
        (
            "train2017",
            "has no folder train2017 for the images of annotations/instances_train2017.json",
        ),
    ],
)
def test_a_layout_that_is_none(missing: str, said: str, data: Path) -> None:
    (data / missing).rename(data.parent / "away")
    assert said in mistake(data)


def test_several_candidates(data: Path) -> None:
    annotations = data / "annotations"
    (annotations / "instances_train2017.json").rename(
        annotations / "instances_train_a.json"
    )
    shutil.copy(
        annotations / "instances_train_a.json", annotations / "instances_train_b.json"
    )
    assert (
        "has instances_train_a.json, instances_train_b.json; leave one of them"
        in mistake(data)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON: it ends too early, at character 0"),
        ("[]", "holds no object at its top"),
        (
            '{"images": [], "annotations": []}',
            "has no 'categories'; COCO's form has 'images' and 'annotations' and 'categories'",
        ),
        (
            '{"images": {}, "annotations": [], "categories": []}',
            "holds something else than a list as 'images' at character 11",
        ),
        # of the comma, or before Python 3.13 of what stands behind it
        ('{"images": [{"id": 1,}]}', "(character 2"),
        ('{"images": [{"id": 1} {"id": 2}]}', "got '{' and not ',' at character 22"),
        ('{"images": [{"id": 1},]}', "got ']' behind a comma at character 22"),
        ('{images: []}', "got 'i' and no name at character 1"),
        ('{"images": []} {}', "more than one value"),
        ('{"images": [' + "[" * 100_000, "cannot be read"),
        ('{"images": [], "annotations": [], "categories": []}', "has no category"),
    ],
)  # fmt: skip
def test_a_file_that_is_none(text: str, said: str, data: Path) -> None:
    (data / "annotations" / "instances_train2017.json").write_text(text)
    line = mistake(data)
    assert said in line and "instances_train2017.json" in line, line


def test_a_file_that_is_no_text(data: Path) -> None:
    (data / "annotations" / "instances_train2017.json").write_bytes(
        b'{"images": "\xff"}'
    )
    assert "it must be UTF-8" in mistake(data)


def test_errors_of_reading_and_of_writing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, mode: str) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(scan, "open", full, raising=False)
        with pytest.raises(
            UserError,
            match=r"the manifest cannot be written to .*: No space left on device",
        ):
            opened(data)
    path = data / "annotations" / "instances_train2017.json"
    path.unlink()
    path.mkdir()
    assert f"{path} cannot be read: Is a directory" in mistake(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("categories", 3, "name"), "category 3: has no name"),
        (put("categories", 3, name=5), "category 3: name 5 is no text"),
        (
            put("categories", 3, name=""),
            "category 3: name '' is empty or holds a control character",
        ),
        (
            put("categories", 3, name="a\nb"),
            "category 3: name 'a\\nb' is empty or holds a control character or a line's end; give it",
        ),
        (put("categories", 3, name="\ud800"), "category 3: name"),
        (put("categories", 3, id=1), "2 categories have the id 1"),
        (
            put("categories", 3, id=2**53),
            "the category id 9007199254740992 is beyond 2^53, where the figures would be wrong",
        ),
        (
            lambda written: written["categories"].append([]),
            "category without an id: [] is no object",
        ),
    ],
)
def test_bad_categories(
    change: Callable[[dict[str, Any]], Any], said: str, data: Path
) -> None:
    written = document(data, "train2017")
    change(written)
    write(data, "train2017", written)
    assert said in mistake(data)


def test_categories_of_validation_must_be_those_of_training(data: Path) -> None:
    classes = opened(data).classes
    assert opened(data, "val", classes=classes).classes == classes
    written = document(data, "val2017")
    of(written, "categories", 3).update(name="crate")
    write(data, "val2017", written)
    line = mistake(data, "val", classes=classes)
    assert "missing: 2 box; not in training: 2 crate (class number and name)" in line


def test_many_categories_take_no_time(data: Path) -> None:
    more = [
        {"id": number, "name": f"category {number}"} for number in range(10, 30_000)
    ]
    began = time.process_time()
    assert (
        len(changed(data, lambda written: written["categories"].extend(more)).classes)
        == 29_994
    )
    assert time.process_time() - began < 5


def test_names_that_several_categories_have_get_their_ids(data: Path) -> None:
    classes = ("__background__", "person (1)", "box", "person (5)")
    assert changed(data, put("categories", 5, name="person")).classes == classes


def test_keypoints_need_names(data: Path) -> None:
    shutil.copy(
        data / "annotations" / "instances_train2017.json",
        data / "annotations" / "person_keypoints_train2017.json",
    )
    assert "category 1 names no keypoints" in mistake(data, keypoints=True)


def test_a_file_without_images(data: Path) -> None:
    write(data, "train2017", document(data, "train2017") | {"images": []})
    assert "no image of" in (line := mistake(data)) and "it has none" in line


def test_without_images_the_annotation_file_has_the_sizes(data: Path) -> None:
    """--score asks for it: no file of an image is looked at."""
    whole = opened(data)
    shutil.rmtree(data / "train2017")
    with pytest.raises(UserError, match="has no folder train2017"):
        opened(data)
    alone = opened(data, images=False)
    for name in (
        "image_id",
        "height",
        "width",
        "annotation_id",
        "boxes",
        "category",
        "usable",
        "points",
        "rle",
    ):
        assert np.array_equal(getattr(alone, name), getattr(whole, name)), name
    assert not alone.rejected


def test_nothing_is_left(data: Path) -> None:
    for path in (data / "train2017").iterdir():
        path.unlink()
    line = mistake(data)
    assert (
        "no image of" in line and "left out: 8, first" in line and "image 1000" in line
    )
