"""The scan of a folder as its users meet it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.dataset.images import scan
from saturate.dataset.images.columns import FORMATS, Images, slow_to_decode
from saturate.dataset.images.synthetic import SyntheticImages
from saturate.dataset.scan import manifest
from saturate.dataset.stores.folder import Folder, open_folder
from tests.unit.folders import JPEG, fill, names, reasons, scanned
from tests.unit.test_headers import FILES, encoded


def test_any_name_a_file_can_have(cache: Path, tmp_path: Path) -> None:
    """In the order of the paths' bytes; classes are those of ImageFolder."""
    odd = ["n/two\nlines.jpg", "n/caf\udce9.jpg", "n/no ending", "\udcff/x.jpg"]
    odd += ["n/日本.jpg", "n/back\\slash", "a/z", "a-b/x", "a/b.c", "a/b/d", "a/b/c/d"]
    odd += ["a/b-/x", "B/x", "a/b+"]
    root = fill(tmp_path / "odd\udcfe", dict.fromkeys(odd, JPEG))
    found = open_folder(root, cache=cache)
    assert names(found) == sorted(odd, key=os.fsencode)
    assert found.classes == ("B", "a", "a-b", "n", "\udcff")
    classes = [found.classes[label] for label in found.label]
    assert classes == [name.partition("/")[0] for name in names(found)]
    assert [Folder(found).read(i) for i in range(len(odd))] == [JPEG] * len(odd)
    about = {*zip(found.format, found.depth, found.components, strict=True)}
    assert about == {(FORMATS.index("jpeg"), 8, 1)}
    assert (found.rejected, found.root) == (0, root)
    assert not scanned(lambda say: open_folder(root, cache=cache, progress=say))[1]


def test_what_is_left_out_is_named(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"empty": b"", "page": b"<html>", "cut": JPEG[:30], "locked": JPEG}
    fill(root, {f"ant/{name}.jpg": content for name, content in bad.items()})
    fill(root, {"cat/notes\n.txt": b"none", "stray.jpg": JPEG, ".git/x": b"x"})
    fill(root, {"app/notes": b"none"})
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
    assert found.label.tolist() == [0, 0, 1, 1], "classes move up"
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
        "app/notes": "no known image format (starts with 6e 6f 6e 65)",
        "app": "class without an image",
        "stray.jpg": "lies in no class folder",
    }


def test_links_are_followed_and_loops_are_not(
    root: Path, cache: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "elsewhere", {"c/0.jpg": JPEG, "one.jpg": JPEG})
    (root / "ant/deep").mkdir()
    links: dict[str, str | Path] = {
        "cat": tmp_path / "elsewhere/c",
        "ant/one.jpg": tmp_path / "elsewhere/one.jpg",
        "ant/deep/up": "..",
        "ant/top": root,
        "ant/other": root / "bee",
        "bee/other": root / "ant",
    }
    for name, leads_to in links.items():
        (root / name).symlink_to(leads_to)
    found = open_folder(root, cache=cache)
    kept = [f"ant/{name}.jpg" for name in ("0", "1", "one", "other/0", "other/1")]
    others = [name for name in names(found) if not name.startswith("bee/")]
    assert others == [*kept, "cat/0.jpg"]
    loops = {f"ant/{name}" for name in ("deep/up", "top", "other/other")}
    loops |= {f"bee/other/{name}" for name in ("deep/up", "top", "other")}
    assert reasons(found) == dict.fromkeys(loops, "link to a folder that it lies in")


def test_processes_find_what_threads_find(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = list(FILES.values())
    files = {
        f"{i % 7}/{i:03}": kinds[i % len(kinds)] if i % 11 else b"no image"
        for i in range(300)
    }
    root = fill(tmp_path / "data", files)
    alone = open_folder(root, cache=cache)
    for name, value in (("FEW", 10), ("CHUNK", 16)):
        monkeypatch.setattr(scan, name, value)
    monkeypatch.setattr(manifest, "PIECE", 13)
    said: list[tuple[int, int, str]] = []
    shared = open_folder(
        root,
        cache=cache,
        rescan=True,
        workers=2,
        progress=lambda *what: said.append(what),
    )
    for name in Images.COLUMNS:
        assert np.array_equal(getattr(alone, name), getattr(shared, name)), name
    assert reasons(alone) == reasons(shared)
    assert (len(shared), shared.fingerprint) == (272, alone.fingerprint)
    assert said[-1] == (300, 300, "reading headers")


def test_links_that_lead_to_links_end(root: Path, cache: Path, tmp_path: Path) -> None:
    """Each of twenty folders has two links to the next one: a million ways lead to the last."""
    for level in range(20):
        fill(tmp_path / "far", {f"{level}/{level}.jpg": JPEG})
        for way in "ab" if level else "":
            (tmp_path / f"far/{level - 1}/{way}").symlink_to(tmp_path / f"far/{level}")
    (root / "cat").symlink_to(tmp_path / "far/0")
    found = open_folder(root, cache=cache)
    assert len(found) == 4 + 20
    again = "link to a folder that another link has led to"
    assert list(reasons(found).values()) == [again] * 19


def test_what_is_slow_to_decode(cache: Path, tmp_path: Path) -> None:
    """Four of ten images are progressive, and one has as many pixels as 32 of the others."""
    contents = [encoded(size=(20, 10), progressive=i < 4) for i in range(9)]
    contents.append(encoded(size=(80, 80)))
    files = {f"a/{i}.jpg": content for i, content in enumerate(contents)}
    columns = open_folder(fill(tmp_path / "set", files), cache=cache)
    found = slow_to_decode(columns, 224)
    assert found["progressive"] == pytest.approx(0.4)
    large = {"files": 0.1, "pixels": 32 / 41, "above_median": 31 / 41}
    assert found["large"] == pytest.approx(large)
    assert found["above_side"] == 0
    assert slow_to_decode(SyntheticImages(5), 224) == {}


def test_what_photographs_have_beyond_640_pixels(cache: Path, tmp_path: Path) -> None:
    """One has four times as long sides, so that a sixteenth of it would be left; the other is not larger."""
    contents = {"a/1.jpg": (2560, 1280), "a/2.jpg": (320, 640)}
    files = {name: encoded(size=size) for name, size in contents.items()}
    columns = open_folder(fill(tmp_path / "set", files), cache=cache)
    photo, other = 2560 * 1280, 320 * 640
    beyond = pytest.approx(photo * 15 / 16 / (photo + other))
    assert slow_to_decode(columns, 640)["above_side"] == beyond
    # a network that sees more than copies of 640 pixels have
    assert slow_to_decode(columns, 800)["above_side"] == 0
