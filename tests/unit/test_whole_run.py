"""What is told of a run that was made in several parts: the whole of it, and nothing that was not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from saturate.contracts import Batch
from saturate.engine.checkpoint import Progress
from tests.unit.test_loop import BATCH, SAMPLES, STEPS, Toy


def damaged(toy: Toy, failed: list[int]) -> None:
    """Let these samples be lost in every epoch."""
    whole = toy.batches

    def batches(epoch: int, consumed: int) -> Iterator[Batch]:
        for batch in whole(epoch, consumed):
            batch.failed = tuple(sample for sample in failed if sample in batch.ids)
            yield batch

    toy.batches = batches  # type: ignore[method-assign]


def test_samples_are_those_of_the_whole_run(tmp_path: Path) -> None:
    first = Toy(tmp_path, 2, 0.1, 0.2)
    damaged(first, [1, 7])
    first.training.fit()
    assert not first.training.measure_ceilings.called, "--ceilings false"  # type: ignore[attr-defined]
    at = first.training.progress
    assert (at.samples, at.lost, at.failed) == (2 * SAMPLES, 4, (1, 7))
    later = Toy(tmp_path, 3, 0.3)
    resumed = Progress(**{**asdict(at), "epoch": 2, "consumed": BATCH})
    later.training.progress = resumed
    later.training.__post_init__()
    damaged(later, [3])
    later.training.fit()
    told = later.report.train.call_args.kwargs["progress"]
    assert told["consumed"] == SAMPLES
    assert (resumed.samples, later.training.progress.samples) == (
        2 * SAMPLES + (STEPS - 1) * BATCH,
    ) * 2
    assert (later.training.progress.lost, later.training.failures.ids) == (5, {1, 3, 7})
