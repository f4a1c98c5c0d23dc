"""The scan as its users meet it."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import UserError
from dataset.images import headers, scan
from dataset.images.columns import COLUMNS, FORMATS, Header
from dataset.scan import file_tree
from dataset.stores.folder import Folder, open_folder
from system.processes import results
from tests.unit.folders import JPEG, PNG, fill, names, reasons, scanned
from tests.unit.test_headers import FILES


def test_columns(root: Path, cache: Path) -> None:
    found = open_folder(root, cache=cache)
    assert names(found) == ["ant/0.jpg", "ant/1.jpg", "bee/0.jpg", "bee/1.jpg"]
    assert found.classes == ("ant", "bee")
    assert (len(found), found.rejected, found.root) == (4, 0, root.resolve())
    assert found.label.tolist() == [0, 0, 1, 1]
    assert [FORMATS[index] for index in found.format] == ["jpeg", "png", "jpeg", "jpeg"]
    assert found.components.tolist() == [1, 3, 1, 1]
    assert found.size.tolist() == [len(JPEG), len(PNG), len(JPEG), len(JPEG)]
    assert found.height.tolist() == [23] * 4
    assert found.width.tolist() == [37] * 4
    for name, dtype in COLUMNS.items():
        column = getattr(found, name)
        assert column.dtype == dtype
        assert not column.flags.writeable
    for sample in (-1, 4):
        with pytest.raises(IndexError):
            found.path(sample)


def test_any_name_a_file_can_have(cache: Path, tmp_path: Path) -> None:
    odd = [
        "n/potter's wheel.JPEG",
        "n/two\nlines.jpg",
        "n/caf\udce9.jpg",
        "n/no ending",
        "n/tab\there",
    ]
    odd += ["\udcff/x.jpg", "n/日本.jpg", "n/back\\slash"]
    root = fill(tmp_path / "odd\udcfe", dict.fromkeys(odd, JPEG))
    found = open_folder(root, cache=cache)
    assert sorted(names(found)) == sorted(odd)
    assert found.classes == ("n", "\udcff")
    assert [Folder(found).read(i) for i in range(len(odd))] == [JPEG] * len(odd)
    assert not scanned(lambda say: open_folder(root, cache=cache, progress=say))[1]


def test_order_is_that_of_the_paths_bytes_and_classes_are_those_of_image_folder(
    cache: Path, tmp_path: Path
) -> None:
    root = fill(
        tmp_path / "data",
        dict.fromkeys(
            ["a/z", "a-b/x", "a/b.c", "a/b/d", "a/b/c/d", "a/b-/x", "B/x", "a/b+"], JPEG
        ),
    )
    found = open_folder(root, cache=cache)
    assert found.classes == ("B", "a", "a-b")
    assert [os.fsencode(name) for name in names(found)] == sorted(
        os.fsencode(name) for name in names(found)
    )
    assert len(found) == 8
    assert {
        name: found.classes[label]
        for name, label in zip(names(found), found.label, strict=True)
    } == {name: name.split("/")[0] for name in names(found)}


def test_what_is_left_out_is_named(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(
        root,
        {"ant/empty.jpg": b"", "ant/page.jpg": b"<html>", "ant/cut.jpg": JPEG[:30]},
    )
    fill(
        root,
        {
            "ant/locked.jpg": JPEG,
            "cat/notes\n.txt": b"none",
            "stray.jpg": JPEG,
            ".git/x": b"x",
        },
    )
    fill(root, {"ant/.DS_Store": b"x", "ant/._0.jpg": b"x", "ant/.deep/x.jpg": JPEG})
    (root / "ant/gone.jpg").symlink_to(root / "nowhere")
    (root / "ant/self.jpg").symlink_to(root / "ant/self.jpg")
    os.mkfifo(root / "ant/pipe")
    real = os.open

    def refuse(path: Any, *more: Any, **named: Any) -> int:
        if b"locked" in os.fsencode(path):
            raise PermissionError(13, "Permission denied")
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", refuse)  # root may read what has no permission
    found = open_folder(root, cache=cache)
    assert names(found) == ["ant/0.jpg", "ant/1.jpg", "bee/0.jpg", "bee/1.jpg"]
    assert found.classes == ("ant", "bee")
    assert reasons(found) == {
        "ant/empty.jpg": "empty file",
        "ant/page.jpg": "no known image format (starts with 3c 68 74 6d 6c 3e)",
        "ant/cut.jpg": "JPEG header is cut short",
        "ant/locked.jpg": "cannot be read: Permission denied",
        "ant/gone.jpg": "broken link",
        "ant/self.jpg": "cannot be read: Too many levels of symbolic links",
        "ant/pipe": "no regular file",
        "cat/notes\\n.txt": "no known image format (starts with 6e 6f 6e 65)",
        "cat": "class without an image",
        "stray.jpg": "lies in no class folder",
    }


def test_a_folder_that_may_not_be_listed_ends_the_scan(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refuse(path: Any) -> Any:
        if not isinstance(path, int) and os.fsencode(path).endswith(b"/bee"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(
        UserError, match=f"{root / 'bee'} cannot be read: Permission denied"
    ):
        open_folder(root, cache=cache)


def test_links_are_followed_and_loops_are_not(
    root: Path, cache: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "elsewhere", {"c/0.jpg": JPEG, "one.jpg": JPEG})
    (root / "cat").symlink_to(tmp_path / "elsewhere/c")
    (root / "ant/one.jpg").symlink_to(tmp_path / "elsewhere/one.jpg")
    (root / "ant/deep").mkdir()
    (root / "ant/deep/up").symlink_to("..")
    (root / "ant/top").symlink_to(root)
    (root / "ant/other").symlink_to(root / "bee")
    (root / "bee/other").symlink_to(root / "ant")
    found = open_folder(root, cache=cache)
    ant = [f"ant/{name}.jpg" for name in ("0", "1", "one", "other/0", "other/1")]
    assert [name for name in names(found) if not name.startswith("bee/")] == [
        *ant,
        "cat/0.jpg",
    ]
    loops = {f"ant/{name}" for name in ("deep/up", "top", "other/other")}
    loops |= {f"bee/other/{name}" for name in ("deep/up", "top", "other")}
    assert reasons(found) == dict.fromkeys(loops, "link to a folder that it lies in")


def test_links_to_the_system_are_not_followed(
    root: Path, cache: Path, tmp_path: Path
) -> None:
    """As classes, in a class, and by way of another link; a data set's other disk is."""
    fill(tmp_path / "disk", {"more/0.jpg": JPEG})
    (tmp_path / "disk/more/sys").symlink_to("/sys/kernel")
    links = {
        "all": "/",
        "etc": "/etc",
        "ant/sys": "/sys/kernel",
        "ant/usr": "/usr",
        "bee/bin": "/bin",
    }
    for name, leads_to in links.items():
        (root / name).symlink_to(leads_to)
    (root / "cat").symlink_to(tmp_path / "disk/more")
    found = open_folder(root, cache=cache)
    assert found.classes == ("ant", "bee", "cat") and len(found) == 5
    left_out = [
        line.split("\t")
        for line in (found.folder / "rejected.txt").read_text().splitlines()
    ]
    why = {
        os.path.relpath(path, root): said
        for path, said in left_out
        if said != "class without an image"
    }
    assert why.pop("all") == "link to a folder that it lies in"
    assert why == dict.fromkeys({*links, "cat/sys"} - {"all"}, file_tree.SYSTEM)


