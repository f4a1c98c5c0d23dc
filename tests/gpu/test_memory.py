"""Device memory: a validation loader gives it back, and a leak is seen."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from saturate.contracts import Feed
from saturate.loaders._dali import hold_decoder
from saturate.loaders.images import _pipeline
from tests.conformance import checks
from tests.conformance.looking import seen
from tests.conformance.scenes import Backend, Scene

pytestmark = pytest.mark.alone

SLACK_MIB = 24.0
"""Kernels that are loaded at first use, and the driver's own pools."""
KEPT_MIB = 160.0
"""What the first validation beside an open loader leaves: streams, and pieces of DALI's pools."""


def device_mib() -> float:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def validated(backend: Backend, feed: Feed) -> float:
    with backend.open(feed) as loader:
        for _ in loader.batches(0, 0):
            pass
        return device_mib()


@pytest.mark.parametrize("source", ["photographs", "samples"])
def test_validation_gives_its_memory_back(
    backend: Backend, source: str, request: pytest.FixtureRequest
) -> None:
    scene: Scene = request.getfixturevalue(source)
    feed = scene.feed(backend.device, batch_size=8, image_size=224)
    val_feed = scene.feed(backend.device, batch_size=16, image_size=224, training=False)
    validated(backend, val_feed)  # loads kernels
    with backend.open(feed) as loader:
        batches = loader.batches(0, 0)
        kept = seen(next(batches), feed)
        before, during, after = [], [], []
        for _ in range(4):
            before.append(device_mib())
            during.append(validated(backend, val_feed))
            after.append(device_mib())
        print(
            f"{backend.name}: before {before[0]:.0f}, during {during[0]:.0f}, after {after[0]:.0f} MiB; "
            f"last after {after[-1]:.0f}"
        )
        if backend.decodes_on_gpu:
            assert min(during) > max(after) + SLACK_MIB
        assert after[0] <= before[0] + KEPT_MIB
        assert max(after) <= after[0] + SLACK_MIB
        again = seen(next(iter(loader.batches(0, 0))), feed)
        checks.same_samples(again, kept, 0, backend.repeat_difference)


def test_a_closed_loader_that_somebody_holds_holds_nothing(
    backend: Backend, photographs: Scene
) -> None:
    feed = photographs.feed(backend.device, batch_size=8, image_size=224)
    validated(backend, feed)
    before, held = device_mib(), []
    for _ in range(3):
        loader = backend.open(feed)
        with loader:
            assert (
                sum(len(batch.ids) for batch in loader.batches(0, 0)) > 0
            )  # and nobody keeps the last one
        held.append(loader)
    assert device_mib() <= before + 2.0


def test_a_pipeline_is_built_sooner_beside_a_decoder_that_is_held(
    photographs: Scene, device: torch.device
) -> None:
    """A warm spare relies on it: where it fails, nvJPEG sets its engines up for each decoder, or for none."""
    feed = photographs.feed(device, batch_size=8, image_size=224)

    def seconds() -> float:
        gc.collect()  # no other decoder lives
        began_s = time.perf_counter()
        _pipeline.build(feed, device=device, reads=True)
        return time.perf_counter() - began_s

    seconds()  # loads kernels
    alone = seconds()
    hold_decoder(device.index)
    assert seconds() < alone / 2
