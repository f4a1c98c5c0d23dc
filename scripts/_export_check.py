"""What an exported file is run on beside PyTorch, and when it is right. Knows no format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torchvision.ops import box_iou

from contracts import Array, Split, UserError
from loaders.images.decoders import pillow_rgb
from scripts._preprocessing import Preprocessed

CHECKED = 16
"""Images or clips on which the file is compared with PyTorch."""
TOLERANCE = 0.01
"""Largest difference of a logit, as a share of the largest logit, with which a file is right; that of a score, as a
share of the score.

A sum in another order may round a pixel to the next grey level."""
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

    said: str  # how many samples were compared, and how
    wanted: str  # of a file that is right
    right: bool


def images(split: Split, plan: Any) -> Iterator[Array]:
    """Yield images, uint8 [H, W, 3], as they are stored."""
    for sample in range(len(split.columns)):
        try:
            yield np.array(pillow_rgb(split.source.read(sample)))
        except Exception:  # PIL raises whatever the bytes make it stumble over
            continue


def clips(split: Split, plan: Any) -> Iterator[Array]:
    """Yield the first clip that a validation's `plan` has of each video, uint8 [T, H, W, 3], as it is displayed."""
    # with PyAV and numba, which images do without
    from loaders.videos._planes import pixels_of
    from loaders.videos._worker import checked
    from loaders.videos.pyav import Pyav

    read = Pyav(split.columns)
    for sample in range(len(split.columns)):
        (frames,) = plan.draw(0, np.array([sample * plan.views]), count=1).frames
        wanted = np.unique(frames).tolist()
        try:
            pictures = read(sample, checked(split.source, sample), wanted)
            shown = {frame: pixels_of(picture) for frame, picture in pictures}
        except Exception:  # of damaged files
            continue
        yield np.stack([shown[frame] for frame in frames.tolist()])


def logits(run: Run, whole: Preprocessed, samples: Iterator[Array]) -> Verdict:
    """Compare logits. Raises UserError where there is no sample."""
    count = 0
    largest = scale = 0.0
    for pixels in islice(samples, CHECKED):
        # of one, and of two
        alike = [pixels, pixels[..., ::-1, :]] if count % 2 else [pixels]
        (expected,), (found,) = both(run, whole, np.stack(alike))
        difference = np.abs(found - expected).max()
        largest = max(largest, float(np.nan_to_num(difference, nan=np.inf)))
        scale = max(scale, float(np.abs(expected).max()))
        count += 1
    require(count)
    return Verdict(
        f"largest difference from PyTorch in fp32 over {count} {whole.medium}: {largest:.2g}, where the largest "
        f"logit is {scale:.3g}",
        f"it may differ by {TOLERANCE:.0%} of the largest logit at most",
        right=largest <= TOLERANCE * max(scale, 1e-6),
    )


def detections(run: Run, whole: Preprocessed, samples: Iterator[Array]) -> Verdict:
    """Look for the best detections of PyTorch among the file's, and the other way round; else as `logits`."""
    count = agreed = total = 0
    for pixels in islice(samples, CHECKED):
        expected, found = both(run, whole, pixels)
        for one, other in ((expected, found), (found, expected)):
            best = [each[:BEST] for each in one]
            total += len(best[0])
            agreed += int(in_both(best, other).sum())
        count += 1
    require(count)
    said = f"{agreed} of the {total} best detections of the file and of PyTorch in {count} images are of both"
    if not total:
        said = (
            f"nothing is found in {count} images, by PyTorch or the file, whose boxes are thus unchecked: "
            "--images FOLDER of others, or longer training"
        )
    return Verdict(said, f"{AGREED:.0%} must be", right=agreed >= AGREED * total)


def both(
    run: Run, whole: Preprocessed, given: Array
) -> tuple[list[Array], list[Array]]:
    """Return the outputs of PyTorch, and of the file."""
    with torch.inference_mode():
        outputs = whole(torch.from_numpy(given))
    single = isinstance(outputs, torch.Tensor)
    expected = [one.numpy() for one in ([outputs] if single else outputs)]
    return expected, run(given)


def in_both(found: list[Array], others: list[Array]) -> Array:
    """Return which detections, bool [N], are among `others`: boxes [N, 4], labels, scores [N], of one image.

    A score that is equal to the lowest one of the others' class is of a set that a detector has cut: which boxes of
    such a set are kept, and which suppress which, depends on the last bit, so one of that score will do.
    """
    if not len(others[0]):
        return np.zeros(len(found[0]), bool)
    boxes, labels, scores = (torch.from_numpy(one) for one in found)
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
