"""Files for --predict: each that lies in a folder has a place, also one that cannot be read."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from saturate.dataset.unlabelled import open_unlabelled
from saturate.settings.data import Data
from tests.unit.folders import JPEG, fill
from tests.unit.video_files import make


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


def test_a_list_whose_names_have_several_blanks(tmp_path: Path) -> None:
    """The other file is there as well."""
    fill(tmp_path, {"two  blanks.jpg": JPEG, "two blanks.jpg": JPEG, "a.jpg": JPEG})
    (tmp_path / "list.txt").write_text("two  blanks.jpg\na.jpg 1\n  a.jpg\n")
    found = open_unlabelled(
        tmp_path / "list.txt", Data(manifest_dir=tmp_path / "cache"), content="images"
    )
    assert found.names == ("two  blanks.jpg", "a.jpg", "a.jpg")
    assert not found.errors


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["a, b.jpg", "a,b.jpg"], ["a, b.jpg", "a,b.jpg"]),
        # of CSV, with and without a label
        (['"a,b.jpg"', '"a, b.jpg",3', "c.jpg,3"], ["a,b.jpg", "a, b.jpg", "c.jpg"]),
        (["path,label", "c.jpg,a", "a,b.jpg"], ["c.jpg", "a,b.jpg"]),
        (['"two', 'lines.jpg",3', "a,b.jpg"], ["two\nlines.jpg", "a,b.jpg"]),
        # as a Mac writes the letters of a file's name, and not of the list
        (["\xe9.jpg 3"], ["e\u0301.jpg"]),
    ],
)
def test_a_list_of_odd_names(
    lines: list[str], names: list[str], tmp_path: Path
) -> None:
    files = ["a,b.jpg", "a, b.jpg", "a\tb.jpg", "c.jpg", "two\nlines.jpg"]
    files += ["e\u0301.jpg"]
    fill(tmp_path, dict.fromkeys(files, JPEG))
    (tmp_path / "list.txt").write_text("\n".join(lines))
    found = open_unlabelled(
        tmp_path / "list.txt", Data(manifest_dir=tmp_path / "cache"), content="images"
    )
    assert found.names == tuple(names)
    assert not found.errors and -1 not in found.samples


def test_why_a_video_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    fill(folder, {"empty.mp4": b"", "text.mp4": b"no video, " * 100})
    make(folder / "whole.mp4", frames=6, size=(32, 32))
    found = open_unlabelled(
        folder, Data(manifest_dir=tmp_path / "cache"), content="videos"
    )
    assert found.errors[0] == "empty file"
    assert "Invalid data" in found.errors[1]


def test_files_are_read_as_they_are_now(tmp_path: Path) -> None:
    """One that was written over in place, with its size and its date, and one that was no image before."""
    file, mended = tmp_path / "new/latest.bmp", tmp_path / "new/mended.bmp"
    file.parent.mkdir()
    mended.write_bytes(b"no image")
    for width, height in ((96, 64), (64, 96), (40, 30)):
        before = file.stat() if file.exists() else None
        content = io.BytesIO()
        Image.new("RGB", (width, height)).save(content, "BMP")
        file.write_bytes(content.getvalue())
        if before:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            mended.write_bytes(content.getvalue())
        found = open_unlabelled(
            tmp_path / "new", Data(manifest_dir=tmp_path / "cache"), content="images"
        )
        columns = found.split.columns
        sizes = [*zip(columns.width.tolist(), columns.height.tolist(), strict=True)]
        assert sizes == [(width, height)] * (2 if before else 1)
        assert found.split.source.read(0) == content.getvalue()
        assert [*found.errors] == ([] if before else [1])
