"""The one grammar of lists, files of names with a label a line: where fields, headings and classes are.

Must not know what a name stands for: an image, a video, an entry of a store.

One character separates the fields of a file, the first of these that most of its first 1,000 lines have: a TAB,
a semicolon (lists of videos), a comma, else the last blank of a line. Fields between TABs, semicolons and commas
may be quoted as CSV writers do, and then hold the separator, quotes and, in a path, ends of lines:

    images/a b.jpg 3                 "images/d, ""e"".jpg",cat            images/c.jpg<TAB>tabby cat

No label holds an end of a line, and no path with one the separator before it: they would be rows that a quote
which is left open has taken.
Labels are numbers of classes, or names. Everything takes time linear in the file's length.
"""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from saturate.contracts import Array, UserError
from saturate.dataset.scan import names as names_of
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.manifest import printable
from saturate.system import storage
from saturate.system.user_files import open_text, read_text

VERSION = 3
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
_NUMBER = re.compile(r"-?\d+(?:\.0*)?")
"""A label that is meant as a number of a class: data frames write 3.0 and -1 too when some are missing."""
OF_PATHS = "path file filename filepath image img picture photo video clip id key name"
"""Words that headings call the column of paths by: image_path, "Image Path" and image.path are of them."""
OF_LABELS = "label labels class classname category target name id index"
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
    paths = [folder / f"{split}{ending}" for ending in ENDINGS]
    return [path for path in paths if os.path.lexists(path)]


