"""dali-fed's workers hand over the files byte for byte, also those that do not fit into their slot."""

from __future__ import annotations

import numpy as np
import pytest

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
