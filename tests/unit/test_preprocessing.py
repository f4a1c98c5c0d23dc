"""An exported file frames as the validation does, to a grey level, and one that is wrong is seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from saturate.loaders.images.decoders import resize_window
from saturate.models.detection import build, native
from saturate.plan import windows
from saturate.run import _export_check, export
from saturate.run._preprocessing import (
    Detections,
    Framing,
    Images,
)
from tests.unit.test_detection_models import FAMILIES, SMALL, quick, shape_of, whole


def framing(window: str, interpolation: str) -> Framing:
    """Return what makes images of 32 x 32, whose levels stay in 0..1."""
    return Framing(
        window="center" if window == "center" else "stretch",
        resize=32,
        image_size=32,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        interpolation=interpolation,
        exif="stored",
    )


def known(module: Any, given: Iterable[np.ndarray]) -> Iterator[_export_check.Sample]:
    """Yield what a file is checked on, with the answers of a network and its preprocessing."""
    with torch.inference_mode():
        for pixels in given:
            whole = torch.from_numpy(pixels)
            is_detector = isinstance(module, Detections)
            found = module(whole) if is_detector else [module(whole[None])[0]]
            yield _export_check.Sample(pixels, [one.numpy() for one in found])


@pytest.mark.parametrize("window", ["center", "stretch"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(70, 41), (20, 25)], ids=["smaller", "larger"])
def test_levels(size: tuple[int, int], interpolation: str, window: str) -> None:
    # bicubic overshoots at edges, and what is clipped between two passes depends on which is the first
    pixels = np.random.default_rng(0).integers(40, 216, (*size, 3), dtype=np.uint8)
    module = Images(nn.Identity(), framing(window, interpolation))
    got = module(torch.from_numpy(pixels)[None])[0]
    height, width = size
    box = (0.0, 0.0, float(width), float(height))
    if window == "center":
        shorter = min(size)
        long = 32 * max(size) // shorter
        begin = round((long - 32) / 2) * max(size) / long
        end = begin + 32 * max(size) / long
        box = (
            (0.0, begin, float(width), end)
            if height > width
            else (begin, 0.0, end, float(height))
        )
    resampling = Image.Resampling[interpolation.upper()]
    expected = np.asarray(
        Image.fromarray(pixels).resize((32, 32), resampling, box=box), np.float64
    )
    difference = np.abs(255 * got.permute(1, 2, 0).numpy() - expected)
    # Pillow begins with the axis that shrinks the more, and what is rounded between the passes is another
    assert difference.max() <= 1.01 and difference.mean() < 0.3


LEVELS = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
"""Pixels that stay grey levels."""


class Seen(nn.Module):
    """In place of a detector: keeps what it is given, and finds one box, the filled part of it."""

    def forward(
        self, images: torch.Tensor, sizes: list[tuple[int, int]]
    ) -> list[dict[str, torch.Tensor]]:
        self.images = images
        ((self.height, self.width),) = sizes
        box = torch.tensor([[0.0, 0.0, self.width, self.height]])
        return [{"boxes": box, "labels": torch.tensor([1]), "scores": torch.ones(1)}]


# The shorter side of (90, 130) becomes 62 pixels, since 90 x (63 / 90) is below 63 in fp64. In fp32 what fills the
# network's input reaches beyond an image of (54, 107).
@pytest.mark.parametrize("size", [(48, 64), (333, 50), (7, 300), (90, 130), (54, 107)])
def test_a_detector_gets_the_whole_image_as_the_validation_fits_it(
    size: tuple[int, int],
) -> None:
    framing = Framing(
        window="fit",
        resize=63,
        image_size=100,
        interpolation="bilinear",
        exif="stored",
        **LEVELS,
    )
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    seen = Seen()
    boxes, *_ = Detections(seen, framing)(torch.from_numpy(pixels))
    sides = np.array([size[0]]), np.array([size[1]])
    height, width = (int(side[0]) for side in windows.fitted(*sides, 63, 100))
    assert (seen.height, seen.width) == (height, width)
    assert seen.images.shape[2] % 32 == seen.images.shape[3] % 32 == 0
    assert not seen.images[:, :, height:].any()
    assert not seen.images[..., width:].any()
    expected = np.empty((height, width, 3), np.uint8)
    everything = np.array([0.0, 0, size[1], size[0]])
    resize_window(expected, pixels, everything, "bilinear")
    got = seen.images[0, :, :height, :width].permute(1, 2, 0).numpy()
    difference = np.abs(got - expected)
    assert difference.max() <= 1.01 and difference.mean() < 0.3
    limits = [0, 0, size[1], size[0]]
    assert boxes.numpy() == pytest.approx(np.array([limits]), abs=1e-3)
    assert (boxes[0] <= torch.tensor(limits)).all()


def test_logits_that_differ_are_seen() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module = Images(network, framing("center", "bilinear"))
    images = [np.full((40, 50, 3), level, np.uint8) for level in (51, 102, 255)]

    def wrong(batch: np.ndarray) -> list[np.ndarray]:
        logits: np.ndarray = module(torch.from_numpy(batch)).numpy()
        return [logits + 0.25]

    verdict = _export_check.logits(wrong, known(module, images))
    assert not verdict.right
    assert "over 3 samples: 0.25, where the largest logit is 1" in verdict.finding


SCORES = re.compile(r"cls_(logits|score)$|classification_head.module_list")
"""Name of a layer that scores classes."""
SIZES = [(96, 128), (200, 90), (40, 44), (300, 411)]
"""None is that of the example that an export runs."""


def detector(arch: str, **changed: Any) -> Detections:
    """Return a detector of random weights whose scores are far apart, with its preprocessing."""
    torch.manual_seed(1)
    made = native(arch)
    network, _ = build(arch, classes=5, shape=shape_of(arch))
    quick(whole(network))
    framing = Framing(
        window="fit" if made.longer else "stretch",
        resize=64 if made.longer else made.size,
        image_size=96 if made.longer else made.size,
        interpolation="bilinear",
        exif="stored",
        **{"mean": made.mean, "std": made.std} | changed,
    )
    module = Detections(network, framing)
    spread(module)
    return module.eval()


def spread(module: Detections) -> None:
    """Fit norms, and the layers that score classes, to pictures: else scores differ by their last bits."""
    hooks = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            hooks.append(layer.register_forward_pre_hook(normalised))
        elif getattr(layer, "bias", None) is not None and SCORES.search(name):
            hooks.append(layer.register_forward_hook(scaled))
    with torch.no_grad():
        for picture in pictures():
            module.eval()(torch.from_numpy(picture))
    for hook in hooks:
        hook.remove()


def normalised(norm: Any, inputs: tuple[torch.Tensor]) -> None:
    """Give a norm the mean square of its input as variance, which no channel of a single pixel lacks."""
    norm.running_var.copy_(inputs[0].square().mean((0, 2, 3)))


def scaled(layer: Any, _: Any, outputs: torch.Tensor) -> torch.Tensor:
    """Scale a layer so that its outputs, which are returned, deviate by 1; later by 1 at most."""
    shift, scale = outputs.mean(), outputs.std()
    if hasattr(layer, "is_scaled") and scale < 1:
        return outputs
    layer.is_scaled = True
    layer.weight.div_(scale)
    layer.bias.sub_(shift).div_(scale)
    return (outputs - shift) / scale


def pictures() -> Iterator[np.ndarray]:
    """Yield smooth pictures of SIZES."""
    rng = np.random.default_rng(0)
    for height, width in SIZES:
        coarse = rng.integers(0, 256, (6, 7, 3), dtype=np.uint8)
        yield np.array(Image.fromarray(coarse).resize((width, height)))


@pytest.mark.parametrize("arch", ["fcos_tiny", SMALL, *FAMILIES])
def test_a_detector_as_onnx_finds_what_it_finds_here(arch: str) -> None:
    """In images of any size: SSD's own steps after its heads are torchvision's in the file."""
    module = detector(arch)
    _, run = export.as_onnx(module, {})
    verdict = _export_check.detections(run, known(module, pictures()))
    assert verdict.right and not verdict.finding.startswith("nothing"), verdict.finding
    for pixels in pictures():
        boxes, labels, scores = run(pixels)
        assert boxes.dtype == scores.dtype == np.float32 and labels.dtype == np.int64
        assert (np.diff(scores) <= 0).all(), "best first"
        assert np.isin(labels, range(5)).all()


def test_a_file_may_find_nothing() -> None:
    module = detector("fcos_tiny")
    whole(module.network).score_thresh = 1.0
    _, run = export.as_onnx(module, {})
    assert [one.shape for one in run(next(pictures()))] == [(0, 4), (0,), (0,)]
    verdict = _export_check.detections(run, known(module, pictures()))
    assert verdict.right and verdict.finding.startswith("nothing is found in 4 images")


class Found(NamedTuple):
    """The outputs of a detector's file."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


