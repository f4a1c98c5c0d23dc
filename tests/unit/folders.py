"""Image folders for the tests of the scan: how to make one, and what was found in it. conftest.py offers the
fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import Split, UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.scan.manifest import Manifest
from tests.unit.test_headers import FILES

JPEG, PNG = FILES["jpeg grey"], FILES["png rgb"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of two images."""
    return fill(
        tmp_path / "train",
        {"ant/0.jpg": JPEG, "ant/1.jpg": PNG, "bee/0.jpg": JPEG, "bee/1.jpg": JPEG},
    )


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


def refused(call: Callable[[], object]) -> str:
    """Return the one line of the user's mistake that a call raises."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def samples(split: Split) -> dict[str, tuple[str, bytes]]:
    """Return name -> class and bytes, of every sample."""
    columns = split.columns
    return {
        os.fsdecode(columns.entry(place)): (
            columns.classes[columns.label[place]],
            split.source.read(place),
        )
        for place in range(len(columns))
    }


def rejected(found: Manifest) -> list[str]:
    """Return the lines of rejected.txt."""
    lines = (found.folder / "rejected.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == found.rejected
    return lines


def left_out(split: Split) -> list[str]:
    """Return the lines of rejected.txt, with names below train/."""
    return [line.rpartition("/train/")[2] for line in rejected(split.columns)]


def contents(folder: Path) -> dict[str, bytes]:
    """Return relative path -> bytes, of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def names(found: Manifest) -> list[str]:
    """Relative paths of all samples."""
    return [
        os.fsdecode(found.path(i))[len(str(found.root)) + 1 :]
        for i in range(len(found))
    ]


def reasons(found: Manifest) -> dict[str, str]:
    """rejected.txt: relative path -> reason."""
    return {
        path[len(str(found.root)) + 1 :]: why
        for path, why in (line.split("\t") for line in rejected(found))
    }


def scanned(call: Any) -> tuple[Images, bool]:
    """What call(progress) gives, and whether it read headers."""
    said: list[str] = []
    found = call(lambda done, total, what: said.append(what))
    return found, "reading headers" in said
