"""The Stager of a GPU, on a CPU: its streams and events do nothing here but say what was asked of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import Feed
from loaders import _staging, open_loader
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
