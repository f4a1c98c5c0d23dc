"""LMDB as a source: what is taken, what is left out by name, and what is refused in one line."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts import Split
from dataset.open import open_split
from dataset.stores import lmdb as source
from dataset.stores.lmdb import HEADER, Store
from tests.conformance import scenes
from tests.conformance.sources import lose_value, write_lmdb
from tests.unit.folders import refused

lmdb = pytest.importorskip("lmdb")
IMAGES = {
    f"{'ab'[place % 2]}/{name}": content
    for place, (name, content) in enumerate(scenes.small(4).items())
}
ARROW = (
    bytes(16)
    + b"\xff\xff\xff\xff\xa8\1\0\0"
    + bytes(80)
    + b"\4\0\0\0list\0\0\0\0"
    + bytes(99)
)
"""What pyarrow 11 wrote by serialize(), shortened."""


def opened(data: Path, **how: Any) -> Split:
    return open_split(data / "train", source="lmdb", cache=data.parent / "cache", **how)


def data_of(tmp_path: Path, files: dict[str, bytes] = IMAGES) -> Path:
    (tmp_path / "data").mkdir(exist_ok=True)
    write_lmdb(tmp_path / "data", "train", files)
    return tmp_path / "data"


def left_out(split: Split) -> str:
    return str((split.columns.folder / "rejected.txt").read_text(encoding="utf-8"))


def test_a_store_may_be_a_file_and_others_entries_are_passed_over(
    tmp_path: Path,
) -> None:
    data = data_of(
        tmp_path,
        {**IMAGES, "__keys__": pickle.dumps([*IMAGES]), "__len__": pickle.dumps(4)},
    )
    folder = data / "train.lmdb"
    whole = opened(data)
    (folder / "data.mdb").rename(data / "file")
    (folder / "lock.mdb").unlink()
    folder.rmdir()
    (data / "file").rename(folder)
    for split in (whole, opened(data)):
        assert (len(split.columns), split.columns.rejected) == (4, 0)
    assert opened(data).source.read(0) == IMAGES["a/small-000"]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("loaded"),)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        *((pickle.dumps(Bomb(), protocol), "a Python pickle") for protocol in (2, 4)),
        (ARROW, "an object in pyarrow's old serialization"),
    ],
    ids=["pickle-2", "pickle-4", "pyarrow"],
)
def test_objects_are_refused_by_name_and_never_loaded(
    value: bytes, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    split = opened(data_of(tmp_path, {**IMAGES, "b/x": value}))
    assert (
        f"train.lmdb:b/x\t{what}, which is never loaded" in left_out(split)
        and len(split.columns) == 4
    )
    (tmp_path / "all").mkdir()
    said = refused(
        lambda: opened(data_of(tmp_path / "all", {"__len__": b"2", "a/x": value}))
    )
    assert f"train.lmdb:a/x is {what}, which is never loaded" in said
    assert not Path("loaded").exists()


def edit(offset: int, content: bytes) -> Callable[[Path], object]:
    """Return what writes these bytes into both meta pages."""

    def change(file: Path) -> None:
        held = bytearray(file.read_bytes())
        for page in (0, 4096):
            held[page + offset : page + offset + len(content)] = content
        file.write_bytes(held)

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda file: os.truncate(file, file.stat().st_size - 4096),
            "is cut short, or still being copied",
        ),
        (lambda file: os.truncate(file, 4096), "is cut short, or still being copied"),
        (lambda file: os.truncate(file, 0), "is no LMDB, or its first bytes are lost"),
        (edit(HEADER, bytes(4)), "is no LMDB, or its first bytes are lost"),
        (edit(HEADER + 4, struct.pack("<I", 2)), "is of another version of LMDB"),
        (
            edit(HEADER, bytes(4) + struct.pack("<I", 0xBEEFC0DE)),
            "is of another version of LMDB",
        ),
        (edit(HEADER + 24 + 48 + 4, b"\x08\0"), "keys that are integers or reversed"),
    ],
    ids=["cut", "one-page", "empty", "no-lmdb", "version", "layout", "integers"],
)
def test_what_is_not_whole_is_refused_at_the_start(
    damage: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    data = data_of(tmp_path)
    damage(data / "train.lmdb" / "data.mdb")
    assert said in refused(lambda: opened(data))


HOLD = """
import lmdb, sys
store = lmdb.open(sys.argv[1], readonly=bool(int(sys.argv[2])))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("readonly", [False, True], ids=["writer", "reader"])
def test_a_store_that_is_being_written_is_refused(
    readonly: bool, tmp_path: Path
) -> None:
    """A store that others read is not refused."""
    data = data_of(tmp_path)
    command = [sys.executable, "-c", HOLD, str(data / "train.lmdb"), str(int(readonly))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdout.readline() == b"open\n"
        if readonly:
            assert len(opened(data).columns) == 4
        else:
            assert (
                f"is still being written: process {other.pid} has it open"
                in refused(lambda: opened(data))
            )
        other.communicate()


def test_a_store_that_changes_under_the_scan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(tmp_path)
    scan = source.open_images

    def and_written_to(*args: Any, **how: Any) -> Any:
        columns = scan(*args, **how)
        lose_value(
            Split(
                columns=columns,
                source=source.Stored(columns, source.Values(data, "train")),
            ).source,
            0,
        )
        return columns

    monkeypatch.setattr(source, "open_images", and_written_to)
    assert "is still being written: transaction 1 became 2" in refused(
        lambda: opened(data)
    )


def test_a_transaction_is_seen_whatever_the_date(tmp_path: Path) -> None:
    """The next start scans anew; who opens the store under the old columns is told."""
    data = data_of(tmp_path)
    file = data / "train.lmdb" / "data.mdb"
    before = opened(data)
    copy = pickle.dumps(before.source)
    date = file.stat().st_mtime_ns
    lose_value(before.source, 3)
    os.utime(file, ns=(date, date))
    assert "was written to after it was scanned" in refused(
        lambda: pickle.loads(copy).read(0)
    )
    assert len(opened(data).columns) == 3


SWAP = """
first, second = (store.get(key) for key in (b"a/small-000", b"b/small-001"))
store.put(b"a/small-000", second)
store.put(b"b/small-001", first)
"""
GROW = "for number in range(3000): store.put(b'c/%d' % number, bytes(4000))"


def written_to(path: Path, lines: str) -> None:
    """Do this to a store in one transaction of another process."""
    code = (
        "import lmdb, sys\nwith lmdb.open(sys.argv[1], map_size=1 << 32) as opened:\n"
    )
    code += "    with opened.begin(write=True) as store:\n        exec(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, str(path), lines], check=True)


@pytest.mark.parametrize(
    "opened_before", [False, True], ids=["first-read", "later-read"]
)
@pytest.mark.parametrize("change", [SWAP, GROW, "cut"], ids=["swapped", "grown", "cut"])
def test_a_store_that_changes_under_a_run_is_refused_at_the_next_read(
    change: str, opened_before: bool, tmp_path: Path
) -> None:
    """Values under other keys have another label; what is cut short would end the process."""
    data = data_of(tmp_path)
    found = opened(data).source
    if opened_before:
        assert found.read(0) == IMAGES["a/small-000"]
    file = data / "train.lmdb" / "data.mdb"
    if change == "cut":
        os.truncate(file, 8192)
    else:
        written_to(data / "train.lmdb", change)
    said = refused(lambda: found.read(0))
    assert (
        "is cut short" in said
        if change == "cut" and not opened_before
        else "was written to after" in said
    )


@pytest.mark.parametrize("of_columns", [False, True], ids=["images", "detectors"])
@pytest.mark.parametrize("how", ["renamed", "copied"])
def test_a_store_in_place_of_another_is_refused(
    how: str, of_columns: bool, tmp_path: Path
) -> None:
    """One of as many transactions and pages; detectors' sources are opened from columns alone."""
    data = data_of(tmp_path)
    split = opened(data)
    found: Any = split.source
    if of_columns:
        columns = SimpleNamespace(
            root=data, size=split.columns.size, entry=lambda _: b"train/a/small-000"
        )
        found = source.source(columns)
    (tmp_path / "other").mkdir()
    first, second = sorted(IMAGES)[:2]
    other = data_of(
        tmp_path / "other", {**IMAGES, first: IMAGES[second], second: IMAGES[first]}
    )
    file, fresh = (each / "train.lmdb" / "data.mdb" for each in (data, other))
    assert file.stat().st_size == fresh.stat().st_size
    if how == "renamed":
        os.replace(fresh, file)
    else:
        file.write_bytes(fresh.read_bytes())
    assert "was written to after it was scanned" in refused(lambda: found.read(0))


def test_a_store_that_grows_under_a_scan_is_not_called_damaged(tmp_path: Path) -> None:
    store = Store(data_of(tmp_path) / "train.lmdb")
    assert len([*store]) == 4
    written_to(store.path, GROW)
    assert "is still being written" in refused(lambda: [*store])


def test_there_may_be_more_readers_than_the_table_has(tmp_path: Path) -> None:
    store = Store(data_of(tmp_path) / "train.lmdb")
    with ExitStack() as stack:
        held = [stack.enter_context(store.value(b"a/small-000")) for _ in range(150)]
        assert {bytes(value or b"") for value in held} == {IMAGES["a/small-000"]}


def opener(store: Store) -> tuple[int, bool]:
    """Return which process reads, and whether it is the one that has opened the store."""
    with store.value(b"a/small-000") as value:
        assert bytes(value or b"") == IMAGES["a/small-000"]
    return os.getpid(), store._environment().process == os.getpid()


def test_a_store_is_opened_again_behind_a_fork(tmp_path: Path) -> None:
    store = Store(data_of(tmp_path) / "train.lmdb")
    assert opener(store) == (os.getpid(), True)
    with ProcessPoolExecutor(1, get_context("fork"), _take, (store,)) as forked:
        pid, own = forked.submit(_opener).result(60)
    assert pid != os.getpid() and own and opener(store) == (os.getpid(), True)


_taken: list[Store] = []


def _take(store: Store) -> None:
    _taken[:] = [store]


def _opener() -> tuple[int, bool]:
    return opener(_taken[0])


def test_labels_by_a_list(tmp_path: Path) -> None:
    """In the grammar of lists: numbers, a heading, classes.txt."""
    data = data_of(
        tmp_path, {str(place): content for place, content in enumerate(IMAGES.values())}
    )
    labels = tmp_path / "labels.csv"
    labels.write_text("key,label\n2,1\n0,3\n1,1\n77,0\n78,0\n")
    split = opened(data, labels=str(labels))
    columns = split.columns
    assert [columns.classes[label] for label in columns.label] == ["3", "1", "1"]
    assert [*map(columns.entry, range(3))] == [
        b"0",
        b"1",
        b"2",
    ] and columns.classes == ("0", "1", "2", "3")
    said = left_out(split)
    assert f"train.lmdb:3\t{labels} has no label for it" in said
    assert (
        "2 lines name no key of" in said
        and "first line 5, '77'" in said
        and "line 1 is a heading" in said
    )
    (tmp_path / "classes.txt").write_text("w\nx\ny\nz\n")
    assert opened(data, labels=str(labels)).columns.classes == ("w", "x", "y", "z")
    labels.write_text("0,1\n0,2\n")
    assert "line 2 names '0' again, with another label" in refused(
        lambda: opened(data, labels=str(labels))
    )
    labels.write_text("9,1\n")
    assert "names no key of" in refused(lambda: opened(data, labels=str(labels)))


def test_keys_without_a_class_are_left_out(tmp_path: Path) -> None:
    split = opened(
        data_of(
            tmp_path, {**IMAGES, "x": b"", "/y": b"", "a/" + "z" * 500: b"no image"}
        )
    )
    assert len(split.columns) == 4
    said = left_out(split)
    assert (
        said.count("no class before a '/' in its key; --lmdb-label names") == 2
        and "zzz\t" in said
    )


def test_without_the_package_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(tmp_path)
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert "needs the package lmdb: pip install lmdb" in refused(lambda: opened(data))
