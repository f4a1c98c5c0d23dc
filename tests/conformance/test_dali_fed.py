"""dali-fed's workers hand over the files byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from contracts import Array, Rows
from loaders._workers import PART, Workers
from loaders.images.dali_fed import Reading
from plan.bundles import some
from tests.conformance.scenes import Scene


def handed_over(slot: Array, rows: Rows, result: Any) -> list[bytes]:
    begins, failed, spilled = result
    assert failed == ()
    return [
        spilled.get(i, slot[begins[i] : begins[i + 1]].tobytes())
        for i in range(len(rows))
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("batch_size", "part_bytes"),
    [(3, 1 << 16), (3, 4096), (PART + 7, 1 << 18), (PART + 7, 4096)],
)
def test_bytes_through_worker_processes(
    small: Scene, workers: int, batch_size: int, part_bytes: int
) -> None:
    """Slots are written again and again, batches have several parts, and files do not fit."""
    feed = small.feed(batch_size=batch_size, training=False)
    pool = Workers(
        lambda: Reading(feed),
        workers=workers,
        batch_size=batch_size,
        part_bytes=lambda _: part_bytes,
    )
    try:
        for epoch in range(8):
            rows = feed.plan.rows(epoch, 0)
            for (slot, its_rows, results), expected in zip(
                pool.run(rows), rows, strict=True
            ):
                assert its_rows.ids.tolist() == expected.ids.tolist()
                found: list[bytes] = []
                for part, result in enumerate(results):
                    room = slot[part * pool.part_bytes : (part + 1) * pool.part_bytes]
                    found += handed_over(
                        room,
                        some(its_rows, slice(part * PART, (part + 1) * PART)),
                        result,
                    )
                for i, content in enumerate(found):
                    expected_bytes = (
                        small.bytes_of[its_rows.ids[i]] if its_rows.valid[i] else b""
                    )
                    assert content == expected_bytes
    finally:
        pool.close()
