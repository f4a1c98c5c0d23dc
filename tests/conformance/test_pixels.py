"""Pixels of every loader against torchvision's own transforms and Pillow; docs/benchmarks/train.md has the
figures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from saturate.plan.images import Growth
from tests.conformance import checks
from tests.conformance.looking import passed, torchvision_levels
from tests.conformance.placed import epoch_is_the_plans
from tests.conformance.scenes import Backend, Scene

_transformed: dict[str, np.ndarray] = {}


def transformed(of: Scene) -> np.ndarray:
    """uint8 [n, 224, 224, 3]: Resize(256), CenterCrop(224) of every file. Made once."""
    key = str(of.folder)
    if key not in _transformed:
        _transformed[key] = np.stack(
            [torchvision_levels(content) for content in of.bytes_of]
        )
    return _transformed[key]


@pytest.mark.parametrize("source", ["photographs", "samples"])
def test_validation_is_torchvisions(
    backend: Backend, source: str, request: pytest.FixtureRequest
) -> None:
    of: Scene = request.getfixturevalue(source)
    feed = of.feed(backend.device, batch_size=8, image_size=224, training=False)
    found = passed(backend.open, feed)
    assert not found.failed
    apart = checks.close(found, transformed(of), of.names, backend.pixel_difference)
    worst = max(apart, key=lambda name: apart[name])
    print(
        f"{backend.name}: mean {np.mean(list(apart.values())):.3f}, worst {apart[worst]:.3f} ({worst})"
    )


@pytest.mark.parametrize(
    "interpolation", ["bilinear", "bicubic", "bilinear-no-antialias", "nearest"]
)
def test_interpolations_are_the_references(
    backend: Backend, photographs: Scene, samples: Scene, interpolation: str
) -> None:
    """Windows that are drawn, and of real images, bicubic, the centre crop that looks beyond its edges."""
    feed = photographs.feed(backend.device, batch_size=6, image_size=112)
    feed = replace(feed, pixels=replace(feed.pixels, interpolation=interpolation))
    assert not epoch_is_the_plans(
        backend.open, feed, photographs, backend.pixel_difference
    )
    if (
        interpolation != "bicubic" or backend.name == "dali-fed"
    ):  # which has dali-cpu's graph
        return
    feed = samples.feed(backend.device, batch_size=8, image_size=224, training=False)
    policy = replace(feed.plan.policy, interpolation=interpolation)  # type: ignore[attr-defined]
    plan = replace(feed.plan, policy=policy)  # type: ignore[type-var]
    found = passed(
        backend.open,
        replace(
            feed, plan=plan, pixels=replace(feed.pixels, interpolation=interpolation)
        ),
    )
    expected = np.stack(
        [torchvision_levels(content, interpolation) for content in samples.bytes_of]
    )
    apart = checks.close(found, expected, samples.names, backend.pixel_difference)
    assert np.mean(list(apart.values())) <= (3 if backend.decodes_on_gpu else 0.3)


def test_images_that_grow_are_those_of_their_size(
    any_backend: Backend, photographs: Scene
) -> None:
    """A loader gives each epoch its size, there and back, with the pixels of a plan that has only this size."""
    feed = photographs.feed(any_backend.device, batch_size=6, image_size=64)
    policy = feed.plan.policy  # type: ignore[attr-defined]
    growing = replace(policy, growth=Growth(start=40, begin=0, end=1))
    plan = replace(feed.plan, policy=growing)  # type: ignore[type-var]
    smaller = replace(
        feed,
        plan=replace(feed.plan, policy=replace(policy, image_size=40)),  # type: ignore[type-var]
    )
    with any_backend.open(replace(feed, plan=plan)) as loader:
        for epoch in (0, 1, 0):
            with any_backend.open(feed if epoch else smaller) as alone:
                for batch, expected in zip(
                    loader.batches(epoch, 6), alone.batches(epoch, 6), strict=True
                ):
                    assert batch.images.shape[2:] == ((64, 64) if epoch else (40, 40))
                    assert batch.ids.tolist() == expected.ids.tolist()
                    apart = (batch.images - expected.images).abs().float().mean()
                    assert apart * 255 * 0.23 <= any_backend.repeat_difference


def test_every_format_is_decoded_as_pillow_does(backend: Backend, odd: Scene) -> None:
    feed = odd.feed(backend.device, batch_size=5, image_size=64, training=False)
    assert not epoch_is_the_plans(backend.open, feed, odd, backend.pixel_difference)
    feed = replace(odd.feed(backend.device, batch_size=5, image_size=64), workers=1)
    assert not epoch_is_the_plans(backend.open, feed, odd, backend.pixel_difference)
