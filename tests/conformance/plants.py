"""A loader that leaks, which the soak has to see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from contracts import Batch, Feed, StageSeconds


class Leaks:
    """A real loader around which each epoch keeps `mib` MiB, and a file where it is asked for."""

    def __init__(
        self, feed: Feed, inner: Any, mib: int = 1, *, files: bool = False
    ) -> None:
        self.inner, self.mib, self.leaks_files = inner(feed), mib, files
        self.kept: list[bytes] = []
        self.files: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __enter__(self) -> Leaks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def stage_seconds(self, *, anew: bool = False) -> StageSeconds:
        return self.inner.stage_seconds(anew=anew)

    def awaited(self) -> str:
        return ""

    def close(self) -> None:
        self.inner.close()
        for file in self.files:
            os.close(file)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        self.kept.append(os.urandom(self.mib << 20))
        if self.leaks_files:
            self.files.append(os.open(os.devnull, os.O_RDONLY))
        yield from self.inner.batches(epoch, first)
