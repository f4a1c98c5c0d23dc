"""A pipe, or a device, where a file is expected: one line, and nothing that waits for a writer."""

from __future__ import annotations

import ast
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts import UserError
from dataset.coco.scan import open_coco
from dataset.scan.lists import class_names
from dataset.scan.manifest import Rejects
from dataset.stores import lmdb, source_named
from dataset.videos.file_list import read_list
from engine import checkpoint_format
from models import Unusable, _weights
from settings.preset import read_preset
from tasks._results import Results
from tests.unit.test_house import ROOT, python

ROOMS = ("dataset/", "models/", "tasks/", "settings/preset.py", "system/torch_files.py")
OWN = {
    "dataset/scan/cache.py": "the cache of a scan",
    "dataset/scan/manifest.py": "the cache of a scan",
    "dataset/coco/columns.py": "the cache of a scan",
    "dataset/stores/lmdb.py": "the system's lists of locks",
    "dataset/scan/packed_columns.py": "columns that the program has written",
    "dataset/unlabelled.py": "the cache of a scan",
    "models/classification.py": "a file of the program",
}
"""Files that read with open() what no user has named."""


def _coco(path: Path) -> object:
    return open_coco(
        path.parents[1],
        "train",
        keypoints=False,
        images=False,
        cache=path.parents[2] / "cache",
    )


def _listed(path: Path) -> object:
    listed = path.parent / "train.txt"
    listed.write_text("a/b.avi 1\n", encoding="utf-8")
    return read_list(listed, None, Rejects(io.StringIO()))


def _tar(path: Path) -> object:
    return source_named("tar").open(
        path.parents[1], "train", cache=path.parents[2] / "cache"
    )


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "preset": ("run.yaml", read_preset),
    "score": ("val_boxes.json", Results.read),
    "coco": ("coco/annotations/instances_train2017.json", _coco),
    "tar": ("data/train/a.tar", _tar),
    "lmdb": (
        "train.lmdb",
        lambda path: lmdb.open(path.parent, "train", cache=path.parent / "cache"),
    ),
    "classInd": ("classInd.txt", _listed),
    "classes": ("classes.txt", lambda path: class_names(path.parent)),
    "list": ("val.txt", lambda path: read_list(path, None, Rejects(io.StringIO()))),
    "weights": ("w.pth", lambda path: _weights.read_file(path, f"--weights {path}")),
    "checkpoint": ("last.pt", checkpoint_format.read),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_pipe_in_place_of_a_file_is_said(kind: str, tmp_path: Path) -> None:
    name, read = READERS[kind]
    pipe = tmp_path / name
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    held = os.open(
        pipe, os.O_RDWR
    )  # a reader that waits for a writer reads on without an end, and times out
    os.write(held, b"{}")
    try:
        with pytest.raises((UserError, Unusable), match="a device or a pipe") as said:
            read(pipe)
    finally:
        os.close(held)
    assert name.rpartition("/")[2] in str(said.value)
    assert "\n" not in str(said.value)


def opens(source: str) -> Iterator[int]:
    """The lines of calls that read a file without user_files: open(a), a.open("rb"), a.read_text(), ..."""
    tree = ast.parse(source)
    own = any(
        isinstance(node, ast.FunctionDef) and node.name == "open" for node in tree.body
    )
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute)
        called = (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else getattr(node.func, "id", "")
        )
        modes = [one.value for one in node.args if isinstance(one, ast.Constant)]
        reads = (
            modes == ["rb"] if method else not (own or {"w", "wb", "ab"} & set(modes))
        )
        waits = "O_RDONLY" in ast.unparse(node) and "O_NONBLOCK" not in ast.unparse(
            node
        )
        reads = reads or (method and waits)
        if (method and called in ("read_text", "read_bytes")) or (
            called == "open" and reads
        ):
            yield node.lineno


def test_files_of_users_are_opened_at_one_place() -> None:
    mine = [
        path
        for path in python()
        if str(path).startswith(ROOMS) and str(path) not in OWN
    ]
    found = [
        f"{path}:{line}"
        for path in mine
        for line in opens((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert found == []
    assert list(
        opens(
            'open(a)\nb.open("rb")\nc.read_text()\nos.open(f, O_RDONLY)\nread_text(e)'
        )
    ) == [
        1,
        2,
        3,
        4,
    ]
