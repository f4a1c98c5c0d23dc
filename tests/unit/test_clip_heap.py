"""What is read of a video leaves nothing on C's heap: too little to see from outside a process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dataset.videos.packets import read as scan
from loaders import Undecodable
from loaders.videos._packets import Packets
from tests.unit.clip_kinds import Made, reader

WARM, CLIPS = 20, 50
LEAST = 32
"""Bytes that a leak keeps of a clip: no allocation takes less."""
FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def in_use() -> int:
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("needs glibc 2.33 or later")
    mallinfo2.restype = Mallinfo
    gc.collect()
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def keeps_nothing(do: Callable[[], Any]) -> bool:
    """Whether it gives all bytes back in one of six rounds: other threads allocate too."""
    for _ in range(WARM):
        do()
    gc.collect()
    gc.freeze()  # what is imported takes a third of a second to look through each time
    try:
        return _keeps_nothing(do)
    finally:
        gc.unfreeze()


def _keeps_nothing(do: Callable[[], Any]) -> bool:
    for _ in range(6):
        before = in_use()
        for _ in range(CLIPS):
            do()
        if in_use() - before < LEAST * CLIPS:
            return True
    return False


@pytest.mark.parametrize("name", ["h264.mp4", "mpeg4-packed.avi"])
@pytest.mark.parametrize("what", ["pyav", "decord", "packets", "scan"])
def test_a_clip_keeps_nothing(what: str, name: str, made: Made) -> None:
    """The rest of the file is not read. A refused file keeps nothing either."""
    sample = made.names.index(name)
    path, frames = made.videos.path(sample), [1, 2, 3]
    if what == "scan":
        assert keeps_nothing(lambda: scan(path))
        return
    videos = made.videos
    read = Packets(videos) if what == "packets" else reader(what, videos)

    def clip() -> None:
        with suppress(Undecodable):
            list(read(sample, path, frames))

    assert keeps_nothing(clip)
