"""What a classifier got wrong in a validation, as files and pictures. Must not know how it was computed.

confusion.csv, confusion.png    how often each class was taken for each
classes.csv                     accuracy by class, and what a class was mostly taken for
val_predictions.csv             label and likeliest classes of every sample
mistakes.png                    the most confident mistakes, with their names
val_batch.jpg                   some samples, right and wrong ones, with theirs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw

from saturate.contracts import Array, Source
from saturate.loaders.images.decoders import shown_rgb
from saturate.system import drawing
from saturate.system.drawing import INK, RIGHT, WRONG, Tile
from saturate.system.fonts import font, legible, line
from saturate.tasks import _tables
from saturate.tasks._predictions import NOTHING, SURE, Answers, spread

BINS = 15
"""Bins of the expected calibration error, of equal width: Guo et al. 2017, https://arxiv.org/abs/1706.04599."""
MOST_CLASSES = 1_000
"""Classes up to which there is a confusion matrix: a million cells."""
FILES = ("classes.csv", "confusion.csv", "confusion.png", "mistakes.png")
"""Files that not every validation has."""
MISTAKES = 20
"""Mistakes in mistakes.png, five a row."""
SHOWN = 8
"""Samples of a validation, spread evenly over all, and of the mistakes, that TensorBoard shows two in a row."""
SIDE = 200
"""Pixels of the longer side of a sample's picture, at most; of a strip of frames twice as many."""
NAMED = 100
"""Classes up to which the confusion matrix has their names."""
MARGIN = 200
"""Pixels beside the confusion matrix, for names of classes and for TITLE."""
TITLE = 30
"""Pixels at the edge, for what the axis is."""
NAMES = 18
"""Pixels of the size of names there, at most."""


