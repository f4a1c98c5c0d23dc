"""The assertions that every loader must pass: plain functions of (open, feed, ...), so that planted faults can be put to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from contracts import Feed, Loader
from dataset.order import order
from dataset.plan import StillPlan
from loaders._staging import DTYPES
from tests.conformance import pictures
from tests.conformance.looking import Seen, difference, expected_levels, fitted, joined, passed, seen
from tests.conformance.scenes import Open, Scene, blue_of

Array = np.ndarray[Any, Any]
IGNORE = -1
WINDOW_TOLERANCE = 0.3
"""Source pixels by which an edge of a window may seem to be elsewhere: rounding of 8 bits, and the filter."""
BLUE_TOLERANCE = 3.0


def trains(feed: Feed) -> bool:
    """Whether the plan is an epoch of training; validation keeps its tail."""
    assert isinstance(feed.plan, StillPlan)
    return feed.plan.training


def rows_are_the_plans(open_: Open, feed: Feed, scene: Scene, epochs: Sequence[int] = (0, 1)) -> None:
    """ids, labels, valid, sizes and the form of a batch, in the plan's order; every epoch again."""
    with open_(feed) as loader:
        for epoch in epochs:
            rows = feed.plan.rows(epoch, 0)
            count = 0
            for batch, expected in zip(loader.batches(epoch, 0), rows, strict=True):
                count += 1
                size = feed.plan.image_size
                assert batch.images.shape == (feed.plan.batch_size, 3, size, size)
                assert batch.images.is_contiguous(memory_format=torch.channels_last)
                assert batch.images.dtype == DTYPES[feed.pixels.dtype]
                assert {batch.images.device, batch.valid.device, batch.sizes.device} == {torch.empty(0, device=feed.device).device}
                assert batch.ids.dtype == np.int64
                np.testing.assert_array_equal(batch.ids, expected.ids)
                np.testing.assert_array_equal(batch.valid.cpu().numpy(), expected.valid)
                np.testing.assert_array_equal(batch.sizes.cpu().numpy(), expected.sizes)
                labels = np.where(expected.valid, scene.manifest.label[expected.ids], IGNORE)
                np.testing.assert_array_equal(batch.targets["labels"].cpu().numpy(), labels)
                assert batch.failed == ()
            assert count == len(rows) > 0


def windows_are_the_plans(open_: Open, feed: Feed, scene: Scene, epoch: int = 0) -> float:
    """Windows and flips, read back from the pixels of `scenes.ramps`. Returns the largest error of an edge, source pixels."""
    found, worst, flips = passed(open_, feed, epoch), 0.0, []
    expected = list(feed.plan.rows(epoch, 0))
    at = 0
    for rows in expected:
        for i in range(len(rows)):
            if rows.valid[i]:
                sample = int(rows.ids[i])
                fit = fitted(found.levels[at], int(scene.manifest.height[sample]), int(scene.manifest.width[sample]))
                window = np.tile(rows.regions[i, :2], 2) + rows.windows[i]
                error = float(np.abs(np.array(fit.window) - window).max())
                assert error <= WINDOW_TOLERANCE, f"{scene.names[sample]}: {fit.window} is not {window}"
                assert fit.flipped == rows.flips[i], f"{scene.names[sample]}: flipped {fit.flipped}"
                worst = max(worst, error)
                flips.append(fit.flipped)
            at += 1
    assert not trains(feed) or {True, False} == set(flips)
    return worst


def pixels_are_the_samples_own(open_: Open, feed: Feed, scene: Scene) -> None:
    """The constant blue of `scenes.ramps` names the file that the pixels came from."""
    found = passed(open_, feed)
    for i in np.flatnonzero(found.real):
        place = int(scene.names[found.ids[i]].removeprefix("ramp-"))
        blue = float(found.levels[i, ..., 2].mean())
        assert abs(blue - blue_of(place)) < BLUE_TOLERANCE, f"{scene.names[found.ids[i]]} has the blue of another file: {blue:.1f}"


def each_sample_once(open_: Open, feed: Feed, scene: Scene) -> None:
    """Validation delivers every sample exactly once, training none twice."""
    ids = passed(open_, feed).ids
    ids = ids[ids >= 0]
    assert len(set(ids.tolist())) == len(ids)
    if not trains(feed):
        assert sorted(ids.tolist()) == list(range(scene.samples))


