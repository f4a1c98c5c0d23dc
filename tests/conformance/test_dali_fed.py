"""dali-fed's workers hand over the files byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from contracts import Array, Feed, Rows
from loaders._workers import PART, Workers, part_of
from loaders.images.dali_fed import Reading
from tests.conformance import pictures
from tests.conformance.scenes import Scene


def handed_over(slot: Array, rows: Rows, result: Any) -> list[bytes]:
    """The bytes of each row, from the slot or spilled."""
    begins, failed, spilled = result
    assert failed == ()
    return [spilled.get(i, slot[begins[i] : begins[i + 1]].tobytes()) for i in range(len(rows))]


def assert_the_files(found: Sequence[bytes], rows: Rows, scene: Scene) -> None:
    for i in range(len(rows)):
        expected = scene.path(int(rows.ids[i])).read_bytes() if rows.valid[i] else b""
        assert found[i] == expected


@pytest.mark.parametrize("source", ["small", "photographs", "samples"])
@pytest.mark.parametrize("room", [1.0, 0.5, 0.0], ids=["enough", "half", "nothing"])
def test_bytes_are_the_files(source: str, room: float, request: pytest.FixtureRequest) -> None:
    scene: Scene = request.getfixturevalue(source)
    feed: Feed = scene.feed(batch_size=8, training=False)
    work, spilled = Reading(feed), 0
    for rows in feed.plan.rows(0, 0):
        total = sum(len(scene.bytes_of[sample]) for sample in rows.ids[rows.valid])
        slot = np.full(int(total * room), 255, np.uint8)
        result = work(rows, slot)
        spilled += len(result[2])
        assert_the_files(handed_over(slot, rows, result), rows, scene)
    assert (spilled == 0) == (room == 1.0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("batch_size", "part_bytes"), [(3, 1 << 16), (3, 4096), (PART + 7, 1 << 18), (PART + 7, 4096)]
)
def test_bytes_through_worker_processes(small: Scene, workers: int, batch_size: int, part_bytes: int) -> None:
    """Many more batches than slots, each written again and again; batches of several parts; files that do not
    fit.
    """
    feed = small.feed(batch_size=batch_size)
    pool = Workers(
        lambda: Reading(feed), workers=workers, batch_size=batch_size, part_bytes=lambda _: part_bytes
    )
    try:
        for epoch in range(8):
            rows = feed.plan.rows(epoch, 0)
            count = 0
            for (slot, its_rows, results), expected in zip(pool.run(rows), rows, strict=True):
                assert its_rows.ids.tolist() == expected.ids.tolist()
                found: list[bytes] = []
                for part, result in enumerate(results):
                    room = slot[part * pool.part_bytes : (part + 1) * pool.part_bytes]
                    found += handed_over(room, part_of(its_rows, part * PART, (part + 1) * PART), result)
                assert_the_files(found, its_rows, small)
                count += 1
            assert count == small.samples // batch_size
    finally:
        pool.close()


def test_what_only_pil_decodes_is_handed_over_as_its_pixels(odd: Scene) -> None:
    """Lossless, and decodable by DALI; the other files are untouched."""
    feed = odd.feed(batch_size=odd.samples, training=False)
    rows = feed.plan.rows(0, 0)[0]
    slot = np.zeros(8 << 20, np.uint8)
    found = handed_over(slot, rows, Reading(feed)(rows, slot))
    same = 0
    for sample, content in zip(rows.ids.tolist(), found, strict=True):
        same += content == odd.bytes_of[sample]
        np.testing.assert_array_equal(
            pictures.pil(content), pictures.pil(odd.bytes_of[sample]), err_msg=odd.names[sample]
        )
    assert 0 < same < odd.samples
