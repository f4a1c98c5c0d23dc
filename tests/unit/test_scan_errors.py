"""A scan tells an error of what it reads from one of what it writes, whatever the source."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts import UserError
from dataset.coco.scan import open_coco
from dataset.images.scan import open_images
from dataset.scan import file_tree
from dataset.scan.byte_ranges import Files, ReadAt
from dataset.scan.cache import Progress
from dataset.scan.manifest import Rejects
from tests.unit.coco_files import write_coco
from tests.unit.folders import JPEG, fill

BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
NO_ROOM = Path("/nowhere")


class Flaky(Files):
    """Entries of which the storage gives one, and fails at the others."""

    @contextmanager
    def opened(self, name: bytes) -> Iterator[tuple[int, ReadAt]]:
        if name != b"a/1.jpg":
            raise BROKEN
        with super().opened(name) as found:
            yield found

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        raise BROKEN


def broken(made: Path) -> None:
    raise BROKEN


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (
            broken,
            "^I/O error: --data: .*data cannot be read: Input/output error; nothing",
        ),
        (
            lambda made: file_tree.write_labelled({b"a/1.jpg": 0}, NO_ROOM),
            "^the manifest cannot be written to",
        ),
    ],
    ids=["reading", "writing"],
)
def test_an_error_while_names_are_listed(
    listed: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        listed(made)
        return {"a": 0}

    data = fill(tmp_path / "data", {"a/1.jpg": JPEG})
    with pytest.raises(UserError, match=said):
        open_images(
            data, Files(data), list_files, key=[], where="", cache=tmp_path / "cache"
        )


def test_an_entry_that_the_storage_does_not_give_ends_the_scan(tmp_path: Path) -> None:
    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        file_tree.write_labelled({b"b/0.jpg": 1, b"a/1.jpg": 0, b"a/0.jpg": 0}, made)
        return {"a": 0, "b": 1}

    data = fill(tmp_path / "data", {"a/0.jpg": JPEG, "a/1.jpg": JPEG, "b/0.jpg": JPEG})
    with pytest.raises(
        UserError,
        match=r"^I/O error: --data: .*a/0\.jpg cannot be read: .*; tried 4 times in 0 s; nothing",
    ):
        open_images(
            data, Flaky(data), list_files, key=[], where="", cache=tmp_path / "cache"
        )


def test_annotations_and_images_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = write_coco(tmp_path / "coco")
    monkeypatch.setattr(
        "dataset.stores.folder.entries", lambda data, cache: Flaky(data)
    )
    with pytest.raises(
        UserError,
        match=r"^I/O error: --data: .*coco cannot be read: Input/output error; nothing",
    ):
        open_coco(data, "train", keypoints=False, cache=tmp_path / "cache")
