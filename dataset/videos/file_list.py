"""A list of video files: which file, which label, which part of it; must not know containers or frames.

clips/a b.mp4 3 path, label: as in the lists of Kinetics that SlowFast and MMAction2 read
clips/c.mp4,3,12.5,22.5 path, label, start, end in seconds from the file's first frame, end not included
"clips/d, e.mp4",3 quoted, as CSV writers do
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from contracts import Array, UserError
from dataset.manifest import printable
from dataset.videos.published import read_published

# seconds; the whole file: 0 to infinity
SAMPLE = np.dtype([("file", "i8"), ("label", "i4"), ("start", "f8"), ("end", "f8")])

_APART = r"[ \t]*[ \t,][ \t]*"  # blanks, tabs or one comma
_SECONDS = r"\d+(?:\.\d*)?|\.\d+"
_SEGMENT = re.compile(rf"(.+?){_APART}([^ \t,]+){_APART}({_SECONDS}){_APART}({_SECONDS})".encode())
_NUMBER = re.compile(_SECONDS.encode())
# as data frames write labels of which some are missing, and -1 for none
_OTHER_NUMBER = re.compile(r"-\d+(?:\.0*)?|\d+\.0*")
_WHOLE = re.compile(rf"(.+?){_APART}([^ \t,]+)".encode())
# out of a folder that the path has named, which may be a link
_BACK = re.compile(rb"(?:^|/)(?!\.\.?/)[^/]+/+\.\.(?:/|$)")
MOST_CLASSES = 100_000
"""Labels that are numbers say how many classes there are: a larger one is a date, an id or a slip."""


def read_list(path: Path, classes: Sequence[str] | None) -> tuple[list[bytes], Array, list[str]]:
    """Return (files, samples, classes) of a list: each file once, and a SAMPLE for each line, in order.

    Files are paths below the list's folder. Paths are relative to the list's folder or absolute, and may hold
    blanks and commas: a line is split from its right, and is a segment when it ends in two numbers behind
    path and label, unless a CSV writer has quoted its fields. Labels are numbers from 0, or names (their
    places are those of the sorted names). `classes` fixes the labels, as for folders. Raises UserError that
    names the line.
    """
    folder = os.fsencode(path.parent)
    places: dict[bytes, int] = {}
    lines = []
    labels = []
    for number, name, label, start, end in _lines(path):
        if _BACK.search(name):
            name = os.path.realpath(os.path.join(folder, name))
        if os.path.isabs(name):
            name = os.path.relpath(name, folder)
        file = places.setdefault(os.path.normpath(name), len(places))
        lines.append((file, number, start, end))
        labels.append(label)
    if not lines:
        raise UserError(f"--data: the list {path} is empty; {EXPECTED}")
    first = next(iter(places))
    own = labels[0]
    lonely = len(lines) > 1 and not own.isdecimal() and own not in (*labels[1:], *(classes or ()))
    if lonely and not os.path.exists(os.path.join(folder, first)):
        raise UserError(
            f"--data: {path} line {lines[0][1]} names no file, {printable(first)[:200]}, and has the label "
            f"'{own}', as no other line has. "
            f"A heading? Remove it; {EXPECTED}"
        )
    numbers = [label.isdecimal() for label in labels]
    if any(numbers) and not all(numbers):
        odd = numbers.index(not numbers[0])
        raise UserError(
            f"--data: {path} line {lines[0][1]} has the label '{own}' and line {lines[odd][1]} "
            f"'{labels[odd]}'; labels are all numbers "
            "from 0 or all names"
        )
    if all(_OTHER_NUMBER.fullmatch(label) for label in labels):
        raise UserError(
            f"--data: {path} line {lines[0][1]} has the label '{own}'; labels are whole numbers from 0, such "
            "as 3, or names"
        )
    if all(numbers):
        large = next(
            (i for i, label in enumerate(labels) if len(label) > 18 or int(label) >= MOST_CLASSES), None
        )
        if large is not None:
            raise UserError(
                f"--data: {path} line {lines[large][1]} has the label '{labels[large]}'; labels are numbers "
                "of classes, from 0 to "
                f"{MOST_CLASSES - 1:,} at most, or names"
            )
        labels = [str(int(label)) for label in labels]
    if classes is None:
        classes = (
            [str(label) for label in range(max(map(int, labels)) + 1)]
            if all(numbers)
            else sorted(set(labels))
        )
    place = {name: index for index, name in enumerate(classes)}
    unknown = next((i for i, label in enumerate(labels) if label not in place), None)
    if unknown is not None:
        raise UserError(
            f"--data: {path} line {lines[unknown][1]} has the label '{labels[unknown]}', which is none of "
            f"the {len(classes)} classes of "
            "the training data; remove the line, or add that class there"
        )
    samples = np.array(
        [
            (file, place[label], start, end)
            for (file, _, start, end), label in zip(lines, labels, strict=True)
        ],
        SAMPLE,
    )
    return list(places), samples, list(classes)


def _require_sense(path: Path, number: int, line: bytes, name: bytes, label: str) -> None:
    """Raise UserError where a line is split at a wrong place: its name is no file, but another part is.

    The rest would become a class.
    """
    folder = os.fsencode(path.parent)
    if not ("." in label or _WHOLE.fullmatch(name)) or os.path.exists(os.path.join(folder, name)):
        return
    cut = _WHOLE.fullmatch(line)
    while cut is not None:
        if os.path.isfile(os.path.join(folder, cut[1])):
            rest = printable(line[len(cut[1]) :]).strip(" \t,")
            raise UserError(
                f"--data: {path} line {number} has '{rest}' behind {printable(cut[1])}; {EXPECTED}"
            )
        cut = _WHOLE.fullmatch(cut[1])


def _quoted(line: bytes) -> tuple[bytes, ...] | None:
    """Return the fields of a line that a CSV writer has quoted; None: quotes are a part of its names."""
    for mark in (b",", b" ", b"\t"):
        if not line.startswith(b'"') and mark + b'"' not in line:
            continue
        try:
            found = next(
                csv.reader([os.fsdecode(line)], delimiter=os.fsdecode(mark), skipinitialspace=True), []
            )
        except csv.Error:  # a field of more than 128 KiB
            continue
        fields = tuple(map(os.fsencode, found))
        if all(fields) and (
            len(fields) == 2 or (len(fields) == 4 and all(map(_NUMBER.fullmatch, fields[2:])))
        ):
            return fields
    return None


EXPECTED = (
    "a line is 'path label' or 'path label start end' (decimal seconds from 0 on, such as 2.5), "
    "separated by blanks or commas"
)


def _lines(path: Path) -> Iterator[tuple[int, bytes, str, float, float]]:
    """Yield (line number, path, label, start, end) of each line that is not empty."""
    if not path.is_file():  # a pipe would be waited for
        raise UserError(f"--data: the list {path} is no file that can be read; {EXPECTED}")
    try:
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise UserError(f"--data: the list {path} cannot be read: {error.strerror}") from None
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"--data: the list {path} is in UTF-16; save it as UTF-8")
    if (published := read_published(path, text)) is not None:
        yield from ((number, name, label, 0.0, np.inf) for number, name, label in published)
        return
    folder = os.fsencode(path.parent)
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line:
            continue
        found = _SEGMENT.fullmatch(line) or _WHOLE.fullmatch(line)
        if found is None or b"\0" in line:
            raise UserError(f"--data: {path} line {number} is '{printable(line)[:200]}'; {EXPECTED}")
        fields = found.groups()
        if b'"' in line and not os.path.exists(os.path.join(folder, fields[0])):
            fields = _quoted(line) or fields
        name, label, *part = fields
        if len(label) > 2 and label.startswith(b'"') and label.endswith(b'"'):  # alone, without its path
            label = label[1:-1].replace(b'""', b'"')
        start, end = map(float, part) if part else (0.0, np.inf)
        if not start < end:
            raise UserError(
                f"--data: {path} line {number}: the segment ends at {end:g} s and starts at {start:g} s; the "
                "end must lie behind"
            )
        said = label.decode("utf-8", "backslashreplace")
        _require_sense(path, number, line, name, said)
        yield number, name, said, start, end
