"""Samples that cannot be decoded: some are named, too many end the run."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from saturate.contracts import UserError
from saturate.engine.failures import Failures


@pytest.mark.parametrize(
    ("samples", "most"),
    [(8, 7), (1, 0), (50, 10), (5000, 50)],
    ids=["few", "one", "ten", "a hundredth"],
)
def test_how_many_end_a_run(samples: int, most: int) -> None:
    """More than max(10, 1 %), or all: an epoch without a sample has no figure."""
    report = MagicMock()
    failures = Failures(
        split="val",
        samples=samples,
        name_of=lambda sample: f"{sample}.jpg",
        report=report,
    )
    failures.check(set(range(most)))
    with pytest.raises(
        UserError, match=rf"{most + 1} samples? of val cannot be decoded .*0\.jpg"
    ):
        failures.check(set(range(most + 1)))


def test_a_split_without_a_sample_has_none_that_failed() -> None:
    Failures(split="val", samples=0, name_of=str, report=MagicMock()).check(set())
