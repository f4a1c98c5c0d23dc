"""How many workers read changes nothing but the speed; `--read-delay-ms` changes nothing but the time."""

from __future__ import annotations

from tests.conformance import checks
from tests.conformance.looking import passed
from tests.conformance.scenes import Backend, Scene


def test_a_sample_is_the_same_in_batches_of_any_size_by_any_number_of_workers(
    backend: Backend, quick: Scene
) -> None:
    whole = passed(
        backend.open, quick.feed(backend.device, batch_size=1, image_size=32, workers=1)
    )
    assert len(whole.ids) == quick.samples
    for batch_size, workers in ((5, 0), (5, 3), (42, 2)):
        feed = quick.feed(
            backend.device, batch_size=batch_size, image_size=32, workers=workers
        )
        found = passed(backend.open, feed)
        assert len(found.ids) == quick.samples // batch_size * batch_size
        checks.same_samples(found, whole, 0, backend.repeat_difference)
