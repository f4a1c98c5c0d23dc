"""Training images as people see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Pixels
from saturate.report.pictures import augmented
from saturate.system.drawing import colour_of

PLAIN = Pixels(mean=(0, 0, 0), std=(1, 1, 1))
NAMES = ("cat", "dog", "owl")


def batch_of(images: torch.Tensor, **targets: Any) -> Batch:
    valid = torch.ones(len(images), dtype=torch.bool)
    return Batch(
        images=images,
        sizes=valid,
        targets={name: torch.tensor(value) for name, value in targets.items()},
        valid=valid,
        ids=np.arange(len(images)),
    )


MIXED = {"partners": [1, 0, 2], "shares": [0.75, 0.75, 1.0]}


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ({"labels": [0, 1, -1]}, ["cat", "dog", ""]),
        ({"wanted": [[1, 0, 1], [0, 0, 0], [0, 1, 0]]}, ["cat, owl", "", "dog"]),
        ({"labels": [0, 1, 2], **MIXED}, ["75% cat + dog", "75% dog + cat", "owl"]),
        ({}, ["", "", ""]),
    ],
    ids=["label", "several", "mixed", "none"],
)
def test_each_image_has_its_classes_below_it(targets: Any, said: list[str]) -> None:
    tiles = augmented(batch_of(torch.zeros(3, 3, 40, 60), **targets), PLAIN, NAMES)
    assert {tile.size for tile, _ in tiles} == {(300, 200)}, "five times as large"
    assert [" ".join(text for text, _ in lines) for _, lines in tiles] == said


@pytest.mark.parametrize("padded", [False, True])
def test_a_detector_has_its_boxes_in_the_pixels_that_it_gets(padded: bool) -> None:
    """Images of 640 px are shown half as large."""
    boxes = [[100, 200, 300, 400], [40, 40, 600, 600]]
    targets: Any = {"offsets": [0, 1, 2], "boxes": boxes, "labels": [1, 2]}
    if padded:
        none = [0, 0, 0, 0]
        targets = {
            "boxes": [[boxes[0], none], [boxes[1], none]],
            "labels": [[1, -1], [2, -1]],
        }
    tiles = augmented(batch_of(torch.zeros(2, 3, 640, 640), **targets), PLAIN, NAMES)
    for (tile, below), box, label in zip(tiles, boxes, (1, 2), strict=True):
        left, top, right, bottom = box
        assert below == []
        inked = (np.asarray(tile) == colour_of(label)).all(axis=2)
        assert inked[(top + bottom) // 4, [left // 2, right // 2]].all()
        assert inked[bottom // 2, (left + right) // 4]
        assert not inked[(top + bottom) // 4, left // 2 + 8]
        other = colour_of(3 - label)
        assert not (np.asarray(tile) == other).all(axis=2).any()


def test_pixels_are_those_before_normalising_and_clips_show_their_middle() -> None:
    clips = torch.zeros(1, 3, 5, 400, 400)
    clips[:, 0, 2] = 1.0
    pixels = Pixels(mean=(0.25, 0.5, 0), std=(0.5, 0.5, 0.5))
    ((tile, _),) = augmented(batch_of(clips), pixels, ())
    assert np.asarray(tile)[100, 100].tolist() == [191, 128, 0]
