"""The one grammar of lists, files of names with a label a line: where fields, headings and classes are.

Must not know what a name stands for: an image, a video, an entry of a store.

One character separates the fields of a file, the first of these that does in most of its first 1,000 lines:
a TAB, a semicolon (lists of videos), a comma, else the last blank of a line. Fields between TABs, semicolons
and commas may be quoted as CSV writers do, and then hold the separator, quotes and, in a path, ends of lines:

    images/a b.jpg 3                 "images/d, ""e"".jpg",cat            images/c.jpg<TAB>tabby cat

No label holds an end of a line, and no path with one the separator before it: they would be rows that a quote
which is left open has taken.
Labels are numbers of classes, or names. Everything takes time linear in the file's length.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from contracts import Array, UserError
from dataset.scan import spelling
from dataset.scan.manifest import printable
from system import storage
from system.user_files import open_bytes, open_text, read_text

VERSION = 2
"""The grammar's version: a list that was scanned under another one is scanned anew."""
HEAD = 1_000
"""Lines in which separator and heading are looked for."""
TRIED = 100
"""Lines whose files are looked for, to find the folder that paths begin at."""
ENDINGS = (".csv", ".tsv", ".txt")
CLASSES = "classes.txt"
"""Beside a list: the name of each class, one a line, in the order of their numbers."""
MOST_CLASSES = 100_000
"""Labels that are numbers say how many classes there are: a larger one is a date, an id or a slip."""
BLANK = " "
SECONDS = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_LINE_END = re.compile(r"[\r\n]")
_OTHER_NUMBER = re.compile(r"-\d+(?:\.0*)?|\d+\.0*")
"""Labels as data frames write them when some are missing, and -1 for none."""
WORD = re.compile(r"[^\W_]+")
OF_PATHS = {
    "path",
    "file",
    "filename",
    "filepath",
    "image",
    "img",
    "picture",
    "photo",
    "video",
    "clip",
}
OF_PATHS |= {"id", "key", "name"}
"""Words that headings call the column of paths by: image_path, "Image Path" and image.path are of them."""
OF_LABELS = {
    "label",
    "labels",
    "class",
    "classname",
    "category",
    "target",
    "name",
    "id",
    "index",
}
Record = tuple[int, list[str]]
"""Number of a line, its fields."""


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """What one kind of list has beside 'path label'."""

    expected: str  # in words, behind what is wrong with a line
    separators: str = "\t,"  # tried in this order, before the last blank
    segments: bool = False  # 'path label start end' too, in seconds
    # a label is a set of names, for dataset.scan.label_sets; it may be empty
    sets: bool = False


def find(folder: Path, split: str) -> list[Path]:
    """Return the lists of a split in a folder."""
    return [
        path
        for ending in ENDINGS
        if os.path.lexists(path := folder / f"{split}{ending}")
    ]