FAULTS: dict[str, Callable[[np.ndarray, Found], Any]] = {
    "boxes in pixels of the network": lambda pixels, found: found._replace(
        boxes=found.boxes * 64 / min(pixels.shape[:2])
    ),
    "labels from 0": lambda _, found: found._replace(labels=found.labels - 1),
    "other scores": lambda _, found: found._replace(scores=found.scores + 0.05),
    "others as well": lambda _, found: [
        np.concatenate([one + 1, one]) for one in found
    ],
    "nothing": lambda _, found: [one[:0] for one in found],
}


@pytest.mark.parametrize("fault", [None, "wrong mean", *FAULTS])
def test_detections_that_differ_are_seen(fault: str | None) -> None:
    module = detector("fcos_tiny")
    file = module
    if fault == "wrong mean":
        file = detector("fcos_tiny", mean=module.framing.mean[::-1])

    def run(pixels: np.ndarray) -> list[np.ndarray]:
        with torch.inference_mode():
            found = Found(*(one.numpy() for one in file(torch.from_numpy(pixels))))
        return list(FAULTS[fault](pixels, found) if fault in FAULTS else found)

    verdict = _export_check.detections(run, known(module, pictures()))
    assert verdict.right == (fault is None), verdict.finding


SAME = np.full(20, 0.3, np.float32)
"""Scores that are equal."""
FALLING = np.linspace(0.9, 0.1, 20, dtype=np.float32)


@pytest.mark.parametrize(
    ("scores", "others", "labels", "agreed"),
    [
        (SAME, SAME, 1, 20),  # other boxes of a set that was cut
        (SAME, SAME, 2, 0),
        (SAME, SAME + 0.05, 1, 0),
        (FALLING, FALLING, 1, 1),  # the last one alone may be of such a set
        (FALLING, FALLING[:0], 1, 0),
    ],
)
def test_equal_scores_are_no_difference(
    scores: np.ndarray, others: np.ndarray, labels: int, agreed: int
) -> None:
    """Two files have boxes in other places, here far away, by which of equal scores is the first."""
    near = np.arange(20, dtype=np.float32)[:, None] * 50 + [0, 0, 40, 40]
    far = near[: len(others)] + 5000
    own = [near.astype(np.float32), np.full(20, 1), scores]
    their = [far.astype(np.float32), np.full(len(others), labels), others]
    assert _export_check.in_both(own, their).sum() == agreed
