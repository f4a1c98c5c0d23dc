"""Samples that could not be decoded: each is named once, and too many of them end the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as functional

from saturate.contracts import Batch, Reporter, UserError, counted


def never_blank(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Pass batches on; one of which nothing could be decoded shows a sample of the next one instead of zeros.

    Where none follows it is a sample of the epoch's first batch. Loaders see to all other batches.
    """
    sample: torch.Tensor | None = None
    blank: list[Batch] = []
    for batch in batches:
        shown = batch.shows_sample
        if not shown.any():
            # in memory of its own: the loader writes over a batch once it is asked for the next one
            blank.append(replace(batch, images=batch.images.clone()))
            continue
        if sample is None or blank:
            place = int(shown.argmax())
            sample = batch.images[place : place + 1].clone()
        yield from _showing(blank, sample)
        blank = []
        yield batch
    yield from blank if sample is None else _showing(blank, sample)


def _showing(batches: list[Batch], sample: torch.Tensor) -> Iterator[Batch]:
    """Yield batches of which every row shows `sample`, an image [1, 3, H, W] or a clip, at their size."""
    for batch in batches:
        sized = functional.interpolate(sample, batch.images.shape[2:])
        batch.images.copy_(sized.expand_as(batch.images))
        yield batch


@dataclass(kw_only=True)
class Failures:
    """The samples of one split that some rank could not decode."""

    split: str
    samples: int  # how many the split has
    name_of: Callable[[int], str]  # of a sample's id
    report: Reporter
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
