"""The Stager of a GPU, on a CPU: its streams and events do nothing here but say what was asked of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import Feed, Rows
from loaders import _staging, open_loader
from loaders._staging import Stager
from tests.unit.superres_files import feed_of, opened, write

Said = list[tuple[str, Any, Any]]
"""What was done, the stream (None: the current one), the event."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Return what a Stager asks of streams and events, which take a CPU for a GPU from here on."""
    found: Said = []

    class Event:
        def __init__(self, **_: Any) -> None: ...

        def record(self, stream: Any = None) -> None:
            found.append(("record", stream, self))

        def synchronize(self) -> None: ...

    class Stream:
        def __init__(self, *_: Any) -> None: ...

        def wait_event(self, event: Any) -> None:
            found.append(("wait", self, event))

        def synchronize(self) -> None: ...

    def inside(_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    fakes = {
        "Event": Event,
        "Stream": Stream,
        "stream": inside,
        "current_stream": lambda *_: Stream(),
    }
    for name, fake in (fakes | {"synchronize": lambda *_: None}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    always = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(_staging.Stager, "_cuda", always, raising=False)
    return found


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    write(tmp_path / "data/train", 12)
    return replace(feed_of(opened(tmp_path / "data"), batch_size=2), pinned=False)


def rows_of(feed: Feed) -> Iterator[tuple[Rows, torch.Tensor]]:
    """Yield rows of an epoch, and levels of them."""
    for rows in feed.plan.rows(0, 0):
        yield rows, torch.full((len(rows), *rows.padded, 3), 7, dtype=torch.uint8)


def test_what_is_closed_holds_nothing_on_the_device(said: Said, feed: Feed) -> None:
    stager = Stager(feed)
    for rows, levels in rows_of(feed):
        stager.stage(levels, rows, rows.valid)
    assert stager._levels is not None
    memory = [stager._levels, *(slot.images for slot in stager._slots)]
    alive = [weakref.ref(tensor) for tensor in memory]
    del memory
    stager.close()
    assert not any(tensor() is not None for tensor in alive)


def test_a_loader_may_be_opened_in_inference_mode(said: Said, feed: Feed) -> None:
    with torch.inference_mode():
        stager = Stager(feed)
    for rows, levels in rows_of(feed):  # as its thread does, which is not in that mode
        assert stager.stage(levels, rows, rows.valid).batch.images.isfinite().all()


def test_a_transfer_does_not_wait_for_a_step(said: Said, feed: Feed) -> None:
    """The span of a pair has two copies, and the small images are finished in between."""
    with open_loader("paired", feed) as loader:
        stream = loader._stager.stream  # type: ignore[attr-defined]
        spans = [batch.transfer for batch in loader.batches(0, 0)]
    of_stream = [(what, event) for what, on, event in said if on in (None, stream)]
    assert len(spans) == 6
    for begin, end in filter(None, spans):
        at = of_stream.index(("record", begin))
        inside = of_stream[at : of_stream.index(("record", end))]
        assert of_stream[at - 1][0] == "wait"
        assert {event for what, event in inside if what == "wait"} <= {
            of_stream[at - 1][1]
        }