def test_links_that_lead_to_links_end(root: Path, cache: Path, tmp_path: Path) -> None:
    """Of twenty folders each has two links to the next one: a million ways to the last."""
    for level in range(20):
        fill(tmp_path / "far", {f"{level}/{level}.jpg": JPEG})
        for way in "ab" if level else "":
            (tmp_path / f"far/{level - 1}/{way}").symlink_to(tmp_path / f"far/{level}")
    (root / "cat").symlink_to(tmp_path / "far/0")
    found = open_folder(root, cache=cache)
    assert len(found) == 4 + 20
    assert list(reasons(found).values()) == [file_tree.AGAIN] * 19


def test_a_tree_deeper_than_pythons_stack(cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {"a/" * 200 + "x.jpg": JPEG})
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 120)
    try:
        assert len(open_folder(root, cache=cache)) == 1
    finally:
        sys.setrecursionlimit(before)


def test_labels_of_validation_are_those_of_training(root: Path, cache: Path) -> None:
    found = open_folder(root, cache=cache, classes=["aardvark", "ant", "bee"])
    assert found.label.tolist() == [1, 1, 2, 2]
    assert found.classes == ("aardvark", "ant", "bee")
    said = r"class folder 'bee' \(1 such\), which is none of the 2 classes of the training data; remove or"
    with pytest.raises(UserError, match=said):
        open_folder(root, cache=cache, classes=["aardvark", "ant"])


