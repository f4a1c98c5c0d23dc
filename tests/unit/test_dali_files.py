"""Files that DALI cannot take as they are."""

from __future__ import annotations

import io
import weakref
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from saturate.contracts import UserError
from saturate.loaders import _dali, open_loader
from saturate.loaders.images import _pipeline
from saturate.loaders.images._dali_rows import Known, PathPreparer
from saturate.loaders.images._pipeline import Runner
from saturate.loaders.images.dali_fed import intact
from tests.conformance.scenes import Scene, scene


def encoded(form: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def made(folder: Path, webp: int, jpeg: int) -> Scene:
    odd = {f"odd-{i}": encoded("WEBP") for i in range(webp)}
    return scene(folder, odd | {f"plain-{i}": encoded("JPEG") for i in range(jpeg)})


def test_bytes_that_are_others_than_the_scan_has_seen(tmp_path: Path) -> None:
    """They have the same length: zeros, as network file systems may answer, and a PNG that was damaged in
    the middle.
    """
    whole = encoded("PNG")
    assert intact(whole) and intact(encoded("JPEG"))
    for other in (bytes(len(whole)), b"<html>" * 50, whole[:50] + whole[51:] + b"x"):
        assert not intact(other)
    scene = made(tmp_path, 0, 30)
    with open_loader("dali-fed", scene.feed(batch_size=30, training=False)) as loader:
        path = scene.path(3)
        path.write_bytes(bytes(path.stat().st_size))
        (batch,) = loader.batches(0, 0)
        assert batch.failed == (3,)


class Failing:
    """A pipeline of DALI's that decodes what PIL has written for it, and of files none. `made`: so far; one
    at a time.
    """

    made: ClassVar[list[Any]] = []
    alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self, error: Exception, batch_size: Any, threads: Any) -> None:
        self._error, self._outputs = error, list[bool]()
        assert not self.alive, "the memory of one is there for the next"
        self.made.append(batch_size)
        self.alive.add(self)

    def feed_input(self, name: str, value: Any) -> None:
        if name == "data":
            self._outputs.append(
                all(
                    b"placeholder" in bytes(path) or b".png" in bytes(path)
                    for path in value
                )
            )

    def schedule_run(self) -> None: ...

    def release_outputs(self) -> None: ...

    def share_outputs(self, **_: Any) -> None:
        if not self._outputs.pop(0):
            raise type(self._error)(*self._error.args)


@pytest.mark.parametrize(
    ("error", "said", "tries"),
    [
        (MemoryError("CUDA allocation failed"), "ran out of the GPU's memory", 0),
        (
            RuntimeError("nvImageCodec failure: '#4'"),
            "none of 5 files in a row that PIL does .*#4.*smaller --batch-size",
            5,
        ),
    ],
)
@pytest.mark.parametrize(("batch_size", "webp"), [(3, 0), (16, 9)])
def test_what_is_no_fault_of_the_files(
    error: Exception,
    said: str,
    tries: int,
    batch_size: int,
    webp: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are not tried one by one for minutes, with another pipeline for each; be they of several batches,
    or others PIL's anyway.
    """
    monkeypatch.setattr(_pipeline, "REFUSED_ALL", 5)
    feed = made(tmp_path, webp, 40).feed(batch_size=batch_size)
    prepare = PathPreparer(feed)
    Failing.made.clear()
    runner = Runner(
        partial(Failing, error),
        warm=prepare.blank(),
        diagnose=lambda batch: set(),
        again=lambda batch, known: prepare(batch.rows, known),
    )
    with pytest.raises(UserError, match=said):
        next(runner.run(prepare(rows, Known()) for rows in feed.plan.rows(0, 0)))
    assert Failing.made == [None] + tries * [1]
    prepare.close()


def test_a_decoder_is_held_until_a_loader_has_its_own(tmp_path: Path) -> None:
    _dali.hold_decoder(None)
    held = weakref.ref(_dali.held[0])
    with open_loader("dali-cpu", made(tmp_path, 0, 2).feed(batch_size=2)) as loader:
        next(loader.batches(0, 0))
    assert held() is None
