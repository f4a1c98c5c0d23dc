"""Files that DALI cannot take as they are."""

from __future__ import annotations

import errno
import io
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from contracts import UserError
from dataset.images.columns import FORMATS
from loaders import open_loader
from loaders.images import _pipeline
from loaders.images._dali_rows import Known, PathPreparer, largest_rows, plain
from loaders.images._pipeline import Runner
from loaders.images.dali_fed import intact
from system import storage
from tests.conformance import pictures
from tests.conformance.scenes import Scene, scene


def encoded(form: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def made(folder: Path, webp: int, jpeg: int) -> Scene:
    odd = {f"odd-{i}": encoded("WEBP") for i in range(webp)}
    return scene(folder, odd | {f"plain-{i}": encoded("JPEG") for i in range(jpeg)})


def test_the_largest_images_come_first_and_whole(tmp_path: Path) -> None:
    """DALI decodes as many images first as it has threads, and none that PIL would decode."""
    sides = [30 + i for i in range(20)] + [300, 310, 320]
    files = {f"{h}": pictures.jpeg(pictures.photograph(h, h, 200)) for h in sides}
    shown = scene(tmp_path, files | {"odd": encoded("WEBP")})
    rows = largest_rows(shown.feed(batch_size=8, image_size=24), 2)
    assert rows is not None and rows.sizes.tolist() == [[24, 24]] * 8
    names = [shown.names[i] for i in rows.ids]
    assert names[:2] == ["320", "310"] and "odd" not in names and rows.valid.all()
    assert rows.regions[0].tolist() == rows.windows[0].tolist() == [0, 0, 200, 320]
    assert len(set(names[2:])) >= 5
    few = largest_rows(shown.feed(batch_size=2), 9)
    assert few is not None and len(few) == 2
    assert largest_rows(made(tmp_path / "odd", 3, 0).feed(batch_size=2), 2) is None


def test_what_dali_is_not_given() -> None:
    columns = SimpleNamespace(
        format=np.repeat([FORMATS.index("jpeg"), FORMATS.index("png")], 3),
        depth=np.array([8, 12, 8, 8, 16, 8]),
        whole=np.array([True, True, False] * 2),
        components=np.full(6, 3),
        rgb=np.zeros(6, bool),
    )
    assert plain(columns, np.arange(6)).tolist() == [True, False, False] * 2


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


def test_storage_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = made(tmp_path, 4, 0).feed()
    rows = feed.plan.rows(0, 0)[0]
    prepare = PathPreparer(feed)

    def fails(sample: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(feed.source, "read", fails)
    monkeypatch.setattr(storage, "PAUSES_S", ())
    with pytest.raises(
        UserError, match=r"I/O error: .* cannot be read: Input/output error"
    ):
        prepare(rows, Known())
    prepare.close()


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
            MemoryError("Can't allocate 4096 bytes on device 0."),
            "ran out of the GPU's memory",
            0,
        ),
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
