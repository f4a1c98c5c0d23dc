"""Arrow files as a source: which are taken, what is left out by name, and what is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import Split
from saturate.dataset.open import open_split, open_splits
from saturate.settings.config import build
from tests.conformance import scenes
from tests.conformance.sources import Row, write_arrow
from tests.unit.folders import left_out, refused, samples
from tests.unit.test_splits import Console

arrow = pytest.importorskip("pyarrow")
ONE, TWO, THREE, FOUR = scenes.small(4).values()
ROWS: list[Row] = [(ONE, "b.jpg", 1), (TWO, "a.jpg", 0), (THREE, "c.jpg", 1)]
CLASSES = ("cat", "ant")


def opened(data: Path, **how: Any) -> Split:
    return open_split(
        data / "train", source="arrow", cache=data.parent / "cache", **how
    )


def shard(tmp_path: Path, rows: list[Row] = ROWS, **how: Any) -> Path:
    """Write the one shard of tmp_path / "data"."""
    how = {"classes": CLASSES, **how}
    return write_arrow(tmp_path / "data" / "train" / "0.arrow", rows, **how)


def test_a_validation_that_appears_later_is_taken(tmp_path: Path) -> None:
    """test/ stands for it as long as there is no other; both have files of the same size."""
    data = tmp_path / "data"
    for split, label in (("test", 0), ("validation", 1)):
        write_arrow(data / split / "0.arrow", [(ONE, "a.jpg", label)], CLASSES)
        split_found = open_split(data / "val", cache=tmp_path / "cache")
        assert samples(split_found) == {"a.jpg": (CLASSES[label], ONE)}


def test_what_save_to_disk_leaves(tmp_path: Path) -> None:
    """state.json names the shards, what .map() has cached beside them is none; classes keep their order."""
    data = tmp_path / "data"
    folder = data / "train"
    write_arrow(folder / "data-00000-of-00002.arrow", ROWS[:2], CLASSES)
    write_arrow(folder / "data-00001-of-00002.arrow", ROWS[2:], CLASSES)
    write_arrow(folder / "cache-0123.arrow", [(FOUR, "d.jpg", 0)], CLASSES)
    files = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in (0, 1)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    split = opened(data)
    assert samples(split) == {
        "a.jpg": ("cat", TWO),
        "b.jpg": ("ant", ONE),
        "c.jpg": ("ant", THREE),
    }
    assert split.columns.classes == CLASSES
    assert split.source.name(1).endswith("/train/data-00000-of-00002.arrow:b.jpg")
    for state, said in (
        ({"_data_files": files, "_indices_files": [{}]}, "Dataset.flatten_indices()"),
        (
            {"_data_files": [*files, {"filename": "x.arrow"}]},
            "has no x.arrow, which state.json or another shard's name counts (1 missing)",
        ),
        ({"_data_files": [{}]}, "state.json is damaged"),
    ):
        (folder / "state.json").write_text(json.dumps(state))
        assert said in refused(lambda: opened(data))


def test_what_the_cache_leaves(tmp_path: Path) -> None:
    """Both splits in one folder, features beside them; test is val where there is no validation."""
    data = tmp_path / "data"
    for number in (0, 1):
        write_arrow(data / f"pets-train-0000{number}-of-00002.arrow", ROWS[number::2])
    write_arrow(data / "pets-test.arrow", [(FOUR, "d.jpg", 1)])
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": CLASSES},
    }
    (data / "dataset_info.json").write_text(json.dumps({"features": features}))
    settings = build({"data": data, "manifest_dir": tmp_path / "cache"}).data
    splits = open_splits(settings, loader="torchvision", console=Console())
    assert len(splits["train"].columns) == 3
    assert samples(splits["val"]) == {"d.jpg": ("ant", FOUR)}
    write_arrow(data / "pets-validation.arrow", [(ONE, "v.jpg", 0)])
    found = samples(open_split(data / "val", cache=tmp_path / "cache"))
    assert found == {"v.jpg": ("cat", ONE)}
    (data / "pets-train-00001-of-00002.arrow").unlink()
    assert "has no pets-train-00001-of-00002.arrow" in refused(lambda: opened(data))
    write_arrow(data / "dogs-train.arrow", ROWS)
    assert "are of two data sets" in refused(lambda: opened(data))


def test_rows_are_named_where_paths_do_not_tell_them_apart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    rows: list[Row] = [
        (ONE, "a.jpg", 1),
        (None, None, 0),
        (TWO, "a.jpg", 0),
        (THREE, None, 0),
        (FOUR, "x", None),
        (FOUR, "y", -1),
    ]
    shard(tmp_path, rows)
    split = opened(data)
    assert samples(split) == {
        "0.arrow/000000000": ("ant", ONE),
        "0.arrow/000000002": ("cat", TWO),
        "0.arrow/000000003": ("cat", THREE),
    }
    assert left_out(split) == [
        "0.arrow:row 1\tno image",
        "0.arrow:row 4\tno label in the column label",
        "0.arrow:row 5\tno label in the column label",
    ]
    assert split.source.name(2).endswith("/train/0.arrow:000000003")
    shard(tmp_path, [ROWS[0], *ROWS])
    assert {*samples(opened(data))} == {"a.jpg", "b.jpg", "c.jpg"}, "one comes twice"
    shard(tmp_path, [*ROWS, (None, "/d/x.jpg", 0)])
    assert "0.arrow:row 3 has a path, /d/x.jpg, and no bytes" in refused(
        lambda: opened(data)
    )


IMAGES = arrow.array([ONE, TWO, THREE], arrow.large_binary())
WORDS = arrow.array(["b", "a", "b"])


def table(path: Path, compression: str | None = None, **columns: Any) -> None:
    """Write a stream of these columns; label_2 is called label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [name.removesuffix("_2") for name in columns]
    made = arrow.Table.from_arrays([*map(arrow.array, columns.values())], names)
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with arrow.ipc.new_stream(str(path), made.schema, options=options) as file:
        file.write_table(made)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"image": IMAGES, "kind": WORDS}, "no column of labels, which --label-"),
        ({"image": IMAGES, "label": WORDS, "label_2": WORDS}, "'label' twice"),
        (
            {"compression": "lz4", "image": [ONE * 9] * 3, "label": WORDS},
            "is compressed, so that nothing of it",
        ),
    ],
)
def test_other_columns_are_refused(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    table(tmp_path / "data" / "train" / "0.arrow", **columns)
    assert said in refused(lambda: opened(tmp_path / "data"))


def test_strings_stay_apart_whatever_they_hold(tmp_path: Path) -> None:
    """A no-break space, a TAB or an end of a line within a name; an empty one is no label."""
    names = ["great\u00a0dane", "great dane", "a\tb", "a\nb", "pug\n", "", None]
    path = tmp_path / "data" / "train" / "0.arrow"
    table(path, image=[ONE] * len(names), label=names)
    split = opened(tmp_path / "data")
    assert [name for name, _ in samples(split).values()] == [*names[:4], "pug"]
    assert left_out(split) == [
        f"0.arrow:row {row}\tno label in the column label" for row in (5, 6)
    ]


def test_classes_that_are_not_one_each_are_refused(tmp_path: Path) -> None:
    shard(tmp_path, classes=("cat", "cat"))
    assert "names 'cat' twice" in refused(lambda: opened(tmp_path / "data"))
    path = shard(tmp_path)
    write_arrow(path.with_name("1.arrow"), [(FOUR, "d.jpg", 1)], CLASSES[::-1])
    assert "1.arrow has other columns or classes than the first" in refused(
        lambda: opened(tmp_path / "data")
    )


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-8],
        lambda content: (
            content[:40]
            + b"\xff" * 200
            + content[240:-300]
            + bytes(280)
            + content[-20:]
        ),
    ],
    ids=["half", "no-end", "damaged"],
)
def test_what_is_not_whole_is_refused_at_the_start(
    change: Callable[[bytes], bytes], stream: bool, tmp_path: Path
) -> None:
    path = shard(tmp_path, classes=(), stream=stream)
    path.write_bytes(change(path.read_bytes()))
    said = refused(lambda: opened(tmp_path / "data"))
    assert f"{path} is damaged, cut short, or still being written: " in said


def test_columns_are_told_apart(tmp_path: Path) -> None:
    """Binaries without a struct; labels by name, or by --label-key."""
    labels = WORDS.cast(arrow.dictionary(arrow.int8(), arrow.large_string()))
    path = tmp_path / "data" / "train" / "0.arrow"
    table(path, image=IMAGES, thumbnail=IMAGES, kind=labels, score=[0.5, 1.5, 2.5])
    found = samples(opened(tmp_path / "data", labels="kind"))
    assert [*found.values()] == [("b", ONE), ("a", TWO), ("b", THREE)]
    table(path, image=IMAGES, label=labels, score=[0.5, 1.5, 2.5])
    assert [*samples(opened(tmp_path / "data")).values()] == [*found.values()]
