"""The scan as its users meet it: what is found, what is left out, when it is made anew, and that nothing half is ever left."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import Mistake
from dataset import manifest, scan
from dataset.manifest import COLUMNS, FORMATS, Manifest, Unusable
from dataset.scan import open_folder
from dataset.sources import folder as source
from dataset.sources.folder import Folder
from tests.unit.test_headers import FILES

JPEG, PNG = FILES["jpeg grey"], FILES["png rgb"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of two images."""
    return fill(tmp_path / "train", {"ant/0.jpg": JPEG, "ant/1.jpg": PNG, "bee/0.jpg": JPEG, "bee/1.jpg": JPEG})


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was brought to the disk; really doing it would be half of these tests' time."""
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: names.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
    return names


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fill(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below root; a name may hold any byte, as \\udcXX."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def names(found: Manifest) -> list[str]:
    """Relative paths of all samples."""
    return [os.fsdecode(found.path(i))[len(str(found.root)) + 1 :] for i in range(len(found))]


def reasons(found: Manifest) -> dict[str, str]:
    """rejected.txt: relative path -> reason."""
    lines = (found.folder / "rejected.txt").read_text().splitlines()
    assert len(lines) == found.rejected
    return {path[len(str(found.root)) + 1 :]: why for path, why in (line.split("\t") for line in lines)}


def scanned(call: Any) -> tuple[Manifest, bool]:
    """What call(progress) gives, and whether it read headers."""
    said: list[str] = []
    found = call(lambda done, total, what: said.append(what))
    return found, "reading headers" in said


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


def test_everything_is_on_disk_before_it_is_named(root: Path, cache: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def rename(old: Path, new: Path) -> None:
        real(old, new)
        synced.append(f"now {new.name}")

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    found = open_folder(root, cache=cache)
    named, current = synced.index(f"now {found.folder.name}"), synced.index("now current")
    assert {path.name for path in found.folder.iterdir()} <= set(synced[:named])
    assert named < current
    assert synced[current - 1] == f"tmp-{found.folder.name}.current"
    assert synced[-1] == found.folder.parent.name


def test_any_name_a_file_can_have(cache: Path, tmp_path: Path) -> None:
    odd = [
        "n/potter's wheel.JPEG",
        "n/two\nlines.jpg",
        "n/caf\udce9.jpg",
        "n/no ending",
        "n/tab\there",
        "\udcff/x.jpg",
        "n/日本.jpg",
        "n/back\\slash",
    ]
    root = fill(tmp_path / "odd\udcfe", dict.fromkeys(odd, JPEG))
    found = open_folder(root, cache=cache)
    assert sorted(names(found)) == sorted(odd)
    assert found.classes == ("n", "\udcff")
    assert [Folder(found).read(i) for i in range(len(odd))] == [JPEG] * len(odd)
    assert not scanned(lambda say: open_folder(root, cache=cache, progress=say))[1]


def test_order_is_that_of_the_paths_bytes_and_classes_are_those_of_image_folder(cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", dict.fromkeys(["a/z", "a-b/x", "a/b.c", "a/b/d", "a/b/c/d", "a/b-/x", "B/x", "a/b+"], JPEG))
    found = open_folder(root, cache=cache)
    assert found.classes == ("B", "a", "a-b")
    assert [os.fsencode(name) for name in names(found)] == sorted(os.fsencode(name) for name in names(found))
    assert len(found) == 8
    assert {name: found.classes[label] for name, label in zip(names(found), found.label, strict=True)} == {
        name: name.split("/")[0] for name in names(found)
    }


def test_what_is_left_out_is_named(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(
        root,
        {"ant/empty.jpg": b"", "ant/page.jpg": b"<html>", "ant/cut.jpg": JPEG[:30], "ant/locked.jpg": JPEG, "cat/notes\n.txt": b"none"},
    )
    fill(root, {"ant/.DS_Store": b"x", "ant/._0.jpg": b"x", ".git/x": b"x", "ant/.deep/x.jpg": JPEG, "stray.jpg": JPEG})
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
        "cat": "class folder without an image",
    }


def test_links_are_followed_and_loops_are_not(root: Path, cache: Path, tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", {"c/0.jpg": JPEG, "one.jpg": JPEG})
    (root / "cat").symlink_to(tmp_path / "elsewhere/c")
    (root / "ant/one.jpg").symlink_to(tmp_path / "elsewhere/one.jpg")
    (root / "ant/deep").mkdir()
    (root / "ant/deep/up").symlink_to("..")
    (root / "ant/top").symlink_to(root)
    (root / "ant/other").symlink_to(root / "bee")
    (root / "bee/other").symlink_to(root / "ant")
    found = open_folder(root, cache=cache)
    assert [name for name in names(found) if name.startswith("ant/")] == [
        "ant/0.jpg",
        "ant/1.jpg",
        "ant/one.jpg",
        "ant/other/0.jpg",
        "ant/other/1.jpg",
    ]
    assert [name for name in names(found) if name.startswith("cat/")] == ["cat/0.jpg"]
    loops = {"ant/deep/up", "ant/top", "ant/other/other", "bee/other/deep/up", "bee/other/top", "bee/other/other"}
    assert reasons(found) == dict.fromkeys(loops, "link to a folder that it lies in")


def test_a_tree_deeper_than_pythons_stack(cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {"a/" * 200 + "x.jpg": JPEG})
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 120)
    try:
        assert len(open_folder(root, cache=cache)) == 1
    finally:
        sys.setrecursionlimit(before)


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda root: fill(root, {"ant/new.jpg": JPEG}),
    "added deep": lambda root: fill(root, {"ant/sub/new.jpg": JPEG}),
    "class added": lambda root: fill(root, {"cat/new.jpg": JPEG}),
    "removed": lambda root: (root / "bee/1.jpg").unlink(),
    "renamed": lambda root: (root / "bee/1.jpg").rename(root / "bee/2.jpg"),
    "replaced": lambda root: (fill(root, {"other": PNG}) / "other").rename(root / "ant/sub/0.jpg"),
    "class renamed": lambda root: (root / "bee").rename(root / "wasp"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_folder_is_seen_at_once(change: str, root: Path, cache: Path) -> None:
    fill(root, {"ant/sub/0.jpg": JPEG})
    before, _ = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    same, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert not again
    assert same.folder == before.folder
    CHANGES[change](root)
    after, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert again
    assert after.identity != before.identity
    assert len(before) == 5  # still mapped
    assert names(before)[0] == "ant/0.jpg"


def test_identity_is_that_of_the_content(root: Path, cache: Path, tmp_path: Path) -> None:
    before = open_folder(root, cache=cache)
    os.utime(root / "ant", (1, 1))
    after, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert again
    assert after.identity == before.identity
    elsewhere = root.rename(tmp_path / "moved")
    assert open_folder(elsewhere, cache=cache).identity == before.identity
    assert open_folder(elsewhere, cache=cache, classes=["ant", "bee", "cat"]).identity != before.identity


def test_labels_of_validation_are_those_of_training(root: Path, cache: Path) -> None:
    found = open_folder(root, cache=cache, classes=["aardvark", "ant", "bee"])
    assert found.label.tolist() == [1, 1, 2, 2]
    assert found.classes == ("aardvark", "ant", "bee")
    with pytest.raises(
        Mistake, match=r"class folder 'bee' \(1 such\), which is none of the 2 classes of the training data; remove or rename"
    ):
        open_folder(root, cache=cache, classes=["aardvark", "ant"])


def test_mistakes_about_the_data(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(Mistake, match="does not exist"):
        open_folder(tmp_path / "no", cache=cache)
    (tmp_path / "file").write_bytes(JPEG)
    with pytest.raises(Mistake, match="is no folder"):
        open_folder(tmp_path / "file", cache=cache)
    flat = fill(tmp_path / "flat", {"0.jpg": JPEG})
    with pytest.raises(Mistake, match="has no class folders; images are expected in"):
        open_folder(flat, cache=cache)
    empty = fill(tmp_path / "empty", {"a/0.jpg": b"", "b/1.jpg": b"no"})
    with pytest.raises(Mistake, match=r"no image in .*; left out: 2, first .*/a/0\.jpg: empty file"):
        open_folder(empty, cache=cache)
    (tmp_path / "bare/a").mkdir(parents=True)
    with pytest.raises(Mistake, match="no image in"):
        open_folder(tmp_path / "bare", cache=cache)
    assert not list(cache.rglob("tmp-*"))


def test_mistakes_about_the_cache(root: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Mistake, match=r"cannot be written to .*file: Not a directory; choose another folder with --manifest-dir"):
        open_folder(root, cache=tmp_path / "file")
    with pytest.raises(Mistake, match="lies inside the data"):
        open_folder(root, cache=root / "cache")
    first = open_folder(root, cache=cache)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "seal", full)
        with pytest.raises(Mistake, match="No space left on device; choose another folder with --manifest-dir"):
            open_folder(root, cache=cache, rescan=True)
    assert open_folder(root, cache=cache).folder == first.folder
    assert sorted(path.name for path in first.folder.parent.iterdir()) == sorted(["current", "lock", first.folder.name])

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(Mistake, match="Permission denied; choose another folder with --manifest-dir"):
        open_folder(root, cache=tmp_path / "other")


def test_the_data_folder_is_never_written_to(root: Path, cache: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted([root, *root.rglob("*")])]

    before = state()
    open_folder(root, cache=cache)
    assert state() == before


def test_a_manifest_pickles_as_its_folder(root: Path, cache: Path) -> None:
    reader = Folder(open_folder(root, cache=cache), read_delay_s=0.25)
    packed = pickle.dumps(reader)
    assert len(packed) < 700
    copy = pickle.loads(packed)
    assert copy.read_delay_s == 0.25
    assert np.array_equal(copy.manifest.path_bytes, reader.manifest.path_bytes)
    assert (len(copy), copy.path(2), copy.manifest.classes) == (4, reader.path(2), reader.manifest.classes)


def test_a_scan_is_kept_while_somebody_has_it_open(root: Path, cache: Path) -> None:
    first = open_folder(root, cache=cache)
    folder, packed = first.folder, pickle.dumps(first)
    second = open_folder(root, cache=cache, rescan=True)
    assert second.folder != folder
    assert names(pickle.loads(packed)) == names(second)  # a worker that starts late
    del first
    open_folder(root, cache=cache, rescan=True)
    assert not folder.exists()
    assert second.folder.exists()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "other bytes": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x7f"),
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["path_bytes.npy", "label.npy", "manifest.json", "visited.json", "../current"])
def test_a_damaged_manifest_is_made_anew(file: str, damage: str, root: Path, cache: Path) -> None:
    found = open_folder(root, cache=cache)
    good, folder = names(found), found.folder
    del found
    DAMAGES[damage](folder / file)
    if file.endswith("npy") or file == "manifest.json":
        with pytest.raises(Unusable):
            Manifest.open(folder)
    after, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert again
    assert names(after) == good
    assert not folder.exists()


def test_a_copied_or_older_manifest(root: Path, cache: Path) -> None:
    folder = open_folder(root, cache=cache).folder
    os.utime(folder / "size.npy", (1, 1))  # as a copy has it: the digest decides
    assert Manifest.open(folder).size.tolist()[0] == len(JPEG)
    about = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**about, "version": -1}))
    assert scanned(lambda say: open_folder(root, cache=cache, progress=say))[1]


