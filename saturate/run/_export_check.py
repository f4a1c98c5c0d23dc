"""What an exported file is run on, what --predict answers there, and when the file is right. Knows no format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torchvision.ops import box_iou

from saturate.contracts import Array, Feed, Rows, Split, Task, UserError
from saturate.loaders import open_loader
from saturate.loaders.images.decoders import shown_rgb
from saturate.plan.geometry import boxes_to_image

CHECKED = 16
"""Images or clips on which the file is compared with --predict."""
TOLERANCE = 0.01
"""Largest difference of a logit, as a share of the largest logit, with which a file is right; that of a score, as a
share of the score.

A sum in another order may round a pixel to the next grey level."""
LEAST_LOGIT = 0.1
"""Logits that are all smaller are compared as if the largest were this: the differences then allowed change no
probability by more than a thousandth."""
OVERLAP = 0.95
"""IoU from which on two boxes are the same."""
BEST = 10
"""Detections of an image that are looked for."""
AGREED = 0.95
"""Share of them that must be found."""
Run = Callable[[Array], list[Array]]
"""An input of the file -> its outputs."""


class Verdict(NamedTuple):
    """What is to say of a file."""

    finding: str  # how many samples were compared, and how
    wanted: str  # of a file that is right
    right: bool


class Sample(NamedTuple):
    """What a file is given, and what --predict makes of the same sample."""

    pixels: Array  # uint8 [H, W, 3], or [T, H, W, 3], as it is decoded
    expected: list[Array]  # as the file's outputs are, of one sample


Read = Callable[[Split[Any], Rows], Array]
"""(a split, the row of one of its samples) -> its pixels."""
Answered = Callable[[Any, Split[Any], Rows], list[Array]]
"""(the network's outputs of a row, its split, the row) -> what the file is to answer."""


def predicted(
    network: nn.Module,
    feed: Feed[Any],
    task: Task,
    split: Split[Any],
    loader: str,
    *,
    read: Read,
    answered: Answered,
) -> Iterator[Sample]:
    """Yield the samples of a plan of single samples, with what --predict answers: by its loader, and not by the
    preprocessing that is in the file. One that cannot be decoded is left out."""
    with open_loader(loader, feed) as opened:
        for batch in opened.batches(0, 0):
            assert batch.rows is not None
            if not batch.rows.valid.all() or batch.failed:
                continue
            with torch.inference_mode():
                outputs = network(*task.inputs(batch))
            expected = answered(outputs, split, batch.rows)
            yield Sample(read(split, batch.rows), expected)


def image(split: Split[Any], row: Rows) -> Array:
    """Return an image, uint8 [H, W, 3], turned as EXIF says where the validation does so."""
    sample = int(row.ids[0])
    turns = split.columns.exif
    turn = 0 if turns is None else int(turns[sample])
    return np.array(shown_rgb(split.source.read(sample), turn))


def clip(split: Split[Any], row: Rows) -> Array:
    """Return the frames of a row, uint8 [T, H, W, 3], as they are displayed."""
    # with PyAV and numba, which images do without
    from saturate.loaders.videos.pyav import displayed

    assert row.frames is not None
    return displayed(split, int(row.ids[0]), row.frames[0].tolist())


def logits_of(outputs: torch.Tensor, split: Split[Any], row: Rows) -> list[Array]:
    """Return logits fp32 [C]."""
    return [outputs[0].float().numpy()]


def detections_of(
    outputs: Sequence[dict[str, torch.Tensor]], split: Split[Any], row: Rows
) -> list[Array]:
    """Return boxes [N, 4] in pixels of the image, labels and scores [N]."""
    (answer,) = outputs
    boxes, labels, scores = (
        answer[name].numpy() for name in ("boxes", "labels", "scores")
    )
    sample = int(row.ids[0])
    limits = [split.columns.width[sample], split.columns.height[sample]] * 2
    boxes = boxes_to_image(row, np.zeros(len(boxes), int), boxes.astype(np.float64))
    return [boxes.clip(0, limits).astype(np.float32), labels, scores]


def logits(run: Run, samples: Iterator[Sample]) -> Verdict:
    """Compare logits. Raises UserError where there is no sample."""
    count = 0
    largest = scale = 0.0
    for pixels, (expected,) in islice(samples, CHECKED):
        # of one, and as the second of two
        alike = [pixels[..., ::-1, :], pixels] if count % 2 else [pixels]
        difference = np.abs(run(np.stack(alike))[0][-1] - expected).max()
        largest = max(largest, float(np.nan_to_num(difference, nan=np.inf)))
        scale = max(scale, float(np.abs(expected).max()))
        count += 1
    require(count)
    return Verdict(
        f"largest difference from --predict in fp32 over {count} samples: {largest:.2g}, where the largest "
        f"logit is {scale:.3g}",
        f"it may differ by {TOLERANCE:.0%} of the largest logit at most",
        right=largest <= TOLERANCE * max(scale, LEAST_LOGIT),
    )


def detections(run: Run, samples: Iterator[Sample]) -> Verdict:
    """Look for the best detections of --predict among the file's, and the other way round; else as `logits`."""
    count = agreed = total = 0
    for pixels, expected in islice(samples, CHECKED):
        answer = run(pixels)
        for one, other in ((expected, answer), (answer, expected)):
            best = [each[:BEST] for each in one]
            total += len(best[0])
            agreed += int(in_both(best, other).sum())
        count += 1
    require(count)
    finding = f"{agreed} of the {total} best detections of the file and of --predict in {count} images are of both"
    if not total:
        finding = (
            f"nothing is found in {count} images, by --predict or the file, whose boxes are thus unchecked: "
            "--images FOLDER of others, or longer training"
        )
    return Verdict(finding, f"{AGREED:.0%} must be", right=agreed >= AGREED * total)


def in_both(candidates: list[Array], others: list[Array]) -> Array:
    """Return which detections, bool [N], are among `others`: boxes [N, 4], labels, scores [N], of one image.

    A score that is equal to the lowest one of the others' class is of a set that a detector has cut: which boxes of
    such a set are kept, and which suppress which, depends on the last bit, so one of that score will do.
    """
    if not len(others[0]):
        return np.zeros(len(candidates[0]), bool)
    boxes, labels, scores = (torch.from_numpy(one) for one in candidates)
    their_boxes, their_labels, their_scores = (torch.from_numpy(one) for one in others)
    # a pixel is added around each, since a box may have no area
    grown = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    same = box_iou(boxes + grown, their_boxes + grown) >= OVERLAP
    of_class = labels[:, None] == their_labels
    lowest = torch.where(of_class, their_scores, torch.inf).amin(1, keepdim=True)
    same |= their_scores <= lowest * (1 + TOLERANCE)
    apart = (scores[:, None] - their_scores).abs()
    return np.asarray((same & of_class & (apart <= TOLERANCE * scores[:, None])).any(1))


def require(count: int) -> None:
    """Raise UserError where no sample could be read."""
    if not count:
        raise UserError(
            "none of the files to check the export on can be read: --images FOLDER"
        )
