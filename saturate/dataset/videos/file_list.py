"""A list of video files: which file, which label, which part of it; must not know containers or frames.

clips/a b.mp4 3 path, label: as in the lists of Kinetics that SlowFast and MMAction2 read
clips/c.mp4,3,12.5,22.5 path, label, start, end in seconds from the file's first frame, end not included

dataset/scan/lists.py says how lines are split.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saturate.contracts import Array
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.lists import Grammar, Labels, List, class_names

# seconds; the whole file: 0 to infinity
SAMPLE = np.dtype([("file", "i8"), ("label", "i4"), ("start", "f8"), ("end", "f8")])
GRAMMAR = Grammar(
    expected="a line is 'path label' or 'path label start end' (decimal seconds from 0 on, such as 2.5), separated in "
    "all lines by TABs, semicolons, commas (then quote a path that holds one) or blanks",
    separators="\t;,",
    segments=True,
)


def read_list(
    path: Path, classes: Sequence[str] | None, scan: Scan
) -> tuple[list[bytes], Array, list[str], bool]:
    """Return (files, samples, classes, fixed): each file once, and a SAMPLE for each line, in order.

    Files are paths below the list's folder. Paths are relative to the list's folder or absolute. Labels are
    as in dataset.scan.lists.Labels, and `fixed` tells that the list says which classes there are. `classes`
    fixes the labels, as for folders. A heading is rejected. Raises UserError that names the line.
    """
    folder = os.fsencode(path.parent)
    lines = List(path, GRAMMAR)
    lines.place([path.parent])
    labels = Labels(lines)
    places: dict[bytes, int] = {}
    rows = []
    for number, (text, label, *part) in lines.rows(skip=lines.heading(scan)):
        start, end = map(float, part) if part else (0.0, np.inf)
        if not start < end:
            raise lines.wrong(
                number,
                f"has a segment that ends at {end:g} s and starts at {start:g} s; the end must lie behind",
            )
        name = os.fsencode(lines.in_form(text))
        if b"\0" in name:
            raise lines.wrong(number, "has a NUL in its path")
        # out of a folder that the path has named, which may be a link
        if b"/../" in name.removeprefix(b"../"):
            name = os.path.realpath(os.path.join(folder, name))
        if os.path.isabs(name):
            name = os.path.relpath(name, folder)
        file = places.setdefault(os.path.normpath(name), len(places))
        rows.append((file, labels.number(label, number), start, end))
    if not rows:
        raise lines.without_rows()
    used, class_of, fixed = labels.classes(
        classes, class_names(path.parent, path.parent / "train")
    )
    samples = np.array(rows, SAMPLE)
    samples["label"] = class_of[samples["label"]]
    return list(places), samples, used, fixed