def test_a_file_whose_size_changed_is_named(root: Path, cache: Path) -> None:
    reader = Folder(open_folder(root, cache=cache))
    assert reader.read(0) == JPEG
    for content in (JPEG + b"more", JPEG[:-5], b""):
        (root / "ant/0.jpg").write_bytes(content)
        with pytest.raises(Mistake, match=rf"ant/0\.jpg has {len(content)} bytes, the manifest says {len(JPEG)}; run with --rescan"):
            reader.read(0)
    reader.check(1, len(PNG))
    (root / "bee/1.jpg").unlink()
    with pytest.raises(Mistake, match=r"is gone: .*/bee/1\.jpg; run with --rescan"):
        reader.read(3)


def test_rescan_sees_a_file_written_in_place(root: Path, cache: Path) -> None:
    open_folder(root, cache=cache)
    (root / "ant/0.jpg").write_bytes(PNG)
    assert open_folder(root, cache=cache).size[0] == len(JPEG)
    assert open_folder(root, cache=cache, rescan=True).size[0] == len(PNG)
    assert open_folder(root, cache=cache).size[0] == len(PNG)


def test_read_delay_is_added_to_each_read(root: Path, cache: Path) -> None:
    reader = Folder(open_folder(root, cache=cache), read_delay_s=0.03)
    start = time.perf_counter()
    reader.read(0)
    reader.read(1)
    assert time.perf_counter() - start >= 0.06


