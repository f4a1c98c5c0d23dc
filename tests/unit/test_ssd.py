"""SSD for a batch at once is torchvision's, and so are frozen norms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD
from torchvision.ops import box_iou
from torchvision.ops.misc import FrozenBatchNorm2d

from saturate.models import _ssd
from saturate.models.detection import Detector, _FrozenNorm
from tests.end_to_end.runs import Runner
from tests.unit.triton_programs import interpreted

SIDE, CLASSES = 64, 6
Targets = list[dict[str, torch.Tensor]]


class Backbone(nn.Module):
    out_channels = (8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 8, 8), nn.Conv2d(8, 8, 2, 2)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.first(images)
        return {"0": first, "1": self.second(first)}


def small() -> Any:
    torch.manual_seed(0)
    stock = SSD(
        Backbone(),
        DefaultBoxGenerator([[2], [2]], min_ratio=0.15, max_ratio=0.6),
        (SIDE, SIDE),
        CLASSES,
    )
    return stock.train()


SMALL = small()
"""For what changes nothing in it."""


@cache
def defaults() -> torch.Tensor:
    stock, images = small(), torch.zeros(1, 3, SIDE, SIDE)
    return stock.anchor_generator(
        ImageList(images, [(SIDE, SIDE)]), list(stock.backbone(images).values())
    )[0]


def boxes_from(
    generator: torch.Generator, count: int, kind: str, among: torch.Tensor, side: int
) -> torch.Tensor:
    """[count, 4] with area: anywhere; on a grid, where many overlaps are equal; equal to default boxes; or
    all the same.
    """
    corners = torch.rand(count, 2, 2, generator=generator) * side
    if kind == "grid":
        corners = (corners / 16).floor() * 16
    low, high = corners.min(1).values, corners.max(1).values
    boxes = torch.cat(
        [low, torch.maximum(high, low + (16 if kind == "grid" else 1))], 1
    )
    if kind == "defaults":
        boxes = among[torch.randint(len(among), (count,), generator=generator)]
    return boxes[:1].repeat(count, 1) if kind == "same" else boxes


def targets_from(
    seed: int,
    images: list[tuple[int, str]],
    among: torch.Tensor | None = None,
    side: int = SIDE,
) -> Targets:
    generator, among = (
        torch.Generator().manual_seed(seed),
        defaults() if among is None else among,
    )
    return [
        {
            "boxes": boxes_from(generator, count, kind, among, side),
            "labels": torch.randint(1, CLASSES, (count,), generator=generator),
        }
        for count, kind in images
    ]


def outputs_from(
    seed: int, images: int, places: int, sharpness: float = 1.0
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    regression = torch.randn(images, places, 4, generator=generator)
    logits = sharpness * torch.randn(images, places, CLASSES, generator=generator)
    return {
        "bbox_regression": regression.requires_grad_(),
        "cls_logits": logits.requires_grad_(),
    }


def stock_matches(
    stock: Any, among: torch.Tensor, targets: Targets
) -> list[torch.Tensor]:
    nothing = torch.full((len(among),), -1)
    return [
        stock.proposal_matcher(box_iou(one["boxes"], among))
        if len(one["boxes"])
        else nothing
        for one in targets
    ]


# boxes of an image, and where they are
IMAGES = st.lists(
    st.tuples(
        st.integers(0, 12), st.sampled_from(["anywhere", "grid", "defaults", "same"])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=30)
@given(seed=st.integers(0, 999), images=IMAGES, most=st.sampled_from([1, 5, 1000]))
def test_losses_and_gradients_are_torchvisions(
    seed: int, images: list[tuple[int, str]], most: int
) -> None:
    """However many boxes are compared with the default boxes at a time."""
    stock, targets = SMALL, targets_from(seed, images)
    outputs = outputs_from(seed, len(images), len(defaults()))
    with patch.object(_ssd, "CHUNK_BYTES", most * 4 * len(defaults())):
        check_losses(stock, outputs, defaults(), targets)


def check_losses(
    stock: Any, outputs: dict[str, torch.Tensor], among: torch.Tensor, targets: Targets
) -> None:
    wanted = stock.compute_loss(
        targets, outputs, [among] * len(targets), stock_matches(stock, among, targets)
    )
    got = _ssd.losses(stock, outputs, among, targets)
    assert got.keys() == wanted.keys()
    for name, loss in wanted.items():
        torch.testing.assert_close(got[name], loss, rtol=1e-5, atol=1e-6)
    ours, theirs = (
        torch.autograd.grad(
            torch.stack(list(one.values())).sum(), list(outputs.values())
        )
        for one in (got, wanted)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def padded_from(seed: int) -> tuple[Targets, dict[str, torch.Tensor]]:
    """Return targets of 0 to 15 boxes of all kinds, and the same padded to 17 places. Those that are left
    over have boxes much like default boxes."""
    kinds = ("anywhere", "grid", "defaults", "same")
    images = [(3 * place, kinds[(place + seed) % 4]) for place in range(6)]
    targets = targets_from(seed, images)
    boxes = defaults()[:17].repeat(6, 1, 1)
    labels = torch.full((6, 17), -1)
    for row, one in enumerate(targets):
        boxes[row, : 3 * row] = one["boxes"]
        labels[row, : 3 * row] = one["labels"]
    return targets, {"boxes": boxes, "labels": labels}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1, 40, 1000])
def test_padded_targets_have_the_losses_of_listed_ones(seed: int, most: int) -> None:
    """Bit for bit, and so have the gradients, however many images are matched at a time."""
    outputs = outputs_from(seed, 6, len(defaults()))
    found = []
    with patch.object(_ssd, "CHUNK_BYTES", most * 4 * len(defaults())):
        for targets in padded_from(seed):
            losses = _ssd.losses(SMALL, outputs, defaults(), targets)
            total = torch.stack(list(losses.values())).sum()
            gradients = torch.autograd.grad(total, list(outputs.values()))
            found.append([*losses.values(), *gradients])
    assert all(map(torch.equal, *found))


INTERPRETED = """
from unittest.mock import patch
import torch
from saturate.models import _ssd
from tests.unit.test_ssd import defaults, padded_from
for seed, threshold in enumerate([0.5, 0.2]):
    boxes, labels = padded_from(seed)[1].values()
    given = defaults(), boxes, labels > 0, threshold
    with patch.object(_ssd, "has_kernels", lambda device: True):
        matched = _ssd.match(*given)
    assert torch.equal(matched, _ssd.match(*given)), seed
    print(int((matched < 17).sum()))
