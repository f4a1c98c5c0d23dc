"""Storage that fails while loaders read: tried again, then one line; its samples are never left out."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.dataset.stores.folder import Folder
from saturate.system import storage
from tests.conformance.looking import passed
from tests.conformance.scenes import Backend, Scene

FAILS_TO_READ = b"/proc/self/mem"
"""A regular file by its kind, whose first byte cannot be read: EIO."""


class Failing(Folder):
    """Storage that fails of one sample, so many times: bytes that are asked for, or a file that is opened."""

    def __init__(self, manifest: Any, sample: int, times: int) -> None:
        super().__init__(manifest)
        self.sample = sample
        self.left = np.frombuffer(mmap.mmap(-1, 8), np.int64)  # of all processes
        self.left[0] = times

    def fails(self, sample: int) -> bool:
        if sample != self.sample or not self.left[0]:
            return False
        self.left[0] -= 1
        return True

    def read(self, sample: int) -> bytes:
        if self.fails(sample):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(sample)

    def path(self, sample: int) -> bytes:
        return FAILS_TO_READ if self.fails(sample) else super().path(sample)

    def paths(self, samples: Any) -> Any:
        found = super().paths(samples).copy()
        for row in np.flatnonzero(samples == self.sample):
            if self.fails(self.sample):
                found[row] = np.frombuffer(
                    FAILS_TO_READ.ljust(found.shape[1], b"\0"), np.uint8
                )
        return found

    def check(self, sample: int, size: int) -> None:
        if sample != self.sample:
            super().check(sample, size)

    def name(self, sample: int) -> str:
        return os.fsdecode(super().path(sample))


@pytest.mark.parametrize("times", [2, 10**6], ids=["for-a-while", "for-good"])
def test_storage_that_fails(
    lone_backend: Backend, quick: Scene, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(storage, "PAUSES_S", (0.0, 0.0, 0.0))
    feed = quick.feed(lone_backend.device, batch_size=6, image_size=32, training=False)
    feed = replace(feed, source=Failing(feed.columns, 7, times))
    if times == 2:
        found = passed(lone_backend.open, feed)
        assert not found.failed and set(found.ids[found.valid].tolist()) == set(
            range(quick.samples)
        )
        return
    with pytest.raises(
        UserError, match=r"I/O error: .* cannot be read: Input/output error; tried"
    ) as caught:
        passed(lone_backend.open, feed)
    assert feed.source.name(7) in str(caught.value) and "\n" not in str(caught.value)