def test_processes_find_what_threads_find(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = list(FILES.values())
    root = fill(tmp_path / "data", {f"{i % 7}/{i:03}": kinds[i % len(kinds)] if i % 11 else b"no image" for i in range(300)})
    alone = open_folder(root, cache=cache)
    monkeypatch.setattr(scan, "FEW", 10)
    monkeypatch.setattr(scan, "CHUNK", 16)
    monkeypatch.setattr(scan, "PIECE", 13)
    said: list[tuple[int, int, str]] = []
    shared = open_folder(root, cache=cache, rescan=True, workers=2, progress=lambda *what: said.append(what))
    for name in COLUMNS:
        assert np.array_equal(getattr(alone, name), getattr(shared, name)), name
    assert reasons(alone) == reasons(shared)
    assert (len(shared), shared.rejected, shared.identity) == (272, 28, alone.identity)
    assert said[-1] == (300, 300, "reading headers")


def test_a_thousand_class_folders_open_in_milliseconds(cache: Path, tmp_path: Path) -> None:
    one = fill(tmp_path, {"one": JPEG}) / "one"
    for label in range(1000):
        (tmp_path / f"data/{label:04}").mkdir(parents=True)
        os.link(one, tmp_path / f"data/{label:04}/x")
    open_folder(tmp_path / "data", cache=cache)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert len(open_folder(tmp_path / "data", cache=cache).classes) == 1000
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05


SLOW = """
    import sys, time
    from pathlib import Path
    from dataset import scan
    from dataset.sources import folder
    real = folder.header
    folder.header = lambda path: (time.sleep({each}), real(path))[1]
    scan.FEW = {few}
    scan.CHUNK = 10
    def say(done, total, what):
        print(what, flush=True)
    print("ready", flush=True)
    sys.stdin.readline()
    print(scan.open_folder(Path(sys.argv[1]), cache=Path(sys.argv[2]), rescan={rescan}, workers=3, progress=say).folder, flush=True)
"""


def start(root: Path, cache: Path, **how: Any) -> subprocess.Popen[str]:
    """A process that scans slowly, in a process group of its own, as soon as a line is written to it."""
    code = textwrap.dedent(SLOW).format(**{"each": 0.002, "few": 10**9, "rescan": False, **how})
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, root, cache], text=True, start_new_session=True, env=here, **pipes)  # type: ignore[call-overload]


