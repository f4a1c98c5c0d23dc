"""A scan that is kept: when it is made anew, and that nothing half is ever left."""

from __future__ import annotations

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

from contracts import UserError
from dataset.images.columns import Images
from dataset.scan import manifest
from dataset.scan.manifest import NoManifest
from dataset.stores.folder import Folder, open_folder
from tests.unit.folders import JPEG, PNG, fill, names, scanned


def test_everything_is_on_disk_before_it_is_named(
    root: Path, cache: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def rename(old: Path, new: Path) -> None:
        real(old, new)
        synced.append(f"now {new.name}")

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    found = open_folder(root, cache=cache)
    named, current = (
        synced.index(f"now {found.folder.name}"),
        synced.index("now current"),
    )
    assert {path.name for path in found.folder.iterdir()} <= set(synced[:named])
    assert named < current
    assert synced[current - 1] == f"tmp-{found.folder.name}.current"
    assert synced[-1] == found.folder.parent.name


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda root: fill(root, {"ant/new.jpg": JPEG}),
    "added deep": lambda root: fill(root, {"ant/sub/new.jpg": JPEG}),
    "class added": lambda root: fill(root, {"cat/new.jpg": JPEG}),
    "removed": lambda root: (root / "bee/1.jpg").unlink(),
    "renamed": lambda root: (root / "bee/1.jpg").rename(root / "bee/2.jpg"),
    "replaced": lambda root: (fill(root, {"other": PNG}) / "other").rename(
        root / "ant/sub/0.jpg"
    ),
    "class renamed": lambda root: (root / "bee").rename(root / "wasp"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_folder_is_seen_at_once(
    change: str, root: Path, cache: Path
) -> None:
    fill(root, {"ant/sub/0.jpg": JPEG})
    before, _ = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    same, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert not again
    assert same.folder == before.folder
    CHANGES[change](root)
    after, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert again
    assert after.fingerprint != before.fingerprint
    assert len(before) == 5  # still mapped
    assert names(before)[0] == "ant/0.jpg"


def test_fingerprint_is_that_of_the_content(
    root: Path, cache: Path, tmp_path: Path
) -> None:
    before = open_folder(root, cache=cache)
    os.utime(root / "ant", (1, 1))
    after, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert again
    assert after.fingerprint == before.fingerprint
    elsewhere = root.rename(tmp_path / "moved")
    assert open_folder(elsewhere, cache=cache).fingerprint == before.fingerprint
    more = open_folder(elsewhere, cache=cache, classes=["ant", "bee", "cat"])
    assert more.fingerprint != before.fingerprint


def test_mistakes_about_the_cache(
    root: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    other = "choose another folder with --manifest-dir"
    with pytest.raises(
        UserError, match=rf"cannot be written to .*file: Not a directory; {other}"
    ):
        open_folder(root, cache=tmp_path / "file")
    with pytest.raises(UserError, match="lies inside the data"):
        open_folder(root, cache=root / "cache")
    first = open_folder(root, cache=cache)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "seal", full)
        with pytest.raises(UserError, match=f"No space left on device; {other}"):
            open_folder(root, cache=cache, rescan=True)
    assert open_folder(root, cache=cache).folder == first.folder
    assert sorted(path.name for path in first.folder.parent.iterdir()) == sorted(
        ["current", "lock", first.folder.name]
    )

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=f"Permission denied; {other}"):
        open_folder(root, cache=tmp_path / "other")


def test_a_manifest_pickles_as_its_folder(root: Path, cache: Path) -> None:
    reader = Folder(open_folder(root, cache=cache), read_delay_s=0.25)
    packed = pickle.dumps(reader)
    assert len(packed) < 700
    copy = pickle.loads(packed)
    assert copy.read_delay_s == 0.25
    assert np.array_equal(copy.manifest.path_bytes, reader.manifest.path_bytes)
    assert (len(copy), copy.path(2), copy.manifest.classes) == (
        4,
        reader.path(2),
        reader.manifest.classes,
    )


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
@pytest.mark.parametrize(
    "file",
    ["path_bytes.npy", "label.npy", "manifest.json", "visited.json", "../current"],
)
def test_a_damaged_manifest_is_made_anew(
    file: str, damage: str, root: Path, cache: Path
) -> None:
    found = open_folder(root, cache=cache)
    good, folder = names(found), found.folder
    del found
    DAMAGES[damage](folder / file)
    if file.endswith("npy") or file == "manifest.json":
        with pytest.raises(NoManifest):
            Images.open(folder)
    after, again = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    assert again
    assert names(after) == good
    assert not folder.exists()


def test_a_copied_or_older_manifest(root: Path, cache: Path) -> None:
    folder = open_folder(root, cache=cache).folder
    os.utime(folder / "size.npy", (1, 1))  # as a copy has it: the digest decides
    assert Images.open(folder).size.tolist()[0] == len(JPEG)
    about = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**about, "version": -1}))
    assert scanned(lambda say: open_folder(root, cache=cache, progress=say))[1]