@dataclass(frozen=True, kw_only=True)
class ValidationFiles:
    """What a validation was of: the names of the classes, and the source of the samples."""

    classes: Sequence[str]
    source: Source
    # uint8 [n], of each sample that which shows it; None: they are as stored
    turns: Array | None = None
    # of videos: draws some frames of a sample, side by side
    strip: Callable[[int], Image.Image] | None = None

    def extras(self, answers: Answers) -> dict[str, Any]:
        """Return the files and pictures that contracts.Metric.result gives beside its figures, and what they say of
        the learning.

        A file that has no content this time is b"".
        """
        labels = [self.classes[label] for label in answers.labels.tolist()]
        files = dict.fromkeys(FILES, b"")
        files["val_predictions.csv"] = self._predictions(answers, "label", labels)
        if not len(answers):
            return {"files": files, "images": {}}
        images: dict[str, Array] = {}
        if len(self.classes) <= MOST_CLASSES:
            matrix = confusion(answers, len(self.classes))
            # a class may have that name
            corner = "" if "label" in self.classes else "label"
            rows = [
                {corner: name, **dict(zip(self.classes, counts, strict=True))}
                for name, counts in zip(self.classes, matrix.tolist(), strict=True)
            ]
            files["confusion.csv"] = _tables.written(rows)
            files["classes.csv"] = self._by_class(matrix)
            picture = np.asarray(drawn_matrix(matrix, self.classes))
            files["confusion.png"] = drawing.encoded(picture, "PNG")
            images["val/confusion"] = picture[None]
        wanted = [{label} for label in answers.labels.tolist()]
        wrong = np.flatnonzero(
            (answers.classes[:, 0] != answers.labels) & answers.finite
        )
        surest = wrong[np.argsort(-answers.shares[wrong, 0], kind="stable")][:MISTAKES]
        if tiles := self._tiles(answers, wanted, surest):
            sheet = drawing.sheet(tiles, 2 if self.strip else 5)
            files["mistakes.png"] = drawing.encoded(sheet, "PNG")
            images["val/mistakes"] = drawing.sheet(tiles[:SHOWN])[None]
        extras = {"files": files, "images": images | self._shown(answers, wanted)}
        answered = np.unique(answers.classes[:, :1])
        if len(answered) == 1 < len(np.unique(answers.labels)):
            extras["learning"] = {"one_answer": self.classes[answered[0]]}
        return extras

    def multi_label_extras(
        self, answers: Answers, wanted: Array, precisions: Sequence[float | None]
    ) -> dict[str, Any]:
        """Return `extras` of a validation with several labels each; `wanted` [n, C] is above 0 for these."""
        sets = [{*np.flatnonzero(own).tolist()} for own in wanted]
        labels = [";".join(self.classes[at] for at in sorted(own)) for own in sets]
        by_class = [
            {
                "class": name,
                "samples": int(count),
                "average_precision": one and round(one, 4),
            }
            for name, count, one in zip(
                self.classes, wanted.sum(axis=0), precisions, strict=True
            )
        ]
        files = {
            "classes.csv": _tables.written(by_class),
            "val_predictions.csv": self._predictions(answers, "labels", labels),
        }
        return {"files": files, "images": self._shown(answers, sets, several=True)}

    def _shown(
        self, answers: Answers, wanted: Sequence[set[int]], *, several: bool = False
    ) -> dict[str, Array]:
        """Draw some samples, right and wrong ones, as `images` of `extras`; {} where none can be read."""
        places = np.array(spread(len(answers), SHOWN), int)
        tiles = self._tiles(answers, wanted, places, several=several)
        return {"val/predictions": drawing.sheet(tiles)[None]} if tiles else {}

    def _predictions(
        self, answers: Answers, column: str, labels: Sequence[str]
    ) -> bytes:
        samples = zip(
            answers.ids.tolist(), labels, answers.rows(self.classes), strict=True
        )
        return _tables.written(
            [
                {"path": self.source.name(sample), column: label, **cells}
                for sample, label, cells in samples
            ]
        )

    def _by_class(self, matrix: Array) -> bytes:
        rows: list[dict[str, Any]] = []
        for index, counts in enumerate(matrix):
            total = int(counts.sum())
            others = np.where(np.arange(len(counts)) == index, 0, counts)
            most = int(others.argmax())
            rows.append(
                {
                    "class": self.classes[index],
                    "samples": total,
                    "accuracy": round(int(counts[index]) / total, 4) if total else None,
                    "mostly_taken_for": self.classes[most] if others[most] else None,
                    "times": int(others[most]) or None,
                }
            )
        return _tables.written(rows)

    def _tiles(
        self,
        answers: Answers,
        wanted: Sequence[set[int]],
        places: Array,
        *,
        several: bool = False,
    ) -> list[Tile]:
        """Return the samples in these places that can be read, and below each its labels, the answer and its file.

        `wanted` [n] are the labels. Of `several` the answer is all classes that are SURE, else the likeliest.
        """
        tiles: list[Tile] = []
        for place in places.tolist():
            sample = int(answers.ids[place])
            try:
                if self.strip:
                    picture = self.strip(sample)
                else:
                    turn = 0 if self.turns is None else int(self.turns[sample])
                    picture = shown_rgb(self.source.read(sample), turn)
            except Exception:  # PIL raises whatever the bytes make it stumble over; stand-ins have no bytes
                continue
            shares = answers.shares[place]
            count = int((shares >= SURE).sum()) if several else 1
            likeliest = answers.classes[place, : count * answers.finite[place]].tolist()
            words = [
                f"{share:.0%} {self._legible(at)}"
                for at, share in zip(likeliest, shares, strict=False)
            ]
            lines = [
                (", ".join(map(self._legible, sorted(wanted[place]))), INK),
                (
                    ", ".join(words) or NOTHING,
                    RIGHT if {*likeliest} == wanted[place] else WRONG,
                ),
                (PurePath(self.source.name(sample)).name, "gray"),
            ]
            side = 2 * SIDE if self.strip else SIDE
            tiles.append((drawing.fitted(picture, side), lines))
        return tiles

    def _legible(self, number: int) -> str:
        return legible(self.classes[number], number + 1)


