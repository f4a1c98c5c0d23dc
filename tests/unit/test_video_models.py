"""Architectures for clips: heads fitted to the classes, and weights from files."""

from __future__ import annotations

import pytest
import torch
import torchvision

from saturate.models import Unusable
from saturate.models.video import build, native

HEADS = {
    "mc3_18": "fc",
    "mvit_v2_s": "head.1",
    "swin3d_t": "head",
    "s3d": "classifier.1",
}


def clips(side: int, *, frames: int = 16, batch_size: int = 2) -> tuple[int, ...]:
    return (batch_size, 3, frames, side, side)


@pytest.mark.parametrize("arch", HEADS)
def test_heads_are_fitted_to_the_classes(arch: str) -> None:
    """All else is torchvision's own network."""
    with torch.device("meta"):
        module, fresh = build(arch, classes=7, shape=clips(native(arch).size))
        stock = torchvision.models.get_model(arch).state_dict()
    seven = module.state_dict()
    assert fresh.anew == [] and seven.keys() == stock.keys()
    other = {name for name in seven if seven[name].shape != stock[name].shape}
    head = HEADS[arch]
    assert other == {f"{head}.weight", f"{head}.bias"}
    assert len(seven[f"{head}.bias"]) == 7


def test_clips_that_cannot_be_taken_are_one_line() -> None:
    arch, got, made_for = (
        "mvit_v2_s",
        "--clip-frames 16 of --image-size 112",
        "224 pixels and 16 frames",
    )
    with pytest.raises(Unusable) as caught, torch.device("meta"):
        build(arch, classes=3, shape=clips(112))
    said = str(caught.value)
    assert (
        "\n" not in said
        and got in said
        and f"--arch {arch}" in said
        and made_for in said
    )
