"""Arrow files as a source: which are taken, what is left out by name, and what is refused in one line."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts import Split
from dataset.open import open_split, open_splits
from dataset.stores import source_named
from dataset.stores.arrow import Opened
from settings.config import build
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


def test_a_shard_that_is_cut_short_while_it_is_walked_ends_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bus error ends whoever reads a page that is gone: a process of its own, however small the shards."""
    home = os.getpid()

    def cut(shard: Opened) -> Any:
        assert os.getpid() != home
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGBUS)

    write_arrow(
        tmp_path / "data" / "train" / "data-00000-of-00001.arrow", ROWS, CLASSES
    )
    monkeypatch.setattr(Opened, "batches", cut)
    assert "was killed: memory was short, or a file that it had mapped" in refused(
        lambda: opened(tmp_path / "data")
    )


def test_what_save_to_disk_leaves(tmp_path: Path) -> None:
    """state.json names the shards, what .map() has cached beside them is none; classes keep their order."""
    folder = tmp_path / "data" / "train"
    write_arrow(folder / "data-00000-of-00002.arrow", ROWS[:2], CLASSES)
    write_arrow(folder / "data-00001-of-00002.arrow", ROWS[2:], CLASSES)
    write_arrow(folder / "cache-0123.arrow", [(FOUR, "d.jpg", 0)], CLASSES)
    shards = [{"filename": f"data-0000{shard}-of-00002.arrow"} for shard in (0, 1)]
    (folder / "state.json").write_text(json.dumps({"_data_files": shards}))
    split = opened(tmp_path / "data")
    assert samples(split) == {
        "a.jpg": ("cat", TWO),
        "b.jpg": ("ant", ONE),
        "c.jpg": ("ant", THREE),
    }
    assert split.columns.classes == CLASSES
    assert split.source.name(1).endswith("/train/data-00000-of-00002.arrow:row 0 b.jpg")
    (folder / "state.json").write_text(
        json.dumps({"_data_files": shards, "_indices_files": [{}]})
    )
    assert "save it again after Dataset.flatten_indices()" in refused(
        lambda: opened(tmp_path / "data")
    )
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [*shards, {"filename": "x.arrow"}]})
    )
    assert "has no x.arrow, which the others count (1 such)" in refused(
        lambda: opened(tmp_path / "data")
    )


def test_what_the_cache_leaves(tmp_path: Path) -> None:
    """Both splits in one folder, features beside them; test is val where there is no validation."""
    data = tmp_path / "data"
    for shard in (0, 1):
        write_arrow(data / f"pets-train-0000{shard}-of-00002.arrow", ROWS[shard::2])
    write_arrow(data / "pets-test.arrow", [(FOUR, "d.jpg", 1)])
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": CLASSES},
    }
    (data / "dataset_info.json").write_text(json.dumps({"features": features}))
    settings = build({"data": data, "manifest_dir": tmp_path / "cache"}).data
    splits = open_splits(settings, loader="torchvision", console=Console())
    assert len(splits["train"].columns) == 3 and samples(splits["val"]) == {
        "d.jpg": ("ant", FOUR)
    }
    write_arrow(data / "pets-validation.arrow", [(ONE, "v.jpg", 0)])
    assert samples(open_split(data / "val", cache=tmp_path / "cache")) == {
        "v.jpg": ("cat", ONE)
    }
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
    ]
    write_arrow(data / "train" / "0.arrow", rows, CLASSES)
    split = opened(data)
    assert samples(split) == {
        "0.arrow/000000000": ("ant", ONE),
        "0.arrow/000000002": ("cat", TWO),
        "0.arrow/000000003": ("cat", THREE),
    }
    assert left_out(split) == [
        "0.arrow:row 1\tno image",
        "0.arrow:row 4\tno label in the column label",
    ]
    assert split.source.name(2).endswith("/train/0.arrow:row 3")


def test_a_name_that_comes_again(tmp_path: Path) -> None:
    """With the same bytes it is one file, a sample a row; of images by their names the first is taken."""
    data = tmp_path / "data"
    write_arrow(
        data / "train" / "0.arrow",
        [(ONE, "a.jpg", 1), (TWO, "b.jpg", 0), (ONE, "a.jpg", 0)],
        CLASSES,
    )
    columns = opened(data).columns
    found = [
        (columns.entry(row), columns.classes[columns.label[row]]) for row in range(3)
    ]
    assert found == [(b"a.jpg", "ant"), (b"a.jpg", "cat"), (b"b.jpg", "cat")]
    named = source_named("arrow").entries(data, tmp_path / "cache")
    for name, content in ((b"train/a.jpg", ONE), (b"train/b.jpg", TWO)):
        with named.opened(name) as (size, read_at):
            assert read_at(0, size) == content
    (line,) = [
        path.read_text()
        for path in (tmp_path / "cache").glob("train-*/scan-*/rejected.txt")
    ]
    assert line.endswith("0.arrow:a.jpg\tthis name was there before\n")


def test_rows_with_a_path_and_no_bytes_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "data" / "train" / "0.arrow", [*ROWS, (None, "/d/x.jpg", 0)])
    said = refused(lambda: opened(tmp_path / "data"))
    assert (
        "0.arrow:row 3 has a path, /d/x.jpg, and no bytes: python -m scripts.pack TO"
        in said
    )


