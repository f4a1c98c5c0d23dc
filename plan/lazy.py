"""Rows of an epoch that are drawn when they are asked for. Knows no plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from contracts import Rows


class Lazy(Sequence[Rows]):
    """A sequence whose `_at(index)` makes the rows of an index, 0 to len - 1."""

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rows]: ...
    def __getitem__(self, index: int | slice) -> Rows | list[Rows]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"micro-batch {index} of {len(self)}")
        return self._at(index)

    @abstractmethod
    def _at(self, index: int) -> Rows:
        """Return the rows of an index that there is."""