class List:
    """A list whose separator is known. Raises UserError for what is no text file."""

    def __init__(self, path: Path, grammar: Grammar) -> None:
        self.path = path
        self.grammar = grammar
        with self._opened() as file:
            lines = list(islice(file, HEAD))
        self.begin = lines[0] if lines else ""
        filled = sum(bool(line.strip()) for line in lines)
        self.separator = BLANK
        for separator in reversed(grammar.separators):
            if 2 * sum(separator in line for line in lines) > filled:
                self.separator = separator
        self.form = ""
        # what is wrong with a line is told when its row is read
        self.head: list[Record] = []
        with suppress(UserError):
            self.head.extend(self._split(lines))

    def place(self, folders: Sequence[Path]) -> Path:
        """Return the folder in which most files of the first lines lie, the first of equals, and set `form`.

        A Mac writes the letters of a file's name otherwise than a list may: names are looked for in both forms.
        """
        names = [fields[0] for _, fields in self.head]
        # letters beyond ASCII tell the forms apart
        names = [name for name in names if not name.isascii()] or names
        ways = [(folder, form) for form in ("", "NFC", "NFD") for folder in folders]
        counts = []
        for folder, self.form in ways:
            files = [folder / self.in_form(name) for name in names[:TRIED]]
            counts.append(sum(map(os.path.exists, files)))
        folder, self.form = ways[counts.index(max(counts))]
        return folder

    def in_form(self, name: str) -> str:
        """Return a name with its letters as those of the files are."""
        return unicodedata.normalize(self.form, name) if self.form else name  # type: ignore[arg-type]

    def records(self) -> Iterator[Record]:
        """Yield every line that is not empty, with as many fields as it has."""
        with self._opened() as file:
            yield from self._split(file)

    def rows(self, *, skip: int = 0) -> Iterator[Record]:
        """Yield every line behind the first `skip`: [path, label], or path, label, start, end.

        Raises UserError for a line that has other fields.
        """
        for number, fields in islice(self.records(), skip, None):
            # spreadsheets fill up lines with empty fields
            while len(fields) > 2 and not fields[-1]:
                fields.pop()
            filled = fields[0] if self.grammar.sets else all(fields)
            right = len(fields) == 2 or (self.grammar.segments and _has_segment(fields))
            if not (right and filled) or "\0" in fields[0]:
                line = printable(self.separator.join(fields))[:200]
                raise self.wrong(number, f"is '{line}'; {self.grammar.expected}")
            yield number, fields

    def heading(self, scan: Scan) -> bool:
        """Whether the first line is a heading, which is then named as left out.

        Then its path is no file, its label is no other line's, and it names columns or looks unlike the rest. Raises
        UserError where it names them in another order.
        """
        rows = [fields for _, fields in self.head if len(fields) > 1]
        if not rows or len(self.head[0][1]) < 2:
            return False
        (name, label, *_), *others = rows
        labels = {fields[1] for fields in others}
        names_columns = is_of(name, OF_PATHS) or is_of(label, OF_LABELS)
        of_numbers = not label.isdecimal() and all(map(str.isdecimal, labels))
        unlike = "." not in name and all({".", "/"} & {*row[0]} for row in others)
        odd = names_columns or (others and (of_numbers or unlike))
        is_file = os.path.isfile(scan.root / self.in_form(name))
        is_swapped = is_of(name, OF_LABELS) and is_of(label, OF_PATHS)
        if is_swapped and not names_columns and not is_file:
            columns = printable(self.begin.strip())[:200]
            raise self.wrong(1, f"has the columns '{columns}': the path comes first")
        if not odd or "/" in name or label in labels or is_file:
            return False
        line = f"line 1 is a heading: {printable(self.begin.strip())[:200]}"
        scan.rejects(self.path, line, is_mistake=False)
        return True

    def without_rows(self) -> UserError:
        """Return the error of a list that names nothing: it is empty, or has a heading alone."""
        what = "has no row behind its heading" if self.head else "is empty"
        return UserError(
            f"--data: the list {self.path} {what}; {self.grammar.expected}"
        )

    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a line."""
        return UserError(f"--data: {self.path} line {line} {what}")

    def _opened(self) -> TextIO:
        path = self.path

        def opened() -> TextIO:
            # names of files may be no UTF-8
            return open_text(path, "utf-8-sig", "surrogateescape", newline="")

        try:
            return storage.in_scan(opened, lambda: f"the list {path}")
        except OSError as error:
            raise UserError(
                f"--data: the list {path} is no file that can be read: {error.strerror}; "
                f"{self.grammar.expected}"
            ) from None

    def _split(self, lines: Iterable[str]) -> Iterator[Record]:
        if self.separator == BLANK:
            for number, line in enumerate(lines, 1):
                fields = line.rsplit(None, 3)
                if not self.grammar.segments or not _has_segment(fields):
                    fields = line.strip().rsplit(None, 1)
                if fields:
                    yield number, fields
            return
        # strict: else "5 inch" disk would lose its quotes, and be another name
        reader = csv.reader(
            lines, delimiter=self.separator, skipinitialspace=True, strict=True
        )
        number = 1
        try:
            for fields in reader:
                name, *others = fields or [""]
                if reader.line_num != number:
                    # the fields of several lines may be rows between two quotes
                    begin = _LINE_END.split(name, maxsplit=1)[0]
                    if self.separator in begin or any(map(_LINE_END.search, others)):
                        raise csv.Error("a field goes on behind its end")
                if others or name.strip():
                    yield number, fields
                number = reader.line_num + 1
        except csv.Error as error:
            raise self.wrong(
                number,
                f"cannot be split ({printable(str(error))}): a field that begins with a quote has one at its "
                "end too; is a quote left open? One that is a part of a name is written as CSV does, "
                '"""5 inch"',
            ) from None


def _has_segment(fields: Sequence[str]) -> bool:
    return len(fields) == 4 and all(map(SECONDS.fullmatch, fields[2:]))


def is_of(text: str, words: str) -> bool:
    """Whether a field of the first line names a column, in words that are all among these."""
    field_words = re.findall(r"[^\W_]+", text.lower())
    return bool(field_words) and {*words.split()}.issuperset(field_words)


class Labelled(Protocol):
    """Where labels come from: a List, or whatever else can say which of its lines is wrong."""

    @property
    def grammar(self) -> Grammar: ...
    def wrong(self, line: int, what: str) -> UserError:
        """Return the error of a line."""


