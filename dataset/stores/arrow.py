"""Images in Arrow files, as Hugging Face's datasets leaves them: which samples, with which labels, and their
bytes; must not know formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contracts import Split, UserError
from dataset.scan.lists import class_names
from dataset.scan.packed_columns import beside
from dataset.stores._arrow_files import Place, find
from dataset.stores._arrow_rows import open_index, read_schema
from dataset.stores._shard_index import Index
from dataset.stores._shards import Labelled, Shards, index_options
from dataset.stores._stored import Stored, StoredEntries, split_of
from system import storage

FILES = False
HOLDS = "a folder that datasets.save_to_disk wrote: train/*.arrow and validation/*.arrow; or one of its cache"
LABELS = "label_key"


class ArrowShards(Shards):
    """The images of a split's Arrow files by path, or by row.

    `how` has the parameters of dataset.stores._arrow_rows.open_index.
    """

    def __init__(self, data: Path, split: str, **how: Any) -> None:
        super().__init__(partial(_open_index, data, split, **how))
        self._data = data
        self._split = split

    def files(self) -> Sequence[Path]:
        """Return the shards, what tells of them, and their folder. Raises UserError."""
        return _found(self._data, self._split).paths


def _open_index(data: Path, split: str, **how: Any) -> Index:
    return open_index(_found(data, split), **how)


def missing(data: Path, split: str) -> str:
    """Return what is not there: files of that split; `open` says which of several are missing."""
    try:
        return "" if _find(data, split) else f"{split}/*.arrow"
    except storage.StorageFault:
        raise
    except UserError:
        return ""


def _find(data: Path, split: str) -> Place | None:
    return storage.in_scan(partial(find, data, split), lambda: str(data))


def _found(data: Path, split: str) -> Place:
    place = _find(data, split)
    if place is None:
        raise UserError(f"--data {data}: has no {split}/*.arrow; it must be {HOLDS}")
    return place


def open(data: Path, split: str, *, labels: str | None = None, **how: Any) -> Split:
    """Open the images of data/<split>/*.arrow, as dataset.stores.SourceModule says.

    `labels` is the column that holds the label, where there is no single ClassLabel. Raises UserError.
    """
    real = Path(os.path.realpath(data))
    place = _found(real, split)
    schema = read_schema(place, labels)
    labelled = Labelled(
        shards=ArrowShards(real, split, samples=True, schema=schema, label_key=labels, **index_options(how)),
        named=schema.classes or class_names(place.folder, real, real / "train"),
        expected="a label is the number of a class, or its name",
        without=f"no label in the column {schema.label}",
    )
    return labelled.open(
        real,
        split,
        key=["arrow 2", split, labels],
        where=f"{place.folder}/*.arrow",
        beside=beside(real, split, "images", place.shards),
        **how,
    )


def entries(data: Path, cache: Path) -> StoredEntries:
    """Return the images of COCO's annotations: train2017/<file_name> is a path in train2017/*.arrow."""
    return StoredEntries(data, lambda split: ArrowShards(data, split, samples=False, cache=cache))


def source(columns: Any, read_delay_s: float = 0.0) -> Stored:
    """Return the bytes of the rows that the columns of COCO's images name."""
    split = split_of(columns)
    # beside the columns: the scan has left the index there
    cache = columns.folder.parent.parent
    shards = ArrowShards(columns.root, split, samples=False, cache=cache)
    return Stored(columns, shards, prefix=os.fsencode(split) + b"/", read_delay_s=read_delay_s)