@pytest.mark.parametrize("rescan", [False, True])
def test_of_two_processes_one_scans(rescan: bool, cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {f"a/{i}": JPEG for i in range(500)})
    first, second = start(root, cache, rescan=rescan), start(root, cache, rescan=rescan)
    with first, second:
        assert first.stdout and second.stdout and first.stdin and second.stdin
        assert [second.stdout.readline(), first.stdout.readline()] == ["ready\n", "ready\n"]
        first.stdin.write("\n")
        first.stdin.flush()
        while first.stdout.readline() != "reading headers\n":
            pass
        said = second.communicate("\n")[0].splitlines()
        assert said[0] == "waiting for another process's scan"
        assert "reading headers" not in said
        assert first.stdout.read().splitlines()[-1] == said[-1]
        assert first.wait() == second.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("few", [10**9, 10])
def test_an_interrupted_scan_leaves_nothing(number: signal.Signals, few: int, cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {f"a/{i}": JPEG for i in range(400)})
    process = start(root, cache, each=0.05, few=few)
    with process:
        assert process.stdout and process.stdin and process.stderr
        process.stdin.write("\n")
        process.stdin.flush()
        while process.stdout.readline() != "reading headers\n":
            pass
        sent = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does: to the workers too
        else:
            process.kill()  # they are left alone, and must notice
        assert process.wait() == -number
        said = process.stderr.read()  # ends when the last worker has
        assert said.count("Traceback") == (number == signal.SIGINT)
        assert time.monotonic() - sent < 2
    assert len(list(cache.rglob("tmp-*"))) == (number == signal.SIGKILL)
    assert len(open_folder(root, cache=cache)) == 400
    assert not list(cache.rglob("tmp-*"))


def test_a_folder_that_cannot_be_listed_is_named(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refuse(path: Any) -> Any:
        if os.fsencode(path).endswith(b"/bee"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = open_folder(root, cache=cache)
    assert reasons(found)["bee"] in ("class folder without an image", "folder cannot be listed: Permission denied")
    assert found.classes == ("ant",)


def test_settle_waits_out_the_tick_of_the_clock() -> None:
    now = time.time_ns()
    source.settle(now)
    assert time.time_ns() - now >= 20_000_000
    before = time.perf_counter()
    for changed in (now - 10**9, now + 10**12, 0):  # old, from a clock ahead of ours, never
        source.settle(changed)
    assert time.perf_counter() - before < 0.01
