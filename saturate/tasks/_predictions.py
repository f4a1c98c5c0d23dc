"""What a classifier says of each sample: its likeliest classes with their probabilities, and their table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, UserError, World
from saturate.tasks import _tables
from saturate.tasks.kind import Asked

MOST = 5
"""Classes that are kept of a sample, at least."""
SHOWN = 20
"""Classes that are counted in a line, at most."""
SURE = 0.5
"""Probability from which on a class of several counts as one of a sample's."""
NO_NUMBER = "the network's output is no number"
NOTHING = "nothing found"
LONGEST_NAME = 100
"""Characters of a file's own name that the name of its picture keeps."""


def mean(total: float, count: int) -> float:
    """Return the mean of `count` numbers that add up to `total`; nan of none: a figure of nothing is never 0."""
    return total / count if count else math.nan


def spread(samples: int, count: int) -> list[int]:
    """Choose at most `count` of so many samples, at equal distances, the first and the last among them."""
    places = np.linspace(0, samples - 1, min(count, samples))
    return [int(place) for place in places]


def picture_names(files: Sequence[str], ending: str) -> list[str]:
    """Return a name for the picture of each file: its own with another ending, and a number where others have it."""
    taken: set[str] = set()
    again = Counter[str]()
    names = []
    for file in files:
        stem = name = PurePath(file).stem[:LONGEST_NAME]
        # some file systems take names that differ in case for the same
        while name.lower() in taken:
            again[stem] += 1
            name = f"{stem}-{again[stem] + 1}"
        taken.add(name.lower())
        names.append(name + ending)
    return names


@dataclass(frozen=True, eq=False, kw_only=True)
class Answers:
    """The likeliest k classes of n samples, in the order of their ids; k is MOST or more, or all that there are."""

    ids: Array  # int64 [n], ascending
    classes: Array  # int64 [n, k], the likeliest first
    shares: Array  # float32 [n, k], their probabilities
    labels: Array  # int64 [n], what was right, where that is known
    finite: Array  # bool [n], whether all logits are numbers; the rest means nothing where they are not

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def joined(parts: Sequence[Answers]) -> Answers:
        """Return the answers of all parts, of which no two have the same sample."""
        order = np.argsort(np.concatenate([part.ids for part in parts]), kind="stable")
        # a rank without a sample does not know how many classes there are
        width = max(part.classes.shape[1] for part in parts)
        known = [part for part in parts if part.classes.shape[1] == width]

        def column(name: str) -> Array:
            source = known if name in ("classes", "shares") else parts
            return np.concatenate([getattr(part, name) for part in source])[order]

        return Answers(**{one.name: column(one.name) for one in fields(Answers)})

    def rows(self, classes: Sequence[str]) -> list[dict[str, Any]]:
        """Return the cells of a table: class, probability, class_2, probability_2, ..., error."""
        table = []
        for numbers, shares, finite in zip(
            self.classes.tolist(), self.shares.tolist(), self.finite, strict=True
        ):
            cells: dict[str, Any] = {}
            for place, (number, share) in enumerate(zip(numbers, shares, strict=True)):
                behind = f"_{place + 1}" if place else ""
                cells[f"class{behind}"] = classes[number] if finite else None
                cells[f"probability{behind}"] = round(share, 6) if finite else None
            table.append(cells | {"error": None if finite else NO_NUMBER})
        return table


