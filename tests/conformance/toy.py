"""A source in memory, as docs/data.md says how to write one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contracts import Split, UserError
from dataset.images.scan import open_images
from dataset.scan import file_tree
from dataset.scan.byte_ranges import ReadAt
from dataset.scan.cache import Progress
from dataset.scan.manifest import Manifest, Rejected, Rejects, printable

FILES = False
HOLDS = "a folder with train.toy and val.toy"
STORED: dict[tuple[Path, str], dict[bytes, bytes]] = {}
"""(data, split) -> the bytes of each name: class/name of labelled images, split/file_name of COCO's."""


class Memory:
    """A contracts.Source of bytes by the name of their entry."""

    files = False

    def __init__(
        self, columns: Manifest, stored: dict[bytes, bytes], read_delay_s: float = 0.0
    ) -> None:
        self.columns, self.stored = columns, stored
        self.read_delay_s = read_delay_s

    def __len__(self) -> int:
        return len(self.columns)

    def name(self, sample: int) -> str:
        return f"toy:{printable(self.columns.entry(sample))}"

    def read(self, sample: int) -> bytes:
        found = self.stored.get(self.columns.entry(sample))
        if found is None:
            raise UserError(f"{self.name(sample)} is gone")
        self.check(sample, len(found))
        time.sleep(self.read_delay_s)
        return found

    def check(self, sample: int, size: int) -> None:
        if size != (expected := int(self.columns.size[sample])):
            raise UserError(
                f"{self.name(sample)} has {size} bytes, the manifest says {expected}"
            )


class Held:
    """dataset.scan.byte_ranges.Entries of bytes by name; a change of the file `mark` changes all of them."""

    def __init__(self, data: Path, mark: str, stored: dict[bytes, bytes]) -> None:
        self.data, self.mark, self.stored = data, mark, stored

    @contextmanager
    def opened(self, name: bytes) -> Iterator[tuple[int, ReadAt]]:
        if (found := self.stored.get(name)) is None:
            raise Rejected("no such entry")
        yield len(found), lambda offset, length: found[offset : offset + length]

    def shown(self, name: bytes) -> bytes:
        return b"toy:" + name

    def remember(self, visits: list[file_tree.Visit], names: Sequence[bytes]) -> None:
        file_tree.remember(visits, os.fsencode(self.data), os.fsencode(self.mark))


def missing(data: Path, split: str) -> str:
    return "" if (data / f"{split}.toy").exists() else f"{split}.toy"


def open(
    data: Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    read_delay_s: float = 0.0,
    **how: Any,
) -> Split:
    data = data.resolve()
    stored = STORED[data, split]
    held = Held(data, f"{split}.toy", stored)

    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        own = {name: os.fsdecode(name.partition(b"/")[0]) for name in stored}
        labels = file_tree.numbered(
            sorted(set(own.values())), classes, f"{data} has class"
        )
        file_tree.write_labelled(
            {name: labels[label] for name, label in own.items()}, made
        )
        held.remember(visits, list(stored))
        return labels

    columns = open_images(
        data,
        held,
        list_files,
        key=["toy", split],
        where=f"{data}/{split}.toy",
        classes=classes,
        **how,
    )
    return Split(columns=columns, source=Memory(columns, stored, read_delay_s))
