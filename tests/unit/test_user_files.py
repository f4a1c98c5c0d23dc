"""A pipe, or a device, where a file is expected: one line, and nothing that waits for a writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import UserError
from saturate.dataset.coco.scan import open_coco
from saturate.engine import checkpoint
from saturate.models import Unusable
from saturate.settings.preset import read_preset
from saturate.system import storage, user_files


def _coco(path: Path) -> object:
    return open_coco(
        path.parents[1],
        "train",
        keypoints=False,
        cache=path.parents[2] / "cache",
    )


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "preset": ("run.yaml", read_preset),
    "coco": ("coco/annotations/instances_train2017.json", _coco),
    "checkpoint": ("last.pt", checkpoint.read),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_pipe_in_place_of_a_file_is_said(kind: str, tmp_path: Path) -> None:
    name, read = READERS[kind]
    pipe = tmp_path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    # a reader that waits for a writer reads on without an end, and times out
    held = os.open(pipe, os.O_RDWR)
    os.write(held, b"{}")
    try:
        with pytest.raises((UserError, Unusable), match="a device or a pipe") as said:
            read(pipe)
    finally:
        os.close(held)
    assert name.rpartition("/")[2] in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "/",
            "/etc/passwd",
            "//etc/passwd",
            "a//b",
            "a/",
            ".",
            "..",
            "a/../b",
            "a/./b",
        ),
        *(".git/hooks/x", "a/.b", "a\\b", "..\\b", "C:b", "c:/b", "a\0b"),
    ],
)
def test_a_strangers_name_that_could_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is absolute|begins with a dot|a backslash"):
        user_files.below(tmp_path, name)


def test_a_strangers_name_lies_below_the_folder(tmp_path: Path) -> None:
    """Also where the folder itself is a link; a link in it may lead to a folder of it, and to no other."""
    root = tmp_path / "root"
    (root / "own").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(root)
    (root / "inside").symlink_to(root / "own")
    (root / "outside").symlink_to(tmp_path / "home")
    for name in ("a", "a b/c:d/e", "inside/x", "new/folder/\xe9"):
        for folder in (root, tmp_path / "link"):
            path = user_files.below(folder, name)
            assert path == folder / name
            assert os.path.commonpath([os.path.realpath(path), root]) == str(root)
    with pytest.raises(ValueError, match="leads out of the folder by a link"):
        user_files.below(root, "outside/x")


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    new = tmp_path / ".last.pt.new"
    new.symlink_to(victim)
    with pytest.raises(FileExistsError):
        user_files.create(new)
    storage.replace(tmp_path / "last.pt", new, lambda file: file.write(b"theirs"))
    assert victim.read_bytes() == b"mine" and not (tmp_path / "last.pt").is_symlink()
    assert (tmp_path / "last.pt").read_bytes() == b"theirs" and not new.exists()


def test_a_storage_that_gives_a_few_bytes_at_a_time_gives_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photo"
    path.write_bytes(bytes(range(100)))
    read = os.read
    monkeypatch.setattr(user_files.os, "read", lambda file, size: read(file, min(size, 7)))  # fmt: skip
    assert user_files.read_bytes(path, 101) == bytes(range(100))
    assert user_files.read_bytes(path, 50) == bytes(range(50))
