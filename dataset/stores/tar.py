"""Images in tar shards: which samples, with which labels, and their bytes; must not know formats."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from contracts import Split
from dataset.scan.file_tree import names_below
from dataset.scan.lists import class_names
from dataset.stores._shards import Labelled, Shards, index_options
from dataset.stores._stored import Stored, StoredEntries, split_of
from dataset.stores._tar_samples import PACKED, open_index, shelf, urls_of
from dataset.stores.bucket import SHARDS

FILES = False
HOLDS = "a folder with tar shards, train/*.tar and val/*.tar, or train/shards.txt with their URLs"
LABELS = "label_key"


class TarShards(Shards):
    """The images of folder/*.tar by name; `how` is that of dataset.stores._tar_samples.open_index."""

    def __init__(self, folder: Path, *, cache: Path, **how: Any) -> None:
        super().__init__(partial(open_index, folder, cache=cache, **how))
        self._folder = folder
        self._cache = cache

    @cached_property
    def urls(self) -> Mapping[str, str]:
        """Return the whole URL of each shard that lies behind one, by its name."""
        return urls_of(self._folder)

    @property
    def remote(self) -> bool:
        """Whether shards lie behind URLs."""
        return os.path.lexists(self._folder / SHARDS)

    def files(self) -> Sequence[Path]:
        """Return what shows a change of shards. Raises UserError."""
        return shelf(self._folder, self._cache).paths


def missing(data: Path, split: str) -> str:
    """Return what is not there: shards in a folder of that name; `open` refuses compressed ones."""
    names: list[str] = []
    with suppress(OSError):
        names = names_below(data / split)
    endings = (".tar", *(f".tar{ending}" for ending in PACKED), ".tgz")
    return "" if SHARDS in names or any(name.endswith(endings) for name in names) else f"{split}/*.tar"


def open(data: Path, split: str, *, labels: str | None = None, **how: Any) -> Split:
    """Open the images of data/<split>/*.tar, as dataset.stores.SourceModule says.

    `labels` is the key of a sample's .json that holds its label, which is else in .cls. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    folder = real / split
    labelled = Labelled(
        shards=TarShards(folder, samples=True, label_key=labels, **index_options(how)),
        named=class_names(folder, real, real / "train"),
        expected="a label is the number of a class or its name, in .cls or by --label-key",
        without=f"no label: no {labels} in its .json" if labels else "no label: no .cls beside it",
    )
    return labelled.open(
        real,
        split,
        key=["tar 2", split, labels],  # as the index has it
        where=f"{folder}/*.tar",
        beside=shelf(folder, how["cache"]).beside("images"),
        **how,
    )


def entries(data: Path, cache: Path) -> StoredEntries:
    """Return the images of COCO's annotations: train2017/<file_name> is a member of train2017/*.tar."""
    return StoredEntries(
        data,
        lambda split: TarShards(data / split, samples=False, cache=cache),
        remote=any((folder / SHARDS).exists() for folder in data.iterdir()),
    )


def source(columns: Any, read_delay_s: float = 0.0) -> Stored:
    """Return the bytes of the members that the columns of COCO's images name."""
    split = split_of(columns)
    # beside the columns: the scan has left the index there
    shards = TarShards(columns.root / split, samples=False, cache=columns.folder.parent.parent)
    if shards.remote:
        shards.index  # noqa: B018  # here, since heads are asked for in a process, which a worker may not start
    return Stored(columns, shards, prefix=os.fsencode(split) + b"/", read_delay_s=read_delay_s)
