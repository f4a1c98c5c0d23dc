"""What worker processes need of the machine, and how a batch lies in their memory."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from saturate.contracts import Rows, UserError
from saturate.loaders._workers import Shared, Work, Workers
from saturate.system.resources import memory_bytes


def test_more_slots_than_there_is_memory_are_refused() -> None:
    gib = memory_bytes() // 2**30
    with pytest.raises(
        UserError,
        match=rf"^--batch-size 9 takes {4 * gib + 4:,} GiB of memory for 4 slots, "
        rf"and there are ({gib}|{gib + 1}) GiB",
    ):
        Shared(4, (gib + 1) << 30, "--batch-size 9", pinned=False)
    few = Shared(2, 1, "--batch-size 1", pinned=False)
    assert few.slots.shape == (2, mmap.PAGESIZE)
    few.close()


def rows_of(
    sizes: list[tuple[int, int]], canvas: tuple[int, int] | None = None
) -> Rows:
    count = len(sizes)
    return Rows(
        ids=np.arange(count),
        regions=np.zeros((count, 4), np.int64),
        windows=np.zeros((count, 4)),
        sizes=np.array(sizes, np.int64),
        turns=np.zeros(count, np.uint8),
        valid=np.ones(count, bool),
        canvas=canvas,
    )


class Numbers(Work):
    """saturate.loaders._workers.Work: every byte of a row is its id; tells the canvas that it saw."""

    def __call__(self, rows: Rows, slot: np.ndarray) -> tuple[int, int]:
        shape = (len(rows), *rows.padded, 3)
        slot[: np.prod(shape)].reshape(shape)[:] = rows.ids[:, None, None, None]
        return rows.padded


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_any_canvas_lie_dense_in_their_slot(workers: int) -> None:
    batches = [
        rows_of([(4, 6), (5, 3), (2, 2), (9, 1), (8, 8)]),
        rows_of([(1, 1)] * 5),
        rows_of([(3, 2)] * 5, (10, 9)),
        rows_of([(9, 9)] * 5),
    ]
    largest = 3 * 10 * 9
    pool = Workers(
        Numbers,
        workers=workers,
        batch_size=5,
        part_rows=2,
        part_bytes=lambda count: count * largest,
        row_bytes=lambda rows: 3 * rows.padded[0] * rows.padded[1],
    )
    try:
        for (slot, rows, said), given in zip(
            pool.run(batches * 3), batches * 3, strict=True
        ):
            assert said == [given.padded] * 3
            height, width = given.padded
            pixels = slot[: 5 * height * width * 3].reshape(5, -1)
            assert (pixels == np.arange(5)[:, None]).all()
            assert rows.canvas == given.canvas
    finally:
        pool.close()