def test_mistakes_about_the_data(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_folder(tmp_path / "no", cache=cache)
    (tmp_path / "file").write_bytes(JPEG)
    with pytest.raises(UserError, match="is no folder"):
        open_folder(tmp_path / "file", cache=cache)
    flat = fill(tmp_path / "flat", {"0.jpg": JPEG})
    with pytest.raises(UserError, match="has no class folders; images are expected in"):
        open_folder(flat, cache=cache)
    empty = fill(tmp_path / "empty", {"a/0.jpg": b"", "b/1.jpg": b"no"})
    with pytest.raises(
        UserError, match=r"no image in .*; left out: 2, first .*/a/0\.jpg: empty file"
    ):
        open_folder(empty, cache=cache)
    (tmp_path / "bare/a").mkdir(parents=True)
    with pytest.raises(UserError, match="no image in"):
        open_folder(tmp_path / "bare", cache=cache)
    assert not list(cache.rglob("tmp-*"))


def test_the_data_folder_is_never_written_to(root: Path, cache: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return [
            (str(path), path.stat().st_mtime_ns, path.stat().st_size)
            for path in sorted([root, *root.rglob("*")])
        ]

    before = state()
    open_folder(root, cache=cache)
    assert state() == before


def test_processes_find_what_threads_find(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = list(FILES.values())
    root = fill(
        tmp_path / "data",
        {
            f"{i % 7}/{i:03}": kinds[i % len(kinds)] if i % 11 else b"no image"
            for i in range(300)
        },
    )
    alone = open_folder(root, cache=cache)
    monkeypatch.setattr(scan, "FEW", 10)
    monkeypatch.setattr(scan, "CHUNK", 16)
    monkeypatch.setattr(scan, "PIECE", 13)
    said: list[tuple[int, int, str]] = []
    shared = open_folder(
        root,
        cache=cache,
        rescan=True,
        workers=2,
        progress=lambda *what: said.append(what),
    )
    for name in COLUMNS:
        assert np.array_equal(getattr(alone, name), getattr(shared, name)), name
    assert reasons(alone) == reasons(shared)
    assert (len(shared), shared.rejected, shared.fingerprint) == (
        272,
        28,
        alone.fingerprint,
    )
    assert said[-1] == (300, 300, "reading headers")


@pytest.mark.parametrize(
    ("cores", "asked", "processes"),
    [(0.5, 0, 2), (2.0, 0, 8), (64.0, 0, 32), (2.0, 3, 3)],
)
def test_how_many_read_headers(
    cores: float,
    asked: int,
    processes: int,
    root: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def noting(work: Any, items: Any, workers: int, *, threads: bool) -> Any:
        counts.append(workers)
        return results(work, items, 1, threads=threads)

    monkeypatch.setattr(scan, "FEW", 0)
    monkeypatch.setattr(scan, "cores", lambda: cores)
    monkeypatch.setattr("system.processes.results", noting)
    open_folder(root, cache=cache, workers=asked)
    assert counts == [processes]


def test_a_process_that_is_killed_is_one_line(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = os.getpid()

    def read(size: int, read_at: Any) -> Header:
        if os.getpid() != home:
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("in a process of its own")

    monkeypatch.setattr(scan, "FEW", 0)
    monkeypatch.setattr(headers, "read_header", read)
    with pytest.raises(UserError, match=r"^a process that reads headers was killed"):
        open_folder(root, cache=cache)
    assert not list(cache.glob("*/tmp-*"))


def test_settle_waits_out_the_tick_of_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time_ns()
    file_tree.settle(now)
    assert time.time_ns() - now >= 20_000_000
    slept: list[float] = []
    monkeypatch.setattr(file_tree.time, "sleep", slept.append)
    for changed in (
        now - 10**9,
        now + 10**12,
        0,
    ):  # old, from a clock ahead of ours, never
        file_tree.settle(changed)
    assert slept == []
