"""Lists of videos as the makers of data sets publish them, where they are no lists of paths and labels: of
Kinetics and UCF101; must not know containers, frames or orders."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
_CONVERT = (
    "import csv, json, sys",
    "rows = json.load(open(sys.argv[1]))",
    'name = lambda row: row["template"].replace("[", "").replace("]", "")',
    "write = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL).writerows",
    'write(["20bn-something-something-v2/%s.webm" % row["id"], name(row)] for row in rows)',
)
CONVERT_JSON = f"python3 -c '{'; '.join(_CONVERT)}' FILE.json > train.csv"


def read_published(lines: List) -> Iterator[Line] | None:
    """Return the lines of one of these lists; None: it is none of them. Raises UserError."""
    if lines.begin.lstrip().startswith(("[", "{")):
        raise UserError(
            f"--data: the list {lines.path} is JSON; of Something-Something this makes a list: {CONVERT_JSON}"
        )
    if lines.head and {*_KINETICS} <= {*lines.head[0][1]}:
        return _kinetics(lines)
    return _ucf(lines)


def _kinetics(lines: List) -> Iterator[Line]:
    """Yield the lines of `label,youtube_id,time_start,time_end,split`, in the order of the heading. The file
    is <id>_<start>_<end>, with six digits each, in the folder of the list's name, in that of its class or in
    neither."""
    base = lines.path.with_suffix("")
    places = [lines.head[0][1].index(name) for name in _KINETICS]
    held: dict[str, dict[str, str]] = {}
    for number, row in islice(lines.records(), 1, None):
        try:
            label, video, start, end = (row[place] for place in places)
            stem = f"{video}_{round(float(start)):06d}_{round(float(end)):06d}"
            if "\0" in label + video:
                raise ValueError("no name of a file has a NUL")
        except (
            ValueError,
            IndexError,
            OverflowError,
        ):  # of infinity, which has no whole number
            line = printable(os.fsencode(",".join(row)))[:200]
            raise lines.wrong(
                number,
                f"is '{line}'; a line of Kinetics is label,youtube_id,time_start,time_end,split",
            ) from None
        folders = [
            f"{base.name}/{label}",
            f"{base.name}/{label.replace(' ', '_')}",
            base.name,
        ]
        for folder in folders:
            if folder not in held:
                held[folder] = _stems(lines.path.parent / folder)
        path = next(
            (f"{each}/{held[each][stem]}" for each in folders if stem in held[each]),
            None,
        )
        yield number, path or f"{folders[0]}/{stem}.mp4", label


def _stems(folder: Path) -> dict[str, str]:
    """The files of a folder: name without its ending -> name."""
    try:
        return {name.rpartition(".")[0]: name for name in os.listdir(folder)}
    except OSError as error:
        if storage.lost(error, folder=True):
            raise storage.end_scan(error, str(folder)) from None
        return {}


def _ucf(lines: List) -> Iterator[Line] | None:
    """Return the lines `class/file.avi number`, or `class/file.avi` of a test, where the file classInd.txt
    beside the list says which number is which class; None: they are none."""
    path = lines.path.parent / _CLASSES
    try:
        words = [
            line.split()
            for line in read_text(path, "utf-8-sig", "surrogateescape").splitlines()
        ]
    except FileNotFoundError:
        if lines.head and all(
            len(fields) == 1 and "/" in fields[0] for _, fields in lines.head
        ):
            why = f"has no label; a test list of UCF101 needs {path}, which numbers the classes; or else"
            raise lines.wrong(
                lines.head[0][0], f"{why} {lines.grammar.expected}"
            ) from None
        return None
    except OSError as error:
        raise UserError(f"--data: {path} cannot be read: {error.strerror}") from None
    names = {word[0]: word[1] for word in words if len(word) == 2}
    known = set(names.values())
    if names:
        require_once([*names.values()], str(path))
    rows = list[Line]()
    for number, fields in lines.records():
        label = (
            names.get(fields[1]) if len(fields) == 2 else fields[0].partition("/")[0]
        )
        if len(fields) > 2 or label not in known:
            return None
        if "\0" in fields[0]:
            line = printable(os.fsencode(" ".join(fields)))[:200]
            raise lines.wrong(number, f"is '{line}'; no path of a file has a NUL")
        rows.append((number, fields[0], label))
    return iter(rows)
