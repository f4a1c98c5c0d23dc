"""Device memory: a validation loader gives it back, and a leak is seen."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from contracts import Batch, Feed
from tests.conformance import checks, plants
from tests.conformance.leaving import epochs_are_flat
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


def test_large_tensors_share_segments_that_grow() -> None:
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    assert segments
    assert all(segment["is_expandable"] for segment in segments), (
        "prepare_process came too late"
    )
    del kept


def test_images_lie_where_the_callers_stream_has_freed_memory(
    backend: Backend, photographs: Scene
) -> None:
    feed = photographs.feed(
        backend.device, batch_size=128, image_size=224, training=False
    )
    validated(backend, feed)  # loads kernels
    torch.cuda.empty_cache()
    activations = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    del activations
    before = torch.cuda.memory_reserved()
    images = 5 * 128 * 3 * 224 * 224 * 2
    with backend.open(feed) as loader:
        for _ in loader.batches(0, 0):
            pass
        assert torch.cuda.memory_reserved() - before < images / 2
        assert torch.cuda.memory_allocated() >= images / 2, (
            "nothing was there to lie anywhere"
        )


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
        checks.same_samples(again, 0, kept, 0, backend.repeat_difference)


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


class LeaksOnTheDevice(plants.Leaks):
    """Each epoch keeps 2 MiB of device memory, and none of the host's."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        if epoch == 0:
            torch.cuda.empty_cache()
            self.device_kept: list[torch.Tensor] = []
        self.device_kept += [
            torch.zeros(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)
        ]
        yield from self.inner.batches(epoch, first)


def test_a_leak_on_the_device_is_seen(backend: Backend, small: Scene) -> None:
    feed = small.feed(backend.device, batch_size=8, image_size=32)
    assert checks.raises(
        epochs_are_flat, partial(LeaksOnTheDevice, inner=backend.open), feed
    )
