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

from saturate.dataset.images.columns import Images
from saturate.dataset.scan import file_tree, manifest
from saturate.dataset.scan.manifest import NoManifest
from saturate.dataset.stores.folder import open_folder
from tests.unit.folders import JPEG, PNG, fill, names, refused, scanned


def found_again(root: Path, cache: Path) -> tuple[Images, bool]:
    """The columns, and whether they come from an earlier scan."""
    found, anew = scanned(lambda say: open_folder(root, cache=cache, progress=say))
    return found, not anew


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda root: fill(root, {"ant/new.jpg": JPEG}),
    "removed": lambda root: (root / "bee/1.jpg").unlink(),
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
    before = open_folder(root, cache=cache)
    same, again = found_again(root, cache)
    assert again and same.folder == before.folder
    CHANGES[change](root)
    after, again = found_again(root, cache)
    assert not again and after.fingerprint != before.fingerprint
    assert len(before) == 5 and names(before)[0] == "ant/0.jpg", "still mapped"


def test_a_scan_outlasts_a_tick_of_the_clock_of_files() -> None:
    began = time.time_ns()
    file_tree.settle(began)
    assert time.time_ns() - began >= 20_000_000


def test_fingerprint_is_that_of_the_content(
    root: Path, cache: Path, tmp_path: Path
) -> None:
    before = open_folder(root, cache=cache).fingerprint
    os.utime(root / "ant", (1, 1))
    after, again = found_again(root, cache)
    assert not again and after.fingerprint == before
    elsewhere = root.rename(tmp_path / "moved")
    assert open_folder(elsewhere, cache=cache).fingerprint == before
    more = open_folder(elsewhere, cache=cache, classes=["ant", "bee", "cat"])
    assert more.fingerprint != before


def test_mistakes_about_the_cache(
    root: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    line = refused(lambda: open_folder(root, cache=tmp_path / "file"))
    assert "file: Not a directory; choose another folder with --manifest-dir" in line
    line = refused(lambda: open_folder(root, cache=root / "cache"))
    assert "lies inside the data" in line
    first = open_folder(root, cache=cache)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "seal", full)
        line = refused(lambda: open_folder(root, cache=cache, rescan=True))
    assert "No space left on device; choose another folder" in line
    assert open_folder(root, cache=cache).folder == first.folder
    left = sorted(path.name for path in first.folder.parent.iterdir())
    assert left == ["lock", first.folder.name]


def test_the_scan_before_the_newest_is_kept(root: Path, cache: Path) -> None:
    first = open_folder(root, cache=cache)
    packed = pickle.dumps(first)
    second = open_folder(root, cache=cache, rescan=True)
    assert second.folder != first.folder
    assert names(pickle.loads(packed)) == names(second)  # a worker that starts late
    open_folder(root, cache=cache, rescan=True)
    assert not first.folder.exists() and second.folder.exists()


def another_version(path: Path) -> None:
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "version": -1}))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("path_bytes.npy", lambda path: os.truncate(path, path.stat().st_size - 1)),
        ("label.npy", lambda path: np.save(path, np.zeros(3, np.int32))),
        ("manifest.json", another_version),
        ("visited.json", lambda path: path.unlink()),
    ],
)
def test_a_damaged_manifest_is_made_anew(
    file: str, damage: Callable[[Path], object], root: Path, cache: Path
) -> None:
    found = open_folder(root, cache=cache)
    good, folder = names(found), found.folder
    del found
    damage(folder / file)
    if file != "visited.json":
        with pytest.raises(NoManifest):
            Images.open(folder)
    after, again = found_again(root, cache)
    assert not again and names(after) == good and after.folder != folder


SLOW = """
    import sys, time
    from pathlib import Path
    from saturate.dataset.images import headers, scan
    from saturate.dataset.stores.folder import open_folder
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


def start(
    root: Path, cache: Path, each: float, *, few: int = 10**9, rescan: bool = False
) -> subprocess.Popen[str]:
    code = textwrap.dedent(SLOW).format(each=each, few=few, rescan=rescan)
    return subprocess.Popen(
        [sys.executable, "-c", code, root, cache],
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def begin(process: subprocess.Popen[str]) -> None:
    """Let it go on until it reads headers."""
    assert process.stdout and process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
    while process.stdout.readline() != "reading headers\n":
        pass


def test_of_two_processes_one_scans(cache: Path, tmp_path: Path) -> None:
    root = fill(tmp_path / "data", {f"a/{i}": JPEG for i in range(300)})
    # slow enough that the second is called long before the first has finished, else it may scan anew, and
    # rightly
    first, second = (start(root, cache, 0.04, rescan=True) for _ in range(2))
    with first, second:
        assert first.stdout and second.stdout
        assert {each.stdout.readline() for each in (first, second)} == {"ready\n"}  # type: ignore[union-attr]
        begin(first)
        said = second.communicate("\n")[0].splitlines()
        assert said[0] == "waiting for another process's scan"
        assert "reading headers" not in said
        assert first.stdout.read().splitlines()[-1] == said[-1]
        assert first.wait() == second.returncode == 0


@pytest.mark.parametrize("number", ["SIGINT", "SIGKILL"])
def test_an_interrupted_scan_leaves_nothing(
    number: str, cache: Path, tmp_path: Path
) -> None:
    root = fill(tmp_path / "data", {f"a/{i}": JPEG for i in range(400)})
    # to its end it would take a quarter of a minute
    with start(root, cache, 0.1, few=10) as process:
        assert process.stderr
        begin(process)
        if number == "SIGINT":
            os.killpg(
                process.pid, signal.SIGINT
            )  # as a terminal does: to the workers too
        else:
            process.kill()  # they are left alone, and must notice
        assert process.wait() == -getattr(signal, number)
        said = process.stderr.read()  # ends when the last worker has
        assert said.count("Traceback") == (number == "SIGINT")
    assert len(list(cache.rglob("tmp-*"))) == (number == "SIGKILL")
    assert len(open_folder(root, cache=cache)) == 400
    assert not list(cache.rglob("tmp-*"))
