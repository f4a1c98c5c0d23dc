"""What a classifier says of each sample: its likeliest classes with their probabilities.

Must not know files, labels, or how logits came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from contracts import Array, World

MOST = 5
"""Classes that are kept of a sample."""
NO_NUMBER = "the network's output is no number"


@dataclass(frozen=True, eq=False, kw_only=True)
class Answers:
    """The likeliest k classes of n samples, in the order of their ids; k is MOST, or all that there are."""

    ids: Array  # int64 [n], ascending
    classes: Array  # int64 [n, k], the likeliest first
    shares: Array  # float32 [n, k], their probabilities
    labels: Array  # int64 [n], what was right, where that is known
    finite: Array  # bool [n], whether all logits are numbers; the rest means nothing where they are not

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        """Whether two passes have given the same answers, to the last bit."""
        names = [column.name for column in fields(self)]
        return isinstance(other, Answers) and all(
            np.array_equal(
                getattr(self, name), getattr(other, name), equal_nan=name == "shares"
            )
            for name in names
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def joined(parts: Sequence[Answers]) -> Answers:
        """Return the answers of all parts, of which no two have the same sample."""
        ids = np.concatenate([part.ids for part in parts])
        order = np.argsort(ids, kind="stable")
        # a rank without a sample does not know how many classes there are
        width = max(part.classes.shape[1] for part in parts)
        of_width = [part for part in parts if part.classes.shape[1] == width]
        return Answers(
            ids=ids[order],
            classes=np.concatenate([part.classes for part in of_width])[order],
            shares=np.concatenate([part.shares for part in of_width])[order],
            labels=np.concatenate([part.labels for part in parts])[order],
            finite=np.concatenate([part.finite for part in parts])[order],
        )

    def rows(self, classes: Sequence[str]) -> list[dict[str, Any]]:
        """Return the cells of a table: class, probability, class_2, probability_2, ..., error."""
        named = np.array(classes, object)[self.classes]
        table = []
        for names, shares, finite in zip(
            named.tolist(), self.shares.tolist(), self.finite.tolist(), strict=True
        ):
            cells: dict[str, Any] = {}
            for place, (name, share) in enumerate(
                zip(names, shares, strict=True), start=1
            ):
                behind = "" if place == 1 else f"_{place}"
                cells[f"class{behind}"] = name if finite else None
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
        # by logits: probabilities near 1 and 0 are rounded, and then several are the same
        classes = logits.topk(min(MOST, logits.shape[1]), dim=1).indices
        shares = _probabilities(logits, self._binary).gather(1, classes)
        finite = torch.isfinite(logits).all(dim=1)
        self._parts.append((ids, classes, shares, labels, finite, valid))

    def answers(self, world: World) -> Answers:
        """Return the answers of all ranks, on each. Every rank must call it."""
        return Answers.joined(world.gather(self._local()))

    def _local(self) -> Answers:
        if not self._parts:
            return answers_of(
                np.zeros(0, np.int64), np.zeros((0, 0)), np.zeros(0, np.int64)
            )
        ids, *columns = zip(*self._parts, strict=True)
        classes, shares, labels, finite, valid = (
            torch.cat(column).cpu().numpy() for column in columns
        )
        return Answers(
            ids=np.concatenate(ids)[valid],
            classes=classes[valid],
            shares=shares[valid],
            labels=labels[valid],
            finite=finite[valid],
        )


def answers_of(
    ids: Array, logits: Array, labels: Array, *, binary: bool = False
) -> Answers:
    """Return the answers of logits, float64 [n, C], that are on the host and finite, as `Collected` does.

    Of classes with the same logit the first one comes first.
    """
    classes = np.argsort(-logits, axis=1, kind="stable")[:, :MOST]
    shares = _probabilities(torch.from_numpy(logits), binary).numpy()
    return Answers(
        ids=ids,
        classes=classes,
        shares=np.take_along_axis(shares, classes, axis=1),
        labels=labels,
        finite=np.ones(len(ids), bool),
    )


def _probabilities(logits: torch.Tensor, binary: bool) -> torch.Tensor:
    """Return float32 [B, C]; `binary`: each class has one of its own, else those of all add up to 1."""
    return logits.float().sigmoid() if binary else torch.softmax(logits.float(), dim=1)