def pixels_are_pillows(open_: Open, feed: Feed, scene: Scene, tolerance: float, epoch: int = 0) -> dict[str, float]:
    """Every image within `tolerance` grey levels (mean) of Pillow's decode, crop, resize, mirror. Returns name -> difference."""
    found = passed(open_, feed, epoch)
    assert not found.failed
    expected = [expected_levels(scene, rows, i) for rows in feed.plan.rows(epoch, 0) for i in range(len(rows)) if rows.valid[i]]
    return close(found, np.stack(expected), scene.names, tolerance)


def close(found: Seen, expected: Array, names: Sequence[str], tolerance: float) -> dict[str, float]:
    """Real samples against uint8 [N, H, W, 3] in the same order."""
    apart = difference(found.levels[found.real], expected)
    by_name = {names[sample]: round(float(value), 3) for sample, value in zip(found.ids[found.real], apart, strict=True)}
    wrong = {name: value for name, value in by_name.items() if value > tolerance}
    assert not wrong, f"more than {tolerance} grey levels apart: {wrong}"
    return by_name


def resumes_at(open_: Open, feed: Feed, scene: Scene, firsts: Sequence[int], tolerance: float, seed: int = 5) -> None:
    """batches(epoch, first) is the tail of batches(epoch, 0), pixels included; one loader, asked again and again."""
    n, batch_size = scene.samples, feed.plan.batch_size
    with open_(feed) as loader:
        for epoch in (0, 1):
            whole = joined(seen(batch, feed) for batch in loader.batches(epoch, 0))
            ordered = order(seed, epoch, n) if trains(feed) else np.arange(n)
            for first in firsts:
                tail = joined(seen(batch, feed) for batch in loader.batches(epoch, first))
                left = n - first
                count = left // batch_size * batch_size if trains(feed) else left
                np.testing.assert_array_equal(tail.ids[tail.real], ordered[first : first + count])
                same_samples(tail, 0, whole, first, tolerance)


def same_samples(tail: Seen, at: int, whole: Seen, first: int, tolerance: float) -> None:
    """From `at` and `first` on, as far as both reach (in training each drops another rest)."""
    count = min(int(tail.real.sum()) - at, int(whole.real.sum()) - first)
    assert count > 0
    for name in ("ids", "labels", "valid"):
        np.testing.assert_array_equal(getattr(tail, name)[at : at + count], getattr(whole, name)[first : first + count], err_msg=name)
    if tolerance == 0:
        np.testing.assert_array_equal(tail.raw[at : at + count], whole.raw[first : first + count])
    else:
        apart = difference(tail.levels[at : at + count], whole.levels[first : first + count])
        assert apart.max() <= tolerance, f"{apart.max():.2f} grey levels apart"


def damaged_samples_keep_their_place(
    open_: Open, feed: Feed, scene: Scene, tolerance: float, epochs: Sequence[int] = (0, 1), unsure: Collection[str] = ()
) -> set[int]:
    """What Pillow cannot decode is masked, zero and named; everything else is delivered as if nothing had happened.

    `unsure`: names of files that are decoded, but whose pixels a GPU may guess in another way.
    """
    bad = {sample for sample, content in enumerate(scene.bytes_of) if pictures.pil(content) is None}
    with open_(feed) as loader:
        for epoch in epochs:
            masked_as_expected(loader, feed, scene, bad, tolerance, epoch, unsure)
    return bad


def masked_as_expected(
    loader: Loader, feed: Feed, scene: Scene, bad: set[int], tolerance: float, epoch: int, unsure: Collection[str]
) -> None:
    """One epoch of `damaged_samples_keep_their_place`."""
    for batch, rows in zip(loader.batches(epoch, 0), feed.plan.rows(epoch, 0), strict=True):
        found = seen(batch, feed)
        np.testing.assert_array_equal(found.ids, rows.ids)
        broken = np.isin(rows.ids, list(bad))
        assert sorted(found.failed) == sorted(rows.ids[broken].tolist())
        np.testing.assert_array_equal(found.valid, rows.valid & ~broken)
        np.testing.assert_array_equal(found.labels, np.where(found.valid, scene.manifest.label[rows.ids], IGNORE))
        assert not found.raw[~found.valid].any()
        for i in np.flatnonzero(found.valid):
            apart = difference(found.levels[i : i + 1], expected_levels(scene, rows, int(i))[None])[0]
            name = scene.names[rows.ids[i]]
            assert apart <= tolerance or name in unsure, f"{name}: {apart:.2f} grey levels apart"


def raises(check: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Whether a check refuses what it is given."""
    try:
        check(*arguments, **named)
    except AssertionError:
        return True
    return False