"""


@pytest.mark.slow
def test_the_kernel_finds_what_torch_does(runner: Runner) -> None:
    (few,), (many,) = interpreted(INTERPRETED, runner)
    assert 0 < few < many


def test_losses_with_more_than_a_quarter_of_the_default_boxes() -> None:
    """Three times as many of the background are not there, and torchvision counts some boxes twice."""
    targets = targets_from(3, [(0, "anywhere"), (60, "defaults")])
    targets[-1]["boxes"] = defaults()[::5]
    targets[-1]["labels"] = torch.randint(1, CLASSES, (64,))
    check_losses(small(), outputs_from(4, 2, len(defaults())), defaults(), targets)


@pytest.mark.parametrize("padded", [False, True])
def test_training_waits_for_no_value_on_the_device(padded: bool) -> None:
    """It is passed with shapes alone: what needs to know a value raises."""
    targets = padded_from(1)[padded]
    with FakeTensorMode() as mode:
        stock = small()
        fake: Any = tree_map(mode.from_tensor, targets)
        out: Any = Detector(stock)(
            torch.zeros(6, 3, SIDE, SIDE), [(SIDE, SIDE)] * 6, fake
        )
        torch.stack(list(out.values())).sum().backward()
    gradients = [one.grad for one in stock.parameters()]
    assert len(gradients) == 12 and all(one is not None for one in gradients)


def ordered(found: dict[str, torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """Return (score, label) and box of each detection; those of one score are sorted by their labels."""
    columns = (found[name].tolist() for name in ("scores", "labels", "boxes"))
    rows = sorted(zip(*columns, strict=True), reverse=True)
    return [row[:2] for row in rows], [row[2] for row in rows]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999),
    sizes=st.lists(
        st.tuples(st.integers(20, SIDE), st.integers(20, SIDE)), min_size=1, max_size=4
    ),
    # nearly all classes of a default box are candidates, or one or two
    sharpness=st.sampled_from([0.5, 3.0]),
    score=st.sampled_from([0.001, 0.3, 2.0]),  # the last is reached by none
    candidates=st.sampled_from([20, 400]),
    most=st.sampled_from([50, 10_000]),  # no limit: the last candidate counts too
    at_once=st.sampled_from([1, 3]),
)
def test_detections_are_torchvisions(
    seed: int,
    sizes: list[tuple[int, int]],
    sharpness: float,
    score: float,
    candidates: int,
    most: int,
    at_once: int,
) -> None:
    """In its order, but for those of one score, and with more than 1,000 boxes too."""
    stock = small().eval()
    stock.score_thresh, stock.topk_candidates, stock.detections_per_img = (
        score,
        candidates,
        most,
    )
    with torch.inference_mode():
        outputs = outputs_from(seed, len(sizes), len(defaults()), sharpness)
        wanted = stock.postprocess_detections(outputs, [defaults()] * len(sizes), sizes)
        with patch.object(_ssd, "CHUNK_BYTES", at_once * 4 * len(defaults()) * CLASSES):
            found = _ssd.detections(stock, outputs, defaults(), sizes)
    assert len(found) == len(wanted)
    assert all(len(one["boxes"]) <= most for one in found)
    assert score > 1 or len(found[0]["boxes"]) > 0
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert torch.equal(one["scores"], other["scores"])
        (mine, boxes), (its, theirs) = ordered(one), ordered(other)
        assert mine == its
        np.testing.assert_allclose(boxes, theirs, rtol=1e-6, atol=1e-5)


@pytest.fixture
def norm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One with random buffers, and a list `calls` that grows when it makes its scale and shift."""
    made: Any = _FrozenNorm(4, 1e-3)
    made.load_state_dict({name: torch.rand(4) + 0.1 for name in made.state_dict()})
    made.calls = []
    plain = _FrozenNorm._scale_and_shift

    def counted(self: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append(1)
        return plain(self, dtype)

    monkeypatch.setattr(_FrozenNorm, "_scale_and_shift", counted)
    return made


IMAGES_OF_NORMS = torch.rand(2, 4, 3, 3)


def check_norm(ours: Any, images: torch.Tensor) -> None:
    theirs: Any = FrozenBatchNorm2d(4, ours.eps).to(ours.weight.dtype)
    theirs.load_state_dict(ours.state_dict())
    wanted = theirs(images.to(ours.weight.dtype)).to(images.dtype)
    torch.testing.assert_close(ours(images), wanted, rtol=1e-2, atol=1e-2)


def test_a_frozen_norm_makes_its_scale_and_shift_once(norm: Any) -> None:
    with torch.inference_mode():
        norm(IMAGES_OF_NORMS)
    for _ in range(3):
        check_norm(norm, IMAGES_OF_NORMS)
    wanting = IMAGES_OF_NORMS.clone().requires_grad_()
    norm(wanting).sum().backward()
    assert wanting.grad is not None and len(norm.calls) == 1
    check_norm(norm, IMAGES_OF_NORMS.bfloat16())
    assert norm(IMAGES_OF_NORMS.bfloat16()).dtype == torch.bfloat16
    assert len(norm.calls) == 2


def doubled(ours: Any) -> None:
    ours.load_state_dict({name: 2 * value for name, value in ours.state_dict().items()})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "doubled": doubled,
    "moved": lambda ours: doubled(ours.double()),
    "less stable": lambda ours: setattr(ours, "eps", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_frozen_norm_sees_what_changes(norm: Any, change: str) -> None:
    before = norm(IMAGES_OF_NORMS)
    # its buffers count their versions anew, and may come to the number that was kept
    twin = copy.deepcopy(norm)
    for one in (norm, twin):
        CHANGES[change](one)
        check_norm(one, IMAGES_OF_NORMS)
        assert not torch.allclose(one(IMAGES_OF_NORMS), before, atol=0.05)