class Collected:
    """Collects the answers of a pass on the device, and reads them when it is over.

    `binary`: each class has a probability of its own, as --loss bce trains it; else those of all add up to 1.
    """

    def __init__(self, *, binary: bool = False) -> None:
        self._binary = binary
        # ids on the host; on the device classes [B, k], shares [B, k], labels, finite and valid [B]
        self._parts: list[tuple[Any, ...]] = []

    def add(
        self,
        ids: Array,
        logits: torch.Tensor,
        labels: torch.Tensor,
        valid: torch.Tensor,
    ) -> None:
        """Add the logits [B, C] of samples; those that are not `valid` are left out."""
        classes, shares, finite = _likeliest(logits, self._binary)
        self._parts.append((ids, classes, shares, labels, finite, valid))

    def answers(self, world: World) -> Answers:
        """Return the answers of all ranks, on each. Every rank must call it."""
        none = np.zeros(0, np.int64)
        own = answers_of(none, np.zeros((0, 0)), none)
        if self._parts:
            ids, *columns = zip(*self._parts, strict=True)
            *numbers, valid = (torch.cat(column).cpu().numpy() for column in columns)
            classes, shares, labels, finite = (one[valid] for one in numbers)
            own = Answers(
                ids=np.concatenate(ids)[valid],
                classes=classes,
                shares=shares,
                labels=labels,
                finite=finite,
            )
        return Answers.joined(world.gather(own))


def answers_of(
    ids: Array, logits: Array, labels: Array, *, binary: bool = False, most: int = MOST
) -> Answers:
    """Return the answers of logits, float [n, C], that are on the host, as `Collected` does; of each sample the
    `most` likeliest classes.
    """
    tensors = _likeliest(torch.from_numpy(logits), binary, most)
    classes, shares, finite = (one.numpy() for one in tensors)
    return Answers(
        ids=ids, classes=classes, shares=shares, labels=labels, finite=finite
    )


def _likeliest(
    logits: torch.Tensor, binary: bool, most: int = MOST
) -> tuple[torch.Tensor, ...]:
    """Return classes and their shares, [B, k] each, and whether all logits of a sample are numbers."""
    # by logits: probabilities near 1 and 0 are rounded, and then several are the same
    classes = logits.topk(min(most, logits.shape[1]), dim=1).indices
    single = logits.float()
    shares = single.sigmoid() if binary else torch.softmax(single, dim=1)
    return classes, shares.gather(1, classes), torch.isfinite(logits).all(dim=1)


def by_class(numbers: Array, classes: Sequence[str] | Mapping[int, str]) -> str:
    """Say how often each class is among these `numbers`, the most frequent first; of many SHOWN."""
    most_first = Counter(numbers.tolist()).most_common()
    counts = [f"{classes[number]} {count:,}" for number, count in most_first]
    more = [f"and {len(counts) - SHOWN} other classes"] if len(counts) > SHOWN else []
    return ", ".join([*counts[:SHOWN], *more])


def summed_up(results: Mapping[str, Any], classes: Sequence[str], several: bool) -> str:
    """Say how many samples each class has: the likeliest one of each, or with `several` all at SURE and above."""
    answers: Answers = results["extras"]["answers"]
    known = answers.classes[answers.finite]
    if several:
        text = by_class(known[answers.shares[answers.finite] >= SURE], classes)
        return f"at a probability of {SURE} and above: {text or 'nothing'}"
    return by_class(known[:, :1].ravel(), classes)


def write_answers(
    folder: Path, results: Mapping[str, Any], asked: Asked, classes: Sequence[str]
) -> list[Path]:
    """Write predictions.* with a row a file, in their order: path, likeliest classes, error.

    Raises UserError where a metric of a user's own has collected no answers.
    """
    answers: Answers | None = results.get("extras", {}).get("answers")
    if answers is None:
        raise UserError(
            "--predict: the metric of this task collects no answers; give its kind a `predicting` of its own, "
            "as docs/own-task.md says"
        )
    cells = answers.rows(classes)
    of_sample = dict(zip(answers.ids.tolist(), cells, strict=True))
    empty = dict.fromkeys(cells[0]) if cells else {"class": None, "probability": None}
    rows = []
    for place, (name, sample) in enumerate(
        zip(asked.names, asked.samples.tolist(), strict=True)
    ):
        missing = {**empty, "error": asked.errors.get(place, NO_NUMBER)}
        rows.append({"path": name, **of_sample.get(sample, missing)})
    return [_tables.write(folder / "predictions", rows, asked.form)]
