"""What a classifier got wrong in a validation, as files and pictures. Must not know how it was computed.

confusion.csv, confusion.png    how often each class was taken for each
classes.csv                     accuracy by class, and what a class was mostly taken for
val_predictions.csv             label and likeliest classes of every sample
mistakes.png                    the most confident mistakes, with their names
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.utils import make_grid

from contracts import Array, Source
from loaders.images.decoders import shown_rgb
from tasks import _tables
from tasks._predictions import Answers

BINS = 15
"""Bins of the expected calibration error, of equal width: Guo et al. 2017, https://arxiv.org/abs/1706.04599."""
MOST_CLASSES = 1_000
"""Classes up to which there is a confusion matrix: a million cells."""
NAMED = 30
"""Classes up to which the picture of the matrix has names and numbers."""
MISTAKES = 20
SIDE = 160
"""Pixels of a mistake's picture."""


@dataclass(frozen=True, kw_only=True)
class Validated:
    """What a validation was of: the names of the classes, and the source of the samples."""

    classes: Sequence[str]
    source: Source
    # uint8 [n], of each sample that which shows it; None: they are as stored
    turns: Array | None = None

    def extras(self, answers: Answers) -> dict[str, Any]:
        """Return the files and pictures that contracts.Metric.result gives beside its figures."""
        files = {"val_predictions.csv": self._predictions(answers)}
        images = {}
        if len(answers) and len(self.classes) <= MOST_CLASSES:
            matrix = confusion(answers, len(self.classes))
            drawn = self._drawn_matrix(matrix)
            files |= {
                "confusion.csv": self._matrix(matrix),
                "confusion.png": _png(drawn),
            }
            files["classes.csv"] = self._by_class(matrix)
            images["val/confusion"] = drawn[None]
        mistakes = self._mistakes(answers) if len(answers) else None
        if mistakes is not None:
            files["mistakes.png"] = _png(mistakes)
            images["val/mistakes"] = mistakes[None]
        return {"files": files, "images": images}

    def _predictions(self, answers: Answers) -> bytes:
        cells = answers.rows(self.classes)
        rows = [
            {
                "path": self.source.name(int(sample)),
                "label": self.classes[int(label)],
                **cells_of_row,
            }
            for sample, label, cells_of_row in zip(
                answers.ids, answers.labels, cells, strict=True
            )
        ]
        return _tables.written(rows, "csv") if rows else b""

    def _matrix(self, matrix: Array) -> bytes:
        rows = [
            {"label": name, **dict(zip(self.classes, counts, strict=True))}
            for name, counts in zip(self.classes, matrix.tolist(), strict=True)
        ]
        return _tables.written(rows, "csv")

    def _by_class(self, matrix: Array) -> bytes:
        rows = []
        for index, counts in enumerate(matrix):
            total = int(counts.sum())
            others = np.where(np.arange(len(counts)) == index, 0, counts)
            most = int(others.argmax())
            rows.append(
                {
                    "class": self.classes[index],
                    "samples": total,
                    "accuracy": round(float(counts[index]) / total, 4)
                    if total
                    else None,
                    "mostly_taken_for": self.classes[most] if others[most] else None,
                    "times": int(others[most]) or None,
                }
            )
        return _tables.written(rows, "csv")

    def _drawn_matrix(self, matrix: Array) -> Array:
        """Draw uint8 [H, W, 3]: a row a label, a column an answer, dark where its share of the row is."""
        count = len(matrix)
        cell = max(1, min(36, 900 // count))
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        # axes: [label, answer, channel]; from white to dark blue
        colours = 255 - shares[:, :, None] * (255 - np.array([8, 48, 107]))
        cells = np.repeat(
            np.repeat(colours.astype(np.uint8), cell, axis=0), cell, axis=1
        )
        if count > NAMED:
            return cells
        font = ImageFont.load_default(11)
        names = [_short(name, 16) for name in self.classes]
        margin = 8 + max(int(font.getlength(name)) for name in names)
        picture = Image.new(
            "RGB", (margin + cells.shape[1], cells.shape[0] + margin), "white"
        )
        picture.paste(Image.fromarray(cells), (margin, 0))
        draw = ImageDraw.Draw(picture)
        for index, name in enumerate(names):
            draw.text(
                (4, index * cell + cell // 2),
                name,
                fill="black",
                font=font,
                anchor="lm",
            )
            upright = Image.new("RGB", (margin, 14), "white")
            ImageDraw.Draw(upright).text(
                (margin - 4, 1), name, fill="black", font=font, anchor="ra"
            )
            turned = upright.rotate(90, expand=True)
            picture.paste(
                turned, (margin + index * cell + cell // 2 - 7, cells.shape[0])
            )
            for other, times in enumerate(matrix[index].tolist()):
                if times:
                    colour = "white" if shares[index, other] > 0.5 else "black"
                    at = (margin + other * cell + cell // 2, index * cell + cell // 2)
                    draw.text(at, str(times), fill=colour, font=font, anchor="mm")
        return np.asarray(picture)

    def _mistakes(self, answers: Answers) -> Array | None:
        """Draw uint8 [H, W, 3] of the most confident mistakes; None where there are none, or no pixels."""
        labels = answers.labels
        wrong = np.flatnonzero((answers.classes[:, 0] != labels) & answers.finite)
        surest = wrong[np.argsort(-answers.shares[wrong, 0], kind="stable")][:MISTAKES]
        tiles = []
        for index in surest.tolist():
            try:
                sample = int(answers.ids[index])
                turn = 0 if self.turns is None else int(self.turns[sample])
                picture = shown_rgb(self.source.read(sample), turn)
            except Exception:  # PIL raises whatever the bytes make it stumble over; stand-ins have no bytes
                continue
            picture.thumbnail((SIDE, SIDE))
            tile = Image.new("RGB", (SIDE + 8, SIDE + 44), "white")
            tile.paste(
                picture, (4 + (SIDE - picture.width) // 2, (SIDE - picture.height) // 2)
            )
            label, answer = (
                self.classes[int(labels[index])],
                self.classes[int(answers.classes[index, 0])],
            )
            name = PurePath(self.source.name(int(answers.ids[index]))).name
            lines = (
                f"{_short(label, 25)}, said to be",
                f"{_short(answer, 20)} {answers.shares[index, 0]:.0%}",
            )
            for number, line in enumerate((*lines, _short(name, 26))):
                at = (4, SIDE + 2 + 14 * number)
                colour = "gray" if number == 2 else "black"
                ImageDraw.Draw(tile).text(
                    at, line, fill=colour, font=ImageFont.load_default(11)
                )
            tiles.append(np.asarray(tile))
        if not tiles:
            return None
        channels_first = torch.tensor(np.stack(tiles)).permute(0, 3, 1, 2)
        return (
            make_grid(channels_first, nrow=5, padding=0, pad_value=255)
            .permute(1, 2, 0)
            .numpy()
        )


def confusion(answers: Answers, classes: int) -> Array:
    """Return int64 [C, C]: how many samples of each class were taken for each; no numbers are no answer."""
    counted = answers.finite
    cells = answers.labels[counted] * classes + answers.classes[counted, 0]
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def calibration_error(answers: Answers) -> float:
    """Return the expected calibration error, 0..1: how far probabilities are from how often they are right.

    The mean over the bins of |accuracy - mean probability|, weighed by their samples.
    """
    if not answers.finite.any():
        return 0.0
    shares = answers.shares[answers.finite, 0].astype(np.float64)
    right = answers.classes[answers.finite, 0] == answers.labels[answers.finite]
    bins = np.minimum((shares * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, right - shares, minlength=BINS)
    return float(np.abs(gaps).sum() / len(shares))


def _png(pixels: Array) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
