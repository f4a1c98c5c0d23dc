"""Image folders for the tests of the scan: how to make one, and what was found in it. conftest.py offers the
fixtures.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dataset.images.columns import Images
from dataset.scan.manifest import Manifest
from tests.unit.test_headers import FILES

JPEG, PNG = FILES["jpeg grey"], FILES["png rgb"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of two images."""
    return fill(
        tmp_path / "train", {"ant/0.jpg": JPEG, "ant/1.jpg": PNG, "bee/0.jpg": JPEG, "bee/1.jpg": JPEG}
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what would have been brought to the disk."""
    names: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: names.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
    )
    return names


def fill(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below root; a name may hold any byte, as \\udcXX."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    """Return relative path -> bytes, of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(found: Manifest) -> list[str]:
    """Relative paths of all samples."""
    return [os.fsdecode(found.path(i))[len(str(found.root)) + 1 :] for i in range(len(found))]


def reasons(found: Manifest) -> dict[str, str]:
    """rejected.txt: relative path -> reason."""
    lines = (found.folder / "rejected.txt").read_text().splitlines()
    assert len(lines) == found.rejected
    return {path[len(str(found.root)) + 1 :]: why for path, why in (line.split("\t") for line in lines)}


def scanned(call: Any) -> tuple[Images, bool]:
    """What call(progress) gives, and whether it read headers."""
    said: list[str] = []
    found = call(lambda done, total, what: said.append(what))
    return found, "reading headers" in said