def table(path: Path, compression: str | None = None, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = arrow.table(columns)
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with arrow.ipc.new_stream(str(path), made.schema, options=options) as file:
        file.write_table(made)


def test_columns_are_told_apart(tmp_path: Path) -> None:
    """Binaries without a struct, labels that are strings, behind a dictionary or named by --label-key."""
    path = tmp_path / "data" / "train" / "0.arrow"
    words = arrow.array(["b", "a", "b"]).dictionary_encode()
    images = arrow.array([ONE, TWO, THREE], arrow.large_binary())
    table(path, image=images, thumbnail=images, kind=words, score=[0.5, 1.5, 2.5])
    found = samples(opened(tmp_path / "data", labels="kind"))
    assert [*found.values()] == [("b", ONE), ("a", TWO), ("b", THREE)]
    assert "--label-key names one" in refused(lambda: opened(tmp_path / "data"))
    assert "no such column; it has image (" in refused(
        lambda: opened(tmp_path / "data", labels="x")
    )
    assert "score are of type double" in refused(
        lambda: opened(tmp_path / "data", labels="score")
    )
    for kind in (
        arrow.string_view(),
        arrow.dictionary(arrow.int8(), arrow.large_string()),
    ):
        table(path, image=images, label=arrow.array(["b", "a", "b"]).cast(kind))
        assert [name for name, _ in samples(opened(tmp_path / "data")).values()] == [
            "b",
            "a",
            "b",
        ]
    table(path, image=images, label=[["b"], ["a"], ["b"]])
    assert "label are of type list<" in refused(lambda: opened(tmp_path / "data"))
    table(path, image=images, label=arrow.array([b"b", b"a", b"b"]))
    assert "label are of type binary" in refused(lambda: opened(tmp_path / "data"))
    table(path, one=images, other=images, label=words)
    assert "has no column of images, binary or" in refused(
        lambda: opened(tmp_path / "data")
    )
    table(path, "lz4", image=arrow.array([ONE * 9] * 9), label=[1] * 9)
    assert "is compressed, so that nothing of it" in refused(
        lambda: opened(tmp_path / "data")
    )


def test_strings_stay_apart_whatever_they_hold(tmp_path: Path) -> None:
    """A no-break space, a TAB or an end of a line within a name; an empty one is no label."""
    names = ["great\u00a0dane", "great dane", "a\tb", "a\nb", "pug\n", "", None]
    table(
        tmp_path / "data" / "train" / "0.arrow", image=[ONE] * len(names), label=names
    )
    split = opened(tmp_path / "data")
    assert [name for name, _ in samples(split).values()] == [*names[:4], "pug"]
    assert left_out(split) == [
        f"0.arrow:row {row}\tno label in the column label" for row in (5, 6)
    ]


def test_one_name_for_two_classes_is_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "data" / "train" / "0.arrow", ROWS, ("cat", "cat"))
    assert "names 'cat' twice" in refused(lambda: opened(tmp_path / "data"))
    path = tmp_path / "data" / "train" / "0.arrow"
    made = arrow.table(
        [arrow.array([ONE]), arrow.array([0]), arrow.array([1])],
        names=["image", "label", "label"],
    )
    with arrow.ipc.new_stream(str(path), made.schema) as file:
        file.write_table(made)
    assert "0.arrow names 'label' twice" in refused(lambda: opened(tmp_path / "data"))


def test_shards_of_other_classes_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "data" / "train" / "0.arrow", ROWS, CLASSES)
    write_arrow(
        tmp_path / "data" / "train" / "1.arrow", [(FOUR, "d.jpg", 1)], CLASSES[::-1]
    )
    said = refused(lambda: opened(tmp_path / "data"))
    assert "1.arrow has other columns or classes than the first shard" in said


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda content: content[: len(content) // 2],
            "is cut short, or still being written",
        ),
        (lambda content: content[:-8], "is cut short, or still being written"),
        (lambda content: b"", "is cut short, or still being written"),
        (
            lambda content: b"FEA1" + content,
            "is of Feather's first version, or of Arrow before 0.15",
        ),
        (
            lambda content: b"PAR1" + content,
            "is no Arrow file, or of Arrow before 0.15",
        ),
        (
            lambda content: (
                content[:40]
                + b"\xff" * 200
                + content[240:-300]
                + bytes(280)
                + content[-20:]
            ),
            "is damaged: ",
        ),
    ],
    ids=["half", "no-end", "empty", "feather", "parquet", "damaged"],
)
def test_what_is_not_whole_is_refused_at_the_start(
    change: Callable[[bytes], bytes], said: str, stream: bool, tmp_path: Path
) -> None:
    path = write_arrow(tmp_path / "data" / "train" / "0.arrow", ROWS, stream=stream)
    path.write_bytes(change(path.read_bytes()))
    found = refused(lambda: opened(tmp_path / "data"))
    assert said in found and str(path) in found


def test_a_stream_behind_a_stream_is_refused(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "data" / "train" / "0.arrow", ROWS)
    path.write_bytes(path.read_bytes() * 2)
    assert "behind its end mark" in refused(lambda: opened(tmp_path / "data"))


def test_a_shard_that_changes_is_refused_by_name_and_read_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    path = write_arrow(data / "train" / "0.arrow", ROWS, CLASSES)
    before = opened(data)
    write_arrow(path, [(FOUR, "d.jpg", 0)], CLASSES)
    assert "0.arrow:row 0 b.jpg: its shard has changed" in refused(
        lambda: before.source.read(1)
    )
    assert samples(opened(data)) == {"d.jpg": ("cat", FOUR)}


def test_readers_need_no_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that there is nothing of it to open behind a fork; the start names the package."""
    data = tmp_path / "data"
    write_arrow(data / "train" / "0.arrow", ROWS, CLASSES)
    split = opened(data)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert split.source.read(0) == TWO
    assert "needs the package pyarrow: pip install pyarrow" in refused(
        lambda: opened(data)
    )
