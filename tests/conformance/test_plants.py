"""Each fault is refused by its assertion, and a plain loader passes them all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.conformance import checks, pictures, plants, scenes
from tests.conformance.leaving import epochs_are_flat, nothing_is_left, traces
from tests.conformance.placed import epoch_is_the_plans
from tests.conformance.plants import Plain
from tests.conformance.scenes import Backend, Scene, scene

Check = Callable[[type[Plain]], object]


@pytest.fixture
def of_images(
    ramps: Scene, small: Scene, photographs: Scene, tmp_path: Path
) -> dict[str, Check]:
    """name -> the assertion, as the tests of the loaders use it."""
    ramp, few = (
        ramps.feed(batch_size=6, image_size=64),
        small.feed(batch_size=5, image_size=32),
    )
    damaged = scene(tmp_path, {**scenes.small(10), **pictures.damaged_files()})
    broken = damaged.feed(batch_size=5, image_size=40, training=False)
    return {
        "rows": lambda open_: checks.rows_are_the_plans(open_, few),
        "windows": lambda open_: checks.windows_are_the_plans(open_, ramp, ramps),
        "pixels": lambda open_: epoch_is_the_plans(
            open_, photographs.feed(image_size=64), photographs, 0.5
        ),
        "resume": lambda open_: checks.resumes_at(open_, few, small, (0, 5, 13), 0.0),
        "fillers": lambda open_: checks.fillers_are_samples(open_, few, 0.0),
        "damage": lambda open_: epoch_is_the_plans(open_, broken, damaged, 0.5),
    }


FAULTS: dict[type[Plain], tuple[str, ...]] = {
    plants.OnePixelOff: ("windows", "pixels"),
    plants.NoTurns: ("windows", "pixels"),
    plants.NeighboursLabel: ("rows",),
    plants.NeighboursPixels: ("windows", "pixels"),
    plants.WrongPlace: ("resume",),
    plants.NeighbourInstead: ("damage",),
    plants.BlackFillers: ("fillers",),
    plants.FillersCount: ("fillers",),
    plants.Brighter: ("pixels", "damage"),
}
"""Fault -> the checks that have to refuse it."""


def test_a_plain_loader_passes(of_images: dict[str, Check]) -> None:
    for check in of_images.values():
        check(Plain)


@pytest.mark.parametrize("plant", FAULTS)
def test_a_fault_is_refused(plant: type[Plain], of_images: dict[str, Check]) -> None:
    for name in FAULTS[plant]:
        assert checks.raises(of_images[name], plant), f"{name} lets it pass"


@pytest.mark.parametrize("leave", plants.LEFT, ids=lambda leave: leave.__name__)
def test_what_is_left_is_seen(
    leave: Callable[[], plants.Tidy], temporary: Path
) -> None:
    gc.collect()  # else files of the tests before are closed meanwhile, and hide one that is left
    before = traces(temporary)
    tidy = leave()
    try:
        assert checks.raises(nothing_is_left, before, temporary, within_s=0.3)
    finally:
        tidy()
    nothing_is_left(before, temporary)


def test_a_leak_of_1_mib_an_epoch_is_seen(lone_backend: Backend, quick: Scene) -> None:
    feed = quick.feed(lone_backend.device, batch_size=8, image_size=32)
    assert checks.raises(
        epochs_are_flat,
        partial(plants.Leaks, inner=lone_backend.open),
        feed,
        attempts=1,
    )
