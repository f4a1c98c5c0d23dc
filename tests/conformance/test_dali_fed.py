"""dali-fed's workers hand over the files byte for byte, also those that do not fit into their slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch

from saturate.contracts import Batch
from saturate.loaders import open_loader
from saturate.loaders._workers import PART
from saturate.loaders.images import dali_fed
from tests.conformance.looking import passed
from tests.conformance.scenes import Scene


def test_files_that_do_not_fit(small: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has several parts, of which the second one is handed over through a pipe in part."""
    pytest.importorskip("nvidia.dali")
    feed = small.feed(batch_size=PART + 7, image_size=32, training=False, workers=2)
    expected = passed(lambda its: open_loader("dali-fed", its), feed)
    monkeypatch.setattr(dali_fed, "_room", lambda feed, rows: 4096)
    found = passed(lambda its: open_loader("dali-fed", its), feed)
    assert found.ids.tolist() == expected.ids.tolist() and not found.failed
    np.testing.assert_array_equal(found.raw, expected.raw)


def test_what_was_read_is_decoded_again(small: Scene) -> None:
    """DALI alone makes the epoch's first two batches, in turns, and the next epoch is whole."""
    pytest.importorskip("nvidia.dali")

    def first(batches: Iterator[Batch], count: int) -> list[torch.Tensor]:
        return [batch.images.clone() for batch in islice(batches, count)]

    with open_loader("dali-fed", small.feed(batch_size=3, image_size=32)) as loader:
        one, two, three = first(loader.batches(0, 0), 3)
        assert loader.decoded_again
        with closing(loader.decoded_again(0)) as again:
            found = first(again, 5)
        after = first(loader.batches(0, 0), 3)
    expected = [one, two, one, two, one]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(after, [one, two, three], rtol=0, atol=0)
