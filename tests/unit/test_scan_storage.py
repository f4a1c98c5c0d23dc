"""Storage that fails during a scan: one line, nothing is kept, and the next scan finds everything."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import UserError
from saturate.dataset.coco import annotation_file
from saturate.dataset.coco.scan import open_coco
from saturate.dataset.images.scan import open_images
from saturate.dataset.open import open_split
from saturate.dataset.scan.byte_ranges import Files, ReadAt
from saturate.dataset.scan.file_tree import Scan, write_file_list
from saturate.dataset.stores.folder import open_folder
from saturate.dataset.videos import packets
from saturate.loaders._read_retry import read
from tests.conformance.scenes import of_two_classes
from tests.conformance.sources import LAYOUTS, all_read, here
from tests.unit.coco_files import write_coco
from tests.unit.folders import JPEG, fill, refused
from tests.unit.video_files import make

Open = Callable[[Path, Path], Any]


def failing(
    call: str, part: bytes, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a call of os fail for every path with that part, and pread for all files."""
    real = getattr(os, call)

    def fails(path: Any, *more: Any, **named: Any) -> Any:
        if call == "pread" if isinstance(path, int) else part in os.fsencode(path):
            raise OSError(number, os.strerror(number))
        return real(path, *more, **named)

    monkeypatch.setattr(os, call, fails)


def failing_for_a_moment(
    call: str, first: int, number: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Let two calls of os for paths of the data fail, behind the `first` ones; returns these paths."""
    real = getattr(os, call)
    asked: list[str] = []

    def fails(path: Any, *more: Any, **named: Any) -> Any:
        link = f"/proc/self/fd/{path}"
        where = os.readlink(link) if isinstance(path, int) else os.fsdecode(path)
        if where.startswith(str(data)):
            asked.append(where)
            if first < len(asked) <= first + 2:
                raise OSError(number, os.strerror(number), where)
        return real(path, *more, **named)

    monkeypatch.setattr(os, call, fails)
    return asked


def ends_without_a_trace(open_: Open, data: Path, cache: Path, named: str) -> None:
    """A scan of data that the storage fails of: one line, and no manifest or part of one."""
    said = refused(lambda: open_(data, cache))
    assert "I/O error: --data: " in said and named in said
    assert not list(cache.rglob("manifest.json")) and not list(cache.rglob("tmp-*"))


@pytest.mark.parametrize("form", [name for name in LAYOUTS if here(name)])
def test_a_moment_of_failing_storage_changes_nothing(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is scanned and while it is read, in every source: what failed is tried again."""
    data = tmp_path.resolve() / "data"
    files = of_two_classes(5)
    LAYOUTS[form].write(data, "train", files)
    failed = 0
    calls = ("open", "pread", "stat", "fstat", "listdir", "scandir", "read")
    moments = [*((call, 0) for call in calls), ("open", 5), ("pread", 5)]
    for number, (call, first) in enumerate(moments):
        error = (errno.EIO, errno.ESTALE)[number % 2]
        cache = tmp_path / f"{number}"
        with monkeypatch.context() as sick:
            asked = failing_for_a_moment(call, first, error, data, sick)
            split = open_split(data / "train", source=form, cache=cache)
            failed += len(asked) > first
        assert sorted(all_read(split.source)) == sorted(files.values())
        assert not split.columns.rejected
        again = pickle.loads(pickle.dumps(split.source))
        with monkeypatch.context() as sick:
            asked = failing_for_a_moment(call, first, error, data, sick)
            contents = [read(again, sample) for sample in range(len(again))]
            failed += len(asked) > first
        assert sorted(contents) == sorted(files.values())
    # most of an LMDB's calls are in processes of their own, which do not count here
    assert failed


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("open", "EMFILE"),
        ("pread", "EIO"),
        ("scandir", "ESTALE"),
        ("open and stat", "EACCES"),
    ],
)
def test_images(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: str
) -> None:
    whole = len(open_folder(root, cache=cache / "before"))
    with monkeypatch.context() as sick:
        for each in call.split(" and "):
            part = b"/bee/" if " and " in call else b"/bee"
            failing(each, part, getattr(errno, number), sick)
        ends_without_a_trace(
            lambda data, where: open_folder(data, cache=where), root, cache / "now", ""
        )
    assert len(open_folder(root, cache=cache / "now")) == whole


def test_videos_of_which_ffmpeg_says_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes an error for the end of a file; where the storage is well again there is nothing to say."""
    path = os.fsencode(make(tmp_path / "0.mp4"))
    ends = [packets.Rejected("cut short")]
    whole = packets.open_video

    def ends_early(path: bytes, **how: Any) -> Any:
        if ends:
            raise ends.pop()
        return whole(path, **how)

    def fails(path: bytes) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(packets, "open_video", ends_early)
    assert packets.read(path).record[0] > 0
    ends.append(packets.Rejected("cut short"))
    monkeypatch.setattr(packets.storage, "read_through", fails)
    with pytest.raises(OSError, match="Input/output error"):
        packets.read(path)


def test_coco(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image files, and an annotation file that cannot be read to its end."""
    data = write_coco(tmp_path / "data", splits={"train2017": 3}, size=(64, 64))

    def open_(data: Path, where: Path) -> Any:
        return open_coco(data, "train", keypoints=False, cache=where)

    with monkeypatch.context() as sick:
        failing("pread", b"", errno.EIO, sick)
        ends_without_a_trace(open_, data, cache, "train2017")

    def torn(*_: Any) -> Iterator[Any]:
        yield from ()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as sick:
        sick.setattr(annotation_file, "entries", torn)
        ends_without_a_trace(open_, data, cache, "instances_train2017.json")
    assert len(open_(data, cache)) == 3


class Flaky(Files):
    """Entries of which the storage gives one, and fails at the others."""

    @contextmanager
    def opened(self, name: bytes) -> Iterator[tuple[int, ReadAt]]:
        if name != b"a/1.jpg":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        with super().opened(name) as found:
            yield found


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (
            "reading",
            "^I/O error: --data: .*data cannot be read: Input/output error; no",
        ),
        ("writing", "^the manifest cannot be written to"),
        (
            "entries",
            r"^I/O error: --data: .*a/0\.jpg cannot be read: .*; tried 4 times",
        ),
    ],
)
def test_an_error_of_reading_is_told_from_one_of_writing(
    listed: str, said: str, tmp_path: Path
) -> None:
    def list_files(scan: Scan) -> dict[str, int]:
        if listed == "reading":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        where = tmp_path / "nowhere" if listed == "writing" else scan.made
        write_file_list(where, [([b"a/0.jpg", b"a/1.jpg", b"b/0.jpg"], [0, 0, 1])])
        return {"a": 0, "b": 1}

    data = fill(tmp_path / "data", {"a/0.jpg": JPEG, "a/1.jpg": JPEG, "b/0.jpg": JPEG})
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match=said):
        open_images(data, Flaky(data), list_files, key=[], where="", cache=cache)
