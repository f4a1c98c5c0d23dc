"""scripts.pack: any source to an LMDB or to shards, the same data to a run, whole or not there."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts import Split, UserError
from dataset.images import scan
from dataset.open import open_splits
from scripts import _stores, pack
from settings.config import build
from tests.conformance import scenes, sources
from tests.conformance.sources import LAYOUTS, all_read
from tests.unit.folders import fill
from tests.unit.test_splits import Console

FILES = scenes.of_two_classes(7)
FORMATS = pytest.mark.parametrize("form", [*filter(sources.here, _stores.FORMATS)])


def data_of(tmp_path: Path, source: str = "folder") -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val"):
        LAYOUTS[source].write(data, split, FILES)
    return data


def opened(data: Path, **how: Any) -> dict[str, Split]:
    cache = data.parent / f"cache-{data.name}"
    settings = build({"data": data, "manifest_dir": cache, **how}).data
    return open_splits(settings, loader="torchvision", console=Console())


def command(data: Path, form: str) -> list[str]:
    cache = str(data.parent / "cache-data")
    target = str(data.parent / form)
    return [target, "--from", str(data), "--format", form, "--manifest-dir", cache]


def packed(data: Path, form: str) -> Path:
    assert pack.main(command(data, form)) == 0
    return data.parent / form


@FORMATS
@pytest.mark.parametrize("source", ["folder", "list", "tar"])
def test_a_pack_is_the_same_data(
    form: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order, and it opens without a header being read, also where it was copied to."""
    data = data_of(tmp_path, source)
    target = packed(data, form)
    copy = shutil.copytree(target, tmp_path / "copy", copy_function=shutil.copy)
    origin = opened(data)
    scanned = opened(target, rescan=True)
    if form != "folder":
        monkeypatch.setattr(scan, "read_headers", None)
    monkeypatch.setattr("dataset.stores.tar.walk", None)
    splits = opened(Path(copy))
    # a loader's worker may start no process to read
    monkeypatch.setattr("system.processes.results", None)
    for split, found in splits.items():
        expected = origin[split]
        assert found.columns.fingerprint == expected.columns.fingerprint
        assert found.columns.fingerprint == scanned[split].columns.fingerprint
        assert found.columns.classes == ("a", "b")
        assert all_read(found.source) == all_read(expected.source)


def listed(tmp_path: Path) -> Path:
    """A list in no order, one line of it twice, whose labels are not the folders of its paths."""
    data = tmp_path / "data"
    names = [*sorted(FILES)[::-1], min(FILES)]
    lines = "".join(
        f"{name},{'yes' if place % 2 else 'no'}\n" for place, name in enumerate(names)
    ).encode()
    lists = {"train.csv": lines, "val.csv": lines, "classes.txt": b"yes\nno\nx"}
    return fill(data, {**FILES, **lists})


def test_a_share_goes_to_val(tmp_path: Path) -> None:
    data = fill(tmp_path / "data", FILES)
    assert pack.main([*command(data, "tar"), "--val-share", "0.6"]) == 0

    def names_of(split: Split) -> list[tuple[str, int]]:
        names = [os.fsdecode(split.columns.entry(i)) for i in range(len(split.columns))]
        return sorted(zip(names, split.columns.label.tolist(), strict=True))

    wanted = opened(data, val_share=0.6)
    found = opened(data.parent / "tar")
    for name, split in wanted.items():
        assert sorted(all_read(found[name].source)) == sorted(all_read(split.source))
        assert names_of(found[name]) == names_of(split)