class List:
    """A list whose separator is known. Raises UserError for what is no text file."""

    def __init__(self, path: Path, grammar: Grammar) -> None:
        self.path = path
        self.grammar = grammar
        with self._opened() as file:
            lines = list(islice(file, HEAD))
        self.begin = lines[0] if lines else ""
        self.separator = _separator(lines, grammar.separators)
        self.head = self._head(lines)

    def records(self) -> Iterator[Record]:
        """Yield every line that is not empty, with as many fields as it has."""
        with self._opened() as file:
            yield from self._split(file)

    def rows(self, *, skip: int = 0) -> Iterator[Record]:
        """Yield every line behind the first `skip`: [path, label], or path, label, start, end.

        Raises UserError for a line that has other fields.
        """
        for number, fields in islice(self.records(), skip, None):
            if len(fields) != 2:  # few are: there may be millions of lines
                self._trim(fields)
            filled = fields[0] if self.grammar.sets else all(fields)
            if (
                (len(fields) != 2 and not self._is_segment(fields))
                or not filled
                or "\0" in fields[0]
            ):
                line = printable(os.fsencode(self.separator.join(fields)))[:200]
                raise self.wrong(number, f"is '{line}'; {self.grammar.expected}")
            yield number, fields

    def _trim(self, fields: list[str]) -> None:
        """Take away the empty fields by which spreadsheets fill up lines."""
        while len(fields) > 2 and not fields[-1]:
            fields.pop()

    def _is_segment(self, fields: list[str]) -> bool:
        return (
            self.grammar.segments
            and len(fields) == 4
            and all(map(SECONDS.fullmatch, fields[2:]))
        )

    def heading(self, exists: Callable[[str], bool]) -> str:
        """Return the first line where it is a heading, else "".

        Then its path is no file, its label is no other line's, and it names columns or looks unlike the rest.
        """
        if not self.head or len(self.head[0][1]) < 2:
            return ""
        name, label = self.head[0][1][:2]
        others = [fields for _, fields in self.head[1:] if len(fields) > 1]
        labels = {fields[1] for fields in others}
        of_numbers = not label.isdecimal() and all(map(str.isdecimal, labels))
        unlike = "." not in name and all(
            "." in fields[0] or "/" in fields[0] for fields in others
        )
        names_columns = is_of(name, OF_PATHS) or is_of(label, OF_LABELS)
        told = names_columns or (others and (of_numbers or unlike))
        if not told or "/" in name or label in labels or exists(name):
            return ""
        return printable(os.fsencode(self.begin.strip()))[:200]

    def require_paths_first(self, folders: Sequence[Path]) -> None:
        """Raise UserError where no first field is a file in one of these folders, and a second one is."""
        rows = [fields for _, fields in self.head[:TRIED] if len(fields) > 1]
        for place in (0, 1):
            names = [fields[place] for fields in rows]
            if any(
                os.path.isfile(folder / name) for folder in folders for name in names
            ):
                break
        else:
            return
        if place:
            raise UserError(
                f"--data: the list {self.path} has its labels before its paths; {self.grammar.expected}"
            )

    def without_rows(self) -> UserError:
        """Return the error of a list that names nothing: it is empty, or has a heading alone."""
        what = "has no row behind its heading" if self.head else "is empty"
        return UserError(
            f"--data: the list {self.path} {what}; {self.grammar.expected}"
        )

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a line."""
        return UserError(f"--data: {self.path} {self.place(line)} {what}")

    def place(self, line: int) -> str:
        """Return what messages call a line."""
        return f"line {line}"

    def _opened(self) -> TextIO:
        path = self.path

        def opened() -> TextIO:
            with open_bytes(path) as file:
                if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                    raise UserError(
                        f"--data: the list {path} is in UTF-16; save it as UTF-8"
                    )
            # names of files may be no UTF-8
            return open_text(path, "utf-8-sig", "surrogateescape", newline="")

        try:
            return storage.in_scan(opened, lambda: f"the list {path}")
        except OSError as error:
            why = error.strerror
            raise UserError(
                f"--data: the list {path} is no file that can be read: {why}; {self.grammar.expected}"
            ) from None

    def _head(self, lines: Sequence[str]) -> list[Record]:
        if self.separator == BLANK:
            return list(self._split(lines))
        rows = enumerate(_leniently(lines, self.separator), 1)
        return [
            (number, fields) for number, fields in rows if any(map(str.strip, fields))
        ]

    def _split(self, lines: Iterable[str]) -> Iterator[Record]:
        if self.separator == BLANK:
            yield from _by_blanks(lines, segments=self.grammar.segments)
            return
        # strict: else "5 inch" disk would lose its quotes, and be another name
        reader = csv.reader(
            lines, delimiter=self.separator, skipinitialspace=True, strict=True
        )
        number = 1
        try:
            for fields in reader:
                if reader.line_num != number and self._has_taken_rows(fields):
                    raise self._open_quote(number, "a field goes on behind its end")
                if len(fields) > 1 or (fields and fields[0].strip()):
                    yield number, fields
                number = reader.line_num + 1
        except csv.Error as error:
            raise self._open_quote(number, printable(str(error).encode())) from None

    def _has_taken_rows(self, fields: Sequence[str]) -> bool:
        """Whether the fields of several lines seem to be rows, between two quotes that are of two of them."""
        name, *others = fields
        begin = _LINE_END.split(name, maxsplit=1)[0]
        return self.separator in begin or any(map(_LINE_END.search, others))

    def _open_quote(self, line: int, why: str) -> UserError:
        return self.wrong(
            line,
            f"cannot be split ({why}): a field that begins with a quote has one at its end too; is a quote "
            'left open? One that is a part of a name is written as CSV does, """5 inch"',
        )


def _by_blanks(lines: Iterable[str], *, segments: bool) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        fields = line.rsplit(None, 3) if segments else []
        if len(fields) < 4 or not all(map(SECONDS.fullmatch, fields[2:])):
            fields = line.rsplit(None, 1)
        yield number, fields


def is_of(text: str, words: set[str]) -> bool:
    """Whether a field of the first line names a column, in words that are all among these."""
    found = WORD.findall(text.strip().lower())
    return bool(found) and words.issuperset(found)


