"""Samples that could not be decoded: each is named once, and too many of them end the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from contracts import UserError, counted


@dataclass(kw_only=True)
class Failures:
    """The samples of one split that some rank could not decode."""

    split: str
    samples: int  # how many the split has
    name_of: Callable[[int], str]  # of a sample's id
    report: Any  # report.reporter.Reporter
    ids: set[int] = field(default_factory=set)  # of the whole run, each once

    def check(self, failed: set[int]) -> None:
        """Name those of one epoch that are new. Raises UserError when the epoch has more than max(10, 1 % of
        the split), or nothing else.
        """
        new = failed - self.ids
        self.ids |= new
        if new:
            self.report.failed(self.split, self._names(new))
        limit = min(max(10, self.samples // 100), max(self.samples - 1, 0))
        if len(failed) > limit:
            named = ", ".join(self._names(failed)[:3])
            many = f"{counted(len(failed), 'sample')} of {self.split}"
            raise UserError(
                f"{many} cannot be decoded in this epoch (more than {limit}), such as {named}"
            )

    def _names(self, ids: set[int]) -> list[str]:
        return [self.name_of(sample) for sample in sorted(ids)]