def test_a_thousand_class_folders_open_in_milliseconds(
    cache: Path, tmp_path: Path
) -> None:
    one = fill(tmp_path, {"one": JPEG}) / "one"
    for label in range(1000):
        (tmp_path / f"data/{label:04}").mkdir(parents=True)
        os.link(one, tmp_path / f"data/{label:04}/x")
    open_folder(tmp_path / "data", cache=cache)
    times = []
    for _ in range(5):
        start = time.process_time()
        assert len(open_folder(tmp_path / "data", cache=cache).classes) == 1000
        times.append(time.process_time() - start)
    assert min(times) < 0.05


SLOW = """
    import sys, time
    from pathlib import Path
    from dataset.images import headers, scan
    from dataset.stores.folder import open_folder
    real = headers.read_header
    headers.read_header = lambda size, read_at: (time.sleep({each}), real(size, read_at))[1]
    scan.FEW = {few}
    scan.CHUNK = 10
    def say(done, total, what):
        print(what, flush=True)
    print("ready", flush=True)
    sys.stdin.readline()
    root, cache = Path(sys.argv[1]), Path(sys.argv[2])
    found = open_folder(root, cache=cache, rescan={rescan}, workers=3, progress=say)
    print(found.folder, flush=True)
"""


def start(root: Path, cache: Path, **how: Any) -> subprocess.Popen[str]:
    code = textwrap.dedent(SLOW).format(
        **{"each": 0.002, "few": 10**9, "rescan": False, **how}
    )
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, root, cache],
        text=True,
        start_new_session=True,
        env=here,
        **pipes,
    )  # type: ignore[call-overload]


@pytest.mark.parametrize("rescan", [False, True])
def test_of_two_processes_one_scans(rescan: bool, cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {f"a/{i}": JPEG for i in range(500)})
    # slow enough that the second is called long before the first has finished, else it may scan anew, and
    # rightly
    first, second = (start(root, cache, each=0.01, rescan=rescan) for _ in range(2))
    with first, second:
        assert first.stdout and second.stdout and first.stdin and second.stdin
        assert [second.stdout.readline(), first.stdout.readline()] == [
            "ready\n",
            "ready\n",
        ]
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
def test_an_interrupted_scan_leaves_nothing(
    number: signal.Signals, few: int, cache: Path, tmp_path: Path
) -> None:
    root = fill(tmp_path / "data", {f"a/{i}": JPEG for i in range(1600)})
    process = start(root, cache, each=0.05, few=few)  # to its end it would take 27 s
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
        assert time.monotonic() - sent < 15
    assert len(list(cache.rglob("tmp-*"))) == (number == signal.SIGKILL)
    assert len(open_folder(root, cache=cache)) == 1600
    assert not list(cache.rglob("tmp-*"))