class Labels:
    """The labels of a list, numbered as they come, and the classes that they are once all are known."""

    def __init__(self, source: Labelled) -> None:
        self._list = source
        # label -> number; for loops over millions of lines; `number` adds to it
        self.number_of: dict[str, int] = {}
        self._lines: list[int] = []

    def number(self, label: str, line: int) -> int:
        """Return the number of a label. Raises UserError for one more than MOST_CLASSES."""
        number = self.number_of.setdefault(label, len(self._lines))
        if number == len(self._lines):
            self._lines.append(line)
            if number == MOST_CLASSES:
                raise self._wrong(
                    number, f"yet another after {MOST_CLASSES:,} of other lines"
                )
        return number

    def classes(
        self, given: Sequence[str] | None, named: Sequence[str] | None
    ) -> tuple[list[str], Array, bool]:
        """Return the classes, the class of each number (int32), and whether these are all that there are.

        Labels that are whole numbers are numbers of classes, whose names are `named`, or the numbers
        themselves. Others are names, sorted, or in the order of `named`. `given` are the classes of the
        training data, among which these are found by name. Numbers, and `named`, say which classes there are
        whatever has an image. Raises UserError that names a line.
        """
        words = [label.strip() for label in self.number_of]
        numbers = not self._list.grammar.sets and any(map(_NUMBER.fullmatch, words))
        if numbers:
            most = MOST_CLASSES if named is None else len(named)
            for number, word in enumerate(words):
                # a long one is not parsed, which would take its square in time
                if not (word.isdecimal() and len(word) < 19 and int(word) < most):
                    raise self._wrong(
                        number,
                        f"and all labels are numbers of classes, 0 to {most - 1:,}, or all are names",
                    )
            names = named or range(most)
            words = [str(names[int(word)]) for word in words]
        classes = list(given or named or [])
        if not classes:
            last = max(map(int, words)) if numbers else 0
            classes = [*map(str, range(last + 1))] if numbers else sorted({*words})
        places = names_of.place_of(classes)
        known = {word: names_of.find(word, places) for word in words}
        for number, word in enumerate(words):
            if known[word] is None:
                whose = CLASSES if given is None else "the training data"
                raise self._wrong(
                    number,
                    f"which is none of the {len(classes)} classes of {whose}; "
                    "remove the line, or add that class there",
                )
        numbers_of = np.array([known[word] for word in words], np.int32)
        return classes, numbers_of, numbers or named is not None

    def _wrong(self, number: int, what: str) -> UserError:
        label = printable([*self.number_of][number])[:50]
        return self._list.wrong(self._lines[number], f"has the label '{label}', {what}")


def class_names(*folders: Path) -> list[str] | None:
    """Return the names in the first classes.txt of these folders; None where there is none.

    Of a data set these are the split's folder, its own, and train/: the classes of val are training's. Raises
    UserError.
    """
    paths = [folder / CLASSES for folder in folders]
    path = next((path for path in paths if os.path.lexists(path)), None)
    if path is None:
        return None
    try:
        # no other ends of lines: U+2028 may be in a name
        lines = read_text(path, "utf-8-sig", "surrogateescape").rstrip().split("\n")
    except OSError as error:
        raise UserError(f"--data: {path} cannot be read: {error.strerror}") from None
    names = [line.strip() for line in lines]
    if "" in names:
        raise UserError(
            f"--data: {path} line {names.index('') + 1} is empty; each line names the class of its number: "
            "name that class, or remove the line or the file"
        )
    require_once(names, str(path))
    return names


def require_once(names: Sequence[str], where: str) -> None:
    """Raise UserError where one name, of a class or a column, is there twice."""
    ((name, count), *_) = Counter(names).most_common(1) or [("", 0)]
    if count > 1:
        raise UserError(
            f"--data: {where} names '{printable(name)}' twice; each name may be there once"
        )
