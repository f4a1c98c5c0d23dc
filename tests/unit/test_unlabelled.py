"""Files for --predict: each that lies in a folder has a place, also one that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

from dataset.unlabelled import open_unlabelled
from settings.data import Data
from tests.unit.folders import JPEG, fill


def test_what_is_no_file_has_a_place_and_a_reason(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    fill(folder, {"a.jpg": JPEG, "sub/b.jpg": JPEG, "@eaDir/c.jpg": JPEG})
    os.mkfifo(folder / "pipe.jpg")
    (folder / "sub" / "back").symlink_to(folder)
    found = open_unlabelled(
        folder, Data(manifest_dir=tmp_path / "cache"), content="images"
    )
    names = ["a.jpg", "pipe.jpg", "sub/b.jpg", "sub/back"]
    assert [os.path.relpath(name, folder) for name in found.names] == names
    assert found.samples.tolist() == [0, -1, 1, -1]
    assert found.errors == {1: "no regular file", 3: "link to a folder that it lies in"}