def _leniently(lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the fields of the first lines; each line is split by itself where a quote is left open.

    What is wrong with a line is told when its row is read.
    """
    try:
        return list(
            csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
        )
    except csv.Error:
        return [_alone(line, separator) for line in lines]


def _alone(line: str, separator: str) -> list[str]:
    with suppress(csv.Error):
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    return []


def _separator(lines: Sequence[str], candidates: str) -> str:
    """Return the first of `candidates` that separates fields in most of these lines, else a blank."""
    for candidate in candidates:
        if not any(candidate in line for line in lines):
            continue
        rows = _leniently(lines, candidate)
        if 2 * sum(len(fields) > 1 for fields in rows) > sum(map(bool, rows)):
            return candidate
    return BLANK


class Labelled(Protocol):
    """Where labels come from: a List, or whatever else can say which of its lines is wrong."""

    @property
    def grammar(self) -> Grammar: ...
    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a line."""

    def place(self, line: int) -> str:
        """Return what messages call a line."""


class Labels:
    """The labels of a list, numbered as they come, and the classes that they are once all are known."""

    def __init__(self, source: Labelled) -> None:
        self._list = source
        self.number_of: dict[
            str, int
        ] = {}  # for loops over millions of lines; `number` adds to it
        self._words: list[str] = []
        self._lines: list[int] = []

    def number(self, label: str, line: int) -> int:
        """Return the number of a label. Raises UserError for one more than MOST_CLASSES."""
        found = self.number_of.get(label)
        if found is not None:
            return found
        if len(self._words) == MOST_CLASSES:
            shown = _shown(label)[:50]
            raise self._list.wrong(
                line,
                f"has yet another label, '{shown}', after {MOST_CLASSES:,}; {self._list.grammar.expected}",
            )
        self.number_of[label] = len(self._words)
        self._words.append(label.strip())
        self._lines.append(line)
        return len(self._words) - 1

    def classes(
        self, given: Sequence[str] | None, named: Sequence[str] | None
    ) -> tuple[list[str], Array, bool]:
        """Return the classes, the class of each number (int32), and whether these are all that there are.

        Labels that are whole numbers are numbers of classes, whose names are `named`, or the numbers
        themselves. Others are names, sorted, or in the order of `named`. `given` are the classes of the
        training data, among which these are found by name. Numbers, and `named`, say which classes there are
        whatever has an image. Raises UserError that names a line.
        """
        words = self._words
        numbers = self._are_numbers()
        if numbers:
            words = [str(int(word)) for word in words]
            if named is not None:
                words = [
                    self._named(place, int(word), named)
                    for place, word in enumerate(words)
                ]
        classes = list(given if given is not None else named or [])
        if not classes:
            classes = (
                list(map(str, range(max(map(int, words)) + 1)))
                if numbers
                else sorted(set(words))
            )
        places = {name: place for place, name in enumerate(classes)}
        unknown = next((i for i, word in enumerate(words) if word not in places), None)
        if unknown is not None:
            whose = f"of {CLASSES}" if given is None else "of the training data"
            why = spelling.cause(words[unknown], places.__contains__)
            raise self._list.wrong(
                self._lines[unknown],
                f"has the label '{_shown(words[unknown])}', which is none of the {len(classes)} classes "
                f"{whose}{why or '; remove the line, or add that class there'}",
            )
        return (
            classes,
            np.array([places[word] for word in words], np.int32),
            numbers or named is not None,
        )

    def _named(self, place: int, number: int, named: Sequence[str]) -> str:
        if number < len(named):
            return named[number]
        raise self._list.wrong(
            self._lines[place],
            f"has the label '{number}', and {CLASSES} names {len(named)} classes, 0 to {len(named) - 1}",
        )

    def _are_numbers(self) -> bool:
        """Whether labels are numbers of classes. Raises UserError where only some are, or too large."""
        words = self._words
        if self._list.grammar.sets:
            return False
        numbers = [word.isdecimal() for word in words]
        if any(numbers) and not all(numbers):
            odd = numbers.index(not numbers[0])
            raise self._list.wrong(
                self._lines[0],
                f"has the label '{_shown(words[0])}' and {self._list.place(self._lines[odd])} "
                f"'{_shown(words[odd])}'; labels are all numbers from 0 or all names",
            )
        if all(_OTHER_NUMBER.fullmatch(word) for word in words):
            raise self._list.wrong(
                self._lines[0],
                f"has the label '{words[0]}'; labels are whole numbers from 0, such as 3, or names",
            )
        for line, word in zip(self._lines, words, strict=True):
            if numbers[0] and (len(word) > 18 or int(word) >= MOST_CLASSES):
                raise self._list.wrong(
                    line,
                    f"has the label '{word[:50]}'; labels are numbers of classes, from 0 to "
                    f"{MOST_CLASSES - 1:,} at most, or names",
                )
        return numbers[0]


def _shown(label: str) -> str:
    return printable(os.fsencode(label))


def class_names(*folders: Path) -> list[str] | None:
    """Return the names in the first classes.txt of these folders; None where there is none.

    Of a data set these are the split's folder, its own, and train/: the classes of val are training's. Raises
    UserError.
    """
    path = next(
        (folder / CLASSES for folder in folders if os.path.lexists(folder / CLASSES)),
        None,
    )
    if path is None:
        return None
    try:
        # no other ends of lines: U+2028 may be in a name
        lines = read_text(path, "utf-8-sig", "surrogateescape").rstrip().split("\n")
    except OSError as error:
        raise UserError(f"--data: {path} cannot be read: {error.strerror}") from None
    names = [line.strip() for line in lines]
    if names == [""]:
        raise UserError(
            f"--data: {path} is empty; it names the classes, one a line, or remove it"
        )
    if "" in names:
        raise UserError(
            f"--data: {path} line {names.index('') + 1} is empty; each line names the class of its number: "
            "name that class, or remove the line"
        )
    require_once(names, str(path))
    return names


def require_once(names: Sequence[str], where: str) -> None:
    """Raise UserError where one name, of a class or a column, is there twice."""
    ((name, count), *_) = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(
            f"--data: {where} names '{_shown(name)}' twice; each name may be there once"
        )
