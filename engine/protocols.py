"""What the loop expects of those that measure and tell, as Protocols; report/ has them, and train.py hands
them over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from contracts import Batch, Counts, RateWindow


class Meter(Protocol):
    """Counts samples between synchronised points; see report/meter.py."""

    def add(self, samples: int) -> None:
        """Count this rank's valid samples of one step."""

    def due(self) -> bool:
        """Whether this rank's window has run long enough to be closed."""

    def resume(self, epoch: int) -> None:
        """Start the clock. All ranks call it together, as they do `pause` and `point`."""

    def pause(self) -> RateWindow | None:
        """Stop the clock; return the window if it was long enough to be closed."""

    def point(self) -> RateWindow | None:
        """Close the window, if it is long enough, and go on."""

    def begin_anew(self) -> None:
        """Have the rate be of what follows, where the work of a step changes. Call it while paused."""

    def flush(self) -> None:
        """Keep what was counted of a run that was shorter than a window."""

    def has_measured(self, seconds: float) -> bool:
        """Whether the windows after the warm-up add up to this many seconds."""


class Report(Protocol):
    """Everything that a run tells; see report/reporter.py. Every rank calls it, and rank 0 speaks."""

    def info(self, line: str) -> None:
        """Say a line."""

    def warn(self, line: str) -> None:
        """Say a line that asks for attention."""

    def epoch(
        self, epoch: int, epochs: int, samples: int, consumed: int
    ) -> AbstractContextManager[None]:
        """Show a bar inside, from `consumed` to `samples`, the samples that the epoch trains on."""

    def train(
        self,
        points: list[dict[str, float]],
        *,
        progress: Mapping[str, Any],
        skipped_steps: int,
        phases: dict[str, float],
        steps: list[dict[str, float]],
    ) -> None:
        """Tell the steps since the last call: `points` of LossLog.read(), `phases` and `steps` of Phases."""

    def window(self, window: RateWindow, *, step: int, mib_per_s: float) -> None:
        """Tell the rate of a window that ended with `step`, and the MiB/s that were read meanwhile."""

    def images(self, batch: Batch) -> None:
        """Show the images of a training batch."""

    def failed(self, split: str, names: Sequence[str]) -> None:
        """Tell which samples could not be decoded."""

    def validation(self, samples: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show a bar inside; its callback gets the samples of this rank that are done."""

    def validated(
        self,
        result: Mapping[str, Any],
        *,
        averaged: Mapping[str, Any] | None,
        files: Mapping[str, bytes],
        step: int,
        epoch: int | None,
        reader: str,
        counts: Counts | None,
    ) -> None:
        """Tell the figures of a validation after `step` and `epoch`, and what its loader was.

        `averaged`: the figures of the average of the weights, None without --ema. `files`: what it leaves.
        """

    def ceilings(
        self, *, compute: dict[str, Any], loader: dict[str, Any], step: int
    ) -> None:
        """Tell the ceilings of the step alone and of the loader alone."""

    def stopped_early(self, progress: Mapping[str, Any]) -> None:
        """Tell that --patience has ended the run before its time, as Progress stands now."""

    def above_ceiling(self) -> bool:
        """Whether the rate is higher than a ceiling can allow, so that they must be measured again."""
