"""A pipe, or a device, where a file is expected: one line, and nothing that waits for a writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts import UserError
from dataset.coco.scan import open_coco
from engine import checkpoint
from models import Unusable
from settings.preset import read_preset


def _coco(path: Path) -> object:
    return open_coco(
        path.parents[1],
        "train",
        keypoints=False,
        images=False,
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