def drawn_matrix(matrix: Array, classes: Sequence[str]) -> Image.Image:
    """Draw a row a label, a column an answer in the same order, dark where its share of the row is, RIGHT or WRONG.

    Up to NAMED classes, with which the picture grows, both have their names, and cells their shares and numbers.
    """
    roomy = len(matrix) <= NAMED
    cell = max(20 if roomy else 1, 900 // len(matrix))
    side = len(matrix) * cell
    margin = MARGIN if roomy else TITLE
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    # axes: [label, answer, channel]; from white to a full colour
    full = np.array([ImageColor.getrgb(colour) for colour in (WRONG, RIGHT)])
    colours = 255 - shares[:, :, None] * (255 - full[np.eye(len(matrix), dtype=int)])
    cells = Image.fromarray(colours.astype(np.uint8))
    cells = cells.resize((side, side), Image.Resampling.NEAREST)
    sheet = Image.new("RGB", (margin + side + 4, margin + side + 4), "white")
    draw = ImageDraw.Draw(sheet)
    # what is read upwards: the rows' title, and the columns' names
    title = Image.new("RGB", (side, TITLE), "white")
    names = Image.new("RGB", (margin, side), "white")
    upwards, across = ImageDraw.Draw(title), ImageDraw.Draw(names)
    middles = [margin + (at + 0.5) * cell for at in range(len(matrix))]
    for place, name in enumerate(classes if roomy else ()):
        middle, name = middles[place], legible(name, place + 1)
        cut, own = line(name, margin - TITLE - 10, min(NAMES, cell - 4))
        across.text((6, middle - margin), cut, "black", own, anchor="lm")
        draw.text((margin - 6, middle), cut, "black", own, anchor="rm")
    upwards.text((side / 2, TITLE / 2), "label", "black", font(NAMES), anchor="mm")
    sheet.paste(names.rotate(90, expand=True), (margin, 0))
    sheet.paste(title.rotate(90, expand=True), (0, margin))
    middle = margin + side / 2
    draw.text((middle, TITLE / 2), "answer", "black", font(NAMES), anchor="mm")
    sheet.paste(cells, (margin, margin))
    end = margin + side
    for edge in range(margin, end + 1, cell if roomy else side):
        draw.line((edge, margin, edge, end), "lightgray")
        draw.line((margin, edge, end, edge), "lightgray")
    digits = font(max(min(18, cell // 2), 1))
    for (row, column), count in np.ndenumerate(matrix) if roomy else ():
        lines = [f"{count:,}", f"{shares[row, column]:.0%}"][: 1 + (count > 0)]
        fits = [text for text in lines if digits.getlength(text) < cell - 2]
        # a cell that is too low has its number alone
        text = "\n".join(fits[: max(cell // 22, 1)])
        colour = "white" if shares[row, column] > 0.5 else INK
        at = middles[column], middles[row]
        draw.text(at, text, colour, digits, "mm", align="center")
    return sheet


def confusion(answers: Answers, classes: int) -> Array:
    """Return int64 [C, C]: how many samples of each class were taken for each; no numbers are no answer."""
    counted = answers.finite
    cells = answers.labels[counted] * classes + answers.classes[counted, 0]
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def calibration_error(answers: Answers) -> float:
    """Return the expected calibration error, 0..1: how far probabilities are from how often they are right; nan of
    none.

    The mean over the bins of |accuracy - mean probability|, weighed by their samples.
    """
    if not answers.finite.any():
        return math.nan
    shares = answers.shares[answers.finite, 0].astype(np.float64)
    right = answers.classes[answers.finite, 0] == answers.labels[answers.finite]
    bins = np.minimum((shares * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, right - shares, minlength=BINS)
    return float(np.abs(gaps).sum() / len(shares))
