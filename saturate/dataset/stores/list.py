"""Lists of image files: which files, with which labels; must not know formats or headers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Unpack

import numpy as np

from saturate.contracts import Array, Split, UserError
from saturate.dataset.images.columns import Images, Unread
from saturate.dataset.images.scan import open_images
from saturate.dataset.scan import file_tree, lists
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.cache import Options
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.label_sets import taken_apart
from saturate.dataset.scan.lists import VERSION, Grammar, Labels, List, class_names
from saturate.dataset.scan.manifest import FILE_LIST, file_list
from saturate.dataset.stores.folder import Folder
from saturate.system.user_files import open_bytes

FILES = True
HOLDS = "a folder with, or beside, lists of images: train.csv and val.csv"
LABELS = ""
GRAMMAR = Grammar(
    expected="a line is 'path label', separated in all lines by TABs, commas (then quote a path that holds "
    "one) or blanks"
)
PIECE = 10_000
"""Lines that are written together: bounds the memory."""
LARGE = 10_000_000
"""Bytes of a list from which on Arrow reads it, where it can: a shorter one is read before Arrow is imported."""


class Listed(Folder):
    """A contracts.FileSource over the files of a list, of which some may not have been opened before."""

    def read(self, sample: int) -> bytes:
        """Return what Folder.read does; of a file whose header is not known yet whatever it holds.

        One whose header could not be read has no bytes, so that no decoder takes it: it is masked and named.
        """
        columns = self.columns
        if isinstance(columns, Unread):
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
    separator: str | None = None,
    **how: Unpack[Options],
) -> Split[Images]:
    """Open the images of data/<split>.csv, as dataset.stores.SourceModule says, in the order of its lines.

    Paths begin at the list's folder, at `data` or at data/<split>: where most files of the first lines lie.
    `unread` as for dataset.images.scan.open_images. With `sets` labels are sets of classes,
    with `separator` between them: dataset.scan.label_sets. Raises UserError.
    """
    path, *others = _lists(data, split)
    if others:
        raise UserError(
            f"--data {data}: {path.name} and {others[0].name} are both lists of {split}; remove one"
        )
    listed = List(path, replace(GRAMMAR, sets=sets))
    folder = path.parent
    root = Path(os.path.realpath(listed.place([folder, data, data / split])))
    named = class_names(folder, data, data / "train")
    of_scan = None if sets else classes

    def list_files(scan: Scan) -> dict[str, int]:
        scan.remember(path)
        labels = _write_file_list(listed, scan)
        used, class_of, _ = labels.classes(of_scan, None if sets else named)
        _renumber(scan.made, class_of)
        if not unread:
            scan.remember_folders(_names(scan.made))
        return {name: label for label, name in enumerate(used)}

    columns = open_images(
        data,
        Files(root),
        list_files,
        key=[
            *("list", VERSION, str(path), str(root), *filter(None, [listed.form])),
            *(["sets"] if sets else [named]),
        ],
        where=str(path),
        root=root,
        classes=of_scan,
        listed=True,
        unread=unread,
        **how,
    )
    opened = Split(columns=columns, source=Listed(columns, read_delay_s))
    return taken_apart(opened, classes, named, separator) if sets else opened


def _write_file_list(listed: List, scan: Scan) -> Labels:
    """Write made/file_list.*, and return its labels, by whose numbers they stand there. Raises UserError."""
    heading = listed.heading(scan)
    pieces: Pieces = _pieces
    if listed.path.stat().st_size >= LARGE and _is_plain(listed):
        pieces = _pieces_by_arrow
    try:
        labels = _write_pieces(pieces, listed, heading, scan)
    except NotPlain:
        labels = _write_pieces(_pieces, listed, heading, scan)
    if not labels.number_of:
        raise listed.without_rows()
    return labels


Pieces = Callable[[List, Labels, bool], Iterator[tuple[list[bytes], Array]]]
"""(list, labels to be numbered, whether it has a heading) -> names of files and the numbers of their labels,
some thousand at a time.
"""


class NotPlain(Exception):
    """A list has a line that only the full grammar reads, or that is wrong."""


def _write_pieces(
    pieces: Pieces, listed: List, has_heading: bool, scan: Scan
) -> Labels:
    labels = Labels(listed)
    below = os.fsencode(f"{scan.root}/")

    def meant() -> Iterator[tuple[list[bytes], Array]]:
        total = 0
        for names, numbers in pieces(listed, labels, has_heading):
            # one search in all of them, since there may be millions
            lines = b"\n" + b"\n".join(names)
            if b"\n/" in lines or b"\n./" in lines:
                names = [name.removeprefix(below).removeprefix(b"./") for name in names]
            if listed.form:
                names = [os.fsencode(listed.in_form(os.fsdecode(one))) for one in names]
            yield names, numbers
            total += len(names)
            scan.progress(total, 0, "reading the list")

    file_tree.write_file_list(scan.made, meant())
    return labels


def _pieces(
    listed: List, labels: Labels, has_heading: bool
) -> Iterator[tuple[list[bytes], Array]]:
    rows = listed.rows(skip=int(has_heading))
    known = labels.number_of
    while part := list(islice(rows, PIECE)):
        # asked of the dictionary itself: a call for each of millions of lines takes half as long again
        numbers = [known.get(fields[1]) for _, fields in part]
        if None in numbers:
            numbers = [labels.number(fields[1], line) for line, fields in part]
        yield [os.fsencode(fields[0]) for _, fields in part], np.array(numbers)


def _is_plain(listed: List) -> bool:
    """Whether Arrow splits a list as the grammar does: each line is two fields that are taken as they are."""
    separator = listed.separator.encode()
    if separator == b" " or listed.grammar.sets:
        return False
    odd = [b'"', b"\0", b"\r", b"\n\n", b"\n ", separator + b" "]
    last = b"\n"  # the first line begins like any other
    with open_bytes(listed.path) as file:
        while block := file.read(1 << 20):
            text = last + block
            if any(sign in text for sign in odd):
                return False
            last = text[-1:]
    return True


def _pieces_by_arrow(
    listed: List, labels: Labels, has_heading: bool
) -> Iterator[tuple[list[bytes], Array]]:
    """Yield what `_pieces` does, of a plain list and sooner. Raises NotPlain."""
    import pyarrow
    from pyarrow import compute, csv

    names = ["path", "label"]
    try:
        reader = csv.open_csv(
            listed.path,
            csv.ReadOptions(column_names=names, skip_rows=int(has_heading)),
            csv.ParseOptions(delimiter=listed.separator, quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.binary())),
        )
        line = 1 + has_heading
        for batch in reader:
            paths, of_lines = batch.columns
            if not all(
                compute.min(compute.binary_length(one)).as_py() for one in batch
            ):
                raise NotPlain
            coded = of_lines.dictionary_encode()
            places = coded.indices.to_numpy()
            numbers = []
            for place, label in enumerate(coded.dictionary.to_pylist()):
                text = label.decode("utf-8", "surrogateescape")
                first = labels.number_of.get(text)
                if first is None:
                    first = labels.number(text, line + int(np.argmax(places == place)))
                numbers.append(first)
            yield paths.to_pylist(), np.array(numbers)[places]
            line += len(batch)
    except (pyarrow.ArrowException, OSError) as error:
        raise NotPlain from error


def _names(made: Path) -> Iterator[bytes]:
    """Yield the names in made/file_list.*."""
    paths, offsets, _ = file_list(made)
    for first in range(0, len(offsets) - 1, PIECE):
        ends = offsets[first : first + PIECE + 1]
        blob = paths[ends[0] : ends[-1]].tobytes()
        for begin, end in pairwise((ends - ends[0]).tolist()):
            yield blob[begin:end]


def _renumber(made: Path, class_of: Array) -> None:
    """Write the class of each label in place of its number."""
    ids = np.memmap(made / "file_list.labels", FILE_LIST["labels"], "r+")
    for first in range(0, len(ids), PIECE):
        ids[first : first + PIECE] = class_of[ids[first : first + PIECE]]
