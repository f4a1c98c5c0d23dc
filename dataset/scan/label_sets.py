"""Labels that are sets of classes, as a list with --multi-label has them. Must not know how a list is read.

A scan takes what a line has behind its path, `cat;dog`, as one label. Here these are taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from contracts import Split, UserError

BETWEEN = ";"


def taken_apart(
    split: Split, given: Sequence[str] | None, named: Sequence[str] | None
) -> Split:
    """Return the split with the single classes, and with `several`: which of them each label is made of.

    `given` are the classes of the training data, `named` those of classes.txt; without either they are those
    that come, sorted, numbers by their value. A label may be empty. Raises UserError for another class.
    """
    columns = split.columns
    sets = [
        [word for one in label.split(BETWEEN) if (word := one.strip())]
        for label in columns.classes
    ]
    found = {word for words in sets for word in words}
    classes = list(given or named or sorted(found, key=_by_value))
    if unknown := sorted(found - set(classes)):
        whose = "the training data" if given else "classes.txt"
        raise UserError(
            f"--data: the label '{unknown[0]}' is none of the {len(classes)} classes of {whose}; remove it "
            "from the list, or add that class there"
        )
    if not classes:
        raise UserError(
            "--data: no line of the list has a label; a line is 'path label;label'"
        )
    places = {name: place for place, name in enumerate(classes)}
    several = np.zeros((len(sets), len(classes)), bool)
    for row, words in enumerate(sets):
        several[row, [places[word] for word in words]] = True
    return replace(
        split, columns=replace(columns, classes=tuple(classes), several=several)
    )


def _by_value(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (1 << 62, name)
