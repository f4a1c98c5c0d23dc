"""Rows of an epoch that are drawn when they are asked for. Knows no plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from saturate.contracts import Rows


class Lazy(Sequence[Rows]):
    """A sequence of `count` micro-batches; `at(index)`, 0 to count - 1, makes one of them."""

    def __init__(self, count: int, at: Callable[[int], Rows]) -> None:
        self._count = count
        self._at = at

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Rows: ...

    @overload
    def __getitem__(self, index: slice) -> list[Rows]: ...

    def __getitem__(self, index: int | slice) -> Rows | list[Rows]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(f"micro-batch {index} of {self._count}")
        return self._at(index)
