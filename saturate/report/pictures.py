"""Training images as a person sees them: the pixels that the step got, with their classes, or boxes drawn in them.

Must not know: where they are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Batch, Pixels
from saturate.system import drawing
from saturate.system.drawing import INK, Mark, Tile
from saturate.system.fonts import legible

MOST = 16
"""Images that are shown of a batch, at most."""
SIDE = 320
"""Pixels of the longer side, at most."""


def augmented(batch: Batch, pixels: Pixels, classes: Sequence[str]) -> list[Tile]:
    """Return the first images, of clips the frame in the middle, each with its classes below it.

    Of detectors they have their boxes, masks and key points in them, and nothing below.
    """
    mean, std = torch.tensor(pixels.mean), torch.tensor(pixels.std)
    names = _names(batch, classes)
    tiles: list[Tile] = []
    for place, image in enumerate(batch.images[:MOST]):
        if image.ndim == 4:  # of a clip: C T H W
            image = image[:, image.shape[1] // 2]
        shares = image.float().cpu().permute(1, 2, 0) * std + mean
        levels = (shares.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
        tile = drawing.fitted(Image.fromarray(levels), SIDE)
        marks = _marks(batch, classes, place)
        tile = drawing.marked(tile, marks, tile.width / levels.shape[1])
        tiles.append((tile, [(name, INK) for name in names[place : place + 1]]))
    return tiles


def _marks(batch: Batch, classes: Sequence[str], place: int) -> Iterator[Mark]:
    """Yield the objects of an image of a detector's batch, whose targets are packed or padded."""
    targets = batch.targets
    if "boxes" not in targets:
        return
    own: slice | int = place
    if "offsets" in targets:
        own = slice(*targets["offsets"][place : place + 2].tolist())
    names = {"boxes", "labels", "masks", "keypoints"} & targets.keys()
    parts = {name: targets[name][own].cpu().numpy() for name in names}
    for at, label in enumerate(parts["labels"].tolist()):
        if label < 0:  # a place without a box
            continue
        yield Mark(
            box=parts["boxes"][at],
            category=label,
            text=legible(classes[label], label),
            mask=parts["masks"][at] if "masks" in parts else None,
            points=parts["keypoints"][at] if "keypoints" in parts else None,
        )


def _names(batch: Batch, classes: Sequence[str]) -> list[str]:
    """Return the names of each image's classes, of a mixed one those of both images; [] where images have none."""
    if not classes or "boxes" in batch.targets:
        return []
    read = {"labels", "wanted", "partners", "shares"} & batch.targets.keys()
    targets = {name: batch.targets[name].cpu().numpy() for name in read}
    sets = [np.flatnonzero(wanted) for wanted in targets.get("wanted", ())]
    if not sets and "labels" in targets and targets["labels"].ndim == 1:
        sets = [label[label >= 0] for label in targets["labels"][:, None]]
    names = [
        ", ".join(legible(classes[at], at + 1) for at in one.tolist()) for one in sets
    ]
    if "partners" not in targets:
        return names
    return [
        name if share > 0.995 else f"{share:.0%} {name} + {names[partner]}"
        for name, share, partner in zip(
            names, targets["shares"], targets["partners"], strict=True
        )
    ]
