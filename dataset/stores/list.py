"""Lists of image files: which files, with which labels; must not know formats or headers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from contracts import Array, Split, UserError
from dataset.images.columns import Unread
from dataset.images.scan import open_images
from dataset.scan import file_tree, lists
from dataset.scan.byte_ranges import Files
from dataset.scan.cache import Progress
from dataset.scan.label_sets import taken_apart
from dataset.scan.lists import TRIED, VERSION, Grammar, Labels, List, class_names
from dataset.scan.manifest import FILE_LIST, Rejects, file_list
from dataset.stores.folder import Folder
from system.user_files import open_bytes

FILES = True
HOLDS = "a folder with, or beside, lists of images: train.csv and val.csv"
GRAMMAR = Grammar(
    expected="a line is 'path label', separated in all lines by TABs, commas (then quote a path that holds "
    "one) or blanks"
)
PIECE = 10_000
"""Lines that are written together: bounds the memory."""


class Listed(Folder):
    """A contracts.FileSource over the files of a list, of which some may not have been opened before."""

    def read(self, sample: int) -> bytes:
        """Return what Folder.read does; of a file whose header is not known yet whatever it holds.

        One whose header could not be read has no bytes, so that no decoder takes it: it is masked and named.
        """
        columns = self.manifest
        if not isinstance(columns, Unread):
            return super().read(sample)
        if not columns.height[sample]:
            with open_bytes(self.path(sample)) as file:
                return file.read()
        if not columns.components[sample]:
            return b""
        return super().read(sample)


def missing(data: Path, split: str) -> str:
    """Return what is not there: a list of that name, in `data` or beside it."""
    return "" if _lists(data, split) else f"list {split}.csv"


def _lists(data: Path, split: str) -> list[Path]:
    real = Path(os.path.realpath(data))
    return lists.find(real, split) or lists.find(real.parent, split)


def open(
    data: Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    read_delay_s: float = 0.0,
    unread: bool = False,
    sets: bool = False,
    **how: Any,
) -> Split:
    """Open the images of data/<split>.csv, as dataset.stores.SourceModule says, in the order of its lines.

    Paths begin at the list's folder, at `data` or at data/<split>: where most files of the first lines lie.
    `unread` as for dataset.images.scan.open_images. With `sets` labels are sets of classes:
    dataset.scan.label_sets. Raises UserError.
    """
    path, *others = _lists(data, split)
    if others:
        raise UserError(
            f"--data {data}: {path.name} and {others[0].name} are both lists of {split}; remove one"
        )
    listed = List(path, replace(GRAMMAR, sets=sets))
    folder = path.parent
    root = _root(listed, [folder, data, data / split])
    named = class_names(folder, data, data / "train")
    of_scan = None if sets else classes

    def list_files(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> dict[str, int]:
        file_tree.remember_paths(visits, root, [path])
        labels = Labels(listed)
        _write_file_list(listed, root, labels, made, rejects, say)
        used, class_of, _ = labels.classes(of_scan, None if sets else named)
        _renumber(made, class_of)
        if not unread:
            file_tree.remember_folders(visits, root, _folders(made))
        return {name: label for label, name in enumerate(used)}

    columns = open_images(
        data,
        Files(root),
        list_files,
        key=["list", VERSION, str(path), str(root), *(["sets"] if sets else [named])],
        where=str(path),
        root=root,
        classes=of_scan,
        listed=True,
        unread=unread,
        **how,
    )
    opened = Split(columns=columns, source=Listed(columns, read_delay_s))
    return taken_apart(opened, classes, named) if sets else opened


def _root(listed: List, folders: Sequence[Path]) -> Path:
    """Return the folder in which most files of the first lines lie, the first one of equals.

    Raises UserError.
    """
    names = [fields[0] for _, fields in listed.head[:TRIED]]
    counts = [
        sum(os.path.exists(folder / name) for name in names) for folder in folders
    ]
    return Path(os.path.realpath(folders[counts.index(max(counts))]))


def _write_file_list(
    listed: List,
    root: Path,
    labels: Labels,
    made: Path,
    rejects: Rejects,
    say: Progress,
) -> None:
    """Write made/file_list.*, with labels as `labels` numbers them. Raises UserError."""
    heading = listed.heading(lambda name: os.path.isfile(root / name))
    if heading:
        rejects(os.fsencode(listed.path), f"line 1 is a heading: {heading}")
    rows = listed.rows(skip=bool(heading))
    below = f"{root}/"
    known = labels.number_of
    with file_tree.FileList(made) as files:
        while part := list(islice(rows, PIECE)):
            names = [fields[0] for _, fields in part]
            if any(name.startswith(("/", "./")) for name in names):
                names = [name.removeprefix(below).removeprefix("./") for name in names]
            # asked of the dictionary itself: a call for each of millions of lines takes half as long again
            numbers = [known.get(fields[1]) for _, fields in part]
            if None in numbers:
                numbers = [labels.number(fields[1], line) for line, fields in part]
            files.add(list(map(os.fsencode, names)), np.array(numbers))
            say(files.total, 0, "reading the list")
    if not files.total:
        raise listed.without_rows()


def _folders(made: Path) -> set[bytes]:
    """Return the folders of the files in made/file_list.*."""
    paths, offsets, _ = file_list(made)
    found = set[bytes]()
    for first in range(0, len(offsets) - 1, PIECE):
        ends = offsets[first : first + PIECE + 1]
        blob = paths[ends[0] : ends[-1]].tobytes()
        found |= file_tree.folders_of(
            [blob[a:b] for a, b in pairwise((ends - ends[0]).tolist())]
        )
    return found


def _renumber(made: Path, class_of: Array) -> None:
    """Write the class of each label in place of its number."""
    ids = np.memmap(made / "file_list.labels", FILE_LIST["labels"], "r+")
    for first in range(0, len(ids), PIECE):
        ids[first : first + PIECE] = class_of[ids[first : first + PIECE]]
