"""Architectures for clips: heads fitted to the classes, and weights from files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from models import Loaded, Unusable
from models.video import build, native

HEADS = {
    "mc3_18": "fc",
    "mvit_v2_s": "head.1",
    "swin3d_t": "head",
    "s3d": "classifier.1",
}


def clips(side: int, *, frames: int = 16, batch_size: int = 2) -> tuple[int, ...]:
    return (batch_size, 3, frames, side, side)


def shapes(arch: str, classes: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        module, fresh = build(arch, classes=classes, shape=clips(native(arch).size))
    assert fresh.anew == []
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


@pytest.mark.parametrize("arch", HEADS)
def test_heads_are_fitted_to_the_classes(arch: str) -> None:
    seven, eleven = shapes(arch, 7), shapes(arch, 11)
    assert seven.keys() == eleven.keys()
    head = HEADS[arch]
    assert {name for name in seven if seven[name] != eleven[name]} == {
        f"{head}.weight",
        f"{head}.bias",
    }
    assert (seven[f"{head}.bias"], eleven[f"{head}.bias"]) == ((7,), (11,))


REFUSED = [
    (
        "mvit_v2_s",
        clips(112),
        "--clip-frames 16 of --image-size 112",
        "224 pixels and 16 frames",
    ),
    ("s3d", clips(224, frames=4), "--clip-frames 4", "224 pixels"),
    (
        "r3d_18",
        clips(8, frames=1, batch_size=1),
        "--clip-frames 1 of --image-size 8 with --batch-size 1",
        "112 pixels",
    ),
]


@pytest.mark.parametrize(
    ("arch", "shape", "got", "made_for"),
    REFUSED,
    ids=[f"{arch}-{got}" for arch, _, got, _ in REFUSED],
)
def test_clips_that_cannot_be_taken_are_one_line(
    arch: str, shape: tuple[int, ...], got: str, made_for: str
) -> None:
    with pytest.raises(Unusable) as caught, torch.device("meta"):
        build(arch, classes=3, shape=shape)
    said = str(caught.value)
    assert (
        "\n" not in said
        and got in said
        and f"--arch {arch}" in said
        and made_for in said
    )


def small(
    arch: str, classes: int, weights: Path | str | None = None
) -> tuple[nn.Module, Loaded]:
    shape = clips(224) if arch == "s3d" else clips(32, frames=4)
    return build(
        arch,
        classes=classes,
        shape=shape,
        weights=None if weights is None else str(weights),
    )


@pytest.mark.parametrize("arch", ["s3d", "mc3_18"])
def test_weights_from_a_file(arch: str, tmp_path: Path) -> None:
    module, _ = small(arch, 5)
    path = tmp_path / "a.pt"
    torch.save({"format": 1, "model": module.state_dict()}, path)
    for classes in (5, 3):
        loaded, fresh = small(arch, classes, path)
        head = HEADS[arch]
        assert fresh.anew == (
            [] if classes == 5 else [f"{head}.weight", f"{head}.bias"]
        )
        for name, value in loaded.state_dict().items():
            assert name in fresh.anew or torch.equal(
                value, module.state_dict()[name]
            ), name
