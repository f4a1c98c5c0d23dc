"""Lists of videos as the makers of data sets publish them, where they are no lists of paths and labels: of
Kinetics and UCF101; must not know containers, frames or orders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from contracts import UserError
from dataset.scan.lists import List, require_once
from dataset.scan.manifest import printable
from system import storage
from system.user_files import read_text

Line = tuple[int, str, str]
"""Number of a line, path below the list's folder, name of the class."""
_KINETICS = ["label", "youtube_id", "time_start", "time_end"]
UCF_LISTS = {"train": "trainlist01.txt", "val": "testlist01.txt"}
"""The lists of UCF101's first split, the one that figures are of where none is named, by our splits."""
_CLASSES = "classInd.txt"


def read_published(lines: List) -> Iterator[Line] | None:
    """Return the lines of one of these lists; None: it is none of them. Raises UserError."""
    if lines.begin.lstrip().startswith(("[", "{")):
        raise UserError(
            f"--data: the list {lines.path} is JSON: docs/video.md has a command that makes a list of "
            "Something-Something's"
        )
    if lines.head and {*_KINETICS} <= {*lines.head[0][1]}:
        return _kinetics(lines)
    return _ucf(lines)


def _kinetics(lines: List) -> Iterator[Line]:
    """Yield the lines of `label,youtube_id,time_start,time_end,split`, in the order of the heading.

    The file is <id>_<start>_<end>, with six digits each, in the folder of the list's name, in that of its
    class or in neither.
    """
    base = lines.path.with_suffix("").name
    places = [lines.head[0][1].index(name) for name in _KINETICS]
    stems = cache(_stems)
    for number, row in islice(lines.records(), 1, None):
        try:
            label, video, start, end = (row[place] for place in places)
            stem = f"{video}_{round(float(start)):06d}_{round(float(end)):06d}"
        # OverflowError: infinity has no whole number
        except (ValueError, IndexError, OverflowError):
            line = printable(os.fsencode(",".join(row)))[:200]
            raise lines.wrong(
                number,
                f"is '{line}'; a line of Kinetics is label,youtube_id,time_start,time_end,split",
            ) from None
        folders = [f"{base}/{label}", f"{base}/{label.replace(' ', '_')}", base]
        path = f"{folders[0]}/{stem}.mp4"
        for folder in folders:
            if name := stems(lines.path.parent / folder.partition("\0")[0]).get(stem):
                path = f"{folder}/{name}"
                break
        yield number, path, label


def _stems(folder: Path) -> dict[str, str]:
    """Return the files of a folder: name without its ending -> name."""
    try:
        return {name.rpartition(".")[0]: name for name in os.listdir(folder)}
    except OSError as error:
        if storage.lost(error, folder=True):
            raise storage.end_scan(error, str(folder)) from None
        return {}


def _ucf(lines: List) -> Iterator[Line] | None:
    """Return the lines `class/file.avi number`, or `class/file.avi` of a test; None: they are none.

    The file classInd.txt beside the list says which number is which class.
    """
    path = lines.path.parent / _CLASSES
    try:
        text = read_text(path, "utf-8-sig", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"--data: {path} cannot be read: {error.strerror}") from None
    words = [line.split() for line in text.splitlines()]
    names = {word[0]: word[1] for word in words if len(word) == 2}
    if names:
        require_once([*names.values()], str(path))
    rows = list[Line]()
    for number, fields in lines.records():
        label = fields[0].partition("/")[0]
        if len(fields) == 2:
            label = names.get(fields[1], "")
        if len(fields) > 2 or label not in names.values():
            return None
        rows.append((number, fields[0], label))
    return iter(rows)