@FORMATS
def test_a_line_that_comes_twice(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two samples, with labels of the list; what cannot hold them is refused before anything is written."""
    data = listed(tmp_path)
    if form == "folder":
        assert pack.main(command(data, form)) == 2
        assert "names begin with their class" in capsys.readouterr().err
        return
    target = packed(data, form)
    found, origin = (opened(each)["train"] for each in (target, data))
    assert found.columns.fingerprint == origin.columns.fingerprint
    assert all_read(found.source) == all_read(origin.source)
    shutil.rmtree(target / "train.columns")
    if form != "tar":
        columns = opened(target, rescan=True)["train"].columns
        assert len(columns) == 8 and columns.classes == ("yes", "no", "x")
    if form == "lmdb":
        assert columns.fingerprint == origin.columns.fingerprint, "it has the order too"


def test_an_lmdb_has_its_labels_in_itself(tmp_path: Path) -> None:
    """What others add, or take away, is named."""
    lmdb = pytest.importorskip("lmdb")
    target = packed(listed(tmp_path), "lmdb")

    def change(entries: dict[bytes, bytes | None]) -> None:
        with (
            lmdb.open(str(target / "train.lmdb"), subdir=False) as store,
            store.begin(write=True) as transaction,
        ):
            for key, value in entries.items():
                transaction.delete(key)
                if value is not None:
                    transaction.put(key, value)

    change({b"b/new": min(FILES.values()), b"b/small-001.jpg": None})
    columns = opened(target)["train"].columns
    said = (columns.folder / "rejected.txt").read_text()
    assert len(columns) == 7 and "b/small-001.jpg\tno such key" in said
    assert "train.lmdb:b/new\tthe store's own list has no label" in said
    assert opened(target, lmdb_label="prefix")["train"].columns.classes == ("a", "b")
    change({b"__labels__": b"12"})
    with pytest.raises(UserError, match="its own list of samples is damaged"):
        opened(target)


LONG = f"a/{'x' * 250}/{'y' * 250}/z.jpg" + "z" * 20


@pytest.mark.parametrize(
    ("names", "classes", "form", "said"),
    [
        (["a/x.jpg", "a/x.jpg"], "", "folder", "'a/x.jpg': names begin"),
        (["a/x.jpg", "c/x.jpg"], "c\nb\na", "folder", "classes that have an image"),
        (["a/x.1.jpg", "a/x.2.jpg"], "", "tar", "'a/x.2.jpg': names end"),
        ([LONG], "", "lmdb", "zzz': keys have 511 bytes"),
    ],
    ids=["twice", "classes", "key", "long"],
)
def test_what_a_form_cannot_hold_is_refused_at_the_start(
    names: list[str],
    classes: str,
    form: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data"
    content = FILES["a/small-000.jpg"]
    for split in ("train", "val"):
        if form == "folder":
            lines = "".join(f"{name},{name[0]}\n" for name in names)
            fill(
                data, {f"{split}.csv": lines.encode(), **dict.fromkeys(names, content)}
            )
        else:
            fill(data / split, dict.fromkeys(names, content))
    if classes:
        (data / "classes.txt").write_text(classes)
    assert pack.main(command(data, form)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / form).exists()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@FORMATS
def test_what_is_interrupted_leaves_nothing(
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a full disk, or in the second split."""
    data = data_of(tmp_path)
    opened(data)  # so that the scan is written already
    before = sorted(os.listdir(tmp_path))
    with files_of_at_most(300):
        assert pack.main(command(data, form)) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"pack: {tmp_path}" in line and "start again" in line
    monkeypatch.setattr(pack, "BATCH", 1)
    monkeypatch.setattr(_stores, "FIRST_MAP", 1 << 15)
    monkeypatch.setattr(_stores.Tar, "SHARD", 6000)
    write = _stores.FORMATS[form].write
    batches: list[Any] = []

    def torn(writer: Any, batch: list[_stores.Packed]) -> Any:
        batches.append(batch)
        if len(batches) == 10:
            raise KeyboardInterrupt
        return write(writer, batch)

    monkeypatch.setattr(_stores.FORMATS[form], "write", torn)
    assert pack.main(command(data, form)) == 130
    assert sorted(os.listdir(tmp_path)) == before
    target = packed(data, form)
    if form == "tar":
        assert len([*(target / "val").glob("*.tar")]) > 1
    for split, found in opened(target).items():
        assert all_read(found.source) == all_read(opened(data)[split].source)


@pytest.mark.parametrize("form", ["tar", "folder"])
def test_what_is_not_read_back_as_written_is_refused(
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = data_of(tmp_path)
    write = _stores.FORMATS[form].write

    def faulty(writer: Any, batch: list[_stores.Packed]) -> Any:
        changed = [
            each._replace(content=each.content[:-9] + bytes(9)) for each in batch
        ]
        return write(writer, changed)

    monkeypatch.setattr(_stores.FORMATS[form], "write", faulty)
    assert pack.main(command(data, form)) == 2
    assert "was not read back as it was written" in capsys.readouterr().err
    assert not (tmp_path / form).exists()


def test_columns_of_another_store_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_of(tmp_path)
    target = packed(data, "tar")
    with pytest.raises(UserError, match="more than --max-pixels 1"):
        opened(target, max_pixels=1)
    content = FILES["a/small-000.jpg"]
    new = {"a/new.jpg": content, "a/new.cls": b"0"}
    sources.write_tar(target / "train" / "000001.tar", new)
    splits = opened(target)
    assert (len(splits["train"].columns), len(splits["val"].columns)) == (8, 7)
    assert pack.main(command(data, "tar")) == 2
    assert "is there and not empty" in capsys.readouterr().err
    assert pack.main([str(data / "to"), "--from", str(data)]) == 2
    assert "which is never written to" in capsys.readouterr().err
