"""Clips that two sides decode, and worker processes that take what comes next."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from saturate.contracts import Rows, UserError
from saturate.loaders._workers import Work
from saturate.loaders.videos._pool import Pool
from saturate.loaders.videos._scheduler import Deal, Pace, Unit
from saturate.loaders.videos.exact import exact
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.test_clip_loaders import feed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make three files, of which the engines decode two."""
    return Made(
        tmp_path_factory.mktemp("kinds"),
        {name: KINDS[name] for name in ("h264.mp4", "hevc.mp4", "mpeg4.avi")},
    )


def batches(made: Made, count: int, views: int = 1) -> list[Rows]:
    plan = feed(made.videos, views=views).plan
    rows = [its for epoch in range(count) for its in plan.rows(epoch, 0)]
    return rows[:count]


def everything(deal: Deal) -> list[tuple[Rows, Unit]]:
    found = []
    while (unit := deal.unit()) is not None:
        found.append(unit)
    return found


class Even(Pace):
    def __init__(self, lead: float, apart: float) -> None:
        self._distances = lead, apart

    @property
    def lead(self) -> float:
        return self._distances[0]

    @property
    def apart(self) -> float:
        return self._distances[1]


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("pace", [None, Even(0, 1), Even(5, 2.5)])
@pytest.mark.parametrize("pulled", [0, 5])
def test_every_row_is_dealt_once(
    made: Made, views: int, pace: Pace | None, pulled: int
) -> None:
    rows = batches(made, 30, views)
    able = exact("nvdec", made.videos)
    assert able.any() and not able.all()
    deal, given, begun = (
        Deal(rows, views, able, pace),
        list[tuple[Rows, Unit]](),
        list[Unit](),
    )
    for its in rows:
        given += [found for _ in range(pulled) if (found := deal.unit())]
        dealt = deal.batch()
        assert dealt is not None and dealt.rows is its
        places = np.concatenate(
            [unit.places for unit in (*dealt.workers, *dealt.device)]
        )
        assert len(places) == len(set(places)) and set(
            np.flatnonzero(its.valid)
        ) <= set(places)
        for unit in dealt.device:
            assert able[its.ids[unit.places][its.valid[unit.places]]].all()
        begun += dealt.workers
    assert deal.batch() is None
    given += everything(deal)
    assert [unit for _, unit in given] == begun, (
        "each that was left to the workers comes, in order"
    )
    for its, unit in given:
        assert len(its) == len(unit.places) and its.valid.any()
        assert len(set(its.ids.tolist())) == 1, (
            "of one clip, also where a batch begins in the middle of one"
        )
        assert pace is not None or not able[its.ids].any(), (
            "where they are to have no share, only what the device cannot decode"
        )
    assert given


@dataclass(eq=False)
class Asked:
    done: Future[tuple[int, Any]] = field(default_factory=Future)


def rows_of(sample: int) -> Rows:
    return Rows(
        ids=np.array([sample]),
        regions=np.zeros((1, 4), int),
        windows=np.zeros((1, 4)),
        sizes=np.array([[1, 1]]),
        turns=np.zeros(1, np.uint8),
        valid=np.array([True]),
    )


class Wait(Work):
    """Work: sleeps as many ms as the id says, then writes the id into its slot."""

    def __call__(self, rows: Rows, slot: np.ndarray) -> int:
        sample = int(rows.ids[0])
        if sample == 666:
            os.kill(os.getpid(), signal.SIGKILL)
        if sample == 404:
            raise UserError("a file is gone")
        time.sleep(sample / 1000)
        slot[:] = sample % 251
        return sample


def opened(workers: int, slot_bytes: int = 64) -> Pool:
    return Pool(Wait, workers=workers, slot_bytes=slot_bytes, pinned=False)


def serve(pool: Pool, samples: list[int]) -> list[Asked]:
    units = [Asked() for _ in samples]
    left = iter(zip(samples, units, strict=True))

    def source() -> tuple[Rows, Asked] | None:
        found = next(left, None)
        return None if found is None else (rows_of(found[0]), found[1])

    pool.serve(source)
    return units


def test_slots_that_are_not_released_are_not_written() -> None:
    pool = opened(1)
    units = serve(pool, list(range(1, 40)))
    limit = len(pool.slots)
    slots = {units[at].done.result(20)[0]: at + 1 for at in range(limit)}
    assert len(slots) == limit
    time.sleep(0.3)
    assert not units[limit].done.done(), "there is no slot for it"
    assert all((pool.slots[slot] == sample).all() for slot, sample in slots.items())
    for slot in slots:
        pool.release(slot)
    assert units[limit].done.result(20)[1] == limit + 1
    pool.close()


def test_a_new_sequence_takes_the_place_of_one_that_nobody_reads_on() -> None:
    pool = opened(2)
    for _ in range(5):
        serve(pool, [5] * 50)[0].done.result(20)
    for unit in serve(pool, list(range(30))):
        pool.release(unit.done.result(20)[0])
    deadline = time.monotonic() + 10
    while len(pool._free) < len(pool.slots) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(pool._free) == len(pool.slots), "also those that the abandoned ones had"
    pool.close()


def test_what_goes_wrong_reaches_whoever_waits() -> None:
    pool = opened(2)
    units = serve(pool, [1, 404, 2])
    with pytest.raises(UserError, match="a file is gone"):
        units[1].done.result(20)
    assert units[2].done.result(20)[1] == 2, "and the others go on"
    units = serve(pool, [1, 666, *[1] * 30])
    with pytest.raises(
        UserError, match=r"was ended by signal 9, Killed, busy with .*fewer --workers"
    ):
        [pool.result(unit) for unit in units]
    with pytest.raises(UserError, match="was ended by signal 9"):
        pool.result(units[-1])  # which no worker had begun
    pool.close()
