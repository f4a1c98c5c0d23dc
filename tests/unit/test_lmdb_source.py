"""LMDB as a source: what is taken, what is left out by name, and what is refused in one line."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from saturate.contracts import Split
from saturate.dataset.images import scan
from saturate.dataset.open import open_split
from saturate.dataset.stores import lmdb as source
from saturate.dataset.stores.lmdb import Store
from saturate.loaders._workers import died
from tests.conformance import scenes
from tests.conformance.sources import write_lmdb
from tests.unit.folders import refused, samples

lmdb = pytest.importorskip("lmdb")
IMAGES = {
    f"{'ab'[place % 2]}/{name}": content
    for place, (name, content) in enumerate(scenes.small(4).items())
}
FIRST, SECOND, *_ = sorted(IMAGES)
CHANGED = "was written to, or replaced, since it was opened"


def opened(data: Path, **how: Any) -> Split:
    return open_split(data / "train", source="lmdb", cache=data.parent / "cache", **how)


def data_of(tmp_path: Path, files: dict[str, bytes] = IMAGES) -> Path:
    (tmp_path / "data").mkdir(parents=True, exist_ok=True)
    # more than once: pages become free, so that the next transaction need not make the file longer
    for _ in range(4):
        write_lmdb(tmp_path / "data", "train", files)
    return tmp_path / "data"


def test_a_store_may_be_a_file_and_others_entries_are_passed_over(
    tmp_path: Path,
) -> None:
    data = data_of(tmp_path, {**IMAGES, "__keys__": b"[]", "__len__": b"4"})
    folder = data / "train.lmdb"
    whole = samples(opened(data))
    (folder / "data.mdb").rename(data / "file")
    (folder / "lock.mdb").unlink()
    folder.rmdir()
    (data / "file").rename(folder)
    assert samples(opened(data)) == whole
    assert whole == {name: (name[0], content) for name, content in IMAGES.items()}


def test_a_link_that_leads_to_another_store_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "data/train.lmdb"
    link.parent.mkdir()
    for number, content in enumerate([*IMAGES.values()][:2]):
        files = {f"{name}/0.jpg": content for name in "ab"[number:]}
        link.unlink(missing_ok=True)
        link.symlink_to(data_of(tmp_path / f"{number}", files) / "train.lmdb")
        wanted = {name: (name[0], content) for name, content in files.items()}
        assert samples(opened(link.parent)) == wanted


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: os.truncate(file, file.stat().st_size - 4096), "is cut short"),
        (lambda file: os.truncate(file, 0), "can be read, or is damaged"),
    ],
    ids=["cut", "empty"],
)
def test_what_is_not_whole_is_refused_at_the_start(
    damage: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    data = data_of(tmp_path)
    damage(data / "train.lmdb" / "data.mdb")
    assert said in refused(lambda: opened(data))


SWAP = """
keys = b"FIRST", b"SECOND"
for key, value in zip(keys, [bytes(store.get(key)) for key in keys[::-1]]):
    store.put(key, value)
""".replace("FIRST", FIRST).replace("SECOND", SECOND)
GROW = "for number in range(3000): store.put(b'c/%d' % number, bytes(4000))"


def written_to(path: Path, lines: str) -> None:
    """Do this to a store in one transaction of another process."""
    code = (
        "import lmdb, sys\nwith lmdb.open(sys.argv[1], map_size=1 << 32) as opened:\n"
        "    with opened.begin(write=True) as store:\n        exec(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, str(path), lines], check=True)


def same_date(path: Path) -> None:
    """Write to a store, whose date stays."""
    file = path / "data.mdb"
    before = file.stat()
    written_to(path, SWAP)
    os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


CHANGES: dict[str, Callable[[Path], object]] = {
    "swapped": lambda path: written_to(path, SWAP),
    "grown": lambda path: written_to(path, GROW),
    "cut": lambda path: os.truncate(path / "data.mdb", 8192),
    "gone": lambda path: (path / "data.mdb").unlink(),
    "same date": same_date,
}


@pytest.mark.parametrize(
    ("change", "read_before"),
    [*((change, False) for change in CHANGES), ("swapped", True), ("cut", True)],
)
def test_a_store_that_changes_under_a_run_is_refused_at_the_next_read(
    change: str, read_before: bool, tmp_path: Path
) -> None:
    """Values under other keys have another label; what is cut short would end the process."""
    data = data_of(tmp_path)
    copy = pickle.dumps(opened(data).source)
    found = pickle.loads(copy)
    if read_before:
        assert found.read(0) == IMAGES[FIRST]
    CHANGES[change](data / "train.lmdb")
    assert f"train.lmdb:{FIRST}: the store {CHANGED}" in refused(lambda: found.read(0))
    assert CHANGED in refused(lambda: pickle.loads(copy).read(0))
    if change not in ("cut", "gone"):
        assert samples(opened(data))[FIRST][1] in IMAGES.values(), "it is scanned anew"


def test_a_store_that_changes_under_the_scan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(tmp_path)
    scanned = source.open_images

    def and_written_to(*args: Any, **how: Any) -> Any:
        columns = scanned(*args, **how)
        written_to(data / "train.lmdb", SWAP)
        return columns

    monkeypatch.setattr(source, "open_images", and_written_to)
    assert CHANGED in refused(lambda: opened(data))
    store = Store(data / "train.lmdb")
    assert len(store.names()) == 4
    written_to(store.path, GROW)
    assert CHANGED in refused(store.names), "and is not called damaged"


def test_what_is_no_sample_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key without a class, and a value that is no image: a pickle is never loaded."""
    others = {"x": b"", "/y": b"", "a/z": pickle.dumps(Store(tmp_path))}
    data = data_of(tmp_path, {**IMAGES, **others})
    seen = Mock(wraps=scan.checked_header)
    monkeypatch.setattr(scan, "checked_header", seen)
    split = opened(data)
    assert not seen.called, "others read: the system may end who reads a mapping"
    assert len(split.columns) == 4
    said = (split.columns.folder / "rejected.txt").read_text()
    assert said.count("no class before a '/' in its key; python ") == 2
    assert "a/z\tno known image format" in said
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert "pip install lmdb" in refused(lambda: opened(data))


