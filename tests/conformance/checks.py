"""Assertions that every loader must pass: functions of (open, feed, ...)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from saturate.contracts import Array, Feed, Loader, Rows
from saturate.plan.epoch import EpochPlan
from saturate.plan.targets import IGNORE
from tests.conformance import placed
from tests.conformance.looking import Seen, difference, fitted, joined, passed, seen
from tests.conformance.scenes import Open, Scene

WINDOW_TOLERANCE = 0.3
"""See Backend.edge_difference."""
BLUE_TOLERANCE = 3.0


def trains(feed: Feed) -> bool:
    assert isinstance(feed.plan, EpochPlan)
    return feed.plan.training


def rows_are_the_plans(open_: Open, feed: Feed) -> None:
    """The form of every batch, in the plan's order; every epoch again."""
    with open_(feed) as loader:
        assert isinstance(loader, Loader) and loader.in_flight >= 0
        for epoch in (0, 1):
            rows = feed.plan.rows(epoch, 0)
            assert len(rows)
            for batch, expected in zip(loader.batches(epoch, 0), rows, strict=True):
                placed.form_is_the_plans(batch, expected, feed)
                assert batch.failed == ()


def windows_are_the_plans(
    open_: Open,
    feed: Feed,
    scene: Scene,
    epoch: int = 0,
    tolerance: float = WINDOW_TOLERANCE,
) -> None:
    """Read windows and flips back from the pixels of `scenes.ramps`, whose blue names the file; of
    `reels.ruled` also the frame.
    """
    found, flips = passed(open_, feed, epoch), []
    expected = list(feed.plan.rows(epoch, 0))
    at = 0
    for rows in expected:
        for i in range(len(rows)):
            if rows.valid[i]:
                sample = int(rows.ids[i])
                window = np.tile(rows.regions[i, :2], 2) + rows.windows[i]
                for frame, levels in shown(found.levels[at], rows, i):
                    blue, its = float(levels[..., 2].mean()), scene.blue(sample, frame)
                    assert abs(blue - its) < BLUE_TOLERANCE, (
                        f"{scene.names[sample]} has another's blue: {blue:.1f} is not {its}"
                    )
                    fit = fitted(
                        levels,
                        int(scene.manifest.height[sample]),
                        int(scene.manifest.width[sample]),
                    )
                    error = float(np.abs(np.array(fit.window) - window).max())
                    assert error <= tolerance, (
                        f"{scene.names[sample]}: {fit.window} is not {window}"
                    )
                    assert fit.flipped == rows.turns[i], (
                        f"{scene.names[sample]}: flipped {fit.flipped}"
                    )
                flips.append(fit.flipped)
            at += 1
    assert not trains(feed) or {True, False} == set(flips)


def shown(levels: Array, rows: Rows, i: int) -> list[tuple[int, Array]]:
    """(frame, float32 [H, W, 3]) of what row i delivered; an image is frame 0."""
    return (
        [(0, levels)]
        if rows.frames is None
        else list(zip(rows.frames[i].tolist(), levels, strict=True))
    )


def close(
    found: Seen, expected: Array, names: Sequence[str], tolerance: float
) -> dict[str, float]:
    """Real samples against uint8 [N, H, W, 3] in the same order."""
    apart = difference(found.levels[found.real], expected)
    by_name = {
        names[sample]: round(float(value), 3)
        for sample, value in zip(found.ids[found.real], apart, strict=True)
    }
    wrong = {name: value for name, value in by_name.items() if value > tolerance}
    assert not wrong, f"more than {tolerance} grey levels apart: {wrong}"
    return by_name


def resumes_at(
    open_: Open, feed: Feed, scene: Scene, firsts: Sequence[int], tolerance: float
) -> None:
    """batches(epoch, first) is the tail of batches(epoch, 0) of other loaders, pixels included.

    One loader is asked again and again, and iterators of it are abandoned after none, one or several batches.
    """
    n, batch_size = scene.samples * feed.plan.views, feed.plan.batches.rows
    wholes = [passed(open_, feed, epoch) for epoch in (0, 1)]
    with open_(feed) as loader:
        for epoch, whole in enumerate(wholes):
            for taken, first in enumerate(firsts):
                for _ in itertools.islice(loader.batches(1 - epoch, 0), taken):
                    pass
                tail = joined(
                    seen(batch, feed) for batch in loader.batches(epoch, first)
                )
                left = n - first
                count = left // batch_size * batch_size if trains(feed) else left
                assert np.count_nonzero(tail.real) == count
                same_samples(tail, whole, first, tolerance)
            assert not list(loader.batches(epoch, n))


def same_samples(tail: Seen, whole: Seen, first: int, tolerance: float) -> None:
    """Compare `tail` with `whole` from `first`, as far as both reach: each drops another tail."""
    count = min(int(tail.real.sum()), int(whole.real.sum()) - first)
    assert count > 0
    for name in ("ids", "labels", "valid"):
        np.testing.assert_array_equal(
            getattr(tail, name)[:count],
            getattr(whole, name)[first : first + count],
            err_msg=name,
        )
    if tolerance == 0:
        np.testing.assert_array_equal(
            tail.raw[:count], whole.raw[first : first + count]
        )
    else:
        apart = difference(tail.levels[:count], whole.levels[first : first + count])
        assert apart.max() <= tolerance, f"{apart.max():.2f} grey levels apart"


def fillers_are_samples(open_: Open, feed: Feed, tolerance: float) -> None:
    """Rows that fill the last step up show what their samples show in their own rows, and count for nothing."""
    plan = feed.plan
    assert isinstance(plan, EpochPlan)
    full = replace(feed, plan=replace(plan, keeps_tail=True))
    drawn = list(full.plan.rows(0, 0))
    found = passed(open_, full)
    ids = np.concatenate([rows.ids for rows in drawn])
    fills = np.concatenate([rows.fillers for rows in drawn])
    assert fills.any() and sorted(ids[~fills]) == list(range(plan.samples))
    np.testing.assert_array_equal(found.ids, np.where(fills, -1, ids))
    np.testing.assert_array_equal(found.valid, ~fills)
    assert (found.labels[fills] == IGNORE).all()
    own = np.flatnonzero(~fills)[np.argsort(ids[~fills])]
    apart = difference(found.levels[fills], found.levels[own[ids[fills]]])
    assert apart.max() <= tolerance, f"{apart.max():.2f} grey levels apart"


def raises(check: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Whether a check refuses what it is given."""
    try:
        check(*arguments, **named)
    except AssertionError:
        return True
    return False
