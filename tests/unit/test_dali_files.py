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
from plan import bundles
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


@pytest.mark.parametrize(("webp", "said"), [(0, False), (1, False), (2, True)])
def test_many_files_that_pil_decodes_are_said(
    webp: int, said: bool, tmp_path: Path
) -> None:
    prepare = PathPreparer(made(tmp_path, webp, 100 - webp).feed())
    assert len(prepare.notes) == said
    if said:
        assert prepare.notes[0].startswith(
            "2 of 100 images are no plain JPEG or 8-bit PNG"
        )
        assert "--loader dali-fed" in prepare.notes[0]
    prepare.close()


def test_the_largest_images_come_first_and_whole(tmp_path: Path) -> None:
    """DALI decodes as many images first as it has threads, and none that PIL would decode."""
    files = {
        f"small-{i}": pictures.jpeg(pictures.photograph(i, 30 + i, 40), quality=80)
        for i in range(20)
    }
    files |= {
        f"large-{i}": pictures.jpeg(pictures.photograph(i, 300, 200 + i), quality=80)
        for i in range(3)
    }
    shown = scene(tmp_path, files | {"odd": encoded("WEBP")})
    feed = shown.feed(batch_size=8, image_size=24)
    rows = largest_rows(feed, 2)
    assert rows is not None and [shown.names[i] for i in rows.ids[:2]] == [
        "large-2",
        "large-1",
    ]
    assert rows.regions[0].tolist() == rows.windows[0].tolist() == [0, 0, 202, 300]
    assert len(rows) == 8 and rows.sizes.tolist() == [[24, 24]] * 8
    assert len(set(rows.ids[2:].tolist())) >= 5 and "odd" not in {
        shown.names[i] for i in rows.ids
    }
    prepare = PathPreparer(feed)
    prepared = prepare(rows, Known())
    assert (
        not prepared.files
        and prepared.own_bytes is not None
        and prepared.own_bytes.all()
    )
    assert prepared.shapes[0].tolist() == [300, 202]
    prepare.close()
    few = largest_rows(shown.feed(batch_size=2), 9)
    assert few is not None and len(few) == 2
    assert largest_rows(made(tmp_path / "odd", 3, 0).feed(batch_size=2), 2) is None, (
        "DALI decodes none of them"
    )


def test_a_full_temporary_folder_is_no_damage_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = made(tmp_path, 4, 0).feed()
    rows = feed.plan.rows(0, 0)[0]
    prepare = PathPreparer(feed)
    assert prepare(rows, Known()).failed == ()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        UserError,
        match=r"cannot be written there \(No space left on device\): set TMPDIR to a folder with room",
    ):
        prepare(rows, Known())
    prepare.close()


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


def test_substitutes_do_not_outlast_their_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "ROWS", 1)
    with open_loader("dali-cpu", made(tmp_path, 12, 0).feed(batch_size=2)) as loader:
        folder = Path(loader._prepare._folder.name)  # type: ignore[attr-defined]
        for epoch in range(3):
            assert next(iter(loader.batches(epoch, 0))).failed == ()
            assert list(folder.glob("*.png"))
        assert len(list(loader.batches(3, 0))) == 6
        assert list(folder.glob("*.png")) == []


class Failing:
    """A pipeline of DALI's that decodes what PIL has written for it, and of files none. `made`: so far; one
    at a time.
    """

    made: ClassVar[list[int]] = []
    alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self, error: Exception, batch_size: int, threads: int) -> None:
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
        partial(Failing, error, batch_size=batch_size, threads=3),
        warm=prepare.blank(),
        diagnose=lambda batch: set(),
        again=lambda batch, known: prepare(batch.rows, known),
    )
    with pytest.raises(UserError, match=said):
        next(runner.run(prepare(rows, Known()) for rows in feed.plan.rows(0, 0)))
    assert Failing.made == [batch_size] + tries * [1]
    prepare.close()