PAGE = 4096


def pages_of(file: Path) -> dict[str, list[int]]:
    """The place of each page of a store, by what the flags of its head say (MDB_page in LMDB's mdb.c)."""
    content = file.read_bytes()
    found: dict[str, list[int]] = {"branch": [], "leaf": [], "overflow": []}
    for place in range(2 * PAGE, len(content), PAGE):
        flags = int.from_bytes(content[place + 10 : place + 12], "little")
        for name, flag in {"branch": 1, "leaf": 2, "overflow": 4}.items():
            if flags == flag:
                found[name].append(place)
    return found


def write_at(content: bytearray, place: int, data: bytes) -> bytearray:
    content[place : place + len(data)] = data
    return content


def first_node(content: bytearray, page: int) -> int:
    return page + int.from_bytes(content[page + 16 : page + 18], "little")


DAMAGE: dict[str, tuple[str, Callable[[bytearray, int], object]]] = {
    "size of a node": (
        "leaf",
        lambda all_, page: write_at(all_, first_node(all_, page), b"\xff\xff\xff\x7f"),
    ),
    "kind of a leaf": ("leaf", lambda all_, page: write_at(all_, page + 10, b"\1")),
    "kind of a branch": ("branch", lambda all_, page: write_at(all_, page + 10, b"\2")),
    "page of a branch": (
        "branch",
        lambda all_, page: write_at(all_, first_node(all_, page), b"\xff\xff\xff\x3f"),
    ),
    "offsets of nodes": (
        "leaf",
        lambda all_, page: write_at(all_, page + 16, b"\xfe\xff" * 40),
    ),
    "a leaf of zeros": ("leaf", lambda all_, page: write_at(all_, page, bytes(PAGE))),
    "a branch of zeros": (
        "branch",
        lambda all_, page: write_at(all_, page, bytes(PAGE)),
    ),
    "a leaf of ones": ("leaf", lambda all_, page: write_at(all_, page, b"\xff" * PAGE)),
    "its roots": (
        "leaf",
        lambda all_, _: [
            write_at(all_, meta * PAGE + 16 + 120, b"\xff\xff\xff\x3f")
            for meta in (0, 1)
        ],
    ),
    "zeros alone": (
        "leaf",
        lambda all_, _: write_at(all_, 0, bytes(len(all_))),
    ),
}


OF_A_KEY = "size of a node", "page of a branch", "zeros alone"
"""Damage that is met also where one key alone is looked for."""


@pytest.fixture
def no_fault_handler() -> Iterator[None]:
    """Pytest's own would write down each process that ends so."""
    was = faulthandler.is_enabled()
    faulthandler.disable()
    yield
    if was:
        faulthandler.enable(2)


@pytest.mark.usefixtures("no_fault_handler")
@pytest.mark.parametrize(
    ("kind", "own_list"),
    [*((kind, False) for kind in DAMAGE), *((kind, True) for kind in OF_A_KEY)],
)
def test_a_damaged_page_ends_a_scan_with_a_line(
    kind: str,
    own_list: bool,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """LMDB ends the process that meets one, or the system does: this process is there after it."""
    small = scenes.small(200)
    files = {
        f"{'ab'[n % 2]}/{n:03d}.png": data for n, data in enumerate(small.values())
    }
    if own_list:
        keys = [*map(str.encode, sorted(files))]
        about = source.samples_of(keys, np.arange(200) % 2, ("a", "b"))
        files |= {name.decode(): value for name, value in about.items()}
    data = data_of(tmp_path, files)
    assert len(opened(data).columns) == 200
    file = data / "train.lmdb" / "data.mdb"
    which, damage = DAMAGE[kind]
    content = bytearray(file.read_bytes())
    for page in pages_of(file)[which]:
        damage(content, page)
    file.write_bytes(content)
    said = refused(lambda: opened(data))
    assert "train.lmdb" in said and "damaged" in said
    assert "copy it again" in said
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGBUS])
def test_a_worker_that_lmdb_has_ended_names_the_store(number: int) -> None:
    class Ended:
        exitcode = -number
        pid = 7

    said = died(Ended(), "/data/train.lmdb:a/1.png")
    assert "busy with /data/train.lmdb:a/1.png" in said
    assert "an LMDB, was cut short, is damaged" in said
