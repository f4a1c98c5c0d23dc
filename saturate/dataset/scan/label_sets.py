"""Labels that are sets of classes, as a list with --multi-label has them. Must not know how a list is read.

A scan takes what a line has behind its path, `cat;dog`, as one label. Here these are taken apart. A separator that
names may hold, too, is never guessed: what can be read in two ways is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from saturate.contracts import Split, UserError
from saturate.dataset.images.columns import Images
from saturate.dataset.scan.names import find, place_of

USUAL = ";"
SURE = (USUAL, "|")
"""Separators that no name has."""
LIKELY = (",", "/", "&", "+", " ")
"""Separators that names may have: one is taken where what it parts comes in other labels, too."""
LIST = "commas of a list"
_ITEM = re.compile(
    r"""\s*(?:'(?P<a>[^'\\]*)'|"(?P<b>[^"\\]*)"|(?P<c>[^'",\[\]{}()\s\\]+))\s*(?:,|\Z)"""
)


def taken_apart(
    split: Split[Images],
    given: Sequence[str] | None,
    named: Sequence[str] | None,
    separator: str | None = None,
) -> Split[Images]:
    """Return the split with the single classes, and with `several`: which of them each label is made of.

    `given` are the classes of the training data, `named` those of classes.txt; without either they are those
    that come, sorted, numbers by their value. A label may be empty. Without a `separator` it is the one that the
    labels show. Raises UserError for another class, and where labels can be read in two ways.
    """
    columns = split.columns
    between = separator or _separator(columns.classes, given or named)
    sets = [_parts(label, between) for label in columns.classes]
    all_words = {word for words in sets for word in words}
    classes = list(given or named or sorted(all_words, key=_by_value))
    places = place_of(classes)
    place_of_word = {
        word: place for word in all_words if (place := find(word, places)) is not None
    }
    if unknown := sorted(all_words - place_of_word.keys()):
        whose = "the training data" if given else "classes.txt"
        raise UserError(
            f"--data: the label '{unknown[0]}' is none of the {len(classes)} classes of {whose}; remove it "
            "from the list, or add that class there"
        )
    if not classes:
        raise UserError(
            "--data: no line of the list has a label; a line is 'path label;label'"
        )
    several = np.zeros((len(sets), len(classes)), bool)
    for row, words in enumerate(sets):
        several[row, [place_of_word[word] for word in words]] = True
    shown = between if between == LIST else repr(between)
    return replace(
        split,
        columns=replace(
            columns,
            classes=tuple(classes),
            several=several,
            separator="" if separator or between == USUAL else shown,
        ),
    )


def _parts(label: str, between: str) -> list[str]:
    """Return the classes in a label; of what is no list one that is the label itself."""
    if between == LIST:
        return _listed(label) or []
    return [word for one in label.split(between) if (word := one.strip())]


def _listed(label: str) -> list[str] | None:
    """Return the classes in a list as JSON or Python write it, None where it is none.

    There is a comma between any two: an array of NumPy, ['a' 'b'], has none.
    """
    text = label.strip()
    with suppress(ValueError):
        items = json.loads(text)
        if isinstance(items, list) and all(isinstance(one, str | int) for one in items):
            return [word for one in items if (word := str(one).strip())]
    if text[:1] + text[-1:] not in ("[]", "()", "{}"):
        return [] if not text else None
    words, end, inside = [], 0, text[1:-1].strip()
    while end < len(inside):
        item = _ITEM.match(inside, end)
        if item is None:
            return None
        words.append((item["a"] or item["b"] or item["c"] or "").strip())
        end = item.end()
    return [word for word in words if word]


def _separator(labels: Sequence[str], known: Sequence[str] | None) -> str:
    """Return what stands between the classes of labels. Raises UserError where it is not sure.

    Of `known` classes it is what leaves them alone: names may then hold any of the separators.
    """
    separators = [
        one
        for one in (*SURE, *LIKELY)
        if any(len(_parts(label, one)) > 1 for label in labels)
    ]
    if known is not None:
        places = place_of(known)
        for one in (USUAL, *separators, LIST):
            words = [word for label in labels for word in _parts(label, one)]
            if words and all(find(word, places) is not None for word in words):
                return one
        return USUAL
    lists = [label for label in labels if label.strip()[:1] in ("[", "(", "{")]
    if lists:
        odd = next((label for label in labels if _listed(label) is None), None)
        if odd is None:
            return LIST
        raise _unsure(odd, lists[0])
    sure, likely = (
        [one for one in separators if one in each] for each in (SURE, LIKELY)
    )
    if not sure:
        # of 'cat, tabby' the comma, and not the blank
        if likely and not _comes_again(labels, likely[0], of_all=likely[0] == " "):
            raise _unsure(_with(labels, likely[0]), likely[0])
        return likely[0] if likely else USUAL
    parts = sorted({word for label in labels for word in _parts(label, sure[0])})
    other = [one for one in likely if one != " " and _comes_again(parts, one)]
    if len(sure) > 1 or other:
        raise _unsure(_with(labels, (*sure[1:], *other)[0]), " or ".join(sure + other))
    return sure[0]


def _comes_again(labels: Sequence[str], between: str, *, of_all: bool = False) -> bool:
    """Whether a part of a label is one of another, too; `of_all`: whether each is."""
    parts = [{*_parts(label, between)} for label in labels]
    times = Counter(word for words in parts for word in words)
    again = [times[word] > 1 for words in parts if len(words) > 1 for word in words]
    return all(again) if of_all else any(again)


def _with(labels: Sequence[str], between: str) -> str:
    return next(label for label in labels if len(_parts(label, between)) > 1)


def _unsure(label: str, sign: str) -> UserError:
    return UserError(
        f"--data: the label {label!r} may be one class or several ({sign!r} is in the labels): --label-separator "
        "'|', or whatever stands between classes, decides; with one that no label has each is one class"
    )


def _by_value(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (1 << 62, name)
